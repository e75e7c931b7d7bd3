"""Runs that begin with another run's weights: block diffusion from autoregressive ones, low-rank updates."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_run

from maskworld.config import DiffusionConfig, LoraConfig, SamplerConfig
from maskworld.config_rules import block_length_at
from maskworld.configure import validate
from maskworld.errors import ConfigError
from maskworld.evaluation.evaluate import evaluate
from maskworld.training.checkpoints import load_params
from maskworld.training.initialize import filled_rows, whole_params
from maskworld.training.loop import train
from maskworld.training.progress import Progress


def quiet():
    return Progress(enabled=False)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """An autoregressive run of some steps, and its experiment."""
    folder = tmp_path_factory.mktemp("base")
    config = tiny_run.experiment(tiny_run.write_data(folder / "data"))
    config = dataclasses.replace(
        config,
        name="base",
        diffusion=dataclasses.replace(config.diffusion, objective="autoregressive"),
        sampler=SamplerConfig(max_new_tokens=32),
    )
    train(config, folder / "run", quiet())
    return folder / "run", config


def losses(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "grad_norm" in line]


def child(base, **changes):
    run, config = base
    config = dataclasses.replace(
        config,
        diffusion=DiffusionConfig(block_length=4, logits_chunk=32),
        training=dataclasses.replace(config.training, initialize_from=str(run)),
    )
    return dataclasses.replace(config, **changes)


def test_an_autoregressive_run_learns_and_its_contract_says_that_logits_are_shifted(base):
    run, _ = base
    found = losses(run)
    assert found[-1] < found[0]
    assert load_params(run).contract.logit_alignment == "shifted"


def test_an_autoregressive_run_is_scored_by_decoding_token_by_token(base):
    run, _ = base
    result = evaluate(run, transitions=4, say=lambda text: None)
    assert result.predictions and all(p.forwards == sum(map(len, p.trace)) > 0 for p in result.predictions)


def test_block_diffusion_begins_with_the_weights_of_an_autoregressive_run(base, tmp_path):
    config = child(base)
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, steps=1, checkpoint_every=1))
    train(config, tmp_path / "run", quiet())
    # The first step's learning rate is zero: what it saved is what it began with.
    before, after = load_params(base[0]), load_params(tmp_path / "run")
    for one, two in zip(jax.tree.leaves(before.params), jax.tree.leaves(after.params), strict=True):
        np.testing.assert_array_equal(one, two)
    assert after.contract.logit_alignment == "same_position"
    assert (after.contract.tokenizer_hash, after.contract.mask_id) == (
        before.contract.tokenizer_hash,
        before.contract.mask_id,
    )


def test_rows_that_were_never_trained_are_drawn_as_long_as_the_others():
    embedding = jax.random.normal(jax.random.key(0), (50, 16))
    embedding = embedding.at[7].set(0).at[9].multiply(1e-3)
    filled = filled_rows(embedding, jnp.array([3, 7, 9]), jax.random.key(1))
    same = np.asarray((filled == embedding).all(axis=1))
    assert list(np.flatnonzero(~same)) == [7, 9]
    length = np.linalg.norm(np.asarray(embedding), axis=1)
    np.testing.assert_allclose(np.linalg.norm(np.asarray(filled), axis=1)[[7, 9]], np.median(length), rtol=1e-5)
    assert np.abs(filled[7] @ filled[9]) < 0.9 * np.median(length) ** 2


def test_a_curriculum_goes_from_short_blocks_to_long_ones_and_survives_a_stop(base, tmp_path):
    config = child(base, diffusion=DiffusionConfig(block_length=4, logits_chunk=32, block_curriculum=("1=3", "2=4")))
    assert [block_length_at(step, 4, ((1, 3), (2, 4))) for step in (0, 2, 3, 6, 7, 11)] == [1, 1, 2, 2, 4, 4]
    train(config, tmp_path / "whole", quiet())
    # Stopped inside the second stage: the schedule of the learning rate knows the final number of steps only.
    whole = losses(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "stopped")
    for step in ("8", "12"):
        shutil.rmtree(tmp_path / "stopped" / "checkpoints" / step, ignore_errors=True)
    kept = [path.name for path in (tmp_path / "stopped" / "checkpoints").iterdir() if path.name.isdecimal()]
    train(config, tmp_path / "stopped", quiet())
    assert losses(tmp_path / "stopped")[-4:] == whole[-4:], kept
    assert len(whole) == 12


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (("3=10",), "blocks of 3 do not fit"),
        (("4",), "'4' is no stage"),
        (("0=5",), "'0=5' is no stage"),
    ],
)
def test_a_curriculum_that_cannot_be_is_refused_by_name(base, entries, message):
    with pytest.raises(ConfigError, match=f"diffusion.block_curriculum: {message}"):
        validate(child(base, diffusion=DiffusionConfig(block_length=4, block_curriculum=entries)))


def test_weights_of_another_network_are_refused_with_the_fields_that_differ(base, tmp_path):
    config = child(base)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, width=32, rope_theta=5.0))
    with pytest.raises(ConfigError, match=r"(?s)model.width: .* has 16, this run 32.*model.rope_theta"):
        train(config, tmp_path / "run", quiet())


@pytest.fixture(scope="module")
def adapted(base, tmp_path_factory):
    """A run of low-rank updates on the base."""
    config = child(base)
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, lora=LoraConfig(rank=2, targets=("query", "value", "down"))),
        optimizer=dataclasses.replace(config.optimizer, peak_learning_rate=1e-2),
    )
    run = tmp_path_factory.mktemp("adapted") / "run"
    train(config, run, quiet())
    return run, config


def test_low_rank_updates_are_all_that_is_trained_and_saved(base, adapted):
    loaded = load_params(adapted[0], "latest")
    names = {path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(loaded.params)}
    assert names == {"lora_a", "lora_b"}
    size = sum(f.stat().st_size for f in (adapted[0] / "checkpoints" / "12").rglob("*") if f.is_file())
    whole = sum(f.stat().st_size for f in (base[0] / "checkpoints" / "12").rglob("*") if f.is_file())
    assert size < whole
    everything = whole_params(loaded)
    mixer = everything["layers"]["attention"]["mixer"]
    assert "lora_a" in mixer["query"] and "lora_a" not in mixer["key"]
    assert bool(jnp.any(mixer["query"]["lora_b"] != 0))
    np.testing.assert_array_equal(
        mixer["query"]["kernel"], load_params(base[0]).params["layers"]["attention"]["mixer"]["query"]["kernel"]
    )


def test_low_rank_updates_lower_the_loss_and_can_be_scored_and_resumed(adapted):
    run, config = adapted
    found = losses(run)
    assert np.mean(found[-3:]) < found[0]
    assert evaluate(run, transitions=2, say=lambda text: None).predictions
    longer = dataclasses.replace(config, training=dataclasses.replace(config.training, steps=14))
    assert train(longer, run, quiet()).step == 14


def test_low_rank_updates_without_a_base_are_refused(adapted):
    _, config = adapted
    with pytest.raises(ConfigError, match=r"model.lora.rank is above 0; training.initialize_from must name"):
        validate(dataclasses.replace(config, training=dataclasses.replace(config.training, initialize_from="")))
