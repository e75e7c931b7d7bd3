"""Range attention in tiles: online softmax forwards, recomputation backwards, unseen tiles never visited.

The scheme of FlashAttention-2 (arXiv 2307.08691, algorithms 1 and 2) written in plain XLA, for queries whose visible
keys are a range [key_start, key_end). The loop bounds of a query tile come from the ranges of its queries (over the
whole batch), so causal, packed and cached layouts skip what they do not see without a compile-time mask.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

EMPTY = -1e30
QUERY_TILE = 128
KEY_TILE = 128


@jax.custom_vjp
def chunked_range_attention(query, key, value, key_start, key_end):
    """See `attention.range_attention`; same shapes, same results up to rounding."""
    return _forward(query, key, value, key_start, key_end)[0]


def _fill(x, multiple, value=0):
    missing = -x.shape[1] % multiple
    return jnp.pad(x, ((0, 0), (0, missing)) + ((0, 0),) * (x.ndim - 2), constant_values=value) if missing else x


def _group(query, groups):
    """[B, N, H, E] -> [tiles, B, G, R * tile, E]: the R query heads of a key head stand below each other."""
    rows, length, heads, size = query.shape
    x = query.reshape(rows, length // QUERY_TILE, QUERY_TILE, groups, heads // groups, size)
    return x.transpose(1, 0, 3, 4, 2, 5).reshape(length // QUERY_TILE, rows, groups, -1, size)


def _ungroup(x, heads):
    """Inverse of `_group`, back to [B, N, H, E]."""
    tiles, rows, groups, _, size = x.shape
    x = x.reshape(tiles, rows, groups, heads // groups, QUERY_TILE, size)
    return x.transpose(1, 0, 4, 2, 3, 5).reshape(rows, tiles * QUERY_TILE, heads, size)


def _ranges(key_start, key_end, repeats):
    """Ranges per query row of `_group`, and the first and last key tile that any query of a query tile sees."""
    empty = key_end <= key_start
    start = jnp.where(empty, jnp.iinfo(jnp.int32).max, key_start)
    end = jnp.where(empty, 0, key_end)
    rows, length = key_start.shape
    tiled = (rows, length // QUERY_TILE, QUERY_TILE)
    first = start.reshape(tiled).min(axis=(0, 2)) // KEY_TILE
    last = -(-end.reshape(tiled).max(axis=(0, 2)) // KEY_TILE)

    def per_row(x):
        x = x.reshape(tiled).transpose(1, 0, 2)
        return jnp.tile(x, (1, 1, repeats))[:, :, None, :]

    return per_row(key_start), per_row(key_end), jnp.minimum(first, last), last


def _tile_scores(query, key, j, start, end):
    scores = jnp.einsum("bgqe,bgke->bgqk", query, key, preferred_element_type=jnp.float32)
    index = j * KEY_TILE + jnp.arange(KEY_TILE)
    visible = (index >= start[..., None]) & (index < end[..., None])
    return jnp.where(visible, scores * query.shape[-1] ** -0.5, EMPTY)


def _key_tile(x, j):
    return jax.lax.dynamic_slice_in_dim(x, j * KEY_TILE, KEY_TILE, axis=2)


def _tiled_inputs(query, key, value, key_start, key_end):
    groups, repeats = key.shape[2], query.shape[2] // key.shape[2]
    tiles = _group(_fill(query, QUERY_TILE), groups)
    key, value = (_fill(x, KEY_TILE).transpose(0, 2, 1, 3) for x in (key, value))
    ranges = _ranges(_fill(key_start, QUERY_TILE), _fill(key_end, QUERY_TILE), repeats)
    return tiles, key, value, ranges


def _forward(query, key, value, key_start, key_end):
    length, heads = query.shape[1:3]
    tiles, keys, values, ranges = _tiled_inputs(query, key, value, key_start, key_end)

    def one_tile(args):
        q, start, end, first, last = args

        def visit(j, carry):
            out, top, total = carry
            scores = _tile_scores(q, _key_tile(keys, j), j, start, end)
            new_top = jnp.maximum(top, scores.max(axis=-1))
            # Scores below EMPTY / 2 are masked; a row that has seen no key yet must not count them.
            weights = jnp.where(scores > EMPTY / 2, jnp.exp(scores - new_top[..., None]), 0.0)
            rescale = jnp.exp(top - new_top)
            mixed = jnp.einsum(
                "bgqk,bgke->bgqe",
                weights.astype(values.dtype),
                _key_tile(values, j),
                preferred_element_type=jnp.float32,
            )
            return out * rescale[..., None] + mixed, new_top, total * rescale + weights.sum(axis=-1)

        shape = q.shape[:-1]
        carry = (jnp.zeros(q.shape, jnp.float32), jnp.full(shape, EMPTY), jnp.zeros(shape))
        out, top, total = jax.lax.fori_loop(first, last, visit, carry)
        safe = jnp.where(total > 0, total, 1.0)
        return (out / safe[..., None]).astype(value.dtype), jnp.where(total > 0, top + jnp.log(safe), EMPTY)

    out, log_sum = jax.lax.map(one_tile, (tiles, *ranges))
    result = _ungroup(out, heads)[:, :length], _ungroup(log_sum[..., None], heads)[:, :length, :, 0]
    return result, (query, key, value, key_start, key_end, *result)


def _backward(residuals, cotangents):
    query, key, value, key_start, key_end, out, log_sum = residuals
    d_out, d_log_sum = cotangents
    length, heads = query.shape[1:3]
    groups = key.shape[2]
    tiles, keys, values, ranges = _tiled_inputs(query, key, value, key_start, key_end)
    # d scores = weights * (d weights - sum(d out * out) + d log_sum)
    shift = d_log_sum - (d_out.astype(jnp.float32) * out).sum(axis=-1)
    tile_of = partial(_group, groups=groups)
    d_out_tiles = tile_of(_fill(d_out.astype(value.dtype), QUERY_TILE))
    log_tiles, shift_tiles = (tile_of(_fill(x, QUERY_TILE)[..., None])[..., 0] for x in (log_sum, shift))
    scale = query.shape[-1] ** -0.5

    def one_tile(carry, args):
        q, d_o, log, moved, start, end, first, last = args

        def visit(j, inner):
            d_q, d_keys, d_values = inner
            k, v = _key_tile(keys, j), _key_tile(values, j)
            scores = _tile_scores(q, k, j, start, end)
            weights = jnp.where(scores > EMPTY / 2, jnp.exp(scores - log[..., None]), 0.0)
            d_weights = jnp.einsum("bgqe,bgke->bgqk", d_o, v, preferred_element_type=jnp.float32)
            d_scores = (weights * (d_weights + moved[..., None]) * scale).astype(q.dtype)
            d_q += jnp.einsum("bgqk,bgke->bgqe", d_scores, k, preferred_element_type=jnp.float32)
            d_k = jnp.einsum("bgqk,bgqe->bgke", d_scores, q, preferred_element_type=jnp.float32)
            d_v = jnp.einsum("bgqk,bgqe->bgke", weights.astype(d_o.dtype), d_o, preferred_element_type=jnp.float32)
            return d_q, _add_tile(d_keys, d_k, j), _add_tile(d_values, d_v, j)

        d_q, d_keys, d_values = jax.lax.fori_loop(first, last, visit, (jnp.zeros(q.shape, jnp.float32), *carry))
        return (d_keys, d_values), d_q.astype(query.dtype)

    zeros = jnp.zeros(keys.shape, jnp.float32)
    (d_keys, d_values), d_query = jax.lax.scan(
        one_tile, (zeros, zeros), (tiles, d_out_tiles, log_tiles, shift_tiles, *ranges)
    )
    d_key, d_value = (x.transpose(0, 2, 1, 3)[:, : key.shape[1]] for x in (d_keys, d_values))
    return _ungroup(d_query, heads)[:, :length], d_key.astype(key.dtype), d_value.astype(value.dtype), None, None


def _add_tile(x, update, j):
    current = _key_tile(x, j)
    return jax.lax.dynamic_update_slice_in_dim(x, current + update, j * KEY_TILE, axis=2)


chunked_range_attention.defvjp(_forward, _backward)
