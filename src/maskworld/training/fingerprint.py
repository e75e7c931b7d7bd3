"""A number that tells whether arrays read back are the arrays that were written."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def fingerprint(tree: Any) -> int:
    """A 32-bit sum over the bits of all arrays: equal on every mesh, changed by any flipped bit.

    Integer sums wrap and do not depend on their order, so it is computed where the arrays live, in one pass.
    """
    return int(_sum_of_bits(tree))


@jax.jit
def _sum_of_bits(tree: Any) -> jax.Array:
    total = jnp.uint32(0)
    for place, leaf in enumerate(jax.tree.leaves(tree)):
        width = min(leaf.dtype.itemsize, 4)
        bits = leaf if leaf.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(leaf, f"uint{8 * width}")
        total += jnp.sum(bits, dtype=jnp.uint32) * jnp.uint32(2 * place + 1)  # odd: no bit is lost, and order counts
    return total
