"""Records trajectories: scripted players in sampled rooms, answered by the real ALFWorld engine.

The unit of work is a room; what is written is a pure function of the configuration and of the engine's version,
whatever the number of processes. Splits go by room: no room of one split has the same layout as any other room.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from maskworld.data.schema import SCHEMA, Step, Trajectory
from maskworld.data.trajectories import write_trajectories
from maskworld.environments.pddl import pddl_problem
from maskworld.environments.players import COMMANDS, View, play, verb_of
from maskworld.environments.real.alfworld import AlfworldEngine, engine_versions
from maskworld.environments.room_state import RoomState, render_state
from maskworld.environments.rooms import Furnishing, Room, RoomSizes, Task, sample_room, sample_tasks
from maskworld.errors import ConfigError, UserError
from maskworld.storage import write_text

SPLITS = ("train", "validation", "test")
RULES = (
    "You carry at most one object.",
    "A closed receptacle must be opened first.",
    "Else: Nothing happens.",
)
_SEEDS_PER_SPLIT = 1_000_000
_MOST_REPEATS = 2_000  # seeds in a row that give a room already known


@dataclass(frozen=True)
class PlayerMixture:
    """Relative shares of episodes by player; each episode's player is drawn on its own."""

    expert: float = 0.2
    """Solves the task from the true state."""
    noisy_expert: float = 0.4
    """The expert, but some commands are random."""
    random: float = 0.4
    """A random verb, then a random command of that verb."""

    def __post_init__(self) -> None:
        shares = asdict(self)
        for name, share in shares.items():
            if not 0 <= share < float("inf"):
                raise ConfigError(f"players.{name}: {share} is not a share (a number that is not negative)")
        if not sum(shares.values()):
            raise ConfigError("players: every share is 0, so nobody would play")


@dataclass(frozen=True)
class RecordConfig:
    """What to record. Equal configurations give byte-identical files with the same engine version."""

    train_rooms: int = 4000
    """Rooms of train.jsonl.gz; 0 writes an empty file, likewise below."""
    validation_rooms: int = 100
    """Rooms of validation.jsonl.gz."""
    test_rooms: int = 200
    """Rooms of test.jsonl.gz."""
    episodes_per_room: int = 2
    """Episodes in each room, with different tasks where the room has several."""
    max_steps: int = 20
    """Commands per episode at most; an episode also ends when its task is solved."""
    players: PlayerMixture = field(default_factory=PlayerMixture)
    epsilon: float = 0.3
    """Probability that noisy_expert plays a random command."""
    inadmissible: float = 0.05
    """Share of random commands that are well formed but impossible at that moment."""
    wander: float = 0.0
    """Share of the other random commands that go somewhere, whatever else is possible; without it verbs are equal."""
    sizes: RoomSizes = field(default_factory=RoomSizes)
    furnishing: Furnishing = field(default_factory=Furnishing)
    seed: int = 0
    """Seed of rooms, tasks, players and commands; two seeds share no room's seed."""
    processes: int = 2
    """Engine processes; the files do not depend on it."""

    def __post_init__(self) -> None:
        bounds = {
            "train_rooms": (0, _SEEDS_PER_SPLIT // 2),
            "validation_rooms": (0, _SEEDS_PER_SPLIT // 2),
            "test_rooms": (0, _SEEDS_PER_SPLIT // 2),
            "episodes_per_room": (1, 1000),
            "max_steps": (1, 1000),
            "epsilon": (0, 1),
            "inadmissible": (0, 1),
            "wander": (0, 1),
            "seed": (0, 2**31),
            "processes": (1, 256),
        }
        for name, (low, high) in bounds.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name}: {getattr(self, name)} is not within {low}..{high}")


PRESETS = {
    "rooms": RecordConfig(),
    # Studio flats of alike things, one on nearly every receptacle and few of these shut, and players that look around:
    # a command seldom reappears with the same answer, so that counting answers to commands predicts little. Flats of
    # two places make it easy to find out that e0 is to be looked up, those of eight make guessing useless.
    "house": RecordConfig(
        train_rooms=1600,
        validation_rooms=50,
        test_rooms=100,
        players=PlayerMixture(expert=0.1, noisy_expert=0.3, random=0.6),
        wander=0.8,
        sizes=RoomSizes(receptacles=(2, 8), objects=(2, 8), one_each=True),
        furnishing=Furnishing(
            rooms="studio",
            most_receptacles_alike=4,
            most_objects_alike=3,
            receptacles_alike=0.75,
            objects_alike=0.7,
            appliances=0.3,
            lamp=0.3,
            opened=0.7,
            spread="even",
        ),
    ),
}
"""Settings by name: what the recorded sets that come with the project were made with."""


@dataclass(frozen=True)
class _Job:
    split: str
    room: Room
    config: RecordConfig


def record(config: RecordConfig, out: Path) -> dict:
    """Writes `{train,validation,test}.jsonl.gz` and `manifest.json` into `out`; returns the manifest.

    Raises UserError when the engine is not installed, StorageError when `out` cannot be written.
    """
    versions = engine_versions()
    out = Path(out)
    manifest: dict = {
        "schema": SCHEMA,
        "environment": "alfworld",
        "config": {k: v for k, v in asdict(config).items() if k != "processes"},
        "engine": versions,
        "splits": {},
    }
    jobs = _jobs(config)
    with _Progress(sum(map(len, jobs.values()))) as progress:
        for split, split_jobs in jobs.items():
            summary = _Summary()
            path = out / f"{split}.jsonl.gz"
            rooms = progress.watch(_play(split_jobs, config.processes))
            write_trajectories(path, summary.watch(itertools.chain.from_iterable(rooms)))
            manifest["splits"][split] = summary.as_dict() | {
                "file": path.name,
                "bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
    write_text(out / "manifest.json", json.dumps(manifest, indent=2) + "\n")
    return manifest


def _jobs(config: RecordConfig) -> dict[str, list[_Job]]:
    """Distinct rooms for each split. A seed whose room exists already (small rooms may repeat) is passed over.

    Raises:
        ConfigError: there are fewer different rooms of these sizes, as far as sampling can find them.
    """
    seen = set()
    jobs: dict[str, list[_Job]] = {}
    for index, split in enumerate(SPLITS):
        jobs[split] = []
        seed = (config.seed * len(SPLITS) + index) * _SEEDS_PER_SPLIT
        repeats = 0
        while len(jobs[split]) < getattr(config, f"{split}_rooms"):
            room = sample_room(seed, config.sizes, config.furnishing)
            seed += 1
            repeats += 1
            if room.layout_key not in seen:
                seen.add(room.layout_key)
                jobs[split].append(_Job(split, room, config))
                repeats = 0
            elif repeats == _MOST_REPEATS:
                raise ConfigError(
                    f"{split}_rooms: only {len(seen)} different rooms of these sizes and furnishing were found, not "
                    f"{getattr(config, f'{split}_rooms')} more; ask for fewer or larger ones"
                )
    return jobs


def _play(jobs: list[_Job], processes: int) -> Iterator[list[Trajectory]]:
    """The jobs' trajectories in the jobs' order."""
    if processes == 1 or len(jobs) < 2:
        with contextlib.closing(AlfworldEngine()) as engine:
            for job in jobs:
                yield record_room(engine, job.room, job.config)
        return
    # Spawned, not forked: a parent that has used an accelerator library must not be forked.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(processes, len(jobs)), spawn)
    try:
        yield from pool.map(_work, jobs, chunksize=4)
    except BrokenProcessPool as error:
        raise UserError("a recording process died, perhaps for want of memory; try fewer processes") from error
    finally:
        pool.shutdown(cancel_futures=True)


@functools.cache
def _process_engine() -> AlfworldEngine:
    """The one engine of a worker process."""
    return AlfworldEngine()


def _work(job: _Job) -> list[Trajectory]:
    return record_room(_process_engine(), job.room, job.config)


def record_room(engine: AlfworldEngine, room: Room, config: RecordConfig) -> list[Trajectory]:
    """All episodes of one room."""
    rng = random.Random(f"episodes/{config.seed}/{room.seed}")
    names = [f.name for f in fields(config.players)]
    weights = [getattr(config.players, name) for name in names]
    tasks = sample_tasks(room, rng, config.episodes_per_room)
    trajectories = []
    for index, task in enumerate(tasks):
        player = rng.choices(names, weights)[0]
        sentence = task.sentence(rng.randrange(2))
        trajectories.append(_record_episode(engine, room, task, sentence, player, index, config))
    return trajectories


def _record_episode(
    engine: AlfworldEngine, room: Room, task: Task, sentence: str, player: str, index: int, config: RecordConfig
) -> Trajectory:
    rng = random.Random(f"commands/{config.seed}/{room.seed}/{index}")
    first = turn = engine.start(pddl_problem(room, task))
    steps: list[Step] = []
    while not turn.done and len(steps) < config.max_steps:
        view = View(engine.layout, task, RoomState(turn.facts), turn.admissible)
        command = play(player, view, rng, config.epsilon, config.inadmissible, config.wander)
        before, turn = turn, engine.step(command)
        added, deleted = sorted(turn.facts - before.facts), sorted(before.facts - turn.facts)
        steps.append(Step(command, turn.text, turn.reward, turn.done, tuple(added), tuple(deleted)))
    return Trajectory(
        id=f"alfworld-{room.seed}-{index}",
        environment="alfworld",
        initial_state=render_state(engine.layout, RoomState(first.facts)),
        task_context=sentence,
        steps=tuple(steps),
        initial_observation=first.text,
        tool_schemas=COMMANDS,
        domain_rules=RULES,
        group=f"alfworld-{room.seed}",
        player=player,
        metadata={
            "seed": room.seed,
            "room": room.kind,
            "task_type": task.type,
            "receptacles": len(room.receptacles),
            "objects": len(room.items),
            "won": turn.won,
            "engine": engine_versions(),
        },
    )


class _Summary:
    """Counts what passes through `watch`."""

    def __init__(self) -> None:
        self.rooms: set[str] = set()
        self.words: list[int] = []
        self.episodes: Counter[str] = Counter()
        self.won: Counter[str] = Counter()
        self.task_types: Counter[str] = Counter()
        self.verbs: Counter[str] = Counter()
        self.changing: Counter[str] = Counter()
        self.nothing_happens = 0

    def watch(self, trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
        for trajectory in trajectories:
            self._count(trajectory)
            yield trajectory

    def _count(self, trajectory: Trajectory) -> None:
        self.rooms.add(trajectory.group)
        self.episodes[trajectory.player] += 1
        self.won[trajectory.player] += bool(trajectory.metadata["won"])
        self.task_types[trajectory.metadata["task_type"]] += 1
        texts = [trajectory.initial_state, trajectory.task_context, trajectory.initial_observation]
        for step in trajectory.steps:
            texts += [step.action, step.observation]
            self.verbs[verb_of(step.action)] += 1
            self.changing[verb_of(step.action)] += step.changes_state
            self.nothing_happens += step.observation == "Nothing happens."
        self.words.append(sum(len(text.split()) for text in texts))

    def as_dict(self) -> dict:
        steps = sum(self.verbs.values())
        return {
            "rooms": len(self.rooms),
            "episodes": sum(self.episodes.values()),
            "steps": steps,
            "state_changing_steps": sum(self.changing.values()),
            "nothing_happens_steps": self.nothing_happens,
            "words_per_episode": {"median": median(self.words or [0]), "max": max(self.words, default=0)},
            "episodes_by_player": dict(sorted(self.episodes.items())),
            "won_by_player": dict(sorted(self.won.items())),
            "episodes_by_task_type": dict(sorted(self.task_types.items())),
            "steps_by_verb": dict(sorted(self.verbs.items())),
            "state_changing_steps_by_verb": dict(sorted(self.changing.items())),
        }


class _Progress:
    """A progress bar on stderr over rooms, shown once the work has taken ten seconds."""

    def __init__(self, total: int, patience: float = 10.0) -> None:
        self._total = total
        self._patience = patience
        self._done = 0
        self._started = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def watch(self, rooms: Iterable[list[Trajectory]]) -> Iterator[list[Trajectory]]:
        for room in rooms:
            yield room
            self._done += 1
            if self._bar is None and time.monotonic() - self._started > self._patience:
                columns = ("recording rooms", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
                self._bar = Progress(*columns, console=Console(stderr=True))
                self._bar.add_task("", total=self._total)
                self._bar.start()
            if self._bar:
                self._bar.update(self._bar.task_ids[0], completed=self._done)
