"""Two texts with what differs marked, as HTML."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from html import escape

_PIECE = re.compile(r"\s+|\w+|[^\w\s]")
_MOST_CHARACTERS = 2000


def marked_pair(truth: str, prediction: str, most: int = _MOST_CHARACTERS) -> tuple[str, str]:
    """(truth, prediction) as escaped HTML; words, signs and spaces that the other side lacks stand in <mark>.

    Texts are compared and shown up to `most` characters; an empty text is said to be empty.
    """
    a, b = (_PIECE.findall(text[:most]) for text in (truth, prediction))
    sides: tuple[list[str], list[str]] = ([], [])
    for operation, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        for side, pieces in zip(sides, (a[a0:a1], b[b0:b1]), strict=True):
            text = escape("".join(pieces))
            if text:
                side.append(text if operation == "equal" else f"<mark>{text}</mark>")
    shown = []
    for text, side in zip((truth, prediction), sides, strict=True):
        rest = f'<span class="soft"> … {len(text) - most:,} more characters</span>' if len(text) > most else ""
        shown.append("".join(side) + rest or '<span class="soft">(empty)</span>')
    return shown[0], shown[1]
