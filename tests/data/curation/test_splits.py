"""Groups and questions stay in one split, shares are kept, and a source is held out where it can be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.curation.splits import TEST, TRAIN, VALIDATION, assign_splits, tied_sets

RANDOM = np.random.default_rng(0)
HASHES = RANDOM.integers(0, 2**63, 5000, dtype=np.uint64)


def tied(groups, questions):
    """The sets of trajectories with these groups and lists of questions."""
    owners = np.array([index for index, some in enumerate(questions) for _ in some], np.int64)
    asked = np.array([HASHES[number] for some in questions for number in some], np.uint64)
    return tied_sets(HASHES[np.array(groups, np.int64)], asked, owners)


def sets_by_walking(groups, questions):
    """The same by joining what shares anything, one by one."""
    joined = list(range(len(groups)))
    for _ in groups:
        for one in range(len(groups)):
            for other in range(one):
                if groups[one] == groups[other] or set(questions[one]) & set(questions[other]):
                    joined[one] = joined[other] = min(joined[one], joined[other])
    return joined


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.lists(st.integers(0, 15), max_size=3)), max_size=12))
def test_what_shares_a_group_or_a_question_is_tied_over_any_number_of_others(rows):
    groups, questions = [row[0] for row in rows], [row[1] for row in rows]
    found, known = tied(groups, questions), sets_by_walking(groups, questions)
    for one in range(len(rows)):
        for other in range(one):
            assert (found[one] == found[other]) == (known[one] == known[other])


def assign(sets, sources=None, shares=(0.1, 0.1), seed=0):
    sets = np.array(sets, np.int64)
    sources = np.zeros(len(sets), np.int64) if sources is None else np.array(sources, np.int64)
    return assign_splits(sets, HASHES[sets], sources, shares, seed)


shares = st.tuples(st.floats(0, 0.49), st.floats(0, 0.49))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=60), shares, st.integers(-3, 3), st.randoms()
)
def test_a_set_is_in_one_split_whatever_the_order(rows, shares, seed, random):
    numbers = np.unique([row[0] for row in rows], return_inverse=True)[1]
    sources = [row[1] for row in rows]
    splits = assign(numbers, sources, shares, seed)
    assert len(splits) == len(rows) and set(splits.tolist()) <= {TRAIN, VALIDATION, TEST}
    for number in set(numbers.tolist()):
        assert len(set(splits[numbers == number].tolist())) == 1
    for split, share in ((VALIDATION, shares[0]), (TEST, shares[1])):
        if share == 0:
            assert split not in splits
    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = assign(numbers[order], [sources[place] for place in order], shares, seed)
    assert shuffled.tolist() == splits[order].tolist()


def test_shares_are_those_asked_for_in_each_source():
    sets = np.arange(4000)
    sources = sets % 2
    splits = assign(sets, sources, (0.1, 0.2))
    for source in (0, 1):
        counts = np.bincount(splits[sources == source], minlength=3) / 2000
        assert counts == pytest.approx([0.7, 0.1, 0.2], abs=0.025)


def test_what_is_larger_than_a_share_is_trained_on():
    sets = [0] * 500 + list(range(1, 501))
    for seed in range(30):
        splits = assign(sets, shares=(0.1, 0.1), seed=seed)
        assert splits[0] == TRAIN
        assert (splits == VALIDATION).sum() < 200


def test_a_small_source_gives_one_set_to_each_split_and_a_tiny_one_none():
    for seed in range(20):
        splits = assign(range(4), seed=seed, shares=(0.01, 0.01))
        assert sorted(splits.tolist()) == [TRAIN, TRAIN, VALIDATION, TEST]
        assert assign(range(2), seed=seed, shares=(1e-9, 1e-9)).tolist() == [TRAIN, TRAIN]


def test_most_sets_stay_where_they_were_when_others_come():
    before, after = assign(range(1000)), assign(range(1500))
    assert (after[:1000] == before).mean() == 1.0
    assert (assign(range(1000), seed=1) != before).mean() > 0.1


def test_a_set_of_several_sources_belongs_to_that_of_most_of_it():
    sets = [0] * 5 + list(range(1, 40))
    sources = [1, 1, 1, 0, 0] + [0] * 39
    splits = [assign(sets, sources, (0.3, 0.3), seed) for seed in range(40)]
    # It is all there is of its source, which is not held out for the sake of having any.
    assert all(one[0] == TRAIN or (one[:5] == one[0]).all() for one in splits)
    mine = [one[0] for one in splits]
    assert set(mine) == {TRAIN}  # 5 of the 5 of its source are more than the share
