"""Unmasking rules: which masked positions of a block are committed after a forward. Every row decides for itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Candidates(NamedTuple):
    """What a forward proposes for a block."""

    confidence: Float[Array, "B S"]
    """Probability of the proposed token, given all logits of its position."""
    masked: Bool[Array, "B S"]
    """Positions that are still open; no rule commits another one."""
    count: Int[Array, " B"]
    """Tokens the static schedule commits at this step."""


Rule = Callable[[Candidates, float], Bool[Array, "B S"]]


def commit_count(
    block_length: int | Int[Array, " B"], denoising_steps: int, step: Int[Array, " B"]
) -> Int[Array, " B"]:
    """Tokens per step so that `denoising_steps` steps fill a block: S // steps, one more in the first S % steps."""
    share, rest = divmod(block_length, denoising_steps)
    return jnp.maximum(share + (step < rest), 1)


def top_confident(candidates: Candidates, count: Int[Array, " B"]) -> Bool[Array, "B S"]:
    """The `count` most confident masked positions; among equals the leftmost first."""
    confidence = jnp.where(candidates.masked, candidates.confidence, -jnp.inf)
    mine, other = confidence[:, :, None], confidence[:, None, :]
    index = jnp.arange(confidence.shape[1])
    ahead = (other > mine) | ((other == mine) & (index[None, :] < index[:, None]))
    return candidates.masked & (ahead.sum(axis=-1) < count[:, None])


def low_confidence_static(candidates: Candidates, threshold: float) -> Bool[Array, "B S"]:
    """As many as the schedule says, the most confident ones (SDAR, LLaDA); `threshold` has no meaning here."""
    return top_confident(candidates, candidates.count)


def low_confidence_dynamic(candidates: Candidates, threshold: float) -> Bool[Array, "B S"]:
    """All above `threshold` if they are at least as many as the schedule says, else the schedule's (SDAR)."""
    sure = candidates.masked & (candidates.confidence > threshold)
    enough = sure.sum(axis=-1, keepdims=True) >= candidates.count[:, None]
    return jnp.where(enough, sure, top_confident(candidates, candidates.count))


def low_confidence_at_least(candidates: Candidates, threshold: float) -> Bool[Array, "B S"]:
    """As `low_confidence_dynamic`, but a confidence of just `threshold` suffices (WeDLM)."""
    sure = candidates.masked & (candidates.confidence >= threshold)
    enough = sure.sum(axis=-1, keepdims=True) >= candidates.count[:, None]
    return jnp.where(enough, sure, top_confident(candidates, candidates.count))


def entropy_distance(
    logits: Float[Array, "B S V"],
    masked: Bool[Array, "B S"],
    positions: Int[Array, "B S"],
    threshold: float,
    penalty: float,
) -> Bool[Array, "B S"]:
    """Masked positions with H + penalty * d below `threshold`, else the lowest one alone (WeDLM's engine).

    H is the entropy (nats) of the softmax of the logits as they are, d the distance to the row's first mask.
    `positions` rise over the masked ones.
    """
    log_p = jax.nn.log_softmax(logits, axis=-1)
    entropy = -(jnp.exp(log_p) * log_p).sum(axis=-1)
    first = jnp.where(masked, positions, jnp.iinfo(jnp.int32).max).min(axis=-1, keepdims=True)
    score = jnp.where(masked, entropy + penalty * (positions - first), jnp.inf)
    sure = score < threshold
    lowest = masked & (jnp.arange(masked.shape[1]) == score.argmin(axis=-1)[:, None])
    return jnp.where(sure.any(axis=-1, keepdims=True), sure, lowest)


def sequential(candidates: Candidates, threshold: float) -> Bool[Array, "B S"]:
    """As many as the schedule says, from the left."""
    before = jnp.cumsum(candidates.masked, axis=-1) - candidates.masked
    return candidates.masked & (before < candidates.count[:, None])


RULES: dict[str, Rule] = {
    "low_confidence_static": low_confidence_static,
    "low_confidence_dynamic": low_confidence_dynamic,
    "sequential": sequential,
}
