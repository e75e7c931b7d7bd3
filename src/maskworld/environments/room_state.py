"""The state of a room as facts, its text (e0), and how facts change it.

A fact is a string such as `inreceptacle(mug 1, shelf 2)`. The predicates below are all that an observation, a
command's success or a goal of the `alfred` domain can depend on and that an action can change:

    atlocation(R)            the agent stands at receptacle R ("middle" before it went anywhere)
    holds(O)                 the agent carries O
    inreceptacle(O, R)       O lies in or on R
    opened(R)                R is open
    isclean(O) ishot(O) iscool(O) issliced(O) istoggled(O) ison(O)

Left out: what never changes (see `Layout`), what follows from the others (`holdsany`, `objectatlocation`), and
`checked`, a note the engine makes on every look that no text and no rule reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from maskworld.environments.rooms import listing_order

MIDDLE = "middle"
PROPERTIES = ("isclean", "ishot", "iscool", "issliced", "istoggled", "ison")
DYNAMIC_PREDICATES = frozenset({"atlocation", "holds", "inreceptacle", "opened", *PROPERTIES})

_FACT = re.compile(r"(\w+)\(([^(),]+)(?:, ([^(),]+))?\)")
_SHOWN = {"isclean": "clean", "ishot": "hot", "iscool": "cool", "issliced": "sliced", "istoggled": "on"}


@dataclass(frozen=True)
class Layout:
    """What no action changes."""

    receptacles: tuple[str, ...]
    """Names in the order of the engine's listing."""
    objects: tuple[str, ...]
    openable: frozenset[str]
    lamps: frozenset[str]
    """Objects with a switch."""
    fits: frozenset[tuple[str, str]]
    """(receptacle kind, object kind) pairs: what may be moved where."""

    def accepts(self, receptacle: str, thing: str) -> bool:
        return (kind_of(receptacle), kind_of(thing)) in self.fits


@dataclass(frozen=True)
class RoomState:
    """The facts of one moment."""

    facts: frozenset[str]

    def after(self, added: Iterable[str], deleted: Iterable[str]) -> RoomState:
        return RoomState((self.facts - frozenset(deleted)) | frozenset(added))

    @property
    def place(self) -> str:
        """The receptacle the agent stands at, or `MIDDLE`."""
        return self._first("atlocation", MIDDLE)

    @property
    def held(self) -> str:
        """The object in the agent's hands, or an empty string."""
        return self._first("holds", "")

    def has(self, predicate: str, thing: str) -> bool:
        return f"{predicate}({thing})" in self.facts

    def places(self) -> dict[str, str]:
        """Object -> receptacle, for everything that is not carried."""
        pairs = (match.groups() for match in map(_FACT.fullmatch, self.facts) if match)
        return {first: second for predicate, first, second in pairs if predicate == "inreceptacle"}

    def contents(self, receptacle: str) -> list[str]:
        """What lies in or on it, in the order in which the engine prints it."""
        return sorted((o for o, r in self.places().items() if r == receptacle), key=listing_order)

    def _first(self, predicate: str, otherwise: str) -> str:
        start = f"{predicate}("
        return next((fact[len(start) : -1] for fact in self.facts if fact.startswith(start)), otherwise)


def kind_of(name: str) -> str:
    """`mug` of `mug 1`."""
    return name.rpartition(" ")[0]


def render_state(layout: Layout, state: RoomState) -> str:
    """The whole state as text, one line per receptacle in the engine's listing order.

    `fridge 1 (closed): lettuce 1, egg 2 (cool)`; `shelf 2: nothing`; `desk 1: desklamp 1 (off), mug 1`. Contents are in
    the order in which the engine prints them. A last line says where the agent is and what it carries, unless it
    stands in the middle of the room with empty hands, as at every start.
    """
    held_at = state.places()
    lines = []
    for receptacle in layout.receptacles:
        inside = sorted((o for o, r in held_at.items() if r == receptacle), key=listing_order)
        mark = ""
        if receptacle in layout.openable:
            mark = " (open)" if state.has("opened", receptacle) else " (closed)"
        lines.append(f"{receptacle}{mark}: {', '.join(_describe(layout, state, o) for o in inside) or 'nothing'}")
    if state.place != MIDDLE or state.held:
        where = f"at {state.place}" if state.place != MIDDLE else "in the middle of the room"
        carrying = f", carrying {_describe(layout, state, state.held)}" if state.held else ""
        lines.append(f"you are {where}{carrying}")
    return "\n".join(lines)


def _describe(layout: Layout, state: RoomState, thing: str) -> str:
    marks = [word for predicate, word in _SHOWN.items() if state.has(predicate, thing)]
    if thing in layout.lamps and "on" not in marks:
        marks.append("off")
    return f"{thing} ({', '.join(marks)})" if marks else thing
