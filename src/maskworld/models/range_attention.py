"""Range attention in tiles: online softmax forwards, recomputation backwards, unseen tiles never visited.

The scheme of FlashAttention-2 (arXiv 2307.08691, algorithms 1 and 2) written in plain XLA, for queries whose visible
keys are a range [key_start, key_end). The loop bounds of a query tile come from the ranges of its own queries, so
causal, packed and cached layouts skip what they do not see without a compile-time mask. Rows are taken one after
another: a tile's scores then stay in a core's cache, and a row's bounds are not widened by its neighbours'.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from maskworld.models.linear import merge_rows

ATTENDED = "attended"
"""Name of attention outputs and log-sum-exps for `jax.checkpoint` policies: dear to compute, cheap to keep."""

EMPTY = -1e30
QUERY_TILE = 64
KEY_TILE = 64


@jax.custom_vjp
def chunked_range_attention(query, key, value, key_start, key_end):
    """See `attention.range_attention`; same shapes, same results up to rounding."""
    return _forward(query, key, value, key_start, key_end)[0]


def _fill(x, multiple):
    missing = -x.shape[1] % multiple
    return jnp.pad(x, ((0, 0), (0, missing)) + ((0, 0),) * (x.ndim - 2)) if missing else x


def _group(query, groups):
    """[B, N, H, E] -> [B, tiles, G, R * tile, E]: the R query heads of a key head stand below each other."""
    query = _fill(query, QUERY_TILE)
    rows, length, heads, size = query.shape
    x = query.reshape(rows, length // QUERY_TILE, QUERY_TILE, groups, heads // groups, size)
    return x.transpose(0, 1, 3, 4, 2, 5).reshape(rows, length // QUERY_TILE, groups, -1, size)


def _ungroup(x, heads, length):
    """Inverse of `_group`, back to [B, N, H, E]."""
    rows, tiles, groups, _, size = x.shape
    x = x.reshape(rows, tiles, groups, heads // groups, QUERY_TILE, size)
    return x.transpose(0, 1, 4, 2, 3, 5).reshape(rows, tiles * QUERY_TILE, heads, size)[:, :length]


def _ranges(key_start, key_end, repeats):
    """Per tile: ranges of its R * tile query rows, and the first and last key tile that any of them sees."""
    key_start, key_end = _fill(key_start, QUERY_TILE), _fill(key_end, QUERY_TILE)
    tiled = (key_start.shape[0], -1, QUERY_TILE)
    start, end = key_start.reshape(tiled), key_end.reshape(tiled)
    empty = end <= start
    first = jnp.where(empty, jnp.iinfo(jnp.int32).max, start).min(axis=-1) // KEY_TILE
    last = -(-jnp.where(empty, 0, end).max(axis=-1) // KEY_TILE)
    return jnp.tile(start, (1, 1, repeats)), jnp.tile(end, (1, 1, repeats)), jnp.minimum(first, last), last


def _scores(query, key_tile, j, start, end):
    """Scores [G, R * tile, KEY_TILE] of scaled queries, EMPTY where the key is not seen."""
    scores = jnp.einsum("gqe,gke->gqk", query, key_tile, preferred_element_type=jnp.float32)
    index = j * KEY_TILE + jnp.arange(KEY_TILE)
    visible = (index >= start[:, None]) & (index < end[:, None])
    return jnp.where(visible, scores, EMPTY)


def _tile_of(x, j):
    return jax.lax.dynamic_slice_in_dim(x, j * KEY_TILE, KEY_TILE, axis=1)


def _prepare(query, key, value, key_start, key_end):
    groups, repeats = key.shape[2], query.shape[2] // key.shape[2]
    tiles = _group(query * query.shape[-1] ** -0.5, groups)
    keys, values = (_fill(x, KEY_TILE).transpose(0, 2, 1, 3) for x in (key, value))
    return tiles, keys, values, _ranges(key_start, key_end, repeats)


def _forward(query, key, value, key_start, key_end):
    length, heads = query.shape[1:3]
    tiles, keys, values, ranges = _prepare(query, key, value, key_start, key_end)

    def one_row(row):
        row_tiles, row_keys, row_values, *row_ranges = row

        def one_tile(tile):
            q, start, end, first, last = tile

            def visit(j, carry):
                out, top, total = carry
                scores = _scores(q, _tile_of(row_keys, j), j, start, end)
                new_top = jnp.maximum(top, scores.max(axis=-1))
                weights = jnp.exp(scores - new_top[..., None])
                rescale = jnp.exp(top - new_top)
                mixed = jnp.einsum(
                    "gqk,gke->gqe",
                    weights.astype(value.dtype),
                    _tile_of(row_values, j),
                    preferred_element_type=jnp.float32,
                )
                return out * rescale[..., None] + mixed, new_top, total * rescale + weights.sum(axis=-1)

            shape = q.shape[:-1]
            # The running maximum starts far above EMPTY: scores of unseen keys then give exp(-huge) = 0 from the start.
            carry = (jnp.zeros(q.shape, jnp.float32), jnp.full(shape, EMPTY / 2), jnp.zeros(shape))
            out, top, total = jax.lax.fori_loop(first, last, visit, carry)
            safe = jnp.where(total > 0, total, 1.0)
            return (out / safe[..., None]).astype(value.dtype), jnp.where(total > 0, top + jnp.log(safe), EMPTY)

        return jax.lax.map(one_tile, (row_tiles, *row_ranges))

    out, log_sum = jax.lax.map(one_row, (tiles, keys, values, *ranges))
    result = _ungroup(out, heads, length), _ungroup(log_sum[..., None], heads, length)[..., 0]
    result = tuple(checkpoint_name(part, ATTENDED) for part in result)
    return result, (query, key, value, key_start, key_end, *result)


def _backward(residuals, cotangents):
    query, key, value, key_start, key_end, out, log_sum = residuals
    d_out, d_log_sum = cotangents
    length, heads = query.shape[1:3]
    groups, scale = key.shape[2], query.shape[-1] ** -0.5
    tiles, keys, values, ranges = _prepare(query, key, value, key_start, key_end)
    # d scores = weights * (d weights - sum(d out * out) + d log_sum)
    shift = d_log_sum - _inner(d_out, out)
    d_out_tiles = _group(d_out.astype(value.dtype), groups)
    shift_tiles = _group(shift[..., None], groups)[..., 0]
    log_tiles = _group(jnp.where(log_sum > EMPTY / 2, log_sum, 0.0)[..., None], groups)[..., 0]

    def one_row(row):
        row_tiles, row_turned, row_d_out, row_turned_d_out, row_log, row_shift, row_keys, row_values, *row_ranges = row

        def one_tile(carry, tile):
            q, turned_q, d_o, turned_d_o, log, moved, start, end, first, last = tile

            def visit(j, inner):
                d_q, d_keys, d_values = inner
                k, v = _tile_of(row_keys, j), _tile_of(row_values, j)
                weights = jnp.exp(_scores(q, k, j, start, end) - log[..., None])
                d_weights = jnp.einsum("gqe,gke->gqk", d_o, v, preferred_element_type=jnp.float32)
                d_scores = (weights * (d_weights + moved[..., None])).astype(q.dtype)
                d_q += jnp.einsum("gqk,gke->gqe", d_scores, k, preferred_element_type=jnp.float32)
                # Turned, [E, key]: XLA's fast CPU product refuses a left side that is contracted over its rows.
                d_k = jnp.einsum("geq,gqk->gek", turned_q, d_scores, preferred_element_type=jnp.float32)
                weights = weights.astype(d_o.dtype)
                d_v = jnp.einsum("geq,gqk->gek", turned_d_o, weights, preferred_element_type=jnp.float32)
                return d_q, d_keys.at[j].add(d_k), d_values.at[j].add(d_v)

            d_q, *carry = jax.lax.fori_loop(first, last, visit, (jnp.zeros(q.shape, jnp.float32), *carry))
            return tuple(carry), (d_q * scale).astype(query.dtype)

        zeros = jnp.zeros((row_keys.shape[1] // KEY_TILE, groups, row_keys.shape[2], KEY_TILE), jnp.float32)
        tiles = (row_tiles, row_turned, row_d_out, row_turned_d_out, row_log, row_shift, *row_ranges)
        (d_keys, d_values), d_query = jax.lax.scan(one_tile, (zeros, zeros), tiles)
        return d_query, d_keys, d_values

    turned, turned_d_out = (x.swapaxes(-1, -2) for x in (tiles, d_out_tiles))
    rows = (tiles, turned, d_out_tiles, turned_d_out, log_tiles, shift_tiles, keys, values, *ranges)
    d_query, d_keys, d_values = jax.lax.map(one_row, rows)
    return _ungroup(d_query, heads, length), _flatten(d_keys, key), _flatten(d_values, value), None, None


def _flatten(tiles, like):
    """[B, tiles, G, E, KEY_TILE] -> [B, L, G, E], the shape and dtype of `like`."""
    x = tiles.transpose(0, 1, 4, 2, 3).reshape(tiles.shape[0], -1, *like.shape[2:])
    return x[:, : like.shape[1]].astype(like.dtype)


def _inner(a, b):
    """Sum over E of a * b in float32: [B, N, H, E] twice -> [B, N, H]."""
    return (merge_rows(a).astype(jnp.float32) * merge_rows(b)).sum(axis=-1).reshape(a.shape[:-1])


chunked_range_attention.defvjp(_forward, _backward)
