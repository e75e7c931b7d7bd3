import dataclasses

import numpy as np
import pytest

from maskworld.data.schema import Step, Trajectory
from maskworld.evaluation.transitions import (
    Generation,
    Transition,
    choose_transitions,
    generate_all,
    plan_batches,
    render_prompts,
    to_prediction,
)

BLOCK = 4


class Characters:
    """One id per character behind six control ids; enough of a Tokenizer for these tests."""

    vocabulary_size = 1000
    pad_id, mask_id, end_id, action_id, observation_id, section_id = range(6)
    fingerprint = "characters"

    def encode(self, text):
        return [ord(c) + 6 for c in text]

    def encode_batch(self, texts):
        return [np.array(self.encode(text), np.int32) for text in texts]

    def decode(self, ids):
        return "".join(chr(i - 6) for i in ids if i >= 6)

    def piece(self, id):
        return chr(id - 6) if id >= 6 else f"<{id}>"

    def save(self, folder):
        raise NotImplementedError


def trajectory(name="t", changes=(True, False, True), group="room 1"):
    added = [("holds(mug 1)",) if change else () for change in changes]
    steps = tuple(Step(f"act {i}", f"saw {i}", facts_added=facts) for i, facts in enumerate(added))
    return Trajectory(
        id=name,
        environment="toy",
        initial_state="mug 1 is on desk 1",
        task_context="find the mug",
        initial_observation="You are here.",
        steps=steps,
        group=group,
    )


def split(changing, other):
    return [trajectory(f"c{i}", (True,)) for i in range(changing)] + [
        trajectory(f"o{i}", (False,)) for i in range(other)
    ]


def count_changing(transitions):
    return sum(t.changes_state for t in transitions)


def test_all_transitions_are_taken_when_asked_for_or_too_few():
    trajectories = [trajectory("a"), trajectory("b")]
    for count in (0, 6, 100):
        chosen, available = choose_transitions(trajectories, count, seed=0)
        assert [(t.trajectory.id, t.step) for t in chosen] == [(n, i) for n in "ab" for i in range(3)]
        assert available == {"state-changing": 4, "other": 2}


def test_the_choice_keeps_the_shares_of_the_split():
    chosen, _ = choose_transitions(split(600, 400), 100, seed=0)
    assert len(chosen) == 100 and count_changing(chosen) == 60


@pytest.mark.parametrize(("changing", "other", "expected"), [(10, 990, 10), (60, 940, 25), (990, 10, 90), (0, 50, 0)])
def test_a_rare_kind_gets_a_quarter_of_the_places_or_all_it_has(changing, other, expected):
    chosen, _ = choose_transitions(split(changing, other), 100, seed=0)
    assert len(chosen) == min(100, changing + other) and count_changing(chosen) == expected


def test_the_seed_alone_decides_the_choice():
    def names(seed):
        return [t.trajectory.id for t in choose_transitions(split(60, 40), 20, seed)[0]]

    assert names(1) == names(1) != names(2)
    assert len(set(names(1))) == 20


@pytest.mark.parametrize("count", [0, 1, 7, 8, 100])
def test_batches_hold_every_prompt_once_and_have_few_shapes(count):
    lengths = np.random.default_rng(0).integers(1, 300, count).tolist()
    batches = plan_batches(lengths, 8, BLOCK, shapes=3)
    assert sorted(i for b in batches for i in b.rows) == list(range(count))
    assert len({b.prompt_capacity for b in batches}) <= 3
    assert all(len(b.rows) == 8 for b in batches[:-1])
    for batch in batches:
        assert batch.prompt_capacity % BLOCK == 0
        assert max(lengths[i] for i in batch.rows) <= batch.prompt_capacity


def test_generations_come_back_in_the_order_of_the_prompts():
    prompts = [np.full(n, n, np.int32) for n in (9, 2, 30, 5, 17)]
    calls = []

    def generate(batch, prompt_capacity):
        calls.append((len(batch), prompt_capacity))
        empty = np.zeros(0)
        return [Generation(prompt[:1], int(prompt[0]), empty, empty) for prompt in batch]

    done = []
    results = generate_all(prompts, generate, 2, BLOCK, progress=lambda *counts: done.append(counts))
    assert [r.forwards for r in results] == [9, 2, 30, 5, 17]
    assert {size for size, _ in calls} == {2}
    assert done == [(2, 5), (4, 5), (5, 5)]


def test_prompts_end_at_the_observation_and_hold_the_earlier_turns():
    tokenizer, t = Characters(), trajectory()
    rendered, left_out = render_prompts([Transition(t, 2), Transition(t, 0)], tokenizer, BLOCK, 4096)
    assert [transition.step for transition, _ in rendered] == [2, 0] and left_out == []
    late, early = (prompt for _, prompt in rendered)
    assert late[-1] == early[-1] == tokenizer.observation_id
    assert late[: len(early)].tolist() == early.tolist()
    text = tokenizer.decode(late)
    assert "saw 1" in text and "saw 2" not in text and text.endswith("act 2")


def test_a_transition_without_room_is_left_out_by_name():
    rendered, [reason] = render_prompts([Transition(trajectory(), 1)], Characters(), BLOCK, 16)
    assert rendered == []
    assert "trajectory t, step 1" in reason and "16" in reason


def test_a_long_prompt_loses_turns_from_its_middle():
    tokenizer, t = Characters(), trajectory(changes=(True,) * 9)
    [(_, whole)], _ = render_prompts([Transition(t, 8)], tokenizer, BLOCK, 4096)
    [(_, short)], _ = render_prompts([Transition(t, 8)], tokenizer, BLOCK, len(whole) - 1)
    text = tokenizer.decode(short)
    assert len(short) < len(whole) and "find the mug" in text
    assert "saw 0(2 turns left out)act 3" in text and "saw 7" in text


def test_prompts_are_cut_as_the_rows_of_training_were():
    tokenizer, t = Characters(), dataclasses.replace(trajectory(), initial_state="mug 1 is on desk 1. " * 8)
    [(_, uncut)], _ = render_prompts([Transition(t, 2)], tokenizer, BLOCK, 4096, row_length=512)
    [(_, cut)], _ = render_prompts([Transition(t, 2)], tokenizer, BLOCK, 4096, row_length=256)
    assert "left out" not in tokenizer.decode(uncut)
    assert "tokens left out" in tokenizer.decode(cut) and len(cut) < len(uncut)


def generation(text, ends, step_of, tokenizer=None):
    tokens = np.array([*(tokenizer or Characters()).encode(text), *[Characters.end_id] * ends], np.int32)
    steps = np.array([step_of(i) for i in range(len(tokens))], np.int32)
    return Generation(tokens, 5, steps, np.linspace(0.5, 1.0, len(tokens), dtype=np.float32))


def test_a_prediction_is_cut_at_the_first_end_and_keeps_how_it_came_about():
    t = trajectory()
    # The prompt ends 1 into a block; "saw 2" and its <end> fill 3 + 3 of the next tokens, the fill completes the block.
    p = to_prediction(Transition(t, 2), 9, generation("saw 2", 6, lambda i: i % 3), Characters(), BLOCK)
    assert (p.prediction, p.truth, p.finished, p.tokens, p.forwards) == ("saw 2", "saw 2", True, 6, 5)
    assert p.block_starts == (3,)
    assert [[c.position for c in step] for step in p.trace] == [[0, 3, 6], [1, 4], [2, 5]]
    assert p.trace[0][0].token == "s" and p.trace[0][0].confidence == 0.5
    assert p.changes_state and p.group == "room 1" and p.action == "act 2"
    assert p.history == ("You are here.", "> act 0", "saw 0", "> act 1", "saw 1")
    assert p.initial_state == "mug 1 is on desk 1"


def test_an_observation_that_never_ends_is_marked():
    p = to_prediction(Transition(trajectory(), 0), 9, generation("saw 2", 0, lambda i: i), Characters(), BLOCK)
    assert not p.finished and p.tokens == 5 and p.prediction == "saw 2"


def test_lone_surrogates_in_the_truth_do_not_break_the_file(tmp_path):
    from maskworld.evaluation.predictions import read_predictions, write_predictions

    bad = Trajectory("t", "toy", "\ud800", "", (Step("\ud800", "\ud800"),), initial_observation="\ud800")
    p = to_prediction(Transition(bad, 0), 9, generation("x", 1, lambda i: i), Characters(), BLOCK)
    write_predictions(tmp_path / "predictions.jsonl", [p])
    assert read_predictions(tmp_path / "predictions.jsonl") == [p]
