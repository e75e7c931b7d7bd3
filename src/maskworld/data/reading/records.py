"""Records of a file, whatever its form: JSON Lines, JSON documents, a JSON array, Parquet; plain, gzip or zstd.

The form is told from the content, not from the name: public files called `.json` are often JSON Lines. What cannot be
read comes as `Damage` in its place, and reading goes on behind it wherever there is a place to go on from: the next
line, row or row group. Memory is bounded by the largest record that is allowed, not by the file.

JSON is taken as Python reads it: NaN and Infinity are numbers here, and refused where they would get into a
trajectory. A member that occurs twice in one object makes the record unusable, because which one is meant is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from maskworld.data.reading.documents import read_documents
from maskworld.data.reading.lines import is_json_lines as is_json_lines
from maskworld.data.reading.lines import read_lines
from maskworld.data.reading.streams import compression
from maskworld.data.reading.values import LARGEST_RECORD as LARGEST_RECORD
from maskworld.data.reading.values import Damage as Damage
from maskworld.data.reading.values import Part as Part
from maskworld.data.reading.values import Record as Record
from maskworld.data.reading.values import damaged as damaged


def read_records(
    part: Part, is_record: Callable[[Any], bool], largest: int = LARGEST_RECORD
) -> Iterator[Record | Damage]:
    """The records of a part of a file, in order, and what is damaged.

    Args:
        part: which file, and which part of it.
        is_record: whether a value is a record by itself. It decides for an array: if one of its first entries is one,
            the entries are the records, else the array is.
        largest: bytes that a line or document may have; what is longer is passed over as `Damage`.

    Raises OSError where the file cannot be read.
    """
    if compression(part.path) == "parquet":
        from maskworld.data.reading.parquet import read_rows

        yield from read_rows(part)
    elif part.start or part.end is not None or is_json_lines(part.path):
        yield from read_lines(part, largest)
    else:
        yield from read_documents(part.path, is_record, largest)
