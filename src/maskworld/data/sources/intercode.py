"""InterCode results: SQL, bash, capture-the-flag and Python episodes, by models and by people.

A file is one object of episodes under their indices; a single episode is read too. Two layouts of an episode:

- of models: `turn_history` with the parallel lists `actions`, `observations`, `rewards` (and `thoughts`, left out);
- of people: `trajectory` with a list of action and observation, and one `reward`.

Observations are text, also where they look like a Python value: models saw lists of tuples, people saw the tuples one
after another without brackets, and bytes, Decimal and datetime stand among them.

Actions are kept literally, `execute[...]`, `submit` and `skip` among them. `submit` is a transition: SQL answers it
with the previous result, capture-the-flag says whether the flag was right. `skip` (the harness found no action in
what the model wrote) is answered by the environment as well, and changes nothing.

Rewards are grades, each given in its turn: they fall again inside episodes, so they are no running sums. SQL, Python
and capture-the-flag grade what the turn itself returned, defined or submitted: that is the step's reward. Bash grades
the file system all actions so far have left, so that no action's own part is known: its grades are in the metadata
as `turn_scores`. A person's only grade is that of the last query.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskworld.data.schema import SchemaError, Step, Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, array, identifier, label, mapping, member, number
from maskworld.data.sources.common.text import clean

_PLAYER = re.compile(r"(?:^|_)(gpt-[0-9][0-9.a-z-]*|human|palm|vicuna[^_]*|starchat[^_]*|[a-z]+-bison[^_]*)(?=_|$)")


def matches(record: Any, path: Path) -> bool:
    """Whether this is an episode, or an object of which the first member is one."""
    if not isinstance(record, dict):
        return False
    if _is_episode(record):
        return True
    return bool(record) and _is_episode(next(iter(record.values())))


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory | SchemaError]:
    """One trajectory, or the error of a broken one, for each episode."""
    mapping(record, "")
    if _is_episode(record):
        yield from _episode(record, "", "", origin)
        return
    for key, entry in record.items():
        key = clean(key).text
        try:
            yield from _episode(mapping(entry, key), f"{key}.", key, origin)
        except SchemaError as error:
            yield error


def _is_episode(record: Any) -> bool:
    if not isinstance(record, dict):
        return False
    human = isinstance(record.get("trajectory"), list) and "query_idx" in record
    return human or isinstance(record.get("turn_history"), dict)


def _episode(record: dict[str, Any], at: str, key: str, origin: Origin) -> Iterator[Trajectory]:
    notes = Notes()
    task = identifier(record.get("task_id"), f"{at}task_id") or identifier(record.get("query_idx"), f"{at}query_idx")
    kind = label(record.get("environment"), f"{at}environment").removeprefix("ic_")
    environment = f"intercode/{kind}" if kind else "intercode"
    query = notes.content(record.get("query"), f"{at}query")
    known: dict[str, Any] = {
        "task_id": task,
        "dataset": label(record.get("dataset"), f"{at}dataset"),
        "hardness": label(record.get("hardness"), f"{at}hardness"),
    }
    if "turn_history" in record:
        history = mapping(record["turn_history"], f"{at}turn_history")
        turns, scores = _turns_of_model(history, f"{at}turn_history", notes)
        answered = bool(turns) and len(turns) == len(history["actions"])
        ended = answered and (scores[-1] == 1 or turns[-1][0].strip() == "submit")
        known["max_reward"] = max(scores, default=None)
        if kind == "bash":
            known["turn_scores"], scores = scores, [0.0] * len(turns)
    else:
        turns = _turns_of_person(array(member(record, "trajectory", f"{at}trajectory"), f"{at}trajectory"), at, notes)
        final = record.get("reward")
        scores = [0.0] * len(turns)
        if turns and final is not None:
            scores[-1] = number(final, f"{at}reward")
        ended = bool(turns) and final is not None
    last = len(turns) - 1
    steps = []
    for index, ((action, observation), score) in enumerate(zip(turns, scores, strict=True)):
        if action.strip():
            steps.append(Step(action, observation, reward=score, done=ended and index == last))
        else:
            notes.count("empty_actions")
    if steps:
        yield Trajectory(
            id=f"{environment}/{clean(origin.path.stem).text}/{key or task or origin.index}",
            environment=environment,
            initial_state="",
            task_context=query,
            steps=tuple(steps),
            # The question and not its index: files index different sets of questions.
            group=f"{environment}/{query or task}",
            player=_player(origin.path),
            metadata=notes.metadata(**known),
        )


def _turns_of_model(history: dict[str, Any], at: str, notes: Notes) -> tuple[list[tuple[str, str]], list[float]]:
    lists = {name: array(member(history, name, f"{at}.{name}"), f"{at}.{name}") for name in _LISTS}
    actions, observations, rewards = (lists[name] for name in _LISTS)
    unanswered = len(actions) - len(observations)
    if unanswered not in (0, 1):
        raise SchemaError(f"{at}.observations", f"has {len(observations)} entries for {len(actions)} actions")
    if len(rewards) not in (len(actions), len(observations)):
        raise SchemaError(f"{at}.rewards", f"has {len(rewards)} entries for {len(actions)} actions")
    notes.count("unanswered_actions", unanswered)
    turns = [
        (
            notes.command(actions[index], f"{at}.actions[{index}]"),
            notes.observation(observations[index], f"{at}.observations[{index}]"),
        )
        for index in range(len(observations))
    ]
    return turns, [number(rewards[index], f"{at}.rewards[{index}]") for index in range(len(turns))]


def _turns_of_person(entries: list[Any], at: str, notes: Notes) -> list[tuple[str, str]]:
    return [notes.turn(entry, f"{at}trajectory[{index}]") for index, entry in enumerate(entries)]


def _player(path: Path) -> str:
    """The model the file's name speaks of, or else the folder's."""
    for name in (path.stem, path.parent.name):
        found = _PLAYER.search(name)
        if found:
            return found.group(1)
    return ""


_LISTS = ("actions", "observations", "rewards")
SOURCE = Source(name="intercode", licence="MIT", matches=matches, trajectories=trajectories)
