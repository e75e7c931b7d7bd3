"""One optimizer step as a pure jitted function: noise, both streams, loss, gradients, update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array

from maskworld.config import Experiment, OptimizerConfig
from maskworld.models.experts import router_metrics
from maskworld.models.transformer import Network, Params
from maskworld.parallel.mesh import batch_sharding, parameter_shardings, replicated
from maskworld.training.loss import Batch, diffusion_loss


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
    """Step 0: parameters from one typed key, and the optimizer over them. Pure; to be jitted with `state_shardings`."""
    params = network.init(key)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def state_shardings(network: Network, optimizer: optax.GradientTransformation, mesh: jax.sharding.Mesh) -> TrainState:
    """Where every leaf of the state lives: parameters by their logical axes, optimizer moments like their parameter."""
    abstract = jax.eval_shape(lambda: create_state(network, optimizer, jax.random.key(0)))
    params = parameter_shardings(mesh, abstract.params, network.logical_axes())
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
):
    """The jitted `step(state, batch) -> (state, metrics)`; the state's buffers are donated.

    Noise of step i comes from fold_in(key(seed), i), then from the microbatch's index. Gradients are those of
    (sum of losses over all microbatches) / (sum of their normalizers): a mean over tokens, not a mean of means.
    """
    config = experiment.diffusion
    microbatches = experiment.training.gradient_accumulation

    def microbatch_loss(params, batch, key):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            sums = diffusion_loss(network, params, batch, key, mask_id, config)
        return sums.objective(experiment.model.experts.balance_weight), sums

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        key = jax.random.fold_in(jax.random.key(experiment.training.seed), state.step)
        sums, gradients = accumulate_gradients(microbatch_loss, state.params, batch, key, microbatches)
        normalizer = jnp.maximum(sums.normalizer, 1.0)
        gradients = jax.tree.map(lambda g: g / normalizer, gradients)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        metrics = loss_metrics(sums) | {
            "grad_norm": optax.global_norm(gradients),
            "learning_rate": jnp.asarray(learning_rate(state.step), jnp.float32),
        }
        return TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state), metrics

    shardings = state_shardings(network, optimizer, mesh)
    return jax.jit(
        step,
        in_shardings=(shardings, batch_sharding(mesh)),
        out_shardings=(shardings, replicated(mesh)),
        donate_argnums=0,
    )


def make_validation_step(experiment: Experiment, network: Network, mesh: jax.sharding.Mesh, mask_id: int):
    """The jitted `validate(params, batch, index) -> LossSums`; the same noise for batch `index` at every step."""

    def validate(params, batch, index):
        key = jax.random.fold_in(jax.random.key(experiment.training.seed + 1), index)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return diffusion_loss(network, params, batch, key, mask_id, experiment.diffusion)

    params = parameter_shardings(mesh, network.abstract_params(), network.logical_axes())
    return jax.jit(
        validate, in_shardings=(params, batch_sharding(mesh), replicated(mesh)), out_shardings=replicated(mesh)
    )


def loss_metrics(sums: LossSums) -> dict[str, Array]:
    """Means over the tokens they belong to; zero, not NaN, where nothing was masked."""
    masked = jnp.maximum(sums.loss.masked, 1.0)
    router = {} if sums.router is None else router_metrics(sums.router)
    return router | {
        "loss": sums.loss.weighted / jnp.maximum(sums.normalizer, 1.0),
        "cross_entropy": sums.loss.cross_entropy / masked,
        "masked_accuracy": sums.loss.correct / masked,
        "masked_tokens": sums.loss.masked,
        "target_tokens": sums.normalizer,
    }
