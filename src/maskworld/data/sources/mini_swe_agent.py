"""mini-swe-agent's runs: a bare list of chat messages, or the newer object that holds such a list under `messages`.

Commands stand in an answer in one of three ways, which give the same actions, the literal shell command:

- as its one fenced bash block (both layouts). An answer with no block or several is refused by the harness, not by the
  shell; it and the complaint that follows are no transition and are counted as `format_errors`.
- as native tool calls of the tool `bash` (version 2), answered by `tool` messages; an answer may hold several.
- as items `function_call` of a whole response of OpenAI's newer interface (version 2), answered by
  `function_call_output`.

Version 2 also lists the commands that it ran in `extra.actions`; that list goes first. A call of another tool, which
the harness does not know, would be kept as JSON. Version 2 never shows a refused answer: its complaint is a message
marked `FormatError`.

The observation is the whole answer, return code and tags included: they are what the harness shows of the shell. A step
failed where that code is not 0. The command that submits is answered by what it printed below its mark, in version 2 in
the `exit` message. A last action without an answer is counted as `unanswered_actions`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maskworld.data.schema import SchemaError, Step, Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, array, label, mapping, member, nested_text, text
from maskworld.data.sources.common.fields import tool_call
from maskworld.data.sources.common.pairing import Call, Result, action_text, pair
from maskworld.data.sources.common.text import clean

_BLOCK = re.compile(r"```(?:mswea_bash_command|bash)\s*\n(.*?)\n?```", re.DOTALL)
_FINAL = re.compile(r"COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT|MINI_SWE_AGENT_FINAL_OUTPUT")
_RETURN_CODE = re.compile(r"(?:<exception>[^<]*</exception>\s*)?<returncode>(-?[0-9]{1,10})</returncode>")
_SHELL = "bash"


def matches(record: Any, path: Path) -> bool:
    """Whether this is the newer object by its own marks, or a list of messages in which an assistant wrote a block."""
    if isinstance(record, dict):
        form, info = record.get("trajectory_format"), record.get("info")
        marked = isinstance(form, str) and form.startswith("mini-swe-agent")
        marked |= isinstance(info, dict) and "mini_version" in info
        return marked and isinstance(record.get("messages"), list)
    if not isinstance(record, list) or not all(isinstance(message, dict) for message in record):
        return False
    return any(
        message.get("role") == "assistant"
        and isinstance(message.get("content"), str)
        and _BLOCK.search(message["content"]) is not None
        for message in record
    )


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """The run's one trajectory; nothing where no command was run. Raises SchemaError for a member of a wrong type."""
    row: dict[str, Any] = {} if isinstance(record, list) else mapping(record, "")
    at = "" if isinstance(record, list) else "messages"
    found = record if isinstance(record, list) else array(member(row, "messages", at), at)
    chat = [(f"{at}[{index}]", mapping(message, f"{at}[{index}]")) for index, message in enumerate(found)]
    info = {} if row.get("info") is None else mapping(row["info"], "info")
    notes = Notes()
    rules, task, turns = _read(chat, notes)
    steps = _steps(turns, notes)
    instance = label(row.get("instance_id"), "instance_id")
    name = clean(origin.path.name.removesuffix(".json").removesuffix(".traj")).text
    if steps:
        yield Trajectory(
            id=f"mini_swe_agent/{instance or name}" + (f":{origin.index}" if origin.index else ""),
            environment="mini_swe_agent",
            initial_state="",
            task_context=task,
            steps=steps,
            domain_rules=rules,
            group=f"swe/{instance or name}",
            player=nested_text(info, "config", "model", "model_name"),
            metadata=notes.metadata(
                exit_status=label(info.get("exit_status"), "info.exit_status"),
                mini_version=label(info.get("mini_version"), "info.mini_version"),
            ),
        )


@dataclass
class _Turn:
    """The commands of one answer, and what came back before the next."""

    calls: list[Call]
    in_text: bool
    results: list[Result] = field(default_factory=list)


def _read(chat: list[tuple[str, dict[str, Any]]], notes: Notes) -> tuple[tuple[str, ...], str, list[_Turn]]:
    """System prompts, task, and turns."""
    rules: list[str] = []
    task = ""
    turns: list[_Turn] = []
    for index, (at, message) in enumerate(chat):
        role = _role(message, at)
        if role == "assistant":
            turns.append(_turn(message, at, notes))
        elif role == "system":
            rules.append(notes.content(message.get("content"), f"{at}.content"))
        elif role == "user" and not turns and not _is_complaint(message):
            said = notes.content(message.get("content"), f"{at}.content")
            task = task or said
        elif _is_complaint(message):
            notes.count("format_errors")
        elif turns:
            answer = _answer(message, role, turns[-1], index, at, notes)
            turns[-1].results += [] if answer is None else [answer]
    return tuple(rules), task, turns


def _role(message: dict[str, Any], at: str) -> str:
    """The role; items of OpenAI's newer interface have none but say by their kind who speaks."""
    if message.get("object") == "response":
        return "assistant"
    if message.get("type") == "function_call_output":
        return "tool"
    return text(member(message, "role", f"{at}.role"), f"{at}.role")


def _is_complaint(message: dict[str, Any]) -> bool:
    extra = message.get("extra")
    return isinstance(extra, dict) and extra.get("interrupt_type") == "FormatError"


def _turn(message: dict[str, Any], at: str, notes: Notes) -> _Turn:
    native = _native_calls(message, at, notes)
    ran = _listed_calls(message, at, notes)
    if native is not None:
        return _Turn(native if ran is None else ran, in_text=False)
    if ran is None:
        said = notes.content(message.get("content"), f"{at}.content")
        blocks = _BLOCK.findall(said)
        ran = [_shell_call("", blocks[0])] if len(blocks) == 1 and blocks[0].strip() else []
        notes.count("format_errors", not ran)
    return _Turn(ran, in_text=True)


def _listed_calls(message: dict[str, Any], at: str, notes: Notes) -> list[Call] | None:
    """The commands that the harness took from the answer and ran; None where it does not list them."""
    extra = message.get("extra")
    if not isinstance(extra, dict) or extra.get("actions") is None:
        return None
    at = f"{at}.extra.actions"
    calls = []
    for index, entry in enumerate(array(extra["actions"], at)):
        here = f"{at}[{index}]"
        command = notes.command(member(mapping(entry, here), "command", f"{here}.command"), f"{here}.command")
        calls.append(_shell_call(label(entry.get("tool_call_id"), f"{here}.tool_call_id"), command))
    return calls


def _native_calls(message: dict[str, Any], at: str, notes: Notes) -> list[Call] | None:
    """The tool calls of an answer; None where it is one that writes its commands into the text."""
    if message.get("object") == "response":
        items = array(member(message, "output", f"{at}.output"), f"{at}.output")
        calls = [(index, mapping(item, f"{at}.output[{index}]")) for index, item in enumerate(items)]
        return [
            tool_call(item | {"id": item.get("call_id") or item.get("id")}, f"{at}.output[{index}]", notes)
            for index, item in calls
            if item.get("type") == "function_call"
        ]
    if not message.get("tool_calls"):
        return None
    entries = array(message["tool_calls"], f"{at}.tool_calls")
    return [tool_call(entry, f"{at}.tool_calls[{index}]", notes) for index, entry in enumerate(entries)]


def _shell_call(known: str, command: str) -> Call:
    return Call(known, _SHELL, {"command": command})


def _answer(message: dict[str, Any], role: str, turn: _Turn, index: int, at: str, notes: Notes) -> Result | None:
    """What answers a command of the turn; None for what else there is: a person's remark, the end of the run."""
    if role == "exit":
        status = nested_text(message, "extra", "exit_status")
        submits = [call.id for call in turn.calls if _FINAL.search(_action(call, at))] if status == "Submitted" else []
        if not submits:
            return None
        return Result(submits[-1], notes.content(message.get("content"), f"{at}.content"), index)
    if role not in {"user", "tool"} or (role == "user") != turn.in_text or not turn.calls:
        return None
    flat = message.get("type") == "function_call_output"
    content, known = ("output", "call_id") if flat else ("content", "tool_call_id")
    shown = notes.observation(member(message, content, f"{at}.{content}"), f"{at}.{content}")
    return Result(label(message.get(known), f"{at}.{known}"), shown, index, _failed(message, shown))


def _failed(message: dict[str, Any], shown: str) -> bool | None:
    """Whether the harness tells of another return code than 0, beside the answer or at its beginning."""
    extra = message.get("extra")
    code = extra.get("returncode") if isinstance(extra, dict) else None
    if isinstance(code, int) and not isinstance(code, bool):
        return code != 0
    told = _RETURN_CODE.match(shown)
    return int(told.group(1)) != 0 if told else None


def _action(call: Call, at: str) -> str:
    """The command itself; a call of another tool as JSON."""
    if call.name == _SHELL and isinstance(call.arguments, dict) and list(call.arguments) == ["command"]:
        command = call.arguments["command"]
        if isinstance(command, str) and command.strip():
            return command
    try:
        return action_text(call.name, call.arguments)
    except ValueError as error:
        raise SchemaError(at, f"the arguments of {call.name[:80]!r} are no JSON ({error})") from error


def _steps(turns: list[_Turn], notes: Notes) -> tuple[Step, ...]:
    steps: list[Step] = []
    for number, turn in enumerate(turns):
        found = pair([*turn.calls, *turn.results])
        notes.count("unanswered_actions", found.unpaired_calls)
        notes.count("orphan_results", found.orphan_results if not turn.in_text else 0)
        for index, (call, result) in enumerate(found.pairs):
            action = notes.content(_action(call, "messages"), "messages")
            last = number == len(turns) - 1 and index == len(found.pairs) - 1
            ended = last and _FINAL.search(action) is not None
            steps.append(Step(action, result.text, done=ended, failed=result.failed))
    return tuple(steps)


SOURCE = Source(name="mini_swe_agent", licence="MIT", matches=matches, trajectories=trajectories)
