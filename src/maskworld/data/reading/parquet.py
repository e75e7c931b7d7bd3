"""Rows of a Parquet file as decoded JSON values. pyarrow is imported here and nowhere before it is needed."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
from typing import Any

from maskworld.data.reading.records import Damage, Part, Record, damaged
from maskworld.data.sources.common.text import ATTACHMENT

_BATCH_BYTES = 16 << 20


def read_rows(part: Part) -> Iterator[Record | Damage]:
    """The rows of the row groups [part.start, part.end), each as an object of its columns.

    A column without type is null in every row. A row that cannot be converted (text that is no UTF-8) is `Damage`, the
    others of its batch are not lost. Times become ISO texts, decimals texts, bytes the mark of an attachment.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(part.path)
    except (pyarrow.ArrowException, OSError) as error:
        yield damaged(part.first_index, f"the Parquet file cannot be read ({_first_line(error)})", b"")
        return
    with file:
        index = part.first_index
        last = file.num_row_groups if part.end is None else part.end
        for group in range(part.start, last):
            facts = file.metadata.row_group(group)
            size = max(1, facts.total_byte_size // max(1, facts.num_rows))
            done = 0
            try:
                batches = file.iter_batches(max(1, min(1024, _BATCH_BYTES // size)), row_groups=[group])
                for batch in batches:
                    yield from _rows(batch, index + done)
                    done += batch.num_rows
            except (pyarrow.ArrowException, OSError) as error:
                for lost in range(done, facts.num_rows):
                    yield damaged(index + lost, f"the row group is damaged ({_first_line(error)})", b"")
            index += facts.num_rows


def row_groups(path: Any) -> list[tuple[int, int]]:
    """(rows, bytes before compression) of every row group; empty where the file cannot be read."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            found = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
            return [(facts.num_rows, facts.total_byte_size) for facts in found]
    except (pyarrow.ArrowException, OSError):
        return []


def _rows(batch: Any, first: int) -> Iterator[Record | Damage]:
    try:
        rows = batch.to_pylist()
    except UnicodeDecodeError:
        for index in range(batch.num_rows):
            yield _row(batch.slice(index, 1), first + index)
        return
    for index, row in enumerate(rows):
        yield Record(first + index, {name: json_value(value) for name, value in row.items()})


def _row(one: Any, index: int) -> Record | Damage:
    try:
        (row,) = one.to_pylist()
    except UnicodeDecodeError as error:
        return damaged(index, f"no UTF-8 at byte {error.start} of a text (0x{error.object[error.start]:02x})", b"")
    return Record(index, {name: json_value(value) for name, value in row.items()})


def json_value(value: Any) -> Any:
    """The value with what JSON has no form for turned into text."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {name: json_value(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [json_value(entry) for entry in value]
    if isinstance(value, bytes):
        return ATTACHMENT
    if isinstance(value, decimal.Decimal):
        return str(value)
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
