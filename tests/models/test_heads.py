"""Value and reward heads: what they read, what they learn, and the returns they learn from."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.config import ModelConfig
from maskworld.models.heads import RegressionHeads, regression_loss, returns, states_at
from maskworld.models.transformer import Network
from maskworld.models.two_stream import clean_hidden, clean_layout
from maskworld.parallel.mesh import LOGICAL_RULES

TINY = ModelConfig(width=32, layers=2, heads=4, kv_heads=2, head_size=8, feed_forward=48, initializer_std=0.2)


def test_heads_say_zero_at_the_start_and_have_axes_for_every_parameter():
    heads = RegressionHeads(16, hidden=8)
    params = heads.init(jax.random.key(0))
    found = heads(params, jax.random.normal(jax.random.key(1), (3, 5, 16)))
    assert {name: value.shape for name, value in found.items()} == {"value": (3, 5), "reward": (3, 5)}
    assert not any(value.any() for value in found.values())
    axes = jax.tree.structure(params).flatten_up_to(heads.logical_axes())
    for leaf, names in zip(jax.tree.leaves(params), axes, strict=True):
        assert len(names) == leaf.ndim and set(names) <= set(LOGICAL_RULES)


def test_a_head_learns_what_the_network_has_read():
    """The value of a row is how often a token occurs in it: the frozen encoder's last state must tell."""
    network = Network(TINY, 8)
    params = network.init(jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (256, 12), 0, 8)
    positions = jnp.broadcast_to(jnp.arange(12), tokens.shape)
    layout = clean_layout(jnp.ones_like(tokens), positions, 1)
    hidden = jax.jit(lambda t: clean_hidden(network.bind(params), t, layout).hidden)(tokens)
    states = states_at(hidden, jnp.full((256, 1), 11))[:, 0]
    target = (tokens == 3).sum(axis=1).astype(jnp.float32)
    heads = RegressionHeads(32, heads=("value",))
    optimizer = optax.adam(1e-2)

    def loss(weights):
        sums = regression_loss(heads(weights, states)["value"], target, jnp.ones(256, bool))
        return sums.squared_error / sums.count

    @jax.jit
    def step(weights, state):
        value, gradient = jax.value_and_grad(loss)(weights)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(weights, updates), state, value

    weights = heads.init(jax.random.key(2))
    state, first = optimizer.init(weights), float(loss(weights))
    for _ in range(200):
        weights, state, last = step(weights, state)
    assert float(last) < 0.2 * first


def test_entries_that_are_not_real_count_for_nothing():
    predicted, target = jnp.array([[1.0, 5.0]]), jnp.array([[3.0, jnp.nan]])
    sums, gradient = jax.value_and_grad(
        lambda p: regression_loss(p, jnp.nan_to_num(target), jnp.array([[True, False]])).squared_error
    )(predicted)
    assert float(sums) == 4.0
    np.testing.assert_array_equal(gradient, [[-4.0, 0.0]])


@settings(max_examples=30)
@given(
    rewards=st.lists(st.floats(-5, 5, width=32), min_size=6, max_size=6),
    length=st.integers(1, 6),
    discount=st.floats(0, 1),
)
def test_returns_are_discounted_sums_of_what_follows(rewards, length, discount):
    real = np.arange(6) < length
    found = np.asarray(returns(jnp.array([rewards]), jnp.array([real]), discount))[0, :length]
    want = [sum(discount ** (j - i) * rewards[j] for j in range(i, length)) for i in range(length)]
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)
