"""Kinds of things in household rooms: what can be done with them, where they may lie, which rooms have them.

The subset of ALFRED's tables that the rooms use; a test compares it with the engine's own. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

LAMP = "desklamp"
LAMP_PLACES = ("desk", "sidetable", "dresser", "shelf")
OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
SINGLE = frozenset({"fridge", "microwave", "sinkbasin", "coffeemachine", "bed", "safe", "desk", "garbagecan"})
"""Receptacle kinds of which ALFRED's scenes have one at most."""
APPLIANCES = ("fridge", "microwave", "sinkbasin")


@dataclass(frozen=True)
class Kind:
    """What an object kind affords and which receptacle kinds may hold it (words separated by blanks)."""

    affords: str
    places: str

    def can(self, verb: str) -> bool:
        """Whether `verb` works on it."""
        return verb in self.affords.split()

    def fits(self, receptacle_kind: str) -> bool:
        """Whether it may lie in or on receptacles of that kind."""
        return receptacle_kind in self.places.split()


_TABLES = "countertop diningtable coffeetable sidetable"
_SEATS = "armchair sofa ottoman"
# "hold" marks ALFRED's movable receptacles: the engine describes them by what lies in them (here always nothing).
OBJECTS: dict[str, Kind] = {
    "alarmclock": Kind("", f"{_TABLES} shelf desk dresser"),
    "apple": Kind("heat cool clean slice", f"{_TABLES} fridge microwave sinkbasin garbagecan"),
    "baseballbat": Kind("", f"{_TABLES} bed"),
    "basketball": Kind("", f"{_TABLES} {_SEATS} desk bed dresser"),
    "book": Kind("", f"{_TABLES} {_SEATS} cabinet drawer shelf desk bed dresser"),
    "bowl": Kind("cool clean hold", f"{_TABLES} cabinet fridge microwave sinkbasin shelf desk dresser"),
    "box": Kind("hold", f"{_TABLES} {_SEATS} cabinet shelf desk dresser"),
    "bread": Kind("heat cool slice", f"{_TABLES} fridge microwave garbagecan"),
    "butterknife": Kind("clean", f"{_TABLES} drawer sinkbasin"),
    "candle": Kind("", f"{_TABLES} cabinet drawer shelf cart desk dresser"),
    "cd": Kind("", f"{_TABLES} cabinet drawer garbagecan shelf desk dresser safe"),
    "cellphone": Kind("", f"{_TABLES} {_SEATS} drawer shelf desk bed dresser safe"),
    "cloth": Kind("clean", f"{_TABLES} {_SEATS} cabinet drawer sinkbasin garbagecan shelf cart desk dresser"),
    "creditcard": Kind("", f"{_TABLES} {_SEATS} drawer shelf desk dresser safe"),
    "cup": Kind("heat cool clean hold", f"{_TABLES} cabinet fridge microwave sinkbasin shelf desk dresser"),
    "dishsponge": Kind("clean", f"{_TABLES} cabinet drawer sinkbasin garbagecan shelf cart"),
    "egg": Kind("heat cool clean slice", f"{_TABLES} fridge microwave sinkbasin garbagecan"),
    "fork": Kind("clean", f"{_TABLES} drawer sinkbasin"),
    "glassbottle": Kind("", f"{_TABLES} cabinet fridge microwave sinkbasin shelf desk dresser"),
    "handtowel": Kind("", f"{_TABLES} cabinet drawer sinkbasin garbagecan shelf cart"),
    "kettle": Kind("clean", f"{_TABLES} cabinet sinkbasin stoveburner shelf"),
    "keychain": Kind("", f"{_TABLES} {_SEATS} drawer shelf desk dresser safe"),
    "knife": Kind("clean", f"{_TABLES} drawer sinkbasin"),
    "ladle": Kind("clean", f"{_TABLES} cabinet drawer sinkbasin"),
    "laptop": Kind("", f"{_TABLES} {_SEATS} desk bed dresser"),
    "lettuce": Kind("cool clean slice", f"{_TABLES} fridge sinkbasin garbagecan"),
    "mug": Kind(
        "heat cool clean hold", f"{_TABLES} cabinet fridge microwave sinkbasin shelf cart coffeemachine desk dresser"
    ),
    "newspaper": Kind("", f"{_TABLES} {_SEATS} cabinet drawer garbagecan shelf desk bed dresser"),
    "pan": Kind("cool clean hold", f"{_TABLES} cabinet fridge sinkbasin stoveburner"),
    "papertowel": Kind("", f"{_TABLES} garbagecan shelf cart"),
    "pen": Kind("", f"{_TABLES} drawer garbagecan shelf desk dresser"),
    "pencil": Kind("", f"{_TABLES} drawer garbagecan shelf desk dresser"),
    "peppershaker": Kind("", f"{_TABLES} cabinet drawer shelf"),
    "pillow": Kind("", f"{_SEATS} bed"),
    "plate": Kind("heat cool clean hold", f"{_TABLES} cabinet fridge microwave sinkbasin shelf desk dresser"),
    "pot": Kind("cool clean hold", f"{_TABLES} cabinet fridge sinkbasin stoveburner shelf"),
    "potato": Kind("heat cool clean slice", f"{_TABLES} fridge microwave sinkbasin garbagecan"),
    "remotecontrol": Kind("", f"{_TABLES} {_SEATS} drawer shelf desk dresser"),
    "saltshaker": Kind("", f"{_TABLES} cabinet drawer shelf"),
    "soapbar": Kind("clean", f"{_TABLES} cabinet drawer sinkbasin garbagecan shelf cart"),
    "soapbottle": Kind("", f"{_TABLES} cabinet drawer garbagecan shelf cart desk"),
    "spatula": Kind("clean", f"{_TABLES} drawer sinkbasin"),
    "spoon": Kind("clean", f"{_TABLES} drawer sinkbasin"),
    "spraybottle": Kind("", f"{_TABLES} cabinet drawer garbagecan shelf cart desk dresser"),
    "statue": Kind("", f"{_TABLES} shelf cart desk dresser safe"),
    "tennisracket": Kind("", f"{_TABLES} desk bed dresser"),
    "tissuebox": Kind("", f"{_TABLES} cabinet drawer garbagecan shelf cart desk dresser"),
    "toiletpaper": Kind("", f"{_TABLES} cabinet drawer garbagecan shelf cart desk dresser"),
    "tomato": Kind("heat cool clean slice", f"{_TABLES} fridge microwave sinkbasin garbagecan"),
    "vase": Kind("", f"{_TABLES} cabinet shelf cart desk dresser safe"),
    "watch": Kind("", f"{_TABLES} drawer shelf desk dresser safe"),
    "wateringcan": Kind("", f"{_TABLES} cabinet drawer shelf desk dresser"),
    "winebottle": Kind("cool", f"{_TABLES} cabinet fridge garbagecan shelf desk dresser"),
    LAMP: Kind("toggle", ""),
}


@dataclass(frozen=True)
class RoomKind:
    """What a kind of room is furnished from."""

    objects: tuple[str, ...]
    receptacles: tuple[str, ...]
    tasks: dict[str, float]
    """Weight of every task type that is set in the room."""


KITCHEN = RoomKind(
    tuple(
        "apple bread egg lettuce potato tomato mug plate bowl cup pan pot kettle fork spoon knife butterknife spatula "
        "ladle dishsponge saltshaker peppershaker soapbottle winebottle".split()
    ),
    tuple("countertop cabinet drawer diningtable shelf stoveburner garbagecan coffeemachine".split()),
    {
        "pick_and_place_simple": 1,
        "pick_clean_then_place_in_recep": 3,
        "pick_heat_then_place_in_recep": 4.5,
        "pick_cool_then_place_in_recep": 3,
        "pick_two_obj_and_place": 1,
    },
)
BEDROOM = RoomKind(
    tuple(
        "alarmclock book cd cellphone creditcard keychain laptop mug bowl pen pencil pillow remotecontrol statue vase "
        "watch".split()
    ),
    tuple("desk drawer dresser sidetable garbagecan shelf bed safe armchair".split()),
    {"pick_and_place_simple": 2, "look_at_obj_in_light": 4.5, "pick_two_obj_and_place": 3},
)
STUDIO = RoomKind(
    tuple(kind for kind in OBJECTS if kind != LAMP),
    tuple(
        "countertop diningtable coffeetable sidetable desk dresser shelf cart bed armchair sofa ottoman garbagecan "
        "safe cabinet drawer".split()
    ),
    dict.fromkeys((*KITCHEN.tasks, "look_at_obj_in_light"), 1),
)
ROOM_KINDS = {"kitchen": KITCHEN, "bedroom": BEDROOM, "studio": STUDIO}
