"""Calls of tools that stand in the text of a message: as JSON, in several wrappings."""

from __future__ import annotations

import json
import re
from typing import Any

from maskworld.data.sources.common.pairing import action_text, parse_arguments

_TAGGED = re.compile(r"\s*<tool_call>\s*(.*?)\s*</tool_call>\s*", re.DOTALL)
_OF_A_CALL = {"id", "type", "name", "arguments", "parameters", "function"}
_OF_A_MESSAGE = {"role", "content", "tool_calls"}


def action_of(text: str) -> str:
    """The action that a text means: the one call that it is in `action_text`'s form, or the text itself.

    A call is `{"name": ..., "arguments": ...}` (or `parameters`), also under `function`, alone in a list, between
    `<tool_call>` tags, or as the `tool_calls` of a message that says nothing else. Whatever else is there, a second
    call or words around it, leaves the text as it is.
    """
    tagged = _TAGGED.fullmatch(text)
    inner = tagged.group(1) if tagged else text
    if not inner.lstrip().startswith(("{", "[")):
        return text
    try:
        call = _only_call(json.loads(inner))
        if call is None:
            return text
        given = call["arguments"] if "arguments" in call else call.get("parameters")
        return action_text(call["name"], parse_arguments(given))
    except (ValueError, RecursionError):
        return text


def _only_call(value: Any) -> dict[str, Any] | None:
    """The call that a decoded value is, itself or inside of its wrappings."""
    if isinstance(value, list):
        return _only_call(value[0]) if len(value) == 1 else None
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("tool_calls"), list):
        return None if value.keys() - _OF_A_MESSAGE or value.get("content") else _only_call(value["tool_calls"])
    if value.keys() - _OF_A_CALL:
        return None
    if isinstance(value.get("function"), dict):
        return _only_call(value["function"])
    named = isinstance(value.get("name"), str) and bool(value["name"].strip())
    return value if named and ("arguments" in value) != ("parameters" in value) else None
