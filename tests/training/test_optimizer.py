"""Which parameters an optimizer moves, and how."""

import jax
import jax.numpy as jnp
import pytest

from maskworld.config import ExpertsConfig, ModelConfig, OptimizerConfig
from maskworld.models.transformer import Network
from maskworld.training.step import LAYER_MATRICES, make_optimizer

TINY = ModelConfig(
    width=8,
    layers=4,
    heads=2,
    kv_heads=1,
    head_size=4,
    feed_forward=12,
    tie_embeddings=False,
    experts=ExpertsConfig(count=3, per_token=2, feed_forward=10, every=2),
)


@pytest.fixture(scope="module")
def params():
    return Network(TINY, 16).init(jax.random.key(0))


def updates(params, gradients, **changes):
    """Those of the second step: the first has a learning rate of zero."""
    optimizer, _ = make_optimizer(OptimizerConfig(warmup_steps=1, **changes), steps=100)
    state = optimizer.init(params)
    _, state = optimizer.update(gradients, state, params)
    moved, _ = jax.jit(optimizer.update)(gradients, state, params)
    return {tuple(part.key for part in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(moved)}


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_weight_decay_moves_matrices_only(params, name):
    moved = updates(params, jax.tree.map(jnp.zeros_like, params), name=name, weight_decay=0.5)
    assert {path for path, update in moved.items() if jnp.any(update != 0)} == {
        path for path in moved if path[-1] in ("kernel", "router", "head")
    }


def test_muon_leaves_all_but_the_layers_matrices_to_the_same_adamw(params):
    gradients = jax.tree.map(lambda x: jax.random.normal(jax.random.key(1), x.shape), params)
    muon, adamw = (updates(params, gradients, name=name, epsilon=1e-3) for name in ("muon", "adamw"))
    for path, update in muon.items():
        assert bool(jnp.array_equal(update, adamw[path])) == (path[-1] not in LAYER_MATRICES), path


def test_muon_makes_every_layers_update_nearly_orthogonal(params):
    gradients = jax.tree.map(lambda x: jax.random.normal(jax.random.key(2), x.shape), params)
    config = {"name": "muon", "weight_decay": 0.0, "muon_learning_rate": 1.0}
    moved = updates(params, gradients, **config)
    dense = moved["layers", "attention", "mixer", "query", "kernel"]
    experts = moved["layers", "attention_experts", "feed_forward", "up", "kernel"]
    for matrix in (*dense, *experts[0]):
        singular = jnp.linalg.svd(matrix, compute_uv=False)
        assert 0.5 < float(singular.min()) and float(singular.max()) < 1.5
