"""Rows of a Parquet file as decoded JSON values. pyarrow is imported here and nowhere before it is needed."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
from typing import Any

from maskworld.data.reading.values import Damage, Part, Record, damaged
from maskworld.data.sources.common.text import ATTACHMENT

_BATCH_BYTES, _BATCH_ROWS = 16 << 20, 64  # texts that occur often take no room in the file, but do in a batch
_MOST_LOST = 1_000_000  # rows of a damaged row group that are counted one by one


def read_rows(part: Part) -> Iterator[Record | Damage]:
    """The rows of the row groups [part.start, part.end), each as an object of its columns.

    A column without type is null in every row. A row that cannot be converted (text that is no UTF-8) is `Damage`, the
    others of its batch are not lost. Times become ISO texts, decimals texts, maps objects, bytes the mark of an
    attachment; a time that no calendar holds stays the number it is stored as.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(part.path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        yield damaged(part.first_index, f"the Parquet file cannot be read ({_first_line(error)})", b"")
        return
    with file:
        index = part.first_index
        last = file.num_row_groups if part.end is None else part.end
        for group in range(part.start, last):
            facts = file.metadata.row_group(group)
            size = max(1, facts.total_byte_size // max(1, facts.num_rows))
            done, why = 0, "it holds fewer rows than it says"
            try:
                batches = file.iter_batches(max(1, min(_BATCH_ROWS, _BATCH_BYTES // size)), row_groups=[group])
                for batch in batches:
                    yield from _rows(batch, index + done)
                    done += batch.num_rows
            except (pyarrow.ArrowException, OSError, ValueError) as error:
                why = _first_line(error)
            # A damaged count of rows may be any number.
            for lost in range(done, min(facts.num_rows, done + _MOST_LOST)):
                yield damaged(index + lost, f"the row group is damaged ({why})", b"")
            index += max(done, facts.num_rows)


def row_groups(path: Any) -> list[tuple[int, int]]:
    """(rows, bytes before compression) of every row group; empty where the file cannot be read."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            found = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
            return [(facts.num_rows, facts.total_byte_size) for facts in found]
    except (pyarrow.ArrowException, OSError, ValueError):
        return []


def _rows(batch: Any, first: int) -> Iterator[Record | Damage]:
    import pyarrow

    try:
        names = _names(batch)
        columns = [_values(column) for column in batch.columns]
    except (ValueError, KeyError, OverflowError, pyarrow.ArrowException) as error:
        if batch.num_rows > 1:
            for index in range(batch.num_rows):
                yield from _rows(batch.slice(index, 1), first + index)
        else:
            yield damaged(first, _why(error), b"")
        return
    for index in range(batch.num_rows):
        yield Record(
            first + index, {name: json_value(column[index]) for name, column in zip(names, columns, strict=True)}
        )


def _names(batch: Any) -> list[str]:
    names = batch.schema.names
    if len(set(names)) < len(names):
        raise ValueError(f"the column {next(name for name in names if names.count(name) > 1)} occurs twice")
    return names


def _values(column: Any) -> list[Any]:
    import pyarrow

    try:
        return column.to_pylist(maps_as_pydicts="strict")
    except (ValueError, OverflowError, pyarrow.ArrowException):
        if not pyarrow.types.is_temporal(column.type):
            raise
        width = pyarrow.int64() if column.type.bit_width == 64 else pyarrow.int32()
        return column.view(width).to_pylist()


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"no UTF-8 at byte {error.start} of a text (0x{error.object[error.start]:02x})"
    return f"the row cannot be converted ({_first_line(error)})"


def json_value(value: Any) -> Any:
    """The value with what JSON has no form for turned into text."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {str(name): json_value(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [json_value(entry) for entry in value]
    if isinstance(value, bytes):
        return ATTACHMENT
    if isinstance(value, decimal.Decimal):
        return str(value)
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
