"""The sampler over whole sequences: LLaDA's own traces, a slow loop written from the paper, and what no row may do."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_data  # noqa: F401  (sets hypothesis' deadline)
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.config import SamplerConfig
from maskworld.conversion.config_reading import read_config
from maskworld.conversion.load import load_folder
from maskworld.diffusion.full_sequence import sample_full_sequence
from maskworld.diffusion.sampler import Special
from maskworld.diffusion.unmasking import RULES
from maskworld.models.decode import canvas_logits
from maskworld.models.transformer import Network

LLADA = Path(__file__).parents[3] / "shared" / "fixtures" / "llada"
NO_PAD = -1


@pytest.fixture(scope="module")
def llada():
    """(network, parameters, mask id, arrays, traces)"""
    if not LLADA.is_dir():
        pytest.skip(f"needs {LLADA}, which is not here")
    description = read_config(LLADA)
    network = Network(description.model, description.model.vocabulary_size)
    arrays = dict(np.load(LLADA / "inputs.npz")) | dict(np.load(LLADA / "expected.npz"))
    traces = [trace for trace in json.loads((LLADA / "meta.json").read_text())["traces"] if not trace["mask_left"]]
    return network, load_folder(LLADA), description.mask_id, arrays, traces


def generate(llada, prompts, config, block_length, stop=(), observe=None, width=None):
    network, params, mask_id = llada[:3]
    width = width or max(map(len, prompts))
    padded = np.stack([np.pad(prompt, (0, width - len(prompt)), constant_values=7) for prompt in prompts])
    lengths = np.array([len(prompt) for prompt in prompts])

    @jax.jit
    def go(params, padded, lengths):
        forward = partial(canvas_logits, network.bind(params))
        special = Special(mask_id, NO_PAD, stop)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), padded[:, 0])
        return sample_full_sequence(forward, padded, lengths, keys, config, block_length, special, observe)

    return jax.device_get(go(params, padded, lengths))


def test_every_step_equals_the_reference_loop(llada):
    arrays, traces = llada[3:]
    assert traces
    for trace in traces:
        name, blocks = trace["name"], trace["gen_length"] // trace["block_length"]
        seen = []
        samples = generate(
            llada,
            list(arrays["prompt"]),
            SamplerConfig("low_confidence_static", 0.0, trace["steps"] // blocks, trace["gen_length"]),
            trace["block_length"],
            observe=lambda samples, start, seen=seen: seen.append(np.array(samples.tokens)),
        )
        jax.effects_barrier()
        np.testing.assert_array_equal(seen, arrays[f"{name}/states"], err_msg=name)
        np.testing.assert_array_equal(samples.tokens, arrays[f"{name}/output"], err_msg=name)
        np.testing.assert_array_equal(samples.forwards, [trace["steps"]] * len(samples.forwards))
        assert not samples.cache_forwards.any()


def test_a_stop_token_ends_the_row_with_its_block_and_changes_nothing_before(llada):
    arrays, traces = llada[3:]
    trace = min(traces, key=lambda trace: trace["block_length"])
    block, prompts = trace["block_length"], list(arrays["prompt"])
    whole, first = arrays[f"{trace['name']}/output"], len(prompts[0])
    stop = int(whole[0, first])  # the first row has it in its first block
    config = SamplerConfig(
        "low_confidence_static", 0.0, trace["steps"] * block // trace["gen_length"], trace["gen_length"]
    )
    samples = generate(llada, prompts, config, block, (stop,))
    for row, tokens in enumerate(whole):
        hits = np.flatnonzero(tokens[first:] == stop)
        kept = first + (len(tokens) - first if not len(hits) else (hits[0] // block + 1) * block)
        np.testing.assert_array_equal(samples.tokens[row, :kept], tokens[:kept])
        assert (samples.tokens[row, kept:] == llada[2]).all() and (samples.commit_forward[row, kept:] == -1).all()
    assert samples.forwards[0] == config.denoising_steps


@pytest.mark.parametrize(
    "config",
    [
        SamplerConfig("low_confidence_static", 0.0, 3, 14),
        SamplerConfig("low_confidence_dynamic", 0.3, 0, 14),
        SamplerConfig("sequential", 0.0, 2, 14, temperature=0.8),
    ],
    ids=lambda config: config.rule,
)
def test_prompts_of_one_batch_and_the_padding_behind_them_are_not_seen(llada, config):
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 480, size).astype(np.int32) for size in (3, 11, 8, 1)]
    stop = (74, 217)
    together = generate(llada, prompts, config, 4, stop, width=13)
    for row, prompt in enumerate(prompts):
        alone = generate(llada, [prompt], config, 4, stop)
        width = alone.tokens.shape[1]
        np.testing.assert_array_equal(together.tokens[row, :width], alone.tokens[0])
        np.testing.assert_array_equal(together.commit_forward[row, :width], alone.commit_forward[0])
        np.testing.assert_allclose(together.confidence[row, :width], alone.confidence[0], atol=1e-5)
        assert together.forwards[row] == alone.forwards[0]


# Made-up forwards: fast, and free to love what must not be emitted.

VOCABULARY, MASK, PAD, STOP, WIDTH, NEW, BLOCK, ROWS = 12, 0, 1, 2, 7, 10, 4, 3
"""Ten new positions in blocks of four: the last block has two."""
CAPACITY = WIDTH + 12


def table_logits(table, tokens, lengths, at):
    """Logits from a table [B, CAPACITY, V], moved by all that the row's canvas shows."""
    inside = jnp.arange(tokens.shape[1]) < lengths[:, None]
    seen = jnp.where(inside, tokens * (1 + jnp.arange(tokens.shape[1])), 0).sum(axis=1)[:, None, None]
    return jnp.take_along_axis(table, at[..., None], axis=1) * (1 + 0.3 * jnp.sin(1.0 * seen))


@partial(jax.jit, static_argnames="config")
def run(table, prompts, lengths, keys, config):
    forward, special = partial(table_logits, table), Special(MASK, PAD, (STOP,))
    return sample_full_sequence(forward, prompts, lengths, keys, config, BLOCK, special)


def slow_loop(table, prompt, config):
    """One row by the paper, a position at a time. Returns tokens and the forward that committed each."""
    canvas = np.array([*prompt, *[MASK] * config.max_new_tokens])
    committed, forwards = np.full(len(canvas), -1), 0
    for first in range(len(prompt), len(canvas), BLOCK):
        block = range(first, min(first + BLOCK, len(canvas)))
        steps = config.denoising_steps or BLOCK
        for step in range(steps):
            left = [i for i in block if canvas[i] == MASK]
            if not left:
                break
            at = jnp.arange(len(canvas))[None]
            logits = np.array(table_logits(table[None], jnp.asarray(canvas)[None], jnp.array([len(canvas)]), at))[0]
            probability = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
            best = {
                i: max((t for t in range(VOCABULARY) if t not in (MASK, PAD)), key=lambda t: logits[i, t]) for i in left
            }
            sure = {i: probability[i, best[i]] for i in left}
            count = max(len(block) // steps + (step < len(block) % steps), 1)
            chosen = sorted(left, key=lambda i: -sure[i])[:count]
            if config.rule == "sequential":
                chosen = left[:count]
            if config.rule == "low_confidence_dynamic" and sum(p > config.threshold for p in sure.values()) >= count:
                chosen = [i for i in left if sure[i] > config.threshold]
            for i in chosen:
                canvas[i], committed[i] = best[i], forwards
            forwards += 1
        if STOP in canvas[block]:
            break
    return canvas, committed, forwards


def inputs(seed):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(ROWS, CAPACITY, VOCABULARY)).astype(np.float32)
    table[..., STOP] -= 1
    table[..., [MASK, PAD]] += 8 * (seed % 2)
    prompts = rng.integers(3, VOCABULARY, (ROWS, WIDTH)).astype(np.int32)
    lengths = rng.integers(0, WIDTH + 1, ROWS).astype(np.int32)
    return table, prompts, lengths, jax.random.split(jax.random.key(seed), ROWS)


CONFIGS = [SamplerConfig(rule, 0.2, steps, NEW) for rule in RULES for steps in (0, 3)]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.rule}-{config.denoising_steps}")
@settings(max_examples=10)
@given(seed=st.integers(0, 2**31))
def test_every_rule_equals_the_slow_loop(config, seed):
    """Short last block, stop tokens and a network that loves masks and pads included."""
    table, prompts, lengths, keys = inputs(seed)
    samples = jax.device_get(run(table, prompts, lengths, keys, config))
    for row in range(ROWS):
        tokens, committed, forwards = slow_loop(table[row], prompts[row, : lengths[row]], config)
        end = lengths[row] + NEW
        np.testing.assert_array_equal(samples.tokens[row, :end], tokens)
        np.testing.assert_array_equal(samples.commit_forward[row, :end], committed)
        assert samples.forwards[row] == forwards
        assert (samples.tokens[row, end:] == MASK).all() and (samples.confidence[row, end:] == 0).all()
        assert not np.isin(samples.tokens[row, :end][committed >= 0], (MASK, PAD)).any()


@settings(max_examples=10)
@given(seed=st.integers(0, 2**31))
def test_draws_depend_on_the_rows_key_alone(seed):
    config = SamplerConfig("low_confidence_dynamic", 0.3, 0, NEW, 1.5)
    table, prompts, lengths, keys = inputs(seed)
    together = jax.device_get(run(table, prompts, lengths, keys, config))
    moved = [np.roll(x, 1, axis=0) for x in (table, prompts, lengths)]
    elsewhere = jax.device_get(run(*moved, jnp.roll(keys, 1), config))
    for got, want in zip(elsewhere, together, strict=True):
        np.testing.assert_allclose(np.roll(got, -1, axis=0), want, atol=1e-6)
    assert (together.forwards <= NEW).all()
