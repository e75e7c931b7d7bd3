"""The original system's ALFWorld rows: a game (`game_file`), what its agent was told, and perhaps what it did.

The rows for reinforcement learning are prompts, without any action: they are refused, so that they are counted. Those
that its script for expert runs writes hold chats; they stop at the winning action, whose answer was not kept.

The action is what follows `Action:`. Of a user's message the observation is what stands between `Observation:` and
the list of admissible commands, both the agent's and not the engine's; of the first message also without the welcome
and the task, as this project's own recordings have it. e0 is what the prompt of the world model tells from
`## INITIAL SCENE` on, the rules are the agent's instructions, also where they were merged into the first user message.
Games on one floor plan, the last number of the game's folder, are one group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskworld.data.schema import Step, Trajectory
from maskworld.data.sources.common.alternating import alternating_turns
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, label, mapping, member, text
from maskworld.data.sources.common.fields import decoded, messages
from maskworld.data.sources.common.text import clean

_GAME = re.compile(r"([^/\\]+)[/\\]([^/\\]+)[/\\][^/\\]*\Z")
_FLOOR_PLAN = re.compile(r"-(\d+)\Z")
_COMMANDS = re.compile(r"\n\nAdmissible commands:(?:\n- .*)*\Z")
_TASK = re.compile(r"\s*Your task is to: (.*)", re.DOTALL)
_WELCOME = re.compile(r"-= Welcome to TextWorld, ALFRED! =-\s*")
_ACTION = re.compile(r"\s*Action:[ \t]*")
_OBSERVATION = "Observation:\n"


def matches(record: Any, path: Path) -> bool:
    """Whether this row has a game's file and messages."""
    return (
        isinstance(record, dict)
        and isinstance(record.get("game_file"), str)
        and isinstance(record.get("messages"), list | str)
    )


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """The row's one trajectory. Raises SchemaError for a row without a transition or with a member of a wrong type."""
    mapping(record, "")
    notes = Notes()
    game = label(member(record, "game_file", "game_file"), "game_file")
    chat = messages(decoded(member(record, "messages", "messages"), "messages"), "messages")
    first = next((index for index, message in enumerate(chat) if message["role"] == "user"), 0)
    turns = alternating_turns(chat, first + 1, "messages", _command, notes)
    said = [notes.content(message.get("content"), "messages") for message in chat[: first + 1]]
    merged, _, shown = said[-1].rpartition(_OBSERVATION)
    instructions = "\n\n".join([*said[:-1], merged]).strip()
    shown = _observation(shown)
    task = _TASK.search(shown)
    known = clean(text(record.get("wm_system_prompt") or "", "wm_system_prompt")).text
    begins = known.find("## INITIAL SCENE")
    folder, trial = _game(game)
    plan = _FLOOR_PLAN.search(folder)
    yield Trajectory(
        id=f"mdlm_alfworld/{clean(origin.path.stem).text}/{folder}/{trial}:{origin.index}",
        environment="alfworld",
        initial_state=known[begins:] if begins >= 0 else known,
        task_context=task.group(1).strip() if task else "",
        steps=tuple(Step(action, _observation(seen)) for action, seen in turns),
        initial_observation=_WELCOME.sub("", _TASK.sub("", shown), count=1),
        domain_rules=(instructions,) if instructions else (),
        group=f"alfworld/floor-plan-{plan.group(1)}" if plan else f"alfworld/{folder}",
        player="expert" if "wm_system_prompt" not in record else "",
        metadata=notes.metadata(
            game=f"{folder}/{trial}",
            split=label(record.get("split"), "split"),
            task_type=label(record.get("task_type"), "task_type"),
        ),
    )


def _command(said: str) -> str:
    return _ACTION.sub("", said, count=1).strip()


def _observation(seen: str) -> str:
    return _COMMANDS.sub("", seen.removeprefix(_OBSERVATION))


def _game(path: str) -> tuple[str, str]:
    """The folder of the game (its task and floor plan) and that of the trial; the path itself where it has no such."""
    found = _GAME.search(path)
    return (found.group(1), found.group(2)) if found else (path, "")


SOURCE = Source(name="mdlm_alfworld", licence="Apache-2.0", matches=matches, trajectories=trajectories)
