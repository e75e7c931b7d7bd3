"""Toolathlon: runs with MCP tools, one record a line; several members are JSON strings, `messages` sometimes.

A run is `done` at its last step where that answer is its last message and the harness says that it ran to its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskworld.data.schema import SchemaError, Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, identifier, label, mapping, member
from maskworld.data.sources.common.fields import decoded, first_content, messages, paired, schema_texts, steps_of
from maskworld.data.sources.common.text import clean

NO_TRANSITION: frozenset[str] = frozenset({"local-claim_done"})
_RUN = re.compile(r"_\d+$")


def matches(record: Any, path: Path) -> bool:
    """Whether this is a run: `modelname_run`, `task_name` and `messages` together."""
    return isinstance(record, dict) and {"modelname_run", "task_name", "messages"} <= record.keys()


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """The run, unless it holds no transition. Raises SchemaError for a broken record."""
    mapping(record, "")
    notes = Notes()
    run = label(record.get("modelname_run"), "modelname_run")
    task = identifier(record.get("task_name"), "task_name") or clean(origin.identity).text
    status = mapping(decoded(record.get("task_status"), "task_status") or {}, "task_status")
    evaluation = status.get("evaluation")
    if evaluation is not None and not isinstance(evaluation, bool):
        raise SchemaError("task_status.evaluation", "must be true, false or null")
    running = label(status.get("running"), "task_status.running")
    config = mapping(decoded(record.get("config"), "config") or {}, "config")
    schemas = schema_texts(record.get("tool_calls"), "tool_calls", "tools")
    chat = messages(decoded(member(record, "messages", "messages"), "messages"), "messages")
    context = notes.content(config.get("task_str"), "config.task_str")
    policy = first_content(chat, "system", "messages", notes)
    found = paired(chat, "messages", notes, "tool_call_id")
    ended_at = len(chat) - 1 if running == "done" else None
    steps = steps_of(found.pairs, NO_TRANSITION, "messages", notes, float(bool(evaluation)), ended_at)
    if steps:
        yield Trajectory(
            id=f"toolathlon/{task}/{run or origin.index}",
            environment="toolathlon",
            initial_state="",
            task_context=context or first_content(chat, "user", "messages", notes),
            steps=steps,
            tool_schemas=schemas,
            domain_rules=(policy,) if policy else (),
            group=f"toolathlon/{task}",
            player=_RUN.sub("", run),
            metadata=notes.metadata(evaluation=evaluation, running=running),
        )


SOURCE = Source(name="toolathlon", licence="unknown", matches=matches, trajectories=trajectories)
