"""Packed rows of random tokens, for whatever takes a batch."""

import jax.numpy as jnp
import numpy as np


def random_batch(rng, rows, length, block, document_lengths, target_share=0.5, vocabulary=50):
    """Packed rows: documents of the given lengths on the block grid, targets in random runs that ignore blocks."""
    batch = {name: np.zeros((rows, length), np.int32) for name in ("tokens", "document_ids", "positions")}
    batch["targets"] = np.zeros((rows, length), bool)
    for row in range(rows):
        start = 0
        for number, size in enumerate(rng.permutation(document_lengths), 1):
            if start + size > length:
                break
            batch["tokens"][row, start : start + size] = rng.integers(4, vocabulary, size)
            batch["document_ids"][row, start : start + size] = number
            batch["positions"][row, start : start + size] = np.arange(size)
            first = rng.integers(0, max(size - 1, 1))
            for begin in range(first, size, 7):
                batch["targets"][row, start + begin : start + min(size, begin + rng.integers(1, 7))] = (
                    rng.random() < target_share
                )
            start += -(-size // block) * block
    hits = batch["targets"].reshape(rows, -1, block).any(-1)
    batch["target_blocks"] = np.full((rows, length // block), -1, np.int32)
    for row in range(rows):
        found = np.flatnonzero(hits[row])
        batch["target_blocks"][row, : len(found)] = found
    return {name: jnp.asarray(value) for name, value in batch.items()}
