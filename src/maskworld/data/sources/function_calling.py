"""Conversations with tools in the layouts of fine-tuning data: Pandora and its kin, WebDancer.

One record is one conversation under `messages` (`role`, `content`) or `conversations` (`from`, `value`), an array or a
JSON string of one, and only a few other members: a record with more belongs to a source of its own.

- A call is an entry of `tool_calls`, a `function_call`, a turn of a role of that name, or a `<tool_call>` block in the
  text, outside of the model's `<think>`. One that is no JSON keeps its text as the action (`unparsable_calls`).
- A result is a turn of a tool (`observation`, `tool`, `function`, ...), or a turn of the user inside `<tool_response>`;
  the tag and one line break at either end are no part of it, several responses in one turn are several results.
- What the user says stands where `common/dialogue.py` puts it. A first turn that closes with `User: ...` after its
  instructions is split there.
- Tools come from `tools` or `functions`, else from the `<tools>` block of a prompt, which is then cut out of the rules.
- Conversations with the same request are one group. `think` is no transition.

Pandora's own rows could not be looked at; every layout that its users convert it to is read, and so is the plain
`messages` column. Most results in such data were written by a model, not by a system: the environment says
`function_calling`, with the record's `task` or, where the path names it, `pandora`, so that a build can leave it out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskworld.data.schema import SchemaError, Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, array, identifier, label, mapping, member, text
from maskworld.data.sources.common.dialogue import Answered, Said, call_text, dialogue
from maskworld.data.sources.common.fields import decoded, tool_call
from maskworld.data.sources.common.pairing import Call, Result, pair
from maskworld.data.sources.common.text import clean
from maskworld.data.sources.common.tools import json_value, json_values, split_tools, tool_texts

NO_TRANSITION = frozenset({"think"})
_CHATS = ("messages", "conversations")
_MEMBERS = {*_CHATS, "tools", "functions", "tool_calls", "system", "id", "source", "type", "task", "answer", "tag"}
_ROLES = {
    "system": {"system", "developer"},
    "user": {"user", "human"},
    "model": {"assistant", "gpt", "model"},
    "call": {"function_call", "tool_call", "function-call"},
    "result": {"tool", "function", "observation", "tool_response", "function_response", "function-response"},
}
_ROLE_OF = {name: role for role, names in _ROLES.items() for name in names}
_ANY_CALL = re.compile(r"<tool_call>|<functioncall>")
_OPEN, _CLOSE = "<tool_response>", "</tool_response>"
_BETWEEN = re.compile(r"\n?</tool_response>\s*<tool_response>\n?")
_REQUEST = re.compile(r"\A(.*\n)\s*User: *(.*)\Z", re.DOTALL)


def matches(record: Any, path: Path) -> bool:
    """Whether this is such a conversation: one chat, no member of another format, and tools or a sign of a call."""
    if not isinstance(record, dict) or not record.keys() <= _MEMBERS:
        return False
    chats = [record[name] for name in _CHATS if name in record]
    if len(chats) != 1:
        return False
    try:
        chat = decoded(chats[0], "")
    except SchemaError:
        return False
    turns = [turn for turn in chat if isinstance(turn, dict)] if isinstance(chat, list) else []
    return bool(turns) and ("tools" in record or "functions" in record or any(map(_calls_something, turns)))


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """The conversation's one trajectory; nothing where no call was answered. Raises SchemaError for a broken record."""
    row = mapping(record, "")
    notes = Notes()
    name = next((one for one in _CHATS if one in row), _CHATS[0])
    rules, said, answered, tools = _read(array(decoded(member(row, name, name), name), name), name, notes)
    if row.get("system"):
        rules.insert(0, notes.content(row["system"], "system"))
    given = tool_texts(row.get("tools") or row.get("functions"), "tools")
    if not given:
        split = [split_tools(rule, "system") for rule in rules]
        rules = [rule for rule, _ in split]
        given = tuple(tool for _, found in split for tool in found) or tools
    context, steps = dialogue(said, answered, notes)
    if steps:
        own = identifier(row.get("id"), "id") or str(origin.index)
        environment = _environment(row, origin.path)
        yield Trajectory(
            id=f"{environment}/{clean(origin.path.stem).text}/{own}",
            environment=environment,
            initial_state="",
            task_context=context,
            steps=steps,
            tool_schemas=given,
            domain_rules=tuple(rule for rule in rules if rule.strip()),
            group=f"{environment}/{_digest(context)}",
            metadata=notes.metadata(source=_short(row, "source"), tag=_short(row, "tag")),
        )


def _read(chat: list[Any], path: str, notes: Notes) -> tuple[list[str], list[Said], list[Answered], tuple[str, ...]]:
    """Rules, what the user said, answered calls, and the tools of the first turn's prompt."""
    rules: list[str] = []
    said: list[Said] = []
    events: list[Call | Result] = []
    tools: tuple[str, ...] = ()
    for index, entry in enumerate(chat):
        at = f"{path}[{index}]"
        turn = mapping(entry, at)
        role, name = _role(turn, at), "content" if "content" in turn else "value"
        here = f"{at}.{name}"
        if role == "result":
            known = label(turn.get("tool_call_id"), f"{at}.tool_call_id")
            responses, _ = _responses(notes.observation(turn.get(name), here), wrapped=False)
            events += [Result(known, response, index) for response in responses]
        elif role in ("model", "call"):
            events += _calls(turn, role, notes.content(turn.get(name), here), at, notes)
        elif role == "system":
            rules.append(notes.content(turn.get(name), here))
        else:
            responses, rest = _responses(notes.content(turn.get(name), here), wrapped=True)
            events += [Result("", response, index) for response in responses]
            if not said:
                prompt, rest, tools = _prompt(rest, here)
                rules += [prompt] if prompt else []
            said.append(Said(index, rest))
    return rules, said, _paired(events, path, notes), tools


def _paired(events: list[Call | Result], path: str, notes: Notes) -> list[Answered]:
    found = pair(events)
    kept = [(call, result) for call, result in found.pairs if call.name not in NO_TRANSITION]
    notes.count("unpaired_calls", found.unpaired_calls)
    notes.count("orphan_results", found.orphan_results)
    notes.count("no_transition_calls", len(found.pairs) - len(kept))
    notes.count("unparsable_calls", sum(not call.name for call, _ in kept))
    return [Answered(call_text(call, path, notes), result) for call, result in kept]


def _role(turn: dict[str, Any], at: str) -> str:
    name = "role" if "role" in turn else "from"
    said = text(member(turn, name, f"{at}.{name}"), f"{at}.{name}")
    if said not in _ROLE_OF:
        raise SchemaError(f"{at}.{name}", f"is none of {', '.join(sorted(_ROLE_OF))}")
    return _ROLE_OF[said]


def _calls(turn: dict[str, Any], role: str, said: str, at: str, notes: Notes) -> list[Call]:
    """The calls of a turn of the model, as members or in its text."""
    given = turn.get("tool_calls") or []
    if given:
        calls = array(decoded(given, f"{at}.tool_calls"), f"{at}.tool_calls")
        return [tool_call(call, f"{at}.tool_calls[{index}]", notes) for index, call in enumerate(calls)]
    if turn.get("function_call") is not None:
        return [tool_call(turn["function_call"], f"{at}.function_call", notes)]
    if role == "call":
        spoken = [said] if _ANY_CALL.search(said) is None else _blocks(said)
    else:
        spoken = _blocks(said.rpartition("</think>")[2])
    return [call for one in spoken for call in _spoken(one, at, notes)]


def _blocks(said: str) -> list[str]:
    """The insides of the call blocks of a text. One that is JSON ends with it, whatever tags its strings hold."""
    blocks, at = [], 0
    while found := _ANY_CALL.search(said, at):
        value = json_value(said, found.end())
        closed = said.find("</" + found.group()[1:], found.end() if value is None else value[1])
        at = len(said) if closed < 0 else closed
        blocks.append(said[found.end() : at])
    return blocks


def _spoken(said: str, at: str, notes: Notes) -> list[Call]:
    """The calls that a text holds as JSON, an object or several; the text itself where it holds anything else."""
    values = [one for value in json_values(said) for one in (value if isinstance(value, list) else [value])]
    try:
        return [tool_call(_arguments_named(value), at, notes) for value in values] or [Call("", "", said)]
    except SchemaError:
        return [Call("", "", said.strip())]


def _arguments_named(value: Any) -> Any:
    if isinstance(value, dict) and "arguments" not in value and "parameters" in value:
        return {"name": value.get("name"), "arguments": value["parameters"]}
    return value


def _responses(said: str, wrapped: bool) -> tuple[list[str], str]:
    """The results that a turn holds in `<tool_response>`, and what follows the last.

    Without the tag the whole turn is what follows if results come `wrapped`, else one result.
    """
    inside = said.lstrip()
    if not inside.startswith(_OPEN):
        return ([], said) if wrapped else ([said], "")
    inside, closed, rest = inside.removeprefix(_OPEN).rpartition(_CLOSE)
    if not closed:
        inside, rest = rest, ""
    return _BETWEEN.split(inside.removeprefix("\n").removesuffix("\n")), rest.strip()


def _prompt(said: str, path: str) -> tuple[str, str, tuple[str, ...]]:
    """Instructions, request and tools of the user's first turn; without tools in it there are no instructions."""
    prompt, tools = split_tools(said, path)
    found = _REQUEST.match(prompt) if tools else None
    return (found.group(1), found.group(2), tools) if found else ("", prompt, tools)


def _calls_something(turn: dict[str, Any]) -> bool:
    if turn.get("tool_calls") or turn.get("function_call"):
        return True
    role, said = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
    if isinstance(role, str) and _ROLE_OF.get(role) in ("call", "result"):
        return True
    return isinstance(said, str) and _ANY_CALL.search(said) is not None


def _environment(row: dict[str, Any], path: Path) -> str:
    if any("pandora" in part.lower() for part in path.parts):
        return "function_calling/pandora"
    task = _short(row, "task").strip("/ ").rpartition("/")[2]
    return f"function_calling/{task}" if task else "function_calling"


def _short(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    return clean(value).text[:80] if isinstance(value, str) else ""


def _digest(said: str) -> str:
    return hashlib.blake2b(" ".join(said.lower().split()).encode(), digest_size=8).hexdigest()


# Pandora itself is BSD-3-Clause; a record of this family does not say where it is from.
SOURCE = Source(name="function_calling", licence="unknown", matches=matches, trajectories=trajectories)
