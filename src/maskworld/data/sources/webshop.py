"""WebShop sessions as conversations: AgentTraj-L (`item_id`, `conversations`), AgentInstruct and ETO (`id`).

Pages come in the environment's text modes, and stay as they are: `[Search]` in brackets, `[button] Search [button_]`,
or parts joined by ` [SEP] `. A conversation may open with instructions that the model acknowledges; then they are the
rules, and the first page is the next message.

- The action is what follows `Action:` in the model's message, or the whole message without that label.
- `think[...]` is answered by the harness, not by the shop: no transition, counted as `thoughts`.
- `Your score (min 0.0, max 1.0): x` stays in the observation, is the reward of the purchase and ends the session.
- An empty answer is a page that was lost (no page is empty): no transition, counted as `lost_observations`.

Sessions that look for the same product are one group, whatever the price limit, which is drawn anew for each run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskworld.data.schema import SchemaError, Step, Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, array, identifier, mapping, member, number, text
from maskworld.data.sources.common.text import clean

_ACTION = re.compile(r"(?:^|\n)[ \t]*Action:[ \t]*\n?")
_COMMAND = re.compile(r"(?:search|click|think)\[")
_OBSERVATION = re.compile(r"\AObservation:[ \t]*\n?")
_INSTRUCTION = re.compile(r"Instruction:\s*(?:\[SEP\])?(.*?)(?:\[SEP\]|\[button\]|\[Search\]|\Z)", re.DOTALL)
_PRICE = re.compile(r",? and price lower than [0-9.]+ dollars")
_SCORE = re.compile(r"Your score \(min 0\.0, max 1\.0\)\s*(?::|\[SEP\])?\s*([0-9]{1,3}(?:\.[0-9]{1,30})?)")
_SHOP = re.compile(r"web ?shop|amazon shopping game", re.IGNORECASE)
_HUMAN, _MODEL = {"human", "user"}, {"gpt", "assistant"}


def matches(record: Any, path: Path) -> bool:
    """Whether this is a conversation, without tools, that names the shop in its id or its first three messages."""
    if not isinstance(record, dict) or not isinstance(record.get("conversations"), list) or "tools" in record:
        return False
    said = [entry.get("value") for entry in record["conversations"][:3] if isinstance(entry, dict)]
    names = [record.get("item_id"), record.get("id"), *said]
    return bool(said) and any(isinstance(name, str) and _SHOP.search(name) is not None for name in names)


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """The session's one trajectory; nothing where the shop never answered. Raises SchemaError for a wrong type."""
    mapping(record, "")
    notes = Notes()
    own = identifier(record.get("item_id"), "item_id") or identifier(record.get("id"), "id")
    entries = array(member(record, "conversations", "conversations"), "conversations")
    rules, page, turns = _turns(entries, notes)
    steps = []
    for index, (action, shown) in enumerate(turns):
        if action.startswith("think["):
            notes.count("thoughts")
        elif not action:
            notes.count("empty_actions")
        elif not shown:
            notes.count("lost_observations")
        else:
            score = _SCORE.search(shown)
            ended = score is not None and index == len(turns) - 1
            steps.append(Step(action, shown, reward=float(score.group(1)) if score else 0.0, done=ended))
    given = None if record.get("reward") is None else number(record["reward"], "reward")
    if steps:
        found = _INSTRUCTION.search(page)
        wish = found.group(1).strip() if found else ""
        yield Trajectory(
            id=f"webshop/{clean(origin.path.stem).text}/{own or origin.index}",
            environment="webshop",
            initial_state="",
            task_context=wish,
            steps=tuple(steps),
            initial_observation=page,
            domain_rules=rules,
            group="webshop/" + (" ".join(_PRICE.sub("", wish).lower().split()) or own),
            metadata=notes.metadata(
                pages=_page_style(page),
                # Only where the text does not say the same.
                record_reward=given if given != steps[-1].reward else None,
            ),
        )


def _turns(entries: list[Any], notes: Notes) -> tuple[tuple[str, ...], str, list[tuple[str, str]]]:
    """Rules, first page, and what the model wrote with what came back, thoughts still among them."""
    rules: list[str] = []
    page: str | None = None
    turns: list[tuple[str, str]] = []
    pending: str | None = None
    spoken = False
    for index, entry in enumerate(entries):
        at = f"conversations[{index}]"
        mapping(entry, at)
        speaker = text(member(entry, "from", f"{at}.from"), f"{at}.from")
        value = text(member(entry, "value", f"{at}.value"), f"{at}.value")
        if speaker in _MODEL:
            said = notes.command(value, f"{at}.value")
            notes.count("unanswered_actions", pending is not None)
            if not spoken and not turns and page is not None and not _COMMAND.search(said):
                rules.append(page)  # "OK": what came before it was the instructions
                page = None
            else:
                pending = _ACTION.split(said)[-1].strip()
            spoken = True
        elif speaker in _HUMAN:
            shown = _OBSERVATION.sub("", notes.observation(value, f"{at}.value"))
            if pending is not None:
                turns.append((pending, shown))
                pending = None
            elif page is None:
                page = shown
            else:
                notes.count("unasked_observations")
        elif speaker == "system":
            rules.append(notes.content(value, f"{at}.value"))
        else:
            raise SchemaError(f"{at}.from", "is none of human, user, gpt, assistant and system")
    notes.count("unanswered_actions", pending is not None)
    return tuple(rules), page or "", turns


def _page_style(page: str) -> str:
    for mark, name in (("[SEP]", "separators"), ("[button]", "buttons"), ("[Search]", "brackets")):
        if mark in page:
            return name
    return ""


# WebShop's, AgentTraj-L's and the ReAct sessions' licence; ETO's own files come without any.
SOURCE = Source(name="webshop", licence="MIT", matches=matches, trajectories=trajectories)
