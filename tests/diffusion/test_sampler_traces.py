"""Greedy decoding against SDAR's reference loop, token for token at every denoising step."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sdar

from maskworld.config import SamplerConfig
from maskworld.diffusion.sampler import Special, sample
from maskworld.models.decode import decode_block, prefill

CASES = json.loads((sdar.FOLDER / "trace_cases.json").read_text())
TRACES = np.load(sdar.FOLDER / "traces.npz")
NO_PAD = 639
"""An id that the reference model never predicts, in the place of a pad token."""


def settings(case):
    return (
        case["block_length"],
        case["denoising_steps"],
        case["strategy"],
        case["threshold"] or 0.0,
        case["gen_length"],
        tuple(case.get("stop_ids", ())),
    )


def by_setting():
    groups = {}
    for case in CASES["cases"]:
        groups.setdefault(settings(case), []).append(case)
    return groups


GROUPS = by_setting()


@pytest.fixture(scope="module")
def model():
    return sdar.load_network()[:2]


def run(model, setting, prompts, observe=None):
    network, params = model
    block, steps, rule, threshold, length, stop = setting
    config = SamplerConfig(rule=rule, threshold=threshold, denoising_steps=steps, max_new_tokens=length)
    width = -(-max(map(len, prompts)) // block) * block
    capacity = -(-(width + length) // block) * block
    padded = np.stack([np.pad(p, (0, width - len(p)), constant_values=NO_PAD) for p in prompts])
    lengths = np.array([len(p) for p in prompts])

    @jax.jit
    def go(params, padded, lengths):
        bound = network.bind(params)
        cache = prefill(bound, padded, lengths, block, capacity)
        keys = jax.random.split(jax.random.key(0), len(prompts))
        forward = partial(decode_block, bound)
        special = Special(CASES["mask_id"], NO_PAD, stop)
        return sample(forward, cache, padded, lengths, keys, config, block, special, observe)

    return jax.device_get(go(params, jnp.asarray(padded), jnp.asarray(lengths)))


def spread(settings):
    """A third of the settings by default (each compiles a sampler), the others with the slow tests."""
    return [pytest.param(s, marks=() if i % 3 == 0 or s[5] else pytest.mark.slow) for i, s in enumerate(settings)]


@pytest.mark.parametrize("setting", spread(GROUPS), ids=lambda s: "-".join(map(str, s[:4])) + "-stop" * bool(s[5]))
def test_every_step_equals_the_reference_with_all_prompts_in_one_batch(model, setting):
    cases = GROUPS[setting]
    prompts = [TRACES[f"prompt{case['prompt']}"] for case in cases]
    seen = []
    samples = run(model, setting, prompts, lambda s, at: seen.append((np.array(s.tokens), np.array(s.forwards), at)))
    jax.effects_barrier()
    block = setting[0]
    for row, case in enumerate(cases):
        expected = TRACES[f"{case['name']}/output"]
        np.testing.assert_array_equal(samples.tokens[row, : len(expected)], expected, err_msg=case["name"])
        states, starts = TRACES[f"{case['name']}/step_states"], TRACES[f"{case['name']}/step_block_start"]
        steps, filling, last = [], 0, None
        for tokens, forwards, at in seen:
            block_now = (int(at[row]), tuple(tokens[row, at[row] : at[row] + block]))
            if len(steps) + filling == forwards[row]:
                continue  # the row was done before this forward
            if last == block_now:
                filling += 1  # a forward that only wrote the cache changes nothing
            else:
                steps.append(block_now)
            last = block_now
        assert [start for start, _ in steps] == starts.tolist(), case["name"]
        np.testing.assert_array_equal([tokens for _, tokens in steps], states, err_msg=case["name"])
        assert samples.forwards[row] == case["n_denoise"] + samples.cache_forwards[row]
        blocks = len(set(starts.tolist()))
        assert samples.cache_forwards[row] == blocks - 1  # the last block needs no cache


def test_prompts_of_one_batch_do_not_see_each_other(model):
    """Batch 8 with mixed lengths equals eight runs of batch 1, commits and confidences included."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 590, size).astype(np.int32) for size in (3, 4, 9, 16, 17, 22, 30, 8)]
    for rule, threshold in (("low_confidence_dynamic", 0.3), ("low_confidence_static", 0.0)):
        setting = (8, 4, rule, threshold, 20, (74, 101))
        together = run(model, setting, prompts)
        for row, prompt in enumerate(prompts):
            alone = run(model, setting, [prompt])
            width = alone.tokens.shape[1]
            np.testing.assert_array_equal(together.tokens[row, :width], alone.tokens[0])
            np.testing.assert_array_equal(together.commit_forward[row, :width], alone.commit_forward[0])
            np.testing.assert_allclose(together.confidence[row, :width], alone.confidence[0], atol=1e-5)
            assert together.forwards[row] == alone.forwards[0]


def test_logits_and_cached_block_equal_the_reference():
    from maskworld.models.two_stream import clean_hidden, clean_layout

    inputs, expected = np.load(sdar.FOLDER / "inputs.npz"), np.load(sdar.FOLDER / "expected.npz")
    network, params, _ = sdar.load_network()
    ids = jnp.asarray(inputs["input_ids"])
    rows, length = ids.shape

    @jax.jit
    def logits(params):
        model = network.bind(params)
        positions = jnp.broadcast_to(jnp.arange(length), ids.shape)
        hidden = clean_hidden(model, ids, clean_layout(jnp.ones_like(ids), positions, 4)).hidden
        lengths = jnp.full(rows, length - 4)
        cache = prefill(model, ids, lengths, 4, length)
        return model.logits(hidden), decode_block(model, cache, ids[:, -4:], lengths)[0]

    full, cached = logits(params)
    np.testing.assert_allclose(full, expected["logits_block4"], atol=2e-4)
    np.testing.assert_allclose(cached, expected["logits_cached_last_block4"], atol=2e-4)
