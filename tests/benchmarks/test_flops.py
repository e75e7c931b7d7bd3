"""The counted FLOPs against the products that the traced train step really holds."""

import math

import jax
import numpy as np
import pytest

from maskworld.benchmarks import flops
from maskworld.config import DiffusionConfig, ModelConfig
from maskworld.models.transformer import Network
from maskworld.training.loss import diffusion_loss

MASK = 1
VOCABULARY = 40
MODEL = dict(width=24, layers=3, heads=4, kv_heads=2, head_size=8, feed_forward=40, tie_embeddings=False)


def batch_of(length, block, rows=2):
    blocks = np.arange(length // block, dtype=np.int32)
    return {
        "tokens": np.full((rows, length), 7, np.int32),
        "document_ids": np.ones((rows, length), np.int32),
        "positions": np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        "targets": np.ones((rows, length), bool),
        "target_blocks": np.tile(blocks, (rows, 1)),
    }


def traced_products(jaxpr):
    """FLOPs of all dot_generals; a scan's body counts its length, a while loop's once, a branch as the dearest."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * math.prod(left[axis] for axis in contracted)
            continue
        inner = [
            traced_products(getattr(value, "jaxpr", value))
            for parameter in equation.params.values()
            for value in (parameter if isinstance(parameter, tuple | list) else [parameter])
            if hasattr(getattr(value, "jaxpr", value), "eqns")
        ]
        total += equation.params.get("length", 1) * (max(inner) if equation.primitive.name == "cond" else sum(inner))
    return total


def traced_step(config, diffusion, batch):
    network = Network(config, VOCABULARY)

    def loss(params, batch, key):
        return diffusion_loss(network, params, batch, key, MASK, diffusion).loss.weighted

    traced = jax.make_jaxpr(jax.grad(loss))(network.abstract_params(), batch, jax.random.key(0))
    return traced_products(traced.jaxpr)


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
@pytest.mark.parametrize("scan_layers", [True, False])
@pytest.mark.parametrize("attention", ["reference", "chunked"])
def test_executed_flops_are_the_products_of_the_traced_step(attention, scan_layers, remat):
    # With 64 tokens every query tile visits exactly one key tile, so a while loop's body runs once.
    config = ModelConfig(**MODEL, attention=attention, scan_layers=scan_layers, remat=remat)
    diffusion = DiffusionConfig(block_length=4, logits_chunk=64)
    batch = batch_of(64, 4)
    masked = np.ones((2, 64), bool)  # the dearest branch: nothing skipped
    counted = flops.executed_flops(config, VOCABULARY, diffusion, batch, masked)
    assert counted.total == traced_step(config, diffusion, batch)


def test_tiles_are_visited_from_the_first_to_the_last_seen_key():
    start = np.zeros((1, 256), int)
    causal = np.arange(256)[None] // 4 * 4 + 4
    assert flops.visited_tiles(start, causal) == 1 + 2 + 3 + 4
    # Two documents of 128 tokens: the second never looks at the first one's tiles.
    start[:, 128:] = 128
    assert flops.visited_tiles(start, causal) == 2 * (1 + 2)
    assert flops.visited_tiles(start, np.zeros((1, 256), int)) == 0


def test_the_head_is_charged_by_chunks_of_masked_positions():
    config, diffusion = ModelConfig(**MODEL), DiffusionConfig(block_length=4, logits_chunk=16)
    masked = np.zeros((2, 64), bool)
    masked[0, :17] = True
    heads = flops.executed_flops(config, VOCABULARY, diffusion, batch_of(64, 4), masked).head
    assert heads == 3 * 2 * (2 * 32) * 24 * VOCABULARY
    assert flops.useful_flops(config, VOCABULARY, diffusion, batch_of(64, 4), masked).head == 6 * 17 * 24 * VOCABULARY


def test_useful_attention_counts_allowed_pairs_only():
    config, diffusion = ModelConfig(**MODEL | {"layers": 1}), DiffusionConfig(block_length=4)
    masked = np.zeros((1, 8), bool)
    counted = flops.useful_flops(config, VOCABULARY, diffusion, batch_of(8, 4, rows=1), masked)
    # One layer: only noisy queries. Block 0 sees itself, block 1 itself and the clean block 0: 16 + 16 + 16 pairs.
    assert counted.attention == 12 * 4 * 8 * 48
