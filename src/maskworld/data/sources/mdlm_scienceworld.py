"""The original system's ScienceWorld rows: a task, the prompts of agent and world model, and perhaps a run.

`messages` may be a JSON string. Rows without actions are refused, so that they are counted. Those for LFM begin with a
demonstration, made up and the same in all: the run begins behind it, at the message that states the row's own task.

The world model's prompt is the same whatever the agent was told, so a run that is there in several dialects (plain,
full prompt, with the system prompt merged into the first message) gives equal trajectories: e0 is that prompt's
sections but for the last two, which are the rules; the agent's instructions are left out. Where copies do differ, the
engine listed the things of a room in another order when the prompt was made.

A perfect score (100 points) ends the run. The score stands as the last action's reward. Runs with a score are those of
`create_sft_gpt_agent.py` beside the files, which names the player. A group is a task and variation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskworld.data.schema import Step, Trajectory
from maskworld.data.sources.common.alternating import alternating_turns
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, identifier, label, mapping, member, number
from maskworld.data.sources.common.fields import decoded, messages
from maskworld.data.sources.common.text import clean

PLAYER = "gpt-5.5"
_RULES = re.compile(r"^## (?:ACTION RESPONSES|IMPORTANT RULES)$", re.MULTILINE)
_HEADING = re.compile(r"^(?=## )", re.MULTILINE)
_VARIATION = re.compile(r"_v(\d+)\Z")


def matches(record: Any, path: Path) -> bool:
    """Whether this row's prompt for the world model is about ScienceWorld."""
    if not isinstance(record, dict) or not isinstance(record.get("messages"), list | str):
        return False
    prompt = record.get("wm_system_prompt")
    return "task_id" in record and isinstance(prompt, str) and "ScienceWorld" in prompt[:200]


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """The row's one trajectory. Raises SchemaError for a row without a transition or with a member of a wrong type."""
    mapping(record, "")
    notes = Notes()
    task = label(record.get("instruction"), "instruction")
    name = identifier(member(record, "task_id", "task_id"), "task_id")
    chat = messages(decoded(member(record, "messages", "messages"), "messages"), "messages")
    start = _start(chat, task)
    turns = alternating_turns(chat, start + 1, "messages", str.strip, notes)
    opening = notes.content(chat[start].get("content"), f"messages[{start}].content")
    _, stated, seen = opening.rpartition(_statement(task))
    notes.count("demonstration_messages", sum(message["role"] == "assistant" for message in chat[:start]))
    sections = _HEADING.split(notes.content(record.get("wm_system_prompt"), "wm_system_prompt"))
    score = None if record.get("score") is None else number(record["score"], "score")
    variation = _VARIATION.search(name)
    last = len(turns) - 1
    yield Trajectory(
        id=f"mdlm_scienceworld/{clean(origin.path.stem).text}/{name}:{origin.index}",
        environment="scienceworld",
        initial_state="".join(part for part in sections if not _RULES.match(part)).strip("\n"),
        task_context=task,
        steps=tuple(
            Step(action, shown, reward=(score or 0.0) * (index == last), done=score == 100 and index == last)
            for index, (action, shown) in enumerate(turns)
        ),
        initial_observation=seen if stated else opening,
        domain_rules=tuple(part.strip("\n") for part in sections if _RULES.match(part)),
        group="scienceworld/" + (f"{name[: variation.start()]}/{variation.group(1)}" if variation else name),
        player=PLAYER if score is not None else "",
        metadata=notes.metadata(score=score),
    )


def _start(chat: list[dict[str, Any]], task: str) -> int:
    """Index of the message that states the task: the last one, since a demonstration may stand in front of it."""
    users = [index for index, message in enumerate(chat) if message["role"] == "user"]
    said = {index: chat[index].get("content") for index in users}
    stating = [index for index, words in said.items() if isinstance(words, str) and _statement(task) in words]
    return (stating or users[:1] or [0])[-1]


def _statement(task: str) -> str:
    """How the message that begins a run goes on behind `Task` or `NEW TASK`."""
    return f": {task}\n\nYou are in: "


SOURCE = Source(name="mdlm_scienceworld", licence="Apache-2.0", matches=matches, trajectories=trajectories)
