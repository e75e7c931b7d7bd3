"""Records of a file, whatever its form: JSON Lines, one JSON document, a JSON array, Parquet; plain, gzip or zstd.

The form is told from the content, not from the name: public files called `.json` are often JSON Lines. What cannot be
read comes as `Damage` in its place, and reading goes on behind it wherever there is a place to go on from: the next
line, row or row group. Memory is bounded by the largest record that is allowed, not by the file.

JSON is taken as Python reads it: NaN and Infinity are numbers here, and refused where they would get into a
trajectory. A member that occurs twice in one object makes the record unusable, because which one is meant is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from maskworld.data.reading.streams import BYTE_ORDER_MARK, chunks, compression
from maskworld.data.schema import DECODER, SchemaError, decode_json

LARGEST_RECORD = 128 << 20
_EXCERPT = 2000


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


def read_records(
    part: Part, is_record: Callable[[Any], bool], largest: int = LARGEST_RECORD
) -> Iterator[Record | Damage]:
    """The records of a part of a file, in order, and what is damaged.

    Args:
        part: which file, and which part of it.
        is_record: whether a value is a record by itself. It decides for a JSON document that is an array: if its
            first entry is one, the entries are the records, else the array is.
        largest: bytes that a line or document may have; what is longer is passed over as `Damage`.

    Raises OSError where the file cannot be read.
    """
    if compression(part.path) == "parquet":
        from maskworld.data.reading.parquet import read_rows

        yield from read_rows(part)
        return
    if part.start or part.end is not None or is_json_lines(part.path, largest):
        yield from _read_lines(part, largest)
        return
    yield from _read_document(part.path, is_record, largest)


def is_json_lines(path: Path, largest: int = LARGEST_RECORD) -> bool:
    """Whether the first line is a JSON value of its own (and not all of the file), or the name says JSON Lines."""
    name = path.name.lower()
    if any(mark in name for mark in (".jsonl", ".ndjson")):
        return True
    lines = _lines(path, 0, None, largest)
    first = next(lines, None)
    if first is None or first.damage:
        return False
    try:
        decode_json(first.content.decode("utf-8"))
    except (SchemaError, UnicodeDecodeError):
        return False
    return next(lines, None) is not None


class _Line(NamedTuple):
    index: int
    content: bytes
    damage: str


def _read_lines(part: Part, largest: int) -> Iterator[Record | Damage]:
    for line in _lines(part.path, part.start, part.end, largest):
        index = part.first_index + line.index
        if line.damage:
            yield damaged(index, line.damage, line.content)
        else:
            yield _decoded(index, line.content)


def _decoded(index: int, content: bytes) -> Record | Damage:
    try:
        return Record(index, decode_json(content.decode("utf-8")))
    except UnicodeDecodeError as error:
        return damaged(index, f"no UTF-8 at byte {error.start} (0x{content[error.start]:02x})", content)
    except SchemaError as error:
        return damaged(index, error.reason, content, error.field)


def damaged(index: int, reason: str, content: bytes, field: str = "") -> Damage:
    """A `Damage` with the beginning of the content."""
    return Damage(index, field, reason, content[:_EXCERPT].decode("utf-8", errors="backslashreplace"))


def _lines(path: Path, start: int, end: int | None, largest: int) -> Iterator[_Line]:
    """The lines that are not blank; of one that is too long only the beginning is ever in memory."""
    index, damage = 0, ""
    waiting: list[bytes] = []  # pieces of a line that began in an earlier chunk
    size = 0

    def line(content: bytes) -> _Line | None:
        content = content.removeprefix(BYTE_ORDER_MARK) if index == 0 and start == 0 else content
        if size > largest:
            return _Line(index, content[:_EXCERPT], _too_long(size, largest))
        return _Line(index, content, "") if content.strip() else None

    for chunk, damage in chunks(path, start, end):  # noqa: B007 (the last damage is reported below)
        pieces = chunk.split(b"\n")
        for piece in pieces[:-1]:
            size += len(piece)
            found = line(b"".join([*waiting, piece]) if waiting else piece)
            if found:
                yield found
            index, size, waiting = index + 1, 0, []
        if pieces[-1]:
            size += len(pieces[-1])
            waiting.append(pieces[-1])
            if size > largest:
                del waiting[1:]
    found = line(b"".join(waiting))
    if damage:
        yield _Line(index, found.content if found else b"", damage)
    elif found:
        yield found


def _too_long(size: int, largest: int) -> str:
    return f"is longer than {largest >> 20} MiB ({size} bytes); --longest_record N allows more"


def _read_document(path: Path, is_record: Callable[[Any], bool], largest: int) -> Iterator[Record | Damage]:
    document = _Document(path, largest)
    opening = document.peek()
    if opening == "":
        if document.damage:
            yield damaged(0, document.damage, b"")
        return
    if opening not in "[{":
        yield damaged(0, "holds neither JSON, JSON Lines nor Parquet", document.beginning())
        return
    if opening == "[":
        entries = document.entries()
        first = next(entries, None)
        if isinstance(first, Damage) or (first is not None and is_record(first.value)):
            yield first
            yield from entries
            return
    yield _whole(path, largest)


def _whole(path: Path, largest: int) -> Record | Damage:
    content, damage = bytearray(), ""
    for chunk, damage in chunks(path):  # noqa: B007
        content += chunk
        if len(content) > largest:
            return damaged(0, _too_long(len(content), largest).replace("is longer", "the document is longer"), content)
    if damage:
        return damaged(0, damage, bytes(content))
    return _decoded(0, bytes(content).removeprefix(BYTE_ORDER_MARK))


class _Document:
    """A JSON document read from its beginning, as far as is needed."""

    def __init__(self, path: Path, largest: int):
        self._chunks = chunks(path)
        self._largest = largest
        self._text = ""
        self._at = 0
        self._bytes = b""
        self._ended = False
        self._lost = False
        self.damage = ""

    def beginning(self) -> bytes:
        return self._text[:_EXCERPT].encode("utf-8", "surrogateescape")

    def peek(self) -> str:
        """The next character that is no blank; empty at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n\ufeff":
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def entries(self) -> Iterator[Record | Damage]:
        """The entries of the array that begins here. After a broken one reading goes on where its brackets close."""
        self._at += 1
        index = 0
        while self.peek() not in ("", "]"):
            if index:
                if self.peek() != ",":
                    yield damaged(index, "no JSON: no comma between the array's entries", self._excerpt())
                    return
                self._at += 1
                self.peek()
            entry = self._entry(index)
            yield entry
            if self._lost:
                return
            index += 1
        if self.peek() == "":
            yield damaged(index, self.damage or "the array has no end: the file is cut off", b"")

    def _entry(self, index: int) -> Record | Damage:
        while True:
            field = ""
            try:
                value, stop = DECODER.raw_decode(self._text, self._at)
                if stop < len(self._text) or not self._more():
                    return self._sound(index, value, stop)
                continue  # a number may go on
            except RecursionError:
                problem = "nested too deeply"
            except SchemaError as error:
                problem, field = error.reason, error.field
            except ValueError as error:
                problem = f"no JSON: {error}"
            excerpt = self._excerpt()
            stop = end_of_value(self._text, self._at)
            if stop is not None:
                self._at = stop
                return damaged(index, problem, excerpt, field)
            ahead = len(self._text) - self._at
            if ahead > self._largest:
                self._lost = True
                return damaged(index, _too_long(ahead, self._largest) + "; the rest of the file is not read", excerpt)
            if not self._more(ahead):
                self._lost = True
                return damaged(index, self.damage or "the file is cut off inside of this entry", excerpt)

    def _sound(self, index: int, value: Any, stop: int) -> Record | Damage:
        raw = self._text[self._at : stop]
        self._at = stop
        if not raw.isascii():
            try:
                raw.encode("utf-8")
            except UnicodeEncodeError as error:
                content = raw.encode("utf-8", "surrogateescape")
                return damaged(index, f"no UTF-8 at character {error.start} of the entry", content)
        return Record(index, value)

    def _excerpt(self) -> bytes:
        return self._text[self._at : self._at + _EXCERPT].encode("utf-8", "surrogateescape")

    def _more(self, wanted: int = 1) -> bool:
        """Append to the text until `wanted` characters lie ahead; whether anything came."""
        if self._ended:
            return False
        gathered, size = [self._text[self._at :]], 0
        while size < wanted:
            chunk, self.damage = next(self._chunks, (None, self.damage))
            if chunk is None:
                self._ended = True
                break
            text, self._bytes = _whole_characters(self._bytes + chunk)
            gathered.append(text)
            size += len(text)
        if self._ended and self._bytes:
            gathered.append(self._bytes.decode("utf-8", "surrogateescape"))
            self._bytes = b""
            size += 1
        self._text, self._at = "".join(gathered), 0
        return size > 0


def _whole_characters(content: bytes) -> tuple[str, bytes]:
    """The text up to the last whole character, and the bytes behind it; what is no UTF-8 becomes lone surrogates."""
    cut = len(content)
    for back in range(1, min(4, len(content)) + 1):
        byte = content[-back]
        if byte >= 0xC0:  # the first byte of a character of several
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            cut = len(content) - back if length > back else cut
            break
        if byte < 0x80:
            break
    return content[:cut].decode("utf-8", "surrogateescape"), content[cut:]


_MARKS = re.compile(r'"(?:[^"\\]|\\.)*"|[][{},"]', re.DOTALL)


def end_of_value(text: str, start: int) -> int | None:
    """Where the value that begins at `start` ends by its quotes and brackets alone; None where it does not end."""
    depth = 0
    for mark in _MARKS.finditer(text, start):
        what = mark.group()
        if what == '"':
            return None  # a string without an end
        if depth == 0 and what in ",]}":
            return mark.start()
        if what in ("{", "["):
            depth += 1
        elif what in ("}", "]"):
            depth -= 1
            if depth == 0:
                return mark.end()
    return None
