"""Tool schemas as records hold them, and as a trajectory does: one line of JSON a tool."""

from __future__ import annotations

import json
import re
from typing import Any

from maskworld.data.schema import SchemaError
from maskworld.data.sources.common.fields import compact
from maskworld.data.sources.common.pairing import finite_float, refuse_constant
from maskworld.data.sources.common.text import clean

_TOOLS = re.compile(r"[ \t]*<tools>(.*?)</tools>[ \t]*\n?", re.DOTALL)
_BETWEEN = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite_float)


def without_nulls(value: Any, path: str) -> Any:
    """The value without members that are null: a column of Parquet pads every object to the union of all.

    Raises SchemaError where it is nested too deeply.
    """
    try:
        return _pruned(value)
    except RecursionError as error:
        raise SchemaError(path, "nested too deeply") from error


def tool_texts(value: Any, path: str) -> tuple[str, ...]:
    """The tools of a member: an array or an object, either possibly as a string; texts that are no JSON stay texts.

    Raises SchemaError for any other type.
    """
    if value is None:
        return ()
    if not isinstance(value, str | dict | list):
        raise SchemaError(path, "must be tools or a string that holds them")
    entries = value if isinstance(value, list) else [value]
    held = [one for entry in entries for one in (json_values(entry) if isinstance(entry, str) else [entry])]
    tools = [one for entry in held for one in (entry if isinstance(entry, list) else [entry])]
    texts = [one if isinstance(one, str) else compact(without_nulls(one, path), path) for one in tools]
    return tuple(clean(text).text for text in texts if text.strip())


def split_tools(prompt: str, path: str) -> tuple[str, tuple[str, ...]]:
    """A prompt without its `<tools>` block, and the tools of that block; nothing changes where there is none."""
    found = _TOOLS.search(prompt)
    if found is None:
        return prompt, ()
    return prompt[: found.start()] + prompt[found.end() :], tool_texts(found.group(1), path)


def json_value(text: str, start: int) -> tuple[Any, int] | None:
    """The JSON value that begins at `start`, blanks and commas skipped, and where it ends; None where there is none."""
    try:
        return _DECODER.raw_decode(text, _BETWEEN.match(text, start).end())
    except (ValueError, RecursionError):
        return None


def json_values(text: str) -> list[Any]:
    """The JSON values that follow one another in a text, commas between them or not; a rest that is none, as text."""
    values, at = [], 0
    while (found := json_value(text, at)) is not None:
        value, at = found
        values.append(value)
    rest = text[at:].strip(" \t\r\n,")
    return [*values, rest] if rest else values


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _pruned(entry) for name, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [_pruned(entry) for entry in value]
    return value
