"""WeDLM's decoding loop: every forward as the reference's, rows on their own, what ends a row, and the cache."""

import dataclasses
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

from maskworld.config import ModelConfig, SamplerConfig
from maskworld.conversion.config_reading import read_config
from maskworld.conversion.load import load_folder
from maskworld.diffusion.sampler import Special
from maskworld.diffusion.streaming import sample_streaming, window_slots
from maskworld.diffusion.unmasking import Candidates, entropy_distance, low_confidence_at_least
from maskworld.models.decode import decode_window, prefill
from maskworld.models.transformer import Network
from maskworld.models.two_stream import clean_hidden, clean_layout

FOLDER = Path(__file__).parents[3] / "shared" / "fixtures" / "wedlm"
MASK, PAD, STOP = 0, 1, 2
VOCABULARY, NEW, WIDTH, BLOCK = 40, 11, 9, 4
SHAPE = {"width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_size": 8, "feed_forward": 48}
TINY = ModelConfig(**SHAPE, tie_embeddings=False, initializer_std=0.4, embedding_std=0.7)
NETWORK = Network(TINY, VOCABULARY)
PARAMS = NETWORK.init(jax.random.key(0))
SLIDING = Network(dataclasses.replace(TINY, mixers=("attention", "sliding"), sliding_window=5), VOCABULARY)
CONFIGS = {
    "dynamic": SamplerConfig("low_confidence_dynamic", 0.15, 0, NEW),
    "static": SamplerConfig("low_confidence_static", 0.5, 3, NEW, blocks_from_prompt=True),
    "window": SamplerConfig("low_confidence_dynamic", 0.15, 0, NEW, window=3),
    "entropy": SamplerConfig("entropy_distance", max_new_tokens=NEW, window=5, entropy_threshold=2.8),
    "drawn": SamplerConfig("entropy_distance", max_new_tokens=NEW, temperature=1.0, window=5, entropy_threshold=2.8),
}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def run(prompts, config, special, block=BLOCK, network=NETWORK, params=PARAMS, width=None, keys=None):
    """The samples of these prompts, and of every forward (window, samples after it, rows done before it)."""
    width = width or max(map(len, prompts))
    padded = np.stack([np.pad(p, (0, width - len(p)), constant_values=special.pad) for p in prompts])
    seen = []
    keys = jax.random.split(jax.random.key(3), len(prompts)) if keys is None else keys
    samples = _decoder(network, config, block, special)(
        params, padded, np.array([len(p) for p in prompts]), keys, lambda *found: seen.append(found)
    )
    return jax.device_get(samples), jax.device_get(seen)


def _decoder(network, config, block, special):
    key = (id(network), config, block, special)
    if key not in _DECODERS:
        sink = []

        @jax.jit
        def go(params, padded, lengths, keys):
            bound = network.bind(params)
            cache = prefill(bound, padded, lengths, 1, padded.shape[1] + config.max_new_tokens)
            return sample_streaming(
                partial(decode_window, bound), cache, padded, lengths, keys, config, block, special, note
            )

        def note(*found):
            sink[-1](*found)

        def call(params, padded, lengths, keys, observe):
            sink.append(observe)
            samples = go(params, jnp.asarray(padded), jnp.asarray(lengths), keys)
            jax.effects_barrier()
            return samples

        _DECODERS[key] = call
    return _DECODERS[key]


_DECODERS = {}


def prompts_of(seed, sizes=(9, 1, 4, 6)):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCABULARY, size).astype(np.int32) for size in sizes]


def whole_sequences(samples, seen, lengths, row):
    """(tokens, positions) of every forward of a row as a loop without a cache gives it: all known, then the masks."""
    before, steps = np.array([]), []
    tokens = samples.tokens[row, : lengths[row]]
    for window, after, done in seen:
        if done[row]:
            break
        used = window.used[row]
        start = window.positions[row].min()
        steps.append(
            (np.r_[tokens[:start], window.tokens[row][used]], np.r_[np.arange(start), window.positions[row][used]])
        )
        before = after.tokens[row]
        tokens = before
    return steps


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"needs {FOLDER}")
@pytest.mark.parametrize("block", [4, 8])
@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.85])
def test_every_forward_is_that_of_the_reference_with_both_prompts_in_one_batch(block, threshold):
    inputs, expected = dict(np.load(FOLDER / "inputs.npz")), dict(np.load(FOLDER / "expected.npz"))
    cases = json.loads((FOLDER / "meta.json").read_text())["cases"]
    cases = [case for case in cases if (case["block_size"], case["threshold"]) == (block, threshold)]
    model = read_config(FOLDER).model
    # Threshold 0 means none: the reference commits one token at a time.
    rule = {"threshold": threshold} if threshold else {"rule": "low_confidence_static"}
    config = SamplerConfig(max_new_tokens=cases[0]["max_new_tokens"], blocks_from_prompt=True, **rule)
    prompts = [inputs["prompt"][case["row"]] for case in cases]
    special = Special(500, 500, ())
    network = Network(model, model.vocabulary_size)
    samples, seen = run(prompts, config, special, block, network, load_folder(FOLDER))
    for row, case in enumerate(cases):
        np.testing.assert_array_equal(samples.tokens[row], expected[f"{case['name']}/output"])
        assert samples.forwards[row] == case["steps"] and samples.cache_forwards[row] == 0
        steps = whole_sequences(samples, seen, [len(p) for p in prompts], row)
        for name, part in (("step_ids", 0), ("step_positions", 1)):
            want = [step[step >= 0] for step in expected[f"{case['name']}/{name}"]]
            assert len(steps) == len(want)
            for got, one in zip(steps, want, strict=True):
                np.testing.assert_array_equal(got[part], one)


@partial(jax.jit, static_argnums=0)
def plain_logits(network, params, tokens, positions):
    bound = network.bind(params)
    places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    layout = clean_layout(jnp.ones_like(tokens), places, 1)._replace(positions=positions)
    return bound.logits(clean_hidden(bound, tokens, layout).hidden)


def chosen_by_hand(logits, tokens, positions, config, first_of_row, step):
    """(position -> token) that the rule commits, from the logits of a whole sequence, in plain numpy."""
    open_at = np.flatnonzero(tokens == MASK)
    open_at = open_at[positions[open_at] >= first_of_row]
    values = logits[open_at].astype(np.float64)
    log_p = values - np.log(np.exp(values).sum(axis=1, keepdims=True))
    allowed = values.copy()
    allowed[:, [MASK, PAD]] = -np.inf
    token = allowed.argmax(axis=1)
    if config.rule == "entropy_distance":
        score = -(np.exp(log_p) * log_p).sum(axis=1)
        score = score + config.distance_penalty * (positions[open_at] - positions[open_at[0]])
        chosen, best = np.flatnonzero(score < config.entropy_threshold), [score.argmin()]
    else:
        confidence = np.exp(log_p[np.arange(len(token)), token])
        chosen = np.flatnonzero(confidence >= config.threshold)
        best = [confidence.argmax()]
        if config.rule == "low_confidence_static":
            count = (2, 1, 1)[step % 3]  # four positions in three steps
            chosen, best = [], np.argsort(-confidence, kind="stable")[:count]
    chosen = chosen if len(chosen) else best
    return {int(positions[open_at[i]]): int(token[i]) for i in chosen}


@pytest.mark.parametrize("network", [NETWORK, SLIDING], ids=["full", "sliding"])
@pytest.mark.parametrize("name", ["dynamic", "static", "window", "entropy"])
def test_cached_forwards_equal_a_loop_without_a_cache(network, name):
    """Reference: in numpy, over whole sequences of one row at a time, each forward from nothing."""
    config, prompts = CONFIGS[name], prompts_of(1)
    params = network.init(jax.random.key(0))
    samples, seen = run(prompts, config, Special(MASK, PAD, ()), network=network, params=params)
    parallel = 0
    for row, prompt in enumerate(prompts):
        length, end, found, forwards, step = len(prompt), len(prompt) + NEW, {}, 0, 0
        while len(found) < NEW:
            first = next(p for p in range(length, end) if p not in found)
            origin = length if config.blocks_from_prompt else 0
            block_end = origin + ((first - origin) // BLOCK + 1) * BLOCK
            last = min(first + config.window if config.window else block_end, end)
            known = sorted(found)
            masks = [p for p in range(first, last) if p not in found]
            tokens = np.r_[prompt, [found[p] for p in known], np.full(len(masks), MASK)].astype(np.int32)
            positions = np.r_[np.arange(length), known, masks].astype(np.int32)
            fill = WIDTH + NEW - len(tokens)
            logits = plain_logits(network, params, np.pad(tokens, (0, fill))[None], np.pad(positions, (0, fill))[None])
            new = chosen_by_hand(np.asarray(logits)[0, : len(tokens)], tokens, positions, config, first, step)
            got_tokens, got_positions = whole_sequences(samples, seen, [len(p) for p in prompts], row)[forwards]
            np.testing.assert_array_equal(got_tokens, tokens)
            np.testing.assert_array_equal(got_positions, positions)
            assert all(samples.commit_forward[row, p] == forwards for p in new)
            found |= new
            forwards += 1
            step = 0 if not config.window and all(p in found for p in range(first, last)) else step + 1
            parallel += len(new) > 1
        np.testing.assert_array_equal(samples.tokens[row, length:end], [found[p] for p in range(length, end)])
        assert samples.forwards[row] == forwards
    assert parallel, "no forward ever committed two tokens"


@each_config
@settings(max_examples=5)
@given(seed=st.integers(0, 2**31))
def test_a_row_is_what_it_is_alone_and_nobody_emits_masks(config, seed):
    prompts = prompts_of(seed)
    special = Special(MASK, PAD, (STOP,), VOCABULARY - 3)
    keys = jax.random.split(jax.random.key(seed), 4)
    together, _ = run(prompts, config, special, width=WIDTH, keys=keys)
    for row, prompt in enumerate(prompts):
        alone, _ = run([prompt] * 4, config, special, width=WIDTH, keys=jnp.stack([keys[row]] * 4))
        for got, want in zip(together, alone, strict=True):
            np.testing.assert_allclose(got[row], want[0], atol=1e-5)
        made = together.commit_forward[row] >= 0
        assert made[len(prompt) :].any() and not made[: len(prompt)].any()
        np.testing.assert_array_equal(together.tokens[row, : len(prompt)], prompt)
        emitted = together.tokens[row][made]
        assert ((emitted >= 2) & (emitted < VOCABULARY - 3)).all()
        assert (together.tokens[row, len(prompt) :][~made[len(prompt) :]] == MASK).all()
        # Without a gap, to the first stop token or to the end.
        assert made[len(prompt) : len(prompt) + made.sum()].all()
        stops = np.flatnonzero(emitted == STOP)
        assert len(emitted) == (stops[0] + 1 if len(stops) else NEW)
        assert together.commit_forward[row].max() < together.forwards[row] <= NEW


@pytest.mark.parametrize("name", ["dynamic", "window", "entropy"])
def test_a_stop_token_cuts_the_row_without_changing_what_stands_before_it(name):
    """The token that comes fifth is made the stop token: the row is the same up to it, and takes no more forwards."""
    config, prompts = CONFIGS[name], prompts_of(4, sizes=(9, 5, 4, 7))
    free, _ = run(prompts, config, Special(MASK, PAD, ()), width=WIDTH)
    stop = int(free.tokens[0, len(prompts[0]) + 4])
    cut, _ = run(prompts, config, Special(MASK, PAD, (stop,)), width=WIDTH)
    shorter = 0
    for row, prompt in enumerate(prompts):
        made = free.tokens[row, len(prompt) : len(prompt) + NEW]
        found = np.flatnonzero(made == stop)
        kept = len(prompt) + (found[0] + 1 if len(found) else NEW)
        np.testing.assert_array_equal(cut.tokens[row, :kept], free.tokens[row, :kept])
        np.testing.assert_array_equal(cut.commit_forward[row, :kept], free.commit_forward[row, :kept])
        assert (cut.tokens[row, kept:] == MASK).all() and (cut.commit_forward[row, kept:] == -1).all()
        assert (cut.confidence[row, kept:] == 0).all()
        assert cut.forwards[row] == cut.commit_forward[row].max() + 1 <= free.forwards[row]
        shorter += cut.forwards[row] < free.forwards[row]
    assert shorter, "no row ended early"


def test_a_confidence_of_just_the_threshold_suffices():
    confidence = jnp.array([[0.5, 0.7, 0.9, 0.5], [0.1, 0.2, 0.2, 0.1]])
    masked = jnp.array([[True, True, False, True], [True, True, True, False]])
    chosen = low_confidence_at_least(Candidates(confidence, masked, jnp.array([1, 1])), 0.5)
    np.testing.assert_array_equal(chosen, [[True, True, False, True], [False, True, False, False]])


def test_distance_makes_later_positions_wait():
    """Equal entropies ln 2: with a penalty only the nearer ones pass, and the nearest where none does."""
    logits = jnp.full((2, 4, 5), -40.0).at[..., :2].set(0.0)
    masked = jnp.array([[False, True, True, True], [True, False, True, True]])
    positions = jnp.array([[8, 5, 6, 9], [3, 1, 4, 7]])
    for threshold, penalty, want in (
        (0.7, 0.0, [[0, 1, 1, 1], [1, 0, 1, 1]]),
        (0.72, 0.01, [[0, 1, 1, 0], [1, 0, 1, 0]]),
        (0.5, 0.01, [[0, 1, 0, 0], [1, 0, 0, 0]]),
    ):
        np.testing.assert_array_equal(entropy_distance(logits, masked, positions, threshold, penalty), want)


def test_a_window_has_room_for_what_is_open_and_what_was_just_committed():
    assert window_slots(SamplerConfig(max_new_tokens=96), 8) == 16
    assert window_slots(SamplerConfig(max_new_tokens=96, window=16), 8) == 32
    assert window_slots(SamplerConfig(max_new_tokens=5), 8) == 5


def test_convolutions_are_refused():
    network = Network(dataclasses.replace(TINY, mixers=("convolution", "attention")), VOCABULARY)
    tokens = jnp.zeros((1, 4), jnp.int32)
    with pytest.raises(ValueError, match="neighbours"):
        decode_window(network.bind(network.init(jax.random.key(0))), {}, tokens, tokens, jnp.zeros(1, jnp.int32))
