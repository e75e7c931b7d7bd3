"""Episodes recorded from real engines (ALFWorld, BabyAI, ScienceWorld, TextWorld, TextWorldExpress).

A record is an episode: `env`, `task`, `source` (who played), `goal` and `steps`, each of which holds what was seen
BEFORE its action, and the reward of that action. So the answer to an action is the `obs` of the next step, and the last
step, whose action is null, holds the last answer. Where the engine tells facts, those of the beginning are e0 and each
step has its changes; BabyAI tells grid and position, the others only what the agent carries. What can be done is told
for each step anew; where that never changes, it is T.

Episodes of one game are one group: task and variation, or task and seed with the settings that it was made from.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskworld.data.schema import SchemaError, Step, Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, array, identifier, label, mapping, member, number
from maskworld.data.sources.common.fields import compact
from maskworld.data.sources.common.text import clean

_MEMBERS = {"env", "task", "source", "goal", "steps"}


def matches(record: Any, path: Path) -> bool:
    """Whether this is an episode whose steps hold observation and action."""
    if not isinstance(record, dict) or not record.keys() >= _MEMBERS or not isinstance(record["steps"], list):
        return False
    first = record["steps"][0] if record["steps"] else None
    return isinstance(first, dict) and {"t", "obs", "action", "reward"} <= first.keys()


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """The episode's one trajectory; nothing without an action. Raises SchemaError for a member of a wrong type."""
    mapping(record, "")
    notes = Notes()
    environment = label(member(record, "env", "env"), "env")
    if not environment.strip():
        raise SchemaError("env", "must not be empty")
    player = label(record.get("source"), "source")
    turns = [mapping(turn, f"steps[{i}]") for i, turn in enumerate(array(member(record, "steps", "steps"), "steps"))]
    steps = _steps(turns, notes)
    if not steps:
        return
    game = f"{environment}/{_game(record)}"
    yield Trajectory(
        id=f"{game}/{player}/{clean(origin.identity).text}",
        environment=environment,
        initial_state=_initial_state(record, turns[0], notes),
        task_context=notes.content(record.get("goal"), "goal"),
        steps=steps,
        initial_observation=notes.content(member(turns[0], "obs", "steps[0].obs"), "steps[0].obs"),
        tool_schemas=_constant_commands(turns),
        group=game,
        player=player,
        metadata=notes.metadata(
            won=_flag(record["won"], "won") if "won" in record else None,
            final_score=number(record["final_score"], "final_score") if "final_score" in record else None,
            simplification=label(record.get("simplification"), "simplification"),
        ),
    )


def _game(record: dict[str, Any]) -> str:
    """What names the game: task and variation, or task, seed, origin and settings."""
    task = label(record.get("task"), "task")
    if "variation" in record:
        return f"{task}/{identifier(record['variation'], 'variation')}"
    settings = record.get("settings") or ""
    if not isinstance(settings, str):
        settings = clean(compact(settings, "settings")).text
    parts = [task, identifier(record.get("seed"), "seed"), label(record.get("origin"), "origin"), clean(settings).text]
    return "/".join(part for part in parts if part)


def _steps(turns: list[dict[str, Any]], notes: Notes) -> tuple[Step, ...]:
    """Each action with the observation of the next entry; a last action, which nothing follows, is counted."""
    steps = []
    for index, (turn, after) in enumerate(zip(turns, turns[1:], strict=False)):
        here = f"steps[{index}]"
        action = notes.command(member(turn, "action", f"{here}.action"), f"{here}.action")
        seen = notes.observation(member(after, "obs", f"steps[{index + 1}].obs"), f"steps[{index + 1}].obs")
        if not action.strip():
            raise SchemaError(f"{here}.action", "must not be empty")
        steps.append(
            Step(
                action,
                seen,
                reward=number(turn.get("reward", 0), f"{here}.reward"),
                done=_flag(turn.get("done", False), f"{here}.done") and index == len(turns) - 2,
                facts_added=_facts(turn.get("facts_add"), f"{here}.facts_add"),
                facts_deleted=_facts(turn.get("facts_del"), f"{here}.facts_del"),
            )
        )
    notes.count("unanswered_actions", bool(turns) and turns[-1].get("action") is not None)
    return tuple(steps)


def _initial_state(record: dict[str, Any], first: dict[str, Any], notes: Notes) -> str:
    """The engine's facts, a line each; or the grid and where the agent stands in it; or what the agent carries."""
    facts = _facts(record.get("init_facts"), "init_facts")
    grid = notes.content(record.get("init_grid"), "init_grid")
    stands = compact(first["state"], "steps[0].state") if "state" in first else ""
    if facts or grid or stands:
        return "\n".join(part for part in (*facts, grid, clean(stands).text) if part)
    return notes.content(first.get("inv") or first.get("inventory"), "steps[0].inventory")


def _constant_commands(turns: list[dict[str, Any]]) -> tuple[str, ...]:
    """What can be done, where each step tells the same."""
    told = [turn.get("admissible") for turn in turns]
    return _facts(told[0], "steps[0].admissible") if all(one == told[0] for one in told) else ()


def _facts(value: Any, path: str) -> tuple[str, ...]:
    return tuple(label(entry, f"{path}[{index}]") for index, entry in enumerate(array(value or [], path)))


def _flag(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise SchemaError(path, "must be true or false")
    return value


SOURCE = Source(name="engine_recording", licence="Apache-2.0", matches=matches, trajectories=trajectories)
