"""Which result answers which call: pure, over the calls and results of one chat in the order of its messages.

Ids of calls are neither unique nor complete in public files: tau-bench reuses them inside a chat, others leave them
out. So only PENDING calls are looked at. A result answers the oldest pending call with its id; without an id, or with
one that no pending call has, it answers the oldest pending call.

Pairs come in the order of the calls, also where parallel calls were answered in another order: a result never stands
in front of that of an earlier call, so the history of a call holds exactly the calls made before it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple


@dataclass(frozen=True)
class Call:
    """One request to a tool."""

    id: str
    """Empty where there is none."""
    name: str
    arguments: dict[str, Any] | str
    """The raw string where it holds no JSON object."""
    by: Literal["agent", "user"] = "agent"


@dataclass(frozen=True)
class Result:
    """What a tool answered."""

    id: str
    """That of the call it claims to answer; empty where there is none."""
    text: str
    message: int = 0
    """Index of the message it stands in."""
    failed: bool | None = None
    """What the harness says of the call; None where it says nothing."""


class Pair(NamedTuple):
    """A call and its answer."""

    call: Call
    result: Result


class Pairing(NamedTuple):
    """All pairs of a chat in the order of the calls, and how many of each kind found no partner."""

    pairs: list[Pair]
    unpaired_calls: int
    orphan_results: int


def pair(events: Iterable[Call | Result]) -> Pairing:
    """Pairs calls with results as the module says; every call and every result is used at most once."""
    pending: dict[int, Call] = {}
    found: dict[int, Pair] = {}
    orphans = 0
    for index, event in enumerate(events):
        if isinstance(event, Call):
            pending[index] = event
        elif not pending:
            orphans += 1
        else:
            same_id = (number for number, call in pending.items() if event.id and call.id == event.id)
            chosen = next(same_id, next(iter(pending)))
            found[chosen] = Pair(pending.pop(chosen), event)
    return Pairing([found[index] for index in sorted(found)], len(pending), orphans)


def parse_arguments(value: Any) -> dict[str, Any] | str:
    """The arguments of a call: an object as it is, a JSON string parsed once, `{}` for nothing or "".

    A string that holds no JSON object (cut short, NaN or Infinity, nested too deeply, an array) comes back raw, which
    is its flag. Raises ValueError for any other type.
    """
    if value is None or value == "":
        return {}
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        raise ValueError(f"must be an object or a JSON string, is {type(value).__name__}")
    try:
        parsed = _DECODER.decode(value)
    except (ValueError, RecursionError):
        return value
    return parsed if isinstance(parsed, dict) else value


def action_text(name: str, arguments: dict[str, Any] | str) -> str:
    """The call as compact JSON, keys in the order of the source. Raises ValueError for what JSON cannot hold."""
    call = {"name": name, "arguments": arguments}
    try:
        return json.dumps(call, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def refuse_constant(constant: str) -> None:
    """For `json`: NaN and Infinity are no JSON. Raises ValueError."""
    raise ValueError(f"{constant} is no JSON")


def finite_float(digits: str) -> float:
    """For `json`: a number that fits. Raises ValueError for one that does not."""
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is too large")
    return number


_DECODER = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite_float)
