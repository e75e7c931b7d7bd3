"""The few-shot transcripts of ReAct for ALFWorld: one JSON object of texts, `act_...` and `react_...` of each example.

A text opens with the room and `Your task is to: ...`; each line `> command` is answered by the lines up to the next. A
command `think: ...` is answered `OK.` by the harness, not by the engine: no transition, counted as `thoughts`. The
engine never answers with nothing: where a copy lost the answer it is no transition, counted as `lost_observations`. The
two transcripts of an example are the same run, with thoughts and without, and one group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskworld.data.schema import SchemaError, Step, Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, mapping
from maskworld.data.sources.common.text import clean

_NAME = re.compile(r"(?:re)?act_(\w+_\d+)")
_COMMAND = re.compile(r"^> ?", re.MULTILINE)
_TASK = re.compile(r"\s*^Your task is to: (.*)", re.MULTILINE)


def matches(record: Any, path: Path) -> bool:
    """Whether this object holds nothing but texts under such names."""
    if not isinstance(record, dict) or not record:
        return False
    return all(_NAME.fullmatch(name) is not None and isinstance(text, str) for name, text in record.items())


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory | SchemaError]:
    """One trajectory, or the error of a broken one, for each transcript with a transition."""
    for name, transcript in mapping(record, "").items():
        try:
            found = _trajectory(name, transcript)
        except SchemaError as error:
            yield error
            continue
        if found is not None:
            yield found


def _trajectory(name: str, transcript: Any) -> Trajectory | None:
    notes = Notes()
    opening, *turns = _COMMAND.split(notes.command(transcript, clean(name).text))
    steps = []
    for turn in turns:
        command, answered, answer = turn.partition("\n")
        if command.startswith("think:"):
            notes.count("thoughts")
        elif not command.strip():
            notes.count("empty_actions")
        elif not answer:
            notes.count("lost_observations" if answered else "unanswered_actions")
        else:
            steps.append(Step(command.strip(), answer.removesuffix("\n")))
    if not steps:
        return None
    task = _TASK.search(opening)
    example = _NAME.fullmatch(name)
    return Trajectory(
        id=f"alfworld_react/{clean(name).text}",
        environment="alfworld",
        initial_state="",
        task_context=task.group(1) if task else "",
        steps=tuple(steps),
        initial_observation=opening[: task.start() if task else len(opening)].strip("\n"),
        group=f"alfworld_react/{example.group(1) if example else clean(name).text}",
        metadata=notes.metadata(),
    )


SOURCE = Source(name="alfworld_react", licence="MIT", matches=matches, trajectories=trajectories)
