"""OpenHands' event streams: rows of its evaluation (`output.jsonl`), of its issue resolver, and exports of its window.

An event is an action or an observation. Events with ids say which action an observation answers (`cause`); older ones,
flat and without ids, follow one another. An observation without a cause answers the last action, if that is still
open: the error of a call that never became an action answers nothing and is counted as `orphan_results`.

The action is the model's tool call with the model's own arguments where the event keeps them, since an event's `args`
may hold less (the text of a new file is missing from them); else the action's kind with its `args`. The observation is
`content` alone: an edit repeats whole files in `extras`, a browser its screenshots.

Thoughts, recalled knowledge, messages, changes of the agent's state and the like come from the harness: no transitions.
Actions of the user are counted as `user_calls` and left out. A command failed where its event says so, except with exit
code -1: it was still running. The streams hold no reward, unless an evaluation wrote its `report` into the row; the
resolver's `success` is a model's opinion and stays in the metadata.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskworld.data.schema import Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, array, identifier, label, mapping, member, nested_text, text
from maskworld.data.sources.common.fields import compact, steps_of, tool_call
from maskworld.data.sources.common.pairing import Call, Pair, Result, pair
from maskworld.data.sources.common.text import clean

_THINK = "think"
_REFUSALS = frozenset({"error", "user_rejected"})
_HARNESS_ACTIONS = frozenset(
    "add_task change_agent_state condensation condensation_request finish init loop_recovery message modify_task null "
    "pause plan recall reject resume start stop summarize system".split()
)
_HARNESS_OBSERVATIONS = frozenset("agent_state_changed chat condense loop_detection message null recall".split())
_TOOLS = frozenset(
    "browse browse_interactive call_tool_mcp delegate download edit mcp push read run run_ipython send_pr success "
    "task_tracking write".split()
)
_KINDS = _HARNESS_ACTIONS | _HARNESS_OBSERVATIONS | _TOOLS | _REFUSALS | {_THINK}
_EVENT_MEMBERS = frozenset("action args cause id llm_metrics message source timestamp tool_call_metadata".split())
_BOOKKEEPING = frozenset(
    "action_risk blocking confirmation_state cwd hidden is_confirmed is_static keep_prompt kernel_init_code "
    "security_risk thought timeout".split()
)
_Event = tuple[str, dict[str, Any]]  # with its path


def matches(record: Any, path: Path) -> bool:
    """Whether this is a list of events, or an object whose `history` is one or a list of their pairs."""
    history = record.get("history") if isinstance(record, dict) else record
    if not isinstance(history, list) or not history:
        return False
    first = history[0]
    if isinstance(first, list):
        return isinstance(record, dict) and len(first) == 2 and all(_is_event(one) for one in first)
    return _is_event(first)


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """The stream's one trajectory; nothing where no action was answered. Raises SchemaError for a wrong type."""
    row: dict[str, Any] = {} if isinstance(record, list) else mapping(record, "")
    events = _events(record, "") if isinstance(record, list) else _events(member(row, "history", "history"), "history")
    notes = Notes()
    pairs, finished = _pairs(events, notes)
    rules, tools = _system(events, notes)
    task = label(row.get("instruction"), "instruction") or _first_message(events, notes)
    own = _task_name(row) or f"task-{_digest(task)}"
    moment = next((label(event.get("timestamp"), f"{at}.timestamp") for at, event in events), "")
    steps = steps_of(pairs, {_THINK}, "history", notes, _reward(row), None)
    if steps:
        yield Trajectory(
            id=f"openhands/{own}/{moment or clean(f'{origin.path.parent.name}/{origin.identity}').text}",
            environment="openhands",
            initial_state="",
            task_context=task,
            steps=steps,
            tool_schemas=tools,
            domain_rules=(rules,) if rules else (),
            group=f"swe/{own}",
            player=nested_text(row, "metadata", "llm_config", "model") or _model(events),
            metadata=notes.metadata(
                agent=nested_text(row, "metadata", "agent_class"),
                finished=finished or None,
                error=label(row.get("error"), "error"),
                judged_success=row.get("success") if isinstance(row.get("success"), bool) else None,
            ),
        )


def _is_event(value: Any) -> bool:
    """Whether this is an action or an observation of a kind that OpenHands has, and no chat message."""
    if not isinstance(value, dict) or "role" in value or ("action" in value) == ("observation" in value):
        return False
    kind = value.get("action", value.get("observation"))
    return isinstance(kind, str) and kind in _KINDS


def _events(history: Any, at: str) -> list[_Event]:
    """The events in their order, those of pairs one after the other."""
    found: list[_Event] = []
    for index, entry in enumerate(array(history, at)):
        here = f"{at}[{index}]"
        if isinstance(entry, list):
            found += [(f"{here}[{number}]", mapping(one, f"{here}[{number}]")) for number, one in enumerate(entry)]
        else:
            found.append((here, mapping(entry, here)))
    return found


def _pairs(events: list[_Event], notes: Notes) -> tuple[list[Pair], bool]:
    """Actions with their answers, thoughts still among them, and whether the agent finished."""
    stream: list[Call | Result] = []
    unanswered: set[str] = set()
    last = ""
    finished = False
    for index, (at, event) in enumerate(events):
        if "action" in event:
            kind = text(event["action"], f"{at}.action")
            finished |= kind == "finish"
            if kind not in _HARNESS_ACTIONS:
                last = identifier(event.get("id"), f"{at}.id") or f"event {index}"
                stream.append(_call(event, kind, last, at, notes))
                unanswered.add(last)
        elif "observation" in event:
            kind = text(event["observation"], f"{at}.observation")
            if kind not in _HARNESS_OBSERVATIONS:
                cause = identifier(event.get("cause"), f"{at}.cause") or last
                shown = notes.observation(member(event, "content", f"{at}.content"), f"{at}.content")
                if cause in unanswered:
                    unanswered.remove(cause)
                    stream.append(Result(cause, shown, index, _failed(event, kind)))
                else:
                    notes.count("orphan_results")
    found = pair(stream)
    notes.count("unpaired_calls", found.unpaired_calls)
    return found.pairs, finished


def _call(event: dict[str, Any], kind: str, own: str, at: str, notes: Notes) -> Call:
    by = "user" if event.get("source") == "user" else "agent"
    made = _model_call(event, at, notes)
    if made is not None and kind != _THINK:
        return Call(own, made.name, made.arguments, by)
    arguments = mapping(event["args"], f"{at}.args") if "args" in event else event
    left_out = _BOOKKEEPING if "args" in event else _BOOKKEEPING | _EVENT_MEMBERS
    kept = {name: value for name, value in arguments.items() if name not in left_out and value is not None}
    return Call(own, kind, kept, by)


def _model_call(event: dict[str, Any], at: str, notes: Notes) -> Call | None:
    """The tool call of the model's answer that became this action; None where the event does not keep it."""
    made = event.get("tool_call_metadata")
    answer = made.get("model_response") if isinstance(made, dict) else None
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices:
        return None
    message = choices[0].get("message") if isinstance(choices[0], dict) else None
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    at = f"{at}.tool_call_metadata.model_response.choices[0].message.tool_calls"
    for index, entry in enumerate(calls if isinstance(calls, list) else []):
        if isinstance(entry, dict) and entry.get("id") == made.get("tool_call_id"):
            return tool_call(entry, f"{at}[{index}]", notes)
    return None


def _failed(event: dict[str, Any], kind: str) -> bool | None:
    """What the event says: an error, or the success or exit code of a command, which is -1 while it runs."""
    if kind in _REFUSALS:
        return True
    extras = event.get("extras")
    known = extras.get("metadata") if isinstance(extras, dict) else event
    code = known.get("exit_code") if isinstance(known, dict) else None
    if code == -1:
        return None
    if isinstance(event.get("success"), bool):
        return not event["success"]
    return code != 0 if isinstance(code, int) and not isinstance(code, bool) else None


def _system(events: list[_Event], notes: Notes) -> tuple[str, tuple[str, ...]]:
    """The system prompt and the schemas of the tools, where the stream begins with them."""
    for at, event in events:
        if event.get("action") == "system":
            args = mapping(event.get("args") or {}, f"{at}.args")
            schemas = array(args.get("tools") or [], f"{at}.args.tools")
            tools = [clean(compact(entry, f"{at}.args.tools[{i}]")).text for i, entry in enumerate(schemas)]
            return notes.content(args.get("content"), f"{at}.args.content"), tuple(tools)
    return "", ()


def _first_message(events: list[_Event], notes: Notes) -> str:
    """The task: the first message that is not the agent's."""
    for at, event in events:
        if event.get("action") == "message" and event.get("source") != "agent":
            told = mapping(event["args"], f"{at}.args") if "args" in event else event
            return notes.content(told.get("content"), f"{at}.content")
    return ""


def _task_name(row: dict[str, Any]) -> str:
    """The instance of an evaluation, or the issue of a resolver."""
    instance = identifier(row.get("instance_id"), "instance_id")
    issue = row.get("issue")
    if instance or not isinstance(issue, dict):
        return instance
    number = identifier(issue.get("number"), "issue.number")
    owner, repository = label(issue.get("owner"), "issue.owner"), label(issue.get("repo"), "issue.repo")
    return f"{owner}/{repository}#{number}" if owner and repository and number else ""


def _reward(row: dict[str, Any]) -> float:
    """1 where an evaluation's report says that the issue is resolved."""
    result = row.get("test_result")
    for holder in (row, result if isinstance(result, dict) else {}):
        report = holder.get("report")
        if isinstance(report, dict) and isinstance(report.get("resolved"), bool):
            return float(report["resolved"])
    return 0.0


def _model(events: list[_Event]) -> str:
    names = (nested_text(event, "tool_call_metadata", "model_response", "model") for _, event in events)
    return next((name for name in names if name), "")


def _digest(told: str) -> str:
    return hashlib.sha256(told.encode()).hexdigest()[:16]


SOURCE = Source(name="openhands", licence="MIT", matches=matches, trajectories=trajectories)
