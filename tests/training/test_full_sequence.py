"""The objective over whole sequences: its loss against a dense pass, and a run from training to scores."""

import dataclasses
import json
from functools import partial

import dense_oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_run
from random_rows import random_batch

from maskworld import cli
from maskworld.config import DiffusionConfig, ModelConfig
from maskworld.diffusion.corruption import corrupt
from maskworld.evaluation.predictions import read_predictions
from maskworld.models.transformer import Network
from maskworld.training.checkpoints import load_params
from maskworld.training.loss import batch_loss, full_sequence_loss, noisy_targets

MASK = 3
TINY = ModelConfig(width=48, layers=3, heads=4, kv_heads=2, head_size=16, feed_forward=64, query_key_norm=False)


def full(**changes):
    return DiffusionConfig(objective="full_sequence", block_length=4, logits_chunk=16, **changes)


def noise_of(batch, config, seed=0):
    blocks = batch["target_blocks"].shape[1]
    noise = jax.jit(lambda b: corrupt(jax.random.key(seed), *noisy_targets(b, config), blocks, MASK, config))(batch)
    assert noise.masked.any()
    return noise


def laid_back(batch, values, block, fill):
    """Values of the target blocks at their places in the row."""
    out = np.array(fill).reshape(len(fill), -1, block)
    values = np.asarray(values).reshape(len(fill), -1, block)
    for row, blocks in enumerate(np.asarray(batch["target_blocks"])):
        for slot, index in enumerate(blocks):
            if index >= 0:
                out[row, index] = values[row, slot]
    return out.reshape(np.shape(fill))


def dense_loss(params, network, batch, noise):
    """The same loss by one pass under a mask that shows each document all of itself."""
    zeros = np.zeros(batch["tokens"].shape)
    tokens = jnp.asarray(laid_back(batch, noise.tokens, 4, batch["tokens"]))
    counted = laid_back(batch, noise.masked, 4, zeros) * laid_back(batch, noise.weight, 4, zeros)
    ids, model = np.asarray(batch["document_ids"]), network.bind(params)
    seen = (ids[:, :, None] == ids[:, None, :]) & (ids > 0)[:, :, None]
    log_p = jax.nn.log_softmax(model.logits(dense_oracle.forward(model, tokens, batch["positions"], seen)))
    return -(jnp.take_along_axis(log_p, batch["tokens"][..., None], axis=2)[..., 0] * counted).sum()


@pytest.mark.parametrize(
    ("attention", "draw_t", "tied"), [("reference", "document", True), ("chunked", "block", False)]
)
def test_loss_and_gradients_of_packed_rows_equal_a_dense_pass(attention, draw_t, tied):
    batch = random_batch(np.random.default_rng(0), rows=2, length=80, block=4, document_lengths=[37, 15, 5, 1])
    config = full(draw_t=draw_t)
    noise = noise_of(batch, config)
    network = Network(dataclasses.replace(TINY, attention=attention, tie_embeddings=tied), 50)
    params = network.init(jax.random.key(0))

    @jax.jit
    @jax.value_and_grad
    def fast(params):
        return full_sequence_loss(network, params, batch, noise, config).loss.weighted

    slow = jax.jit(jax.value_and_grad(partial(dense_loss, network=network, batch=batch, noise=noise)))
    (loss, gradients), (want, expected) = fast(params), slow(params)
    np.testing.assert_allclose(loss, want, rtol=1e-5)
    for one, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4 * float(jnp.abs(other).max()) + 1e-12)


def test_noise_levels_are_those_of_documents_or_blocks_and_weigh_one_over_the_rate():
    rng = np.random.default_rng(1)
    batch = random_batch(rng, rows=4, length=512, block=4, document_lengths=[200, 120, 90], target_share=1.0)
    for draw_t in ("document", "block"):
        config = full(draw_t=draw_t, minimum_mask_rate=1e-3)
        noise = jax.device_get(noise_of(batch, config))
        zeros = np.zeros(batch["tokens"].shape)
        weight = laid_back(batch, noise.weight, 4, zeros)
        masked, ids = laid_back(batch, noise.masked, 4, zeros) > 0, np.asarray(batch["document_ids"])
        targets = np.asarray(batch["targets"])
        assert not masked[~targets].any()
        for row in range(4):
            for document in range(1, ids[row].max() + 1):
                here = (ids[row] == document) & targets[row]
                levels = np.unique(weight[row, here])
                assert (len(levels) == 1) == (draw_t == "document")
                if draw_t == "document":
                    rate = 0.999 / levels[0]
                    deviation = np.sqrt(rate * (1 - rate) / here.sum())
                    assert abs(masked[row, here].mean() - rate) < 5 * deviation + 1e-9


def test_an_observation_sees_later_turns_of_its_document_and_no_other_document():
    batch = random_batch(np.random.default_rng(2), rows=1, length=64, block=4, document_lengths=[32, 32])
    batch["targets"] = jnp.zeros((1, 64), bool).at[:, 8:12].set(True)
    batch["target_blocks"] = jnp.array([[2, -1]])
    network = Network(TINY, 50)
    params = network.init(jax.random.key(0))

    def losses(objective):
        config = dataclasses.replace(full(), objective=objective)
        loss = jax.jit(lambda batch, key: batch_loss(network, params, batch, key, MASK, config).loss.weighted)
        key = next(key for key in jax.random.split(jax.random.key(1), 20) if loss(batch, key) > 0)
        changed = [batch | {"tokens": batch["tokens"].at[:, at].set(7)} for at in (30, 40)]
        return [float(loss(b, key)) for b in (batch, *changed)]

    as_it_is, later_turn, other_document = losses("full_sequence")
    assert abs(later_turn - as_it_is) > 1e-6
    assert other_document == as_it_is
    assert len(set(losses("block_diffusion"))) == 1


def test_a_run_is_trained_scored_and_reported_from_the_command_line(tmp_path):
    file = tiny_run.write_experiment(tmp_path / "tiny.py", tiny_run.write_data(tmp_path / "data"))
    run = tmp_path / "run"
    words = (
        f"train {file} --run {run} --training.steps 3 --training.validate_every 2 --diffusion.objective full_sequence"
    )
    limits = ["--sampler.max_new_tokens", "20", "--model.family", "llada", "--model.query_key_norm", "False"]
    assert cli.main([*words.split(), "--diffusion.draw_t", "document", *limits]) == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len([line for line in lines if "grad_norm" in line and np.isfinite(line["loss"])]) == 3
    assert load_params(run).contract.logit_alignment == "same_position"
    manifest = json.loads((run / "data" / "manifest.json").read_text())
    assert manifest["target_blocks"] == 128 // 4, "nothing is computed beside a row, so all of it may be targets"
    assert cli.main(["evaluate", str(run), "--evaluation.transitions", "5"]) == 0
    for prediction in read_predictions(run / "predictions.jsonl"):
        assert prediction.block_starts[0] == 0, "blocks begin with the observation"
        assert 0 < prediction.forwards <= 20
        assert prediction.tokens <= 20
    assert (run / "report.html").is_file()
    assert cli.main(["convert", "export", str(run), "--to", str(tmp_path / "back")]) == 0
    assert json.loads((tmp_path / "back" / "config.json").read_text())["model_type"] == "llada"
