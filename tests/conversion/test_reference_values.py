"""Every public family against values that its own implementation gave, from weights that were read as users read them.

Reference arrays: transformers 5.24 in float32 for qwen3, qwen3_moe, mistral and lfm2, SDAR's own modelling file for it
(tests/data/public_models/NOTICE.md). Tolerances: 2e-4 on logits and states, 1e-5 of a loss, 1e-4 of a gradient's
largest entry.
"""

import json
import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hugging_face_folders import raw_config, write_checkpoint
from sdar import read_safetensors

from maskworld.config import SamplerConfig
from maskworld.conversion.config_reading import describe, read_config
from maskworld.conversion.load import load_folder
from maskworld.conversion.unload import unload
from maskworld.diffusion.autoregressive import sample_autoregressive
from maskworld.diffusion.sampler import Special
from maskworld.models.decode import canvas_logits, decode_block, prefill
from maskworld.models.transformer import Network
from maskworld.models.two_stream import clean_hidden, clean_layout
from maskworld.training.loss import autoregressive_loss

DATA = Path(__file__).parents[1] / "data"
HERE = DATA / "public_models"
SHARED = Path(__file__).parents[3] / "shared" / "fixtures"
FAMILIES = ("qwen3", "qwen3_moe", "mistral", "lfm2", "sdar")
PLAIN = FAMILIES[:-1]
CLOSE = {"rtol": 0, "atol": 2e-4}
ANY = 10_000  # a block longer than any row: attention both ways


class Reference:
    """A family's folder: the network of its weights, and the recorded arrays."""

    def __init__(self, family):
        self.folder = next((f for f in (SHARED / family, HERE / family, DATA / family) if f.is_dir()), None)
        if self.folder is None:
            pytest.skip(f"needs {SHARED / family}, which is not here")
        self.family = family
        self.config = read_config(self.folder).model
        self.network = Network(self.config, self.config.vocabulary_size)
        self.params = load_folder(self.folder)
        self.inputs = dict(np.load(self.folder / "inputs.npz"))
        self.expected = dict(np.load(self.folder / "expected.npz"))

    def want(self, name):
        if name not in self.expected:
            pytest.skip(f"{self.family} has no recorded {name} here")
        return self.expected[name]

    def states(self, tokens, block_length):
        """The embeddings, the stream after every layer, and the last of it normed."""

        @jax.jit
        def run(params):
            model = self.network.bind(params)
            places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
            layout = clean_layout(jnp.ones_like(tokens), places, block_length)
            states = [model.embed(tokens)]
            states += [_run_to(model, tokens, layout, stop) for stop in range(1, self.config.layers + 1)]
            return jnp.stack(states), model.normalize(states[-1])

        return run(self.params)

    def logits(self, tokens, block_length, ids=None, positions=None):
        ids = np.ones_like(tokens) if ids is None else ids
        positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape) if positions is None else positions

        @jax.jit
        def run(params, tokens, ids, positions):
            model = self.network.bind(params)
            return model.logits(clean_hidden(model, tokens, clean_layout(ids, positions, block_length)).hidden)

        return np.asarray(run(self.params, tokens, ids, positions))


@pytest.fixture(scope="module", params=FAMILIES)
def reference(request):
    return Reference(request.param)


@pytest.fixture(scope="module", params=PLAIN)
def plain(request):
    return Reference(request.param)


@pytest.mark.parametrize(
    ("name", "block_length"),
    [
        ("logits", 1),
        ("logits_causal", 1),
        ("logits_block4", 4),
        ("logits_block8", 8),
        ("logits_block16", 16),
        ("logits_bidirectional", ANY),
    ],
)
def test_logits_under_every_attention_pattern(reference, name, block_length):
    want = reference.want(name)
    if reference.config.sliding_window and block_length > 1:
        pytest.skip("the reference's explicit mask leaves the window out")
    np.testing.assert_allclose(reference.logits(reference.inputs["input_ids"], block_length), want, **CLOSE)


def test_states_after_every_layer(plain):
    want, tokens = plain.want("hidden_states"), plain.inputs["input_ids"]
    states, final = plain.states(tokens, 1)
    np.testing.assert_allclose(states, want, **CLOSE)
    np.testing.assert_allclose(final, plain.want("final_hidden"), **CLOSE)


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_states_after_every_layer_under_attention_inside_blocks_and_both_ways(family):
    reference = Reference(family)
    recorded = [name for name in reference.expected if name.startswith("hidden_states")]
    if not recorded:
        pytest.skip(f"{family} has no recorded states here")
    for name in recorded:
        block_length = int(name.removeprefix("hidden_states_block")) if "_block" in name else ANY
        states, _ = reference.states(reference.inputs["input_ids"], block_length)
        np.testing.assert_allclose(states, reference.expected[name], err_msg=name, **CLOSE)


def _run_to(model, tokens, layout, stop):
    """`clean_hidden` over the first layers only."""

    class Shorter:
        config, embed, rotation = model.config, model.embed, model.rotation
        run_layers = staticmethod(partial(model.run_layers, stop=stop if stop < model.config.layers else None))

    return clean_hidden(Shorter, tokens, layout).hidden


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_both_sides(plain, side):
    # The reference itself is wrong beside the padding of a convolution with a bias; alone each prompt is right.
    name = "left_logits_unpadded" if side == "left" else "right_logits"
    want, mask = plain.want(name), plain.inputs[f"{side}_attention_mask"]
    positions = np.where(mask == 1, np.maximum(mask.cumsum(axis=1) - 1, 0), 0)
    got = plain.logits(plain.inputs[f"{side}_input_ids"], 1, mask, positions)
    np.testing.assert_allclose(got[mask == 1], want[mask == 1], **CLOSE)


def test_cached_decoding(plain):
    want, start = plain.want("decode_logits"), int(plain.inputs["prefill_len"])
    tokens = jnp.asarray(plain.inputs["input_ids"])

    @jax.jit
    def run(params):
        model = plain.network.bind(params)
        lengths = jnp.full(len(tokens), start - 1)
        cache = prefill(model, tokens[:, :start], lengths, 1, tokens.shape[1])

        def one(cache, at):
            logits, cache = decode_block(model, cache, tokens[:, at][:, None], jnp.full(len(tokens), at))
            return cache, logits[:, 0]

        return jax.lax.scan(one, cache, jnp.arange(start - 1, tokens.shape[1]))[1].swapaxes(0, 1)

    np.testing.assert_allclose(run(plain.params), want, **CLOSE)


def test_greedy_generation(plain):
    want, start = plain.want("greedy_ids"), int(plain.inputs["prefill_len"])
    prompt = plain.inputs["input_ids"][:1, :start]

    @jax.jit
    def run(params):
        model, lengths = plain.network.bind(params), jnp.array([start])
        cache = prefill(model, prompt, lengths - 1, 1, want.shape[1])
        special = Special(mask=-1, pad=-1, stop=(-1,))
        config = SamplerConfig(max_new_tokens=want.shape[1] - start)
        keys = jax.random.split(jax.random.key(0), 1)
        return sample_autoregressive(partial(decode_block, model), cache, prompt, lengths, keys, config, special)

    np.testing.assert_array_equal(run(plain.params).tokens, want)


def test_the_next_token_loss_and_its_gradients(plain, tmp_path):
    want, labels = plain.want("loss"), plain.inputs["labels"]
    tokens = plain.inputs["input_ids"]
    batch = {
        "tokens": tokens,
        "document_ids": np.ones_like(tokens),
        "positions": np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape),
        "targets": labels != -100,
    }

    @jax.jit
    def run(params):
        def loss(params):
            sums = autoregressive_loss(plain.network, params, batch)
            return sums.loss.weighted / sums.normalizer

        return jax.value_and_grad(loss)(params)

    found, gradients = run(plain.params)
    np.testing.assert_allclose(found, want, rtol=1e-5)
    unload(tmp_path, plain.config, jax.device_get(gradients))
    by_name = read_safetensors(tmp_path / "model.safetensors")
    recorded = [name for name in plain.expected if name.startswith("grad/")]
    assert recorded
    for name in recorded:
        value = plain.expected[name]
        got = by_name[name.removeprefix("grad/")]
        np.testing.assert_allclose(got, value, rtol=0, atol=1e-4 * np.abs(value).max(), err_msg=name)
    norms = json.loads((plain.folder / "grad_norms.json").read_text())
    for name, norm in norms.items():
        parts = [value for own, value in by_name.items() if own == name or _fused(own) == name]
        got = np.sqrt(sum(float((part.astype(np.float64) ** 2).sum()) for part in parts))
        np.testing.assert_allclose(got, norm, rtol=1e-3, err_msg=name)


def _fused(name):
    """The name under which transformers 5 holds the experts of a layer together."""
    name = re.sub(r"experts\.\d+\.down_proj\.weight", "experts.down_proj", name)
    return re.sub(r"experts\.\d+\.(gate|up)_proj\.weight", "experts.gate_up_proj", name)


def test_wedlm_is_causal_over_the_order_in_which_tokens_stand():
    """Observed tokens first, masks last, each with the position it has in the text."""
    reference = Reference("wedlm")
    np.testing.assert_allclose(reference.logits(reference.inputs["input_ids"], 1), reference.want("logits"), **CLOSE)
    tokens, positions = reference.want("reordered_ids")[None], reference.want("reordered_positions")[None]

    @jax.jit
    def run(params):
        model = reference.network.bind(params)
        place = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        layout = clean_layout(jnp.ones_like(tokens), place, 1)._replace(positions=positions)
        return model.logits(clean_hidden(model, tokens, layout).hidden)

    np.testing.assert_allclose(run(reference.params), reference.want("reordered_logits"), **CLOSE)


def test_llada_sees_both_ways():
    reference = Reference("llada")
    np.testing.assert_allclose(reference.logits(reference.inputs["input_ids"], ANY), reference.want("logits"), **CLOSE)
    mask = reference.inputs["padded_attention_mask"]
    positions = np.where(mask == 1, mask.cumsum(axis=1) - 1, 0)
    got = reference.logits(reference.inputs["padded_input_ids"], ANY, mask, positions)
    np.testing.assert_allclose(got[mask == 1], reference.want("padded_logits")[mask == 1], **CLOSE)


def llada_by_hand(folder, tokens):
    """LLaDA's logits in float64, from config.json and the tensors by their names; nothing of this project's."""
    raw = json.loads((folder / "config.json").read_text())
    weights = {name: value.astype(np.float64) for name, value in read_safetensors(folder / "model.safetensors").items()}
    heads, kv_heads = raw["n_heads"], raw["n_kv_heads"]
    size, length = raw["d_model"] // heads, tokens.shape[1]

    def norm(x, name):
        scale = np.sqrt((x**2).mean(axis=-1, keepdims=True) + raw["rms_norm_eps"])
        return x / scale * weights[f"model.transformer.{name}.weight"]

    frequency = raw["rope_theta"] ** (-np.arange(0, size, 2) / size)
    angle = np.concatenate([np.outer(np.arange(length), frequency)] * 2, axis=1)[:, None]

    def turned(x):
        other = np.concatenate([-x[..., size // 2 :], x[..., : size // 2]], axis=-1)
        return x * np.cos(angle) + other * np.sin(angle)

    x = weights["model.transformer.wte.weight"][tokens]
    for layer in range(raw["n_layers"]):
        place = f"blocks.{layer}"

        def linear(x, name, place=place):
            return x @ weights[f"model.transformer.{place}.{name}.weight"].T

        normal = norm(x, f"{place}.attn_norm")
        query, key, value = (linear(normal, f"{n}_proj").reshape(*tokens.shape, -1, size) for n in "qkv")
        key, value = (part.repeat(heads // kv_heads, axis=2) for part in (turned(key), value))
        scores = np.einsum("bqhe,bkhe->bhqk", turned(query), key) / np.sqrt(size)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = np.einsum("bhqk,bkhe->bqhe", scores / scores.sum(axis=-1, keepdims=True), value)
        x = x + linear(mixed.reshape(*tokens.shape, -1), "attn_out")
        normal = norm(x, f"{place}.ff_norm")
        gate = linear(normal, "ff_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(normal, "up_proj"), "ff_out")
    head = "wte" if raw["weight_tying"] else "ff_out"
    return norm(x, "ln_f") @ weights[f"model.transformer.{head}.weight"].T


def test_llada_written_out_by_hand_equals_its_reference():
    reference = Reference("llada")
    got = llada_by_hand(reference.folder, reference.inputs["input_ids"])
    np.testing.assert_allclose(got, reference.want("logits"), **CLOSE)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_kv_heads": 2, "weight_tying": True},
        {"n_kv_heads": 1, "embedding_size": 512, "n_layers": 1},
        {"d_model": 96, "n_heads": 6, "n_kv_heads": 3, "mlp_hidden_size": 80, "rope_theta": 10_000.0},
    ],
    ids=str,
)
def test_llada_with_grouped_heads_and_tied_embeddings_equals_what_is_written_out_by_hand(changes, tmp_path):
    source = write_checkpoint(tmp_path / "llada", raw_config("llada", **changes), std=0.2)
    config = read_config(source).model
    tokens = np.random.default_rng(0).integers(0, 512, (2, 21)).astype(np.int32)
    network, params = Network(config, config.vocabulary_size), load_folder(source)

    @jax.jit
    def run(params, at):
        model = network.bind(params)
        return canvas_logits(model, jnp.asarray(tokens), jnp.array([21, 21]), at)

    want = llada_by_hand(source, tokens)
    at = np.array([[0, 20, 7], [3, 3, 19]])
    got, want = run(params, at), np.take_along_axis(want, at[..., None], axis=1)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())


def test_router_weights_with_and_without_normalisation():
    reference = Reference("qwen3_moe")
    flipped = not reference.config.experts.normalize_weights
    want = reference.want(f"logits_norm_topk_{str(flipped).lower()}")
    raw = json.loads((reference.folder / "config.json").read_text()) | {"norm_topk_prob": flipped}
    reference.network = Network(describe(raw).model, reference.config.vocabulary_size)
    np.testing.assert_allclose(reference.logits(reference.inputs["input_ids"], 1), want, **CLOSE)


def test_bfloat16_stays_within_a_stated_bound(reference):
    """Weights in float32, activations in bfloat16: logits differ by less than 2 % of their standard deviation in the
    mean. The worst differs by less than 15 %, 35 % behind convolutions, whose gates multiply rounded numbers, and
    100 % with experts, where rounding sends a token elsewhere."""
    name = "logits" if reference.family != "sdar" else "logits_block4"
    want = reference.want(name)
    rounded = Reference(reference.family)
    rounded.network = Network(rounded.config, rounded.config.vocabulary_size, "bfloat16")
    error = np.abs(rounded.logits(rounded.inputs["input_ids"], 1 if name == "logits" else 4) - want) / want.std()
    assert 1e-4 < error.mean() < 0.02, error.mean()
    worst = 1.0 if reference.config.experts.count else 0.35 if reference.config.mixers else 0.15
    assert error.max() < worst, error.max()
