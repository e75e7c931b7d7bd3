"""Attention of both streams, as one primitive: every query sees one range of keys.

All masks of block diffusion are ranges. A clean query of block b sees its document from the start to the end of b;
a noisy query of block b sees the *clean* keys of its document before b, and its own noisy block (`block_attention`);
a query at decode time sees the cache up to the end of its block. `merge` joins two disjoint key sets exactly, by the
log-sum-exp each part returns, so that the doubled [noisy; clean] sequence of BD3-LM (arXiv 2503.09573, section 3.2)
never exists.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from maskworld.models.linear import merge_rows
from maskworld.models.range_attention import ATTENDED, chunked_range_attention
from maskworld.models.spread import ROWS, mesh_in_use

EMPTY = -1e30
"""Log-sum-exp of a query that sees no key; its output is zero."""

Implementation = Literal["auto", "reference", "chunked"]


def range_attention(
    query: Float[Array, "B N H E"],
    key: Float[Array, "B L G E"],
    value: Float[Array, "B L G E"],
    key_start: Int[Array, "B N"],
    key_end: Int[Array, "B N"],
    implementation: Implementation = "auto",
) -> tuple[Float[Array, "B N H E"], Float[Array, "B N H"]]:
    """Softmax attention of each query over the keys `key_start <= l < key_end`, scaled by 1 / sqrt(E).

    Returns the output in the dtype of `value` and the float32 log-sum-exp of the scores, `EMPTY` (with output zero)
    where the range is empty. "reference" builds the dense mask; "chunked" visits only tiles that some query of the
    tile sees, and never holds the scores of more than one tile; "auto" takes the faster one for the shape.
    """
    if chosen_implementation(implementation, query.shape[1], key.shape[1]) == "reference":
        return _dense_range_attention(query, key, value, key_start, key_end)
    return _on_each_device(chunked_range_attention, key.shape[2])(query, key, value, key_start, key_end)


def chosen_implementation(implementation: Implementation, queries: int, keys: int) -> Implementation:
    """What "auto" stands for at N queries and L keys; anything else as it is."""
    if implementation != "auto":
        return implementation
    return "chunked" if queries >= 256 and keys >= 256 else "reference"


def _on_each_device(attend, kv_heads: int):
    """`attend` on every device's own rows and heads, under the mesh of the context if there is one.

    The tiles' loop bounds depend on the data: without this the partitioner would have to run all rows everywhere.
    """
    mesh = mesh_in_use()
    if mesh is None:
        return attend
    heads = "tensor" if kv_heads % mesh.shape["tensor"] == 0 else None
    by_head, by_row = P(ROWS, None, heads, None), P(ROWS, None)
    specs = (by_head, by_head, by_head, by_row, by_row)
    return jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=(by_head, P(ROWS, None, heads)), check_vma=False)


def _dense_range_attention(query, key, value, key_start, key_end):
    index = jnp.arange(key.shape[1])
    visible = (index >= key_start[..., None]) & (index < key_end[..., None])
    return masked_attention(query, key, value, visible)


def masked_attention(
    query: Float[Array, "*batch N H E"],
    key: Float[Array, "*batch L G E"],
    value: Float[Array, "*batch L G E"],
    visible: Bool[Array, "*batch N L"],
) -> tuple[Float[Array, "*batch N H E"], Float[Array, "*batch N H"]]:
    """Attention under an explicit mask; grouped queries: head h reads key/value head h // (H / G)."""
    *batch, length, heads, size = query.shape
    groups = key.shape[-2]
    grouped = query.reshape(*batch, length, groups, heads // groups, size)
    scores = jnp.einsum("...ngre,...lge->...grnl", grouped, key, preferred_element_type=jnp.float32)
    scores = jnp.where(visible[..., None, None, :, :], scores * size**-0.5, EMPTY)
    top = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    weights = jnp.where(visible[..., None, None, :, :], jnp.exp(scores - top), 0.0)
    total = weights.sum(axis=-1)
    # An empty row divides zero by one instead of zero by zero, in the forward and in the backward pass.
    safe = jnp.where(total > 0, total, 1.0)
    mixed = jnp.einsum(
        "...grnl,...lge->...ngre", weights.astype(value.dtype), value, preferred_element_type=jnp.float32
    )
    mixed = checkpoint_name(mixed, ATTENDED)
    out = mixed / jnp.moveaxis(safe, -1, -3)[..., None]
    log_sum = jnp.where(total > 0, top[..., 0] + jnp.log(safe), EMPTY)
    log_sum = jnp.moveaxis(log_sum, -1, -3).reshape(*batch, length, heads)
    return out.reshape(*batch, length, heads, size).astype(value.dtype), log_sum


def block_tile(block_length: int) -> int:
    """Positions of one tile of `block_attention`: as many whole blocks as fit into 32."""
    return max(block_length, 32 - 32 % block_length)


def block_attention(
    query: Float[Array, "B N H E"],
    key: Float[Array, "B N G E"],
    value: Float[Array, "B N G E"],
    document_ids: Int[Array, "B N"],
    block_length: int,
    causal: bool = False,
    window: int = 0,
) -> tuple[Float[Array, "B N H E"], Float[Array, "B N H"]]:
    """Attention inside each block of `block_length` consecutive positions, within one document.

    Full, or `causal` in the order in which the positions stand (WeDLM); `window` above 0 limits how many keys back a
    position sees, itself included. Document 0 is padding: it sees nothing and is seen by nothing. Several blocks share
    a tile under a block-diagonal mask, because matrix units are slow on matrices of four rows.
    """
    rows, length, heads, size = query.shape
    tile = block_tile(block_length)
    fill = -length % tile
    if fill:
        query, key, value = (jnp.pad(x, ((0, 0), (0, fill), (0, 0), (0, 0))) for x in (query, key, value))
        document_ids = jnp.pad(document_ids, ((0, 0), (0, fill)))
    tiles = (length + fill) // tile

    def split(x):
        return x.reshape(rows, tiles, tile, *x.shape[2:])

    block = jnp.arange(tile) // block_length
    document = split(document_ids)
    visible = (block[:, None] == block[None, :]) & (document[..., :, None] == document[..., None, :])
    visible &= (document > 0)[..., None]
    back = jnp.arange(tile)[:, None] - jnp.arange(tile)[None, :]
    if causal:
        visible &= back >= 0
    if window:
        visible &= back < window
    out, log_sum = masked_attention(split(query), split(key), split(value), visible)
    return (
        out.reshape(rows, tiles * tile, heads, size)[:, :length],
        log_sum.reshape(rows, tiles * tile, heads)[:, :length],
    )


def merge(
    out_a: Float[Array, "B N H E"],
    log_sum_a: Float[Array, "B N H"],
    out_b: Float[Array, "B N H E"],
    log_sum_b: Float[Array, "B N H"],
) -> Float[Array, "B N H E"]:
    """Attention over the union of two disjoint key sets, from the attention over each."""
    log_sum = jnp.logaddexp(log_sum_a, log_sum_b)
    weight_a, weight_b = (merge_rows(jnp.exp(part - log_sum)[..., None]) for part in (log_sum_a, log_sum_b))
    merged = merge_rows(out_a) * weight_a + merge_rows(out_b) * weight_b
    return merged.astype(out_a.dtype).reshape(out_a.shape)
