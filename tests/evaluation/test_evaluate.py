import dataclasses
import json

import numpy as np
import pytest

from maskworld.config import DataConfig, DiffusionConfig, EvaluationConfig, Experiment, ModelContract, SamplerConfig
from maskworld.configure import save_config
from maskworld.data.prepare import prepare
from maskworld.data.rendering import render_prompt
from maskworld.data.schema import Step, Trajectory
from maskworld.data.trajectories import write_trajectories
from maskworld.errors import CheckpointError, ConfigError, DataError
from maskworld.evaluation.baselines import COPY_LAST, FREQUENT_FOR_ACTION
from maskworld.evaluation.evaluate import evaluate
from maskworld.evaluation.predictions import read_predictions
from maskworld.evaluation.report import last_lines, write_report
from maskworld.evaluation.scores import MODEL
from maskworld.evaluation.transitions import Generation
from maskworld.training.checkpoints import LoadedParams

DOORS = ("red", "green", "blue")


def trajectory(split, index):
    door = DOORS[index % 3]
    steps = (
        Step(f"open {door} door", f"The {door} door opens onto hall {index}.", facts_added=("open",)),
        Step("look", "You see nothing new."),
        Step("walk on", f"You walk into hall {index}.", facts_added=("at hall",)),
    )
    return Trajectory(
        id=f"{split}-{index}",
        environment="doors",
        initial_state=f"the {door} door leads to hall {index}",
        task_context="find the hall",
        initial_observation="You stand before a door.",
        steps=steps,
        group=f"{split} house {index}",
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate")
    for split, count in (("train", 12), ("test", 6)):
        rows = [trajectory(split, i + (100 if split == "test" else 0)) for i in range(count)]
        write_trajectories(folder / "rooms" / f"{split}.jsonl.gz", rows)
    experiment = Experiment(
        name="doors",
        data=DataConfig(trajectories=str(folder / "rooms"), vocabulary_size=320, row_length=256),
        diffusion=DiffusionConfig(block_length=4),
        sampler=SamplerConfig(max_new_tokens=48),
        evaluation=EvaluationConfig(transitions=0, batch_size=4),
    )
    prepared = prepare(experiment.data, experiment.diffusion, folder / "run" / "data", say=lambda text: None)
    save_config(folder / "run" / "config.json", experiment)
    return folder / "run", experiment, prepared.tokenizer


@pytest.fixture
def loaded(run, monkeypatch):
    """A checkpoint that needs no network: `load_params` gives it, and the sampler of the test ignores it."""
    _, experiment, tokenizer = run
    contract = ModelContract(4, tokenizer.mask_id, 0, tokenizer.end_id, 320, "linear", tokenizer.fingerprint)
    value = LoadedParams({}, 70, experiment, contract, 0.5, ("a note",))
    monkeypatch.setattr("maskworld.training.checkpoints.load_params", lambda run, which: value)
    return value


def oracle(tokenizer, wrong=lambda trajectory, step: False, calls=None, longest=208, more=()):
    """A sampler that knows the truth, one token per forward, and errs where it is told to."""
    answers = {}
    for t in (*(trajectory("test", i) for i in range(100, 106)), *more):
        for number, step in enumerate(t.steps):
            text = "Nothing happens." if wrong(t, number) else step.observation
            try:
                key = render_prompt(t, number, tokenizer, 4, longest, row_length=256).tobytes()
            except DataError:
                continue
            answers[key] = [*tokenizer.encode(text), tokenizer.end_id, tokenizer.end_id]

    def make(loaded, config):
        def generate(prompts, prompt_capacity):
            if calls is not None:
                calls.append((len(prompts), prompt_capacity, config.sampler.threshold))
            tokens = [np.array(answers[prompt.tobytes()], np.int32) for prompt in prompts]
            return [Generation(t, len(t), np.arange(len(t)), np.ones(len(t), np.float32)) for t in tokens]

        return generate

    return make


def test_a_perfect_model_scores_one_and_the_files_say_how(run, loaded):
    folder, _, tokenizer = run
    said, calls = [], []
    result = evaluate(folder, make_generate=oracle(tokenizer, calls=calls), say=said.append)
    scores = json.loads((folder / "scores.json").read_text())
    assert scores == json.loads(json.dumps(result.scores))
    assert scores["transitions"] == 18 and scores["groups"] == 6 and scores["checkpoint"] == 70
    assert scores["available"] == {"state-changing": 12, "other": 6}
    assert scores["systems"][MODEL]["all"]["exact_match"] == 1.0
    assert scores["systems"][FREQUENT_FOR_ACTION]["other"]["exact_match"] == 1.0
    assert scores["systems"][FREQUENT_FOR_ACTION]["state-changing"]["exact_match"] == 0.0
    assert scores["systems"][COPY_LAST]["all"]["exact_match"] == 0.0
    assert scores["data"]["environments"] == ["doors"] and scores["data"]["seen_groups"] == 0
    assert scores["data"]["splits"]["train"] == {"trajectories": 12, "groups": 12, "steps": 36}
    assert {size for size, _, _ in calls} == {4}
    assert "a note" in said and any("18/18" in text for text in said)
    assert "18 held-out transitions" in said[-1] and FREQUENT_FOR_ACTION in said[-1]

    predictions = read_predictions(folder / "predictions.jsonl")
    assert predictions == result.predictions
    assert predictions[2].prediction == "You walk into hall 100." == predictions[2].truth
    assert predictions[0].tokens == predictions[0].forwards - 1  # the second <end> is not counted


def test_errors_of_the_model_are_counted_where_they_are(run, loaded):
    folder, _, tokenizer = run
    wrong = oracle(tokenizer, wrong=lambda trajectory, step: step == 2 and trajectory.id == "test-103")
    model = evaluate(folder, make_generate=wrong, say=lambda text: None).scores["systems"][MODEL]
    assert model["state-changing"]["correct"] == 11 and model["other"]["correct"] == 6


def test_the_caller_may_ask_for_fewer_and_for_another_sampler(run, loaded):
    folder, experiment, tokenizer = run
    calls = []
    other = dataclasses.replace(experiment, sampler=dataclasses.replace(experiment.sampler, threshold=0.25))
    result = evaluate(
        folder, transitions=5, experiment=other, make_generate=oracle(tokenizer, calls=calls), say=lambda text: None
    )
    assert result.scores["transitions"] == 5 and result.scores["sampler"]["threshold"] == 0.25
    assert {threshold for _, _, threshold in calls} == {0.25}


def test_report_and_last_lines_follow_from_the_run_folder(run, loaded):
    folder, _, tokenizer = run
    evaluate(folder, make_generate=oracle(tokenizer), say=lambda text: None)
    html = write_report(folder).read_text()
    assert "18 transitions from 6 unseen groups" in html and "opens onto hall" in html
    lines = last_lines(folder)
    assert lines[-1] == f"report: {folder / 'report.html'}"
    assert "18 held-out transitions from 6 unseen groups" in lines[0]
    assert "state-changing steps  1.000" in lines[1] and "best baseline 0.000" in lines[1]
    assert "tokens per forward" in lines[3]


def test_a_split_that_is_absent_is_named(run, loaded):
    folder, _, tokenizer = run
    with pytest.raises(DataError, match="nights"):
        evaluate(folder, "nights", make_generate=oracle(tokenizer), say=lambda text: None)


def test_rooms_of_another_folder_are_scored_beside_what_the_run_was_trained_on(run, loaded, tmp_path):
    folder, experiment, tokenizer = run
    seen = dataclasses.replace(trajectory("test", 100), group="train house 0")
    write_trajectories(tmp_path / "test.jsonl", [seen, trajectory("test", 101)])
    elsewhere = dataclasses.replace(experiment, data=dataclasses.replace(experiment.data, trajectories=str(tmp_path)))
    scores = evaluate(folder, experiment=elsewhere, make_generate=oracle(tokenizer), say=lambda text: None).scores
    assert scores["data"]["seen_groups"] == 1
    assert scores["data"]["splits"]["train"]["trajectories"] == 12


def test_bad_rows_of_the_split_are_set_aside_and_said(run, loaded, tmp_path):
    folder, experiment, tokenizer = run
    rows = [trajectory("test", 100)]
    write_trajectories(tmp_path / "test.jsonl", rows)
    write_trajectories(tmp_path / "train.jsonl", [trajectory("train", 1)])
    with open(tmp_path / "test.jsonl", "a") as file:
        file.write('{"id": 3}\n')
    said = []
    here = dataclasses.replace(experiment, data=dataclasses.replace(experiment.data, trajectories=str(tmp_path)))
    result = evaluate(folder, experiment=here, make_generate=oracle(tokenizer), say=said.append)
    assert result.scores["transitions"] == 3
    assert any("1 rejected" in text for text in said)
    assert (folder / "rejected_test.jsonl").read_text().count("\n") == 1


def test_another_tokenizer_is_refused_by_name(run, loaded, monkeypatch):
    folder, _, tokenizer = run
    foreign = dataclasses.replace(loaded, contract=dataclasses.replace(loaded.contract, tokenizer_hash="f" * 64))
    monkeypatch.setattr("maskworld.training.checkpoints.load_params", lambda run, which: foreign)
    with pytest.raises(CheckpointError, match="tokenizer_hash"):
        evaluate(folder, make_generate=oracle(tokenizer), say=lambda text: None)


def test_a_limit_that_leaves_no_room_for_a_prompt_is_refused_by_name(run, loaded):
    folder, experiment, tokenizer = run
    greedy = dataclasses.replace(experiment, sampler=SamplerConfig(max_new_tokens=254))
    with pytest.raises(ConfigError, match="max_new_tokens"):
        evaluate(folder, experiment=greedy, make_generate=oracle(tokenizer), say=lambda text: None)


def test_a_context_that_no_row_holds_is_cut_as_in_training_and_its_transitions_are_asked(run, loaded, tmp_path):
    folder, experiment, tokenizer = run
    long = dataclasses.replace(trajectory("test", 101), id="long", initial_state="hall " * 400)
    write_trajectories(tmp_path / "test.jsonl", [trajectory("test", 100), long])
    write_trajectories(tmp_path / "train.jsonl", [trajectory("train", 1)])
    here = dataclasses.replace(experiment, data=dataclasses.replace(experiment.data, trajectories=str(tmp_path)))
    result = evaluate(folder, experiment=here, make_generate=oracle(tokenizer, more=[long]), say=lambda text: None)
    assert result.scores["left_out"] == 0 and result.scores["transitions"] == 6
    assert result.scores["systems"][MODEL]["all"]["exact_match"] == 1.0


def test_transitions_without_room_for_a_prompt_are_counted(run, loaded):
    folder, experiment, tokenizer = run
    said = []
    here = dataclasses.replace(experiment, sampler=SamplerConfig(max_new_tokens=256 - 12))
    result = evaluate(folder, experiment=here, make_generate=oracle(tokenizer, longest=12), say=said.append)
    assert result.scores["left_out"] == 12 and result.scores["transitions"] == 6
    assert any("12 of 18 transitions are left out" in text and "step 1: context" in text for text in said)
