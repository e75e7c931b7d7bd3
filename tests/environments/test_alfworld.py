"""The engine adapter: remembering changes nothing, nothing leaks out, mistakes are named."""

from __future__ import annotations

import random
import sys

import pytest

from maskworld.environments.pddl import pddl_problem
from maskworld.environments.real.alfworld import AlfworldEngine
from maskworld.environments.room_state import RoomState
from maskworld.environments.rooms import RoomSizes, listing_order, sample_room, sample_tasks
from maskworld.errors import DataError

pytest.importorskip("alfworld", reason="the real engine is optional: pip install -e .[envs]")
USUAL, SMALL = RoomSizes(), RoomSizes((4, 6), (4, 6))


@pytest.fixture(scope="module")
def engine() -> AlfworldEngine:
    return AlfworldEngine()


def problem(seed: int, sizes: RoomSizes = USUAL) -> str:
    room = sample_room(seed, sizes)
    return pddl_problem(room, sample_tasks(room, random.Random(seed), 1)[0])


@pytest.mark.parametrize("seed", [0, 1])
def test_the_cached_engine_says_what_the_stock_engine_says(seed: int):
    # A fresh pair each time: what a cache remembers from one game must not show in the next either.
    cached, stock = AlfworldEngine(cached=True), AlfworldEngine(cached=False)
    for game in (seed, seed + 100):
        text, rng = problem(game, SMALL), random.Random(seed)
        turn = cached.start(text)
        assert turn == stock.start(text)
        assert cached.layout == stock.layout
        for _ in range(15):
            command = rng.choice([*turn.admissible, "dance", "take fork 9 from desk 9"])
            turn = cached.step(command)
            assert turn == stock.step(command), command
            if turn.done:
                break


def test_leaving_an_engine_call_leaves_the_stock_functions_in_place(engine: AlfworldEngine):
    import fast_downward
    from textworld.envs.pddl import logic, textgen
    from textworld.logic import Rule

    def current() -> list[object]:
        return [
            fast_downward.pddl2sas,
            logic._parse_and_convert,
            textgen._parse_and_convert,
            textgen.copy_context,
            textgen.deepcopy,
            vars(textgen.Symbol)["copy"],
            vars(Rule)["parse_conjunctive_query"],
        ]

    before = current()
    engine.start(problem(2))
    engine.step("look")
    with pytest.raises(DataError):
        engine.start("(")
    assert all(a is b for a, b in zip(before, current(), strict=True))


def test_the_engine_touches_neither_argv_nor_stdout(engine: AlfworldEngine, capfd: pytest.CaptureFixture):
    arguments = sys.argv
    engine.start(problem(3))
    engine.step("look")
    with pytest.raises(DataError):
        engine.start("(define")
    assert sys.argv is arguments
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "damage",
    [lambda p: "", lambda p: "hello", lambda p: p[:300], lambda p: p.replace("pickupable", "liftable")],
    ids=["empty", "no PDDL", "cut off", "unknown predicate"],
)
def test_a_problem_that_cannot_be_played_is_an_error_and_the_engine_stays_usable(engine: AlfworldEngine, damage):
    with pytest.raises(DataError, match="PDDL"):
        engine.start(damage(problem(4)))
    assert engine.start(problem(4)).text.startswith("You are in the middle of a room.")


def test_the_first_turn_shows_the_room_that_was_asked_for(engine: AlfworldEngine):
    for seed in range(5, 10):
        room = sample_room(seed)
        turn = engine.start(problem(seed))
        assert turn.facts == {
            "atlocation(middle)",
            *(f"inreceptacle({item.name}, {item.place.name})" for item in room.items),
            *(f"opened({r.name})" for r in room.receptacles if r.opened),
        }
        assert engine.layout.receptacles == tuple(sorted((r.name for r in room.receptacles), key=listing_order))
        assert engine.layout.objects == tuple(sorted((i.name for i in room.items), key=listing_order))
        listed = turn.text.partition("you see ")[2].removesuffix(".").replace(", and ", ", ").split(", ")
        assert [name.removeprefix("a ") for name in listed] == list(engine.layout.receptacles)
        assert "help" not in turn.admissible
        assert (turn.reward, turn.done, turn.won) == (0.0, False, False)


def test_an_impossible_command_is_answered_and_changes_nothing(engine: AlfworldEngine):
    turn = engine.start(problem(6))
    after = engine.step("fly to moon 1")
    assert after.text == "Nothing happens."
    assert (after.facts, after.admissible) == (turn.facts, turn.admissible)


def test_starting_again_gives_the_same_start(engine: AlfworldEngine):
    turn = engine.start(problem(8))
    engine.step(turn.admissible[0])
    assert engine.start(problem(8)) == turn


def test_winning_pays_once_and_ends_the_episode(engine: AlfworldEngine):
    from maskworld.environments.players import expert_command

    room = sample_room(11)
    task = sample_tasks(room, random.Random(11), 1)[0]
    turn, rewards = engine.start(pddl_problem(room, task)), []
    while not turn.done and len(rewards) < 40:
        turn = engine.step(expert_command(engine.layout, task, RoomState(turn.facts)))
        rewards.append(turn.reward)
    assert turn.won
    assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
