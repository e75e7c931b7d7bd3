"""Which files are read, and in what pieces: the same plan for the same files, however they were named."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from maskworld.data.reading.parquet import row_groups
from maskworld.data.reading.records import Part, Record, is_json_lines, read_records
from maskworld.data.reading.streams import compression
from maskworld.data.sources.common.base import Source
from maskworld.data.sources.registry import detect_source
from maskworld.errors import DataError

UNIT_BYTES = 16 << 20
_UNZIPPED = 5  # times as large, about


@dataclass(frozen=True)
class InputFile:
    """One file and what was seen of it from outside."""

    path: Path
    name: str
    """Relative to the deepest folder that holds all files of the build."""
    bytes: int
    modified: int
    """Nanoseconds."""


@dataclass(frozen=True)
class Unit:
    """What is converted in one go and, once on disk, never again."""

    number: int
    parts: tuple[Part, ...]
    bytes: int


def input_files(paths: Iterable[str | Path], without: Path) -> list[InputFile]:
    """All files under the paths, each once, in the order of their names; hidden ones and those in `without` are not.

    Raises:
        DataError: a path does not exist, or there is no file.
    """
    found: set[Path] = set()
    without = without.resolve()
    for path in map(Path, paths):
        if not path.exists():
            raise DataError(f"there is no file or folder {path} (looked from {Path.cwd()})")
        found.update(entry for entry in _walk(path.resolve()) if without not in entry.parents)
    if not found:
        raise DataError(f"no file in {', '.join(str(path) for path in paths)}")
    ordered = sorted(found)
    common = Path(os.path.commonpath([path.parent for path in ordered]))
    files = []
    for path in ordered:
        facts = path.stat()
        files.append(InputFile(path, path.relative_to(common).as_posix(), facts.st_size, facts.st_mtime_ns))
    return files


def _walk(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for folder, folders, names in os.walk(path, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            entry = Path(folder) / name
            if not name.startswith(".") and entry.is_file():
                yield entry.resolve()


def units(files: Iterable[InputFile], source: Source | None) -> list[Unit]:
    """The work in pieces of about `UNIT_BYTES`: small files together, large ones by lines or row groups."""
    planned: list[Unit] = []
    waiting: list[Part] = []
    size = 0

    def close() -> None:
        nonlocal waiting, size
        if waiting:
            planned.append(Unit(len(planned), tuple(waiting), size))
        waiting, size = [], 0

    for file in files:
        for part, part_bytes in _parts(file, source):
            if size + part_bytes > UNIT_BYTES:
                close()
            waiting.append(part)
            size += part_bytes
    close()
    return planned


def _parts(file: InputFile, source: Source | None) -> Iterator[tuple[Part, int]]:
    try:
        how = compression(file.path)
    except OSError:
        yield Part(file.path), file.bytes  # reported where it is read
        return
    if how == "parquet":
        yield from _parquet_parts(file)
    elif how:
        yield Part(file.path), _UNZIPPED * file.bytes
    elif file.bytes > UNIT_BYTES and _is_cut_by_lines(file.path, source):
        yield from _line_parts(file)
    else:
        yield Part(file.path), file.bytes


def _is_cut_by_lines(path: Path, source: Source | None) -> bool:
    """Whether lines are records; where they are parts of records, the file stays in one piece."""
    if not is_json_lines(path):
        return False
    if source is None:
        first = next(read_records(Part(path), lambda value: False), None)
        try:
            source = detect_source(first.value, path) if isinstance(first, Record) else None
        except DataError:
            source = None
    return source is None or source.gathered_by is None


def _parquet_parts(file: InputFile) -> Iterator[tuple[Part, int]]:
    groups = row_groups(file.path)
    if not groups:
        yield Part(file.path), file.bytes
        return
    start, rows, size, first = 0, 0, 0, 0
    for number, (count, volume) in enumerate(groups):
        if size and size + volume > UNIT_BYTES:
            yield Part(file.path, start, number, first), size
            start, first, rows, size = number, first + rows, 0, 0
        rows, size = rows + count, size + volume
    yield Part(file.path, start, len(groups), first), size


def _line_parts(file: InputFile) -> Iterator[tuple[Part, int]]:
    """Pieces that end behind a newline; counting lines as it goes, so that each knows its first one's number."""
    start, line, end = 0, 0, 0
    with open(file.path, "rb") as content:
        while chunk := content.read(UNIT_BYTES):
            chunk += content.readline()
            end = start + len(chunk)
            yield Part(file.path, start, end, line), len(chunk)
            start, line = end, line + chunk.count(b"\n")
