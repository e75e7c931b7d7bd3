"""Random numbers that depend on a seed and on names alone: not on order, process or machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

_BITS = 64
_MASK = (1 << _BITS) - 1


def draws(seed: int, *names: str) -> Iterator[int]:
    """An endless row of integers in [0, 2^64), the same for the same seed and names (splitmix64 from their hash)."""
    key = "\0".join((str(seed), *names)).encode("utf-8", "surrogatepass")
    state = int.from_bytes(hashlib.blake2b(key, digest_size=_BITS // 8).digest(), "big")
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        yield mixed ^ (mixed >> 31)


def fraction(number: int) -> float:
    """A drawn integer as a number in [0, 1)."""
    return (number >> 11) / (1 << 53)
