"""Scripted players of household rooms: they see the true state, so that what they do is cheap and never stuck."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from maskworld.environments.room_state import Layout, RoomState, kind_of
from maskworld.environments.rooms import TRANSFORMS, Task

PlayerName = Literal["expert", "noisy_expert", "random"]

# The same for every room. Plain words, no braces: every small model pays for each token of this in each document.
COMMANDS = (
    "go to receptacle",
    "open receptacle",
    "close receptacle",
    "take object from receptacle",
    "move object to receptacle",
    "clean object with sinkbasin",
    "heat object with microwave",
    "cool object with fridge",
    "slice object with knife",
    "use lamp",
    "examine object or receptacle",
    "look",
    "inventory",
)
_LOOKING = frozenset({"look", "inventory", "examine"})


@dataclass(frozen=True)
class View:
    """What a scripted player sees: everything."""

    layout: Layout
    task: Task
    state: RoomState
    admissible: tuple[str, ...]


def play(
    player: PlayerName, view: View, rng: random.Random, epsilon: float, inadmissible: float, wander: float = 0.0
) -> str:
    """The player's next command.

    epsilon: probability that noisy_expert plays a random command. inadmissible: probability that a random command is
    well formed but impossible at this moment (the engine answers "Nothing happens."). wander: see `random_command`.
    """
    if player == "random" or (player == "noisy_expert" and rng.random() < epsilon):
        return random_command(view, rng, inadmissible, wander)
    return expert_command(view.layout, view.task, view.state)


def verb_of(command: str) -> str:
    """`take` of `take mug 1 from desk 1`, `go` of `go to desk 1`."""
    return command.partition(" ")[0]


def random_command(view: View, rng: random.Random, inadmissible: float = 0.0, wander: float = 0.0) -> str:
    """A verb drawn uniformly, then a command of that verb; with probability `wander` the verb is `go`.

    look, inventory and examine count as one verb together, since they are always possible and change nothing.
    """
    if rng.random() < inadmissible:
        return _impossible_command(view, rng)
    if wander and rng.random() < wander:
        return rng.choice([command for command in view.admissible if verb_of(command) == "go"])
    by_verb: dict[str, dict[str, list[str]]] = {}
    for command in view.admissible:
        verb = verb_of(command)
        by_verb.setdefault("looking" if verb in _LOOKING else verb, {}).setdefault(verb, []).append(command)
    group = by_verb[rng.choice(sorted(by_verb))]
    return rng.choice(group[rng.choice(sorted(group))])


def _impossible_command(view: View, rng: random.Random) -> str:
    while True:
        thing, other = rng.choice(view.layout.objects), rng.choice(view.layout.objects)
        receptacle = rng.choice(view.layout.receptacles)
        command = rng.choice(
            (
                f"go to {view.state.place}",
                f"open {receptacle}",
                f"close {receptacle}",
                f"take {thing} from {receptacle}",
                f"move {thing} to {receptacle}",
                f"clean {thing} with {receptacle}",
                f"heat {thing} with {receptacle}",
                f"cool {thing} with {receptacle}",
                f"slice {thing} with {other}",
                f"use {thing}",
                f"examine {rng.choice((thing, receptacle))}",
            )
        )
        if command not in view.admissible and not command.endswith(" middle"):
            return command


def expert_command(layout: Layout, task: Task, state: RoomState) -> str:
    """The next command of a plan that solves the task from any state; `look` when nothing can be done.

    Not always the shortest plan: among equal things it takes the first in the engine's listing order.
    """
    if task.type == "look_at_obj_in_light":
        return _look_in_light(layout, task, state)
    goal = _destination(layout, task, state)
    target = _target(layout, task, state, goal)
    if not goal or not target:
        return "look"
    if state.held != target:
        return _fetch(layout, state, target)
    if task.type in TRANSFORMS:
        verb, appliance, wanted = TRANSFORMS[task.type]
        if not state.has(wanted, target):
            station = _of_kind(layout.receptacles, appliance)[0]
            return _at(state, station) or f"{verb} {target} with {station}"
    return _at(state, goal) or _opened(layout, state, goal) or f"move {target} to {goal}"


def _look_in_light(layout: Layout, task: Task, state: RoomState) -> str:
    lamp = _of_kind(layout.objects, task.lamp)[0]
    if kind_of(state.held) != task.object:
        things = _of_kind(layout.objects, task.object)
        return _fetch(layout, state, things[0])
    return _at(state, state.places()[lamp]) or f"use {lamp}"


def _destination(layout: Layout, task: Task, state: RoomState) -> str:
    """The receptacle of the wanted kind that needs the least work: most wanted objects, then already open."""
    places = state.places()

    def ease(receptacle: str) -> tuple[int, bool]:
        there = sum(r == receptacle and kind_of(o) == task.object for o, r in places.items())
        return there, receptacle not in layout.openable or state.has("opened", receptacle)

    return max(_of_kind(layout.receptacles, task.receptacle), key=ease, default="")


def _target(layout: Layout, task: Task, state: RoomState, goal: str) -> str:
    """The object to bring next: the carried one if it will do, then one that is already clean/hot/cool, then any."""
    wanted = TRANSFORMS[task.type][2] if task.type in TRANSFORMS else ""
    places = state.places()
    free = [o for o in _of_kind(layout.objects, task.object) if places.get(o) != goal or wanted]

    def ease(thing: str) -> tuple[bool, bool]:
        return thing == state.held, bool(wanted) and state.has(wanted, thing)

    return max(free, key=ease, default="")


def _fetch(layout: Layout, state: RoomState, thing: str) -> str:
    if state.held:
        return _put_away(layout, state)
    place = state.places()[thing]
    return _at(state, place) or _opened(layout, state, place) or f"take {thing} from {place}"


def _put_away(layout: Layout, state: RoomState) -> str:
    """Frees the hands: here if possible, else at the first receptacle that takes the carried object."""
    takers = [r for r in layout.receptacles if layout.accepts(r, state.held)]
    place = state.place if state.place in takers else takers[0]
    return _at(state, place) or _opened(layout, state, place) or f"move {state.held} to {place}"


def _at(state: RoomState, receptacle: str) -> str:
    return "" if state.place == receptacle else f"go to {receptacle}"


def _opened(layout: Layout, state: RoomState, receptacle: str) -> str:
    shut = receptacle in layout.openable and not state.has("opened", receptacle)
    return f"open {receptacle}" if shut else ""


def _of_kind(names: tuple[str, ...], kind: str) -> list[str]:
    return [name for name in names if kind_of(name) == kind]
