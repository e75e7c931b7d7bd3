"""Reading the calls and results of a chat out of a foreign record, and turning their pairs into steps.

All functions raise SchemaError whose field is the path given.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from maskworld.data.schema import SchemaError, Step
from maskworld.data.sources.common.checks import Notes, array, label, mapping, member, text
from maskworld.data.sources.common.pairing import Call, Pair, Pairing, Result, action_text, pair, parse_arguments
from maskworld.data.sources.common.text import clean


def decoded(value: Any, path: str) -> Any:
    """A value that may stand as a JSON string: the value meant."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise SchemaError(path, "is a string without readable JSON") from error


def compact(value: Any, path: str) -> str:
    """The value as one line of JSON."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise SchemaError(path, "holds what JSON cannot") from error


def schema_texts(value: Any, path: str, member: str = "") -> tuple[str, ...]:
    """The tools of a record, one line of JSON each, from an array or an object of one under `member`, or its string.

    Runs of one task hold the same string: what it gives is remembered.
    """
    return _schemas_of_text(value, path, member) if isinstance(value, str) else _schemas(value, path, member)


@lru_cache(maxsize=256)
def _schemas_of_text(value: str, path: str, name: str) -> tuple[str, ...]:
    return _schemas(decoded(value, path), path, name)


def _schemas(value: Any, path: str, name: str) -> tuple[str, ...]:
    if name and value:
        value, path = mapping(value, path).get(name), f"{path}.{name}"
    entries = enumerate(array([] if value in (None, "") else value, path))
    return tuple(clean(compact(entry, f"{path}[{index}]")).text for index, entry in entries)


def messages(value: Any, path: str) -> list[dict[str, Any]]:
    """An array of messages, each an object with a role."""
    found = [mapping(entry, f"{path}[{index}]") for index, entry in enumerate(array(value, path))]
    for index, message in enumerate(found):
        here = f"{path}[{index}].role"
        text(member(message, "role", here), here)
    return found


def first_content(chat: list[dict[str, Any]], role: str, path: str, notes: Notes) -> str:
    """The text of the first message of a role; empty where there is none."""
    for index, message in enumerate(chat):
        if message["role"] == role:
            return notes.content(message.get("content"), f"{path}[{index}].content")
    return ""


def paired(chat: list[dict[str, Any]], path: str, notes: Notes, result_id: str) -> Pairing:
    """Calls and results of OpenAI-like messages, paired. `result_id` is the member of a tool message that names a call.

    Counts unpaired calls, orphan results, unparsable and empty arguments in `notes`.
    """
    events: list[Call | Result] = []
    for index, message in enumerate(chat):
        here = f"{path}[{index}]"
        if message["role"] == "tool":
            observed = notes.observation(member(message, "content", f"{here}.content"), f"{here}.content")
            failed = message.get("error")  # tau2-bench's mark
            known = label(message.get(result_id), f"{here}.{result_id}")
            events.append(Result(known, observed, index, failed if isinstance(failed, bool) else None))
        elif message.get("tool_calls") is not None:
            for number, entry in enumerate(array(message["tool_calls"], f"{here}.tool_calls")):
                events.append(tool_call(entry, f"{here}.tool_calls[{number}]", notes))
    found = pair(events)
    notes.count("unpaired_calls", found.unpaired_calls)
    notes.count("orphan_results", found.orphan_results)
    return found


def steps_of(
    pairs: list[Pair], no_transition: Collection[str], path: str, notes: Notes, reward: float, ended_at: int | None
) -> tuple[Step, ...]:
    """The agent's transitions. Calls of the user and of tools in `no_transition` are counted and left out.

    The reward is the last step's, which is done where it was answered by message `ended_at`.
    """
    kept = []
    for one in pairs:
        if one.call.by == "user":
            notes.count("user_calls")
        elif one.call.name in no_transition:
            notes.count("no_transition_calls")
        else:
            kept.append(one)
    steps = []
    for index, (call, result) in enumerate(kept):
        try:
            action = notes.content(action_text(call.name, call.arguments), path)
        except ValueError as error:
            raise SchemaError(path, f"the arguments of {call.name[:80]!r} are no JSON ({error})") from error
        last = index == len(kept) - 1
        done = last and result.message == ended_at
        steps.append(Step(action, result.text, reward if last else 0.0, done, failed=result.failed))
    return tuple(steps)


def tool_call(entry: Any, path: str, notes: Notes) -> Call:
    """A call as OpenAI nests it under `function`, or flat as tau2-bench has it; unreadable arguments are counted."""
    mapping(entry, path)
    at = f"{path}.function" if "function" in entry else path
    function = mapping(entry["function"], at) if "function" in entry else entry
    name = text(member(function, "name", f"{at}.name"), f"{at}.name")
    if not name.strip():
        raise SchemaError(f"{at}.name", "must not be empty")
    try:
        arguments = parse_arguments(function.get("arguments"))
    except ValueError as error:
        raise SchemaError(f"{at}.arguments", str(error)) from error
    notes.count("unparsable_arguments", isinstance(arguments, str))
    notes.count("empty_arguments", function.get("arguments") == "")  # no JSON either, but the meaning is plain
    by = "user" if label(entry.get("requestor"), f"{path}.requestor") == "user" else "agent"
    return Call(label(entry.get("id"), f"{path}.id"), name, arguments, by)
