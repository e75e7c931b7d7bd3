"""Chats in which a user speaks more than once: where the user's texts stand in a trajectory.

What the user said before the first call is the task's context. A later text is known only from then on, so it stands
in front of the first call that follows it, in that step's action:

    User: Now sort the file by line.
    {"name":"sort","arguments":{"file_name":"report.txt"}}

A call is one line of JSON, hence always the last line of its action; a call that could not be read stands there in its
own words. What the user said after the last answered call caused nothing and is left out, counted as
`unanswered_requests`. What the model says to the user is left out too: its decisions are its calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from maskworld.data.schema import SchemaError, Step
from maskworld.data.sources.common.checks import Notes
from maskworld.data.sources.common.pairing import Call, Result, action_text

_USER = "User: "


class Said(NamedTuple):
    """A text of the user and its place in the chat, on the scale of `Result.message`."""

    message: int
    text: str


class Answered(NamedTuple):
    """An action in words and what came back."""

    action: str
    result: Result


def call_text(call: Call, path: str, notes: Notes) -> str:
    """The call as one line of JSON, its cleaning noted; without a name, the text that no call could be read from.

    Raises SchemaError for what JSON cannot hold.
    """
    try:
        action = action_text(call.name, call.arguments) if call.name else str(call.arguments)
    except (TypeError, ValueError) as error:
        raise SchemaError(path, f"the arguments of {call.name[:80]!r} are no JSON ({error})") from error
    cleaned = notes.content(action, path)
    return cleaned if cleaned.strip() else repr(call.arguments)


def dialogue(said: Sequence[Said], answered: Sequence[Answered], notes: Notes) -> tuple[str, tuple[Step, ...]]:
    """Task context and steps of a chat, as the module says; both arguments in the order of the chat."""
    texts = [one for one in said if one.text.strip()]
    known = [one.text for one in texts if not answered or one.message < answered[0].result.message]
    waiting = texts[len(known) :]
    steps = []
    for action, result in answered:
        asked = []
        while waiting and waiting[0].message < result.message:
            asked.append(_USER + waiting.pop(0).text)
        steps.append(Step("\n".join([*asked, action]), result.text, failed=result.failed))
    notes.count("unanswered_requests", len(waiting))
    return "\n".join(known), tuple(steps)
