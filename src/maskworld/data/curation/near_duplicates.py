"""Texts that are nearly the same, found without comparing every pair.

A text's signature is a one-permutation MinHash of its 16-byte shingles (Li, Owen and Zhang, 2012): the shingles' hashes
fall into 128 bins, and each bin keeps its smallest. The share of bins in which two signatures agree, of those that are
not empty in both, estimates the Jaccard similarity of the texts' shingles, with a standard error of at most 0.044 where
all are filled. Signatures that agree in one of 32 bands of 4 bins are compared.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Int64, UInt16

BINS = 128
SHINGLE = 16
_BANDS, _ROWS = 32, 4
_FEWEST = 4 * BINS  # shingles that fill the bins
_FEWEST_FILLED = BINS // 2  # bins; a text that repeats itself fills few, and then little decides
_EMPTY = np.uint16(0xFFFF)
_FIRST, _SECOND, _MIX = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93))
_COMPARED_AT_ONCE = 1 << 16
_ROUNDS = 8  # texts of one band that the others of it are compared with, at most


def signature(text: bytes) -> UInt16[np.ndarray, " 128"] | None:
    """The signature of a text; None where its parts say too little: it is under 527 bytes, or repeats itself."""
    count = len(text) - SHINGLE + 1
    if count < _FEWEST:
        return None
    words = np.ndarray((count + 8,), "<u8", text, strides=(1,))  # the eight bytes from every place on
    hashes = words[:-8] * _FIRST ^ words[8:] * _SECOND
    hashes ^= hashes >> np.uint64(29)
    hashes *= _MIX
    hashes ^= hashes >> np.uint64(32)
    smallest = np.full(BINS, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(smallest, (hashes & np.uint64(BINS - 1)).astype(np.intp), hashes >> np.uint64(7))
    filled = smallest != np.iinfo(np.uint64).max
    if filled.sum() < _FEWEST_FILLED:
        return None
    # Of two equal minima all bits are equal; the lowest sixteen are enough to tell different ones apart.
    lowest = np.minimum((smallest & np.uint64(0xFFFF)).astype(np.uint16), _EMPTY - np.uint16(1))
    return np.where(filled, lowest, _EMPTY)


def near_duplicates(signatures: UInt16[np.ndarray, "n 128"], similarity: float) -> Bool[np.ndarray, " n"]:
    """Which texts are similar to an earlier one that is itself none of these.

    Args:
        signatures: in the order in which texts are preferred.
        similarity: estimated Jaccard similarity from which on a text counts as the same.
    """
    likened: dict[int, set[int]] = {}
    for earlier, later in _similar_pairs(signatures, similarity):
        likened.setdefault(later, set()).add(earlier)
    found = np.zeros(len(signatures), bool)
    for later in sorted(likened):
        found[later] = not all(found[earlier] for earlier in likened[later])
    return found


def _similar_pairs(signatures: UInt16[np.ndarray, "n 128"], similarity: float) -> Iterator[tuple[int, int]]:
    """(earlier, later) of similar texts: in each band, the first is compared with all others of it, then the first of
    those that are not similar to it with the rest of them, and so on."""
    for band in range(_BANDS):
        rows = np.ascontiguousarray(signatures[:, band * _ROWS : (band + 1) * _ROWS]).view(np.uint64)[:, 0]
        left = np.argsort(rows, kind="stable")
        for _ in range(_ROUNDS):
            earlier, later = _first_of_equal(rows, left)
            alike = _alike(signatures, earlier, later, similarity)
            yield from zip(earlier[alike].tolist(), later[alike].tolist(), strict=True)
            left = later[~alike]
            if not len(left):
                break


def _first_of_equal(
    values: np.ndarray, order: Int64[np.ndarray, " k"]
) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " m"]]:
    """For every entry of `order` whose value the one before it has too: the first of this value, and itself."""
    ordered = values[order]
    again = np.zeros(len(order), bool)
    again[1:] = ordered[1:] == ordered[:-1]
    firsts = np.maximum.accumulate(np.where(again, 0, np.arange(len(order))))
    return order[firsts[again]], order[again]


def _alike(
    signatures: UInt16[np.ndarray, "n 128"],
    one: Int64[np.ndarray, " m"],
    other: Int64[np.ndarray, " m"],
    similarity: float,
) -> Bool[np.ndarray, " m"]:
    found = np.zeros(len(one), bool)
    for start in range(0, len(one), _COMPARED_AT_ONCE):
        here = slice(start, start + _COMPARED_AT_ONCE)
        first, second = signatures[one[here]], signatures[other[here]]
        equal = first == second
        both_empty = (equal & (first == _EMPTY)).sum(axis=1)
        found[here] = equal.sum(axis=1) - both_empty >= similarity * (BINS - both_empty)
    return found
