"""Where masks fall and how often, how noise levels are spread, and that no device changes them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_data  # noqa: F401  (sets hypothesis' deadline)
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from maskworld.config import DiffusionConfig, MeshConfig
from maskworld.diffusion.corruption import corrupt, draw_t, stratified
from maskworld.diffusion.schedules import SCHEDULES, loss_weight, mask_rate
from maskworld.parallel.mesh import batch_sharding, make_mesh
from maskworld.training.loss import noisy_targets

MASK = 3
# Every example compiles anew: few, and a failure is not shrunk, which would take minutes.
few_shapes = settings(max_examples=6, phases=(Phase.explicit, Phase.reuse, Phase.generate))
draw = jax.jit(stratified, static_argnums=(1, 2, 3))
draw_levels = jax.jit(draw_t, static_argnums=(2, 3, 4))
mask = jax.jit(corrupt, static_argnames=("blocks", "mask_id", "config"))


@few_shapes
@given(rows=st.integers(1, 9), slots=st.integers(1, 9), seed=st.integers(0, 2**31))
def test_stratified_levels_take_every_cell_once_and_spread_over_every_row(rows, slots, seed):
    t = np.asarray(draw(jax.random.key(seed), rows, slots, True))
    count = rows * slots
    assert t.shape == (rows, slots)
    in_cell = np.sort(t.ravel()) * count - np.arange(count)
    assert (in_cell > -1e-4).all() and (in_cell < 1 + 1e-4).all()
    np.testing.assert_allclose(in_cell, in_cell[0], atol=1e-4)  # one offset for all
    in_row = np.sort(t, axis=1) * slots - np.arange(slots)
    assert (in_row > -1e-4).all() and (in_row < 1 + 1e-4).all()


@pytest.mark.parametrize("antithetic", [True, False])
def test_every_slot_alone_has_a_uniform_level(antithetic):
    """Over 4000 keys each tenth of [0, 1) holds a tenth of every slot's levels, within five standard errors."""
    keys = jax.random.split(jax.random.key(0), 4000)
    t = np.asarray(jax.jit(jax.vmap(lambda key: stratified(key, 3, 4, antithetic)))(keys)).reshape(4000, 12)
    shares = np.stack([((t >= low / 10) & (t < (low + 1) / 10)).mean(axis=0) for low in range(10)])
    np.testing.assert_allclose(shares, 0.1, atol=5 * np.sqrt(0.1 * 0.9 / 4000))


def test_independent_levels_leave_cells_empty():
    """Of n cells, about n / e are empty when n levels fall without regard to each other; stratified none."""
    levels = {kind: np.asarray(draw(jax.random.key(1), 16, 64, kind)).ravel() for kind in (True, False)}
    empty = {kind: 1024 - len(np.unique(np.floor(t * 1024 + 1e-4))) for kind, t in levels.items()}
    assert empty[True] <= 1
    assert abs(empty[False] - 1024 / np.e) < 60


@pytest.mark.parametrize("antithetic", [True, False])
def test_a_document_has_one_level_per_copy_and_shares_it_with_no_other(antithetic):
    blocks, block, copies = 6, 4, 3
    config = DiffusionConfig(block_length=block, draw_t="document", noisy_copies=copies, antithetic=antithetic)
    ids = np.repeat([[1, 1, 2, 2, 3, 0], [1, 2, 2, 2, 2, 3]], block, axis=1)
    t = np.asarray(draw_levels(jax.random.key(4), jnp.asarray(np.tile(ids, (1, copies))), blocks, copies, config))
    t = t.reshape(2, copies, -1)
    levels = {}
    for row in range(2):
        for copy in range(copies):
            for document in (1, 2, 3):
                found = np.unique(t[row, copy, ids[row] == document])
                assert len(found) == 1
                levels[row, copy, document] = float(found[0])
    assert len(set(levels.values())) == len(levels)
    for document in (1, 2, 3) if antithetic else ():
        spread = np.sort([t for (_, _, number), t in levels.items() if number == document]) * 2 * copies
        np.testing.assert_array_equal(np.floor(spread + 1e-4), np.arange(2 * copies))


def test_a_block_has_one_level_per_copy_whatever_its_documents():
    config = DiffusionConfig(block_length=4, noisy_copies=2)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 3, (3, 40)))
    t = np.asarray(draw_levels(jax.random.key(4), ids, 5, 2, config)).reshape(3, 10, 4)
    assert (t == t[..., :1]).all()
    assert len(np.unique(t)) == 30


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_share_of_masked_tokens_is_the_mask_rate_of_the_weight(schedule):
    """The weight tells t, and so p(t), of every block: of 1024 tokens p are masked, within five standard errors."""
    config = DiffusionConfig(block_length=1024, schedule=schedule, minimum_mask_rate=1e-2)
    shape = (4, 6 * 1024)
    ones = jnp.ones(shape, jnp.int32)
    noise = mask(jax.random.key(5), ones * 7, ones > 0, ones, 6, MASK, config)
    weight = np.asarray(noise.weight).reshape(24, 1024)
    masked = np.asarray(noise.masked).reshape(24, 1024)
    assert (weight == weight[:, :1]).all()
    grid = np.linspace(1, 0, 20_001, dtype=np.float32)  # the weight falls with t
    rule = SCHEDULES[schedule]
    t = np.interp(weight[:, 0], loss_weight(rule, grid, 1e-2), grid)
    rate = np.asarray(mask_rate(rule, t, 1e-2))
    assert rate.min() < 0.2 and rate.max() > 0.8
    assert (np.abs(masked.mean(axis=1) - rate) < 5 * np.sqrt(rate * (1 - rate) / 1024) + 1e-3).all()
    # No token has regard to another, in its block or elsewhere: any two agree as often as independent ones do.
    agree = (masked[:, 1:] == masked[:, :-1]).mean(axis=1)
    assert (np.abs(agree - rate**2 - (1 - rate) ** 2) < 5 * 0.5 / np.sqrt(1023 / 2)).all()
    agree = (masked[:, None] == masked[None]).mean(axis=-1)
    expected = rate[:, None] * rate + (1 - rate[:, None]) * (1 - rate)
    assert (np.abs(agree - expected)[~np.eye(24, dtype=bool)] < 5 * 0.5 / np.sqrt(1024)).all()


def packed(rng, rows, blocks, slots, block):
    """Rows of up to three documents, some ending inside a block, with targets anywhere and some slots unused."""
    length = blocks * block
    starts = np.sort(rng.integers(0, blocks + 1, (rows, 2)), axis=1) * block
    index = np.arange(length)
    ids = 1 + (index >= starts[:, :1]) + (index >= starts[:, 1:])
    ids = np.where(index < rng.integers(0, length + 1, (rows, 1)), ids, 0)
    targets = (rng.random((rows, length)) < 0.6) & (ids > 0)
    chosen = np.full((rows, slots), -1)
    for row, hits in enumerate(targets.reshape(rows, blocks, block).any(axis=-1)):
        found = np.flatnonzero(hits)[:slots]
        chosen[row, : len(found)] = found
    batch = {"tokens": rng.integers(4, 50, (rows, length)), "document_ids": ids, "target_blocks": chosen}
    return {name: jnp.asarray(x.astype(np.int32)) for name, x in batch.items()} | {"targets": jnp.asarray(targets)}


@partial(jax.jit, static_argnames="config")
def corrupt_batch(key, batch, config):
    noisy = noisy_targets(batch, config)
    return noisy, corrupt(key, *noisy, batch["target_blocks"].shape[1], MASK, config)


@few_shapes
@given(
    rows=st.integers(1, 4),
    blocks=st.integers(3, 7),
    copies=st.integers(1, 3),
    block=st.sampled_from([1, 4, 5]),
    draw_t=st.sampled_from(["block", "document"]),
    seed=st.integers(0, 2**31),
)
def test_masks_fall_on_targets_only_and_at_rate_one_on_all_of_them(rows, blocks, copies, block, draw_t, seed):
    rng = np.random.default_rng(seed)
    batch = packed(rng, rows, blocks, blocks, block)
    config = DiffusionConfig(block_length=block, draw_t=draw_t, noisy_copies=copies, minimum_mask_rate=1.0)
    noisy, noise = corrupt_batch(jax.random.key(seed), batch, config)
    np.testing.assert_array_equal(noise.masked, noisy.targets)
    np.testing.assert_array_equal(noise.tokens, jnp.where(noisy.targets, MASK, noisy.labels))
    # The blocks of the row, slot by slot: padding and unused slots stay bare.
    unused = np.repeat(np.tile(np.asarray(batch["target_blocks"]) < 0, (1, copies)), block, axis=1)
    assert not np.asarray(noise.masked)[unused | (np.asarray(noisy.document_ids) == 0)].any()
    assert (np.asarray(noise.tokens)[unused] == 0).all()
    assert int(noise.masked.sum()) == copies * int(batch["targets"].sum())


@pytest.mark.parametrize("draw_t", ["block", "document"])
def test_one_and_eight_devices_draw_the_same_noise(draw_t):
    batch = packed(np.random.default_rng(3), 8, 6, 5, 4)
    config = DiffusionConfig(block_length=4, draw_t=draw_t, noisy_copies=2)
    mesh = make_mesh(MeshConfig(data=4, fsdp=2))
    _, alone = corrupt_batch(jax.random.key(9), jax.device_put(batch, jax.devices()[0]), config)
    _, spread = corrupt_batch(jax.random.key(9), jax.device_put(batch, batch_sharding(mesh)), config)
    assert len(spread.masked.sharding.device_set) == 8
    assert alone.masked.any()
    for one, eight in zip(alone, spread, strict=True):
        np.testing.assert_array_equal(one, eight)
