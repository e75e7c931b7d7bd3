"""What the engine says, derived from a room's state alone: shows that e0 and the fact deltas are enough.

Written from the engine's texts, independently of the code under test; knows of it only the kinds' tables.
"""

from __future__ import annotations

import re

from maskworld.environments.room_state import RoomState, kind_of
from maskworld.environments.rooms import LAMP, OBJECTS, TRANSFORMS, listing_order

NOTHING = "Nothing happens."
_LINE = re.compile(
    r"(?:On the (?P<top>\w+ \d+)|The (?P<inner>\w+ \d+) is (?P<mark>open|closed)\. In it), you see (?P<things>.+)\."
)


class RoomTexts:
    """The room of an e0 text; `answer` gives the observation that a command brings in a state."""

    def __init__(self, initial_state: str) -> None:
        facts = {"atlocation(middle)"}
        self.receptacles, self.openable = [], set()
        for line in initial_state.splitlines():
            match = _LINE.fullmatch(line)
            assert match, line
            top, inner, mark, things = match.groups()
            name = top or inner
            self.receptacles.append(name)
            if mark:
                self.openable.add(name)
            if mark == "open":
                facts.add(f"opened({name})")
            for thing in re.findall(r"\w+ \d+", things):
                facts.add(f"inreceptacle({thing}, {name})")
        self.start = RoomState(frozenset(facts))

    def first(self) -> str:
        return (
            "You are in the middle of a room. Looking quickly around you, you see "
            f"{_listing(sorted(self.receptacles, key=listing_order))}."
        )

    def answer(self, state: RoomState, command: str) -> str:
        for pattern, method in (
            (r"look", self._look),
            (r"inventory", self._inventory),
            (r"go to (.+)", self._go),
            (r"open (.+)", self._open),
            (r"close (.+)", self._close),
            (r"take (.+) from (.+)", self._take),
            (r"move (.+) to (.+)", self._move),
            (r"(clean|heat|cool) (.+) with (.+)", self._transform),
            (r"slice (.+) with (.+)", self._slice),
            (r"use (.+)", self._use),
            (r"examine (.+)", self._examine),
        ):
            if match := re.fullmatch(pattern, command):
                return method(state, *match.groups())
        raise AssertionError(f"no pattern for {command!r}")

    def _reachable(self, state: RoomState, receptacle: str) -> bool:
        shut = receptacle in self.openable and not state.has("opened", receptacle)
        return state.place == receptacle and not shut

    def _describe(self, state: RoomState, receptacle: str) -> str:
        if receptacle in self.openable:
            if not state.has("opened", receptacle):
                return f"The {receptacle} is closed."
            return f"The {receptacle} is open. In it, you see {_listing(state.contents(receptacle))}."
        return f"On the {receptacle}, you see {_listing(state.contents(receptacle))}."

    def _look(self, state: RoomState) -> str:
        if state.place == "middle":
            return "You are in the middle of a room. Looking quickly around you, you see nothing."
        return f"You are facing the {state.place}. Next to it, you see nothing."

    def _inventory(self, state: RoomState) -> str:
        return f"You are carrying: a {state.held}." if state.held else "You are not carrying anything."

    def _go(self, state: RoomState, place: str) -> str:
        if place == state.place or place not in self.receptacles:
            return NOTHING
        return f"You arrive at {place}. {self._describe(state, place)}"

    def _open(self, state: RoomState, place: str) -> str:
        if place != state.place or place not in self.openable or state.has("opened", place):
            return NOTHING
        return f"You open the {place}. The {place} is open. In it, you see {_listing(state.contents(place))}."

    def _close(self, state: RoomState, place: str) -> str:
        return f"You close the {place}." if place == state.place and state.has("opened", place) else NOTHING

    def _take(self, state: RoomState, thing: str, place: str) -> str:
        there = self._reachable(state, place) and state.places().get(thing) == place
        can = there and not state.held and kind_of(thing) != LAMP
        return f"You pick up the {thing} from the {place}." if can else NOTHING

    def _move(self, state: RoomState, thing: str, place: str) -> str:
        can = state.held == thing and self._reachable(state, place) and OBJECTS[kind_of(thing)].fits(kind_of(place))
        return f"You move the {thing} to the {place}." if can else NOTHING

    def _transform(self, state: RoomState, verb: str, thing: str, place: str) -> str:
        station = next(appliance for name, appliance, _ in TRANSFORMS.values() if name == verb)
        can = state.held == thing and state.place == place and kind_of(place) == station
        can = can and OBJECTS[kind_of(thing)].can(verb)
        return f"You {verb} the {thing} using the {place}." if can else NOTHING

    def _slice(self, state: RoomState, thing: str, knife: str) -> str:
        can = state.held == knife and kind_of(knife) in ("knife", "butterknife")
        can = can and state.places().get(thing) == state.place and OBJECTS[kind_of(thing)].can("slice")
        return f"You sliced the {thing} with the {knife}." if can else NOTHING

    def _use(self, state: RoomState, thing: str) -> str:
        can = OBJECTS[kind_of(thing)].can("toggle") and state.places().get(thing) == state.place
        return f"You turn on the {thing}." if can else NOTHING

    def _examine(self, state: RoomState, thing: str) -> str:
        if thing in self.receptacles:
            return self._describe(state, thing) if thing == state.place else NOTHING
        if state.held != thing:  # whatever the domain says, the engine lets only the carried object be examined
            return NOTHING
        kind = OBJECTS[kind_of(thing)]
        if kind.can("hold"):
            return f"This is a normal {thing}. In it, you see nothing."
        clean, hot, cool = (state.has(p, thing) for p in ("isclean", "ishot", "iscool"))
        sliced = state.has("issliced", thing)
        heat = "hot" if hot else "cool" if cool and (clean or sliced) else "cold" if cool else ""
        words = " and ".join(filter(None, (heat, "clean" if clean else "")))
        if words or sliced:
            return f"This is a {' '.join(filter(None, (words, 'sliced' if sliced else '', thing)))}."
        return f"There's nothing special about {thing}."


def _listing(names: list[str]) -> str:
    if not names:
        return "nothing"
    words = [f"a {name}" for name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])}, and {words[-1]}"
