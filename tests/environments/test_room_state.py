"""Facts, their text, and what actions do to both."""

from __future__ import annotations

from maskworld.environments.room_state import MIDDLE, Layout, RoomState, render_state

LAYOUT = Layout(
    receptacles=("desk 1", "fridge 1", "shelf 2", "shelf 1"),
    objects=("desklamp 1", "mug 10", "mug 2", "pen 1", "pencil 1"),
    openable=frozenset({"fridge 1"}),
    fits=frozenset({("shelf", "mug")}),
)
START = RoomState(
    frozenset(
        {
            "atlocation(middle)",
            "inreceptacle(desklamp 1, desk 1)",
            "inreceptacle(pen 1, desk 1)",
            "inreceptacle(mug 2, desk 1)",
            "inreceptacle(mug 10, desk 1)",
            "inreceptacle(pencil 1, fridge 1)",
        }
    )
)


def test_the_text_lists_every_receptacle_with_its_contents_in_the_engines_order():
    assert render_state(LAYOUT, START).splitlines() == [
        "On the desk 1, you see a desklamp 1, a mug 10, a mug 2, and a pen 1.",
        "The fridge 1 is closed. In it, you see a pencil 1.",
        "On the shelf 2, you see nothing.",
        "On the shelf 1, you see nothing.",
    ]


def test_the_text_shows_everything_that_actions_change():
    added = {
        "atlocation(shelf 2)",
        "holds(pen 1)",
        "opened(fridge 1)",
        "istoggled(desklamp 1)",
        "ison(desklamp 1)",
        "ishot(mug 2)",
        "isclean(mug 2)",
    }
    state = START.after(added, {"atlocation(middle)", "inreceptacle(pen 1, desk 1)"})
    assert render_state(LAYOUT, state).splitlines() == [
        "On the desk 1, you see a desklamp 1, a mug 10, and a mug 2.",
        "The fridge 1 is open. In it, you see a pencil 1.",
        "On the shelf 2, you see nothing.",
        "On the shelf 1, you see nothing.",
        "The desklamp 1 is on.",
        "The mug 2 is clean and hot.",
        "You are at the shelf 2.",
        "You are carrying a pen 1.",
    ]


def test_place_hands_and_contents_come_from_the_facts():
    assert (START.place, START.held) == (MIDDLE, "")
    state = START.after({"atlocation(desk 1)", "holds(mug 2)"}, {"atlocation(middle)", "inreceptacle(mug 2, desk 1)"})
    assert (state.place, state.held) == ("desk 1", "mug 2")
    assert state.contents("desk 1") == ["desklamp 1", "mug 10", "pen 1"]
    assert START.contents("desk 1") == ["desklamp 1", "mug 10", "mug 2", "pen 1"]
    assert state.after({"inreceptacle(mug 2, desk 1)"}, {"holds(mug 2)"}).places()["mug 2"] == "desk 1"


def test_what_may_be_moved_where_goes_by_kind():
    assert LAYOUT.accepts("shelf 1", "mug 10")
    assert not LAYOUT.accepts("shelf 1", "pen 1")
