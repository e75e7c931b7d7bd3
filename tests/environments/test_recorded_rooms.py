"""The recorded set that comes with the project: sound, complete in itself, and split by room. No engine needed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from room_texts import NOTHING, RoomTexts

from maskworld.data.schema import Trajectory
from maskworld.data.trajectories import ReadReport, read_trajectories
from maskworld.environments.room_state import RoomState
from maskworld.environments.rooms import TASK_TYPES
from maskworld.evaluation.baselines import BASELINES, count_observations, predict

DATA = Path(__file__).parents[1] / "data"
SPLITS = ("train", "validation", "test")


@pytest.fixture(scope="module", params=["alfworld_rooms", "alfworld_house"])
def folder(request: pytest.FixtureRequest) -> Path:
    return DATA / request.param


@pytest.fixture(scope="module")
def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


@pytest.fixture(scope="module")
def recorded(folder: Path) -> dict[str, list[Trajectory]]:
    return read(folder)


def read(folder: Path) -> dict[str, list[Trajectory]]:
    rows = {}
    for split in SPLITS:
        report = ReadReport()
        rows[split] = list(read_trajectories(folder / f"{split}.jsonl.gz", report=report))
        assert report.rejected == 0
    return rows


def test_the_files_are_the_ones_the_manifest_describes(
    folder: Path, manifest: dict, recorded: dict[str, list[Trajectory]]
):
    for split in SPLITS:
        facts, data = manifest["splits"][split], (folder / f"{split}.jsonl.gz").read_bytes()
        assert facts["sha256"] == hashlib.sha256(data).hexdigest()
        assert facts["episodes"] == len(recorded[split])
        assert facts["steps"] == sum(len(row.steps) for row in recorded[split])
        assert set(facts["episodes_by_task_type"]) == set(TASK_TYPES)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 4_000_000


def test_the_texts_origin_and_licence_are_stated(folder: Path):
    notice = (folder / "NOTICE").read_text()
    assert "ALFWorld" in notice
    assert "MIT" in notice


def test_no_room_is_in_two_splits(recorded: dict[str, list[Trajectory]]):
    for key in (lambda row: row.group, lambda row: row.initial_state):
        rooms = {split: {key(row) for row in rows} for split, rows in recorded.items()}
        for one, other in combinations(SPLITS, 2):
            assert not rooms[one] & rooms[other]
    ids = [row.id for rows in recorded.values() for row in rows]
    assert len(ids) == len(set(ids))


def test_every_field_a_renderer_reads_is_filled(recorded: dict[str, list[Trajectory]]):
    for rows in recorded.values():
        for row in rows:
            assert row.initial_state and row.initial_observation and row.task_context
            assert row.tool_schemas and row.domain_rules and row.group and row.player
            assert row.metadata["task_type"] in TASK_TYPES
            assert len(row.steps) <= 20


def test_every_observation_follows_from_the_initial_state_and_the_facts_of_earlier_steps(
    recorded: dict[str, list[Trajectory]],
):
    answered = impossible = 0
    for row in [*recorded["test"], *recorded["validation"], *recorded["train"][::10]]:
        texts = RoomTexts(row.initial_state)
        state = texts.start
        assert row.initial_observation == texts.first()
        for number, step in enumerate(row.steps):
            assert step.observation == texts.answer(state, step.action), (row.id, number, step.action)
            assert not set(step.facts_deleted) - state.facts
            assert not set(step.facts_added) & state.facts
            assert step.observation != NOTHING or not step.changes_state
            state = state.after(step.facts_added, step.facts_deleted)
            answered += 1
            impossible += step.observation == NOTHING
    assert answered > 4_000
    assert 0.005 < impossible / answered < 0.1


def test_the_tracked_state_stays_one_a_room_can_be_in(recorded: dict[str, list[Trajectory]]):
    for row in recorded["test"]:
        state = RoomTexts(row.initial_state).start
        things = len(state.places())
        for step in row.steps:
            state = RoomState(state.after(step.facts_added, step.facts_deleted).facts)
            assert sum(fact.startswith("atlocation(") for fact in state.facts) == 1
            assert len(state.places()) + bool(state.held) == things


def test_in_the_house_counting_answers_to_commands_predicts_little():
    recorded = read(DATA / "alfworld_house")
    frequent = count_observations(recorded["train"])
    hits, asked = Counter(), 0
    for row in recorded["test"]:
        for number, step in enumerate(row.steps):
            if step.changes_state:
                asked += 1
                hits.update(name for name, text in predict(row, number, frequent).items() if text == step.observation)
    assert asked > 1500
    for name in BASELINES:
        assert hits[name] / asked < 0.25, name
