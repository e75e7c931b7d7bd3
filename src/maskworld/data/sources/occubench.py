"""OccuBench: tasks and the environments they are set in. Tasks only: no run of an agent is released.

Its environments are language models that play a professional system, so there is no engine that could tell what is
true; what a stronger model would answer has to be generated. A task is therefore recognised and refused with its
reason, and `world_task` reads it with its configuration (`world_model_configs/ENV.json`) into what such a run starts
from. The plan by which a judge verifies the outcome is left out: it holds the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskworld.data.schema import SchemaError, Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.beside import json_beside
from maskworld.data.sources.common.checks import array, identifier, mapping, member, text
from maskworld.data.sources.common.fields import compact
from maskworld.data.sources.common.text import clean

_TASK = {"task_id", "env_name", "task_scenario_name", "agent_instruction"}
_CONFIG = "world_model_configs"
_REPEATED = re.compile(r"\n\{\{initial_state\}\}: .*\Z", re.DOTALL)


@dataclass(frozen=True)
class WorldTask:
    """A task and its environment, as far as both are known before the first action."""

    id: str
    environment: str
    """`occubench/` and the scenario."""
    group: str
    initial_state: str
    """e0 as one line of JSON."""
    task_context: str
    tool_schemas: tuple[str, ...]
    domain_rules: tuple[str, ...]
    """How the environment behaves, in the words of its prompt, and what the members of its state mean."""


def matches(record: Any, path: Path) -> bool:
    """Whether this is a task."""
    return isinstance(record, dict) and record.keys() >= _TASK


def accompanies(path: Path) -> bool:
    """The configurations of the environments."""
    return path.parent.name == _CONFIG


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory | SchemaError]:
    """For every task the error that says that there is none."""
    mapping(record, "")
    yield SchemaError("", "holds a task but no trajectory: OccuBench releases tasks only")


def config_beside(record: Any, path: Path) -> Any:
    """The configuration of a task's environment, from the folder beside the file of tasks; None where there is none."""
    name = text(member(mapping(record, ""), "env_name", "env_name"), "env_name")
    return json_beside(path, f"{_CONFIG}/{name}.json") if re.fullmatch(r"\w+", name) else None


def world_task(record: Any, config: Any) -> WorldTask:
    """A task with the configuration of its environment. Raises SchemaError with the member's path, which begins with
    `config.` where it is the configuration's.

    The prompt ends with e0, the meaning of its members and the tools once more; that end is cut off, its place in the
    prompt, `{{initial_state}}` and the like, stays.
    """
    task, world = mapping(record, ""), mapping(config, "config")
    scenario = clean(text(member(task, "task_scenario_name", "task_scenario_name"), "task_scenario_name")).text
    name = clean(text(member(task, "env_name", "env_name"), "env_name")).text
    prompt = text(member(world, "world_model_system_prompt", "config.world_model_system_prompt"), "config")
    actions = array(member(world, "action_set_definitions", "config.action_set_definitions"), "config")
    meaning = world.get("state_description")
    described = "" if not meaning else "Members of the state: " + compact(meaning, "config.state_description")
    state = compact(member(world, "task_initial_state", "config.task_initial_state"), "config.task_initial_state")
    return WorldTask(
        id=f"occubench/{identifier(task.get('task_id'), 'task_id')}",
        environment=f"occubench/{scenario}",
        group=f"occubench/{name}",
        initial_state=clean(state).text,
        task_context=clean(text(task.get("agent_instruction"), "agent_instruction")).text,
        tool_schemas=tuple(
            clean(compact(action, f"config.action_set_definitions[{index}]")).text
            for index, action in enumerate(actions)
        ),
        domain_rules=tuple(clean(rule).text for rule in (_REPEATED.sub("", prompt), described) if rule),
    )


SOURCE = Source(
    name="occubench", licence="Apache-2.0", matches=matches, trajectories=trajectories, accompanies=accompanies
)
