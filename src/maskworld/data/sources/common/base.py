"""What a source of trajectories is: functions on decoded records, and a name.

A record is one JSON value: a line of a JSON Lines file, a row of a Parquet file, an entry of a JSON array, or a whole
JSON document. Files, compression, damage and the order of records are the reader's business (`data/reading/`), not a
source's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskworld.data.schema import SchemaError, Trajectory


@dataclass(frozen=True)
class Origin:
    """Where a record stands."""

    path: Path
    index: int
    """Line, row or entry, from 0; of gathered records the first one's."""

    @property
    def identity(self) -> str:
        """A name for a record that has none of its own: independent of the folder the file lies in."""
        return f"{self.path.name}:{self.index}"


def no_file(path: Path) -> bool:
    """The `accompanies` of a format whose files all hold trajectories."""
    return False


@dataclass(frozen=True)
class Source:
    """One public format."""

    name: str
    """As `--source` takes it."""
    licence: str
    """SPDX name of the licence under which the format's owner publishes such files; `unknown` where they do not say.
    A trajectory whose record names its own keeps that."""
    matches: Callable[[Any, Path], bool]
    """Whether a record of this file looks like the format; looks at keys and types, never raises."""
    trajectories: Callable[[Any, Origin], Iterator[Trajectory | SchemaError]]
    """The record's trajectories. A record that cannot be used raises SchemaError, which names the field and says why;
    where a record holds several trajectories, each broken one comes as such an error in its place and costs no other.
    A record that is sound but holds no transition yields nothing."""
    gathered_by: Callable[[Any], str] | None = None
    """Where records are parts of a trajectory (spans of a trace, turns of a dialogue): the name of the trajectory that
    a record belongs to. `trajectories` is then given a list, all records of one name in the order of their file."""
    accompanies: Callable[[Path], bool] = no_file
    """Whether a file belongs to the format without holding trajectories: tasks, policies, tool documentation. The
    source may read it (`common/beside.py`) for the trajectories of its neighbours; the reader passes it over."""
