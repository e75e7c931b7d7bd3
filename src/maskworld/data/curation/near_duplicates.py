"""Texts that are nearly the same, found without comparing every pair.

A text's signature is a one-permutation MinHash of its 16-byte shingles (Li, Owen and Zhang, 2012): the shingles' hashes
fall into 128 bins, and each bin keeps its smallest. The share of bins in which two signatures agree estimates the
Jaccard similarity of the texts' shingles, with a standard error of at most 0.044. Signatures that agree in one of 32
bands of 4 bins are compared.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Int64, UInt16

BINS = 128
SHINGLE = 16
_BANDS, _ROWS = 32, 4
_FEWEST = 4 * BINS  # shingles that fill the bins: below, empty bins would decide
_FIRST, _SECOND, _MIX = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93))
_COMPARED_AT_ONCE = 1 << 16


def signature(text: bytes) -> UInt16[np.ndarray, " 128"] | None:
    """The signature of a text; None for one so short (under 527 bytes) that its parts say too little."""
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
    # Of two equal minima all bits are equal; the lowest sixteen are enough to tell different ones apart.
    return (smallest & np.uint64(0xFFFF)).astype(np.uint16)


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
    for band in range(_BANDS):
        rows = np.ascontiguousarray(signatures[:, band * _ROWS : (band + 1) * _ROWS]).view(np.uint64)[:, 0]
        earlier, later = _first_of_equal(rows)
        for start in range(0, len(later), _COMPARED_AT_ONCE):
            one, other = earlier[start : start + _COMPARED_AT_ONCE], later[start : start + _COMPARED_AT_ONCE]
            alike = (signatures[one] == signatures[other]).mean(axis=1) >= similarity
            yield from zip(one[alike].tolist(), other[alike].tolist(), strict=True)


def _first_of_equal(values: np.ndarray) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " m"]]:
    """For every value that has occurred before: the index of its first occurrence, and its own."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if len(order) else np.zeros(0, bool)
    firsts = order[np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))] if len(order) else order
    return firsts[~starts], order[~starts]
