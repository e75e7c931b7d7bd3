"""The denoising loop over made-up forwards: what it emits, where it stops, what it leaves alone."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_data  # noqa: F401  (sets hypothesis' deadline)
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.config import SamplerConfig
from maskworld.diffusion.sampler import Special, propose, sample
from maskworld.diffusion.unmasking import RULES

BLOCK, WIDTH, NEW, VOCABULARY = 4, 10, 9, 12
CAPACITY = 20
"""-(-(WIDTH + NEW) // BLOCK) * BLOCK"""
MASK, PAD, STOP = 0, 1, 2
SPECIAL = Special(MASK, PAD, (STOP,))
ROWS = 4


def forward(table, tokens, start):
    """Logits from a table [B, CAPACITY, V], moved by what the row's block shows; the cache is the table itself."""
    at = jnp.minimum(start[:, None] + jnp.arange(BLOCK), CAPACITY - 1)
    seen = jnp.where(tokens == MASK, 0, tokens).sum(axis=1, keepdims=True) % 3
    return jnp.take_along_axis(table, at[..., None], axis=1) * (1 + 0.2 * seen[..., None]), table


@partial(jax.jit, static_argnames="config")
def run(table, prompts, lengths, keys, config):
    return sample(forward, table, prompts, lengths, keys, config, BLOCK, SPECIAL)


def inputs(seed, rows=ROWS):
    """A table that has never heard of stop tokens, prompts of any length, and one key a row."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(rows, CAPACITY, VOCABULARY)).astype(np.float32)
    table[..., STOP] = -20
    prompts = rng.integers(3, VOCABULARY, (rows, WIDTH)).astype(np.int32)
    lengths = rng.integers(0, WIDTH + 1, rows).astype(np.int32)
    return table, prompts, lengths, jax.random.split(jax.random.key(seed), rows)


def ends(lengths):
    """Where the last block of every row ends."""
    return -(-(lengths + NEW) // BLOCK) * BLOCK


CONFIGS = [SamplerConfig(rule, 0.3, steps, NEW, 0.0) for rule, steps in zip(RULES, (2, 3, 0), strict=True)]
each_rule = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.rule)
seeds = st.integers(0, 2**31)


@each_rule
@settings(max_examples=25)
@given(seed=seeds)
def test_rows_are_filled_to_the_end_of_their_last_block_and_prompts_stay(config, seed):
    """Even where the network loves masks and pads best: neither is emitted."""
    table, prompts, lengths, keys = inputs(seed)
    table[..., [MASK, PAD]] += 20 * (seed % 2)
    samples = jax.device_get(run(table, prompts, lengths, keys, config))
    assert samples.tokens.shape == (ROWS, CAPACITY)
    index = np.arange(CAPACITY)
    prompt, open_end = index < lengths[:, None], index >= ends(lengths)[:, None]
    generated = ~prompt & ~open_end
    np.testing.assert_array_equal(samples.tokens[prompt], np.pad(prompts, ((0, 0), (0, CAPACITY - WIDTH)))[prompt])
    assert (samples.tokens[open_end] == MASK).all()
    assert not np.isin(samples.tokens[generated], (MASK, PAD)).any()
    assert (samples.commit_forward[~generated] == -1).all() and (samples.confidence[~generated] == 0).all()
    assert (samples.commit_forward[generated] >= 0).all() and (samples.confidence[generated] < 1 + 1e-6).all()
    assert (samples.commit_forward.max(axis=1) < samples.forwards).all()
    # Blocks are finished from left to right.
    for row in range(ROWS):
        commits = np.where(generated[row], samples.commit_forward[row], -1).reshape(-1, BLOCK)
        used = generated[row].reshape(-1, BLOCK).any(axis=1)
        latest = commits.max(axis=1)[used]
        earliest = np.where(commits < 0, 10**6, commits).min(axis=1)[used]
        assert (latest[:-1] < earliest[1:]).all()
    # A block takes at most the given steps, and one forward more that writes the cache for the next one.
    blocks = (ends(lengths) - lengths // BLOCK * BLOCK) // BLOCK
    steps = config.denoising_steps or BLOCK
    assert (samples.forwards <= blocks * steps + samples.cache_forwards).all()
    assert (samples.cache_forwards == blocks - 1).all()
    assert (samples.forwards >= blocks + samples.cache_forwards).all()


def test_static_steps_are_exactly_as_many_as_asked():
    table, prompts, _, keys = inputs(0)
    config = SamplerConfig("low_confidence_static", 0.0, 2, NEW, 0.0)
    samples = run(table, prompts, np.full(ROWS, 8, np.int32), keys, config)
    np.testing.assert_array_equal(samples.forwards, np.full(ROWS, 3 * 2 + 2))


@each_rule
def test_a_row_ends_with_the_block_of_its_stop_token(config):
    table, prompts, _, keys = inputs(1)
    lengths = np.array([3, 4, 6, 10], np.int32)
    stops = np.array([9, 4, 7, CAPACITY])  # the last row never stops
    for row, at in enumerate(stops[:3]):
        table[row, at, STOP] = 30
    prompts[:, 2] = STOP  # one in a prompt ends nothing, though it shares row 0's first block
    samples = jax.device_get(run(table, prompts, lengths, keys, config))
    stopped = np.array([12, 8, 8, CAPACITY])
    for row in range(ROWS):
        assert (samples.tokens[row, : stopped[row]] != MASK).all()
        assert (samples.tokens[row, stopped[row] :] == MASK).all()
        if stops[row] < CAPACITY:
            assert samples.tokens[row, stops[row]] == STOP
    np.testing.assert_array_equal(samples.cache_forwards, (stopped - lengths // BLOCK * BLOCK) // BLOCK - 1)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@settings(max_examples=10)
@given(seed=seeds)
def test_a_row_does_not_depend_on_its_place_or_its_neighbours(temperature, seed):
    config = SamplerConfig("low_confidence_dynamic", 0.3, 0, NEW, temperature)
    table, prompts, lengths, keys = inputs(seed)
    together = jax.device_get(run(table, prompts, lengths, keys, config))
    again = jax.device_get(run(table, prompts, lengths, keys, config))
    jax.tree.map(np.testing.assert_array_equal, together, again)
    # Row 0 moves to the end, among strangers.
    other = inputs(seed + 1)
    moved = [np.concatenate([b[1:], a[:1]]) for a, b in zip((table, prompts, lengths), other[:3], strict=True)]
    elsewhere = jax.device_get(run(*moved, jnp.concatenate([other[3][1:], keys[:1]]), config))
    for got, want in zip(elsewhere, together, strict=True):
        np.testing.assert_allclose(got[-1], want[0], atol=1e-6)


def test_temperature_draws_by_key():
    config = SamplerConfig("low_confidence_dynamic", 0.3, 0, NEW, 1.5)
    table, prompts, lengths, keys = inputs(2)
    first, second = (run(table, prompts, lengths, k, config).tokens for k in (keys, jax.random.split(keys[0], ROWS)))
    assert (first != second).any(axis=1).all()
    alike = [x[:1].repeat(ROWS, axis=0) for x in (table, prompts, lengths)]
    tokens = jax.device_get(run(*alike, keys, config).tokens)
    assert len(np.unique(tokens, axis=0)) == ROWS, "equal rows with keys of their own draw differently"


def test_draws_follow_the_tempered_distribution_and_confidence_is_its_probability():
    logits = np.random.default_rng(0).normal(size=VOCABULARY).astype(np.float32) * 2
    keys = jax.random.split(jax.random.key(0), 500)
    many = np.broadcast_to(logits, (500, 20, VOCABULARY))
    token, confidence = jax.jit(lambda x, keys: propose(x, keys, 0.7, SPECIAL))(many, keys)
    probability = np.exp(logits / 0.7) / np.exp(logits / 0.7).sum()
    np.testing.assert_allclose(confidence, probability[np.asarray(token)], rtol=1e-4)
    allowed = np.where(np.isin(np.arange(VOCABULARY), (MASK, PAD)), 0, probability)
    shares = np.bincount(np.asarray(token).ravel(), minlength=VOCABULARY) / 10_000
    expected = allowed / allowed.sum()
    assert (np.abs(shares - expected) <= 5 * np.sqrt(expected * (1 - expected) / 10_000)).all()
