"""Attention over ranges of keys: tiles against the dense mask, parts against the whole, many devices against one."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maskworld.config import MeshConfig
from maskworld.models.attention import EMPTY, block_attention, masked_attention, merge, range_attention
from maskworld.parallel.mesh import batch_sharding, make_mesh

SIZE = 8
SHAPES = {
    "whole tiles": (2, 64, 128, 4, 2),
    "no whole tile": (2, 75, 150, 4, 2),
    "one key head": (1, 33, 70, 3, 1),
    "as many key heads": (1, 130, 65, 2, 2),
}
"""Rows, queries, keys, query heads, key heads; tiles hold 64."""


def inputs(rows, queries, keys, heads, groups, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(rows, queries, heads, SIZE), (rows, keys, groups, SIZE), (rows, keys, groups, SIZE)]
    shapes += [(rows, queries, heads, SIZE), (rows, queries, heads)]
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def ranges(kind, rows, queries, keys, seed=0):
    """Starts and ends [rows, queries] of visible keys."""
    rng = np.random.default_rng(seed)
    if kind == "all empty":
        return np.zeros((2, rows, queries), np.int32)
    if kind == "causal":
        end = np.minimum(np.arange(queries) // 4 * 4 + 4, keys)
        return np.broadcast_to(np.stack([0 * end, end])[:, None], (2, rows, queries)).astype(np.int32)
    start, end = np.sort(rng.integers(0, keys + 1, (2, rows, queries)), axis=0)
    if kind == "short":  # inside one tile or over one border
        end = np.minimum(start + rng.integers(0, 6, start.shape), keys)
    empty = rng.random(start.shape) < 0.2
    return np.stack([start, np.where(empty, start, end)]).astype(np.int32)


@partial(jax.jit, static_argnames="implementation")
def results(query, key, value, d_out, d_log_sum, start, end, implementation):
    """Output, log-sum-exp and the gradients that flow back through both."""

    def attend(query, key, value):
        return range_attention(query, key, value, start, end, implementation)

    (out, log_sum), backward = jax.vjp(attend, query, key, value)
    return out, log_sum, *backward((d_out, d_log_sum))


NAMES = ("out", "log_sum", "d_query", "d_key", "d_value")


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_tiles_equal_the_dense_mask_for_any_ranges(shape):
    for seed, kind in enumerate(("any", "any", "short", "causal", "all empty")):
        values = inputs(*shape, seed), ranges(kind, *shape[:3], seed)
        got, want = (results(*values[0], *values[1], name) for name in ("chunked", "reference"))
        for name, one, other in zip(NAMES, got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5, err_msg=f"{name}, {kind} ranges, {seed}")


def test_the_dense_mask_is_softmax_attention():
    rows, queries, keys, heads, groups = shape = (2, 9, 13, 4, 2)
    query, key, value, *rest = inputs(*shape)
    start, end = ranges("any", rows, queries, keys)
    out, log_sum, *_ = results(query, key, value, *rest, start, end, "reference")
    assert (start == end).any() and (start < end).any()
    for row, n, head in np.ndindex(rows, queries, heads):
        seen = slice(start[row, n], end[row, n])
        group = head // (heads // groups)
        scores = key[row, seen, group].astype(np.float64) @ query[row, n, head] / np.sqrt(SIZE)
        if not scores.size:
            assert log_sum[row, n, head] == np.float32(EMPTY) and (out[row, n, head] == 0).all()
            continue
        np.testing.assert_allclose(log_sum[row, n, head], np.log(np.exp(scores).sum()), rtol=1e-5, atol=1e-5)
        weights = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(out[row, n, head], weights @ value[row, seen, group], rtol=1e-4, atol=1e-5)


def test_large_scores_do_not_overflow():
    query, key, value, *rest = inputs(*SHAPES["no whole tile"])
    start, end = ranges("any", 2, 75, 150)
    for name in ("chunked", "reference"):
        found = results(query * 300, key * 300, value, *rest, start, end, name)
        assert all(np.isfinite(x).all() for x in found), name


@pytest.mark.parametrize("implementation", ["chunked", "reference"])
def test_bfloat16_stays_within_its_rounding(implementation):
    values = inputs(*SHAPES["no whole tile"])
    start, end = ranges("any", 2, 75, 150)
    exact = results(*values, start, end, "reference")
    narrow = [jnp.asarray(x, jnp.bfloat16) for x in values[:4]]
    got = results(*narrow, values[4], start, end, implementation)
    assert [x.dtype for x in got] == [jnp.bfloat16, jnp.float32] + [jnp.bfloat16] * 3
    for name, one, other in zip(NAMES, got, exact, strict=True):
        seen = np.asarray(other) > EMPTY / 2
        difference = (np.asarray(one, np.float32) - other)[seen]
        assert np.linalg.norm(difference) < 1e-2 * np.linalg.norm(np.asarray(other)[seen]), name


@partial(jax.jit, static_argnames="block")
def in_blocks(query, key, value, d_out, d_log_sum, documents, block):
    def attend(*x):
        return block_attention(*x, documents, block)

    (out, log_sum), backward = jax.vjp(attend, query, key, value)
    return out, log_sum, *backward((d_out, d_log_sum))


@jax.jit
def under_mask(query, key, value, d_out, d_log_sum, visible):
    def attend(*x):
        return masked_attention(*x, visible)

    (out, log_sum), backward = jax.vjp(attend, query, key, value)
    return out, log_sum, *backward((d_out, d_log_sum))


@pytest.mark.parametrize("block, length", [(4, 64), (4, 44), (12, 60), (48, 96)])
def test_block_attention_is_attention_under_the_block_diagonal_mask(block, length):
    """Also blocks that no tile holds a whole number of, blocks larger than a tile, and documents that share a block."""
    values = inputs(2, length, length, 4, 2)
    documents = np.random.default_rng(block).integers(0, 3, (2, length)).astype(np.int32)
    index = np.arange(length) // block
    visible = (index[:, None] == index) & (documents[:, :, None] == documents[:, None]) & (documents > 0)[:, :, None]
    got, want = in_blocks(*values, documents, block), under_mask(*values, visible)
    for name, one, other in zip(NAMES, got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5, err_msg=name)


def test_two_parts_of_the_keys_merge_into_attention_over_all():
    """Values and gradients; either part may be empty, or both."""
    rows, queries, keys, heads, groups = shape = (2, 40, 70, 4, 2)
    query, key, value, d_out, _ = inputs(*shape)
    start, middle, end = np.sort(np.random.default_rng(0).integers(0, keys + 1, (3, rows, queries)), axis=0)
    middle[:, :8], middle[:, 8:16], end[:, 16:20] = start[:, :8], end[:, 8:16], start[:, 16:20]
    middle[:, 16:20] = start[:, 16:20]

    @jax.jit
    def compare(query, key, value, d_out, start, middle, end):
        def parts(*x):
            return merge(*range_attention(*x, start, middle, "reference"), *range_attention(*x, middle, end, "chunked"))

        def whole(*x):
            return range_attention(*x, start, end, "reference")[0]

        return [(out, *back(d_out)) for out, back in (jax.vjp(f, query, key, value) for f in (parts, whole))]

    got, want = compare(query, key, value, d_out, *(x.astype(np.int32) for x in (start, middle, end)))
    for name, one, other in zip(("out", "d_query", "d_key", "d_value"), got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("groups", [2, 1])
def test_eight_devices_attend_as_one(groups):
    """Key heads are split over the tensor axis where it divides them, and whole where not."""
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    shape = (4, 70, 70, 2 * groups, groups)
    values = [*inputs(*shape), *ranges("any", *shape[:3])]

    @jax.jit
    def on_mesh(*values):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return results.__wrapped__(*values, implementation="chunked")

    want = results(*values, implementation="chunked")
    spread = jax.device_put(values, batch_sharding(mesh))
    got = on_mesh(*spread)
    assert len(got[0].sharding.device_set) == 8 and not got[0].sharding.is_fully_replicated
    for name, one, other in zip(NAMES, got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=name)
