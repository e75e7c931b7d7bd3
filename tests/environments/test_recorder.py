"""Recording is a pure function of its configuration, and what it writes can be replayed."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from maskworld import cli
from maskworld.data.schema import Trajectory
from maskworld.data.trajectories import read_trajectories
from maskworld.environments import recorder
from maskworld.environments.pddl import pddl_problem
from maskworld.environments.real.alfworld import AlfworldEngine, engine_versions
from maskworld.environments.recorder import PRESETS, SPLITS, PlayerMixture, RecordConfig, _jobs, record, record_room
from maskworld.environments.room_state import RoomState, render_state
from maskworld.environments.rooms import Furnishing, RoomSizes, sample_room, sample_tasks
from maskworld.errors import ConfigError, UserError

TINY = RecordConfig(
    train_rooms=6, validation_rooms=2, test_rooms=2, episodes_per_room=2, max_steps=8, sizes=RoomSizes((4, 5), (4, 5))
)


@pytest.fixture(scope="module")
def engine() -> AlfworldEngine:
    pytest.importorskip("alfworld", reason="the real engine is optional: pip install -e .[envs]")
    return AlfworldEngine()


@pytest.fixture(scope="module")
def recorded(engine: AlfworldEngine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    record(with_processes(1), folder)
    return folder


def with_processes(count: int) -> RecordConfig:
    return replace(TINY, processes=count)


def rows(folder: Path, split: str) -> list[Trajectory]:
    return list(read_trajectories(folder / f"{split}.jsonl.gz"))


def test_the_files_do_not_depend_on_the_number_of_processes(recorded: Path, tmp_path: Path):
    record(with_processes(2), tmp_path)
    names = sorted(path.name for path in recorded.iterdir())
    assert names == ["manifest.json", "test.jsonl.gz", "train.jsonl.gz", "validation.jsonl.gz"]
    for name in names:
        assert (tmp_path / name).read_bytes() == (recorded / name).read_bytes(), name


def test_the_manifest_counts_what_was_written(recorded: Path):
    manifest = json.loads((recorded / "manifest.json").read_text())
    assert manifest["config"]["train_rooms"] == 6
    assert manifest["engine"]["alfworld"]
    for split in SPLITS:
        facts, written = manifest["splits"][split], rows(recorded, split)
        steps = [step for row in written for step in row.steps]
        assert facts["episodes"] == len(written) == 2 * facts["rooms"]
        assert facts["steps"] == len(steps) == sum(facts["steps_by_verb"].values())
        assert facts["state_changing_steps"] == sum(step.changes_state for step in steps)
        assert facts["bytes"] == (recorded / f"{split}.jsonl.gz").stat().st_size


def test_a_recorded_episode_replays_to_the_same_text_and_facts(engine: AlfworldEngine, recorded: Path):
    for row in rows(recorded, "train")[:6]:
        index = int(row.id.rpartition("-")[2])
        room = sample_room(row.metadata["seed"], TINY.sizes)
        rng = random.Random(f"episodes/{TINY.seed}/{room.seed}")
        task = sample_tasks(room, rng, TINY.episodes_per_room)[index]
        turn = engine.start(pddl_problem(room, task))
        state = RoomState(turn.facts)
        assert row.initial_observation == turn.text
        assert row.initial_state == render_state(engine.layout, state)
        for step in row.steps:
            turn = engine.step(step.action)
            state = state.after(step.facts_added, step.facts_deleted)
            assert (step.observation, step.reward, step.done) == (turn.text, turn.reward, turn.done)
            assert state.facts == turn.facts


def test_an_episode_ends_when_it_is_won_or_at_the_step_limit(recorded: Path):
    for split in SPLITS:
        for row in rows(recorded, split):
            assert len(row.steps) <= TINY.max_steps
            assert not any(step.done for step in row.steps[:-1])
            last = row.steps[-1]
            assert last.done or len(row.steps) == TINY.max_steps
            assert row.metadata["won"] == last.done == (last.reward == 1.0)


def test_another_seed_gives_other_rooms():
    def keys(config: RecordConfig) -> set[tuple]:
        return {job.room.layout_key for jobs in _jobs(config).values() for job in jobs}

    assert not keys(TINY) & keys(replace(TINY, seed=1))


def test_more_rooms_than_there_are_is_refused_instead_of_sought_for_ever(monkeypatch):
    monkeypatch.setattr(recorder, "_MOST_REPEATS", 20)
    few = RecordConfig(
        train_rooms=100_000,
        sizes=RoomSizes((2, 2), (2, 2)),
        furnishing=Furnishing(appliances=1.0, lamp=0.0, most_objects_alike=1, opened=0.0),
    )
    with pytest.raises(ConfigError, match=r"train_rooms: only \d+ different rooms"):
        _jobs(few)


def test_splits_share_no_room_even_where_rooms_are_so_small_that_seeds_repeat_them():
    config = RecordConfig(
        train_rooms=300, validation_rooms=100, test_rooms=100, sizes=RoomSizes(receptacles=(2, 2), objects=(2, 2))
    )
    keys = [job.room.layout_key for jobs in _jobs(config).values() for job in jobs]
    assert len(keys) == len(set(keys)) == 500
    assert [len(jobs) for jobs in _jobs(config).values()] == [300, 100, 100]
    plain = [sample_room(seed, config.sizes).layout_key for seed in range(2000)]
    assert len(set(plain)) < len(plain), "rooms of this size no longer repeat, so this shows nothing"


def test_players_come_in_the_asked_shares(engine: AlfworldEngine):
    config = replace(TINY, players=PlayerMixture(expert=1, noisy_expert=0, random=0), max_steps=25)
    players = [row for seed in range(3) for row in record_room(engine, sample_room(seed), config)]
    assert {row.player for row in players} == {"expert"}
    assert all(row.metadata["won"] for row in players)


@pytest.mark.parametrize("preset", ["rooms", "house"])
def test_the_presets_make_the_recorded_sets_that_come_with_the_project(preset: str, engine: AlfworldEngine):
    folder = Path(__file__).parents[1] / "data" / f"alfworld_{preset}"
    manifest = json.loads((folder / "manifest.json").read_text())
    config = PRESETS[preset]
    assert manifest["config"] == json.loads(json.dumps({k: v for k, v in asdict(config).items() if k != "processes"}))
    if manifest["engine"] != engine_versions():
        pytest.skip(f"recorded with {manifest['engine']}")
    for split, jobs in _jobs(replace(config, train_rooms=3, validation_rooms=3, test_rooms=3)).items():
        again = [row for job in jobs for row in record_room(engine, job.room, config)]
        assert again == rows(folder, split)[: len(again)]


def test_the_command_line_starts_from_the_named_preset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    seen = []
    monkeypatch.setattr(recorder, "record", lambda config, out: seen.append(config) or {"splits": {}})
    assert cli.main(["data", "record", str(tmp_path), "--preset", "house", "--seed", "3"]) == 0
    assert seen == [replace(PRESETS["house"], seed=3)]
    assert cli.main(["data", "record", str(tmp_path), "--preset", "castle"]) == 2
    assert "house, rooms" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: RecordConfig(max_steps=0), "max_steps"),
        (lambda: RecordConfig(epsilon=1.5), "epsilon"),
        (lambda: RecordConfig(epsilon=float("nan")), "epsilon"),
        (lambda: RecordConfig(processes=0), "processes"),
        (lambda: RecordConfig(wander=2), "wander"),
        (lambda: PlayerMixture(expert=-1), "players.expert"),
        (lambda: PlayerMixture(0, 0, 0), "players"),
    ],
)
def test_values_that_make_no_recording_are_refused_by_name(build, field: str):
    with pytest.raises(ConfigError, match=field):
        build()


def test_without_the_engine_the_message_says_what_to_install_and_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setitem(sys.modules, "alfworld", None)
    with pytest.raises(UserError, match=r"pip install -e \.\[envs\]"):
        record(TINY, tmp_path / "out")
    with pytest.raises(UserError, match=r"pip install -e \.\[envs\]"):
        AlfworldEngine()
    assert not (tmp_path / "out").exists()
