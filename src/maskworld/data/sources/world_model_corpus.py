"""Rows of the released world-model corpus: `dataset`, and three messages (`data/state_text.py`) for one transition.

A row holds its whole history in State, so one row is one trajectory: the pairs found in State, then the row's own
action and observation. Two rows of one run share their first steps, whichever of them is longer.

- An action that is one tool call, as JSON or in a message's `tool_calls`, is written in the one form that all sources
  give calls (`common/written_calls.py`), in State and behind `Action:` alike.
- A `tool` message is a result, and so is a `user` message that is nothing but a `<tool_response>`; the tags go. A text
  is answered by the message right behind it. Where State has no result and the action is no call, the environment
  spoke as `user` (a web shop, a game), and its turns are results too.
- The first message behind system prompts, if a user's, is the initial observation. Other messages (the words of users,
  calls without an answer, results without a call) are counted, and stand with their positions in
  `metadata["unpaired"]`, so that no message of State is lost. A State that is no array of messages is the initial
  observation as it stands. What an agent says beside its calls is left out, as in all sources.
- The directives of a released row were written for its one action: they are the last step's. So may be e0 and the
  context, which can then hold what earlier steps answered: those are history (`history_steps`), never targets.

Rows that this project rendered are read exactly, letter by letter, and all their steps may be targets. Rows whose first
action and its answer are equal are one group: they may be of one run, whatever else differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from maskworld.data.schema import SchemaError, Step, Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, array, content, label, mapping, member
from maskworld.data.sources.common.fields import compact, tool_call
from maskworld.data.sources.common.pairing import Call, Result, action_text, pair
from maskworld.data.sources.common.text import clean, content_text
from maskworld.data.sources.common.written_calls import action_of
from maskworld.data.state_text import ROLES, Transition, has_sections, parse_corpus_messages, unwrapped

_RESULTS = {"tool", "function"}
_CALL_BEGINS = ("{", "[", "<tool_call>")
_STATE = "messages[1].content.State"


class _Turn(NamedTuple):
    action: str
    observation: str
    failed: bool | None


def matches(record: Any, path: Path) -> bool:
    """Whether these are three messages of the corpus's roles, with two of its sections or the name of its data set."""
    if not isinstance(record, dict) or not isinstance(record.get("messages"), list):
        return False
    chat = record["messages"]
    if [m.get("role") if isinstance(m, dict) else None for m in chat] != [*ROLES]:
        return False
    try:
        system, asked, _ = (content_text(message.get("content")).text for message in chat)
    except ValueError:
        return False
    return has_sections(system) or (asked.lstrip().startswith("State:") and isinstance(record.get("dataset"), str))


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """The row's one trajectory. Raises SchemaError for a row that is no three messages, or has no action."""
    mapping(record, "")
    dataset = label(record.get("dataset"), "dataset")
    notes = Notes()
    row = _row(member(record, "messages", "messages"))
    read = str if row.rendered_here else action_of
    opening, history, unpaired = _history(row, read, notes)
    if row.state_text:
        opening = notes.content(row.state_text, _STATE)
        notes.count("unread_states")
    action = notes.command(read(row.action), "messages[1].content.Action")
    if not action.strip():
        raise SchemaError("messages[1].content.Action", "must not be empty")
    observation = notes.observation(row.observation, "messages[2].content")
    ours = row.rendered_here
    now = row.step_directives if ours else row.directives
    steps = [Step(turn.action, turn.observation, failed=turn.failed) for turn in history]
    steps.append(Step(action, observation, directives=_texts(now, notes)))
    context = notes.content(row.task_context, "messages[0].content")
    e0 = notes.content(row.initial_state, "messages[0].content")
    name = clean(dataset or origin.path.name.partition(".")[0]).text
    yield Trajectory(
        id=f"world_model_corpus/{name}/{clean(origin.identity).text}",
        environment=name,
        initial_state=e0,
        task_context=context,
        steps=tuple(steps),
        initial_observation=opening,
        tool_schemas=_texts(row.tool_schemas, notes),
        domain_rules=_texts(row.domain_rules, notes),
        directives=_texts(row.directives, notes) if ours else (),
        history_steps=0 if ours else len(steps) - 1,
        # The rows of a run may differ in all but their turns; the first is in each of them.
        group=f"{name}/{_digest(steps[0].action + chr(0) + steps[0].observation)}",
        metadata=notes.metadata(
            unpaired=clean(compact(unpaired, _STATE)).text if unpaired else None,
            computed_query_state=clean(row.computed_query_state).text,
            preamble=clean(row.preamble).text,
            prediction_target=None if ours else clean(row.prediction_target).text,
        ),
    )


def _row(messages: Any) -> Transition:
    """The transition, also where a content is a list of parts."""
    chat = array(messages, "messages")[: len(ROLES) + 1]
    for index, message in enumerate(chat):
        if isinstance(message, dict) and isinstance(message.get("content"), list):
            chat[index] = message | {"content": content(message["content"], f"messages[{index}].content").text}
    return parse_corpus_messages(chat)


def _history(row: Transition, read: Callable[[str], str], notes: Notes) -> tuple[str, list[_Turn], list[Any]]:
    """First message, turns, and [position, message] of what is in neither."""
    chat = [mapping(message, f"{_STATE}[{index}]") for index, message in enumerate(row.state)]
    opening = ""
    ours = row.rendered_here
    answers = {index for index, message in enumerate(chat) if _is_result(message, ours)}
    first = next((index for index, message in enumerate(chat) if message["role"] != "system"), 0)
    opened = bool(chat) and chat[first]["role"] == "user" and first not in answers
    if opened:
        opening = notes.content(chat[first].get("content"), f"{_STATE}[{first}].content")
    if not answers and not ours and not row.action.lstrip().startswith(_CALL_BEGINS):
        answers = {i for i, message in enumerate(chat) if message["role"] == "user" and i > first}
    events, places = _events(chat, answers, read, ours, notes)
    found = pair(events)
    notes.count("unpaired_calls", found.unpaired_calls)
    notes.count("orphan_results", found.orphan_results)
    used = {id(part) for one in found.pairs for part in one}
    kept = {place for event, place in zip(events, places, strict=True) if id(event) in used} | (
        {first} if opened else set()
    )
    rest = [[index, message] for index, message in enumerate(chat) if index not in kept]
    notes.count("user_turns", sum(message["role"] == "user" and index not in answers for index, message in rest))
    turns = [_Turn(_action(call, notes), result.text, result.failed) for call, result in found.pairs]
    return opening, turns, rest


def _is_result(message: dict[str, Any], exact: bool) -> bool:
    said = message.get("content")
    tagged = message["role"] == "user" and isinstance(said, str) and unwrapped(said) != said
    return message["role"] in _RESULTS or (tagged and not exact)


def _events(
    chat: list[dict[str, Any]], answers: set[int], read: Callable[[str], str], exact: bool, notes: Notes
) -> tuple[list[Call | Result], list[int]]:
    """Calls and results in order, and the index of each one's message.

    A text that the next message answers is a call too; the two get an id of their own.
    """
    events: list[Call | Result] = []
    places: list[int] = []
    own_id = ""
    for index, message in enumerate(chat):
        here = f"{_STATE}[{index}]"
        if index in answers:
            shown = notes.observation(member(message, "content", f"{here}.content"), f"{here}.content")
            failed = message.get("error")
            known = own_id or label(message.get("tool_call_id"), f"{here}.tool_call_id")
            text = shown if exact else unwrapped(shown)
            made: list[Call | Result] = [Result(known, text, index, failed if isinstance(failed, bool) else None)]
            own_id = ""
        elif message["role"] != "assistant":
            continue
        elif message.get("tool_calls"):
            calls = array(message["tool_calls"], f"{here}.tool_calls")
            made = [tool_call(entry, f"{here}.tool_calls[{number}]", notes) for number, entry in enumerate(calls)]
        else:
            said = read(content(message.get("content"), f"{here}.content").text)
            if index + 1 not in answers or not said.strip():
                continue
            own_id = f"text {index}"
            made = [Call(own_id, "", notes.content(said, f"{here}.content"))]
        events += made
        places += [index] * len(made)
    return events, places


def _action(call: Call, notes: Notes) -> str:
    if not call.name:
        return str(call.arguments)
    try:
        return notes.content(action_text(call.name, call.arguments), _STATE)
    except ValueError as error:
        raise SchemaError(_STATE, f"the arguments of {call.name[:80]!r} are no JSON ({error})") from error


def _texts(entries: tuple[str, ...], notes: Notes) -> tuple[str, ...]:
    return tuple(notes.content(entry, "messages[0].content") for entry in entries)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


SOURCE = Source(name="world_model_corpus", licence="MIT", matches=matches, trajectories=trajectories)
