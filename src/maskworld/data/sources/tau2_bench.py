"""tau2-bench: customer service where the user may call tools too; a whole results.json is one record.

Calls of the user are left out and counted. The reward of a simulation stands at its last step. That step is `done`
only where its answer is the last message and a party stopped, rather than a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskworld.data.schema import SchemaError, Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, array, identifier, label, mapping, member, number
from maskworld.data.sources.common.fields import compact, first_content, messages, paired, steps_of
from maskworld.data.sources.common.text import clean

NO_TRANSITION = frozenset({"think", "calculate", "transfer_to_human_agents"})
_STOPS = frozenset({"user_stop", "agent_stop"})


def matches(record: Any, path: Path) -> bool:
    """Whether this is a results file: `info`, `tasks` and a list of `simulations`."""
    return (
        isinstance(record, dict) and {"info", "tasks"} <= record.keys() and isinstance(record.get("simulations"), list)
    )


def accompanies(path: Path) -> bool:
    """Policies, tasks and databases of a domain."""
    return path.parent.parent.name == "domains" and path.suffix in (".md", ".json", ".toml")


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory | SchemaError]:
    """One trajectory, or the error of a broken one, for each simulation that holds a transition."""
    mapping(record, "")
    info = mapping(record.get("info") or {}, "info")
    world = mapping(info.get("environment_info") or {}, "info.environment_info")
    agent = mapping(info.get("agent_info") or {}, "info.agent_info")
    domain = label(world.get("domain_name"), "info.environment_info.domain_name")
    player = label(agent.get("llm"), "info.agent_info.llm")
    environment = f"tau2_bench/{domain}" if domain else "tau2_bench"
    schemas = array(world.get("tool_defs") or [], "info.environment_info.tool_defs")
    tools = tuple(
        clean(compact(entry, f"info.environment_info.tool_defs[{i}]")).text for i, entry in enumerate(schemas)
    )
    simulations = array(member(record, "simulations", "simulations"), "simulations")
    instructions = _instructions(record.get("tasks"))
    for index, entry in enumerate(simulations):
        at = f"simulations[{index}]"
        try:
            one = mapping(entry, at)
            notes = Notes()
            task = identifier(one.get("task_id"), f"{at}.task_id") or clean(origin.identity).text
            own = identifier(one.get("id"), f"{at}.id")
            grade = mapping(one.get("reward_info") or {}, f"{at}.reward_info").get("reward")
            reward = 0.0 if grade is None else number(grade, f"{at}.reward_info.reward")
            reason = label(one.get("termination_reason"), f"{at}.termination_reason")
            chat = messages(member(one, "messages", f"{at}.messages"), f"{at}.messages")
            policy = notes.content(one.get("policy") or world.get("policy"), f"{at}.policy")
            context = instructions.get(task) or first_content(chat, "user", f"{at}.messages", notes)
            found = paired(chat, f"{at}.messages", notes, "id")
            ended_at = len(chat) - 1 if reason in _STOPS else None
            steps = steps_of(found.pairs, NO_TRANSITION, f"{at}.messages", notes, reward, ended_at)
            trial = identifier(one.get("trial"), f"{at}.trial")
        except SchemaError as error:
            yield error
            continue
        if steps:
            yield Trajectory(
                id=f"{environment}/task-{task}/trial-{trial}/{own or index}",
                environment=environment,
                initial_state="",
                task_context=context,
                steps=steps,
                tool_schemas=tools,
                domain_rules=(policy,) if policy else (),
                group=f"{environment}/task-{task}",
                player=player,
                metadata=notes.metadata(termination_reason=reason, trial=trial),
            )


def _instructions(tasks: Any) -> dict[str, str]:
    """What the user was told, by task: the texts of a scenario's instructions, which are one text or several."""
    found = {}
    for index, entry in enumerate(array(tasks or [], "tasks")):
        at = f"tasks[{index}]"
        task = identifier(mapping(entry, at).get("id"), f"{at}.id")
        at = f"{at}.user_scenario"
        told = mapping(entry.get("user_scenario") or {}, at).get("instructions") or ""
        at = f"{at}.instructions"
        if isinstance(told, str):
            found[task] = label(told, at)
        else:
            texts = [label(value, f"{at}.{name}") for name, value in mapping(told, at).items() if name != "domain"]
            found[task] = "\n".join(text for text in texts if text)
    return found


SOURCE = Source(name="tau2_bench", licence="MIT", matches=matches, trajectories=trajectories, accompanies=accompanies)
