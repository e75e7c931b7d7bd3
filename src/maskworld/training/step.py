"""One optimizer step as a pure jitted function: noise, both streams, loss, gradients, update."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array

from maskworld.config import Experiment, ModelContract, OptimizerConfig
from maskworld.models.experts import router_metrics
from maskworld.models.transformer import Network, Params, join_trainable, split_trainable
from maskworld.parallel.mesh import batch_sharding, parameter_shardings, replicated
from maskworld.training.loss import Batch, LossSums, Shares, batch_loss, shortened, wedlm_normalizers


@flax.struct.dataclass
class TrainState:
    """Everything a step changes: what a checkpoint holds beside its metadata."""

    step: Array
    """int32 scalar: optimizer steps taken, and the index of the next global batch."""
    params: Params
    opt_state: Any


LAYER_MATRICES = frozenset({"kernel", "lora_a", "lora_b"})
"""Names of the stacked layers' matrices, [layers, (experts,) in, out]."""


def make_optimizer(config: OptimizerConfig, steps: int) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """The optimizer and its learning rate (of AdamW) by step; weight decay is for matrices only, never the embedding.

    Muon (Jordan et al. 2024) takes the layers' matrices when asked for, each [in, out] slice of a stack by itself, and
    leaves the rest to the same AdamW.
    """
    schedule = _warmup_cosine(config.peak_learning_rate, config, steps)

    def by_name(names, value, otherwise):
        return lambda params: jax.tree_util.tree_map_with_path(
            lambda path, _: value if path[-1].key in names else otherwise, params
        )

    optimizer = optax.adamw(
        schedule,
        b1=config.beta1,
        b2=config.beta2,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        mask=by_name(LAYER_MATRICES | {"router", "head"}, True, False),
    )
    if config.name == "muon":
        muon = optax.contrib.muon(
            _warmup_cosine(config.muon_learning_rate, config, steps),
            weight_decay=config.weight_decay,
            muon_weight_dimension_numbers=by_name(LAYER_MATRICES, optax.contrib.MuonDimensionNumbers(-2, -1), None),
        )
        optimizer = optax.partition({"muon": muon, "adamw": optimizer}, by_name(LAYER_MATRICES, "muon", "adamw"))
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer), schedule


def _warmup_cosine(peak: float, config: OptimizerConfig, steps: int) -> optax.Schedule:
    warmup = min(config.warmup_steps, max(steps - 1, 1))
    final = peak * config.final_learning_rate_fraction
    return optax.warmup_cosine_decay_schedule(0.0, peak, warmup, max(steps, 2), final)


def create_state(network: Network, optimizer: optax.GradientTransformation, key: Array) -> TrainState:
    """Step 0: trained parameters from one typed key, and the optimizer over them. Pure; to be jitted with
    `state_shardings`."""
    return state_of(split_trainable(network.init(key), network.config)[0], optimizer)


def state_of(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """Step 0 of these parameters."""
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def network_of(experiment: Experiment, contract: ModelContract) -> Network:
    """The network whose parameters a checkpoint of this configuration and contract holds."""
    vocabulary = experiment.model.vocabulary_size or contract.vocabulary_size
    return Network(experiment.model, vocabulary, experiment.training.compute_dtype)


def network_shardings(network: Network, mesh: jax.sharding.Mesh) -> Params:
    """Where every parameter lives, frozen ones included."""
    return parameter_shardings(mesh, network.abstract_params(), network.logical_axes())


def state_shardings(network: Network, optimizer: optax.GradientTransformation, mesh: jax.sharding.Mesh) -> TrainState:
    """Where every leaf of the state lives: parameters by their logical axes, optimizer moments like their parameter."""
    abstract = jax.eval_shape(lambda: create_state(network, optimizer, jax.random.key(0)))
    params, _ = split_trainable(network_shardings(network, mesh), network.config)
    by_path = {_names(path): sharding for path, sharding in jax.tree_util.tree_leaves_with_path(params)}

    def place(path, leaf):
        # A moment stands at some prefix + the path of its parameter, whatever the optimizer.
        names = _names(path)
        found = next((by_path[names[i:]] for i in range(len(names)) if names[i:] in by_path), None)
        return found if found is not None and leaf.ndim else replicated(mesh)

    opt_state = jax.tree_util.tree_map_with_path(place, abstract.opt_state)
    return TrainState(replicated(mesh), params, opt_state)


def _names(path) -> tuple[str, ...]:
    return tuple(str(getattr(part, "key", getattr(part, "name", part))) for part in path)


def split_microbatches(batch: Batch, count: int) -> Batch:
    """[B, ...] -> [count, B / count, ...]; rows are interleaved, so that each piece is spread over all devices."""
    return jax.tree.map(lambda x: x.reshape(-1, count, *x.shape[1:]).swapaxes(0, 1), batch)


def accumulate_gradients(loss: Callable, params: Params, batch: Batch, key: Array, microbatches: int):
    """(sums, gradients) of `loss(params, piece, key) -> (value, sums)`, each added up over all microbatches.

    With more than one, microbatch i draws its noise from fold_in(key, i).
    """
    value_and_grad = jax.value_and_grad(loss, has_aux=True)

    def one(piece, key):
        (_, sums), gradients = value_and_grad(params, piece, key)
        return sums, gradients

    return sum_over_microbatches(one, batch, key, microbatches)


def sum_over_microbatches(one: Callable, batch: Batch, key: Array, microbatches: int):
    """The sum of `one(piece, key)`, any tree of arrays, over all microbatches, one after another."""
    if microbatches == 1:
        return one(batch, key)

    def add(total, inputs):
        piece, index = inputs
        return jax.tree.map(jnp.add, total, one(piece, jax.random.fold_in(key, index))), None

    pieces = split_microbatches(batch, microbatches)
    shapes = jax.eval_shape(one, jax.tree.map(lambda x: x[0], pieces), key)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(add, zeros, (pieces, jnp.arange(microbatches)))[0]


def make_train_step(
    experiment: Experiment,
    network: Network,
    optimizer: optax.GradientTransformation,
    learning_rate: optax.Schedule,
    mesh: jax.sharding.Mesh,
    mask_id: int,
    block_length: int | None = None,
):
    """The jitted `step(state, batch, *frozen) -> (state, metrics)`; the state's buffers are donated.

    `frozen` is one tree, what `split_trainable` leaves of the parameters beside low-rank updates; without those the
    argument does not exist. `block_length` is a curriculum's, a divisor of the configured one.

    Noise of step i comes from fold_in(key(seed), i), then from the microbatch's index. Gradients are those of
    (sum of losses over all microbatches) / (sum of their normalizers): a mean over tokens, not a mean of means. Where
    the loss is a sum of two such means, a first pass over the noise alone finds what they are divided by.
    """
    length = block_length or experiment.diffusion.block_length
    config = dataclasses.replace(experiment.diffusion, block_length=length)
    microbatches = experiment.training.gradient_accumulation

    def shares_of(batch, key):
        if config.objective != "wedlm":
            return None
        counts = partial(wedlm_normalizers, mask_id=mask_id, config=config)
        return Shares.of(*sum_over_microbatches(counts, batch, key, microbatches), config.autoregressive_weight)

    def microbatch_loss(params, batch, key, frozen, shares):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            sums = batch_loss(network, join_trainable(params, frozen), batch, key, mask_id, config)
        return sums.objective(experiment.model.experts.balance_weight, shares), sums

    def step(state: TrainState, batch: Batch, frozen: Params | None = None) -> tuple[TrainState, dict[str, Array]]:
        if length != experiment.diffusion.block_length:
            batch = shortened(batch, experiment.diffusion.block_length, length)
        key = jax.random.fold_in(jax.random.key(experiment.training.seed), state.step)
        loss = partial(microbatch_loss, frozen=frozen or {}, shares=shares_of(batch, key))
        sums, gradients = accumulate_gradients(loss, state.params, batch, key, microbatches)
        normalizer = jnp.maximum(sums.normalizer, 1.0)
        gradients = jax.tree.map(lambda g: g / normalizer, gradients)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        metrics = loss_metrics(sums, config.autoregressive_weight) | {
            "grad_norm": optax.global_norm(gradients),
            "learning_rate": jnp.asarray(learning_rate(state.step), jnp.float32),
        }
        return TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state), metrics

    shardings = state_shardings(network, optimizer, mesh)
    return jax.jit(
        step,
        in_shardings=(shardings, batch_sharding(mesh), *_frozen_shardings(network, mesh)),
        out_shardings=(shardings, replicated(mesh)),
        donate_argnums=0,
    )


def make_validation_step(experiment: Experiment, network: Network, mesh: jax.sharding.Mesh, mask_id: int):
    """The jitted `validate(params, batch, index, *frozen) -> LossSums`; batch `index` has the same noise every time."""

    def validate(params, batch, index, frozen=None):
        key = jax.random.fold_in(jax.random.key(experiment.training.seed + 1), index)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            params = join_trainable(params, frozen or {})
            return batch_loss(network, params, batch, key, mask_id, experiment.diffusion)

    params, _ = split_trainable(network_shardings(network, mesh), network.config)
    given = (params, batch_sharding(mesh), replicated(mesh), *_frozen_shardings(network, mesh))
    return jax.jit(validate, in_shardings=given, out_shardings=replicated(mesh))


def _frozen_shardings(network: Network, mesh: jax.sharding.Mesh) -> tuple[Params, ...]:
    _, frozen = split_trainable(network_shardings(network, mesh), network.config)
    return (frozen,) if frozen else ()


def loss_metrics(sums: LossSums, autoregressive_weight: float = 1.0) -> dict[str, Array]:
    """Means over the tokens they belong to; zero, not NaN, where nothing was masked."""
    masked = jnp.maximum(sums.loss.masked, 1.0)
    others, following = {}, sums.next_token
    if following is not None:
        others["next_token_cross_entropy"] = following.cross_entropy / jnp.maximum(following.masked, 1.0)
    if sums.router is not None:
        others |= router_metrics(sums.router)
    return others | {
        "loss": sums.mean(autoregressive_weight),
        "cross_entropy": sums.loss.cross_entropy / masked,
        "masked_accuracy": sums.loss.correct / masked,
        "masked_tokens": sums.loss.masked,
        "target_tokens": sums.normalizer if following is None else following.masked,
    }
