"""Household rooms sampled from a seed, and the PDDL problems that make the ALFWorld engine play them.

Standard library only: sampling a room needs no engine. The kinds of things, what can be done with them and where
they may lie are the subset of ALFRED's tables that the rooms use; a test compares them with the engine's own.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from maskworld.errors import ConfigError

TaskType = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]

LAMP = "desklamp"
OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
_SINGLE = frozenset({"fridge", "microwave", "sinkbasin", "coffeemachine", "bed", "safe", "desk", "garbagecan"})
_LAMP_PLACES = ("desk", "sidetable", "dresser", "shelf")
_MOST_OF_A_KIND = 3
_LARGEST = 16


@dataclass(frozen=True)
class Kind:
    """What an object kind affords and which receptacle kinds may hold it (words separated by blanks)."""

    affords: str
    places: str

    def can(self, verb: str) -> bool:
        return verb in self.affords.split()

    def fits(self, receptacle_kind: str) -> bool:
        return receptacle_kind in self.places.split()


# "hold" marks ALFRED's movable receptacles: the engine describes them by what lies in them (here always nothing).
OBJECTS: dict[str, Kind] = {
    "alarmclock": Kind("", "countertop diningtable shelf desk dresser sidetable"),
    "apple": Kind("heat cool clean slice", "countertop fridge microwave sinkbasin garbagecan diningtable sidetable"),
    "book": Kind("", "countertop cabinet drawer diningtable shelf desk bed dresser sidetable armchair"),
    "bowl": Kind(
        "cool clean hold", "countertop cabinet fridge microwave sinkbasin diningtable shelf desk dresser sidetable"
    ),
    "bread": Kind("heat cool slice", "countertop fridge microwave garbagecan diningtable sidetable"),
    "butterknife": Kind("clean", "countertop drawer sinkbasin diningtable sidetable"),
    "cd": Kind("", "countertop cabinet drawer garbagecan diningtable shelf desk dresser sidetable safe"),
    "cellphone": Kind("", "countertop drawer diningtable shelf desk bed dresser sidetable safe armchair"),
    "creditcard": Kind("", "countertop drawer diningtable shelf desk dresser sidetable safe armchair"),
    "cup": Kind(
        "heat cool clean hold", "countertop cabinet fridge microwave sinkbasin diningtable shelf desk dresser sidetable"
    ),
    "dishsponge": Kind("clean", "countertop cabinet drawer sinkbasin garbagecan diningtable shelf sidetable"),
    "egg": Kind("heat cool clean slice", "countertop fridge microwave sinkbasin garbagecan diningtable sidetable"),
    "fork": Kind("clean", "countertop drawer sinkbasin diningtable sidetable"),
    "kettle": Kind("clean", "countertop cabinet sinkbasin diningtable stoveburner shelf sidetable"),
    "keychain": Kind("", "countertop drawer diningtable shelf desk dresser sidetable safe armchair"),
    "knife": Kind("clean", "countertop drawer sinkbasin diningtable sidetable"),
    "ladle": Kind("clean", "countertop cabinet drawer sinkbasin diningtable sidetable"),
    "laptop": Kind("", "countertop diningtable desk bed dresser sidetable armchair"),
    "lettuce": Kind("cool clean slice", "countertop fridge sinkbasin garbagecan diningtable sidetable"),
    "mug": Kind(
        "heat cool clean hold",
        "countertop cabinet fridge microwave sinkbasin diningtable shelf coffeemachine desk dresser sidetable",
    ),
    "pan": Kind("cool clean hold", "countertop cabinet fridge sinkbasin diningtable stoveburner sidetable"),
    "pen": Kind("", "countertop drawer garbagecan diningtable shelf desk dresser sidetable"),
    "pencil": Kind("", "countertop drawer garbagecan diningtable shelf desk dresser sidetable"),
    "peppershaker": Kind("", "countertop cabinet drawer diningtable shelf sidetable"),
    "pillow": Kind("", "bed armchair"),
    "plate": Kind(
        "heat cool clean hold", "countertop cabinet fridge microwave sinkbasin diningtable shelf desk dresser sidetable"
    ),
    "pot": Kind("cool clean hold", "countertop cabinet fridge sinkbasin diningtable stoveburner shelf sidetable"),
    "potato": Kind("heat cool clean slice", "countertop fridge microwave sinkbasin garbagecan diningtable sidetable"),
    "remotecontrol": Kind("", "countertop drawer diningtable shelf desk dresser sidetable armchair"),
    "saltshaker": Kind("", "countertop cabinet drawer diningtable shelf sidetable"),
    "soapbottle": Kind("", "countertop cabinet drawer garbagecan diningtable shelf desk sidetable"),
    "spatula": Kind("clean", "countertop drawer sinkbasin diningtable sidetable"),
    "spoon": Kind("clean", "countertop drawer sinkbasin diningtable sidetable"),
    "statue": Kind("", "countertop diningtable shelf desk dresser sidetable safe"),
    "tomato": Kind("heat cool clean slice", "countertop fridge microwave sinkbasin garbagecan diningtable sidetable"),
    "vase": Kind("", "countertop cabinet diningtable shelf desk dresser sidetable safe"),
    "watch": Kind("", "countertop drawer diningtable shelf desk dresser sidetable safe"),
    "winebottle": Kind("cool", "countertop cabinet fridge garbagecan diningtable shelf desk dresser sidetable"),
    LAMP: Kind("toggle", ""),
}

_KITCHEN_OBJECTS = (
    "apple bread egg lettuce potato tomato mug plate bowl cup pan pot kettle fork spoon knife butterknife spatula "
    "ladle dishsponge saltshaker peppershaker soapbottle winebottle"
).split()
_BEDROOM_OBJECTS = (
    "alarmclock book cd cellphone creditcard keychain laptop mug bowl pen pencil pillow remotecontrol statue vase watch"
).split()
_KITCHEN_RECEPTACLES = "countertop cabinet drawer diningtable shelf stoveburner garbagecan coffeemachine".split()
_BEDROOM_RECEPTACLES = "desk drawer dresser sidetable garbagecan shelf bed safe armchair".split()
_APPLIANCES = ("fridge", "microwave", "sinkbasin")

# Weights that give the six types nearly equal shares over kitchens and bedrooms together.
_KITCHEN_SHARE = 0.625
_TASK_WEIGHTS: dict[str, dict[str, float]] = {
    "kitchen": {
        "pick_and_place_simple": 1,
        "pick_clean_then_place_in_recep": 3,
        "pick_heat_then_place_in_recep": 4.5,
        "pick_cool_then_place_in_recep": 3,
        "pick_two_obj_and_place": 1,
    },
    "bedroom": {"pick_and_place_simple": 2, "look_at_obj_in_light": 4.5, "pick_two_obj_and_place": 3},
}
TASK_TYPES: tuple[str, ...] = tuple(_TASK_WEIGHTS["kitchen"]) + ("look_at_obj_in_light",)

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

    def __post_init__(self) -> None:
        for name, (low, high) in (("receptacles", self.receptacles), ("objects", self.objects)):
            if not 2 <= low <= high <= _LARGEST:
                raise ConfigError(f"sizes.{name}: ({low}, {high}) is no range within 2..{_LARGEST}")


@dataclass(frozen=True)
class Receptacle:
    kind: str
    number: int
    openable: bool = False
    opened: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind} {self.number}"


@dataclass(frozen=True)
class Item:
    kind: str
    number: int
    place: Receptacle

    @property
    def name(self) -> str:
        return f"{self.kind} {self.number}"


@dataclass(frozen=True)
class Room:
    """One room: what stands in it and where everything lies before the first action."""

    seed: int
    kind: Literal["kitchen", "bedroom"]
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


def sample_room(seed: int, sizes: RoomSizes = RoomSizes()) -> Room:
    """A room in which at least one task is solvable; a pure function of (seed, sizes)."""
    rng = random.Random(f"room/{seed}/{sizes.receptacles}/{sizes.objects}")
    while True:
        kind: Literal["kitchen", "bedroom"] = "kitchen" if rng.random() < _KITCHEN_SHARE else "bedroom"
        receptacles = _sample_receptacles(rng, kind, rng.randint(*sizes.receptacles))
        items = _sample_items(rng, kind, receptacles, rng.randint(*sizes.objects))
        room = Room(seed, kind, receptacles, items)
        if tasks_of(room):
            return room


def _sample_receptacles(rng: random.Random, room_kind: str, count: int) -> tuple[Receptacle, ...]:
    if room_kind == "kitchen":
        kinds = [rng.choice(("countertop", "diningtable")), *(a for a in _APPLIANCES if rng.random() < 0.9)]
        pool = _KITCHEN_RECEPTACLES
    else:
        kinds, pool = [rng.choice(_LAMP_PLACES)], _BEDROOM_RECEPTACLES
    kinds = kinds[:count]
    while len(kinds) < count:
        kind = rng.choice(pool)
        if kinds.count(kind) < (1 if kind in _SINGLE else _MOST_OF_A_KIND):
            kinds.append(kind)
    seen: Counter[str] = Counter()
    receptacles = []
    for kind in kinds:
        seen[kind] += 1
        # Real scenes have a few cabinets and drawers that are shut for good as far as the engine cares: it then
        # prints their contents like a shelf's.
        openable = kind in OPENABLE and not (kind in ("cabinet", "drawer") and rng.random() < 0.05)
        receptacles.append(Receptacle(kind, seen[kind], openable, openable and rng.random() < 0.1))
    return tuple(receptacles)


def _sample_items(
    rng: random.Random, room_kind: str, receptacles: tuple[Receptacle, ...], count: int
) -> tuple[Item, ...]:
    names = _KITCHEN_OBJECTS if room_kind == "kitchen" else _BEDROOM_OBJECTS
    pool = [name for name in names if any(OBJECTS[name].fits(r.kind) for r in receptacles)]
    items: list[Item] = []
    seen: Counter[str] = Counter()
    lit = [r for r in receptacles if r.kind in _LAMP_PLACES]
    if room_kind == "bedroom" and lit and rng.random() < 0.8:
        items.append(Item(LAMP, 1, rng.choice(lit)))
    while len(items) < count:
        again = [kind for kind in seen if seen[kind] < _MOST_OF_A_KIND]
        kind = rng.choice(again) if again and rng.random() < 0.35 else rng.choice(pool)
        if seen[kind] >= _MOST_OF_A_KIND:
            continue
        places = [r for r in receptacles if OBJECTS[kind].fits(r.kind)]
        # Things gather where things already are, so that listings of several objects are common.
        crowd = [1 + sum(item.place == place for item in items) for place in places]
        seen[kind] += 1
        items.append(Item(kind, seen[kind], rng.choices(places, crowd)[0]))
    return tuple(items)


def tasks_of(room: Room) -> tuple[Task, ...]:
    """Every task that can be solved in the room and is not solved yet, in a fixed order."""
    here = sorted({r.kind for r in room.receptacles})
    counts = Counter(item.kind for item in room.items if item.kind != LAMP)
    lamp = any(item.kind == LAMP for item in room.items)
    tasks = []
    for kind in sorted(counts):
        if lamp and room.kind == "bedroom":
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
    allowed = _TASK_WEIGHTS[room.kind]
    return tuple(task for task in tasks if task.type in allowed)


def sample_tasks(room: Room, rng: random.Random, count: int) -> tuple[Task, ...]:
    """`count` tasks of the room, types balanced over many rooms, none twice while there are others."""
    chosen: list[Task] = []
    left = list(tasks_of(room))
    for _ in range(count):
        if not left:
            left = list(tasks_of(room))
        types = sorted({task.type for task in left})
        task_type = rng.choices(types, [_TASK_WEIGHTS[room.kind][t] for t in types])[0]
        task = rng.choice([task for task in left if task.type == task_type])
        left.remove(task)
        chosen.append(task)
    return tuple(chosen)
