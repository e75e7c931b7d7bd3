"""JSON that is not told apart by lines: documents one behind another, and the entries of arrays.

The text is taken in as far as the next value needs it. What is broken is passed over up to where its own brackets
close, or, where its syntax is broken and they mislead, up to the next object that begins like the one before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from maskworld.data.reading.streams import UTF_16_MARKS, chunks
from maskworld.data.reading.values import EXCERPT, Damage, Record, damaged, too_long
from maskworld.data.schema import DECODER, TOO_MANY_DIGITS, SchemaError

_BLANKS = re.compile(r"[ \t\r\n\ufeff]*")
_BETWEEN = re.compile(r"[ \t\r\n\ufeff,]*")
_STRAY = re.compile(r'[^[{"\n]*')
_STRAY_ENTRY = re.compile(r'[^][{}"\n,]*[}\n,]?')
_FIRST_MEMBER = re.compile(r'\{\s*"(?:[^"\\]|\\.){0,200}"\s*:')
_OTHER_ENTRY = re.compile(r",\s*[\[{]")
_DECIDING = 8  # entries of an array that are looked at before it is taken for one record
_MARGIN = 4096  # characters that hold the beginning of a value, blanks in front of it included
_LITERAL = 12  # characters of the longest piece that is no string: `-Infinity`, `\\ud800`


def read_documents(path: Path, is_record: Callable[[Any], bool], largest: int) -> Iterator[Record | Damage]:
    """The values of a file that is no JSON Lines file; of an array whose entries are records, the entries.

    Raises OSError where the file cannot be read.
    """
    text = _Text(path)
    values = _Values(text, largest)
    if not text.skip(_BLANKS):
        if text.damage:
            yield damaged(0, text.damage, b"")
        return
    if text.at_next not in "[{":
        beginning = text.excerpt()
        is_wide = beginning.startswith(UTF_16_MARKS)
        yield damaged(0, "is UTF-16, not UTF-8" if is_wide else "holds neither JSON, JSON Lines nor Parquet", beginning)
        return
    while text.skip(_BETWEEN):
        if text.at_next == "[":
            yield from values.array(is_record)
        else:
            yield values.value()
    if text.damage and not values.is_cut:
        yield damaged(values.index, text.damage, b"")


class _Text:
    """The text of a file from a place on; what is no UTF-8 stands as lone surrogates."""

    def __init__(self, path: Path):
        self._chunks = chunks(path)
        self._bytes = b""
        self.ahead, self.at = "", 0
        self.kept_from: int | None = None
        """Where the text begins that may be gone back to."""
        self.has_ended = False
        self.damage = ""

    @property
    def at_next(self) -> str:
        return self.ahead[self.at]

    def excerpt(self) -> bytes:
        return self.ahead[self.at : self.at + EXCERPT].encode("utf-8", "surrogateescape")

    def skip(self, what: re.Pattern[str]) -> bool:
        """Pass over what matches; whether anything is left."""
        while True:
            self.at = what.match(self.ahead, self.at).end()
            if self.at < len(self.ahead):
                return True
            if not self.more():
                return False

    def more(self, wanted: int = 1) -> bool:
        """Take in at least `wanted` characters; whether anything came."""
        if self.has_ended:
            return False
        begin = self.at if self.kept_from is None else self.kept_from
        gathered, size = [self.ahead[begin:]], 0
        while size < wanted and not self.has_ended:
            chunk, self.damage = next(self._chunks, (None, self.damage))
            self.has_ended = chunk is None
            text, self._bytes = _whole_characters(self._bytes + (chunk or b""), self.has_ended)
            gathered.append(text)
            size += len(text)
        self.ahead, self.at = "".join(gathered), self.at - begin
        self.kept_from = None if self.kept_from is None else 0
        return size > 0


class _Values:
    """Reads one value after another and counts them."""

    def __init__(self, text: _Text, largest: int):
        self._text, self._largest = text, largest
        self._beginning = ""
        """Of the last good object, up to its first member; the next one probably begins likewise."""
        self.index = 0
        self.is_cut = False
        """Whether the last value had no end."""

    def array(self, is_record: Callable[[Any], bool]) -> Iterator[Record | Damage]:
        """The entries of the array that begins here, or the array as one record."""
        text = self._text
        text.kept_from, first_index = text.at, self.index
        text.at += 1
        seen: list[Record | Damage] = []
        while len(seen) < _DECIDING and self._has_entry():
            seen.append(self.value(in_array=True))
            if len(text.ahead) > self._largest:
                break
        is_whole = text.kept_from is not None and not any(
            isinstance(one, Damage) or is_record(one.value) for one in seen
        )
        if is_whole and seen:
            text.at, self.index, text.kept_from = text.kept_from, first_index, None
            yield self.value()
            return
        text.kept_from = None
        yield from seen
        while self._has_entry():
            yield self.value(in_array=True)
        if text.at < len(text.ahead):
            text.at += 1
        elif not self.is_cut:
            self.is_cut = True
            yield damaged(self.index, text.damage or "the array has no end: the file is cut off", b"")

    def _has_entry(self) -> bool:
        return self._text.skip(_BETWEEN) and self._text.at_next != "]"

    def value(self, in_array: bool = False) -> Record | Damage:
        """The value that begins here, an array as a whole."""
        index, text = self.index, self._text
        self.index += 1
        while True:
            broken_at = None  # of its characters, where it is no JSON; else it is JSON that cannot be used
            may_be_cut = False
            try:
                value, stop = DECODER.raw_decode(text.ahead, text.at)
                length = stop - text.at
                if stop == len(text.ahead) and text.more():
                    continue  # a number may go on
                return self._good(index, value, text.at + length)
            except RecursionError:
                fault = damaged(index, "nested too deeply", text.excerpt())
            except SchemaError as error:
                fault = damaged(index, error.reason, text.excerpt(), error.field)
            except json.JSONDecodeError as error:
                may_be_cut = error.msg.startswith("Unterminated string") or error.pos >= len(text.ahead) - _LITERAL
                if may_be_cut and self._more():
                    continue
                broken_at = error.pos - text.at
                fault = damaged(index, f"no JSON: {error.msg} at character {broken_at}", text.excerpt())
            except ValueError:
                fault = damaged(index, TOO_MANY_DIGITS, text.excerpt())
            if broken_at is None:
                stop = end_of_value(text.ahead, text.at)
            else:
                stop = self._end_of_broken(broken_at == 0 and text.at_next not in '[{"', in_array)
            if stop is not None:
                text.at = stop
                return fault
            if not self._more():
                return self._without_end(fault, may_be_cut)

    def _more(self) -> bool:
        """Take in three times as much as lies ahead, within what is allowed; whether anything came."""
        ahead = len(self._text.ahead) - self._text.at
        return ahead <= self._largest and self._text.more(max(1, min(3 * ahead, self._largest + 1 - ahead)))

    def _good(self, index: int, value: Any, stop: int) -> Record | Damage:
        text = self._text
        begin, text.at = text.at, stop
        member = _FIRST_MEMBER.match(text.ahead, begin)
        self._beginning = member.group() if member else self._beginning
        raw = text.ahead[begin:stop]
        if not raw.isascii():
            try:
                raw.encode("utf-8")
            except UnicodeEncodeError as error:
                content = raw.encode("utf-8", "surrogateescape")
                return damaged(index, f"no UTF-8 at character {error.start} of the value", content)
        return Record(index, value)

    def _end_of_broken(self, is_stray: bool, in_array: bool) -> int | None:
        """Where to go on behind broken syntax; None where its brackets do not close in what lies ahead.

        Its own brackets and quotes may be what is broken. An entry has ended well where the array ends or where another
        one begins like the last; else the next object that begins so is a better place.
        """
        text = self._text
        if is_stray:  # or the rest of what was left too early
            found = text.ahead.find(self._beginning, text.at + 1) if self._beginning and in_array else -1
            stray = _STRAY_ENTRY if in_array else _STRAY
            return found if found >= 0 else stray.match(text.ahead, text.at + 1).end()
        stop = end_of_value(text.ahead, text.at)
        alike = self._alike()
        if stop is None or alike is None:
            return stop
        length = stop - text.at
        if len(text.ahead) - stop < _MARGIN:
            text.more(_MARGIN)
        stop = text.at + length
        behind = _BLANKS.match(text.ahead, stop).end()
        if in_array and (text.ahead.startswith("]", behind) or alike.match(text.ahead, behind)):
            return stop
        within = alike.search(text.ahead, text.at, stop)
        if within or not in_array or _OTHER_ENTRY.match(text.ahead, behind):
            return within.end() if within else stop
        later = alike.search(text.ahead, stop)
        return later.end() if later else stop

    def _alike(self) -> re.Pattern[str] | None:
        """Finds an object that begins like the last good one, up to its first member."""
        return re.compile(rf"[,\n]\s*(?={re.escape(self._beginning)})") if self._beginning else None

    def _without_end(self, fault: Damage, may_be_cut: bool) -> Damage:
        """The damage of a value whose brackets do not close, and on to the next one that begins like the last."""
        text = self._text
        is_long = len(text.ahead) - text.at > self._largest
        if is_long:
            text.kept_from = None
            fault = fault._replace(reason=too_long(self._largest), field="")
        if self._pass_over():
            return fault
        self.is_cut = True
        if is_long:
            return fault._replace(reason=f"{fault.reason}; the rest of the file is not read")
        cut = text.damage or ("the file is cut off inside of this value" if may_be_cut else "")
        return fault._replace(reason=cut or fault.reason)

    def _pass_over(self) -> bool:
        """Go to the next object that begins like the last good one, or to the end; whether there is one."""
        text, alike = self._text, self._alike()
        while alike:
            found = alike.search(text.ahead, text.at)
            if found:
                text.at = found.end()
                return True
            text.at = max(text.at, len(text.ahead) - _MARGIN)
            if not text.more():
                break
        text.at, text.has_ended = len(text.ahead), True
        return False


def _whole_characters(content: bytes, is_all: bool) -> tuple[str, bytes]:
    """The text up to the last whole character, and the bytes behind it; what is no UTF-8 becomes lone surrogates."""
    cut = len(content)
    for back in range(1, 0 if is_all else min(4, len(content)) + 1):
        byte = content[-back]
        if byte >= 0xC0:  # the first byte of a character of several
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            cut = len(content) - back if length > back else cut
            break
        if byte < 0x80:
            break
    return content[:cut].decode("utf-8", "surrogateescape"), content[cut:]


_MARKS = re.compile(r'\\.|[][{},"]', re.DOTALL)


def end_of_value(text: str, start: int) -> int | None:
    """Where the value that begins at `start` ends by its quotes and brackets alone; None where it does not end."""
    depth, quoted = 0, False
    for mark in _MARKS.finditer(text, start):
        what = mark.group()
        if what == '"':
            quoted = not quoted
        elif quoted or len(what) > 1:
            continue
        elif what in "{[":
            depth += 1
        elif depth == 0:
            return mark.start()
        elif what in "}]":
            depth -= 1
            if depth == 0:
                return mark.end()
    return None
