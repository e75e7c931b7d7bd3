import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_trajectories import corpus_trajectories, sample_trajectories

from maskworld.data.curation import grounding as module
from maskworld.data.curation.grounding import grounding, is_grounded, revealed_share
from maskworld.data.schema import Step, Trajectory
from maskworld.data.trajectories import read_trajectories

ALFWORLD = Path(__file__).parents[1] / "alfworld_rooms" / "validation.jsonl.gz"


def episode(*turns: tuple[str, str], **parts) -> Trajectory:
    steps = tuple(Step(action, observation) for action, observation in turns)
    return Trajectory(
        **{"id": "t", "environment": "e", "initial_state": "", "task_context": "", "steps": steps} | parts
    )


def entities(observation: str) -> set[str]:
    (found,) = grounding(episode(("act", observation)))
    return set(found.entities)


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        ('{"reservation_id": "H9ZU1C", "cabin": "economy", "price": 163.5}', {"H9ZU1C", "163.5"}),
        ('{"name": {"first_name": "Mia", "last_name": "Li"}, "zip": "28271"}', {"Mia", "Li", "28271"}),
        ('{"Department":"sales","topSpeed":7,"credit_card_7891819":{"count":12}}', {"credit_card_7891819", "12"}),
        ('{"email": "mia.li3818@example.com", "user": "mia_li_3668"}', {"mia.li3818@example.com", "mia_li_3668"}),
        ("order #W2378156 was shipped on 2024-05-17.", {"W2378156", "2024-05-17"}),
        ("On the countertop 1, you see a mug 3, and a vase 12.", {"countertop 1", "mug 3", "vase 12"}),
        ("42\n", {"42"}),
        ("7", set()),
        ("It took 5000 tries", {"5000"}),
        ("src/fields.py:12: in DatetimeIndex\n  setup.cfg", {"src/fields.py:12", "DatetimeIndex", "setup.cfg"}),
        ("[('departments',), ('concert_singer', 3)]", {"departments", "concert_singer"}),
        ("the quick brown fox; it isn't there -- nor here...", set()),
        ("The mug is here. You see it. None of them. A b c", set()),
        ('{"text": "Name,Title\\nAda,Dr"}', {"Name", "Title", "Ada", "Dr"}),
        ("[Back to Search] \nB09QQLDJ93 \nPrice: $13.99 ", {"Back", "Search", "B09QQLDJ93", "Price", "13.99"}),
        ("", set()),
    ],
)
def test_entities_are_words_that_no_dictionary_would_supply(observation, expected):
    assert entities(observation) == expected


@pytest.mark.parametrize("part", ["initial_state", "task_context", "initial_observation"])
def test_what_the_context_names_is_grounded(part):
    (found,) = grounding(episode(("look", "Mia owns H9ZU1C and W77"), **{part: "ids: h9zu1c, 'mia'"}))
    assert set(found.entities) == {"Mia", "H9ZU1C", "W77"}
    assert found.revealed == ("W77",)


@pytest.mark.parametrize("part", ["domain_rules", "tool_schemas", "directives"])
def test_what_the_lists_of_texts_name_is_grounded(part):
    (found,) = grounding(episode(("look", "Mia owns H9ZU1C"), **{part: ("x", "e.g. H9ZU1C")}))
    assert found.revealed == ("Mia",)


def test_what_was_seen_or_done_before_is_grounded():
    first, second, third = grounding(
        episode(("go to shelf 3", "On the shelf 3, you see a mug 1."), ("take mug 1", "mug 1 of Zoe"), ("x", "Zoe"))
    )
    assert (first.revealed, second.revealed, third.revealed) == (("mug 1",), ("Zoe",), ())
    assert third.entities == ("Zoe",)


def test_a_step_directive_grounds_its_own_step_and_the_later_ones():
    steps = (Step("a", "X1"), Step("b", "X1 Y2", directives=("name Y2",)))
    assert [one.revealed for one in grounding(Trajectory("t", "e", "", "", steps))] == [("X1",), ()]


def test_a_path_is_grounded_by_its_parts():
    (found,) = grounding(episode(("cat a.py in src/data", "src/data/a.py src/data/b.py")))
    assert found.revealed == ("src/data/b.py",)


def test_a_number_alone_does_not_ground_a_numbered_thing():
    (found,) = grounding(episode(("wait 12", "cabinet 12 and 12 more")))
    assert found.revealed == ("cabinet 12",)


def test_shares_are_of_all_steps():
    one = episode(("a", "X1 Y2"), ("b", "X1 Z3"))
    assert revealed_share(one) == 3 / 4
    assert is_grounded(one, 0.75) and not is_grounded(one, 0.74)
    assert revealed_share(episode(("a", "nothing to name"))) == 0.0


ids = st.from_regex(r"[a-c][0-9]{2}", fullmatch=True)


@given(st.lists(st.tuples(st.lists(ids, max_size=4), st.lists(ids, max_size=4)), min_size=1, max_size=5))
def test_each_id_is_revealed_where_it_first_appears(turns):
    """Against the definition: a set of all that stood before."""
    found = grounding(episode(*((" ".join(["act", *done]), " ".join(seen)) for done, seen in turns)))
    known: set[str] = set()
    for (done, seen), one in zip(turns, found, strict=True):
        known |= set(done)
        assert one.entities == tuple(dict.fromkeys(seen))
        assert one.revealed == tuple(name for name in dict.fromkeys(seen) if name not in known)
        known |= set(seen)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_any_text_can_be_asked_and_nothing_is_revealed_twice(texts):
    found = grounding(episode(*(("act", text) for text in texts), *(("act", text) for text in texts)))
    for one in found:
        assert set(one.revealed) <= set(one.entities)
        assert len(set(one.entities)) == len(one.entities)
    assert all(not one.revealed for one in found[len(texts) :])


@pytest.mark.parametrize("trajectory", sample_trajectories(), ids=lambda t: t.id)
def test_an_observation_that_its_context_holds_reveals_nothing(trajectory):
    seen = "\n".join(step.observation for step in trajectory.steps)
    assert all(not step.revealed for step in grounding(replace(trajectory, initial_state=seen)))


def test_words_seen_before_do_not_grow_without_bound(monkeypatch):
    monkeypatch.setattr(module, "_MOST_WORDS", 50)
    texts = [f"item{index} " * 3 for index in range(500)]
    found = grounding(episode(*(("act", text) for text in texts)))
    assert [one.revealed for one in found] == [(f"item{index}",) for index in range(500)]
    grounding(episode(("act", "")))
    assert len(module._WORDS) <= 50 and len(module._WORDS.entities) <= 50


def test_the_order_does_not_depend_on_the_hash_of_strings():
    code = (
        "from maskworld.data.curation.grounding import grounding\n"
        "from maskworld.data.schema import Step, Trajectory\n"
        "text = ' '.join(f'Name{i} b{i} word {i}' for i in range(50))\n"
        "print(grounding(Trajectory('t', 'e', '', '', (Step('a', text),))))\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[3] / "src")},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


def test_rooms_reveal_next_to_nothing_where_e0_holds_them():
    rooms = list(read_trajectories(ALFWORLD))
    assert max(map(revealed_share, rooms)) < 0.1
    bare = [replace(room, initial_state="", initial_observation="") for room in rooms]
    assert sum(map(revealed_share, bare)) > 3 * sum(map(revealed_share, rooms))


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("tau_bench", 0.55, 0.7), ("webshop", 0.6, 0.75), ("intercode", 0.4, 0.6), ("swe_agent", 0.4, 0.6)],
)
def test_sources_without_e0_reveal_half_or_more_of_what_they_name(name, least, most):
    steps = [step for trajectory in corpus_trajectories(name) for step in grounding(trajectory)]
    share = sum(len(step.revealed) for step in steps) / sum(len(step.entities) for step in steps)
    assert least < share < most


def test_a_long_observation_takes_no_longer_than_its_length_asks_for():
    """Ten thousand numbered things in one text: a quadratic pass would take minutes."""
    text = json.dumps([f"thing{index} box {index % 1000} a/b{index}" for index in range(20_000)])
    (found,) = grounding(episode(("act", text)))
    assert len(found.entities) >= 40_000 and found.revealed == found.entities
