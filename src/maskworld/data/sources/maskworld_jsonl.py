"""This project's own files: each record is a trajectory of `data/schema.py`, read as it is.

Source, licence and all else that a trajectory says of itself stay. What it does not say of its licence is that of the
recordings made here: this project's for rooms and players, ALFWorld's for the words of its engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskworld.data.schema import SCHEMA, Trajectory, trajectory_from_row
from maskworld.data.sources.common.base import Origin, Source


def matches(record: Any, path: Path) -> bool:
    """Whether this row names the schema, in whatever version."""
    name = record.get("schema") if isinstance(record, dict) else None
    return isinstance(name, str) and name.startswith(SCHEMA.rpartition("/")[0] + "/")


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """The trajectory. Raises SchemaError as the schema does, and for a row of another version of it."""
    yield trajectory_from_row(record)


SOURCE = Source(name="maskworld_jsonl", licence="Apache-2.0 AND MIT", matches=matches, trajectories=trajectories)
