import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_data import sentencepiece_tokenizer, texts, trajectories, trajectory

from maskworld.data.rendering import render, render_prompt, render_windows
from maskworld.data.schema import Step, Trajectory
from maskworld.data.tokenizer_memory import RememberingTokenizer
from maskworld.data.turns import Remarks, lay_out
from maskworld.errors import DataError

TOKENIZER = RememberingTokenizer(sentencepiece_tokenizer())
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


def with_directives(*directives: tuple[str, ...]) -> Trajectory:
    """A trajectory of as many steps, each with its own directives."""
    one = trajectory(f"You see mug {index}" for index in range(len(directives)))
    steps = (dataclasses.replace(step, directives=found) for step, found in zip(one.steps, directives, strict=True))
    return dataclasses.replace(one, steps=tuple(steps), directives=("mug 3",))


def pieces(tokens) -> str:
    return "".join(TOKENIZER.piece(id) for id in tokens)


def test_the_directives_of_a_step_stand_beside_its_action():
    document = render(with_directives((), ("go", "take 1"), ("",)), TOKENIZER, 8)
    turns = [pieces(document.tokens[span.start : span.end]).rstrip("<end>") for span in document.steps]
    assert turns == [
        "<action>look 0<observation>You see mug 0",
        "<action>look 1<section>go\ntake 1<observation>You see mug 1",
        "<action>look 2<observation>You see mug 2",
    ]
    for span in document.steps:
        assert not document.targets[span.start : span.observation_start].any()


def test_the_directives_of_a_step_leave_context_and_other_turns_alone():
    told, silent = (render(with_directives((), found, ()), TOKENIZER, 8) for found in (("go to cabinet 12",), ()))
    for step in (0, 2):
        parts = (d.tokens[d.steps[step].start : d.steps[step].end] for d in (told, silent))
        np.testing.assert_array_equal(*parts)
    np.testing.assert_array_equal(*(d.tokens[: d.steps[1].start] for d in (told, silent)))
    assert len(told) > len(silent)


def test_without_directives_in_the_context_those_of_a_step_are_left_out_too():
    context = ("initial_state", "task_context")
    told, silent = (render(with_directives((), found, ()), TOKENIZER, 8, context) for found in (("go",), ()))
    np.testing.assert_array_equal(told.tokens, silent.tokens)


def long_trajectory(steps: int = 30, **fields) -> Trajectory:
    return trajectory((f"You see mug {index}, and a cup {index}." for index in range(steps)), id="long", **fields)


def test_a_long_trajectory_becomes_windows_that_supervise_every_step_once():
    one = long_trajectory()
    documents, unfit = render_windows(one, TOKENIZER, 8, 256)
    assert not unfit and len(documents) > 2
    targets = [span.step for document in documents for span in document.steps if span.is_target]
    assert targets == list(range(30))
    context = render(one, TOKENIZER, 8).tokens[:8]
    for document in documents:
        assert len(document) <= 256
        np.testing.assert_array_equal(document.tokens[:8], context)
        for span in document.steps:
            assert document.targets[span.observation_start : span.end].all() == span.is_target
            assert document.targets[span.start : span.end].any() == span.is_target


def test_history_is_left_out_of_the_middle_and_the_gap_is_marked():
    documents, _ = render_windows(long_trajectory(), TOKENIZER, 8, 256)
    whole, *windows = documents
    assert [span.step for span in whole.steps] == list(range(len(whole.steps)))
    for document in windows:
        opening, *recent = document.steps
        shown = [span.step for span in recent]
        assert opening.step == 0 and not opening.is_target
        assert shown == list(range(shown[0], shown[0] + len(shown))) and shown[0] > 1
        gap = document.tokens[opening.end : recent[0].start]
        assert len(gap) % 8 == 0
        assert pieces(gap).rstrip("<end>") == f"<section>({shown[0] - 1} turns left out)"
        assert not document.targets[: recent[0].start].any()


def test_a_first_turn_of_more_than_a_quarter_is_left_out_with_the_others():
    steps = [f"You see mug {index}, and a cup {index}." for index in range(20)]
    documents, _ = render_windows(trajectory(["mug 1 " * 30, *steps]), TOKENIZER, 8, 256)
    for document in documents[1:]:
        first = document.steps[0]
        assert first.step > 0
        assert f"<section>({first.step} turns left out)" in pieces(document.tokens[: first.start])


def test_windows_after_the_first_keep_recent_history():
    documents, _ = render_windows(long_trajectory(), TOKENIZER, 8, 256)
    for document in documents[1:]:
        targets = [span for span in document.steps if span.is_target]
        history = targets[0].start - len(render(long_trajectory(), TOKENIZER, 8).tokens[:16])
        longest_step = max(span.end - span.start for span in document.steps)
        assert history > (256 - 16) // 2 - longest_step
        assert not document.steps[-len(targets) - 1].is_target and document.steps[-len(targets) - 1].step


def test_windows_respect_the_capacity_for_target_blocks():
    documents, unfit = render_windows(long_trajectory(), TOKENIZER, 8, 256, most_target_blocks=4)
    assert not unfit
    assert max(document.target_blocks for document in documents) <= 4
    assert sorted(span.step for document in documents for span in document.steps if span.is_target) == list(range(30))


long_texts = st.builds(lambda text, times: text * times, texts, st.sampled_from([1, 1, 1, 5, 40]))
awkward_trajectories = st.builds(
    Trajectory,
    id=st.just("t"),
    environment=st.just("test"),
    initial_state=long_texts,
    task_context=long_texts,
    steps=st.lists(
        st.builds(
            Step, action=long_texts, observation=long_texts, directives=st.lists(long_texts, max_size=2).map(tuple)
        ),
        min_size=1,
        max_size=8,
    ).map(tuple),
    directives=st.lists(long_texts, max_size=2).map(tuple),
)


@given(awkward_trajectories, st.sampled_from([4, 8]), st.integers(4, 60), st.none() | st.integers(1, 12))
def test_windows_and_unfit_steps_together_are_all_steps(one, block_length, blocks, most_target_blocks):
    longest = blocks * block_length
    documents, unfit = render_windows(one, TOKENIZER, block_length, longest, most_target_blocks)
    supervised = [span.step for document in documents for span in document.steps if span.is_target]
    assert sorted(supervised + [item.step for item in unfit]) == list(range(len(one.steps)))
    remarks = Remarks(TOKENIZER, block_length)
    few = 2 * (remarks.notice_length + 2 * (remarks.gap_length(10**6) + block_length))
    assert not unfit or longest < few
    for document in documents:
        assert len(document) <= longest and len(document) % block_length == 0
        assert document.target_blocks <= (most_target_blocks or blocks)
        assert len({span.step for span in document.steps}) == len(document.steps)


@given(awkward_trajectories, st.sampled_from([4, 8]), st.integers(20, 60), st.none() | st.integers(1, 12))
def test_what_a_window_teaches_is_the_beginning_of_each_observation(one, block_length, blocks, most_target_blocks):
    whole = render(one, TOKENIZER, block_length)
    for document in render_windows(one, TOKENIZER, block_length, blocks * block_length, most_target_blocks)[0]:
        expected = np.zeros(len(document), bool)
        for span in document.steps:
            true = whole.steps[span.step]
            observation = whole.tokens[true.observation_start : true.observation_end]
            shown = document.tokens[span.observation_start : span.observation_end]
            np.testing.assert_array_equal(shown, observation[: len(shown)])
            assert len(shown) + span.observation_cut == len(observation)
            taught = document.tokens[span.observation_start : span.target_end]
            ends = taught == TOKENIZER.end_id
            if span.observation_cut:  # neither <end> nor the remark is taught
                assert span.target_end <= span.observation_end and not ends.any()
            if most_target_blocks is None and not span.observation_cut:
                assert span.target_end == span.end and ends.any()
            assert span.start % block_length == span.target_end % block_length == span.end % block_length == 0
            assert span.observation_start < span.target_end <= span.end
            expected[span.observation_start : span.target_end] = span.is_target
        np.testing.assert_array_equal(document.targets, expected)


@given(awkward_trajectories, st.sampled_from([4, 8]), st.integers(20, 60), st.none() | st.integers(1, 12))
def test_a_prompt_is_exactly_the_beginning_of_the_window_that_teaches_its_step(
    one, block_length, blocks, most_target_blocks
):
    row = blocks * block_length
    layout = lay_out(one, TOKENIZER, block_length, row_length=row)
    for document in render_windows(one, TOKENIZER, block_length, row, most_target_blocks)[0]:
        # A window whose first target left no room for turn 0 does without; a prompt as long takes it back for others.
        crowded = document.steps[0].step and len(layout.turns[0]) <= layout.beside // 4
        for span in document.steps:
            if span.is_target:
                size = span.observation_start
                prompt = render_prompt(one, span.step, TOKENIZER, block_length, size, row_length=row)
                same = size - span.start if crowded else size
                np.testing.assert_array_equal(prompt[-same:], document.tokens[size - same : size])
                assert len(prompt) <= size and (crowded or len(prompt) == size)


def window_of(one: Trajectory, longest: int = 256, **options):
    (document,), unfit = render_windows(one, TOKENIZER, 8, longest, **options)
    assert not unfit
    return document


def test_a_context_over_half_a_row_is_cut_in_the_middle_of_its_largest_part():
    state = " ".join(f"mug {index}" for index in range(200))
    document = window_of(trajectory(["You see"], initial_state=state, task_context="find the cup"))
    head = document.tokens[: document.steps[0].start]
    assert 128 - 8 < len(head) <= 128
    text = pieces(head).rstrip("<end>")
    assert re.fullmatch(r"<section>mug 0 mug 1 .* \((\d+) tokens left out\) .* mug 199<section>find the cup", text)
    left_out = int(re.search(r"(\d+) tokens", text)[1])
    assert document.context_cut == left_out
    shown = TOKENIZER.encode(state)
    assert len(TOKENIZER.encode(text.split("<section>")[1])) <= 128 and left_out < len(shown)
    before, after = re.split(r" \(\d+ tokens left out\) ", text.split("<section>")[1])
    assert state.startswith(before) and state.endswith(after)


def test_an_action_over_half_of_what_is_left_is_cut_in_the_middle_whatever_was_observed():
    action = " ".join(f"go {index}" for index in range(200))
    prompts = []
    for observation in ("", "You see mug 1", "mug 1 " * 200):
        document = window_of(Trajectory("t", "test", "mug 1", "", (Step(action, observation, directives=("take",)),)))
        (span,) = document.steps
        prompts.append(document.tokens[: span.observation_start])
        text = pieces(document.tokens[span.start : span.observation_start])
        assert re.fullmatch(r"<action>go 0 .* \((\d+) tokens left out\) .* go 199<section>take<observation>", text)
        assert span.action_cut == int(re.search(r"(\d+) tokens", text)[1])
        assert span.observation_start - span.start <= (256 - span.start) // 2
    np.testing.assert_array_equal(prompts[0], prompts[1])
    np.testing.assert_array_equal(prompts[0], prompts[2])


def test_an_observation_without_room_is_cut_at_its_end_and_its_end_is_not_taught():
    one = trajectory(["a", "mug " * 200, "b"])
    documents, unfit = render_windows(one, TOKENIZER, 8, 160)
    assert not unfit
    assert [span.step for document in documents for span in document.steps if span.is_target] == [0, 1, 2]
    (document,) = [d for d in documents if any(span.step == 1 and span.is_target for span in d.steps)]
    span = document.steps[-1]
    assert span.step == 1 and 160 - 8 <= len(document) <= 160
    shown = document.tokens[span.observation_start : span.observation_end]
    assert document.targets[span.observation_start : span.observation_end].all()
    assert TOKENIZER.decode(shown) == ("mug " * 200)[: len(TOKENIZER.decode(shown))]
    assert span.observation_cut == len(TOKENIZER.encode("mug " * 200)) - len(shown)
    behind = document.tokens[span.observation_end : span.end]
    assert pieces(behind).rstrip("<end>") == f"<section>({span.observation_cut} tokens left out)"
    assert not document.targets[span.observation_end :].any()


def test_of_an_observation_with_too_many_target_blocks_the_first_are_taught():
    one = trajectory(["You see mug 1 and mug 2 and mug 3 and mug 4."] * 2)
    document = window_of(one, 160, most_target_blocks=6)
    documents, _ = render_windows(one, TOKENIZER, 8, 160, most_target_blocks=2)
    assert [[span.step for span in d.steps if span.is_target] for d in documents] == [[0], [1]]
    np.testing.assert_array_equal(documents[1].tokens, document.tokens)
    for number, d in enumerate(documents):
        span = d.steps[number]
        assert d.target_blocks == 2 and span.observation_cut == 0
        assert span.target_end == span.observation_start // 8 * 8 + 16 < span.end


def test_a_row_of_few_blocks_is_too_short_and_says_so():
    documents, unfit = render_windows(trajectory(["mug " * 200] * 2), TOKENIZER, 8, 16)
    assert not documents
    assert [(item.step, item.reason) for item in unfit] == [(0, "row_too_short"), (1, "row_too_short")]
    assert "a row of 16" in unfit[0].detail


def test_a_prompt_that_is_too_long_loses_turns_from_its_middle():
    one = long_trajectory()
    whole = render_prompt(one, 29, TOKENIZER, 8)
    prompt = render_prompt(one, 29, TOKENIZER, 8, longest=160)
    assert len(prompt) <= 160 < len(whole)
    text = TOKENIZER.decode(prompt)
    assert "find itlook 0You see" in text and "turns left out)look" in text
    assert "mug 28" in text and text.endswith("look 29")
    for step in (0, 29):
        with pytest.raises(DataError, match="at most 8 are allowed"):
            render_prompt(one, step, TOKENIZER, 8, longest=8)


def test_a_prompt_is_cut_further_only_where_the_form_of_training_is_too_long():
    one = long_trajectory(initial_state="mug 1 " * 60)
    as_trained = render_prompt(one, 29, TOKENIZER, 8, longest=256, row_length=512)
    context = render_windows(one, TOKENIZER, 8, 512)[0][0].steps[0].start
    np.testing.assert_array_equal(as_trained[:context], render(one, TOKENIZER, 8).tokens[:context])
    shorter = render_prompt(one, 29, TOKENIZER, 8, longest=160, row_length=512)
    assert len(shorter) <= 160 and "tokens left out" in pieces(shorter[:80])


@pytest.mark.parametrize("longest", [64, 256, 4096])
def test_steps_that_are_history_are_never_targets(longest):
    one = long_trajectory(12, history_steps=9)
    documents, _ = render_windows(one, TOKENIZER, 8, longest)
    taught = [span.step for document in documents for span in document.steps if span.is_target]
    assert taught == [9, 10, 11]
    whole = render(one, TOKENIZER, 8)
    assert [span.is_target for span in whole.steps] == [False] * 9 + [True] * 3
    assert not whole.targets[: whole.steps[9].observation_start].any()


def test_a_step_that_does_not_exist_is_refused():
    with pytest.raises(DataError, match="no step 3; it has 3"):
        render_prompt(long_trajectory(3), 3, TOKENIZER, 8)
