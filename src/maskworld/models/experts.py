"""Mixture of experts: every token goes to its k most probable experts, none is dropped (Qwen3-MoE, arXiv 2505.09388).

Tokens are sorted by expert and multiplied group by group (`jax.lax.ragged_dot`). Experts are spread over the mesh axis
`expert`: each device gathers the tokens of its peers on that axis, computes what its own experts add, and the parts are
summed where the tokens live. That is exact for any routing and needs no capacity; its cost in memory is the gathered
tokens, k times. On CPUs ragged_dot multiplies every row by every expert, so there only small mixtures are practical.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from maskworld.config import ExpertsConfig, ModelConfig
from maskworld.models.linear import Linear, grouped_linear
from maskworld.models.spread import ROWS, mesh_in_use


class RouterSums(NamedTuple):
    """What the routers of one layer (or of several, with a leading axis) did, summed over counted tokens."""

    probability: Float[Array, "*layers X"]
    """Router probability of each expert."""
    chosen: Float[Array, "*layers X"]
    """Tokens sent to each expert."""
    tokens: Float[Array, "*layers"]


class Routing(NamedTuple):
    """Where each token goes."""

    expert: Int[Array, "*batch k"]
    weight: Float[Array, "*batch k"]
    probability: Float[Array, "*batch X"]
    """Of all experts, float32."""


def route(x: Float[Array, "*batch D"], router: Float[Array, "D X"], config: ExpertsConfig) -> Routing:
    """Softmax over all experts in float32, the k largest kept and, where configured, divided by their sum."""
    logits = jnp.matmul(x.astype(jnp.float32), router.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
    probability = jax.nn.softmax(logits, axis=-1)
    weight, expert = jax.lax.top_k(probability, config.per_token)
    if config.normalize_weights:
        weight = weight / weight.sum(axis=-1, keepdims=True)
    return Routing(expert, weight, probability)


def router_sums(routing: Routing, counted: Bool[Array, "*batch"] | None) -> RouterSums:
    """The statistics of one layer over the counted tokens (None: all)."""
    experts = routing.probability.shape[-1]
    probability = routing.probability.reshape(-1, experts)
    chosen = jax.nn.one_hot(routing.expert, experts, dtype=jnp.float32).sum(axis=-2).reshape(-1, experts)
    weight = jnp.ones(len(chosen)) if counted is None else counted.reshape(-1).astype(jnp.float32)
    return RouterSums(weight @ probability, weight @ chosen, weight.sum())


def balance_loss(sums: RouterSums) -> Float[Array, ""]:
    """X * sum over experts of (share of tokens sent there) * (mean probability), meaned over layers.

    Switch Transformer (arXiv 2101.03961), equation 4, for k experts a token: k where all is even. (transformers takes
    the means over all layers together before it multiplies, which lets layers make up for each other.)
    """
    tokens = jnp.maximum(sums.tokens, 1.0)[..., None]
    per_layer = sums.chosen.shape[-1] * ((sums.chosen / tokens) * (sums.probability / tokens)).sum(axis=-1)
    return per_layer.mean()


def router_metrics(sums: RouterSums) -> dict[str, Array]:
    """`balance_loss`; `busiest_expert`, the largest load of any expert of any layer over the even load (1 where all is
    even); `idle_experts`, the share of experts that got no token."""
    even = jnp.maximum(sums.chosen.mean(axis=-1, keepdims=True), 1e-9)
    return {
        "balance_loss": balance_loss(sums),
        "busiest_expert": (sums.chosen / even).max(),
        "idle_experts": (sums.chosen == 0).mean(dtype=jnp.float32),
    }


def apply_experts(
    x: Float[Array, "T D"],
    expert: Int[Array, "T k"],
    weight: Float[Array, "T k"],
    weights: dict[str, dict[str, Array]],
    scale: dict[str, float],
) -> Float[Array, "T D"]:
    """Sum over each token's experts of weight * SwiGLU, float32. Experts outside [0, X) are somebody else's: zero.

    `weights` holds `gate`, `up`, `down`, each with a `kernel` [X, I, O] and maybe `lora_a`, `lora_b` of factor `scale`.
    """
    count, chosen = weights["gate"]["kernel"].shape[0], expert.shape[1]
    group = jnp.where((expert >= 0) & (expert < count), expert, count).reshape(-1)
    order = jnp.argsort(group, stable=True)
    sizes = jnp.zeros(count, jnp.int32).at[group].add(1, mode="drop")
    mine = (jnp.arange(len(group)) < sizes.sum())[:, None]

    def multiply(name, rows):
        factors = weights[name]
        out = grouped_linear(rows, factors["kernel"], sizes)
        if "lora_a" in factors:
            update = grouped_linear(grouped_linear(rows, factors["lora_a"], sizes), factors["lora_b"], sizes)
            out = out + scale[name] * update
        # Rows of no group hold anything: nothing of them may reach a sum or a gradient.
        return jnp.where(mine, out, 0)

    rows = jnp.where(mine, x[order // chosen], 0)
    out = multiply("down", jax.nn.silu(multiply("gate", rows)) * multiply("up", rows))
    back = jnp.argsort(order)  # the place of each (token, choice) in the sorted rows
    out = out[back].reshape(*expert.shape, -1).astype(jnp.float32)
    return (out * weight[..., None]).sum(axis=1)


class Experts(nnx.Module):
    """A router and X SwiGLU networks, stacked."""

    def __init__(self, config: ModelConfig, out_std: float, *, rngs: nnx.Rngs):
        experts, width, inner = config.experts, config.width, config.experts.feed_forward
        normal = nnx.initializers.normal(config.initializer_std)
        self.router = nnx.Param(normal(rngs.params(), (width, experts.count)))
        stack = (experts.count,)
        self.gate = Linear(config, "gate", width, inner, stack=stack, rngs=rngs)
        self.up = Linear(config, "up", width, inner, stack=stack, rngs=rngs)
        self.down = Linear(config, "down", inner, width, std=out_std, stack=stack, rngs=rngs)
        self.config = experts

    def __call__(
        self, x: Float[Array, "B N D"], counted: Bool[Array, "B N"] | None = None
    ) -> tuple[Float[Array, "B N D"], RouterSums]:
        """The mixture's output in the dtype of x, and the router's statistics over the counted positions."""
        routing = route(x, self.router[...], self.config)
        maps = {name: getattr(self, name) for name in ("gate", "up", "down")}
        weights = {name: one.arrays() for name, one in maps.items()}
        scale = {name: one.scale for name, one in maps.items()}
        mesh = mesh_in_use()
        if mesh is None:
            flat = (part.reshape(-1, part.shape[-1]) for part in (x, routing.expert, routing.weight))
            out = apply_experts(*flat, weights, scale).reshape(x.shape)
        else:
            out = _spread(mesh, self.config, scale)(x, routing.expert, routing.weight, weights)
        return out.astype(x.dtype), router_sums(routing, counted)


def _spread(mesh, config: ExpertsConfig, scale: dict[str, float]):
    """`apply_experts` over the mesh: rows by batch axes, experts by `expert`, their hidden size by `tensor`."""
    expert = "expert" if mesh.shape["expert"] > 1 and config.count % mesh.shape["expert"] == 0 else None
    tensor = "tensor" if mesh.shape["tensor"] > 1 and config.feed_forward % mesh.shape["tensor"] == 0 else None
    rising = {"kernel": P(expert, None, tensor), "lora_a": P(expert), "lora_b": P(expert, None, tensor)}
    falling = {"kernel": P(expert, tensor), "lora_a": P(expert, tensor), "lora_b": P(expert)}
    by_name = {"gate": rising, "up": rising, "down": falling}

    def on_device(x, chosen, weight, weights):
        flat = [part.reshape(-1, part.shape[-1]) for part in (x, chosen, weight)]
        if expert:
            flat = [jax.lax.all_gather(part, expert, tiled=True) for part in flat]
            flat[1] = flat[1] - jax.lax.axis_index(expert) * (config.count // mesh.shape[expert])
        out = apply_experts(*flat, weights, scale)
        if tensor:
            out = jax.lax.psum(out, tensor)
        if expert:
            out = jax.lax.psum_scatter(out, expert, tiled=True)
        return out.reshape(x.shape)

    def run(x, chosen, weight, weights):
        specs = {name: {key: by_name[name][key] for key in factors} for name, factors in weights.items()}
        rows = P(ROWS)
        body = partial(jax.shard_map, mesh=mesh, in_specs=(rows, rows, rows, specs), out_specs=rows, check_vma=False)
        return body(on_device)(x, chosen, weight, weights)

    return run
