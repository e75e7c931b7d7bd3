"""JSON Lines: telling them from one JSON document, and reading them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

from maskworld.data.reading.streams import BYTE_ORDER_MARK, UTF_16_MARKS, chunks
from maskworld.data.reading.values import EXCERPT, Damage, Part, Record, damaged, decoded, too_long

_LOOKED_AT = 16  # lines
_GLIMPSE = 1 << 20
_OPENING = re.compile(rb'\{\s*["}]')


def is_json_lines(path: Path) -> bool:
    """Whether each line is a value of its own, by the first lines of the file.

    Two neighbouring lines that both begin and end as an object cannot be parts of one document; nor can a first line
    that is an object with something behind it. Where neither is seen, the name decides (`.jsonl`, `.ndjson`), unless
    the first line ends in the middle of a value, as that of a document over several lines does. A file of one line is
    none: a document is read in the same way.
    """
    seen = list(islice(_glimpses(path), _LOOKED_AT))
    if len(seen) < 2 or seen[0].beginning.startswith(UTF_16_MARKS):
        return False
    if any(one.is_object and other.is_object for one, other in pairwise(seen)) or seen[0].is_sound:
        return True
    named = any(mark in path.name.lower() for mark in (".jsonl", ".ndjson"))
    return named and seen[0].last not in b"[{,:"


class _Glimpse(NamedTuple):
    """What is looked at of a line: enough of its beginning, and its last byte that is no blank."""

    beginning: bytes
    last: bytes
    is_whole: bool

    @property
    def is_object(self) -> bool:
        """Whether it begins and ends as one."""
        return _OPENING.match(self.beginning) is not None and self.last == b"}"

    @property
    def is_sound(self) -> bool:
        if not self.is_whole or not self.is_object:
            return False
        return isinstance(decoded(0, self.beginning), Record)


def _glimpses(path: Path) -> Iterator[_Glimpse]:
    beginning, last, size = b"", b"", 0

    def glimpse() -> _Glimpse:
        return _Glimpse(beginning.removeprefix(BYTE_ORDER_MARK).strip(), last, size <= _GLIMPSE)

    for chunk, _ in chunks(path):
        pieces = chunk.split(b"\n")
        for place, piece in enumerate(pieces):
            if place:
                if last:
                    yield glimpse()
                beginning, last, size = b"", b"", 0
            beginning += piece[: max(0, _GLIMPSE - size)]
            last = piece.rstrip()[-1:] or last
            size += len(piece)
    if last:
        yield glimpse()


def read_lines(part: Part, largest: int) -> Iterator[Record | Damage]:
    """The records of the lines of a part; blank lines are passed over but have a number.

    Of a line that is longer than `largest` bytes only the beginning is ever in memory.
    """
    for line in _lines(part.path, part.start, part.end, largest):
        index = part.first_index + line.index
        if not line.damage:
            yield decoded(index, line.content)
            continue
        # Where a stream breaks off, its last line may be whole but for its newline. A number may have had more digits.
        whole = decoded(index, line.content) if line.is_last else None
        if isinstance(whole, Record) and isinstance(whole.value, dict | list):
            yield whole
            yield damaged(index + 1, line.damage, b"")
        else:
            yield damaged(index, line.damage, line.content)


class _Line(NamedTuple):
    index: int
    content: bytes
    damage: str = ""
    is_last: bool = False


def _lines(path: Path, start: int, end: int | None, largest: int) -> Iterator[_Line]:
    index, damage = 0, ""
    waiting: list[bytes] = []  # pieces of a line that began in an earlier chunk
    size = 0

    def line(content: bytes) -> _Line | None:
        content = content.removeprefix(BYTE_ORDER_MARK) if index == 0 and start == 0 else content
        if size > largest:
            return _Line(index, content[:EXCERPT], too_long(largest))
        return _Line(index, content) if content.strip() else None

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
        yield _Line(index, found.content if found else b"", damage, is_last=size <= largest)
    elif found:
        yield found
