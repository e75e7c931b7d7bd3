"""Rooms and tasks are functions of their seeds, solvable, and stay within ALFRED's tables. No engine needed."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from maskworld.environments.pddl import pddl_problem
from maskworld.environments.rooms import (
    LAMP,
    OBJECTS,
    OPENABLE,
    TASK_TYPES,
    TRANSFORMS,
    Furnishing,
    Room,
    RoomSizes,
    listing_order,
    sample_room,
    sample_tasks,
    tasks_of,
)
from maskworld.errors import ConfigError

ROOMS = [sample_room(seed) for seed in range(300)]


def test_a_seed_names_one_room():
    assert [sample_room(seed) for seed in range(300)] == ROOMS
    assert len({room.layout_key for room in ROOMS}) == len(ROOMS)


def test_sizes_are_respected_and_all_occur():
    assert {len(room.receptacles) for room in ROOMS} == set(range(4, 9))
    assert {len(room.items) for room in ROOMS} == set(range(4, 9))
    large = sample_room(3, RoomSizes((12, 12), (16, 16)))
    assert (len(large.receptacles), len(large.items)) == (12, 16)


STUDIO = Furnishing(
    rooms="studio",
    most_receptacles_alike=5,
    most_objects_alike=4,
    receptacles_alike=0.8,
    objects_alike=0.8,
    opened=1.0,
    lamp=0.0,
    spread="even",
)


def test_a_furnishing_is_respected():
    rooms = [sample_room(seed, RoomSizes((8, 8), (12, 12)), STUDIO) for seed in range(40)]
    assert {room.kind for room in rooms} == {"studio"}
    alike = [Counter(r.kind for r in room.receptacles).most_common(1)[0][1] for room in rooms]
    assert max(alike) == 5
    assert max(max(Counter(i.kind for i in room.items).values()) for room in rooms) == 4
    assert not any(item.kind == LAMP for room in rooms for item in room.items)
    for room in rooms:
        assert all(r.opened for r in room.receptacles if r.openable)
        assert {item.place for item in room.items} == set(room.receptacles), "a receptacle stayed empty"


def test_a_room_holds_fewer_things_where_the_furnishing_has_no_more_of_them():
    one_each = Furnishing(most_receptacles_alike=1, most_objects_alike=1)
    for seed in range(20):
        room = sample_room(seed, RoomSizes((16, 16), (16, 16)), one_each)
        assert max(Counter(r.kind for r in room.receptacles).values()) == 1
        assert max(Counter(i.kind for i in room.items).values()) == 1


def test_one_each_gives_a_room_as_many_things_as_places():
    sizes = RoomSizes((2, 8), (3, 7), one_each=True)
    rooms = [sample_room(seed, sizes, STUDIO) for seed in range(60)]
    assert {len(room.receptacles) for room in rooms} == set(range(2, 9))
    assert all(len(room.items) == min(max(len(room.receptacles), 3), 7) for room in rooms)


@pytest.mark.parametrize("values", [{"opened": 1.5}, {"lamp": float("nan")}, {"most_objects_alike": 0}])
def test_a_furnishing_that_makes_no_room_is_refused(values: dict):
    with pytest.raises(ConfigError, match=next(iter(values))):
        Furnishing(**values)


@pytest.mark.parametrize("sizes", [{"receptacles": (5, 4)}, {"objects": (0, 3)}, {"objects": (4, 99)}])
def test_sizes_that_make_no_room_are_refused(sizes: dict):
    with pytest.raises(ConfigError, match=next(iter(sizes))):
        RoomSizes(**sizes)


def test_everything_lies_where_alfred_lets_it_lie():
    for room in [*ROOMS, *(sample_room(seed, RoomSizes((8, 10), (10, 14)), STUDIO) for seed in range(40))]:
        things = [*room.receptacles, *room.items]
        assert len({thing.name for thing in things}) == len(things)
        for item in room.items:
            assert item.place in room.receptacles
            assert item.kind == LAMP or OBJECTS[item.kind].fits(item.place.kind)


def holds_at_start(room: Room, task) -> bool:
    if task.type in TRANSFORMS or task.type == "look_at_obj_in_light":
        return False
    there = Counter(i.place.name for i in room.items if i.kind == task.object and i.place.kind == task.receptacle)
    return max(there.values(), default=0) >= (2 if task.type == "pick_two_obj_and_place" else 1)


def test_tasks_are_neither_impossible_nor_already_done():
    for room in ROOMS:
        kinds = Counter(item.kind for item in room.items)
        here = {r.kind for r in room.receptacles}
        assert tasks_of(room)
        for task in tasks_of(room):
            assert kinds[task.object] >= (2 if task.type == "pick_two_obj_and_place" else 1)
            assert not holds_at_start(room, task)
            if task.type in TRANSFORMS:
                verb, appliance, _ = TRANSFORMS[task.type]
                assert OBJECTS[task.object].can(verb)
                assert appliance in here
            if task.type == "look_at_obj_in_light":
                assert kinds[LAMP]
            else:
                assert task.receptacle in here
                assert OBJECTS[task.object].fits(task.receptacle)


def test_all_six_task_types_are_about_equally_frequent():
    drawn = Counter(task.type for room in ROOMS for task in sample_tasks(room, random.Random(room.seed), 2))
    assert set(drawn) == set(TASK_TYPES)
    assert len(TASK_TYPES) == 6
    assert min(drawn.values()) > 0.1 * sum(drawn.values())


def test_a_room_repeats_a_task_only_when_it_has_no_other():
    for room in ROOMS[:50]:
        available = len(tasks_of(room))
        drawn = sample_tasks(room, random.Random(0), 5)
        assert len(drawn) == 5
        assert len(set(drawn)) == min(5, available)


def test_sentences_name_the_things_asked_for():
    for task in tasks_of(ROOMS[0]):
        for variant in (0, 1):
            assert task.object in task.sentence(variant)
            assert (task.receptacle or task.lamp) in task.sentence(variant)


def test_the_listing_goes_by_kind_then_down_by_number():
    names = ["shelf 1", "cabinet 2", "shelf 10", "shelf 2", "cabinet 1"]
    assert sorted(names, key=listing_order) == ["cabinet 2", "cabinet 1", "shelf 10", "shelf 2", "shelf 1"]


def test_a_problem_states_what_is_shut_and_where_things_are():
    room = next(room for room in ROOMS if any(r.kind == "fridge" and not r.opened for r in room.receptacles))
    text = pddl_problem(room, tasks_of(room)[0])
    assert text.count("(inReceptacle ") >= len(room.items)
    assert text.count("(openable ") == sum(r.openable for r in room.receptacles)
    assert text.count("(opened ") == sum(r.opened for r in room.receptacles)
    assert text.count("(") == text.count(")")


def test_the_tables_are_a_part_of_the_engines_own():
    constants = pytest.importorskip("alfworld.gen.constants", reason="needs pip install -e .[envs]")
    lower = {place.lower(): {o.lower() for o in held} for place, held in constants.VAL_RECEPTACLE_OBJECTS.items()}
    verbs = {"heat": "Heatable", "cool": "Coolable", "clean": "Cleanable", "slice": "Sliceable", "toggle": "Toggleable"}
    able = {verb: {o.lower() for o in constants.VAL_ACTION_OBJECTS[key]} for verb, key in verbs.items()}
    able["hold"] = {kind.lower() for kind in constants.MOVABLE_RECEPTACLES_SET}
    places = {place for kind in OBJECTS.values() for place in kind.places.split()}
    assert OPENABLE == places & {kind.lower() for kind in constants.OPENABLE_CLASS_LIST}
    for name, kind in OBJECTS.items():
        assert set(kind.affords.split()) == {verb for verb in able if name in able[verb]}, name
        if name != LAMP:
            assert {p for p in places if kind.fits(p)} == {p for p in places if name in lower[p]}, name
