"""The jitted train step: the same numbers on any mesh, exact accumulation, one compilation, no wasted memory."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from random_rows import random_batch

from maskworld.config import (
    DiffusionConfig,
    Experiment,
    ExpertsConfig,
    LoraConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    TrainingConfig,
)
from maskworld.diffusion.objective import MaskedLoss
from maskworld.models.transformer import Network
from maskworld.parallel.mesh import batch_sharding, make_mesh
from maskworld.training import step as step_module
from maskworld.training.loss import LossSums
from maskworld.training.step import (
    create_state,
    make_optimizer,
    make_train_step,
    make_validation_step,
    state_shardings,
)

MASK, VOCABULARY, ROWS = 3, 48, 8
BASE = Experiment(
    model=ModelConfig(width=32, layers=2, heads=4, kv_heads=2, head_size=8, feed_forward=64, attention="chunked"),
    diffusion=DiffusionConfig(block_length=4, logits_chunk=32, minimum_mask_rate=0.05),
    optimizer=OptimizerConfig(peak_learning_rate=1e-2, warmup_steps=1),
    training=TrainingConfig(steps=60, batch_size=ROWS),
)
ONE = make_mesh(MeshConfig(), jax.devices()[:1])


def batch_of(seed):
    return random_batch(np.random.default_rng(seed), ROWS, 48, 4, [20, 13, 9], vocabulary=VOCABULARY)


BATCHES = [batch_of(seed) for seed in range(3)]


class Run:
    """A step of `experiment` on `mesh`, compiled once, and its first state."""

    def __init__(self, experiment=BASE, mesh=ONE, optimizer=None):
        self.mesh = mesh
        self.network = Network(experiment.model, VOCABULARY, experiment.training.compute_dtype)
        adamw, rate = make_optimizer(experiment.optimizer, experiment.training.steps)
        optimizer = optimizer or adamw
        self.step = make_train_step(experiment, self.network, optimizer, rate, mesh, MASK)
        shardings = state_shardings(self.network, optimizer, mesh)
        self.new_state = jax.jit(
            lambda: create_state(self.network, optimizer, jax.random.key(0)), out_shardings=shardings
        )

    def take(self, state, batches):
        """The state after one step for each batch, and the metrics of all."""
        metrics = []
        for batch in batches:
            state, found = self.step(state, jax.device_put(batch, batch_sharding(self.mesh)))
            metrics.append(jax.device_get(found))
        return state, metrics

    def losses(self):
        return [found["loss"] for found in self.take(self.new_state(), BATCHES)[1]]


@pytest.fixture(scope="module")
def base():
    return Run()


@pytest.fixture(scope="module")
def base_losses(base):
    losses = base.losses()
    assert all(0.5 < loss < 20 for loss in losses) and len(set(map(float, losses))) == 3
    return losses


@pytest.mark.parametrize(
    "axes",
    [
        {"data": 2, "fsdp": 2, "tensor": 2},
        {"data": 1, "fsdp": 8},
        pytest.param({"data": 8}, marks=pytest.mark.slow),  # the first splits rows as well
    ],
    ids=str,
)
def test_eight_devices_give_the_losses_of_one(base_losses, axes):
    run = Run(mesh=make_mesh(MeshConfig(**axes)))
    state = run.new_state()
    sizes = {leaf.addressable_shards[0].data.size / leaf.size for leaf in jax.tree.leaves(state.params)}
    assert min(sizes) == 1 / (axes.get("fsdp", 1) * axes.get("tensor", 1))
    np.testing.assert_allclose(run.losses(), base_losses, rtol=1e-4)


OTHERS = {
    "experts": {"experts": ExpertsConfig(count=4, per_token=2, feed_forward=24, every=2, balance_weight=0.1)},
    "hybrid": {"layers": 3, "mixers": ("convolution", "attention", "convolution"), "convolution_bias": True},
    "low-rank": {
        "lora": LoraConfig(rank=2),
        "experts": ExpertsConfig(count=4, per_token=2, feed_forward=24, every=2),
    },
}


@pytest.mark.parametrize(
    ("model", "axes"),
    [
        ("experts", {"data": 1, "fsdp": 2, "expert": 2, "tensor": 2}),
        ("hybrid", {"data": 2, "fsdp": 2, "tensor": 2}),
        ("low-rank", {"data": 1, "fsdp": 2, "expert": 2, "tensor": 2}),
    ],
)
def test_eight_devices_give_the_losses_of_one_for_every_kind_of_layer(model, axes):
    experiment = dataclasses.replace(BASE, model=dataclasses.replace(BASE.model, **OTHERS[model]))
    one, many = Run(experiment), Run(experiment, make_mesh(MeshConfig(**axes)))
    # Adam's first steps are the signs of gradients, rounding included: what is compared must not hang on those.
    (_, want), (_, got) = (run.take(run.new_state(), BATCHES[:2]) for run in (one, many))
    for before, after in zip(want, got, strict=True):
        assert before.keys() == after.keys()
        for name in ("loss", "grad_norm", *(("balance_loss", "busiest_expert") if "balance_loss" in before else ())):
            np.testing.assert_allclose(after[name], before[name], rtol=1e-3, err_msg=name)
    if model == "experts":
        assert 2 <= want[0]["balance_loss"] < 4 and 1 <= want[0]["busiest_expert"] <= 4


def test_a_step_compiles_once_and_reuses_the_memory_of_its_state(base):
    compiled = []

    def listen(event, seconds, **_):
        compiled.append(event)

    state = base.take(base.new_state(), BATCHES[:1])[0]
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        before = jax.tree.leaves(state)
        state, metrics = base.take(state, BATCHES)
        assert not [event for event in compiled if "backend_compile" in event]
        assert all(leaf.is_deleted() for leaf in before)
        assert int(state.step) == 4
        # The listener hears compilations: this is one.
        jax.jit(lambda x: x * 3.25)(metrics[0]["loss"])
        assert [event for event in compiled if "backend_compile" in event]
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    memory = base.step.lower(state, jax.device_put(BATCHES[0], batch_sharding(ONE))).compile().memory_analysis()
    assert size <= memory.alias_size_in_bytes <= size * 1.1


def test_the_loss_of_a_repeated_batch_falls_under_ever_new_noise(base):
    _, metrics = base.take(base.new_state(), BATCHES[:1] * 60)
    losses = [found["cross_entropy"] for found in metrics]
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])
    # The first step has learning rate zero: what the second one sees differs by its noise alone.
    assert metrics[0]["learning_rate"] == 0
    assert metrics[0]["loss"] != metrics[1]["loss"] and metrics[0]["masked_tokens"] != metrics[1]["masked_tokens"]
    assert len({float(found["target_tokens"]) for found in metrics}) == 1


def test_the_same_seed_gives_the_same_bits(base):
    first, second = (base.take(base.new_state(), BATCHES) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, *(jax.device_get(found) for found in (first, second)))


def test_a_batch_without_targets_gives_zero_loss_and_finite_weights(base):
    nothing = BATCHES[0] | {
        "targets": jnp.zeros_like(BATCHES[0]["targets"]),
        "target_blocks": jnp.full_like(BATCHES[0]["target_blocks"], -1),
    }
    state, metrics = base.take(base.new_state(), [nothing, BATCHES[0], nothing])
    for found in (metrics[0], metrics[2]):
        assert [found[name] for name in ("loss", "cross_entropy", "grad_norm", "masked_tokens")] == [0, 0, 0, 0]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    assert metrics[1]["loss"] > 0


def test_bfloat16_compute_keeps_float32_weights_and_stays_within_two_percent(base_losses):
    narrow = dataclasses.replace(BASE.training, compute_dtype="bfloat16")
    run = Run(dataclasses.replace(BASE, training=narrow))
    state, metrics = run.take(run.new_state(), BATCHES)
    kept = {leaf.dtype for leaf in jax.tree.leaves((state.params, state.opt_state))}
    assert kept == {np.dtype("float32"), np.dtype("int32")}  # int32: the optimizer's counters
    losses = [found["loss"] for found in metrics]
    np.testing.assert_allclose(losses, base_losses, rtol=2e-2)
    assert losses != base_losses, "the policy does change the arithmetic"


def test_four_microbatches_equal_one_batch():
    """Loss and weights, where all targets are masked and so no noise differs; rows have unequal numbers of them."""
    model = dataclasses.replace(BASE.model, layers=1)  # half the compilation
    diffusion = dataclasses.replace(BASE.diffusion, minimum_mask_rate=1 - 1e-5)  # a loss weight of 1e-5 everywhere
    descent = optax.sgd(1e6)
    batch = BATCHES[0] | {"targets": BATCHES[0]["targets"] & (jnp.arange(ROWS) != 2)[:, None]}
    found = []
    for microbatches in (1, 4):
        training = dataclasses.replace(BASE.training, gradient_accumulation=microbatches)
        experiment = dataclasses.replace(BASE, model=model, diffusion=diffusion, training=training)
        run = Run(experiment, optimizer=descent)
        begun = jax.device_get(run.new_state().params)
        state, metrics = run.take(run.new_state(), [batch])
        found.append((metrics[0], jax.tree.map(np.subtract, jax.device_get(state.params), begun)))
    (one, moved_once), (four, moved_by_parts) = found
    assert one["masked_tokens"] == one["target_tokens"] == four["masked_tokens"] == four["target_tokens"]
    for name in one:
        np.testing.assert_allclose(four[name], one[name], rtol=1e-4, err_msg=name)
    for got, want in zip(jax.tree.leaves(moved_by_parts), jax.tree.leaves(moved_once), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-3 * np.abs(want).max())


def test_every_microbatch_of_every_step_has_noise_of_its_own(monkeypatch):
    """Without a network: the loss is replaced by what its key draws, weighed by the tokens of the microbatch."""

    def drawn(network, params, batch, key, mask_id, config):
        value = params["final_norm"].sum() * jax.random.uniform(key)
        return LossSums(MaskedLoss(value, value, value, value), batch["tokens"].sum().astype(jnp.float32))

    monkeypatch.setattr(step_module, "diffusion_loss", drawn)
    training = dataclasses.replace(BASE.training, gradient_accumulation=4, seed=7)
    run = Run(dataclasses.replace(BASE, training=training), optimizer=optax.set_to_zero())
    _, metrics = run.take(run.new_state(), BATCHES[:2])
    for number, found in enumerate(metrics):
        key = jax.random.fold_in(jax.random.key(7), number)
        uniform = [float(jax.random.uniform(jax.random.fold_in(key, index))) for index in range(4)]
        assert len(set(uniform)) == 4
        np.testing.assert_allclose(found["masked_tokens"], BASE.model.width * sum(uniform), rtol=1e-5)
        np.testing.assert_allclose(found["target_tokens"], np.asarray(BATCHES[number]["tokens"]).sum())
        np.testing.assert_allclose(found["loss"], found["masked_tokens"] / found["target_tokens"], rtol=1e-5)


def test_validation_has_the_same_noise_for_a_batch_at_every_step(base):
    validate = make_validation_step(BASE, base.network, ONE, MASK)
    state = base.new_state()
    batch = jax.device_put(BATCHES[0], batch_sharding(ONE))
    first, again, other = (jax.device_get(validate(state.params, batch, np.int32(i))) for i in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert first.normalizer == other.normalizer and first.loss.masked != other.loss.masked
    state, metrics = base.take(state, BATCHES[:1] * 3)
    later = jax.device_get(validate(state.params, batch, np.int32(0)))
    assert later.loss.masked == first.loss.masked and later.loss.weighted != first.loss.weighted
    assert first.loss.masked != metrics[0]["masked_tokens"], "validation does not see the noise of a training step"
