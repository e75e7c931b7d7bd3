"""Trajectory files: `.jsonl`, also as `.gz` or `.zst`. A bad row is counted and set aside, never silently dropped."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from maskworld.data.reading.streams import BYTE_ORDER_MARK, chunks
from maskworld.data.schema import SchemaError, Trajectory, trajectory_from_json, trajectory_to_json
from maskworld.errors import DataError
from maskworld.storage import writing

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
"""How names of trajectory files end."""


@dataclass
class ReadReport:
    """What reading found; `read_trajectories` fills it while it is consumed."""

    rows: int = 0
    """Good rows handed out."""
    rejected: int = 0
    """Rows set aside."""
    reasons: Counter[str] = field(default_factory=Counter)
    """`field: reason` -> rows, with list indices left out of the field."""

    def summary(self) -> str:
        """One sentence for the terminal."""
        if not self.rejected:
            return f"{self.rows} trajectories, none rejected"
        worst, count = self.reasons.most_common(1)[0]
        return f"{self.rows} trajectories, {self.rejected} rejected (most often, {count}x: {worst})"


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> int:
    """Writes the file (compressed when its name ends in .gz or .zst) and returns the number of rows.

    The bytes depend on the trajectories alone. The file appears under its name only when it is complete. Raises
    SchemaError for a trajectory that could not be read back, StorageError when the file cannot be written.
    """
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    count = 0
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(draft, "wb") as raw, _zipped(raw, path.suffix) as file:
                for trajectory in trajectories:
                    file.write(trajectory_to_json(trajectory).encode("utf-8") + b"\n")
                    count += 1
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    return count


def _zipped(raw: BinaryIO, suffix: str) -> AbstractContextManager[Any]:
    """What compresses into `raw`; equal rows give equal files."""
    if suffix == ".gz":
        return gzip.GzipFile("", "wb", 9, raw, mtime=0)  # no name and no time in the header
    if suffix == ".zst":
        import pyarrow

        return pyarrow.CompressedOutputStream(raw, "zstd")
    return nullcontext(raw)


def read_trajectories(
    paths: Path | Iterable[Path], rejected: Path | None = None, report: ReadReport | None = None
) -> Iterator[Trajectory]:
    """The good rows of the files, in order.

    A row that breaks the schema is counted in `report` and appended to the file `rejected` as one JSON object {file,
    line, field, reason, row}; reading goes on with the next row, and after a compressed stream that is cut off or
    damaged with the next file. Without `rejected` the first bad row raises DataError, so that none is ever lost
    unnoticed. Blank lines are skipped. Raises DataError for a file that cannot be opened.
    """
    report = ReadReport() if report is None else report
    for path in [paths] if isinstance(paths, str | Path) else paths:
        for number, line, damage in _lines(Path(path)):
            try:
                trajectory = _parse_line(line, damage)
            except SchemaError as error:
                if rejected is None:
                    raise DataError(f"{path}, line {number}, {error}") from error
                _set_aside(Path(rejected), Path(path), number, line, error)
                report.rejected += 1
                report.reasons[_reason_key(error)] += 1
                continue
            report.rows += 1
            yield trajectory


def _parse_line(line: bytes, damage: str) -> Trajectory:
    if damage:
        raise SchemaError("", damage)
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SchemaError("", f"no UTF-8 at byte {error.start} (0x{line[error.start]:02x})") from error
    return trajectory_from_json(text)


def _set_aside(rejected: Path, path: Path, number: int, line: bytes, error: SchemaError) -> None:
    row = {
        "file": str(path),
        "line": number,
        "field": error.field,
        "reason": error.reason,
        "row": line.decode("utf-8", errors="backslashreplace"),
    }
    rejected.parent.mkdir(parents=True, exist_ok=True)
    with writing(rejected), open(rejected, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _reason_key(error: SchemaError) -> str:
    """The kind of fault, without the place: rows with the same fault count together."""
    field_name = re.sub(r"\[\d+\]", "", error.field)
    return f"{field_name or 'row'}: {re.sub(r' at (character|byte) .*', '', error.reason)}"


def _lines(path: Path) -> Iterator[tuple[int, bytes, str]]:
    """(line number from 1, line without its newline, damage) of the non-blank lines.

    `damage` says why the rest of the file cannot be read; it comes with what was left of the last line.
    """
    number, rest, damage = 0, b"", ""
    try:
        for chunk, damage in _chunks(path):  # noqa: B007 (the last damage is reported below)
            pieces = (rest + chunk).split(b"\n")
            rest = pieces.pop()
            for piece in pieces:
                number += 1
                if number == 1:
                    piece = piece.removeprefix(BYTE_ORDER_MARK)
                if piece.strip():
                    yield number, piece, ""
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if rest.strip() or damage:
        yield number + 1, rest if number else rest.removeprefix(BYTE_ORDER_MARK), damage


def _chunks(path: Path) -> Iterator[tuple[bytes, str]]:
    """(bytes, damage) of the file, unzipped as its name says; a zipped file without a byte is cut off."""
    how = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix, "")
    if how and not path.stat().st_size:
        yield b"", f"the {how} stream is cut off"
    else:
        yield from chunks(path, how=how)
