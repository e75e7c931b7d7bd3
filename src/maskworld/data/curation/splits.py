"""Which trajectories are trained on and which are held out.

Whole groups go to one split (a room, a task, a database), and groups that share a question (the same e0, history and
action) go together, so that nothing asked of a held-out trajectory was answered in training. Trajectories whose first
actions say little (`ls`, `SHOW TABLES`) can tie most groups of a source together; what is too large to be held out is
trained on.

A group's place depends on its hash and the seed: where data are added later, most groups stay where they were. Only a
source that would have nothing held out gives up its next group.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int8, Int64, UInt64

TRAIN, VALIDATION, TEST, OUT_OF_DISTRIBUTION = range(4)
SPLIT_NAMES = ("train", "validation", "test", "ood_test")
_FEWEST_TIED_SETS = 3  # of a source, below which none is held out for the sake of having any


def tied_sets(
    groups: UInt64[np.ndarray, " n"], questions: UInt64[np.ndarray, " m"], owners: Int64[np.ndarray, " m"]
) -> Int64[np.ndarray, " n"]:
    """For each trajectory the number of the set it is tied into by its group and its questions.

    Args:
        groups: hash of the group, per trajectory.
        questions: all trajectories' questions, one after another.
        owners: to which trajectory each question belongs.
    """
    import scipy.sparse
    import scipy.sparse.csgraph

    _, group_of = np.unique(groups, return_inverse=True)
    order = np.argsort(questions, kind="stable")
    asked = questions[order]
    same = np.flatnonzero(asked[1:] == asked[:-1])
    one, other = group_of[owners[order[same]]], group_of[owners[order[same + 1]]]
    count = int(group_of.max(initial=-1)) + 1
    links = scipy.sparse.coo_array((np.ones(len(one), bool), (one, other)), (count, count))
    _, set_of_group = scipy.sparse.csgraph.connected_components(links, directed=False)
    return set_of_group[group_of].astype(np.int64)


def assign_splits(
    sets: Int64[np.ndarray, " n"],
    groups: UInt64[np.ndarray, " n"],
    sources: Int64[np.ndarray, " n"],
    shares: tuple[float, float],
    seed: int,
) -> Int8[np.ndarray, " n"]:
    """TRAIN, VALIDATION or TEST for each trajectory.

    Args:
        sets: as `tied_sets` gives them.
        groups: hash of the group; the smallest of a set is the set's name.
        sources: number of the source; a set belongs to the source of most of its trajectories.
        shares: of validation and test, each between 0 and 1.
        seed: of the choice.
    """
    if not len(sets):
        return np.zeros(0, np.int8)
    sizes = np.bincount(sets)
    names = np.full(len(sizes), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(names, sets, groups)
    source_of = _most_frequent(sets, sources, len(sizes))
    draws = _uniform(names, seed)
    split_of = np.zeros(len(sizes), np.int8)
    for source in np.unique(source_of):
        mine = np.flatnonzero(source_of == source)
        total = int(sizes[mine].sum())
        lower = 0.0
        for split, share in ((VALIDATION, shares[0]), (TEST, shares[1])):
            small = mine[(sizes[mine] <= max(1.0, share * total)) & (split_of[mine] == TRAIN)]
            chosen = small[(draws[small] >= lower) & (draws[small] < lower + share)]
            if share > 0 and not len(chosen) and len(mine) >= _FEWEST_TIED_SETS and len(small):
                chosen = small[[np.argmin(draws[small])]]
            split_of[chosen] = split
            lower += share
    return split_of[sets]


def _most_frequent(sets: np.ndarray, sources: np.ndarray, count: int) -> np.ndarray:
    width = int(sources.max()) + 1
    pairs, frequency = np.unique(sets * width + sources, return_counts=True)
    order = np.lexsort((-pairs, frequency))  # the last of a set is the most frequent, the smaller source among equals
    found = np.zeros(count, np.int64)
    found[pairs[order] // width] = pairs[order] % width
    return found


def _uniform(names: UInt64[np.ndarray, " k"], seed: int) -> np.ndarray:
    """A number in [0, 1) for each name (SplitMix64 of name and seed)."""
    value = names ^ np.uint64((seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ (value >> np.uint64(shift))) * np.uint64(factor)
    return ((value ^ (value >> np.uint64(31))) >> np.uint64(11)) / float(1 << 53)
