"""From the records of a part of a file to finished trajectories, and the reason for everything that is none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from maskworld.data.build.config import BuildConfig
from maskworld.data.build.facts import facts_of
from maskworld.data.curation.directives import with_derived_directives
from maskworld.data.curation.grounding import grounding
from maskworld.data.curation.model_families import model_family
from maskworld.data.curation.outcomes import outcome
from maskworld.data.reading.records import Damage, Part, Record, damaged, read_records
from maskworld.data.schema import SchemaError, Trajectory, trajectory_to_json
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.registry import SOURCES, detect_source
from maskworld.errors import DataError

CUT_MARK = "\n[the rest of this output is cut off]"
"""Ends an observation that was longer than the build allows."""
NO_TRANSITION = "holds no transition"
_EXCERPT = 2000
_HELD = 50_000  # records of gathered trajectories that may wait at one time


@dataclass(frozen=True)
class Converted:
    """One trajectory as it goes into the data set."""

    trajectory: Trajectory
    line: bytes
    """Its JSON without the newline."""
    facts: dict[str, Any]
    """As `facts_of` gives them."""


@dataclass(frozen=True)
class Rejected:
    """A record, or a part of one, that gave no trajectory."""

    index: int
    """Line, row or entry of the file, from 0."""
    source: str
    """Empty where none was recognised."""
    field: str
    reason: str
    excerpt: str

    @property
    def kind(self) -> str:
        """The reason without the places and sizes in it: rows with the same fault count together."""
        field = re.sub(r"\[\d+\]", "", self.field)
        reason = re.sub(r" at (character|byte|line) .*| \(0x..\)", "", self.reason)
        return f"{field}: {reason}" if field else reason


@dataclass(frozen=True)
class Accompanying:
    """The file belongs to a format but holds no trajectories."""


def convert_part(
    part: Part, source: Source | None, config: BuildConfig
) -> Iterator[Converted | Rejected | Accompanying]:
    """Everything that a part of a file comes to, in its order.

    Args:
        part: of which file.
        source: the format of its records; None to tell it from each of them.
        config: see there; `longest_record`, `longest_observation` and `directives` matter here.
    """
    if any(known.accompanies(part.path) for known in ([source] if source else SOURCES.values())):
        yield Accompanying()
        return
    dispatch = _Dispatch(part, source)
    try:
        for item in read_records(part, dispatch.is_record, config.longest_record << 20):
            if isinstance(item, Damage):
                yield Rejected(item.index, source.name if source else "", item.field, item.reason, item.excerpt)
            else:
                for owner, index, record in dispatch.put(item):
                    yield from _converted(owner, index, record, part, config)
    except OSError as error:
        yield _rejected(damaged(part.first_index, f"the file cannot be read ({error.strerror or error})", b""), source)
    for owner, index, record in dispatch.rest():
        yield from _converted(owner, index, record, part, config)


class _Dispatch:
    """Finds each record's source, and holds back those that are parts of a trajectory until all of it is there."""

    def __init__(self, part: Part, source: Source | None):
        self._path, self._given = part.path, source
        self._last: Source | None = source
        self._held: dict[tuple[str, str], tuple[Source, int, list[Any]]] = {}
        self._count = 0

    def is_record(self, value: Any) -> bool:
        known = [self._given] if self._given else SOURCES.values()
        try:
            return any(source.matches(value, self._path) for source in known)
        except Exception:  # a fault of a source, which `put` names
            return True

    def put(self, item: Record) -> Iterator[tuple[Source | str, int, Any]]:
        """(source, index, record) of what is complete; in place of a source the reason why there is none."""
        try:
            source = self._source_of(item.value)
            name = source.gathered_by(item.value) if source and source.gathered_by else None
        except DataError as error:  # SchemaError is one: the record does not say what it is a part of
            yield str(error), item.index, item.value
            return
        except Exception as error:
            yield _fault(error), item.index, item.value
            return
        if source is None:
            yield "no source recognises the record; --source NAME says which it is", item.index, item.value
        elif name is None:
            yield source, item.index, item.value
        else:
            self._held.setdefault((source.name, name), (source, item.index, []))[2].append(item.value)
            self._count += 1
            while self._count > _HELD:
                yield self._close(next(iter(self._held)))

    def rest(self) -> Iterator[tuple[Source, int, Any]]:
        while self._held:
            yield self._close(next(iter(self._held)))

    def _close(self, key: tuple[str, str]) -> tuple[Source, int, Any]:
        done = self._held.pop(key)
        self._count -= len(done[2])
        return done

    def _source_of(self, value: Any) -> Source | None:
        if self._given:
            return self._given
        if self._last is None or not self._last.matches(value, self._path):
            self._last = detect_source(value, self._path)
        return self._last


def _converted(
    owner: Source | str, index: int, record: Any, part: Part, config: BuildConfig
) -> Iterator[Converted | Rejected]:
    if isinstance(owner, str):
        yield Rejected(index, "", "", owner.removeprefix(f"{part.path}: "), _excerpt(record))
        return
    found = False
    try:
        for one in owner.trajectories(record, Origin(part.path, index)):
            found = True
            if isinstance(one, SchemaError):
                yield Rejected(index, owner.name, one.field, one.reason, _excerpt(record))
            else:
                yield _finished(one, owner, index, config)
        if not found:
            yield Rejected(index, owner.name, "", NO_TRANSITION, _excerpt(record))
    except SchemaError as error:
        yield Rejected(index, owner.name, error.field, error.reason, _excerpt(record))
    except Exception as error:  # which must not cost the other records
        yield Rejected(index, owner.name, "", _fault(error), _excerpt(record))


def _fault(error: Exception) -> str:
    return f"the source failed ({type(error).__name__}: {error})"


def _finished(trajectory: Trajectory, source: Source, index: int, config: BuildConfig) -> Converted | Rejected:
    try:
        return _completed(trajectory, source, config)
    except SchemaError as error:
        return Rejected(index, source.name, error.field, error.reason, trajectory.id[:_EXCERPT])
    except Exception as error:  # which must not cost the other trajectories of the record
        return Rejected(index, source.name, "", _fault(error), trajectory.id[:_EXCERPT])


def _completed(trajectory: Trajectory, source: Source, config: BuildConfig) -> Converted:
    longest = config.longest_observation
    cut = sum(len(step.observation) > longest for step in trajectory.steps)
    if cut:
        trajectory = replace(trajectory, steps=tuple(_cut(step, longest) for step in trajectory.steps))
    trajectory = replace(
        trajectory,
        source=trajectory.source or source.name,
        licence=trajectory.licence or source.licence,
        model_family=trajectory.model_family or model_family(trajectory.player),
    )
    outcomes, grounded = [outcome(step) for step in trajectory.steps], grounding(trajectory)
    if config.directives == "derived":
        trajectory = with_derived_directives(trajectory, config.seed, outcomes)
    line = trajectory_to_json(trajectory).encode("utf-8")
    return Converted(trajectory, line, facts_of(trajectory, outcomes, grounded, cut))


def _cut(step: Any, longest: int) -> Any:
    if len(step.observation) <= longest:
        return step
    return replace(step, observation=step.observation[:longest] + CUT_MARK)


def _rejected(damage: Damage, source: Source | None) -> Rejected:
    return Rejected(damage.index, source.name if source else "", damage.field, damage.reason, damage.excerpt)


def _excerpt(record: Any) -> str:
    """The beginning of a record; nothing more of it is encoded."""
    text = ""
    try:
        for piece in json.JSONEncoder(default=str).iterencode(record):
            text += piece
            if len(text) >= _EXCERPT:
                break
    except (ValueError, RecursionError):
        pass
    return text[:_EXCERPT]
