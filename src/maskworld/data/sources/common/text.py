"""What is done to the text of an observation before it may be a target, and nothing else.

Everything here is named in the result, so that a data set can say how many of its targets were touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_LONE = re.compile("[\ud800-\udfff]")
ATTACHMENT = "[attachment]"
"""Stands where a message held an image or other bytes."""


class Cleaned(NamedTuple):
    """A text as it may stand in a trajectory, and the names of the operations that changed it."""

    text: str
    operations: tuple[str, ...]


def clean(text: str) -> Cleaned:
    """NULs and terminal colours out, CRLF to LF, surrogates to characters; whitespace and Unicode form stay.

    The operations are named `nul`, `ansi`, `crlf`, `surrogate_pair` (two halves were one character) and
    `lone_surrogate` (half of one became U+FFFD).
    """
    if "\0" not in text and "\x1b" not in text and "\r" not in text and (text.isascii() or _is_encodable(text)):
        return Cleaned(text, ())  # nearly every text; what follows looks at it five times
    done = []

    def apply(name: str, changed: str) -> None:
        nonlocal text
        if changed != text:
            done.append(name)
            text = changed

    # In this order: what one takes out may have stood inside of what the next looks for.
    apply("nul", text.replace("\0", ""))
    apply("ansi", _ANSI.sub("", text))
    apply("crlf", text.replace("\r\n", "\n"))
    apply("surrogate_pair", _PAIR.sub(lambda m: m.group().encode("utf-16", "surrogatepass").decode("utf-16"), text))
    apply("lone_surrogate", _LONE.sub("\ufffd", text))
    return Cleaned(text, tuple(done))


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def content_text(content: Any) -> Cleaned:
    """The text of a chat message: a string, nothing, or a list of parts whose texts follow one another.

    A part that holds no text (an image, an audio file, bytes) leaves `ATTACHMENT` in its place. Raises ValueError for
    anything else.
    """
    if content is None:
        return Cleaned("", ())
    if isinstance(content, str):
        return clean(content)
    if not isinstance(content, list):
        raise ValueError(f"is neither text nor a list of parts but {type(content).__name__}")
    texts, attached = [], False
    for part in content:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
        attached |= not isinstance(text, str)
        texts.append(text if isinstance(text, str) else ATTACHMENT)
    text, operations = clean("".join(texts))
    return Cleaned(text, operations + ("attachment",) * attached)


def merge_operations(cleaned: Iterable[Cleaned]) -> list[str]:
    """The operations that touched any of the texts, sorted: what goes into `metadata["cleaned"]`."""
    return sorted({name for one in cleaned for name in one.operations})
