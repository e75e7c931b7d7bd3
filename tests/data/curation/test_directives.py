import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_trajectories import SOURCES_WITH_FILES, corpus_trajectories, sample_trajectories

from maskworld.data.curation.directives import (
    ALTERNATIVES,
    derived_directives,
    directives_of,
    leak,
    with_derived_directives,
)
from maskworld.data.curation.outcomes import COUNTS, FORMS, LENGTHS, STATUSES, Outcome, outcome
from maskworld.data.schema import Step, Trajectory, trajectory_from_json, trajectory_to_json

outcomes = st.builds(
    Outcome,
    kind=st.sampled_from(["ok", "error", "empty", "truncated"]),
    status=st.sampled_from(STATUSES),
    count=st.sampled_from(["", *COUNTS]),
    form=st.sampled_from(FORMS),
    length=st.sampled_from(list(LENGTHS)),
)
choices = st.integers(0, 2**64 - 1)
words = st.text("abcxyz", min_size=3, max_size=3)
values = st.recursive(
    words | st.integers(100, 999),
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(words, max_size=4, unique=True).map(lambda w: dict.fromkeys(w, 1))
    ),
    max_leaves=6,
)


def test_the_texts_are_a_fixed_set_without_digits_and_quotes():
    assert len(ALTERNATIVES) == 161
    for text, group in ALTERNATIVES.items():
        assert text in group and len(set(group)) == len(group) > 1
        assert not any(sign.isdigit() or sign in "\"'`" for sign in text)


def test_a_text_says_one_thing():
    groups = set(ALTERNATIVES.values())
    assert sum(map(len, groups)) == len(ALTERNATIVES)


@given(outcomes, choices)
def test_every_outcome_has_directives_of_the_fixed_set(known, choice):
    texts = directives_of(known, choice)
    assert texts and set(texts) <= ALTERNATIVES.keys()
    same = directives_of(known, choice + 1)
    assert [ALTERNATIVES[text] for text in same] == [ALTERNATIVES[text] for text in texts]


@given(outcomes, outcomes)
def test_directives_tell_apart_what_outcomes_tell_apart(one, other):
    if one.form != "nothing" and directives_of(one) == directives_of(other):
        assert one == other


@given(values, st.integers(0, 25), choices)
def test_observations_of_one_outcome_get_the_same_directives(value, shift, choice):
    """Letters and digits are exchanged for others: the content is another, the outcome is not."""
    shown = json.dumps(value)
    letters = "abcdefghijklmnopqrstuvwxyz"
    turned = str.maketrans("abcxyz123456789", "".join(letters[(shift + i) % 26] for i in range(6)) + "912345678")
    other = json.dumps(json.loads(shown, object_pairs_hook=lambda pairs: {k.translate(turned): v for k, v in pairs}))
    other = json.dumps(_translated(json.loads(other), turned))
    first, second = Step("act", shown), Step("look", other)
    assert outcome(first) == outcome(second)
    assert derived_directives(first, choice) == derived_directives(second, choice)


def _translated(value, table):
    if isinstance(value, str):
        return value.translate(table)
    if isinstance(value, int):
        return int(str(value).translate(table))
    if isinstance(value, list):
        return [_translated(entry, table) for entry in value]
    return {key: _translated(entry, table) for key, entry in value.items()}


def test_directives_say_how_a_step_turned_out():
    step = Step("act", '[{"id": 1}, {"id": 2}, {"id": 3}]')
    assert derived_directives(step) == (
        "The action is valid and succeeds.",
        "Answer with a JSON list with three entries.",
        "Use a few words at most.",
    )
    assert derived_directives(replace(step, failed=True))[0] == "The action is refused or fails."
    assert derived_directives(Step("act", "")) == (
        "The action is accepted but nothing comes of it.",
        "Show no text at all.",
    )
    assert "The status is of the client error class." in derived_directives(Step("act", '{"status": 404}'))


def test_leak_is_the_share_of_grams_numbers_and_quotes_that_the_observation_holds():
    observation = 'The mug 12 is on the shelf. Its label reads "blue whale".'
    assert leak((observation,), observation) == 1.0
    assert leak(("Answer in one line.",), observation) == 0.0
    assert leak((), observation) == leak(("...",), observation) == 0.0
    assert leak(("ON THE SHELF",), observation) == 1.0
    assert leak(("is on the table",), observation) == 0.5
    assert leak(("is on the table",), observation, n=2) == pytest.approx(2 / 3)
    assert leak(("whale",), observation) == 1.0
    assert leak(("say 12 now",), observation) == 0.5
    assert leak(("never say 'blue whale' there",), observation) == pytest.approx(1 / 4)
    assert leak(("do not say 3 or 4",), "3 4") == 0.0
    assert leak(("on the shelf",), "shelf the on") == 0.0


@given(st.lists(st.text(max_size=30), max_size=3), st.text(max_size=60), st.integers(1, 5))
def test_a_leak_is_a_share(directives, observation, n):
    assert 0 <= leak(directives, observation, n) <= 1
    assert leak([observation, "\n"], observation, n) in (0.0, 1.0)


def test_grams_of_no_words_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        leak(("a",), "b", 0)


@pytest.mark.parametrize("name", SOURCES_WITH_FILES)
def test_derived_directives_give_nothing_of_a_real_observation_away(name):
    """Three words of the fixed texts may stand in a file by chance; of 8,660 real steps it happens in one."""
    found = []
    for trajectory in corpus_trajectories(name):
        for step in with_derived_directives(trajectory, 5).steps:
            assert set(step.directives) <= ALTERNATIVES.keys()
            assert step.directives[0] in ALTERNATIVES[derived_directives(step)[0]]
            found.append(leak(step.directives, step.observation))
    assert max(found) < 0.1
    assert sum(share > 0 for share in found) <= 1


def test_steps_get_their_own_directives_behind_those_of_the_source():
    steps = (Step("a", "x", directives=("Be terse.",)), Step("b", "[]"))
    trajectory = Trajectory("t", "e", "", "", steps, directives=("Never invent.",))
    found = with_derived_directives(trajectory, 0)
    assert found.directives == ("Never invent.",)
    assert found.steps[0].directives[0] == "Be terse." and len(found.steps[0].directives) == 4
    for step, before in zip(found.steps, steps, strict=True):
        assert replace(step, directives=before.directives) == before
    assert with_derived_directives(with_derived_directives(trajectory, 1), 0) == found


@pytest.mark.parametrize("trajectory", sample_trajectories(), ids=lambda t: t.id)
def test_directives_depend_on_seed_trajectory_and_step_alone(trajectory):
    found = with_derived_directives(trajectory, 7)
    assert with_derived_directives(trajectory, 7) == found
    assert trajectory_from_json(trajectory_to_json(found)) == found
    cut = replace(trajectory, steps=trajectory.steps[:2])
    assert with_derived_directives(cut, 7).steps == found.steps[:2]
    for seed, name in ((8, trajectory.id), (7, trajectory.id + "'")):
        others = [with_derived_directives(replace(trajectory, id=name), seed + 10 * turn) for turn in range(5)]
        assert any(other.steps != found.steps for other in others)


def test_all_phrasings_are_drawn():
    steps = (Step("a", "ok"),) * 400
    found = with_derived_directives(Trajectory("t", "e", "", "", steps), 0)
    drawn = [{step.directives[place] for step in found.steps} for place in range(3)]
    assert drawn == [set(ALTERNATIVES[next(iter(texts))]) for texts in drawn]
