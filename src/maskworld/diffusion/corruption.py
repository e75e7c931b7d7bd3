"""The forward process: which target tokens of which block are masked. Pure functions of a key, drawn on device."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from maskworld.config import DiffusionConfig
from maskworld.diffusion.schedules import SCHEDULES, loss_weight, mask_rate


class Corruption(NamedTuple):
    """Noisy copies of target blocks, k * K * S positions a row, copies one after another."""

    tokens: Int[Array, "B N"]
    masked: Bool[Array, "B N"]
    weight: Float[Array, "B N"]
    """Loss weight of a masked token at its noise level."""


def stratified(key: Array, rows: int, slots: int, antithetic: bool) -> Float[Array, "B slots"]:
    """Noise levels in [0, 1), uniform each. Antithetic: one in every interval [i/n, (i+1)/n), n = rows * slots.

    t_i = (u + i) / n with one u for all (MD4); the cells are dealt so that every row, too, is spread evenly over
    [0, 1): each row holds one cell of every group of `rows` neighbours, in a random order over its slots.
    """
    if not antithetic:
        return jax.random.uniform(key, (rows, slots))
    offset_key, row_key, slot_key = jax.random.split(key, 3)
    offset = jax.random.uniform(offset_key)
    within = jnp.argsort(jax.random.uniform(row_key, (rows, slots)), axis=0)
    group = jnp.argsort(jax.random.uniform(slot_key, (rows, slots)), axis=1)
    within = jnp.take_along_axis(within, group, axis=1)
    return (group + (within + offset) / rows) / slots


def draw_t(
    key: Array, document_ids: Int[Array, "B N"], blocks: int, copies: int, config: DiffusionConfig
) -> Float[Array, "B N"]:
    """A noise level per position: one for each noisy block, or one for each (document, copy)."""
    rows, length = document_ids.shape
    if config.draw_t == "block":
        t = stratified(key, rows, copies * blocks, config.antithetic)
        return jnp.repeat(t, length // (copies * blocks), axis=1)
    # Document ids count from 1 and cannot exceed the number of blocks; each id is spread over rows and copies.
    draw = jax.vmap(lambda k: stratified(k, rows * copies, 1, config.antithetic)[:, 0], out_axes=-1)
    table = draw(jax.random.split(key, blocks + 1)).reshape(rows, copies, blocks + 1)
    by_copy = document_ids.reshape(rows, copies, -1)
    return jnp.take_along_axis(table, by_copy, axis=2).reshape(rows, length)


def corrupt(
    key: Array,
    tokens: Int[Array, "B N"],
    targets: Bool[Array, "B N"],
    document_ids: Int[Array, "B N"],
    blocks: int,
    mask_id: int,
    config: DiffusionConfig,
) -> Corruption:
    """Mask each target token independently with probability p(t) of its block or document."""
    t_key, mask_key = jax.random.split(key)
    schedule = SCHEDULES[config.schedule]
    t = draw_t(t_key, document_ids, blocks, config.noisy_copies, config)
    rate = mask_rate(schedule, t, config.minimum_mask_rate)
    masked = targets & (jax.random.uniform(mask_key, tokens.shape) < rate)
    weight = loss_weight(schedule, t, config.minimum_mask_rate)
    return Corruption(jnp.where(masked, mask_id, tokens), masked, weight)
