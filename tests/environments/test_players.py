"""Players in real rooms: the expert wins from anywhere, random commands vary and may be impossible."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from maskworld.environments.pddl import pddl_problem
from maskworld.environments.players import View, expert_command, play, random_command, verb_of
from maskworld.environments.real.alfworld import AlfworldEngine
from maskworld.environments.room_state import Layout, RoomState
from maskworld.environments.rooms import TASK_TYPES, Task, sample_room, tasks_of

LAYOUT = Layout(
    receptacles=("desk 1", "drawer 1", "shelf 1"),
    objects=("desklamp 1", "mug 1", "pen 1"),
    openable=frozenset({"drawer 1"}),
    fits=frozenset({("drawer", "pen"), ("shelf", "mug"), ("desk", "pen"), ("desk", "mug")}),
)
FACTS = frozenset(
    {
        "atlocation(middle)",
        "inreceptacle(desklamp 1, desk 1)",
        "inreceptacle(mug 1, desk 1)",
        "inreceptacle(pen 1, drawer 1)",
    }
)
ADMISSIBLE = ("examine a", "go to desk 1", "go to drawer 1", "go to shelf 1", "inventory", "look", "open drawer 1")


def view(facts: frozenset[str] = FACTS, admissible: tuple[str, ...] = ADMISSIBLE) -> View:
    return View(LAYOUT, Task("pick_and_place_simple", "pen", "desk"), RoomState(facts), admissible)


def test_the_expert_goes_opens_takes_and_brings():
    task = Task("pick_and_place_simple", "pen", "desk")
    state, commands = RoomState(FACTS), []
    moves = [
        ({"atlocation(drawer 1)"}, {"atlocation(middle)"}),
        ({"opened(drawer 1)"}, set()),
        ({"holds(pen 1)"}, {"inreceptacle(pen 1, drawer 1)"}),
        ({"atlocation(desk 1)"}, {"atlocation(drawer 1)"}),
        (set(), set()),
    ]
    for added, deleted in moves:
        commands.append(expert_command(LAYOUT, task, state))
        state = state.after(added, deleted)
    assert commands == [
        "go to drawer 1",
        "open drawer 1",
        "take pen 1 from drawer 1",
        "go to desk 1",
        "move pen 1 to desk 1",
    ]


def test_the_expert_frees_its_hands_first():
    state = RoomState(FACTS | {"holds(mug 1)"} - {"inreceptacle(mug 1, desk 1)"})
    assert expert_command(LAYOUT, Task("pick_and_place_simple", "pen", "shelf"), state) == "go to desk 1"


def test_a_random_verb_is_drawn_before_a_command_and_looking_counts_as_one_verb():
    rng = random.Random(0)
    drawn = Counter(random_command(view(), rng) for _ in range(6000))
    verbs = Counter()
    for command, count in drawn.items():
        verbs[verb_of(command)] += count
    assert abs(verbs["go"] - 2000) < 200
    assert abs(verbs["open"] - 2000) < 200
    assert abs(verbs["look"] + verbs["inventory"] + verbs["examine"] - 2000) < 200
    assert min(drawn.values()) > 400


def test_wandering_adds_to_the_share_of_commands_that_go_somewhere():
    rng = random.Random(0)
    drawn = [verb_of(random_command(view(), rng, wander=0.7)) for _ in range(3000)]
    assert abs(drawn.count("go") / len(drawn) - (0.7 + 0.3 / 3)) < 0.03
    assert {"open", "look", "inventory", "examine"} <= set(drawn)


def test_the_asked_share_of_random_commands_is_impossible_but_well_formed():
    rng = random.Random(0)
    drawn = [random_command(view(), rng, 0.25) for _ in range(4000)]
    impossible = [command for command in drawn if command not in ADMISSIBLE]
    assert abs(len(impossible) - 1000) < 120
    names = {*LAYOUT.objects, *LAYOUT.receptacles}
    assert all(any(name in command for name in names) for command in impossible)
    assert len({verb_of(command) for command in impossible}) >= 8


def test_epsilon_is_the_share_of_random_commands_of_the_noisy_expert():
    rng = random.Random(0)
    expert = expert_command(LAYOUT, view().task, view().state)
    only = view(admissible=("look",))
    share = sum(play("noisy_expert", only, rng, 0.3, 0.0) == expert for _ in range(2000)) / 2000
    assert abs(share - 0.7) < 0.05
    assert {play("expert", only, rng, 1.0, 1.0) for _ in range(50)} == {expert}
    assert {play("random", only, rng, 0.0, 0.0) for _ in range(50)} == {"look"}


@pytest.fixture(scope="module")
def engine() -> AlfworldEngine:
    pytest.importorskip("alfworld", reason="the real engine is optional: pip install -e .[envs]")
    return AlfworldEngine()


def play_until_won(engine: AlfworldEngine, seed: int, task: Task, noise: int) -> bool:
    """`noise` random commands, then the expert's."""
    rng = random.Random(seed)
    turn = engine.start(pddl_problem(sample_room(seed), task))
    for step in range(noise + 25):
        if turn.done:
            break
        here = View(engine.layout, task, RoomState(turn.facts), turn.admissible)
        command = random_command(here, rng) if step < noise else expert_command(engine.layout, task, here.state)
        assert command in turn.admissible, (seed, task, command)
        turn = engine.step(command)
    return turn.won


@pytest.mark.parametrize("task_type", TASK_TYPES)
@pytest.mark.parametrize("noise", [0, 12])
def test_the_expert_wins_every_kind_of_task_from_the_start_and_from_a_messed_up_room(
    engine: AlfworldEngine, task_type: str, noise: int
):
    played = []
    seed = 50_000 + noise
    while len(played) < 8:
        tasks = [task for task in tasks_of(sample_room(seed)) if task.type == task_type]
        if tasks:
            played.append(play_until_won(engine, seed, random.Random(seed).choice(tasks), noise))
        seed += 1
    assert sum(played) >= 0.95 * len(played)
