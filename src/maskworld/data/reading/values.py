"""What reading gives: records, and the places that hold none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from maskworld.data.schema import SchemaError, decode_json

LARGEST_RECORD = 128 << 20
EXCERPT = 2000


class Record(NamedTuple):
    """One decoded JSON value."""

    index: int
    """Line, row or entry of the file, from 0."""
    value: Any


class Damage(NamedTuple):
    """A place of the file that holds no usable record."""

    index: int
    field: str
    """The member to blame; empty for the record as a whole."""
    reason: str
    excerpt: str
    """The beginning of what stands there."""


@dataclass(frozen=True)
class Part:
    """What one worker reads of a file at a time: all of it, or whole lines of it, or some row groups."""

    path: Path
    start: int = 0
    """First byte of a plain JSON Lines file, first row group of a Parquet file."""
    end: int | None = None
    """One past the last one; None for the file's end."""
    first_index: int = 0
    """Index of the first record."""


def damaged(index: int, reason: str, content: bytes, field: str = "") -> Damage:
    """A `Damage` with the beginning of the content."""
    return Damage(index, field, reason, content[:EXCERPT].decode("utf-8", errors="backslashreplace"))


def too_long(largest: int) -> str:
    """Why a line or a document of more than `largest` bytes is not read."""
    return f"is longer than {largest >> 20} MiB; --longest_record N allows more"


def decoded(index: int, content: bytes) -> Record | Damage:
    """The one JSON value that the bytes hold."""
    try:
        return Record(index, decode_json(content.decode("utf-8")))
    except UnicodeDecodeError as error:
        return damaged(index, f"no UTF-8 at byte {error.start} (0x{content[error.start]:02x})", content)
    except SchemaError as error:
        return damaged(index, error.reason, content, error.field)


def printable(text: str) -> str:
    """The text with what UTF-8 has no form for (a file's name, half of a surrogate pair) written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
