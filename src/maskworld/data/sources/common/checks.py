"""Reading members of a foreign record: each function returns a value of the type asked for or names what is wrong.

All raise SchemaError whose field is the path given, so that a report points into the record (`trajectory[3].action`).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from maskworld.data.schema import SchemaError, kind
from maskworld.data.schema import array as array
from maskworld.data.schema import number as number
from maskworld.data.sources.common.text import Cleaned, clean, content_text, merge_operations

_TRUNCATION = re.compile(r"<response clipped><NOTE>|<warning>\s*The output of your last command was too long")


def mapping(value: Any, path: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise SchemaError(path, f"must be an object, is {kind(value)}")
    return value


def text(value: Any, path: str) -> str:
    """A string as it stands."""
    if not isinstance(value, str):
        raise SchemaError(path, f"must be a string, is {kind(value)}")
    return value


def label(value: Any, path: str) -> str:
    """A short text for ids, groups and metadata, cleaned; absent counts as empty."""
    return "" if value is None else clean(text(value, path)).text


def identifier(value: Any, path: str) -> str:
    """An integer or a string that is not blank, as text; absent counts as empty."""
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return str(value)
        except ValueError as error:  # more digits than Python prints
            raise SchemaError(path, "is too large") from error
    name = clean(text(value, path)).text
    if not name.strip():
        raise SchemaError(path, "must not be empty")
    return name


def content(value: Any, path: str) -> Cleaned:
    """The cleaned text of a message, a string or a list of parts."""
    try:
        return content_text(value)
    except ValueError as error:
        raise SchemaError(path, str(error)) from error


def member(record: dict[str, Any], name: str, path: str) -> Any:
    """The value of a member that must be there; `path` is the member's."""
    if name not in record:
        raise SchemaError(path, "is missing")
    return record[name]


def nested_text(record: Any, *names: str) -> str:
    """The cleaned text at the end of a path of members; empty where the path breaks off or ends in no text."""
    for name in names:
        record = record.get(name) if isinstance(record, dict) else None
    return clean(record).text if isinstance(record, str) else ""


class Notes:
    """What was done to one trajectory's texts and what was left out of it, for its metadata."""

    def __init__(self) -> None:
        self._cleaned: list[Cleaned] = []
        self._counts: Counter[str] = Counter()

    def count(self, name: str, amount: int = 1) -> None:
        """Adds to a counter; those that stay zero do not appear."""
        self._counts[name] += amount

    def content(self, value: Any, path: str) -> str:
        """The text of a message, its cleaning noted."""
        cleaned = content(value, path)
        self._cleaned.append(cleaned)
        return cleaned.text

    def command(self, value: Any, path: str) -> str:
        """An action, which must be a string; its cleaning noted."""
        return self.content(text(value, path), path)

    def observation(self, value: Any, path: str) -> str:
        """The text of an observation, its cleaning and the harness's mark of a shortened output noted.

        An observation must be there: null is refused, where a message without content would be an empty text.
        """
        if value is None:
            raise SchemaError(path, "must be text or a list of parts, is null")
        observed = self.content(value, path)
        self.count("truncated_observations", bool(_TRUNCATION.search(observed)))
        return observed

    def turn(self, entry: Any, path: str) -> tuple[str, str]:
        """`action` and `observation` of an object that holds both."""
        mapping(entry, path)
        action = self.command(member(entry, "action", f"{path}.action"), f"{path}.action")
        return action, self.observation(member(entry, "observation", f"{path}.observation"), f"{path}.observation")

    def metadata(self, **known: Any) -> dict[str, Any]:
        """`known` without what is empty or None (a zero stays), the operations, and the counters above zero."""
        kept = {name: value for name, value in known.items() if value is not None and value not in ("", [], {})}
        operations = merge_operations(self._cleaned)
        if operations:
            kept["cleaned"] = operations
        return kept | {name: amount for name, amount in sorted(self._counts.items()) if amount}
