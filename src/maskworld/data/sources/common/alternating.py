"""Chats in which the environment speaks as user: instructions and a first observation, then actions and answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maskworld.data.schema import SchemaError
from maskworld.data.sources.common.checks import Notes, member

_ENVIRONMENT = {"user", "tool"}


def alternating_turns(
    chat: list[dict[str, Any]], start: int, path: str, action: Callable[[str], str], notes: Notes
) -> list[tuple[str, str]]:
    """(action, answer) of the messages from `start` on, cleaned; `action` finds it in what the assistant wrote.

    Counts answers to nothing (`unasked_observations`), actions without an answer (`unanswered_actions`) and blank ones
    (`empty_actions`), which are left out. Raises SchemaError for another role than user, tool and assistant, and where
    no pair is left.
    """
    turns: list[tuple[str, str]] = []
    pending: str | None = None
    for index, message in enumerate(chat[start:], start):
        here = f"{path}[{index}].content"
        if message["role"] == "assistant":
            notes.count("unanswered_actions", pending is not None)
            pending = action(notes.command(member(message, "content", here), here))
        elif message["role"] not in _ENVIRONMENT:
            raise SchemaError(f"{path}[{index}].role", "is none of user, tool and assistant")
        else:
            shown = notes.observation(member(message, "content", here), here)
            if pending is None:
                notes.count("unasked_observations")
            elif not pending.strip():
                notes.count("empty_actions")
            else:
                turns.append((pending, shown))
            pending = None
    notes.count("unanswered_actions", pending is not None)
    if not turns:
        raise SchemaError(path, "holds a prompt but no transition")
    return turns
