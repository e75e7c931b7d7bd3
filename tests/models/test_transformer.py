"""The denoiser's paths against each other: clean pass, noisy stream, decoding, scanned and unrolled."""

import dataclasses
from functools import partial

import dense_oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_data  # noqa: F401  (sets hypothesis' deadline)
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.config import ExpertsConfig, LoraConfig, ModelConfig
from maskworld.models.decode import decode_block, prefill
from maskworld.models.kinds import LayerKind, Segment, kind_counts, segments
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
HYBRID = ("convolution", "attention", "convolution", "convolution", "attention", "convolution")
VARIANTS = {
    "dense": TINY,
    "biased, without head norms": dataclasses.replace(
        TINY, query_key_norm=False, attention_bias=True, attention_out_bias=True, kv_heads=4
    ),
    "sliding": dataclasses.replace(TINY, mixers=("sliding",) * 3, sliding_window=6),
    "some sliding": dataclasses.replace(TINY, layers=4, mixers=("sliding", "attention") * 2, sliding_window=3),
    "experts": dataclasses.replace(TINY, experts=ExpertsConfig(count=6, per_token=2, feed_forward=24)),
    "some experts": dataclasses.replace(
        TINY,
        layers=5,
        experts=ExpertsConfig(
            count=4, per_token=3, feed_forward=24, normalize_weights=False, every=2, dense_layers=(3,)
        ),
    ),
    "hybrid": dataclasses.replace(TINY, layers=6, mixers=HYBRID),
    "hybrid, four taps, biased, experts": dataclasses.replace(
        TINY,
        layers=6,
        mixers=HYBRID,
        convolution_length=4,
        convolution_bias=True,
        experts=ExpertsConfig(count=4, per_token=2, feed_forward=24, every=3),
    ),
    "with low-rank updates": dataclasses.replace(
        TINY, lora=LoraConfig(rank=2), experts=ExpertsConfig(count=4, per_token=2, feed_forward=24, every=2)
    ),
}
network = Network(TINY, VOCABULARY)


@pytest.fixture(scope="module", params=list(VARIANTS))
def variant(request):
    """A network of each kind, and its parameters; nothing in them is zero."""
    one = Network(VARIANTS[request.param], VOCABULARY)
    leaves, tree = jax.tree.flatten(jax.jit(one.init)(jax.random.key(0)))
    noise = [0.1 * jax.random.normal(jax.random.key(i), leaf.shape) for i, leaf in enumerate(leaves)]
    return one, tree.unflatten([leaf + extra for leaf, extra in zip(leaves, noise, strict=True)])


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


@partial(jax.jit, static_argnums=0)
def clean(network, params, tokens, ids, positions):
    return clean_hidden(network.bind(params), tokens, clean_layout(ids, positions, BLOCK))


def dense(network, params, tokens, ids, positions, noisy=None):
    """Hidden states under the explicit mask: of the clean half, and of the noisy one (the clean tokens by default)."""
    mask = dense_oracle.doubled_mask(ids, positions, BLOCK)
    mask = {
        0: mask,
        (window := network.config.sliding_window): dense_oracle.windowed(mask, positions, window or LENGTH),
    }
    doubled = np.concatenate([tokens if noisy is None else noisy, tokens], axis=1)

    @jax.jit
    def run(params, mask):
        model = network.bind(params)
        both = np.concatenate([positions, positions], axis=1)
        return dense_oracle.forward(model, doubled, both, mask, BLOCK)

    hidden = np.asarray(run(params, mask))
    return hidden[:, LENGTH:], hidden[:, :LENGTH]


def test_a_clean_pass_equals_the_dense_mask(variant):
    network, params = variant
    got, (want, _) = clean(network, params, *ROWS).hidden, dense(network, params, *ROWS)
    real = ROWS[1] > 0
    assert 0 < real.sum() < real.size
    np.testing.assert_allclose(np.asarray(got)[real], want[real], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("changes", [{"scan_layers": False}, {"attention": "chunked"}, {"remat": "full"}], ids=str)
def test_execution_choices_do_not_change_a_clean_pass(variant, changes):
    network, params = variant
    other = Network(dataclasses.replace(network.config, **changes), VOCABULARY)
    got, want = clean(other, params, *ROWS), clean(network, params, *ROWS)
    for one, two in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, two, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("copies", [1, 2])
def test_a_noisy_stream_without_noise_repeats_the_clean_pass(variant, copies):
    """With x_t = x_0 a target block sees the same tokens in both streams."""
    network, params = variant
    blocks = np.array([[0, 3, 4, 9, -1], [11, 5, 0, -1, -1], [1, 2, 3, 7, 9]], np.int32)

    @jax.jit
    def noisy(params, tokens, ids, positions, blocks):
        layout = two_stream_layout(ids, positions, blocks, BLOCK, copies)
        taken = jnp.tile(gather_blocks(tokens, blocks, BLOCK, 0), (1, copies))
        model = network.bind(params)
        both = two_stream_hidden(model, tokens, taken, layout, BLOCK, with_clean=True)
        return two_stream_hidden(model, tokens, taken, layout, BLOCK), both, layout.noisy_document_ids > 0

    states, both, used = jax.device_get(noisy(params, *ROWS, blocks))
    whole = np.asarray(clean(network, params, *ROWS).hidden)
    expected = whole.reshape(3, -1, BLOCK, TINY.width)
    expected = np.take_along_axis(expected, np.maximum(blocks, 0)[..., None, None], axis=1).reshape(3, -1, TINY.width)
    assert 0 < used.sum() < used.size
    real = ROWS[1] > 0
    np.testing.assert_allclose(states.noisy[used], np.tile(expected, (1, copies, 1))[used], rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(both.noisy[used], states.noisy[used], rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(both.clean[real], whole[real], rtol=2e-4, atol=2e-4)


def test_a_noisy_stream_equals_the_doubled_sequence(variant):
    """Every block noisy, with other tokens than the clean ones."""
    network, params = variant
    tokens, ids, positions = ROWS
    noisy = np.random.default_rng(7).integers(4, VOCABULARY, tokens.shape).astype(np.int32)
    blocks = np.broadcast_to(np.arange(LENGTH // BLOCK, dtype=np.int32), (3, LENGTH // BLOCK))

    @jax.jit
    def run(params):
        layout = two_stream_layout(ids, positions, blocks, BLOCK, 1)
        return two_stream_hidden(network.bind(params), tokens, noisy, layout, BLOCK).noisy

    _, want = dense(network, params, tokens, ids, positions, noisy)
    np.testing.assert_allclose(np.asarray(run(params))[ids > 0], want[ids > 0], rtol=2e-4, atol=2e-4)


@settings(max_examples=8)
@given(
    lengths=st.lists(st.integers(0, 16), min_size=3, max_size=3),
    seed=st.integers(0, 2**31),
)
def test_decoding_after_a_prompt_equals_the_full_pass(variant, lengths, seed):
    """Three blocks on from prompts of any length, each row at its own position."""
    network, params = variant
    rng = np.random.default_rng(seed)
    tokens = rng.integers(4, VOCABULARY, (3, LENGTH)).astype(np.int32)
    lengths = np.array(lengths, np.int32)
    for block in (BLOCK, 1):
        logits = np.asarray(decoded(network, block, params, tokens, lengths))
        want = np.asarray(full_logits(network, block, params, tokens))
        for row, length in enumerate(lengths):
            start = length // block * block
            np.testing.assert_allclose(logits[row], want[row, start : start + 3 * block], rtol=1e-3, atol=1e-3)


@partial(jax.jit, static_argnums=(0, 1))
def full_logits(network, block, params, tokens):
    model = network.bind(params)
    positions = jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape)
    return model.logits(clean_hidden(model, tokens, clean_layout(jnp.ones_like(tokens), positions, block)).hidden)


@partial(jax.jit, static_argnums=(0, 1))
def decoded(network, size, params, tokens, lengths):
    """Prefill of 16 positions, then three blocks; every block is first shown full of other tokens."""
    model, start = network.bind(params), lengths // size * size
    prompts = jnp.where(jnp.arange(16) < lengths[:, None], tokens[:, :16], 3)
    cache = prefill(model, prompts, lengths, size, LENGTH)

    def one(cache, index):
        at = start + index * size
        block = jnp.take_along_axis(tokens, at[:, None] + jnp.arange(size), axis=1)
        _, cache = decode_block(model, cache, jnp.full_like(block, 3), at)
        logits, cache = decode_block(model, cache, block, at)
        return cache, logits

    logits = jax.lax.scan(one, cache, jnp.arange(3))[1]
    return jnp.moveaxis(logits, 0, 1).reshape(len(tokens), 3 * size, -1)


def test_a_block_behind_the_end_leaves_the_cache_alone(params):
    tokens = ROWS[0][:, :BLOCK]

    @jax.jit
    def write(params, tokens, start):
        model = network.bind(params)
        cache = prefill(model, jnp.tile(tokens, (1, 2)), jnp.full(3, 8), BLOCK, 12)
        return cache, decode_block(model, cache, tokens, start)[1]

    before, after = (cache["attention"] for cache in write(params, tokens, np.array([12, 8, 16], np.int32)))
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(np.asarray(old)[:, [0, 2]], np.asarray(new)[:, [0, 2]])
        np.testing.assert_array_equal(np.asarray(old)[:, 1, :8], np.asarray(new)[:, 1, :8])
        assert (np.asarray(old)[:, 1, 8:] != np.asarray(new)[:, 1, 8:]).any()


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(variant, side):
    network, params = variant
    size = 13
    tokens, ids, positions = (np.zeros((1, LENGTH), np.int32) for _ in range(3))
    at = slice(LENGTH - size, None) if side == "left" else slice(0, size)
    tokens[0, at], ids[0, at], positions[0, at] = ROWS[0][0, :size], 1, np.arange(size)
    got = np.asarray(clean(network, params, tokens, ids, positions).hidden)[0, at]
    np.testing.assert_allclose(got, np.asarray(clean(network, params, *ROWS).hidden)[0, :size], rtol=2e-4, atol=2e-4)


def test_a_document_does_not_depend_on_its_neighbours_or_its_place(params):
    """The same 13 tokens first in a row, behind another document, and alone."""
    tokens, ids, positions = rows_of((13, 20), (20, 13), (13,))
    tokens[1, 20:33] = tokens[2, :13] = tokens[0, :13]
    hidden = np.asarray(clean(network, params, tokens, ids, positions).hidden)
    np.testing.assert_allclose(hidden[1, 20:33], hidden[0, :13], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(hidden[2, :13], hidden[0, :13], rtol=1e-4, atol=1e-4)
    # And a change inside the document shows in its own blocks from there on, and nowhere else.
    tokens[0, 6] += 1 if tokens[0, 6] < VOCABULARY - 1 else -1
    moved = np.abs(np.asarray(clean(network, params, tokens, ids, positions).hidden) - hidden).max(axis=-1)
    real = ids > 0
    assert (moved[0, 4:13] > 1e-3).all()
    assert (moved[0, :4] < 1e-6).all() and (moved[0, 16:36] < 1e-6).all() and (moved[1:][real[1:]] < 1e-6).all()


def test_the_embedding_multiplier_scales_what_enters_the_stream_and_nothing_else(params):
    tokens, ids, positions = ROWS
    scaled = Network(dataclasses.replace(TINY, embedding_multiplier=3.0), VOCABULARY)
    layout = clean_layout(ids, positions, BLOCK)
    out = jax.jit(lambda p: clean_hidden(scaled.bind(p), tokens, layout).hidden)(params)
    by_hand = clean(network, params | {"embedding": 3.0 * params["embedding"]}, tokens, ids, positions).hidden
    np.testing.assert_allclose(out, by_hand, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(scaled.bind(params).head_kernel(), params["embedding"].T)


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_has_an_axis_name_with_a_rule_for_each_dimension(variant, tied):
    config = dataclasses.replace(variant[0].config, tie_embeddings=tied)
    other = Network(config, VOCABULARY)
    shapes = other.abstract_params()
    axes = jax.tree.structure(shapes).flatten_up_to(other.logical_axes())
    sizes = {"embed": {32}, "heads": {32}, "kv_heads": {8 * config.kv_heads}, "feed_forward": {48, 24}}
    sizes |= {"vocabulary": {VOCABULARY}, "head_size": {8}, "embed_norm": {32}, "channels": {32}, "rank": {2}}
    sizes |= {"experts": {config.experts.count}, "router": {config.experts.count}, "taps": {config.convolution_length}}
    sizes |= {"layers": set(kind_counts(config).values())}
    for leaf, names in zip(jax.tree.leaves(shapes), axes, strict=True):
        assert set(names) <= set(LOGICAL_RULES)
        assert len(leaf.shape) == len(names)
        assert all(size in sizes[name] for size, name in zip(leaf.shape, names, strict=True)), (leaf.shape, names)
        assert leaf.dtype == jnp.float32
    assert ("head" in shapes) != tied


@settings(max_examples=100)
@given(st.lists(st.sampled_from([LayerKind("attention", False), LayerKind("convolution", True)]), max_size=40))
def test_segments_are_the_layers_in_order(kinds):
    cut = segments(tuple(kinds))
    assert [kind for segment in cut for kind in segment.pattern * segment.repeats] == kinds


def test_repeated_patterns_are_one_segment():
    one, two = LayerKind("attention", False), LayerKind("convolution", False)
    assert segments((one,) * 36) == [Segment((one,), 36)]
    assert segments((one, two) * 24) == [Segment((one, two), 24)]
    assert segments((two, two, one) * 3 + (two,)) == [Segment((two, two, one), 3), Segment((two,), 1)]
