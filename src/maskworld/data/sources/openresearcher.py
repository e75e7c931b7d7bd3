"""OpenResearcher: deep research with a browser, one row a run, its messages in OpenAI's Harmony layout.

A message has `role`, `channel`, `recipient`, `name`, `content_type` and `content`, a list of blocks; columns of Parquet
pad every block with the members of all kinds of blocks, null where they do not apply.

- An assistant message with a recipient (`browser.search`, `browser.open`, `browser.find`) is the action, its text the
  arguments as JSON; the tool message that comes next, whose own recipient is the assistant, is the observation. Calls
  follow one another: one that another call follows was never answered, whatever its name.
- Pages keep their bytes, `L12:` in front of lines and the marks of links in 【】 among them.
- Tool schemas stand in the system message, without the nulls; what it says of the browser as a whole, and the
  developer's message, are the rules. Analysis and answer are no actions.
- A run whose `status` is not `success` is kept, with the status in its metadata: its answer is missing or late, what
  the browser showed is as true as elsewhere. A run without messages gives nothing.
- There is no e0: results come from a search index that no record describes.

Written after the published columns and other people's readers and checked by eye against one published excerpt; the
tests have records of the same layout, not real ones. The same question (`qid`) is asked once in each of 16
configurations `seed_42` to `seed_57`, all in one group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskworld.data.schema import Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, array, identifier, label, mapping, member
from maskworld.data.sources.common.dialogue import Answered, call_text, dialogue
from maskworld.data.sources.common.fields import compact, decoded, messages
from maskworld.data.sources.common.pairing import Call, Result, parse_arguments
from maskworld.data.sources.common.text import clean
from maskworld.data.sources.common.tools import without_nulls

_PLAYER = "gpt-oss-120b"
_SEED = re.compile(r"seed_\d+\Z")
_NAME = re.compile(r"[\w.-]+")


def matches(record: Any, path: Path) -> bool:
    """Whether this is a row: question and messages, the first of which has a channel or a recipient, null or not."""
    if not isinstance(record, dict) or not {"qid", "question", "messages"} <= record.keys():
        return False
    chat = record["messages"]
    if not chat:
        return chat is None or chat == []
    first = chat[0] if isinstance(chat, list) else None
    return isinstance(first, dict) and bool({"channel", "recipient"} & first.keys())


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """The run's one trajectory; nothing where the browser never answered. Raises SchemaError for a broken row."""
    row = mapping(record, "")
    notes = Notes()
    chat = messages(decoded(row.get("messages") or [], "messages"), "messages")
    question = notes.content(row.get("question"), "question") or _said(chat, "user", notes)
    own = identifier(row.get("qid"), "qid") or clean(origin.identity).text
    tools, rules = _tools(chat)
    developer = _said(chat, "developer", notes)
    _, steps = dialogue((), _answered(chat, notes), notes)
    seed = next((part for part in reversed(origin.path.parts) if _SEED.match(part)), "")
    if steps:
        yield Trajectory(
            id=f"openresearcher/{seed or clean(origin.path.stem).text}/{own}",
            environment="openresearcher",
            initial_state="",
            task_context=question,
            steps=steps,
            tool_schemas=tools,
            domain_rules=tuple(rule for rule in (*rules, developer) if rule),
            group=f"openresearcher/{own}",
            player=_PLAYER,
            metadata=notes.metadata(
                status=label(row.get("status"), "status"),
                error=label(row.get("error"), "error"),
                attempts=identifier(row.get("attempts", row.get("attempt")), "attempts"),
            ),
        )


def _answered(chat: list[dict[str, Any]], notes: Notes) -> list[Answered]:
    """Calls with the answers that came right after them."""
    found = []
    pending: str | None = None
    for index, message in enumerate(chat):
        at = f"messages[{index}]"
        if message["role"] == "tool":
            shown = notes.observation(member(message, "content", f"{at}.content"), f"{at}.content")
            if pending is None:
                notes.count("orphan_results")
            else:
                found.append(Answered(pending, Result("", shown, index)))
            pending = None
        elif message["role"] == "assistant":
            name = _recipient(message, at)
            if name:
                notes.count("unpaired_calls", pending is not None)
                arguments = parse_arguments(notes.content(message.get("content"), f"{at}.content"))
                notes.count("unparsable_arguments", isinstance(arguments, str))
                pending = call_text(Call("", name, arguments), f"{at}.content", notes)
    notes.count("unpaired_calls", pending is not None)
    return found


def _recipient(message: dict[str, Any], at: str) -> str:
    """The tool spoken to, without what the model appended to its name (` code`, `<|channel|>`); empty for nobody."""
    name = _NAME.match(label(message.get("recipient"), f"{at}.recipient").strip())
    return name.group() if name and name.group() not in ("assistant", "all", "user") else ""


def _said(chat: list[dict[str, Any]], role: str, notes: Notes) -> str:
    """The text of the first message of a role; blocks padded with a null text hold instructions or nothing."""
    for index, message in enumerate(chat):
        if message["role"] == role:
            blocks = message.get("content")
            if isinstance(blocks, list):
                texts = [
                    (one.get("text") or one.get("instructions")) if isinstance(one, dict) else one for one in blocks
                ]
                blocks = [one for one in texts if one is not None]
            return notes.content(blocks, f"messages[{index}].content")
    return ""


def _tools(chat: list[dict[str, Any]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Schemas of the tools of the first system message, named as calls name them, and what it says of each group."""
    schemas, rules = [], []
    for index, message in enumerate(chat):
        if message["role"] != "system":
            continue
        blocks = message.get("content")
        for number, block in enumerate(blocks if isinstance(blocks, list) else []):
            at = f"messages[{index}].content[{number}].tools"
            groups = mapping(block, at).get("tools") if isinstance(block, dict) else None
            for group, value in mapping(without_nulls(groups or {}, at), at).items():
                here = f"{at}.{group[:80]}"
                rules.append(label(mapping(value, here).get("description"), f"{here}.description"))
                for place, entry in enumerate(array(value.get("tools") or [], f"{here}.tools")):
                    tool = mapping(entry, f"{here}.tools[{place}]")
                    name = label(tool.get("name"), f"{here}.tools[{place}].name")
                    schemas.append(clean(compact(tool | {"name": f"{group}.{name}"}, f"{here}.tools[{place}]")).text)
        break
    return tuple(schemas), tuple(rules)


SOURCE = Source(name="openresearcher", licence="MIT", matches=matches, trajectories=trajectories)
