"""Household rooms sampled from a seed, and the PDDL problems that make the ALFWorld engine play them.

Standard library only: sampling a room needs no engine. `kinds.py` holds the tables of what there is.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from maskworld.environments.kinds import APPLIANCES, LAMP, LAMP_PLACES, OBJECTS, OPENABLE, ROOM_KINDS, SINGLE
from maskworld.errors import ConfigError

TaskType = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]

_KITCHEN_SHARE = 0.625  # gives the six task types nearly equal shares over kitchens and bedrooms together
_LARGEST = 16

TASK_TYPES: tuple[str, ...] = tuple(ROOM_KINDS["kitchen"].tasks) + ("look_at_obj_in_light",)

# task type -> (verb the object must afford, appliance, property the goal asks for)
TRANSFORMS: dict[str, tuple[str, str, str]] = {
    "pick_clean_then_place_in_recep": ("clean", "sinkbasin", "isclean"),
    "pick_heat_then_place_in_recep": ("heat", "microwave", "ishot"),
    "pick_cool_then_place_in_recep": ("cool", "fridge", "iscool"),
}

_SENTENCES: dict[str, tuple[str, str]] = {
    "pick_and_place_simple": ("put a {object} in {receptacle}.", "put some {object} on {receptacle}."),
    "look_at_obj_in_light": ("look at {object} under the {lamp}.", "examine the {object} with the {lamp}."),
    "pick_clean_then_place_in_recep": (
        "put a clean {object} in {receptacle}.",
        "clean some {object} and put it in {receptacle}.",
    ),
    "pick_heat_then_place_in_recep": (
        "put a hot {object} in {receptacle}.",
        "heat some {object} and put it in {receptacle}.",
    ),
    "pick_cool_then_place_in_recep": (
        "put a cool {object} in {receptacle}.",
        "cool some {object} and put it in {receptacle}.",
    ),
    "pick_two_obj_and_place": ("put two {object} in {receptacle}.", "find two {object} and put them in {receptacle}."),
}


@dataclass(frozen=True)
class RoomSizes:
    """How large the rooms are."""

    receptacles: tuple[int, int] = (4, 8)
    """Fewest and most receptacles of a room; every number between is equally likely."""
    objects: tuple[int, int] = (4, 8)
    """Fewest and most objects of a room; every number between is equally likely."""
    one_each: bool = False
    """As many objects as receptacles, as far as `objects` allows, instead of a number of their own."""

    def __post_init__(self) -> None:
        for name in ("receptacles", "objects"):
            low, high = getattr(self, name)
            if not 2 <= low <= high <= _LARGEST:
                raise ConfigError(f"sizes.{name}: ({low}, {high}) is no range within 2..{_LARGEST}")

    def draw_objects(self, rng: random.Random, receptacles: int) -> int:
        """Number of objects of a room with that many receptacles."""
        fewest, most = self.objects
        return min(max(receptacles, fewest), most) if self.one_each else rng.randint(fewest, most)


@dataclass(frozen=True)
class Furnishing:
    """Which things a room has and how they are spread. The defaults make small rooms that resemble each other."""

    rooms: Literal["kitchen_or_bedroom", "studio"] = "kitchen_or_bedroom"
    """studio: one room with the things of a whole flat, so that all six task types are set in it."""
    most_receptacles_alike: int = 3
    """Receptacles of a kind in a room at most, except kinds of which there is one only, such as fridge."""
    most_objects_alike: int = 3
    """Objects of a kind in a room at most."""
    receptacles_alike: float = 0.0
    """Probability that the next receptacle is of a kind that the room has already."""
    objects_alike: float = 0.35
    """The same for objects."""
    appliances: float = 0.9
    """Probability of each of fridge, microwave and sinkbasin, in rooms that may have them."""
    lamp: float = 0.8
    """Probability of a desk lamp, in rooms that may have one."""
    opened: float = 0.1
    """Probability that a receptacle with a door is open at the start."""
    spread: Literal["crowded", "even"] = "crowded"
    """crowded: things gather where things are. even: no receptacle stays empty while there are objects for it."""

    def __post_init__(self) -> None:
        for name in ("most_receptacles_alike", "most_objects_alike"):
            if not 1 <= getattr(self, name) <= _LARGEST:
                raise ConfigError(f"furnishing.{name}: {getattr(self, name)} is not within 1..{_LARGEST}")
        for name in ("receptacles_alike", "objects_alike", "appliances", "lamp", "opened"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"furnishing.{name}: {getattr(self, name)} is not a probability")


@dataclass(frozen=True)
class Receptacle:
    """A place in a room."""

    kind: str
    number: int
    openable: bool = False
    opened: bool = False

    @property
    def name(self) -> str:
        """As the engine prints it."""
        return f"{self.kind} {self.number}"


@dataclass(frozen=True)
class Item:
    """A thing in a room and where it lies at the start."""

    kind: str
    number: int
    place: Receptacle

    @property
    def name(self) -> str:
        """As the engine prints it."""
        return f"{self.kind} {self.number}"


@dataclass(frozen=True)
class Room:
    """One room: what stands in it and where everything lies before the first action."""

    seed: int
    kind: Literal["kitchen", "bedroom", "studio"]
    receptacles: tuple[Receptacle, ...]
    items: tuple[Item, ...]

    @property
    def layout_key(self) -> tuple:
        """Equal for two rooms exactly when they are the same room, whatever their seeds."""
        return (
            tuple(sorted((r.name, r.openable, r.opened) for r in self.receptacles)),
            tuple(sorted((i.name, i.place.name) for i in self.items)),
        )


@dataclass(frozen=True)
class Task:
    """What is asked for, over kinds of things as in ALFRED ("put a clean mug in cabinet")."""

    type: str
    object: str
    receptacle: str = ""
    """Kind of the destination; empty for look_at_obj_in_light."""
    lamp: str = ""

    def sentence(self, variant: int = 0) -> str:
        """One of the two wordings ALFWorld has for the task type."""
        template = _SENTENCES[self.type][variant % 2]
        return template.format(object=self.object, receptacle=self.receptacle, lamp=self.lamp)


def listing_order(name: str) -> tuple[str, int]:
    """Sort key of the engine's listings: by kind, and within a kind the largest number first."""
    kind, _, number = name.rpartition(" ")
    return kind, -int(number)


def sample_room(seed: int, sizes: RoomSizes = RoomSizes(), furnishing: Furnishing = Furnishing()) -> Room:
    """A room in which at least one task is solvable; a pure function of its arguments."""
    rng = random.Random(f"room/{seed}/{sizes.receptacles}/{sizes.objects}")
    while True:
        kind: Literal["kitchen", "bedroom", "studio"] = "studio"
        if furnishing.rooms == "kitchen_or_bedroom":
            kind = "kitchen" if rng.random() < _KITCHEN_SHARE else "bedroom"
        receptacles = _sample_receptacles(rng, kind, rng.randint(*sizes.receptacles), furnishing)
        items = _sample_items(rng, kind, receptacles, sizes.draw_objects(rng, len(receptacles)), furnishing)
        room = Room(seed, kind, receptacles, items)
        if tasks_of(room):
            return room


def _sample_receptacles(
    rng: random.Random, room_kind: str, count: int, furnishing: Furnishing
) -> tuple[Receptacle, ...]:
    kinds: list[str] = []
    if room_kind != "bedroom":
        kinds += [rng.choice(("countertop", "diningtable"))]
        kinds += [a for a in APPLIANCES if rng.random() < furnishing.appliances]
    if room_kind != "kitchen":
        kinds.append(rng.choice(LAMP_PLACES))
    pool = ROOM_KINDS[room_kind].receptacles
    kinds = kinds[:count]
    most = {kind: 1 if kind in SINGLE else furnishing.most_receptacles_alike for kind in pool}
    while len(kinds) < count and any(kinds.count(kind) < most[kind] for kind in pool):
        again = [kind for kind in pool if 0 < kinds.count(kind) < most[kind]]
        kind = _next_kind(rng, again, pool, furnishing.receptacles_alike)
        if kinds.count(kind) < most[kind]:
            kinds.append(kind)
    seen: Counter[str] = Counter()
    receptacles = []
    for kind in kinds:
        seen[kind] += 1
        # Real scenes have a few cabinets and drawers that are shut for good as far as the engine cares: it then
        # prints their contents like a shelf's.
        openable = kind in OPENABLE and not (kind in ("cabinet", "drawer") and rng.random() < 0.05)
        receptacles.append(Receptacle(kind, seen[kind], openable, openable and rng.random() < furnishing.opened))
    return tuple(receptacles)


def _sample_items(
    rng: random.Random, room_kind: str, receptacles: tuple[Receptacle, ...], count: int, furnishing: Furnishing
) -> tuple[Item, ...]:
    names = ROOM_KINDS[room_kind].objects
    pool = [name for name in names if any(OBJECTS[name].fits(r.kind) for r in receptacles)]
    items: list[Item] = []
    seen: Counter[str] = Counter()
    lit = [r for r in receptacles if r.kind in LAMP_PLACES]
    if room_kind != "kitchen" and lit and rng.random() < furnishing.lamp:
        items.append(Item(LAMP, 1, rng.choice(lit)))
    most = furnishing.most_objects_alike
    while len(items) < count and any(seen[kind] < most for kind in pool):
        there: Sequence[Receptacle] = receptacles
        if furnishing.spread == "even":
            empty = _empty_ones(receptacles, items, [kind for kind in pool if seen[kind] < most])
            there = [rng.choice(empty)] if empty else receptacles
        fitting = [kind for kind in pool if any(OBJECTS[kind].fits(r.kind) for r in there)]
        again = [kind for kind in seen if kind in fitting and seen[kind] < most]
        kind = _next_kind(rng, again, fitting, furnishing.objects_alike)
        if seen[kind] >= most:
            continue
        places = [r for r in there if OBJECTS[kind].fits(r.kind)]
        # In crowded rooms things gather where things already are, so that listings of several objects are common.
        crowd = [1 + sum(item.place == place for item in items) for place in places]
        seen[kind] += 1
        items.append(Item(kind, seen[kind], rng.choices(places, crowd if furnishing.spread == "crowded" else None)[0]))
    return tuple(items)


def _empty_ones(receptacles: Sequence[Receptacle], items: Sequence[Item], kinds: Sequence[str]) -> list[Receptacle]:
    """The receptacles in which nothing lies though one of `kinds` could."""
    taken = {item.place.name for item in items}
    return [r for r in receptacles if r.name not in taken and any(OBJECTS[kind].fits(r.kind) for kind in kinds)]


def _next_kind(rng: random.Random, again: Sequence[str], pool: Sequence[str], alike: float) -> str:
    """With probability `alike` one of `again`, if there are any, else one of `pool`."""
    return rng.choice(again) if again and alike and rng.random() < alike else rng.choice(pool)


def tasks_of(room: Room) -> tuple[Task, ...]:
    """Every task that can be solved in the room and is not solved yet, in a fixed order."""
    here = sorted({r.kind for r in room.receptacles})
    counts = Counter(item.kind for item in room.items if item.kind != LAMP)
    lamp = any(item.kind == LAMP for item in room.items)
    tasks = []
    for kind in sorted(counts):
        if lamp:
            tasks.append(Task("look_at_obj_in_light", kind, lamp=LAMP))
        for place in here:
            if not OBJECTS[kind].fits(place):
                continue
            held = Counter(item.place.name for item in room.items if item.kind == kind and item.place.kind == place)
            if not held:
                tasks.append(Task("pick_and_place_simple", kind, place))
            if counts[kind] >= 2 and max(held.values(), default=0) < 2:
                tasks.append(Task("pick_two_obj_and_place", kind, place))
            for task_type, (verb, appliance, _) in TRANSFORMS.items():
                if OBJECTS[kind].can(verb) and appliance in here:
                    tasks.append(Task(task_type, kind, place))
    allowed = ROOM_KINDS[room.kind].tasks
    return tuple(task for task in tasks if task.type in allowed)


def sample_tasks(room: Room, rng: random.Random, count: int) -> tuple[Task, ...]:
    """`count` tasks of the room, types balanced over many rooms, none twice while there are others."""
    chosen: list[Task] = []
    left = list(tasks_of(room))
    for _ in range(count):
        if not left:
            left = list(tasks_of(room))
        types = sorted({task.type for task in left})
        task_type = rng.choices(types, [ROOM_KINDS[room.kind].tasks[t] for t in types])[0]
        task = rng.choice([task for task in left if task.type == task_type])
        left.remove(task)
        chosen.append(task)
    return tuple(chosen)
