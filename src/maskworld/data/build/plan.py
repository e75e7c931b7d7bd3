"""Which files are read, and in what pieces: the same plan for the same files, however they were named."""

from __future__ import annotations

import heapq
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from maskworld.data.reading.parquet import row_groups
from maskworld.data.reading.records import Part, Record, is_json_lines, read_records
from maskworld.data.reading.streams import compression
from maskworld.data.reading.values import printable
from maskworld.data.sources.common.base import Source
from maskworld.data.sources.registry import detect_source
from maskworld.errors import DataError

UNIT_BYTES = 16 << 20
_CHUNK = 1 << 20
_LOOKED_AT = 8  # records, for one that tells the source
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

    A file that can be reached by several names goes by its own, or else by the first of the links to it. What cannot be
    opened, a folder or a link to nothing, is among them: it is reported where it is read.

    Raises:
        DataError: a path does not exist, or there is no file.
    """
    given = sorted({_absolute(path) for path in map(Path, paths)})
    reached = _reachable(given)
    outside = os.path.realpath(without) + os.sep
    found = {path: facts for path, real, facts in reached if not real.startswith(outside)}
    if not found:
        own = f" but those of the build itself in {without}" if reached else ""
        raise DataError(f"no file in {', '.join(map(str, given))}{own}")
    ordered = sorted(found)
    common = Path(os.path.commonpath([path.parent for path in ordered]))
    return [InputFile(path, printable(path.relative_to(common).as_posix()), *found[path]) for path in ordered]


def _absolute(path: Path) -> Path:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise DataError(f"there is no file or folder {path} (looked from {Path.cwd()})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise DataError(f"{path}: is neither a file nor a folder; write what comes from it to a file first")
    return path.resolve() if ".." in path.parts else Path(os.path.abspath(path))


def _reachable(given: Iterable[Path]) -> list[tuple[Path, str, tuple[int, int]]]:
    """(name, real path, (bytes, modified)) of each file. No folder is entered twice, and links come after all else, so
    that it does not matter from where one came."""
    found: dict[str, tuple[Path, str, tuple[int, int]]] = {}
    entered: set[str] = set()
    waiting = [_place(path, os.path.realpath(path)) for path in given]
    heapq.heapify(waiting)
    while waiting:
        _, path, real = heapq.heappop(waiting)
        try:
            facts = path.stat()
            is_new = stat.S_ISDIR(facts.st_mode) and real not in entered
            entries = list(os.scandir(path)) if is_new else []
        except OSError:
            found.setdefault(real, (path, real, (0, 0)))
            continue
        entered.add(real)
        if stat.S_ISREG(facts.st_mode):
            found.setdefault(real, (path, real, (facts.st_size, facts.st_mtime_ns)))
        for entry in entries:
            if not entry.name.startswith("."):
                own = os.path.realpath(entry.path) if entry.is_symlink() else os.path.join(real, entry.name)
                heapq.heappush(waiting, _place(path / entry.name, own))
    return list(found.values())


def _place(path: Path, real: str) -> tuple[bool, Path, str]:
    return str(path) != real, path, real


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


def _parts(file: InputFile, source: Source | None) -> list[tuple[Part, int]]:
    try:
        how = compression(file.path)
        if how == "parquet":
            return list(_parquet_parts(file, source))
        if how:
            return [(Part(file.path), _UNZIPPED * file.bytes)]
        if file.bytes > UNIT_BYTES and is_json_lines(file.path) and not _is_gathered(file.path, source):
            return list(_line_parts(file))
    except OSError:
        pass  # reported where it is read
    return [(Part(file.path), file.bytes)]


def _is_gathered(path: Path, source: Source | None) -> bool:
    """Whether records are parts of trajectories; then the file stays in one piece."""
    if source is None:
        read = read_records(Part(path), lambda value: False, UNIT_BYTES)
        first = next((one for one in islice(read, _LOOKED_AT) if isinstance(one, Record)), None)
        try:
            source = detect_source(first.value, path) if first else None
        except DataError:
            source = None
    return source is not None and source.gathered_by is not None


def _parquet_parts(file: InputFile, source: Source | None) -> Iterator[tuple[Part, int]]:
    groups = row_groups(file.path)
    total = sum(volume for _, volume in groups)
    if not groups or total <= UNIT_BYTES or _is_gathered(file.path, source):
        yield Part(file.path), total or file.bytes
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
    start, first_line = 0, 0  # of the piece
    at, line = 0, 0  # of the chunk
    with open(file.path, "rb") as content:
        while chunk := content.read(_CHUNK):
            end = 0
            while (newline := chunk.find(b"\n", max(end, start + UNIT_BYTES - 1 - at))) >= 0:
                line += chunk.count(b"\n", end, newline + 1)
                end = newline + 1
                yield Part(file.path, start, at + end, first_line), at + end - start
                start, first_line = at + end, line
            line += chunk.count(b"\n", end)
            at += len(chunk)
    if at > start:
        yield Part(file.path, start, at, first_line), at - start
