"""Calls that a model wrote into its text: XML as SWE-agent and OpenHands ask for it, and fenced blocks.

Both readers go through a text once and take its last words: what a model says before its call may quote anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from maskworld.data.sources.common.pairing import Call

_OPENING = re.compile(r"(?:\A|\n)<function=([^>\s]+)>\n")
_CLOSING = "</function>"
_NEXT_PARAMETER = re.compile(r"</parameter>\s*\n<parameter=")
_INTEGERS = re.compile(r"-?(?:0|[1-9][0-9]{0,8})|\[(?:-?(?:0|[1-9][0-9]{0,8})(?:, ?(?!\])|(?=\])))*\]")
_FENCE = re.compile(r"^```(\S*)[ \t]*$", re.MULTILINE)


def xml_call(said: str, typed: Collection[str] = ()) -> Call | None:
    """The one call `<function=name>` with its `<parameter=name>value</parameter>` that ends a text.

    None where a text does not end so, or holds several calls. Values are strings, but for the parameters in `typed`,
    which are read as an integer or an array of integers where they are one. A value that stands on lines of its own
    loses the two line breaks around it.
    """
    said = said.rstrip()
    opening = _OPENING.search(said)
    if opening is None or not said.endswith(_CLOSING):
        return None
    body = said[opening.end() : -len(_CLOSING)].strip("\n")
    if f"\n{_CLOSING}\n" in body or body.startswith(f"{_CLOSING}\n"):
        return None
    arguments = _parameters(body, typed)
    return None if arguments is None else Call("", opening.group(1), arguments)


def last_block(said: str) -> str | None:
    """The content of the last fenced block that is not inside of another; None where there is none.

    A fence that names a language opens a block, also inside of another; a bare one closes the innermost. The block
    must begin the text or follow an empty line, as SWE-smith writes it: one that does not is more likely the rest of a
    command that held fences itself.
    """
    start = depth = 0
    found = None
    for fence in _FENCE.finditer(said):
        if depth and not fence.group(1):
            depth -= 1
            if not depth:
                stands_alone = start == 0 or said.endswith("\n\n", 0, start)
                found = said[said.index("\n", start) + 1 : fence.start()].removesuffix("\n") if stands_alone else None
        else:
            start = start if depth else fence.start()
            depth += 1
    return found


def _parameters(body: str, typed: Collection[str]) -> dict[str, Any] | None:
    if not body:
        return {}
    if not (body.startswith("<parameter=") and body.endswith("</parameter>")):
        return None
    arguments: dict[str, Any] = {}
    for part in _NEXT_PARAMETER.split(body[len("<parameter=") : -len("</parameter>")]):
        name, closed, value = part.partition(">")
        if not closed or not name or name in arguments or "\n" in name:
            return None
        if len(value) > 1 and value[0] == value[-1] == "\n":
            value = value[1:-1]
        arguments[name] = _typed(value) if name in typed else value
    return arguments


def _typed(value: str) -> Any:
    """An integer or an array of integers; any other text as it stands."""
    return json.loads(value) if _INTEGERS.fullmatch(value) else value
