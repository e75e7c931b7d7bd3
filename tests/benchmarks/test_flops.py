"""The counted FLOPs against the products that the traced train step really holds."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maskworld.benchmarks import flops
from maskworld.config import DiffusionConfig, ExpertsConfig, LoraConfig, ModelConfig
from maskworld.errors import ConfigError
from maskworld.models.kinds import layer_kinds
from maskworld.models.transformer import Network
from maskworld.models.two_stream import clean_hidden, clean_layout
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
            left, right = (variable.aval.shape for variable in equation.invars)
            if 1 in (len(left), len(right)):
                continue  # a weighted sum, as of the router's statistics
            total += 2 * equation.outvars[0].aval.size * math.prod(left[axis] for axis in contracted)
            continue
        if equation.primitive.name.startswith("ragged_dot"):
            # Each row meets one group's matrix: rows times both other sizes, whichever of the three is the result.
            left, right, out = (v.aval.shape for v in (*equation.invars[:2], equation.outvars[0]))
            grouped = next(shape for shape in (right, out) if len(shape) == 3)
            total += 2 * left[0] * grouped[1] * grouped[2]
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


KINDS = {
    "experts": dict(experts=ExpertsConfig(count=5, per_token=2, feed_forward=16)),
    "some experts": dict(experts=ExpertsConfig(count=4, per_token=3, feed_forward=16, every=2)),
    "convolutions": dict(mixers=("convolution", "attention", "convolution")),
    "a convolution, attention last": dict(mixers=("attention", "convolution", "attention")),
    "windows": dict(mixers=("sliding", "attention", "sliding"), sliding_window=6),
    "all of them": dict(
        mixers=("convolution", "sliding", "attention"),
        sliding_window=6,
        experts=ExpertsConfig(count=4, per_token=2, feed_forward=16, dense_layers=(1,)),
    ),
}


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_executed_flops_of_other_kinds_of_layers_are_the_products_of_the_traced_step(kind, remat):
    config = ModelConfig(**MODEL | KINDS[kind], attention="reference", remat=remat)
    diffusion = DiffusionConfig(block_length=4, logits_chunk=64)
    batch = batch_of(64, 4)
    counted = flops.executed_flops(config, VOCABULARY, diffusion, batch, np.ones((2, 64), bool))
    assert counted.total == traced_step(config, diffusion, batch)


@pytest.mark.parametrize("kind", ["convolutions", "windows"])
def test_the_count_of_a_forward_pass_is_within_a_few_percent_of_what_the_compiler_finds(kind):
    """XLA counts elementwise work too; the layers are wide enough to make that little."""
    wide = MODEL | dict(width=192, head_size=48, feed_forward=384, layers=3)
    config = ModelConfig(**wide | KINDS[kind], attention="reference", remat="none", scan_layers=False)
    network, length = Network(config, VOCABULARY), 64

    def forward(params, tokens):
        model = network.bind(params)
        layout = clean_layout(jnp.ones_like(tokens), jnp.arange(length)[None].repeat(2, 0), 4)
        return clean_hidden(model, tokens, layout).hidden

    tokens = jnp.zeros((2, length), jnp.int32)
    cost = jax.jit(forward).lower(network.abstract_params(), tokens).compile().cost_analysis()["flops"]
    products = [flops.layer_products(config, one) for one in layer_kinds(config)]
    linear = 2 * 2 * length * sum(one.memory + one.rest for one in products)
    attending = sum(one.mixer != "convolution" for one in layer_kinds(config))
    attention = attending * 2 * 2 * 2 * length * length * config.heads * config.head_size
    assert cost == pytest.approx(linear + attention, rel=0.05)


def test_useful_attention_counts_what_a_window_lets_through():
    config = ModelConfig(**MODEL | dict(layers=1, mixers=("sliding",), sliding_window=3))
    counted = flops.useful_flops(
        config, VOCABULARY, DiffusionConfig(block_length=4), batch_of(8, 4, 1), np.zeros((1, 8))
    )
    # Inside a block 4 + 4 + 4 + 3 pairs, twice; the first two queries of the second block see 2 and 1 clean keys.
    assert counted.attention == 12 * 4 * 8 * (15 + 15 + 2 + 1)


def test_useful_work_of_experts_is_that_of_those_a_token_goes_to():
    config = ModelConfig(**MODEL | KINDS["experts"])
    dense = ModelConfig(**MODEL | dict(feed_forward=2 * 16))
    both = [flops.linear_flops(one, rows=2, clean=64, noisy=64) for one in (config, dense)]
    tokens = 2 * (2 * 128 + 64)
    assert both[0] - both[1] == 3 * 2 * tokens * MODEL["width"] * 5  # the router


@pytest.mark.parametrize(
    ("field", "model", "diffusion"),
    [
        ("model.lora.rank", dict(lora=LoraConfig(rank=2)), {}),
        ("diffusion.objective", {}, dict(objective="autoregressive")),
    ],
)
def test_what_is_not_counted_is_refused_by_name(field, model, diffusion):
    for count in (flops.executed_flops, flops.useful_flops):
        with pytest.raises(ConfigError, match=field):
            count(
                ModelConfig(**MODEL | model),
                VOCABULARY,
                DiffusionConfig(block_length=4, **diffusion),
                batch_of(8, 4),
                np.ones((2, 8), bool),
            )


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
