import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_data import sentencepiece_tokenizer, trajectories, trajectory

from maskworld.data.rendering import render, render_prompt, render_windows
from maskworld.data.schema import Step, Trajectory
from maskworld.errors import DataError

TOKENIZER = sentencepiece_tokenizer()
block_lengths = st.sampled_from([1, 2, 4, 8, 16])


def test_a_document_reads_as_written_in_the_contract():
    one = Trajectory(
        id="t",
        environment="test",
        initial_state="mug 1",
        task_context="",
        tool_schemas=("look", "go"),
        initial_observation="You see 1",
        steps=(Step("look", "Nothing"), Step("go to cabinet 1", "")),
    )
    document = render(one, TOKENIZER, 8)
    text = "".join(TOKENIZER.piece(id) for id in document.tokens)
    first, second = document.steps
    head = text[: text.index("<action>")]
    assert head.rstrip("<end>") == "<section>mug 1<section>look\ngo<section>You see 1"
    assert text[len(head) :].startswith("<action>look<observation>Nothing<end>")
    assert first.start % 8 == 0 and second.start == first.end
    assert text.endswith("<action>go to cabinet 1<observation>" + "<end>" * (second.end - second.observation_start))
    assert second.observation_start == second.observation_end < second.end  # an empty observation still ends


@given(trajectories, block_lengths)
def test_every_step_owns_its_blocks_and_every_observation_is_a_target(one, block_length):
    document = render(one, TOKENIZER, block_length)
    assert len(document) % block_length == 0
    expected = np.zeros(len(document), bool)
    previous_end = document.steps[0].start
    for span, step in zip(document.steps, one.steps, strict=True):
        assert span.start == previous_end and span.start % block_length == 0 and span.end % block_length == 0
        assert TOKENIZER.decode(document.tokens[span.observation_start : span.observation_end]) == step.observation
        assert TOKENIZER.decode(document.tokens[span.start : span.observation_start]) == step.action
        assert (document.tokens[span.observation_end : span.end] == TOKENIZER.end_id).all()
        assert 1 <= span.end - span.observation_end <= block_length
        expected[span.observation_start : span.end] = True
        previous_end = span.end
    assert previous_end == len(document)
    np.testing.assert_array_equal(document.targets, expected)
    assert document.target_blocks == len({index // block_length for index in np.flatnonzero(expected)})


@given(trajectories, block_lengths, st.data())
def test_the_prompt_is_the_beginning_of_the_document(one, block_length, data):
    step = data.draw(st.integers(0, len(one.steps) - 1))
    document = render(one, TOKENIZER, block_length)
    prompt = render_prompt(one, step, TOKENIZER, block_length)
    assert len(prompt) == document.steps[step].observation_start
    np.testing.assert_array_equal(prompt, document.tokens[: len(prompt)])
    assert prompt[-1] == TOKENIZER.observation_id
    assert document.targets[len(prompt)] and not document.targets[len(prompt) - 1]


@given(trajectories, st.data(), st.none() | st.integers(200, 400))
def test_the_prompt_does_not_depend_on_what_it_must_predict(one, data, longest):
    step = data.draw(st.integers(0, len(one.steps) - 1))
    other = dataclasses.replace(
        one, steps=(*one.steps[:step], dataclasses.replace(one.steps[step], observation="something else"))
    )
    try:
        prompt = render_prompt(one, step, TOKENIZER, 8, longest)
    except DataError:
        return
    np.testing.assert_array_equal(prompt, render_prompt(other, step, TOKENIZER, 8, longest))


def long_trajectory(steps: int = 30) -> Trajectory:
    return trajectory((f"You see mug {index}, and a cup {index}." for index in range(steps)), id="long")


def test_a_long_trajectory_becomes_windows_that_supervise_every_step_once():
    one = long_trajectory()
    documents, unfit = render_windows(one, TOKENIZER, 8, 160)
    assert not unfit and len(documents) > 2
    targets = [span.step for document in documents for span in document.steps if span.is_target]
    assert targets == list(range(30))
    context = render(one, TOKENIZER, 8).tokens[:8]
    for document in documents:
        assert len(document) <= 160
        np.testing.assert_array_equal(document.tokens[:8], context)
        shown = [span.step for span in document.steps]
        assert shown == list(range(shown[0], shown[0] + len(shown)))
        head = TOKENIZER.decode(document.tokens[: document.steps[0].start])
        assert (f"({shown[0]} earlier turn" in head) == (shown[0] > 0)
        for span in document.steps:
            assert document.targets[span.observation_start : span.end].all() == span.is_target
            assert document.targets[span.start : span.end].any() == span.is_target


def test_windows_after_the_first_keep_recent_history():
    documents, _ = render_windows(long_trajectory(), TOKENIZER, 8, 160)
    for document in documents[1:]:
        history = [span for span in document.steps if not span.is_target]
        room = 160 - document.steps[0].start
        longest_step = max(span.end - span.start for span in document.steps)
        assert history[-1].end - history[0].start > room // 2 - longest_step


def test_windows_respect_the_capacity_for_target_blocks():
    documents, unfit = render_windows(long_trajectory(), TOKENIZER, 8, 160, most_target_blocks=4)
    assert not unfit
    assert max(document.target_blocks for document in documents) <= 4
    assert sorted(span.step for document in documents for span in document.steps if span.is_target) == list(range(30))


@given(trajectories, st.sampled_from([4, 8]), st.integers(4, 60), st.integers(1, 12))
def test_windows_and_unfit_steps_together_are_all_steps(one, block_length, blocks, most_target_blocks):
    longest = blocks * block_length
    documents, unfit = render_windows(one, TOKENIZER, block_length, longest, most_target_blocks)
    supervised = [span.step for document in documents for span in document.steps if span.is_target]
    assert sorted(supervised + [item.step for item in unfit]) == list(range(len(one.steps)))
    for document in documents:
        assert len(document) <= longest and document.target_blocks <= most_target_blocks
        for span in document.steps:
            observation = one.steps[span.step].observation
            assert TOKENIZER.decode(document.tokens[span.observation_start : span.observation_end]) == observation


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (trajectory(["a"], initial_state="mug " * 200), "context_too_long"),
        (trajectory(["mug " * 200]), "step_too_long"),
        (trajectory(["You see mug 1 and mug 2 and mug 3 and mug 4."] * 2), "too_many_target_blocks"),
    ],
)
def test_a_step_that_fits_nowhere_is_returned_with_its_reason(one, reason):
    documents, unfit = render_windows(one, TOKENIZER, 8, 160, most_target_blocks=2)
    assert not documents
    assert {item.reason for item in unfit} == {reason}


def test_steps_around_one_that_fits_nowhere_are_kept():
    documents, unfit = render_windows(trajectory(["a", "mug " * 200, "b"]), TOKENIZER, 8, 160)
    assert [item.step for item in unfit] == [1]
    assert [span.step for document in documents for span in document.steps if span.is_target] == [0, 2]


def test_a_prompt_that_is_too_long_loses_its_oldest_turns():
    one = long_trajectory()
    whole = render_prompt(one, 29, TOKENIZER, 8)
    prompt = render_prompt(one, 29, TOKENIZER, 8, longest=160)
    assert len(prompt) <= 160 < len(whole)
    text = TOKENIZER.decode(prompt)
    assert "earlier turns left out)" in text and "mug 28" in text and text.endswith("look 29")
    with pytest.raises(DataError, match="at most 8 are allowed"):
        render_prompt(one, 29, TOKENIZER, 8, longest=8)


def test_a_step_that_does_not_exist_is_refused():
    with pytest.raises(DataError, match="no step 3; it has 3"):
        render_prompt(long_trajectory(3), 3, TOKENIZER, 8)
