"""What the tests of trajectory sources share: the real files, reading them, and records broken in one place."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from maskworld.data.schema import SchemaError, Trajectory, trajectory_from_json, trajectory_to_json
from maskworld.data.sources.common.base import Origin, Source

REPOSITORY = Path(__file__).parents[2]
SAMPLES = REPOSITORY / "tests" / "data" / "sources" / "samples"
_CORPUS = REPOSITORY.parent / "shared" / "corpus"

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, float("nan"), float("inf")])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", " ", "\0", "\ud800", "\x1b[0m", "submit", "assistant", "Your score (min 0.0, max 1.0): x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def corpus(folder: str, pattern: str) -> list[Path]:
    """The real files of a source; skips the test where they are not beside the checkout."""
    files = sorted((_CORPUS / folder).rglob(pattern))
    if not files:
        pytest.skip(f"no files {pattern} of {folder} in {_CORPUS}")
    return files


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def convert(source: Source, record: Any, path: Path, index: int = 0) -> list[Trajectory]:
    """All trajectories of a record, each of which came back equal from its line of JSON; the first error is raised."""
    found = list(source.trajectories(record, Origin(path, index)))
    for one in found:
        if isinstance(one, SchemaError):
            raise one
    for trajectory in found:
        assert trajectory_from_json(trajectory_to_json(trajectory)) == trajectory
        assert not any(step.done for step in trajectory.steps[:-1])
    return found


def check_broken(source: Source, record: Any, path: Path) -> None:
    """A broken record is refused by SchemaError or gives valid trajectories; `matches` answers and never raises."""
    assert source.matches(record, path) in (True, False)
    try:
        for trajectory in source.trajectories(record, Origin(path, 0)):
            if isinstance(trajectory, SchemaError):
                raise trajectory
            assert trajectory_from_json(trajectory_to_json(trajectory)) == trajectory
    except SchemaError as error:
        assert error.reason


@st.composite
def one_member_replaced(draw: st.DrawFn, record: Any) -> Any:
    """The record with the value at one place, the record itself among them, replaced by a random JSON value."""
    places = list(_places(record))
    place = places[draw(st.integers(0, len(places) - 1))]
    value = draw(json_values)
    if not place:
        return value
    broken = copy.deepcopy(record)
    parent = broken
    for name in place[:-1]:
        parent = parent[name]
    parent[place[-1]] = value
    return broken


def _places(value: Any, here: tuple = ()) -> Iterator[tuple]:
    yield here
    if isinstance(value, dict | list):
        for name, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(entry, (*here, name))
