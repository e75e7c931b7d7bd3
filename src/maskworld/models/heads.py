"""Regression heads on the network's clean states: what a state is worth, and what its step earned. Used by planning.

A head reads the stream after the last layer at single positions, usually the last token of an observation (the state)
or of an action (the state and what is done in it): norm, one hidden layer, one number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from maskworld.models.layers import rms_norm
from maskworld.models.linear import linear

Head = Literal["value", "reward"]
HEADS: tuple[Head, ...] = ("value", "reward")

HEAD_AXES = {"norm": ("embed_norm",), "hidden": ("embed", "feed_forward"), "out": ("feed_forward",), "bias": ()}
"""Logical axes of a head's parameters, by name."""


class HeadLoss(NamedTuple):
    """Sums over a batch; divide by `count` after everything is added up."""

    squared_error: Float[Array, ""]
    count: Float[Array, ""]


@dataclass(frozen=True)
class RegressionHeads:
    """The heads as pure functions of their parameters, a dict of one tree for each head."""

    width: int
    """D of the network whose states are read."""
    hidden: int = 0
    """Size of the hidden layer; 0 takes D."""
    heads: tuple[Head, ...] = HEADS
    norm_epsilon: float = 1e-6

    def init(self, key: Array) -> dict[str, dict[str, Array]]:
        """Float32 parameters; every head says 0 at the start."""
        inner = self.hidden or self.width
        return {
            head: {
                "norm": jnp.ones(self.width),
                "hidden": jax.random.normal(one, (self.width, inner)) * self.width**-0.5,
                "out": jnp.zeros(inner),
                "bias": jnp.zeros(()),
            }
            for head, one in zip(self.heads, jax.random.split(key, len(self.heads)), strict=True)
        }

    def logical_axes(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """A tree like the parameters, for `parallel.mesh.parameter_shardings`."""
        return {head: dict(HEAD_AXES) for head in self.heads}

    def __call__(
        self, params: dict[str, dict[str, Array]], states: Float[Array, "*batch D"]
    ) -> dict[str, Float[Array, "*batch"]]:
        """One float32 number for every state and head, from stream states before the final norm."""

        def one(tree):
            hidden = jax.nn.silu(linear(rms_norm(states, tree["norm"], self.norm_epsilon), tree["hidden"]))
            return hidden.astype(jnp.float32) @ tree["out"] + tree["bias"]

        return {head: one(params[head]) for head in self.heads}


def states_at(hidden: Float[Array, "B L D"], positions: Int[Array, "B M"]) -> Float[Array, "B M D"]:
    """The states at places of each row; -1 gives any."""
    return jnp.take_along_axis(hidden, jnp.maximum(positions, 0)[..., None], axis=1)


def regression_loss(
    predicted: Float[Array, "*batch"], target: Float[Array, "*batch"], real: Bool[Array, "*batch"]
) -> HeadLoss:
    """Sum of squared errors over the real entries."""
    error = jnp.where(real, predicted - target, 0.0)
    return HeadLoss((error * error).sum(), real.sum(dtype=jnp.float32))


def returns(rewards: Float[Array, "B M"], real: Bool[Array, "B M"], discount: float) -> Float[Array, "B M"]:
    """Discounted sum of the rewards from each step on, its own included: what the value head learns."""

    def back(total, inputs):
        reward, here = inputs
        total = jnp.where(here, reward + discount * total, total)
        return total, total

    start = jnp.zeros(rewards.shape[0], rewards.dtype)
    _, found = jax.lax.scan(back, start, (rewards.T, real.T), reverse=True)
    return found.T
