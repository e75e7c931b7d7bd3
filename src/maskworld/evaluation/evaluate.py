"""Score a trained run on held-out transitions: choose, generate, compare with the baselines, write the files."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from maskworld.config import Experiment
from maskworld.data.prepare import split_files
from maskworld.data.schema import Trajectory
from maskworld.data.tokenizer import Tokenizer, load_tokenizer
from maskworld.data.trajectories import ReadReport, read_trajectories
from maskworld.errors import CheckpointError, ConfigError, DataError
from maskworld.evaluation.baselines import count_observations, predict
from maskworld.evaluation.predictions import Prediction, write_predictions
from maskworld.evaluation.run_record import PREDICTIONS_FILE, SCORES_FILE
from maskworld.evaluation.scores import score, table_text, write_scores
from maskworld.evaluation.transitions import (
    Generate,
    Transition,
    choose_transitions,
    generate_all,
    render_prompts,
    to_prediction,
)
from maskworld.storage import writing

if TYPE_CHECKING:
    from maskworld.training.checkpoints import LoadedParams

TRAIN = "train"


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation found, as it stands in the run folder."""

    scores: dict[str, Any]
    predictions: list[Prediction]


def evaluate(
    run_folder: str | Path,
    split: str = "test",
    transitions: int | None = None,
    *,
    experiment: Experiment | None = None,
    checkpoint: int | Literal["best", "latest"] = "best",
    make_generate: Callable[[LoadedParams, Experiment], Generate] | None = None,
    say: Callable[[str], None] = print,
) -> Evaluated:
    """Generate held-out observations with a run's model, score them, and write predictions.jsonl and scores.json.

    Args:
        run_folder: what training made.
        split: files of the trajectory folder whose name begins so.
        transitions: how many of them; 0 takes all, None what the configuration says.
        experiment: its `data.trajectories`, `sampler` and `evaluation` are used in place of the run's own.
        checkpoint: a step, or which of them.
        make_generate: makes the sampler from the loaded parameters; None takes the project's own.
        say: gets sentences about what is going on.

    Raises:
        CheckpointError: there is no usable checkpoint, or the run's tokenizer is not the one it was trained with.
        ConfigError: no room for a prompt beside `sampler.max_new_tokens`.
        DataError: the split is missing or empty, none of its transitions fits, or the training split is gone.
        StorageError: the run folder cannot be written.
    """
    from maskworld.training.checkpoints import load_params

    run = Path(run_folder)
    loaded = load_params(run, checkpoint)
    for note in loaded.notes:
        say(note)
    settings = experiment or loaded.config
    trained = dataclasses.replace(loaded.config, sampler=settings.sampler, evaluation=settings.evaluation)
    tokenizer = _tokenizer(run, loaded)
    longest, block = _room_for_prompts(trained), trained.diffusion.block_length

    folder, training = settings.data.trajectories, split_files(loaded.config.data.trajectories, TRAIN)
    if not training:
        raise DataError(
            f"{loaded.config.data.trajectories} holds no {TRAIN}*.jsonl (or .gz, .zst): what the run was trained "
            "on is needed to count the baselines and to tell which rooms are unseen"
        )
    held_out = _read_split(folder, split, run / f"rejected_{split}.jsonl", say)
    count = trained.evaluation.transitions if transitions is None else transitions
    chosen, available = choose_transitions(held_out, count, trained.evaluation.seed)
    prompts, reasons = render_prompts(chosen, tokenizer, block, longest, trained.data.context, trained.data.row_length)
    if not prompts:
        raise DataError(f"{folder}: no transition of the {split} split has a prompt; {(reasons or ['it is empty'])[0]}")
    if reasons:
        say(f"{len(reasons)} of {len(chosen)} transitions are left out, the first because {reasons[0]}")

    say(f"generating {len(prompts)} observations with the checkpoint of step {loaded.step}")
    generate = (make_generate or _project_sampler)(loaded, trained)
    begun = time.perf_counter()
    generations = generate_all(
        [prompt for _, prompt in prompts], generate, trained.evaluation.batch_size, block, _Tenths(say)
    )
    seconds = time.perf_counter() - begun
    from_prompt = trained.diffusion.objective == "full_sequence"  # its sampler's blocks are not the document's
    predictions = [
        to_prediction(transition, 0 if from_prompt else len(prompt), generation, tokenizer, block)
        for (transition, prompt), generation in zip(prompts, generations, strict=True)
    ]
    scores = _compare(predictions, [transition for transition, _ in prompts], training, split, available, held_out)
    scores |= {"left_out": len(reasons), "checkpoint": loaded.step, "sampler": dataclasses.asdict(trained.sampler)}
    scores["generation"]["seconds"] = seconds
    write_predictions(run / PREDICTIONS_FILE, predictions)
    write_scores(run / SCORES_FILE, scores)
    say(table_text(scores))
    return Evaluated(scores, predictions)


def _tokenizer(run: Path, loaded: LoadedParams) -> Tokenizer:
    tokenizer = load_tokenizer(run / "data" / "tokenizer")
    if tokenizer.fingerprint != loaded.contract.tokenizer_hash:
        raise CheckpointError(
            f"tokenizer_hash: {run / 'data' / 'tokenizer'} is {tokenizer.fingerprint[:12]}, the checkpoint of step "
            f"{loaded.step} was trained with {loaded.contract.tokenizer_hash[:12]}; put the run's own tokenizer back"
        )
    return tokenizer


def _room_for_prompts(config: Experiment) -> int:
    """Longest prompt: with the tokens to be generated it stays inside the positions that training has seen."""
    block = config.diffusion.block_length
    longest = (config.data.row_length - config.sampler.max_new_tokens) // block * block
    if longest < block:
        raise ConfigError(
            f"sampler.max_new_tokens: {config.sampler.max_new_tokens} leaves no room for a prompt in rows of "
            f"{config.data.row_length} tokens (data.row_length)"
        )
    return longest


def _read_split(folder: str, split: str, rejected: Path, say: Callable[[str], None]) -> list[Trajectory]:
    files = split_files(folder, split)
    if not files:
        raise DataError(f"{folder} holds no {split}*.jsonl (or .gz, .zst; data.trajectories)")
    with writing(rejected):
        rejected.unlink(missing_ok=True)
    report = ReadReport()
    trajectories = list(read_trajectories(files, rejected, report))
    say(f"{split}: {report.summary()}" + (f"; see {rejected}" if report.rejected else ""))
    return trajectories


@dataclass
class _Census:
    """Counts trajectories while they pass."""

    trajectories: int = 0
    steps: int = 0
    groups: set[str] = field(default_factory=set)
    environments: set[str] = field(default_factory=set)

    def watch(self, trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
        for trajectory in trajectories:
            self.trajectories += 1
            self.steps += len(trajectory.steps)
            self.groups.add(trajectory.group or trajectory.id)
            self.environments.add(trajectory.environment)
            yield trajectory

    def to_json(self) -> dict[str, int]:
        return {"trajectories": self.trajectories, "groups": len(self.groups), "steps": self.steps}


def _compare(
    predictions: list[Prediction],
    transitions: list[Transition],
    training: list[Path],
    split: str,
    available: dict[str, int],
    held_out: list[Trajectory],
) -> dict[str, Any]:
    """The score table, with the baselines counted on what the run was trained on, and what the splits hold."""
    train, held = _Census(), _Census()
    # Training has set its bad rows aside already, and named them.
    training_rows = read_trajectories(training, Path(os.devnull))
    frequent = count_observations(train.watch(training_rows))
    for _ in held.watch(held_out):
        pass
    baselines = [predict(transition.trajectory, transition.step, frequent) for transition in transitions]
    scores = score(predictions, baselines, split=split, available=available)
    chosen_groups = {t.trajectory.group or t.trajectory.id for t in transitions}
    scores["data"] = {
        "environments": sorted(held.environments | train.environments),
        "splits": {TRAIN: train.to_json(), split: held.to_json()},
        "seen_groups": len(chosen_groups & train.groups),
    }
    return scores


class _Tenths:
    """Says how far generation is, about ten times in all."""

    def __init__(self, say: Callable[[str], None]):
        self._say, self._begun, self._said = say, time.perf_counter(), 0

    def __call__(self, done: int, total: int) -> None:
        tenth = 10 * done // total
        if tenth > self._said:
            self._said = tenth
            rate = done / (time.perf_counter() - self._begun)
            self._say(f"  {done}/{total} observations, {rate:.1f} a second")


def _project_sampler(loaded: LoadedParams, config: Experiment) -> Generate:
    from maskworld.evaluation.generator import make_generate

    return make_generate(loaded, config)
