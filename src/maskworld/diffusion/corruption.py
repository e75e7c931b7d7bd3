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


def mask_exact_counts(
    key: Array,
    tokens: Int[Array, "B N"],
    targets: Bool[Array, "B N"],
    document_ids: Int[Array, "B N"],
    blocks: int,
    mask_id: int,
    config: DiffusionConfig,
) -> Corruption:
    """Mask round(n p) of the n target tokens of each block, every subset as likely as any other (WeDLM).

    p is the mask rate at the block's noise level; halves are rounded to even numbers, and a block of few targets may
    keep them all. The weight of a masked token is 1 / (p + 1e-8), or 1 with `config.mask_weights` "equal".
    """
    t_key, mask_key = jax.random.split(key)
    t = draw_t(t_key, document_ids, blocks, config.noisy_copies, config)
    rate = mask_rate(SCHEDULES[config.schedule], t, config.minimum_mask_rate)

    def by_block(x):
        return x.reshape(x.shape[0], -1, config.block_length)

    # Of a block only the end may lie outside the document: its first position has its rate.
    count = jnp.round(by_block(targets).sum(axis=-1) * by_block(rate)[..., 0])
    draws = by_block(jnp.where(targets, jax.random.uniform(mask_key, tokens.shape), 2.0))
    place = jnp.argsort(jnp.argsort(draws, axis=-1), axis=-1)
    masked = targets & (place < count[..., None]).reshape(tokens.shape)
    weight = jnp.ones_like(rate) if config.mask_weights == "equal" else 1.0 / (rate + 1e-8)
    return Corruption(jnp.where(masked, mask_id, tokens), masked, weight)


def observed_first(masked: Bool[Array, "B N"], document_ids: Int[Array, "B N"], block_length: int) -> Int[Array, "B N"]:
    """WeDLM's order: which position of [0, N) stands at each place once the tokens of every block are rearranged.

    Observed tokens come first, then masks, in the order of the text within both; last what belongs to no document.
    """
    rows, length = masked.shape
    group = jnp.where(document_ids == 0, 2, masked.astype(jnp.int32)).reshape(rows, -1, block_length)
    within = jnp.argsort(group, axis=-1, stable=True)
    first = jnp.arange(length // block_length) * block_length
    return (first[:, None] + within).reshape(rows, length)
