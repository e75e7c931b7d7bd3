"""Which trajectories stay: whatever the order of the input, one of equal ones, none whose answer was trained on."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.curation.keys import keys_of
from maskworld.data.curation.near_duplicates import BINS
from maskworld.data.curation.selection import REASONS, Candidates, Rules, select
from maskworld.data.curation.splits import OUT_OF_DISTRIBUTION
from maskworld.data.schema import Step, Trajectory

RULES = Rules(False, 0.9, 1.0, {}, (0.3, 0.3), 0)
SIGNATURES = np.random.default_rng(0).integers(0, 60_000, (5, BINS)).astype(np.uint16)
SIGNATURES[1] = SIGNATURES[0]
SIGNATURES[1, :6] += 1  # like the first, at 0.95
SOURCES = ("one", "two", "three")


def trajectory(steps, group="", source="one", room="", task="", number=0):
    return Trajectory(
        id=f"{number}",
        environment="world",
        initial_state=room,
        task_context=task,
        steps=tuple(Step(action, observation) for action, observation in steps),
        group=group,
        source=source,
        metadata={"signature": number % 7},
    )


def candidates_of(trajectories, apart=(), forbidden=(), revealing=()):
    """As the build collects them, and the trajectories in the same order."""
    keyed = [(keys_of(one), hashlib.blake2b(repr(one).encode(), digest_size=8).digest(), one) for one in trajectories]
    keyed.sort(key=lambda entry: (np.frombuffer(entry[0].content, "<u8").tolist(), entry[1]))
    keys, found = [entry[0] for entry in keyed], [entry[2] for entry in keyed]
    kinds = [one.metadata["signature"] for one in found]
    candidates = Candidates(
        contents=np.array([np.frombuffer(one.content, "<u8") for one in keys], np.uint64).reshape(-1, 2),
        contexts=np.array([one.context for one in keys], np.uint64),
        groups=np.array([one.group for one in keys], np.uint64),
        sources=np.array([SOURCES.index(one.source) for one in found], np.int64),
        ends=np.cumsum([len(one.steps) for one in found], dtype=np.int64),
        questions=np.array([number for one in keys for number in one.questions], np.uint64),
        beginnings=np.array([number for one in keys for number in one.beginnings], np.uint64),
        signed=np.array([kind < 5 for kind in kinds], bool),
        signatures=SIGNATURES[np.array(kinds, np.int64) % 5].reshape(-1, BINS),
        allowed=np.array([one.group not in forbidden for one in found], bool),
        revealed=np.array([0.9 if one.group in revealing else 0.1 for one in found]),
        out_of_distribution=np.array([one.group in apart for one in found], bool),
    )
    return candidates, found


def selected(trajectories, rules=RULES, **marks):
    """(trajectory, reason, split) of each, in canonical order."""
    candidates, found = candidates_of(trajectories, **marks)
    chosen = select(candidates, rules)
    reasons = [REASONS[number] for number in chosen.reasons]
    return list(zip(found, reasons, chosen.splits.tolist(), strict=True))


def told(rows, rules=RULES, **marks):
    """The reasons in the order of the rows."""
    found = {id(one): reason for one, reason, _ in selected(rows, rules, **marks)}
    return [found[id(one)] for one in rows]


def is_beginning(short, long):
    return (
        len(short.steps) < len(long.steps)
        and short.steps == long.steps[: len(short.steps)]
        and (short.initial_state, short.task_context) == (long.initial_state, long.task_context)
    )


def questions(one):
    return {(one.initial_state, one.steps[:index], one.steps[index].action) for index in range(len(one.steps))}


steps = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["1", "2"])), min_size=1, max_size=4)
trajectories = st.lists(
    st.builds(
        trajectory,
        steps,
        group=st.sampled_from(["", "g1", "g2", "g3", "g4"]),
        source=st.sampled_from(SOURCES),
        room=st.sampled_from(["", "room", "hall"]),
        task=st.sampled_from(["", "task"]),
        number=st.integers(0, 40),
    ),
    max_size=30,
)
rules = st.builds(
    Rules,
    st.booleans(),
    st.sampled_from([0.9, 1.1]),
    st.sampled_from([0.5, 1.0]),
    st.dictionaries(st.integers(0, 2), st.integers(0, 4), max_size=2),
    st.sampled_from([(0.3, 0.3), (0.0, 0.2), (0.0, 0.0), (0.49, 0.49)]),
    st.integers(-1, 5),
)
marks = st.fixed_dictionaries(
    {
        "apart": st.sampled_from([(), ("g1",), ("g1", "g2")]),
        "forbidden": st.sampled_from([(), ("g3",)]),
        "revealing": st.sampled_from([(), ("g4",)]),
    }
)


@settings(max_examples=120, deadline=None)
@given(trajectories, rules, marks, st.randoms())
def test_what_stays_does_not_depend_on_the_order_of_the_input(trajectories, rules, marks, random):
    first = selected(trajectories, rules, **marks)
    shuffled = list(trajectories)
    random.shuffle(shuffled)
    assert selected(shuffled, rules, **marks) == first


@settings(max_examples=150, deadline=None)
@given(trajectories, rules, marks)
def test_no_question_and_no_group_is_in_two_splits(trajectories, rules, marks):
    split_of: dict = {}
    for one, reason, split in selected(trajectories, rules, **marks):
        assert (split == OUT_OF_DISTRIBUTION) == (one.group in marks["apart"])
        if not reason:
            for known in (("group", one.group or keys_of(one).content), *questions(one)):
                assert split_of.setdefault(known, split) == split


@settings(max_examples=150, deadline=None)
@given(trajectories, rules, marks)
def test_nothing_goes_without_its_reason(trajectories, rules, marks):
    found = selected(trajectories, rules, **marks)
    kept = [one for one, reason, _ in found if not reason]
    apart = [one for one, reason, _ in found if one.group in marks["apart"] and reason not in REASONS[1:4]]
    for one, reason, _ in found:
        if reason == "licence not allowed":
            assert one.group in marks["forbidden"]
        elif reason == "observations reveal more than allowed":
            assert one.group in marks["revealing"] and rules.most_revealed < 0.9
        elif reason == "beginning of another trajectory":
            assert any(is_beginning(one, other) for other in kept)
        elif reason == "near duplicate":
            like = {0, 1} if one.metadata["signature"] < 2 else {one.metadata["signature"]}
            assert len([other for other in trajectories if other.metadata["signature"] in like]) > 1
        elif reason == "over the cap of its source":
            assert rules.caps
        elif reason.startswith("answers"):
            assert any(one.group == other.group or questions(one) & questions(other) for other in apart)


@settings(max_examples=150, deadline=None)
@given(trajectories, rules, marks)
def test_of_equal_ones_exactly_one_stays_and_nothing_stays_beside_its_continuation(trajectories, rules, marks):
    found = selected(trajectories, rules, **marks)
    eligible: dict = {}
    for one, reason, _ in found:
        if reason not in REASONS[1:3]:
            eligible.setdefault(keys_of(one).content, []).append((one, reason))
    for equal in eligible.values():
        left = [one for one, reason in equal if reason != "duplicate"]
        assert len(left) == (len(equal) if rules.keep_duplicates else 1)
        if any(one.group in marks["apart"] for one, _ in equal) and not rules.keep_duplicates:
            assert left[0].group in marks["apart"]
    kept = [one for one, reason, _ in found if not reason]
    if not rules.keep_duplicates:
        assert not any(is_beginning(one, other) for one in kept for other in kept)
        if rules.near_duplicates <= 1:
            kinds = [max(one.metadata["signature"], 1) for one in kept if one.metadata["signature"] < 5]
            assert len(kinds) == len(set(kinds))
    for source, most in rules.caps.items():
        assert sum(one.source == SOURCES[source] for one in kept) <= most


@settings(max_examples=60, deadline=None)
@given(trajectories)
def test_a_cap_that_none_reaches_changes_nothing(trajectories):
    capped = replace(RULES, caps={0: 1000, 1: 1000, 2: 1000})
    assert selected(trajectories, capped) == selected(trajectories)


def many(count, source="one", start=0):
    return [trajectory([(f"go {n}", "ok")], f"g{n}", source, number=5) for n in range(start, start + count)]


def test_a_cap_takes_a_choice_that_the_seed_decides_and_more_room_only_adds():
    def kept(most, seed=0):
        rules = replace(RULES, caps={0: most}, seed=seed)
        return {one.group for one, reason, _ in selected(many(60) + many(9, "two", 100), rules) if not reason}

    assert len(kept(20)) == 29 and kept(20) < kept(30) and kept(20) != kept(20, seed=1)
    assert len(kept(0)) == 9


LONG = [("a", "1"), ("b", "2"), ("c", "3")]
BEGINNING, NEAR, CAPPED, LEAKS = "beginning of another trajectory", "near duplicate", REASONS[7], REASONS[4]


def test_a_beginning_comes_back_where_the_cap_of_another_source_takes_the_longer_ones():
    rows = [
        trajectory(LONG, "g", "one", number=5),
        trajectory(LONG[:2], "g", "two", number=5),
        trajectory(LONG[:1], "g", "two", number=5),
        trajectory(LONG[:2], "g", "one", number=6, task="task"),
    ]
    assert told(rows) == ["", BEGINNING, BEGINNING, ""]
    assert told(rows, replace(RULES, caps={0: 0})) == [CAPPED, "", BEGINNING, CAPPED]
    assert told(rows, replace(RULES, caps={0: 0, 1: 0})) == [CAPPED] * 4


def test_of_similar_ones_the_longer_stays_whatever_their_hashes():
    for number in range(20):
        short = trajectory([("a", f"{number}")], "g", number=0)
        other = trajectory([("a", f"{number} other")], "g", number=0)
        long = trajectory([("a", f"{number}"), ("b", "2")], "g", number=1)
        assert told([short, long]) == [BEGINNING, ""]
        assert told([other, long]) == [NEAR, ""]


def test_of_equal_or_similar_ones_that_which_is_kept_apart_stays():
    for number in range(20):
        shared = [("a", f"{number}")]
        rows = [trajectory(shared, "apart", "one", number=0), trajectory(shared, "g", "two", number=0)]
        rows.append(trajectory([("z", f"{number}"), ("y", "")], "h", "three", number=1))
        assert told(rows, apart=("apart",)) == ["", "duplicate", NEAR]


def test_of_equal_ones_that_of_a_source_without_a_cap_stays():
    for number in range(20):
        shared = [("a", f"{number}")]
        rows = [trajectory(shared, "g", "one", number=5), trajectory(shared, "g", "two", number=5)]
        assert told(rows, replace(RULES, caps={0: 1})) == ["duplicate", ""]


def test_what_asks_a_question_of_what_is_kept_apart_goes_before_it_stands_for_anything():
    apart = trajectory([("a", "1"), ("b", "2")], "apart", room="hall", number=5)
    asks = trajectory([("a", "9"), ("c", "1")], "g", room="hall", number=5)
    same_group = trajectory([("z", "1"), ("y", "1")], "apart too", room="hall", number=5)
    beginning = trajectory([("z", "1")], "h", room="hall", number=5)
    assert told([apart, asks, same_group, beginning], apart=("apart",)) == ["", LEAKS, "", BEGINNING]
    grouped = replace(same_group, group="x")
    kept_apart = trajectory([("w", "1")], "x", room="", number=5)
    # `grouped` goes because of its group alone: nothing of its beginning is asked in the split apart.
    candidates, found = candidates_of([apart, grouped, beginning, kept_apart])
    candidates = replace(candidates, out_of_distribution=np.array([one in (apart, kept_apart) for one in found]))
    reasons = dict(zip(map(id, found), select(candidates, RULES).reasons.tolist(), strict=True))
    assert [REASONS[reasons[id(one)]] for one in (apart, grouped, beginning, kept_apart)] == ["", LEAKS, "", ""]


@pytest.mark.parametrize("keep", [False, True])
def test_nothing_at_all_can_be_selected_from(keep):
    assert selected([], replace(RULES, keep_duplicates=keep, caps={0: 1})) == []
    rows = many(3)
    reasons = told(rows, replace(RULES, keep_duplicates=keep), forbidden=tuple(one.group for one in rows))
    assert reasons == ["licence not allowed"] * 3
