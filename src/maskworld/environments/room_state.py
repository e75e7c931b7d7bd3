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
    fits: frozenset[tuple[str, str]]
    """(receptacle kind, object kind) pairs: what may be moved where."""

    def accepts(self, receptacle: str, thing: str) -> bool:
        """Whether the object may be moved into or onto the receptacle; both by name."""
        return (kind_of(receptacle), kind_of(thing)) in self.fits


@dataclass(frozen=True)
class RoomState:
    """The facts of one moment."""

    facts: frozenset[str]

    def after(self, added: Iterable[str], deleted: Iterable[str]) -> RoomState:
        """The state once these facts are added and deleted."""
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
        """Whether the one-place fact holds."""
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
    """The whole state as text, in the engine's own phrases, one line per receptacle in its listing order.

    `On the shelf 2, you see a mug 2, and a pen 1.`, `The fridge 1 is closed. In it, you see nothing.`: what stands
    behind a closed door is told too, and otherwise a line is what an observation of that place will say, so that a
    model may copy it. Below, one line for every object that is not as usual (`The mug 2 is clean and hot.`) and, unless
    the agent stands in the middle of the room with empty hands as at every start, where it is and what it carries.
    """
    lines = []
    for receptacle in layout.receptacles:
        where = f"On the {receptacle}"
        if receptacle in layout.openable:
            mark = "open" if state.has("opened", receptacle) else "closed"
            where = f"The {receptacle} is {mark}. In it"
        lines.append(f"{where}, you see {_listed(state.contents(receptacle))}.")
    for thing in layout.objects:
        if marks := [word for predicate, word in _SHOWN.items() if state.has(predicate, thing)]:
            lines.append(f"The {thing} is {' and '.join(marks)}.")
    if state.place != MIDDLE:
        lines.append(f"You are at the {state.place}.")
    if state.held:
        lines.append(f"You are carrying a {state.held}.")
    return "\n".join(lines)


def _listed(things: list[str]) -> str:
    named = [f"a {thing}" for thing in things] or ["nothing"]
    return ", ".join([*named[:-1], f"and {named[-1]}"] if len(named) > 1 else named)
