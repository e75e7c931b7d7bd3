import json

import pytest
from foreign_records import REPOSITORY, SAMPLES, check_broken, convert, load, one_member_replaced
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.schema import SchemaError
from maskworld.data.sources.engine_recording import SOURCE

FOLDER = SAMPLES / "engine_recording"
PATHS = sorted(FOLDER.glob("*.jsonl"))
RECORDED = REPOSITORY.parent / "shared" / "trajectories"


def read(record, path=PATHS[0]):
    assert SOURCE.matches(record, path)
    (trajectory,) = convert(SOURCE, record, path)
    return trajectory


@pytest.mark.parametrize(
    "name, episodes, steps, games",
    [
        ("alfworld", 156, 3078, 48),
        ("babyai", 216, 6164, 108),
        ("scienceworld", 123, 1794, 41),
        ("textworld", 144, 2366, 48),
        ("textworld_express", 180, 2668, 90),
    ],
)
def test_the_recordings_have_these_episodes(name, episodes, steps, games):
    path = RECORDED / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip(f"no {path}")
    with open(path, encoding="utf-8") as file:
        found = [convert(SOURCE, json.loads(line), path, index)[0] for index, line in enumerate(file)]
    assert len(found) == len({trajectory.id for trajectory in found}) == episodes
    assert sum(len(trajectory.steps) for trajectory in found) == steps
    assert len({trajectory.group for trajectory in found}) == games


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_an_action_is_answered_by_what_the_next_step_saw(path):
    record = load(path)
    trajectory = read(record, path)
    turns = record["steps"]
    assert [(step.action, step.observation) for step in trajectory.steps] == [
        (turn["action"], after["obs"]) for turn, after in zip(turns, turns[1:], strict=False)
    ]
    assert [step.reward for step in trajectory.steps] == [turn["reward"] for turn in turns[:-1]]
    assert trajectory.initial_observation == turns[0]["obs"]
    assert trajectory.task_context == record["goal"]
    assert trajectory.environment == path.stem
    assert trajectory.player == record["source"]
    assert trajectory.metadata["won"] == record["won"]
    assert trajectory.steps[-1].done == turns[-2]["done"]


def test_facts_are_e0_and_the_changes_of_steps():
    record = load(FOLDER / "textworld.jsonl")
    trajectory = read(record)
    assert trajectory.initial_state.split("\n") == record["init_facts"]
    assert [list(step.facts_added) for step in trajectory.steps] == [turn["facts_add"] for turn in record["steps"][:-1]]
    assert [list(step.facts_deleted) for step in trajectory.steps] == [
        turn["facts_del"] for turn in record["steps"][:-1]
    ]
    assert any(step.changes_state for step in trajectory.steps)
    assert trajectory.tool_schemas == ()


def test_babyai_tells_grid_and_place_and_its_six_actions():
    record = load(FOLDER / "babyai.jsonl")
    trajectory = read(record)
    assert trajectory.initial_state.startswith(record["init_grid"] + '\n{"pos":[')
    assert trajectory.tool_schemas == ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")


def test_episodes_of_one_game_are_one_group_whoever_played():
    record = load(FOLDER / "alfworld.jsonl")
    other = read(record | {"source": "random"})
    assert other.group == read(record).group and other.id != read(record).id
    for changed in ({"seed": 99}, {"origin": "rebuilt:x"}, {"settings": {"n_recep": 2}}, {"task": "x"}, {"env": "y"}):
        assert read(record | changed).group != other.group
    science = load(FOLDER / "scienceworld.jsonl")
    assert read(science | {"simplification": "easy", "split": "x"}).group == read(science).group
    assert read(science).group == f"scienceworld/{science['task']}/{science['variation']}"
    assert read(science | {"variation": 99}).group != read(science).group


def test_a_last_action_without_an_answer_is_counted():
    record = load(FOLDER / "alfworld.jsonl")
    whole = read(record)
    cut = read(record | {"steps": record["steps"][:-1]})
    assert cut.steps == whole.steps[:-1]
    assert cut.metadata["unanswered_actions"] == 1
    assert convert(SOURCE, record | {"steps": record["steps"][-1:]}, PATHS[0]) == []


def test_an_action_that_is_null_in_the_middle_is_named_by_its_path():
    record = load(FOLDER / "babyai.jsonl")
    record["steps"][0]["action"] = None
    with pytest.raises(SchemaError) as caught:
        read(record)
    assert caught.value.field == "steps[0].action"


@given(st.sampled_from(PATHS).flatmap(lambda path: one_member_replaced(load(path))))
@settings(max_examples=150, deadline=None)
def test_one_broken_member_is_refused_or_harmless(record):
    check_broken(SOURCE, record, PATHS[0])
