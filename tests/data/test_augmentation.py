import hashlib
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_trajectories import sample_trajectories

from maskworld.config import DropRates
from maskworld.data.augmentation import drop_conditions, paraphrase_directives
from maskworld.data.curation.directives import ALTERNATIVES, with_derived_directives
from maskworld.data.draws import draws, fraction
from maskworld.data.schema import Step, Trajectory

PARTS = tuple(part.name for part in fields(DropRates) if part.name != "step_directives")
FULL = Trajectory(
    id="t",
    environment="e",
    initial_state="e0",
    task_context="task",
    initial_observation="start",
    tool_schemas=("look",),
    domain_rules=("rule",),
    directives=("Never invent.", "Answer with one JSON object."),
    steps=tuple(Step(f"a{i}", f"o{i}", directives=("Be terse.",)) for i in range(40)),
    group="g",
    player="p",
    source="s",
    licence="MIT",
    metadata={"k": [1]},
)
seeds = st.integers(-(2**63), 2**63)


def dropped(trajectory: Trajectory) -> set[str]:
    return {part for part in PARTS if not getattr(trajectory, part)}


@given(seeds)
def test_rates_of_zero_and_one_drop_nothing_and_everything(seed):
    assert drop_conditions(FULL, seed, DropRates()) == FULL
    bare = drop_conditions(FULL, seed, DropRates(**dict.fromkeys((*PARTS, "step_directives"), 1.0)))
    assert dropped(bare) == set(PARTS)
    assert not any(step.directives for step in bare.steps)
    given_back = replace(
        bare,
        steps=tuple(replace(step, directives=("Be terse.",)) for step in bare.steps),
        **{part: getattr(FULL, part) for part in PARTS},
    )
    assert given_back == FULL


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_dropped_at_its_own_rate(part):
    rates = DropRates(**{part: 0.3})
    found = [dropped(drop_conditions(replace(FULL, id=f"t{i}"), 1, rates)) for i in range(1000)]
    assert set(map(frozenset, found)) == {frozenset(), frozenset({part})}
    assert 250 < sum(map(len, found)) < 350


def test_parts_are_dropped_independently():
    rates = DropRates(**dict.fromkeys(PARTS, 0.5))
    found = [frozenset(dropped(drop_conditions(replace(FULL, id=f"t{i}"), 1, rates))) for i in range(1000)]
    assert len(set(found)) == 2 ** len(PARTS)
    counts = [found.count(one) for one in set(found)]
    assert min(counts) > 12 and max(counts) < 60


def test_directives_of_steps_are_dropped_step_by_step():
    kept = [bool(s.directives) for s in drop_conditions(FULL, 2, DropRates(step_directives=0.5)).steps]
    assert 10 < sum(kept) < 30
    assert drop_conditions(FULL, 2, DropRates(step_directives=0.5)).directives == FULL.directives
    others = [
        [bool(s.directives) for s in drop_conditions(FULL, seed, DropRates(step_directives=0.5)).steps]
        for seed in (3, 4)
    ]
    assert kept not in others


@given(seeds, st.floats(0, 1), st.floats(0, 1))
def test_a_higher_rate_drops_what_a_lower_one_dropped(seed, one, other):
    low, high = sorted((one, other))
    kept_at = [drop_conditions(FULL, seed, DropRates(initial_state=r, step_directives=r)) for r in (low, high)]
    assert len(kept_at[0].initial_state) >= len(kept_at[1].initial_state)
    for step_low, step_high in zip(kept_at[0].steps, kept_at[1].steps, strict=True):
        assert len(step_low.directives) >= len(step_high.directives)


@pytest.mark.parametrize("trajectory", sample_trajectories(), ids=lambda t: t.id)
def test_a_paraphrase_says_the_same_in_other_words(trajectory):
    derived = with_derived_directives(trajectory, 0)
    found = paraphrase_directives(derived, 1)
    assert paraphrase_directives(derived, 1) == found != derived
    assert found != paraphrase_directives(derived, 2)
    for before, after in zip(derived.steps, found.steps, strict=True):
        assert [ALTERNATIVES[text] for text in after.directives] == [ALTERNATIVES[text] for text in before.directives]
        assert replace(after, directives=before.directives) == before
    assert replace(found, steps=derived.steps) == derived


@given(seeds, seeds)
def test_words_of_a_source_stay_in_a_paraphrase(seed, other):
    found = paraphrase_directives(FULL, seed)
    assert found.directives[0].endswith("Never invent.")
    assert found.directives[1] in ALTERNATIVES["Answer with one JSON object."]
    assert all(step.directives[0].endswith("Be terse.") for step in found.steps)
    again = paraphrase_directives(found, other)
    assert again == paraphrase_directives(FULL, other)


def test_all_openings_are_drawn():
    found = {paraphrase_directives(FULL, seed).directives[0] for seed in range(60)}
    assert len(found) == 5 and "Never invent." in found


def test_draws_depend_on_seed_and_names_and_are_even():
    first = [number for number, _ in zip(draws(1, "a", "b"), range(2000), strict=False)]
    assert first == [number for number, _ in zip(draws(1, "a", "b"), range(2000), strict=False)]
    for other in (draws(2, "a", "b"), draws(1, "b", "a"), draws(1, "ab"), draws(-1, "a", "b")):
        assert next(other) not in first
    assert len(set(first)) == 2000 and all(0 <= number < 2**64 for number in first)
    shares = [fraction(number) for number in first]
    assert all(0 <= share < 1 for share in shares)
    assert [450 < sum(quarter / 4 <= share < (quarter + 1) / 4 for share in shares) < 550 for quarter in range(4)] == [
        True
    ] * 4


def splitmix64(state: int, count: int) -> list[int]:
    """The published generator (Steele, Lea and Flood 2014), in 64-bit arithmetic that wraps around."""
    with np.errstate(over="ignore"):
        step, x = np.uint64(0x9E3779B97F4A7C15), np.uint64(state)
        found = []
        for _ in range(count):
            x = x + step
            z = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            found.append(int(z ^ (z >> np.uint64(31))))
    return found


def test_draws_are_splitmix64_from_a_hash_of_the_names():
    """The sequence is part of the data: a build of another day or machine must give the same files."""
    assert splitmix64(0, 3) == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    state = int.from_bytes(hashlib.blake2b("7\0drops\0é".encode(), digest_size=8).digest(), "big")
    numbers = draws(7, "drops", "é")
    assert [next(numbers) for _ in range(100)] == splitmix64(state, 100)
