"""WeDLM's training batch: which tokens are masked, in which order they stand, what the losses are, and that pieces of
a batch add up to it. Reference values: WeDLM's own training functions in float32 (shared/fixtures/wedlm)."""

import dataclasses
import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_data  # noqa: F401  (sets hypothesis' deadline)
import tiny_run
from hypothesis import given, settings
from hypothesis import strategies as st
from random_rows import random_batch
from sdar import read_safetensors

from maskworld import cli
from maskworld.config import DiffusionConfig, Experiment, MeshConfig, ModelConfig, TrainingConfig
from maskworld.conversion.config_reading import read_config
from maskworld.conversion.load import load_folder
from maskworld.conversion.unload import unload
from maskworld.diffusion.corruption import Corruption, observed_first
from maskworld.models.transformer import Network
from maskworld.models.two_stream import clean_hidden, clean_layout
from maskworld.parallel.mesh import batch_sharding, make_mesh
from maskworld.training.checkpoints import load_params
from maskworld.training.loss import followed, noisy_targets, reordered_loss, reordered_streams, wedlm_noise
from maskworld.training.step import create_state, make_train_step

MASK, VOCABULARY = 3, 50
TINY = ModelConfig(width=32, layers=2, heads=4, kv_heads=2, head_size=8, feed_forward=48)
FOLDER = Path(__file__).parents[3] / "shared" / "fixtures" / "wedlm"


def settings_of(block, **changes):
    return DiffusionConfig(objective="wedlm", block_length=block, logits_chunk=16, **changes)


def rows_of(seed, block=4):
    return random_batch(np.random.default_rng(seed), 3, 64, block, [19, 9, 17, 1], vocabulary=VOCABULARY)


@partial(jax.jit, static_argnums=2)
def draw(batch, key, config):
    targets = noisy_targets(batch, config)
    noise = wedlm_noise(batch, key, MASK, config)
    return targets, noise, observed_first(noise.masked, targets.document_ids, config.block_length)


@pytest.mark.parametrize("config", [settings_of(4), settings_of(8, noisy_copies=2, draw_t="document")], ids=["4", "8"])
@settings(max_examples=20)
@given(seed=st.integers(0, 2**31))
def test_of_every_block_a_rounded_share_is_masked_and_stands_behind_the_rest(config, seed):
    block = config.block_length
    targets, noise, order = jax.device_get(draw(rows_of(seed % 7, block), jax.random.key(seed), config))
    assert not noise.masked[~targets.targets].any()
    np.testing.assert_array_equal(noise.tokens, np.where(noise.masked, MASK, targets.labels))
    rate = 1 / noise.weight - 1e-8
    for row in range(len(order)):
        for start in range(0, order.shape[1], block):
            at = slice(start, start + block)
            wanted = targets.targets[row, at].sum() * rate[row, start]
            assert abs(noise.masked[row, at].sum() - wanted) < 0.5 + 1e-4
            places = order[row, at]
            assert sorted(places) == list(range(start, start + block))
            # Observed tokens, then masks, then what is no document's; the order of the text in each.
            group = np.where(targets.document_ids[row, places] == 0, 2, noise.masked[row, places])
            assert (np.diff(group) >= 0).all()
            assert all((np.diff(places[group == g]) > 0).all() for g in range(3))


def test_every_subset_of_a_block_is_as_likely_as_any_other():
    """Half of four targets: six pairs, each within five standard errors of a sixth of 3000 blocks."""
    config = dataclasses.replace(settings_of(4), minimum_mask_rate=0.5 - 1e-6, schedule="linear", antithetic=False)
    shape = (1, 3000 * 4)
    batch = {
        "tokens": jnp.ones(shape, jnp.int32),
        "document_ids": jnp.ones(shape, jnp.int32),
        "positions": jnp.arange(shape[1])[None],
        "targets": jnp.ones(shape, bool),
        "target_blocks": jnp.arange(3000)[None],
    }
    masked = np.asarray(draw(batch, jax.random.key(0), config)[1].masked).reshape(3000, 4)
    pairs = masked[masked.sum(axis=1) == 2]
    assert len(pairs) > 500
    _, counts = np.unique(pairs, axis=0, return_counts=True)
    assert len(counts) == 6
    np.testing.assert_allclose(counts / len(pairs), 1 / 6, atol=5 * np.sqrt(5 / 36 / len(pairs)))


@pytest.mark.parametrize(
    "model",
    [TINY, dataclasses.replace(TINY, mixers=("sliding", "attention"), sliding_window=5)],
    ids=["full", "sliding"],
)
def test_a_place_sees_the_clean_tokens_before_its_block_and_the_places_before_it_in_it(model):
    """Its logits are those of a plain causal network over just these tokens; a clean position's, over its document."""
    config, batch = settings_of(8, noisy_copies=2), rows_of(1, 8)
    network = Network(model, VOCABULARY)
    params = network.init(jax.random.key(0))
    targets, noise, order = jax.device_get(draw(batch, jax.random.key(1), config))

    @jax.jit
    def two(params, batch, noise):
        bound = network.bind(params)
        states, _ = reordered_streams(bound, batch, noise, config)
        return bound.logits(states.noisy), bound.logits(states.clean)

    @jax.jit
    def plain(params, tokens, ids, positions):
        bound = network.bind(params)
        places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        return bound.logits(
            clean_hidden(bound, tokens, clean_layout(ids, places, 1)._replace(positions=positions)).hidden
        )

    noisy_logits, clean_logits = two(params, batch, noise)
    rows, width = order.shape
    length, blocks = batch["tokens"].shape[1], np.tile(batch["target_blocks"], (1, 2))
    tokens, ids, positions = (np.zeros((width // 8, length), np.int32) for _ in range(3))
    compared = 0
    for row in range(rows):
        starts = []
        for slot, block in enumerate(blocks[row]):
            first = block * 8 - int(batch["positions"][row, block * 8]) if block >= 0 else 0
            before = np.arange(first, block * 8) if block >= 0 else np.arange(0)
            places = order[row, slot * 8 : slot * 8 + 8]
            places = places[targets.document_ids[row, places] > 0]
            size = len(before) + len(places)
            ids[slot] = np.arange(length) < size
            tokens[slot, :size] = np.r_[np.asarray(batch["tokens"])[row, before], noise.tokens[row, places]]
            positions[slot, :size] = np.r_[np.arange(len(before)), len(before) + places - slot * 8]
            starts.append((len(before), len(places)))
        want = np.asarray(plain(params, tokens, ids, positions))
        for slot, (before, count) in enumerate(starts):
            got = noisy_logits[row, slot * 8 : slot * 8 + count]
            np.testing.assert_allclose(got, want[slot, before : before + count], atol=2e-5)
            compared += count
    assert compared > 100
    ids, positions = np.asarray(batch["document_ids"]), np.asarray(batch["positions"])
    layout = clean_layout(batch["document_ids"], batch["positions"], 1)
    bound = network.bind(params)
    want = jax.jit(lambda tokens: bound.logits(clean_hidden(bound, tokens, layout).hidden))(batch["tokens"])
    np.testing.assert_allclose(clean_logits[ids > 0], want[ids > 0], atol=2e-5)
    # The next token is asked for inside documents only.
    asked = np.asarray(followed(batch))
    assert not asked[:, -1].any()
    np.testing.assert_array_equal(
        asked[:, :-1], np.asarray(batch["targets"])[:, 1:] & (ids[:, 1:] == ids[:, :-1]) & (positions[:, 1:] > 0)
    )


def fixture_batch(inputs, block):
    """The packed row on the block grid, with every block as a target block, and its noise in the order of the text."""
    prefix = f"train/block{block}/"
    clean_at, packed_at = inputs[prefix + "base_cum_seqlens"], inputs[prefix + "cum_seqlens"]
    labels = inputs["train/labels"]
    pieces = {name: [] for name in ("tokens", "document_ids", "positions", "targets", "noisy", "masked", "rate", "at")}
    for number, (begin, end) in enumerate(zip(clean_at[:-1], clean_at[1:], strict=True)):
        size, first = end - begin, packed_at[number]
        noisy = slice(first + size, first + 2 * size)
        back = np.argsort(inputs[prefix + "logical_positions"][noisy])
        values = {
            "tokens": inputs[prefix + "packed_input_ids"][first : first + size],
            "document_ids": np.full(size, number + 1),
            "positions": np.arange(size),
            "targets": labels[begin:end] != -100,
            "noisy": inputs[prefix + "packed_input_ids"][noisy][back],
            "masked": inputs[prefix + "masked_indices"][noisy][back],
            "rate": inputs[prefix + "p_mask"][noisy][back],
            "at": np.arange(size) + first,
        }
        for name, value in values.items():
            pieces[name].append(np.pad(value, (0, -size % block), constant_values=-1 if name == "at" else 0))
    row = {name: np.concatenate(values)[None] for name, values in pieces.items()}
    at = row.pop("at")[0]
    row["target_blocks"] = np.arange(len(at) // block)[None]
    noise = Corruption(row.pop("noisy"), row.pop("masked"), (1 / (row.pop("rate") + 1e-8)).astype(np.float32))
    batch = {name: value.astype(np.int32) if value.dtype == np.int64 else value for name, value in row.items()}
    sizes = np.repeat(np.diff(clean_at), -(-np.diff(clean_at) // block) * block)
    return batch, noise, at, np.where(at >= 0, at + sizes, -1)


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"needs {FOLDER}")
@pytest.mark.parametrize("block", [4, 8])
def test_logits_losses_and_gradients_of_the_reference(block, tmp_path):
    inputs, expected = dict(np.load(FOLDER / "inputs.npz")), dict(np.load(FOLDER / "expected.npz"))
    config, prefix = settings_of(block), f"train/block{block}/"
    model = read_config(FOLDER).model
    network = Network(model, model.vocabulary_size)
    params = load_folder(FOLDER)
    batch, noise, clean_at, noisy_at = fixture_batch(inputs, block)

    @jax.jit
    def logits(params):
        bound = network.bind(params)
        states, _ = reordered_streams(bound, batch, noise, config)
        return bound.logits(states.clean), bound.logits(states.noisy)

    for got, at in zip(logits(params), (clean_at, noisy_at), strict=True):
        want = expected[prefix + "logits"][at[at >= 0]]
        np.testing.assert_allclose(got[0][at >= 0], want, rtol=0, atol=2e-4)

    @partial(jax.jit, static_argnums=1)
    def run(params, equal):
        weight = np.ones_like(noise.weight) if equal else noise.weight

        def loss(params):
            sums = reordered_loss(network, params, batch, noise._replace(weight=weight), config)
            return sums.mean(1.0), sums

        return jax.value_and_grad(loss, has_aux=True)(params)

    (total, sums), gradients = run(params, False)
    np.testing.assert_allclose(total, expected[prefix + "total_loss"], rtol=1e-5)
    np.testing.assert_allclose(sums.mean(0.0), expected[prefix + "mlm_loss_weighted"], rtol=1e-5)
    np.testing.assert_allclose(sums.mean(1e9), expected[prefix + "ar_loss"], rtol=1e-5)
    np.testing.assert_allclose(run(params, True)[0][1].mean(0.0), expected[prefix + "mlm_loss_uniform"], rtol=1e-5)
    unload(tmp_path, model, jax.device_get(gradients))
    by_name = read_safetensors(tmp_path / "model.safetensors")
    recorded = [name for name in expected if name.startswith(prefix + "grad/")]
    assert recorded
    for name in recorded:
        got = by_name[name.removeprefix(prefix + "grad/")]
        np.testing.assert_allclose(got, expected[name], rtol=0, atol=1e-4 * np.abs(expected[name]).max())


@pytest.mark.parametrize("weights", ["inverse_rate", "equal"])
def test_microbatches_add_up_to_the_loss_of_two_means(weights):
    """One step over four microbatches is the gradient of one loss over all of them, of unequal rows and noise."""
    diffusion = settings_of(4, mask_weights=weights, autoregressive_weight=0.5)
    model = dataclasses.replace(TINY, layers=1)
    experiment = Experiment(
        model=model,
        diffusion=diffusion,
        training=TrainingConfig(batch_size=8, gradient_accumulation=4, seed=5),
    )
    batch = random_batch(np.random.default_rng(0), 8, 48, 4, [20, 13, 9], vocabulary=VOCABULARY)
    rate = 1e3  # weights move far enough that the gradient can be read off them
    network, descent = Network(model, VOCABULARY), optax.sgd(rate)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    state = jax.jit(lambda: create_state(network, descent, jax.random.key(0)))()
    begun = jax.device_get(state.params)
    step = make_train_step(experiment, network, descent, lambda step: rate, mesh, MASK)
    after, metrics = step(state, jax.device_put(batch, batch_sharding(mesh)))
    moved = jax.tree.map(lambda old, new: (old - new) / rate, begun, jax.device_get(after.params))

    @jax.jit
    def parts(params, piece, key):
        """(sum, normalizer) and gradient of each of the two losses."""

        def both(params):
            noise = wedlm_noise(piece, key, MASK, diffusion)
            sums = reordered_loss(network, params, piece, noise, diffusion)
            values = jnp.stack([sums.loss.weighted, sums.next_token.weighted])
            return values, (values, jnp.stack([sums.normalizer, sums.next_token.masked]))

        gradients, (values, counts) = jax.jacrev(both, has_aux=True)(params)
        return values, counts, gradients

    key = jax.random.fold_in(jax.random.key(5), 0)
    pieces = [{name: value[number::4] for name, value in batch.items()} for number in range(4)]
    found = [parts(begun, piece, jax.random.fold_in(key, number)) for number, piece in enumerate(pieces)]
    values, counts, gradients = jax.tree.map(lambda *parts: np.stack(parts), *found)
    share = np.array([1, 0.5]) / 1.5
    np.testing.assert_allclose(metrics["loss"], share @ (values.sum(0) / counts.sum(0)), rtol=1e-5)
    worst = 0.0
    for got, parts_of in zip(jax.tree.leaves(moved), jax.tree.leaves(gradients), strict=True):
        exact = np.tensordot(share / counts.sum(0), parts_of.sum(0), 1)
        naive = np.einsum("b,ab,ab...->...", share, 1 / np.maximum(counts, 1), parts_of) / 4
        np.testing.assert_allclose(got, exact, atol=2e-4 * np.abs(exact).max())
        worst = max(worst, np.abs(naive - exact).max() / np.abs(exact).max())
    assert worst > 1e-2, "a mean of means is something else"
    assert metrics["next_token_cross_entropy"] > 1 and metrics["target_tokens"] > metrics["masked_tokens"] > 0


def test_nothing_masked_leaves_the_next_token_loss_alone():
    """Where every count rounds to zero, the gradient is that of the clean stream's loss, and finite."""
    diffusion = settings_of(4, minimum_mask_rate=1e-6)
    batch = rows_of(0) | {"targets": rows_of(0)["targets"] & (rows_of(0)["positions"] % 4 == 1)}
    network = Network(dataclasses.replace(TINY, layers=1), VOCABULARY)
    params = network.init(jax.random.key(0))
    nothing = noisy_targets(batch, diffusion)
    noise = Corruption(nothing.labels, jnp.zeros_like(nothing.targets), jnp.ones(nothing.labels.shape))

    @jax.jit
    def run(params):
        return jax.value_and_grad(lambda p: reordered_loss(network, p, batch, noise, diffusion).mean(1.0))(params)

    value, gradients = run(params)
    assert value > 0.5
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    assert optax.global_norm(gradients) > 0


def test_a_run_is_trained_and_scored(tmp_path, capsys):
    """By the commands, with a curriculum of block lengths and two noisy copies."""
    experiment = tiny_run.write_experiment(
        tmp_path / "tiny.py", tiny_run.write_data(tmp_path / "data"), steps=4, validate_every=4
    )
    words = "--diffusion.objective wedlm --diffusion.block_curriculum 2=2 --diffusion.noisy_copies 2"
    assert cli.main(["train", str(experiment), "--run", str(tmp_path / "run"), *words.split()]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "grad_norm" in line]
    assert len(steps) == 4 and all(0 < line["next_token_cross_entropy"] < 20 for line in steps)
    assert all(line["masked_tokens"] > 0 for line in steps)
    assert load_params(tmp_path / "run").contract.logit_alignment == "same_position"
    words = "--evaluation.transitions 2 --sampler.max_new_tokens 12 --sampler.rule entropy_distance --sampler.window 6"
    assert cli.main(["evaluate", str(tmp_path / "run"), *words.split()]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and all(0 < row["forwards"] <= 12 for row in rows)
    capsys.readouterr()
