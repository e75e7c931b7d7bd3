"""The original system's AppWorld rows: a task on the data of several apps, and perhaps the calls that solved it.

`messages` may be a JSON string. Rows without calls are refused, so that they are counted. A call is the only text of
an assistant's message, `[{"name": ..., "parameters": {...}}]`, and its answer the user message that follows, between
`<tool_response>` tags. An answer is kept as the API gave it: JSON, often with JSON inside, whose `\\uXXXX` are escapes
of that inner text and stay. Where answers have tags, a message without is the harness asking for a call; it and the
text before it are no transition, counted as `format_errors`. The call that ends a task is not answered.

e0 is the prompt of the world model (credentials and records), where the row has it. T is the agent's list of tools, R
the rest of its instructions, also where they were merged into the first user message. Tasks of one scenario, whose ids
differ in the number at the end, are one group. Rows without the members for reinforcement learning are those of
`create_sft_gpt_agent.py` beside the files, which names the player.

AppWorld's authors ask not to publish its data as plain text: no real row stands in this repository.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskworld.data.schema import Step, Trajectory
from maskworld.data.sources.common.alternating import alternating_turns
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, identifier, label, mapping, member
from maskworld.data.sources.common.fields import decoded, messages
from maskworld.data.sources.common.text import clean
from maskworld.data.sources.common.written_calls import action_of
from maskworld.data.state_text import unwrapped

PLAYER = "gpt-5.4"
_MARKS = ("AppWorld", "supervisor__")
_TOOLS = "\n\nAvailable tools:\n"


def matches(record: Any, path: Path) -> bool:
    """Whether this row has a task's id and instruction, and its prompts name AppWorld or the app that all tasks use."""
    if not isinstance(record, dict) or not {"messages", "task_id", "instruction"} <= record.keys():
        return False
    chat, prompt = record["messages"], record.get("wm_system_prompt")
    said = [m.get("content") for m in chat[:3] if isinstance(m, dict)] if isinstance(chat, list) else [chat]
    texts = [text for text in (prompt, *said) if isinstance(text, str)]
    return "game_file" not in record and any(mark in text for text in texts for mark in _MARKS)


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """The row's one trajectory. Raises SchemaError for a row without a transition or with a member of a wrong type."""
    mapping(record, "")
    notes = Notes()
    task = label(record.get("instruction"), "instruction")
    name = identifier(member(record, "task_id", "task_id"), "task_id")
    chat = messages(decoded(member(record, "messages", "messages"), "messages"), "messages")
    first = next((index for index, message in enumerate(chat) if message["role"] == "user"), 0)
    steps = _steps(alternating_turns(chat, first + 1, "messages", str.strip, notes), notes)
    said = [notes.content(message.get("content"), "messages") for message in chat[: first + 1]]
    if task and said[-1].endswith(task):
        said[-1] = said[-1].removesuffix(task)
    instructions, _, tools = "\n\n".join(text for text in said if text.strip()).strip().partition(_TOOLS)
    scenario, variant, number = name.rpartition("_")
    yield Trajectory(
        id=f"mdlm_appworld/{clean(origin.path.stem).text}/{name}:{origin.index}",
        environment="appworld",
        initial_state=notes.content(record.get("wm_system_prompt"), "wm_system_prompt"),
        task_context=task,
        steps=steps,
        tool_schemas=tuple(line.removeprefix("- ") for line in tools.split("\n") if line.strip()),
        domain_rules=(instructions,) if instructions else (),
        group=f"appworld/{scenario if variant and number.isdigit() else name}",
        player="" if "max_turns" in record else PLAYER,
        metadata=notes.metadata(),
    )


def _steps(turns: list[tuple[str, str]], notes: Notes) -> tuple[Step, ...]:
    answers = [unwrapped(shown) for _, shown in turns]
    tagged = [answer != shown for answer, (_, shown) in zip(answers, turns, strict=True)]
    kept = [not any(tagged) or has_tags for has_tags in tagged]
    notes.count("format_errors", kept.count(False))
    return tuple(
        Step(action_of(action), answer) for (action, _), answer, keep in zip(turns, answers, kept, strict=True) if keep
    )


SOURCE = Source(name="mdlm_appworld", licence="Apache-2.0", matches=matches, trajectories=trajectories)
