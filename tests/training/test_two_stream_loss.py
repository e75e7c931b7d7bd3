"""Two streams against the doubled sequence, and against SDAR's own losses and gradients."""

import dataclasses
from functools import partial
from pathlib import Path

import dense_oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sdar
from random_rows import random_batch

from maskworld.config import DiffusionConfig, ModelConfig
from maskworld.diffusion.corruption import Corruption, corrupt
from maskworld.models.transformer import Network
from maskworld.models.two_stream import gather_blocks
from maskworld.training.loss import corrupted_loss, diffusion_loss, noisy_targets

MASK = 3
TINY = ModelConfig(width=48, layers=3, heads=4, kv_heads=2, head_size=16, feed_forward=64)


def scatter_copy(batch, values, copy, block, fill):
    """One copy of the noisy stream laid back at its row positions."""
    rows, length = batch["tokens"].shape
    blocks = np.asarray(batch["target_blocks"])
    width = blocks.shape[1] * block
    values = np.asarray(values)[:, copy * width : (copy + 1) * width].reshape(rows, -1, block)
    out = np.array(fill).reshape(rows, -1, block)
    for row in range(rows):
        for slot, index in enumerate(blocks[row]):
            if index >= 0:
                out[row, index] = values[row, slot]
    return jnp.asarray(out.reshape(rows, length))


def noise_for(batch, config, seed=0):
    blocks = batch["target_blocks"].shape[1]

    @jax.jit
    def draw(batch):
        return corrupt(jax.random.key(seed + 1), *noisy_targets(batch, config), blocks, MASK, config)

    noise = draw(batch)
    assert noise.masked.any()
    return noise


def two_streams(network, params, batch, noise, config):
    """((weighted loss, plain loss), gradients)"""

    @partial(jax.value_and_grad, has_aux=True)
    def fast(params, batch, noise):
        loss = corrupted_loss(network, params, batch, noise, config).loss
        return loss.weighted, loss.cross_entropy

    return jax.jit(fast)(params, batch, noise)


def doubled_sequence(network, params, batch, noise, config):
    """The same by the oracle, to which the copies are so many rows."""
    block, copies = config.block_length, range(config.noisy_copies)
    zeros = np.zeros(batch["tokens"].shape)

    def laid_back(values, fill):
        return jnp.concatenate([scatter_copy(batch, values, copy, block, fill) for copy in copies])

    rows = {name: jnp.tile(values, (len(copies), 1)) for name, values in batch.items()}
    mask = dense_oracle.doubled_mask(np.asarray(rows["document_ids"]), np.asarray(rows["positions"]), block)
    noisy = (
        laid_back(noise.tokens, batch["tokens"]),
        laid_back(noise.masked, zeros.astype(bool)),
        laid_back(noise.weight, zeros.astype(np.float32)),
    )

    @partial(jax.value_and_grad, has_aux=True)
    def oracle(params, rows, mask, noisy):
        return dense_oracle.doubled_loss(network, params, rows, mask, *noisy)

    return jax.jit(oracle)(params, rows, mask, noisy)


def assert_equal_losses(got, want):
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
    for one, other in zip(jax.tree.leaves(got[1]), jax.tree.leaves(want[1]), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4 * float(jnp.abs(other).max()) + 1e-12)


@pytest.mark.parametrize(
    "attention, block, copies, draw_t",
    [("reference", 4, 1, "block"), ("chunked", 8, 2, "document"), ("chunked", 16, 3, "block")],
)
def test_two_streams_equal_the_doubled_sequence_on_packed_rows(attention, block, copies, draw_t):
    rng = np.random.default_rng(block)
    batch = random_batch(rng, rows=3, length=160, block=block, document_lengths=[37, 16, 5, 50, 1])
    config = DiffusionConfig(block_length=block, noisy_copies=copies, draw_t=draw_t, logits_chunk=16)
    network = Network(dataclasses.replace(TINY, attention=attention), 50)
    inputs = network, network.init(jax.random.key(0)), batch, noise_for(batch, config), config
    assert_equal_losses(two_streams(*inputs), doubled_sequence(*inputs))


@pytest.fixture(scope="module")
def small():
    """A batch, its noise and a configuration."""
    batch = random_batch(np.random.default_rng(1), rows=2, length=64, block=4, document_lengths=[30, 21])
    config = DiffusionConfig(block_length=4, noisy_copies=2)
    return batch, noise_for(batch, config), config


@pytest.mark.parametrize("changes", [{"tie_embeddings": False}, {"layers": 1}], ids=str)
def test_other_shapes_equal_the_doubled_sequence(small, changes):
    network = Network(dataclasses.replace(TINY, **changes), 50)
    inputs = network, network.init(jax.random.key(0)), *small
    assert_equal_losses(two_streams(*inputs), doubled_sequence(*inputs))


@pytest.fixture(scope="module")
def as_usual(small):
    return two_streams(Network(TINY, 50), Network(TINY, 50).init(jax.random.key(0)), *small)


@pytest.mark.parametrize("changes", [{"scan_layers": False}, {"remat": "full"}, {"remat": "dots"}], ids=str)
def test_execution_choices_do_not_change_loss_or_gradients(small, as_usual, changes):
    network = Network(dataclasses.replace(TINY, **changes), 50)
    assert_equal_losses(two_streams(network, network.init(jax.random.key(0)), *small), as_usual)


def test_nothing_masked_gives_zero_loss_and_finite_zero_gradients():
    batch = random_batch(np.random.default_rng(2), rows=2, length=32, block=4, document_lengths=[20])
    batch["targets"] = jnp.zeros_like(batch["targets"])
    batch["target_blocks"] = jnp.full_like(batch["target_blocks"], -1)
    config = DiffusionConfig(block_length=4)
    network = Network(TINY, 50)

    @jax.jit
    def loss_and_gradients(params, batch):
        def loss(params):
            return diffusion_loss(network, params, batch, jax.random.key(0), MASK, config).loss.weighted

        return jax.value_and_grad(loss)(params)

    value, gradients = loss_and_gradients(network.init(jax.random.key(0)), batch)
    assert value == 0
    assert all((g == 0).all() for g in jax.tree.leaves(gradients))


def packed_on_grid(inputs, name, block):
    """SDAR's packed row (documents one after another) laid on the block grid; its padding sample carries no label."""
    ids, labels = inputs[f"{name}/input_ids"], inputs[f"{name}/labels"]
    lengths = inputs[f"{name}/sample_lengths"] if f"{name}/sample_lengths" in inputs else [ids.shape[1]]
    fields = {"tokens": ids, "noisy": inputs[f"{name}/noisy_ids"], "masked": inputs[f"{name}/masked"]}
    fields |= {"targets": labels != -100, "rate": inputs[f"{name}/p_mask"]}
    pieces = {key: [] for key in (*fields, "document_ids", "positions")}
    start = 0
    for number, size in enumerate(lengths, 1):
        fill = -size % block
        for key, value in fields.items():
            pieces[key].append(
                np.pad(value[:, start : start + size], ((0, 0), (0, fill)), constant_values=key == "rate")
            )
        document = np.pad(np.full(size, number), (0, fill))
        pieces["document_ids"].append(np.tile(document, (len(ids), 1)))
        pieces["positions"].append(np.tile(np.pad(np.arange(size), (0, fill)), (len(ids), 1)))
        start += size
    row = {key: np.concatenate(value, axis=1) for key, value in pieces.items()}
    hits = row["targets"].reshape(len(ids), -1, block).any(-1)
    row["target_blocks"] = np.where(hits, np.arange(hits.shape[1]), -1)
    row["target_blocks"] = np.stack([np.r_[b[b >= 0], b[b < 0]] for b in row["target_blocks"]])
    return {
        key: jnp.asarray(value.astype(np.int32) if value.dtype == np.int64 else value) for key, value in row.items()
    }


def folders():
    found = [sdar.FOLDER]
    full = sdar.ORACLE_FOLDER / "sdar"
    return found + ([full] if full.exists() else [])


@pytest.mark.parametrize("folder", folders(), ids=lambda f: Path(f).parent.name)
@pytest.mark.parametrize(
    "attention, name, block",
    [("reference", "train_plain", 4), ("chunked", "train_packed", 4), ("chunked", "train_plain", 8)]
    + [("reference", "train_packed", 8)],
)
def test_sdar_losses_and_gradients(folder, attention, name, block):
    inputs, expected = np.load(folder / "inputs.npz"), np.load(folder / "expected.npz")
    network, params, _ = sdar.load_network(folder, attention=attention)
    row = packed_on_grid(inputs, name, block)
    config = DiffusionConfig(block_length=block, logits_chunk=8)

    def taken(key, fill=0):
        return gather_blocks(row[key], row["target_blocks"], block, fill)

    noise = Corruption(taken("noisy"), taken("masked", False), 1.0 / taken("rate", 1.0))

    def loss_of(params, row, noise):
        sums = corrupted_loss(network, params, row, noise, config)
        return sums.loss.weighted / sums.normalizer, sums

    (loss, sums), gradients = jax.jit(jax.value_and_grad(loss_of, has_aux=True))(params, row, noise)
    prefix = f"{name}/block{block}"
    np.testing.assert_allclose(loss, expected[f"{prefix}/loss"], rtol=1e-5)
    np.testing.assert_allclose(sums.loss.cross_entropy, expected[f"{prefix}/ce"].sum(), rtol=1e-5)
    assert sums.loss.masked == expected[f"{prefix}/ce"].size
    for key in (k for k in expected if k.startswith(f"{prefix}/grad/")):
        want = expected[key]
        got = sdar.reference_entry(gradients, key.removeprefix(f"{prefix}/grad/"))
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max(), err_msg=key)
