"""SWE-smith's rows on Hugging Face (`SWE-bench/SWE-smith-trajectories`), and the fine-tuning files of its repository.

The splits `tool`, `xml` and `ticks` are the same SWE-agent runs in three syntaxes, named by the same `traj_id`. All are
read to the same actions, `{"name": ..., "arguments": {...}}` in the order in which the model gave the arguments, so
that copies of a run are recognised by their steps too:

- `tool`: the calls of the messages as they are.
- `xml`: `<function=...><parameter=...>` at the end of an answer. Its values are texts; SWE-agent's two parameters of
  another type are read back.
- `ticks`: a fenced block with a shell command. It is the call `bash`, but for `submit` and for a command line of
  `str_replace_editor`, which is taken apart again. What that line cannot show is lost: the order in which the model
  gave the arguments, and a `new_str` that was empty.

Observations lose what the harness wrapped around them (`swe_agent.unwrapped`). An answer without exactly one readable
call was refused by the harness: no transition, counted as `format_errors`. Rows of the `xml` and `ticks` syntax may end
with `submit`, whose answer was cut off. The reward is whether the patch resolved the issue; the fine-tuning files do
not say it, nor the model, nor the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from maskworld.data.schema import SchemaError, Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, content, identifier, label, mapping, member
from maskworld.data.sources.common.fields import decoded, first_content, messages, paired, steps_of
from maskworld.data.sources.common.pairing import Call, Pair, Result
from maskworld.data.sources.common.text import clean
from maskworld.data.sources.common.written import last_block, xml_call
from maskworld.data.sources.swe_agent import unwrapped

_COLUMNS = frozenset({"messages", "instance_id", "resolved", "model", "traj_id", "patch"})
_EDITOR = "str_replace_editor"
_TEXT_FLAGS = frozenset({"--file_text", "--old_str", "--new_str"})
_TYPED = frozenset({"view_range", "insert_line"})
_INTEGER = re.compile(r"-?[0-9]{1,9}")
_BLANKS = " \t\r\n"
_PIECE = re.compile(rf"""[{_BLANKS}]+|[^{_BLANKS}'"\\]+|'[^']*'|"[^"\\$`]*\"""")


def matches(record: Any, path: Path) -> bool:
    """Whether this is an object with `messages`, `instance_id` and nothing but the data set's columns."""
    return (
        isinstance(record, dict)
        and {"messages", "instance_id"} <= record.keys() <= _COLUMNS
        and isinstance(record["messages"], str | list)
        and isinstance(record["instance_id"], str)
    )


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """The run's one trajectory; nothing where no action was answered. Raises SchemaError for a wrong type."""
    mapping(record, "")
    notes = Notes()
    chat = messages(decoded(member(record, "messages", "messages"), "messages"), "messages")
    where = clean(origin.identity).text
    instance = identifier(record.get("instance_id"), "instance_id") or where
    run = identifier(record.get("traj_id"), "traj_id") or f"{instance}/{where}"
    resolved = record.get("resolved")
    if resolved is not None and not isinstance(resolved, bool):
        raise SchemaError("resolved", "must be true or false")
    syntax = _syntax(chat)
    found = _called(chat, notes) if syntax == "tool" else _written(chat, _READERS[syntax], notes)
    submitted = found and found[-1].call.name == "submit"
    ended_at = found[-1].result.message if submitted else None
    steps = steps_of(found, (), "messages", notes, float(resolved or 0), ended_at)
    if steps:
        rules = first_content(chat, "system", "messages", notes)
        yield Trajectory(
            id=f"swe_smith/{run}",
            environment="swe_smith",
            initial_state="",
            task_context=first_content(chat, "user", "messages", notes),
            steps=steps,
            domain_rules=(rules,) if rules else (),
            group=f"swe/{instance}",
            player=label(record.get("model"), "model"),
            metadata=notes.metadata(syntax=syntax),
        )


def _syntax(chat: list[dict[str, Any]]) -> str:
    answers = [(f"messages[{index}].content", one) for index, one in enumerate(chat) if one["role"] == "assistant"]
    if any(message.get("tool_calls") for _, message in answers):
        return "tool"
    return "xml" if any(xml_call(content(one.get("content"), path).text) for path, one in answers) else "ticks"


def _called(chat: list[dict[str, Any]], notes: Notes) -> list[Pair]:
    """The pairs of native calls. A result names its call in a list of ids, as SWE-agent writes it, or in one id."""
    named = [
        message | {"tool_call_id": message["tool_call_ids"][0]}
        if isinstance(message.get("tool_call_ids"), list) and message["tool_call_ids"]
        else message
        for message in chat
    ]
    found = paired(named, "messages", notes, "tool_call_id").pairs
    return [Pair(call, replace(result, text=unwrapped(result.text))) for call, result in found]


def _written(chat: list[dict[str, Any]], read: Callable[[str], Call | None], notes: Notes) -> list[Pair]:
    """The pairs of calls that stand in the text: each is answered by the message that follows it."""
    found = []
    pending: Call | None = None
    for index, message in enumerate(chat):
        path = f"messages[{index}].content"
        if message["role"] == "assistant":
            notes.count("unpaired_calls", pending is not None)
            pending = read(notes.content(message.get("content"), path))
            notes.count("format_errors", pending is None)
        elif pending is not None and message["role"] != "system":
            shown = notes.observation(member(message, "content", path), path)
            found.append(Pair(pending, Result("", unwrapped(shown), index)))
            pending = None
    notes.count("unpaired_calls", pending is not None)
    return found


def _read_xml(said: str) -> Call | None:
    return xml_call(said, _TYPED)


def _read_ticks(said: str) -> Call | None:
    """The call of a fenced command. A file's text may hold fences: a whole editor line up to the end goes first."""
    begin, end = f"\n\n```\n{_EDITOR} ", "\n```"
    at = said.find(begin)
    if at >= 0 and said.endswith(end):
        edit = _editor_call(said[at + len("\n\n```\n") : -len(end)])
        if edit is not None:
            return edit
    command = last_block(said)
    if command is None or not command.strip():
        return None
    if command == "submit":
        return Call("", "submit", {})
    return _editor_call(command) or Call("", "bash", {"command": command})


def _editor_call(line: str) -> Call | None:
    """The call that SWE-agent wrote as this command line of its editor; None where it is not exactly such a line."""
    words = _words(line) if line.startswith(f"{_EDITOR} ") else []
    if len(words) < 3:
        return None
    arguments: dict[str, Any] = {"command": words[1], "path": words[2]}
    rest = words[3:]
    while rest:
        flag, *rest = rest
        wanted = 1 if flag in _TEXT_FLAGS or flag == "--insert_line" else 2 if flag == "--view_range" else 0
        values, rest = rest[:wanted], rest[wanted:]
        if not wanted or len(values) < wanted or flag[2:] in arguments:
            return None
        if flag not in _TEXT_FLAGS:
            if not all(_INTEGER.fullmatch(value) for value in values):
                return None
            values = [int(value) for value in values]
        arguments[flag[2:]] = values if wanted == 2 else values[0]
    return Call("", _EDITOR, arguments)


def _words(line: str) -> list[str]:
    """The words of a command line as a POSIX shell splits it; none for a line that holds more than words and quotes.

    `shlex.split` does more, but slowly: 11 s for a file of 800 KB.
    """
    words: list[list[str]] = []
    end, apart = 0, True
    for found in _PIECE.finditer(line):
        if found.start() != end:
            return []
        piece, end = found.group(), found.end()
        if piece[0] in _BLANKS:
            apart = True
            continue
        if apart:
            words.append([])
        words[-1].append(piece[1:-1] if piece[0] in "'\"" else piece)
        apart = False
    return ["".join(parts) for parts in words] if end == len(line) else []


_READERS: dict[str, Callable[[str], Call | None]] = {"xml": _read_xml, "ticks": _read_ticks}

SOURCE = Source(name="swe_smith", licence="MIT", matches=matches, trajectories=trajectories)
