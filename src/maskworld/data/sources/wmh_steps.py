"""The index files of world-model-harness: one line is one step of a trace, told by the ids of its spans.

A step keeps no trace id. Its spans are named by their writer: up to twelve characters of the trace's id, the number of
the step in hexadecimal (four digits, later six), and `a` for the action or `b` for the observation. Steps of one
beginning are one trace, in the order of the file; should two traces share it, a number that does not rise, or another
task, begins the second. A step whose spans are named otherwise stands alone.

The action is the tool call as compact JSON, or the text of a message; `think`, `calculate` and handing over to a human
are no transitions, as in tau2-bench. `task` is what the agent was given: a text, or a scenario as a JSON string, whose
`domain` names the environment. Runs of one task are one group. Nothing says who acted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from maskworld.data.schema import SchemaError, Step, Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, array, label, mapping, member, number, text
from maskworld.data.sources.common.fields import compact
from maskworld.data.sources.common.pairing import action_text, parse_arguments
from maskworld.data.sources.common.text import clean
from maskworld.data.sources.tau2_bench import NO_TRANSITION

_SPAN = re.compile(r"(.{12})([0-9a-f]{4})[ab]|(.{1,12})([0-9a-f]{6})[ab]", re.DOTALL)
_MEMBERS = frozenset({"action", "observation", "state_before", "raw_span_ids"})


def matches(record: Any, path: Path) -> bool:
    """Whether this is a step: `action` and `observation` as objects, `state_before` and `raw_span_ids`."""
    return (
        isinstance(record, dict)
        and record.keys() >= _MEMBERS
        and isinstance(record["action"], dict)
        and isinstance(record["observation"], dict)
    )


def trace_of(record: Any) -> str:
    """The trace that a step belongs to; empty where the record names no span."""
    return _span(record)[0]


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory | SchemaError]:
    """The trajectories of the steps of one name; a broken step is an error in place of its whole trajectory."""
    steps = [mapping(one, f"[{index}]") for index, one in enumerate(array(record, ""))]
    traces = _cut(steps)
    for begin, end in traces:
        try:
            made = _trajectory(steps[begin:end], begin, origin, alone=len(traces) == 1)
        except SchemaError as error:
            yield error
            continue
        if made is not None:
            yield made


def _span(record: Any) -> tuple[str, int]:
    """The name of the trace and the number of the step that the first span's id tells."""
    ids = record.get("raw_span_ids") if isinstance(record, dict) else None
    first = ids[0] if isinstance(ids, list) and ids else None
    if not isinstance(first, str):
        return "", 0
    found = _SPAN.fullmatch(first)
    if found is None:
        return clean(first).text, 0
    return clean(found.group(1) or found.group(3)).text, int(found.group(2) or found.group(4), 16)


def _cut(steps: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Where each trace begins and ends."""
    told = [(_span(step)[1], step.get("task")) for step in steps]
    begins = [
        index
        for index, (now, task) in enumerate(told)
        if not index or now <= told[index - 1][0] or task != told[index - 1][1]
    ]
    return list(pairwise([*begins, len(steps)]))


def _trajectory(trace: list[dict[str, Any]], begin: int, origin: Origin, alone: bool) -> Trajectory | None:
    notes = Notes()
    turns = [_step(one, f"[{begin + index}]", notes) for index, one in enumerate(trace)]
    steps = tuple(step for step in turns if step is not None)
    first = trace[0]
    at = f"[{begin}]"
    task = label(first.get("task"), f"{at}.task")
    domain = _domain(task)
    environment = f"wmh_steps/{domain}" if domain else "wmh_steps"
    name = _span(first)[0] or clean(origin.identity).text
    if not steps:
        return None
    return Trajectory(
        id=f"wmh_steps/{name}" if alone else f"wmh_steps/{name}:{begin}",
        environment=environment,
        initial_state=_state(first.get("state_before"), f"{at}.state_before"),
        task_context=task,
        steps=steps,
        group=f"{environment}/task-{hashlib.sha256(task.encode()).hexdigest()[:16]}" if task else f"wmh_steps/{name}",
        metadata=notes.metadata(),
    )


def _step(record: dict[str, Any], at: str, notes: Notes) -> Step | None:
    """The transition; None for a call that tells nothing of the environment."""
    action = mapping(member(record, "action", f"{at}.action"), f"{at}.action")
    answer = mapping(member(record, "observation", f"{at}.observation"), f"{at}.observation")
    done = _action(action, f"{at}.action", notes)
    shown = notes.observation(member(answer, "content", f"{at}.observation.content"), f"{at}.observation.content")
    failed, reward = answer.get("is_error"), answer.get("reward")
    if failed is not None and not isinstance(failed, bool):
        raise SchemaError(f"{at}.observation.is_error", "must be true or false")
    gained = 0.0 if reward is None else number(reward, f"{at}.observation.reward")
    if done is None:
        notes.count("no_transition_calls")
        return None
    return Step(done, shown, gained, failed=failed)


def _action(action: dict[str, Any], at: str, notes: Notes) -> str | None:
    kind = text(member(action, "kind", f"{at}.kind"), f"{at}.kind")
    if kind == "message":
        said = notes.command(member(action, "content", f"{at}.content"), f"{at}.content")
        if not said.strip():
            raise SchemaError(f"{at}.content", "must not be empty")
        return said
    if kind != "tool_call":
        raise SchemaError(f"{at}.kind", "is neither tool_call nor message")
    name = text(member(action, "name", f"{at}.name"), f"{at}.name")
    try:
        call = action_text(name, parse_arguments(action.get("arguments")))
    except ValueError as error:
        raise SchemaError(f"{at}.arguments", str(error)) from error
    return None if name in NO_TRANSITION else notes.content(call, at)


def _state(state: Any, at: str) -> str:
    """What is known of the environment before the first step: its settings as JSON, then its notes."""
    if state is None:
        return ""
    known = mapping(state, at)
    settings = known.get("structured")
    structured = compact(settings, f"{at}.structured") if settings else ""
    written = label(known.get("scratchpad"), f"{at}.scratchpad")
    return clean("\n".join(part for part in (structured, written) if part)).text


def _domain(task: str) -> str:
    """The domain that a scenario names; empty for a task of plain text."""
    try:
        scenario = json.loads(task) if task.startswith("{") else None
    except (ValueError, RecursionError):
        return ""
    domain = scenario.get("domain") if isinstance(scenario, dict) else None
    return clean(domain).text if isinstance(domain, str) else ""


# The publisher's data cards say so (experiential-labs/wmo-tau-bench-traces, wmh-swe-bench-traces); the repository that
# holds the index files has no licence file.
SOURCE = Source(name="wmh_steps", licence="MIT", matches=matches, trajectories=trajectories, gathered_by=trace_of)
