"""Which trajectories stay, and in which split: pure functions of arrays, independent of the order of the input.

All work is done in the canonical order, by hash of the content and then of the line, so that neither the order of the
files nor the number of workers changes anything: of equal trajectories always the same one stays.

What is kept apart goes first: of equal or similar trajectories that of the out-of-distribution split stays, and what
answers its questions goes before it can stand for anything else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int8, Int64, UInt16, UInt64

from maskworld.data.curation.near_duplicates import near_duplicates
from maskworld.data.curation.splits import OUT_OF_DISTRIBUTION, TRAIN, assign_splits, tied_sets

REASONS = (
    "",
    "licence not allowed",
    "observations reveal more than allowed",
    "duplicate",
    "answers a question of the out-of-distribution split",
    "beginning of another trajectory",
    "near duplicate",
    "over the cap of its source",
)
(KEPT, LICENCE, REVEALS, DUPLICATE, LEAKS, BEGINNING, NEAR_DUPLICATE, CAPPED) = range(len(REASONS))


@dataclass(frozen=True)
class Candidates:
    """n trajectories with m steps altogether, in canonical order."""

    contents: UInt64[np.ndarray, "n 2"]
    contexts: UInt64[np.ndarray, " n"]
    groups: UInt64[np.ndarray, " n"]
    sources: Int64[np.ndarray, " n"]
    """Number of the source."""
    ends: Int64[np.ndarray, " n"]
    """One past the last step, in the arrays of steps."""
    questions: UInt64[np.ndarray, " m"]
    beginnings: UInt64[np.ndarray, " m"]
    signed: Bool[np.ndarray, " n"]
    signatures: UInt16[np.ndarray, "n 128"]
    allowed: Bool[np.ndarray, " n"]
    """Whether the licence is."""
    revealed: np.ndarray
    """Share of the named things in observations that no earlier text holds; [n]."""
    out_of_distribution: Bool[np.ndarray, " n"]
    """Whether it belongs to what is kept for that split."""

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def owners(self) -> Int64[np.ndarray, " m"]:
        """The trajectory of each step."""
        return np.repeat(np.arange(len(self)), np.diff(self.ends, prepend=0))


@dataclass(frozen=True)
class Rules:
    """What of a build's configuration bears on the choice."""

    keep_duplicates: bool
    near_duplicates: float
    most_revealed: float
    caps: dict[int, int]
    """Most trajectories, by number of the source."""
    shares: tuple[float, float]
    seed: int


@dataclass(frozen=True)
class Selection:
    """What became of each trajectory."""

    reasons: Int8[np.ndarray, " n"]
    """An index into `REASONS`; 0 for those that stay."""
    splits: Int8[np.ndarray, " n"]
    """TRAIN, VALIDATION, TEST or OUT_OF_DISTRIBUTION; without meaning for the others."""


def select(candidates: Candidates, rules: Rules) -> Selection:
    """The reasons in the order of `REASONS`: a trajectory goes for the first that applies.

    One that is the beginning of another goes for it only where a longer one stays.
    """
    reasons = np.zeros(len(candidates), np.int8)
    reasons[candidates.revealed > rules.most_revealed] = REVEALS
    reasons[~candidates.allowed] = LICENCE
    capped = np.isin(candidates.sources, list(rules.caps))
    if not rules.keep_duplicates:
        _mark_equal(candidates, reasons, capped)
    _mark_leaks(candidates, reasons)
    similar = np.zeros(len(candidates), bool)
    if not rules.keep_duplicates:
        similar = _similar(candidates, reasons, capped, rules.near_duplicates)
        left = reasons == KEPT
        reasons[similar] = NEAR_DUPLICATE
        reasons[left & _begun(candidates, left & ~similar)] = BEGINNING
    for source, most in rules.caps.items():
        left = np.flatnonzero((reasons == KEPT) & (candidates.sources == source))
        draws = _mixed(candidates.contents[left, 1], rules.seed)
        reasons[left[np.argsort(draws, kind="stable")[most:]]] = CAPPED
    # Where a cap has taken all longer ones, the beginning goes with them or, from a source without a cap, comes back.
    alone = (reasons == BEGINNING) & ~_begun(candidates, reasons == KEPT)
    back = alone & ~capped & ~similar
    reasons[alone] = CAPPED
    reasons[back] = KEPT
    reasons[back & _begun(candidates, reasons == KEPT)] = BEGINNING
    return Selection(reasons, _splits(candidates, reasons, rules))


def _mark_equal(candidates: Candidates, reasons: np.ndarray, capped: Bool[np.ndarray, " n"]) -> None:
    left = np.flatnonzero(reasons == KEPT)
    content = candidates.contents[left]
    order = np.lexsort((capped[left], ~candidates.out_of_distribution[left], content[:, 1], content[:, 0]))
    left, content = left[order], content[order]
    same = (content[1:] == content[:-1]).all(axis=1)
    reasons[left[1:][same]] = DUPLICATE


def _similar(
    candidates: Candidates, reasons: np.ndarray, capped: Bool[np.ndarray, " n"], similarity: float
) -> Bool[np.ndarray, " n"]:
    """Near duplicates among those left; of similar ones the longest stays, so that none goes for its own beginning."""
    found = np.zeros(len(candidates), bool)
    if similarity <= 1:
        left = np.flatnonzero((reasons == KEPT) & candidates.signed)
        steps = np.diff(candidates.ends, prepend=0)[left]
        left = left[np.lexsort((capped[left], -steps, ~candidates.out_of_distribution[left]))]
        found[left[near_duplicates(candidates.signatures[left], similarity)]] = True
    return found


def _begun(candidates: Candidates, kept: Bool[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Those whose steps are the first steps of a longer one of `kept`, the rest of the state being equal."""
    owners = candidates.owners
    with np.errstate(over="ignore"):
        within = candidates.contexts[owners] * np.uint64(0x9E3779B97F4A7C15) + candidates.beginnings
    final = np.zeros(len(within), bool)
    final[candidates.ends - 1] = True
    return np.isin(within[candidates.ends - 1], np.unique(within[~final & kept[owners]]))


def _mark_leaks(candidates: Candidates, reasons: np.ndarray) -> None:
    kept = reasons == KEPT
    apart = kept & candidates.out_of_distribution
    if not apart.any():
        return
    owners = candidates.owners
    asked = np.isin(candidates.questions, np.unique(candidates.questions[apart[owners]]))
    leaking = np.zeros(len(candidates), bool)
    leaking[owners[asked]] = True
    leaking |= np.isin(candidates.groups, np.unique(candidates.groups[apart]))
    reasons[kept & leaking & ~candidates.out_of_distribution] = LEAKS


def _splits(candidates: Candidates, reasons: np.ndarray, rules: Rules) -> Int8[np.ndarray, " n"]:
    splits = np.full(len(candidates), TRAIN, np.int8)
    splits[candidates.out_of_distribution] = OUT_OF_DISTRIBUTION
    chosen = (reasons == KEPT) & ~candidates.out_of_distribution
    left = np.flatnonzero(chosen)
    owners = candidates.owners
    mine = chosen[owners]
    position = np.cumsum(chosen) - 1
    sets = tied_sets(candidates.groups[left], candidates.questions[mine], position[owners[mine]])
    splits[left] = assign_splits(sets, candidates.groups[left], candidates.sources[left], rules.shares, rules.seed)
    return splits


def _mixed(values: UInt64[np.ndarray, " k"], seed: int) -> UInt64[np.ndarray, " k"]:
    """The values in an order that depends on the seed (a step of SplitMix64)."""
    mixed = values ^ np.uint64((seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(27))
