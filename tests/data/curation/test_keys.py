"""Which differences between trajectories the hashes see, and that no two different ones are confused."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.curation.keys import hash_of, keys_of
from maskworld.data.schema import Step, Trajectory

ONE = Trajectory(
    id="a",
    environment="world",
    initial_state="e0",
    task_context="task",
    steps=(Step("look", "a room"), Step("go", "a hall"), Step("look", "a hall")),
    initial_observation="hello",
    tool_schemas=("look", "go"),
    domain_rules=("rule",),
    directives=("short",),
    group="g",
)
SHOWN = {
    "environment": "other",
    "initial_state": "other",
    "task_context": "other",
    "initial_observation": "other",
    "history_steps": 1,
    "tool_schemas": ("look",),
    "domain_rules": ("rule", ""),
    "directives": (),
}
UNSEEN = {
    "id": "other",
    "player": "gpt-4o",
    "model_family": "gpt",
    "source": "other",
    "licence": "MIT",
    "metadata": {"a": 1},
    "group": "other",
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_is_content(name):
    assert keys_of(replace(ONE, **{name: SHOWN[name]})).content != keys_of(ONE).content


@pytest.mark.parametrize("name", UNSEEN)
def test_who_did_it_and_where_it_comes_from_is_none(name):
    found, known = keys_of(replace(ONE, **{name: UNSEEN[name]})), keys_of(ONE)
    assert replace(found, group=0) == replace(known, group=0)
    assert (found.group == known.group) == (name != "group")


def test_every_member_is_either():
    assert {one.name for one in fields(Trajectory)} == {*SHOWN, *UNSEEN, "steps"}


@pytest.mark.parametrize(
    "marks",
    [{"reward": 1.0}, {"done": True}, {"facts_added": ("f",)}, {"failed": True}, {"directives": ("derived",)}],
)
def test_what_is_known_of_a_step_beside_its_texts_is_no_content(marks):
    steps = (*ONE.steps[:2], replace(ONE.steps[2], **marks))
    assert keys_of(replace(ONE, steps=steps)) == keys_of(ONE)


def test_a_question_is_the_initial_state_the_history_and_the_action():
    keys = keys_of(ONE)
    assert len(keys.questions) == len(keys.beginnings) == 3
    assert len({*keys.questions, *keys.beginnings}) == 6
    other_context = keys_of(replace(ONE, task_context="other", environment="other", tool_schemas=()))
    assert other_context.questions == keys.questions and other_context.context != keys.context
    other_answer = keys_of(replace(ONE, steps=(ONE.steps[0], Step("go", "a wall"), ONE.steps[2])))
    assert other_answer.questions[:2] == keys.questions[:2] and other_answer.questions[2] != keys.questions[2]
    assert other_answer.beginnings[0] == keys.beginnings[0] and other_answer.beginnings[1] != keys.beginnings[1]
    assert not {*keys_of(replace(ONE, initial_state="")).questions} & {*keys.questions}


def test_a_longer_one_begins_with_the_keys_of_a_shorter():
    short, long = keys_of(replace(ONE, steps=ONE.steps[:2])), keys_of(ONE)
    assert (short.questions, short.beginnings) == (long.questions[:2], long.beginnings[:2])
    assert short.context == long.context and short.content != long.content


def test_what_is_history_in_one_and_learned_from_in_the_other_is_not_the_same():
    learned, shown = keys_of(ONE), keys_of(replace(ONE, history_steps=2))
    assert learned.questions == shown.questions and learned.beginnings == shown.beginnings
    assert learned.context != shown.context  # so neither is a beginning or an equal of the other


def test_without_a_group_the_content_is_one():
    alone, again = keys_of(replace(ONE, group="")), keys_of(replace(ONE, group="", id="b"))
    assert alone.group == again.group != keys_of(replace(ONE, group="", task_context="x")).group
    assert keys_of(replace(ONE, task_context="x")).group == keys_of(ONE).group


texts = st.text(st.characters(codec="utf-8"), max_size=3)
steps = st.lists(st.tuples(texts, texts), min_size=1, max_size=3)


@settings(max_examples=100)
@given(st.tuples(texts, steps), st.tuples(texts, steps))
def test_texts_that_run_into_each_other_are_told_apart(one, other):
    first, second = (
        keys_of(replace(ONE, initial_state=state, steps=tuple(Step(*step) for step in some)))
        for state, some in (one, other)
    )
    assert (first == second) == (one == other)


@settings(max_examples=100)
@given(st.lists(texts, max_size=4), st.lists(texts, max_size=4))
def test_equal_hashes_mean_equal_sequences(one, other):
    assert (hash_of(one) == hash_of(other)) == (one == other)


def test_hashes_are_the_same_on_every_machine():
    assert hash_of(["a", "ü"]) == 15943485595574103928
    assert keys_of(ONE).questions[0] == 6054032465524192175
