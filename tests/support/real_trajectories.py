"""Trajectories of real files, for tests of what is done to any trajectory."""

import json
from functools import cache

from foreign_records import SAMPLES, convert, corpus, load

from maskworld.data.schema import Trajectory
from maskworld.data.sources.registry import SOURCES

_LISTS_OF_RECORDS = ("tau_bench", "webshop")
_CORPUS_FILES = {
    "tau_bench": ("tau_bench", "gpt-4o-airline.json"),
    "tau2_bench": ("tau2_bench", "results.json"),
    "toolathlon": ("toolathlon_like", "*.jsonl"),
    "webshop": ("webshop", "*.json"),
    "intercode": ("intercode", "ic_*.json"),
    "swe_agent": ("swe_agent", "*.traj"),
}
SOURCES_WITH_FILES = tuple(_CORPUS_FILES)


@cache
def sample_trajectories() -> tuple[Trajectory, ...]:
    """Those of all samples whose sources are in `SOURCES_WITH_FILES`, some of each."""
    found: list[Trajectory] = []
    for name in SOURCES_WITH_FILES:
        paths = sorted(path for path in (SAMPLES / name).iterdir() if path.suffix in (".json", ".jsonl", ".traj"))
        found += [trajectory for path in paths for trajectory in _trajectories(name, path)[:6]]
    return tuple(found)


@cache
def corpus_trajectories(name: str) -> tuple[Trajectory, ...]:
    """All of a source; skips the test where the files are not beside the checkout."""
    return tuple(trajectory for path in corpus(*_CORPUS_FILES[name]) for trajectory in _trajectories(name, path))


def _trajectories(name, path) -> list[Trajectory]:
    if path.suffix == ".jsonl":
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    else:
        records = load(path) if name in _LISTS_OF_RECORDS else [load(path)]
    return [t for index, record in enumerate(records) for t in convert(SOURCES[name], record, path, index)]
