"""Texts that are nearly the same are found, others are not, and the first of them stays."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.curation.near_duplicates import BINS, SHINGLE, near_duplicates, signature

RANDOM = random.Random(0)


def text(length, chance=RANDOM):
    return "".join(chance.choice("abcdefghij klmnop") for _ in range(length))


def marked(texts, similarity=0.9):
    return near_duplicates(np.stack([signature(one.encode()) for one in texts]), similarity).tolist()


def jaccard(one, other):
    one, other = ({some[at : at + SHINGLE] for at in range(len(some) - SHINGLE + 1)} for some in (one, other))
    return len(one & other) / len(one | other)


@pytest.mark.parametrize("changed", [0, 30, 300, 1500, 6000])
def test_the_share_of_equal_bins_estimates_the_similarity(changed):
    errors = []
    for _ in range(20):
        one = text(6000)
        other = one[: 6000 - changed] + text(changed)
        equal = (signature(one.encode()) == signature(other.encode())).mean()
        errors.append(equal - jaccard(one, other))
    assert abs(np.mean(errors)) < 0.03 and max(map(abs, errors)) < 0.16


def test_the_signature_is_the_same_on_every_machine():
    found = signature(bytes(range(256)) * 3)
    assert found.dtype == np.uint16 and found[:6].tolist() == [26822, 0xFFFF, 16086, 0xFFFF, 0xFFFF, 21152]


def test_the_first_of_similar_texts_stays():
    base = text(3000)
    similar = base[:-20] + text(20)
    assert marked([base, similar, text(3000), base]) == [False, True, False, True]
    assert marked([similar, base]) == [False, True]
    assert marked([base, similar], similarity=1.0) == [False, False]


def one_by_one(signatures, similarity):
    """Each text compared with all that stay before it."""
    stay: list[int] = []
    for place, own in enumerate(signatures):
        if not any((signatures[other] == own).mean() >= similarity for other in stay):
            stay.append(place)
    return [place not in stay for place in range(len(signatures))]


@pytest.mark.parametrize("pages", [9, 12, 20])
def test_all_are_found_among_texts_that_share_many_parts(pages):
    """Twins among texts that recombine a few pages: each band of a text is one of many others too."""
    chance = random.Random(pages)
    known = [text(400, chance) for _ in range(pages)]
    texts = []
    for _ in range(150):
        own = "".join(chance.sample(known, 6)) + text(40, chance)
        texts += [own, own[:-30] + text(30, chance)]
    chance.shuffle(texts)
    signatures = np.stack([signature(one.encode()) for one in texts])
    found, expected = near_duplicates(signatures, 0.9).tolist(), one_by_one(signatures, 0.9)
    assert sum(expected) > 140
    assert sum(one != other for one, other in zip(found, expected, strict=True)) <= 1


def test_a_text_goes_only_for_one_that_stays():
    """Of a row in which neighbours are similar, and no others."""
    chain = [text(4000, random.Random(1))]
    for step in range(8):
        chain.append(chain[-1][160:] + text(160, random.Random(step + 2)))
    signatures = np.stack([signature(one.encode()) for one in chain])
    found = near_duplicates(signatures, 0.88).tolist()
    assert found == one_by_one(signatures, 0.88) and True in found and found.count(False) > 2


def test_texts_that_repeat_themselves_or_are_short_have_no_signature():
    for one in (b"", b"x" * 20, b"a" * 600, b"=" * 100_000, b"0\n" * 5000, b'{"ok": true}\n' * 300):
        assert signature(one) is None
    assert signature(text(526).encode()) is None
    assert signature(text(527).encode()) is not None


def test_bins_that_are_empty_in_both_say_nothing():
    """Texts of few different parts leave many bins empty; their true similarity is 0.5."""
    found = []
    for seed in range(20):
        chance = random.Random(seed)
        shared = text(92, chance)
        one, other = ((shared + text(23, chance)) * 40 for _ in range(2))
        assert abs(jaccard(one, other) - 0.5) < 0.03
        assert (signature(one.encode()) == 0xFFFF).sum() > BINS / 4
        found.append(marked([one, other], 0.58)[1])
    assert sum(found) < 6
    assert marked([one, one + "x"], 0.9) == [False, True]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(0, 100))
def test_of_equal_signatures_the_first_stays_in_any_order(kinds, seed):
    chance = np.random.default_rng(seed)
    known = chance.integers(0, 60_000, (6, BINS)).astype(np.uint16)
    found = near_duplicates(known[kinds], 0.9).tolist()
    assert found == [kind in kinds[:place] for place, kind in enumerate(kinds)]


def test_nothing_is_a_duplicate_of_nothing():
    assert near_duplicates(np.zeros((0, BINS), np.uint16), 0.9).tolist() == []
