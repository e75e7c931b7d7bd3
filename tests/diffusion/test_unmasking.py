"""The unmasking rules against loops over single positions."""

import jax
import numpy as np
import pytest
import small_data  # noqa: F401  (sets hypothesis' deadline)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from maskworld.diffusion.unmasking import RULES, Candidates, commit_count

ROWS, BLOCK = 3, 6
THRESHOLD = 0.5
jitted = {name: jax.jit(rule) for name, rule in RULES.items()}
candidates = st.tuples(
    # Few values, so that ties and values at the threshold are common.
    arrays.arrays(np.float32, (ROWS, BLOCK), elements=st.sampled_from(np.float32([0, 0.25, 0.5, 0.75, 1]))),
    arrays.arrays(bool, (ROWS, BLOCK)),
    arrays.arrays(np.int32, ROWS, elements=st.integers(1, BLOCK)),
)


def most_confident(confidence, masked, count):
    """Indices of the `count` most confident masked positions, the leftmost of equals first."""
    order = sorted(np.flatnonzero(masked), key=lambda index: (-confidence[index], index))
    return set(order[:count])


def static(confidence, masked, count):
    return most_confident(confidence, masked, count)


def dynamic(confidence, masked, count):
    sure = {index for index in np.flatnonzero(masked) if confidence[index] > THRESHOLD}
    return sure if len(sure) >= count else most_confident(confidence, masked, count)


def leftmost(confidence, masked, count):
    return set(np.flatnonzero(masked)[:count])


REFERENCES = {"low_confidence_static": static, "low_confidence_dynamic": dynamic, "sequential": leftmost}


def test_every_rule_has_a_reference():
    assert set(REFERENCES) == set(RULES)


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=200)
@given(given_candidates=candidates)
def test_a_rule_commits_what_its_reference_does(rule, given_candidates):
    """Every row as if it were alone; masked positions only; at least one where something is masked."""
    confidence, masked, count = given_candidates
    chosen = np.asarray(jitted[rule](Candidates(*given_candidates), THRESHOLD))
    assert not (chosen & ~masked).any()
    assert (chosen.any(axis=-1) == masked.any(axis=-1)).all()
    for row in range(ROWS):
        assert set(np.flatnonzero(chosen[row])) == REFERENCES[rule](confidence[row], masked[row], count[row])


@given(block=st.integers(1, 40), share=st.floats(0, 1))
def test_the_schedule_fills_a_block_in_the_given_steps(block, share):
    steps = 1 + int(share * (block - 1))
    counts = [int(commit_count(block, steps, np.int32(step))) for step in range(steps)]
    assert sum(counts) == block
    assert sorted(counts, reverse=True) == counts and counts[0] - counts[-1] <= 1


def test_more_steps_than_positions_commit_one_at_a_time():
    np.testing.assert_array_equal(commit_count(4, 9, np.arange(9, dtype=np.int32)), np.ones(9))
