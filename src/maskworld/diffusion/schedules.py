"""Mask schedules: how likely a token is masked at noise level t, and what its loss weighs.

Absorbing-state diffusion (MD4, arXiv 2406.04329; MDLM, arXiv 2406.07524): a token is kept with probability alpha(t),
alpha(0) = 1, alpha(1) = 0, and the negative ELBO is E_t [w(t) * sum over masked tokens of -log p], with
w(t) = -alpha'(t) / (1 - alpha(t)). The integral does not depend on the schedule; the gradient's variance does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp
from jaxtyping import Array, Float


class Schedule(Protocol):
    """A mask schedule: the keep rate and its slope over the noise level t in [0, 1]."""

    def alpha(self, t: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """Keep rate at noise level t in [0, 1]; falls from 1 to 0."""

    def alpha_derivative(self, t: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """d alpha / dt, never positive."""


@dataclass(frozen=True)
class Linear:
    """alpha = 1 - t (LLaDA, SDAR, BD3-LM, MDLM)."""

    def alpha(self, t):
        """Keep rate at noise level t, any shape."""
        return 1.0 - t

    def alpha_derivative(self, t):
        """d alpha / dt, the shape of t."""
        return -jnp.ones_like(t)


@dataclass(frozen=True)
class Cosine:
    """alpha = 1 - cos(pi/2 (1 - t)) (MD4)."""

    def alpha(self, t):
        """Keep rate at noise level t, any shape."""
        return 1.0 - jnp.cos(jnp.pi / 2 * (1.0 - t))

    def alpha_derivative(self, t):
        """d alpha / dt, the shape of t."""
        return -jnp.pi / 2 * jnp.sin(jnp.pi / 2 * (1.0 - t))


SCHEDULES: dict[str, Schedule] = {"linear": Linear(), "cosine": Cosine()}


def mask_rate(schedule: Schedule, t: Float[Array, "*batch"], minimum: float) -> Float[Array, "*batch"]:
    """p(t) = (1 - minimum) (1 - alpha(t)) + minimum: LLaDA's guard against unbounded weights."""
    return (1.0 - minimum) * (1.0 - schedule.alpha(t)) + minimum


def loss_weight(schedule: Schedule, t: Float[Array, "*batch"], minimum: float) -> Float[Array, "*batch"]:
    """w(t) = p'(t) / p(t), the ELBO's weight of a masked token at noise level t; finite on all of [0, 1]."""
    return -(1.0 - minimum) * schedule.alpha_derivative(t) / mask_rate(schedule, t, minimum)
