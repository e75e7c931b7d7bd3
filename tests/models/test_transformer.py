"""The denoiser's paths against each other: clean pass, noisy stream, decoding, scanned and unrolled."""

import dataclasses

import dense_oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_data  # noqa: F401  (sets hypothesis' deadline)
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.config import ModelConfig
from maskworld.models.decode import decode_block, prefill
from maskworld.models.transformer import Network
from maskworld.models.two_stream import (
    clean_hidden,
    clean_layout,
    gather_blocks,
    two_stream_hidden,
    two_stream_layout,
)
from maskworld.parallel.mesh import LOGICAL_RULES

# A large initializer: with 0.02 the attention is nearly flat and a wrong mask hardly shows.
TINY = ModelConfig(width=32, layers=3, heads=4, kv_heads=2, head_size=8, feed_forward=48, initializer_std=0.3)
BLOCK, LENGTH, VOCABULARY = 4, 48, 40
network = Network(TINY, VOCABULARY)


@pytest.fixture(scope="module")
def params():
    return jax.jit(network.init)(jax.random.key(0))


def rows_of(*documents):
    """Each argument a row of document lengths; documents start on the block grid and may end inside a block."""
    rng = np.random.default_rng(len(documents))
    shape = len(documents), LENGTH
    tokens, ids, positions = rng.integers(4, VOCABULARY, shape), np.zeros(shape, int), np.zeros(shape, int)
    for row, lengths in enumerate(documents):
        start = 0
        for number, size in enumerate(lengths, 1):
            ids[row, start : start + size], positions[row, start : start + size] = number, np.arange(size)
            start += -(-size // BLOCK) * BLOCK
    return [x.astype(np.int32) for x in (tokens, ids, positions)]


ROWS = rows_of((13, 8, 1, 17), (48,), (4, 4, 30))


@jax.jit
def clean(params, tokens, ids, positions):
    return clean_hidden(network.bind(params), tokens, clean_layout(ids, positions, BLOCK))


def test_a_clean_pass_equals_the_dense_mask(params):
    tokens, ids, positions = ROWS

    @jax.jit
    def dense(params, tokens, positions, mask):
        return dense_oracle.forward(network.bind(params), tokens, positions, mask)

    mask = dense_oracle.doubled_mask(ids, positions, BLOCK)[:, LENGTH:, LENGTH:]
    got, _ = clean(params, *ROWS)
    real = ids > 0
    assert 0 < real.sum() < real.size
    np.testing.assert_allclose(
        np.asarray(got)[real], np.asarray(dense(params, tokens, positions, mask))[real], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("changes", [{"scan_layers": False}, {"attention": "chunked"}, {"remat": "full"}], ids=str)
def test_execution_choices_do_not_change_a_clean_pass(params, changes):
    other = Network(dataclasses.replace(TINY, **changes), VOCABULARY)
    layout = jax.jit(clean_layout, static_argnums=2)(*ROWS[1:], BLOCK)
    got = jax.jit(lambda params, tokens, layout: clean_hidden(other.bind(params), tokens, layout))(
        params, ROWS[0], layout
    )
    for one, two in zip(jax.tree.leaves(got), jax.tree.leaves(clean(params, *ROWS)), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("copies", [1, 2])
def test_a_noisy_stream_without_noise_repeats_the_clean_pass(params, copies):
    """With x_t = x_0 a target block sees the same tokens in both streams."""
    blocks = np.array([[0, 3, 4, 9, -1], [11, 5, 0, -1, -1], [1, 2, 3, 7, 9]], np.int32)

    @jax.jit
    def noisy(params, tokens, ids, positions, blocks):
        layout = two_stream_layout(ids, positions, blocks, BLOCK, copies)
        taken = jnp.tile(gather_blocks(tokens, blocks, BLOCK, 0), (1, copies))
        return two_stream_hidden(network.bind(params), tokens, taken, layout, BLOCK), layout.noisy_document_ids > 0

    hidden, used = (np.asarray(x) for x in noisy(params, *ROWS, blocks))
    expected = np.asarray(clean(params, *ROWS)[0]).reshape(3, -1, BLOCK, TINY.width)
    expected = np.take_along_axis(expected, np.maximum(blocks, 0)[..., None, None], axis=1).reshape(3, -1, TINY.width)
    assert 0 < used.sum() < used.size
    np.testing.assert_allclose(hidden[used], np.tile(expected, (1, copies, 1))[used], rtol=1e-4, atol=1e-4)


@settings(max_examples=20)
@given(
    lengths=st.lists(st.integers(0, 16), min_size=3, max_size=3),
    seed=st.integers(0, 2**31),
)
def test_decoding_after_a_prompt_equals_the_full_pass(params, lengths, seed):
    """Three blocks on from prompts of any length, each row at its own position."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(4, VOCABULARY, (3, LENGTH)).astype(np.int32)
    lengths = np.array(lengths, np.int32)
    logits = np.asarray(decoded(params, tokens, lengths))
    want = np.asarray(full_logits(params, tokens))
    for row, length in enumerate(lengths):
        start = length // BLOCK * BLOCK
        np.testing.assert_allclose(logits[row], want[row, start : start + 3 * BLOCK], rtol=1e-3, atol=1e-3)


@jax.jit
def full_logits(params, tokens):
    model = network.bind(params)
    positions = jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape)
    return model.logits(clean_hidden(model, tokens, clean_layout(jnp.ones_like(tokens), positions, BLOCK))[0])


@jax.jit
def decoded(params, tokens, lengths):
    """Prefill of 16 positions, then three blocks; every block is first shown full of other tokens."""
    model, start = network.bind(params), lengths // BLOCK * BLOCK
    prompts = jnp.where(jnp.arange(16) < lengths[:, None], tokens[:, :16], 3)
    cache = prefill(model, prompts, lengths, BLOCK, LENGTH)

    def one(cache, index):
        at = start + index * BLOCK
        block = jnp.take_along_axis(tokens, at[:, None] + jnp.arange(BLOCK), axis=1)
        _, cache = decode_block(model, cache, jnp.full_like(block, 3), at)
        logits, cache = decode_block(model, cache, block, at)
        return cache, logits

    logits = jax.lax.scan(one, cache, jnp.arange(3))[1]
    return jnp.moveaxis(logits, 0, 1).reshape(len(tokens), 3 * BLOCK, -1)


def test_a_block_behind_the_end_leaves_the_cache_alone(params):
    tokens = ROWS[0][:, :BLOCK]

    @jax.jit
    def write(params, tokens, start):
        model = network.bind(params)
        cache = prefill(model, jnp.tile(tokens, (1, 2)), jnp.full(3, 8), BLOCK, 12)
        return cache, decode_block(model, cache, tokens, start)[1]

    before, after = write(params, tokens, np.array([12, 8, 16], np.int32))
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(np.asarray(old)[:, [0, 2]], np.asarray(new)[:, [0, 2]])
        np.testing.assert_array_equal(np.asarray(old)[:, 1, :8], np.asarray(new)[:, 1, :8])
        assert (np.asarray(old)[:, 1, 8:] != np.asarray(new)[:, 1, 8:]).any()


def test_a_document_does_not_depend_on_its_neighbours_or_its_place(params):
    """The same 13 tokens first in a row, behind another document, and alone."""
    tokens, ids, positions = rows_of((13, 20), (20, 13), (13,))
    tokens[1, 20:33] = tokens[2, :13] = tokens[0, :13]
    hidden = np.asarray(clean(params, tokens, ids, positions)[0])
    np.testing.assert_allclose(hidden[1, 20:33], hidden[0, :13], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(hidden[2, :13], hidden[0, :13], rtol=1e-4, atol=1e-4)
    # And a change inside the document shows in its own blocks from there on, and nowhere else.
    tokens[0, 6] += 1 if tokens[0, 6] < VOCABULARY - 1 else -1
    moved = np.abs(np.asarray(clean(params, tokens, ids, positions)[0]) - hidden).max(axis=-1)
    real = ids > 0
    assert (moved[0, 4:13] > 1e-3).all()
    assert (moved[0, :4] < 1e-6).all() and (moved[0, 16:36] < 1e-6).all() and (moved[1:][real[1:]] < 1e-6).all()


def test_the_embedding_multiplier_scales_what_enters_the_stream_and_nothing_else(params):
    tokens, ids, positions = ROWS
    scaled = Network(dataclasses.replace(TINY, embedding_multiplier=3.0), VOCABULARY)
    layout = clean_layout(ids, positions, BLOCK)
    out, _ = jax.jit(lambda p: clean_hidden(scaled.bind(p), tokens, layout))(params)
    by_hand, _ = clean(params | {"embedding": 3.0 * params["embedding"]}, tokens, ids, positions)
    np.testing.assert_allclose(out, by_hand, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(scaled.bind(params).head_kernel(), params["embedding"].T)


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_has_an_axis_name_with_a_rule_for_each_dimension(tied):
    other = Network(dataclasses.replace(TINY, tie_embeddings=tied), VOCABULARY)
    shapes = other.abstract_params()
    axes = jax.tree.structure(shapes).flatten_up_to(other.logical_axes())
    sizes = {"layers": 3, "embed": 32, "heads": 32, "kv_heads": 16, "feed_forward": 48, "vocabulary": VOCABULARY}
    sizes |= {"head_size": 8, "embed_norm": 32}
    for leaf, names in zip(jax.tree.leaves(shapes), axes, strict=True):
        assert set(names) <= set(LOGICAL_RULES)
        assert leaf.shape == tuple(sizes[name] for name in names)
        assert leaf.dtype == jnp.float32
    assert ("head" in shapes) != tied
