"""tau-bench: airline and retail customer service, one record a run (an entry of the file's array).

Tool schemas and the database are not in the file. A step is never `done`: only the user's stop message or a
transfer to a human ends an episode, and neither is a transition; a run whose last message answers another tool was
cut at the step limit. The reward of the run stands at its last step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskworld.data.schema import SchemaError, Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, identifier, mapping, member, number
from maskworld.data.sources.common.fields import first_content, messages, paired, steps_of
from maskworld.data.sources.common.text import clean

NO_TRANSITION = frozenset({"think", "calculate", "transfer_to_human_agents"})
_DOMAIN = re.compile(r"-(airline|retail)(?=[-_.]|$)")


def matches(record: Any, path: Path) -> bool:
    """Whether this is a run (`task_id`, `traj` and `reward` together), or an example that is shown to a model."""
    if not isinstance(record, dict):
        return False
    run = {"task_id", "reward"} <= record.keys() and isinstance(record.get("traj"), list)
    return run or record.keys() == {"messages_display"}


def accompanies(path: Path) -> bool:
    """The policy of a domain."""
    return path.name == "wiki.md" and "envs" in path.parts


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """The run, unless it holds no transition. Raises SchemaError for a broken record."""
    mapping(record, "")
    if record.keys() == {"messages_display"}:
        raise SchemaError("messages_display", "shows what was said and answered but not the calls")
    notes = Notes()
    stem = clean(origin.path.stem).text
    domain = _DOMAIN.search(stem)
    environment = f"tau_bench/{domain.group(1)}" if domain else "tau_bench"
    task = identifier(record.get("task_id"), "task_id") or origin.identity
    trial = identifier(record.get("trial"), "trial")
    reward = number(member(record, "reward", "reward"), "reward")
    info = mapping(record.get("info") or {}, "info")
    task_info = mapping(info.get("task") or {}, "info.task")
    chat = messages(member(record, "traj", "traj"), "traj")
    instruction = notes.content(task_info.get("instruction"), "info.task.instruction")
    context = instruction or first_content(chat, "user", "traj", notes)
    policy = first_content(chat, "system", "traj", notes)
    found = paired(chat, "traj", notes, "tool_call_id")
    steps = steps_of(found.pairs, NO_TRANSITION, "traj", notes, reward, ended_at=None)
    if steps:
        yield Trajectory(
            id=clean(f"{environment}/task-{task}/trial-{trial or origin.index}").text,
            environment=environment,
            initial_state="",
            task_context=context,
            steps=steps,
            domain_rules=(policy,) if policy else (),
            group=clean(f"{environment}/task-{task}").text,
            player=stem[: domain.start()] if domain else "",
            metadata=notes.metadata(trial=trial),
        )


SOURCE = Source(name="tau_bench", licence="MIT", matches=matches, trajectories=trajectories, accompanies=accompanies)
