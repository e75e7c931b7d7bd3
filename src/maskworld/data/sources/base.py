"""What a source of trajectories is: two functions on one decoded record, and a name.

A record is one JSON value: a line of a JSON Lines file, a row of a Parquet file, an entry of a JSON array, or a whole
JSON document. Files, compression, damage and the order of records are the reader's business, not a source's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskworld.data.schema import Trajectory


@dataclass(frozen=True)
class Origin:
    """Where a record stands."""

    path: Path
    index: int
    """Line, row or entry, from 0."""

    @property
    def identity(self) -> str:
        """A name for a record that has none of its own: independent of the folder the file lies in."""
        return f"{self.path.name}:{self.index}"


@dataclass(frozen=True)
class Source:
    """One public format."""

    name: str
    """As `--source` takes it."""
    licence: str
    """SPDX name of the licence under which the format's owner publishes such files; `unknown` where they do not say."""
    matches: Callable[[Any, Path], bool]
    """Whether a record of this file looks like the format; looks at keys and types, never raises."""
    trajectories: Callable[[Any, Origin], Iterator[Trajectory]]
    """The record's trajectories. A part that cannot be used raises SchemaError, which names the field and says why; a
    record that is sound but holds no transition yields nothing."""
