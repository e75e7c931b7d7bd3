"""PDDL problem texts of rooms for ALFWorld's `alfred` domain (the domain itself comes with the engine)."""

from __future__ import annotations

from collections import Counter

from maskworld.environments.rooms import LAMP, OBJECTS, TRANSFORMS, Room, Task

_VERB_PREDICATES = {
    "clean": "cleanable",
    "heat": "heatable",
    "cool": "coolable",
    "slice": "sliceable",
    "toggle": "toggleable",
    "hold": "isReceptacleObject",
}
# The domain's actions name these types, so they must exist even in rooms without such things.
_DOMAIN_RECEPTACLE_TYPES = frozenset({"microwave", "fridge", "sinkbasin"})
_DOMAIN_OBJECT_TYPES = frozenset({"knife", "butterknife"})


def pddl_problem(room: Room, task: Task) -> str:
    """The problem text in which the engine names every thing exactly as the room does."""
    ids = _identifiers(room)
    rtypes = sorted({r.kind for r in room.receptacles} | _DOMAIN_RECEPTACLE_TYPES)
    otypes = sorted({i.kind for i in room.items} | _DOMAIN_OBJECT_TYPES)
    places = {r.name: f"loc_{index}" for index, r in enumerate(room.receptacles, start=1)}
    objects = ["agent1 - agent", "loc_0 - location", *(f"{place} - location" for place in places.values())]
    objects += [f"{kind}Type - rtype" for kind in rtypes] + [f"{kind}Type - otype" for kind in otypes]
    objects += [f"{ids[r.name]} - receptacle" for r in room.receptacles]
    objects += [f"{ids[i.name]} - object" for i in room.items]

    facts = ["= (total-cost) 0", "atLocation agent1 loc_0"]
    for r in room.receptacles:
        facts += [f"receptacleType {ids[r.name]} {r.kind}Type", f"receptacleAtLocation {ids[r.name]} {places[r.name]}"]
        facts += [f"openable {ids[r.name]}"] * r.openable + [f"opened {ids[r.name]}"] * r.opened
    for item in room.items:
        me = ids[item.name]
        facts += [f"objectType {me} {item.kind}Type", f"inReceptacle {me} {ids[item.place.name]}"]
        facts += [f"objectAtLocation {me} {places[item.place.name]}"]
        facts += [f"pickupable {me}"] * (item.kind != LAMP)
        facts += [f"{_VERB_PREDICATES[verb]} {me}" for verb in OBJECTS[item.kind].affords.split()]
    facts += [f"canContain {r}Type {o}Type" for r in rtypes for o in otypes if OBJECTS[o].fits(r)]
    return "\n".join(
        [
            "(define (problem room)",
            "(:domain alfred)",
            "(:objects",
            *objects,
            ")",
            "(:init",
            *(f"({fact})" for fact in facts),
            ")",
            f"(:goal {_goal(task)})",
            ")",
        ]
    )


def _identifiers(room: Room) -> dict[str, str]:
    """Name -> PDDL identifier.

    The engine numbers the identifiers of a kind from the end (the smallest one gets the largest number), and calls a
    thing `<first part>basin` when "basin" occurs anywhere in its identifier.
    """
    things = [*room.receptacles, *room.items]
    totals = Counter(thing.kind for thing in things)
    ids = {}
    for thing in things:
        rank = totals[thing.kind] - thing.number + 1
        stem, tail = (thing.kind[:-5], f"_bar_{thing.kind}") if thing.kind.endswith("basin") else (thing.kind, "")
        ids[thing.name] = f"{stem}_bar_{rank:02d}{tail}"
    return ids


def _goal(task: Task) -> str:
    if task.type == "look_at_obj_in_light":
        return (
            f"(and (exists (?t - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?t {task.lamp}Type)"
            " (toggleable ?t) (isToggled ?t) (inReceptacle ?t ?r) (receptacleAtLocation ?r ?l) (atLocation ?a ?l)))"
            f" (exists (?o - object ?a - agent) (and (objectType ?o {task.object}Type) (holds ?a ?o))))"
        )
    placed = f"(objectType {{0}} {task.object}Type) (inReceptacle {{0}} ?r)"
    where = f"(receptacleType ?r {task.receptacle}Type)"
    if task.type == "pick_two_obj_and_place":
        return (
            f"(exists (?r - receptacle ?o - object ?p - object) (and {where} (not (= ?o ?p)) "
            f"{placed.format('?o')} {placed.format('?p')}))"
        )
    extra = f" ({TRANSFORMS[task.type][2]} ?o)" if task.type in TRANSFORMS else ""
    return f"(exists (?r - receptacle ?o - object) (and {where} {placed.format('?o')}{extra}))"
