"""mini-swe-agent's runs: a bare list of chat messages, or the newer object that holds such a list under `messages`.

The action is the one fenced bash block of an assistant message, the observation the whole user message that follows
it, return code and tags included: they are what the harness shows of the shell. An answer with no block or several is
refused by the harness, not by the shell; it and the complaint that follows are no transition and are counted as
`format_errors`. A last action without an answer is counted as `unanswered_actions`.

Runs that call tools natively (no fenced block, `tool_calls` in the message) are another format and are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskworld.data.schema import SchemaError, Step, Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, array, label, mapping, member, nested_text, text
from maskworld.data.sources.common.text import clean

_BLOCK = re.compile(r"```(?:mswea_bash_command|bash)\s*\n(.*?)\n?```", re.DOTALL)
_FINAL = re.compile(r"COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT|MINI_SWE_AGENT_FINAL_OUTPUT")


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
    if isinstance(record, list):
        messages, at, info = record, "", {}
        instance = ""
    else:
        mapping(record, "")
        messages, at = array(member(record, "messages", "messages"), "messages"), "messages"
        info = {} if record.get("info") is None else mapping(record["info"], "info")
        instance = label(record.get("instance_id"), "instance_id")
    notes = Notes()
    rules: list[str] = []
    task = ""
    spoken = False
    turns: list[tuple[str, str]] = []
    pending: str | None = None
    ended = False
    for index, message in enumerate(messages):
        here = f"{at}[{index}]"
        mapping(message, here)
        role = text(member(message, "role", f"{here}.role"), f"{here}.role")
        if role == "assistant":
            if message.get("tool_calls"):
                raise SchemaError(f"{here}.tool_calls", "native tool calls are not read, only fenced commands")
            notes.count("unanswered_actions", pending is not None)
            said = notes.content(message.get("content"), f"{here}.content")
            commands = _BLOCK.findall(said)
            pending = commands[0] if len(commands) == 1 and commands[0].strip() else None
            notes.count("format_errors", pending is None)
            spoken, ended = True, False
        elif role == "system":
            rules.append(notes.content(message.get("content"), f"{here}.content"))
        elif role == "user" and not spoken:
            said = notes.content(message.get("content"), f"{here}.content")
            task = task or said
        elif role == "user" and pending is not None:
            shown = notes.observation(member(message, "content", f"{here}.content"), f"{here}.content")
            turns.append((pending, shown))
            ended = _FINAL.search(pending) is not None
            pending = None
        # What else there is (a complaint about the format, an `exit` message) answers no command.
    notes.count("unanswered_actions", pending is not None)
    name = clean(origin.path.name.removesuffix(".json").removesuffix(".traj")).text
    if turns:
        last = len(turns) - 1
        yield Trajectory(
            id=f"mini_swe_agent/{instance or name}" + (f":{origin.index}" if origin.index else ""),
            environment="mini_swe_agent",
            initial_state="",
            task_context=task,
            steps=tuple(
                Step(action, shown, done=ended and index == last) for index, (action, shown) in enumerate(turns)
            ),
            domain_rules=tuple(rules),
            group=f"mini_swe_agent/{instance or name}",
            player=nested_text(info, "config", "model", "model_name"),
            metadata=notes.metadata(
                exit_status=label(info.get("exit_status"), "info.exit_status"),
                mini_version=label(info.get("mini_version"), "info.mini_version"),
            ),
        )


SOURCE = Source(name="mini_swe_agent", licence="MIT", matches=matches, trajectories=trajectories)
