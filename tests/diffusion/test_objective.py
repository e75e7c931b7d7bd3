"""The chunked cross-entropy against the plain formula."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maskworld.diffusion.objective import masked_cross_entropy

ROWS, LENGTH, WIDTH, VOCABULARY = 3, 22, 8, 17


def plain(hidden, kernel, labels, weight, masked):
    log_probs = jax.nn.log_softmax(hidden.astype(jnp.float32) @ kernel, axis=-1)
    loss = -jnp.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
    loss = jnp.where(masked, loss, 0.0)
    correct = masked & (log_probs.argmax(axis=-1) == labels)
    return (jnp.where(masked, weight, 0.0) * loss).sum(), (loss.sum(), correct.sum(), masked.sum())


def chunked(hidden, kernel, labels, weight, masked, chunk):
    sums = masked_cross_entropy(hidden, kernel, labels, weight, masked, chunk)
    return sums.weighted, sums[1:]


@partial(jax.jit, static_argnames="chunk")
def results(scale, hidden, kernel, labels, weight, masked, chunk=None):
    """Value, other sums and both gradients of scale * loss."""

    def loss(hidden, kernel):
        inputs = hidden, kernel, labels, weight, masked
        value, rest = plain(*inputs) if chunk is None else chunked(*inputs, chunk)
        return scale * value, rest

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(hidden, kernel)


def inputs(share, seed=0):
    """`share`: probability of a mask, one for each row."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32)
    kernel = rng.normal(size=(WIDTH, VOCABULARY)).astype(np.float32)
    labels = rng.integers(0, VOCABULARY, (ROWS, LENGTH))
    # Half of the labels are the likeliest token, so that some are correct.
    labels = np.where(rng.random(labels.shape) < 0.5, (hidden @ kernel).argmax(-1), labels).astype(np.int32)
    weight = rng.uniform(0.5, 20, (ROWS, LENGTH)).astype(np.float32)
    masked = rng.random((ROWS, LENGTH)) < np.asarray(share)[:, None]
    return hidden, kernel, labels, weight, masked


SHARES = {"some": (0.5, 0.3, 0.7), "all": (1, 1, 1), "unequal": (1, 0, 0.1), "one row": (0, 0, 0.9), "none": (0, 0, 0)}


@pytest.mark.parametrize("chunk", [1, 5, 11, 128])
@pytest.mark.parametrize("share", SHARES.values(), ids=SHARES)
def test_loss_and_gradients_equal_the_plain_formula(share, chunk):
    values = inputs(share)
    (loss, (entropy, correct, masked)), gradients = results(3.0, *values, chunk=chunk)
    (want, (want_entropy, want_correct, want_masked)), want_gradients = results(3.0, *values)
    np.testing.assert_allclose(loss, want, rtol=1e-5)
    np.testing.assert_allclose(entropy, want_entropy, rtol=1e-5)
    assert (correct, masked) == (want_correct, want_masked)
    for got, expected in zip(gradients, want_gradients, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_what_is_not_masked_has_no_say_whatever_it_holds():
    hidden, kernel, labels, weight, masked = inputs((0.5, 0.3, 0.7))
    clean = results(1.0, hidden, kernel, labels, weight, masked, chunk=5)
    weight = np.where(masked, weight, np.nan)
    labels = np.where(masked, labels, 0)
    hidden = np.where(masked[..., None], hidden, 7.0).astype(np.float32)
    dirty = results(1.0, hidden, kernel, labels, weight, masked, chunk=5)
    for got, want in zip(jax.tree.leaves(dirty), jax.tree.leaves(clean), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_the_sums_are_those_of_a_loop_over_positions():
    hidden, kernel, labels, weight, masked = inputs((0.5, 0.3, 0.7), seed=1)
    entropy = weighted = correct = 0.0
    for place in zip(*np.nonzero(masked), strict=True):
        logits = hidden[place].astype(np.float64) @ kernel
        loss = np.log(np.exp(logits).sum()) - logits[labels[place]]
        entropy, weighted = entropy + loss, weighted + weight[place] * loss
        correct += logits.argmax() == labels[place]
    (loss, sums), _ = results(1.0, hidden, kernel, labels, weight, masked, chunk=11)
    np.testing.assert_allclose([loss, *sums], [weighted, entropy, correct, masked.sum()], rtol=1e-5)
    assert 0 < correct < masked.sum()


def test_bfloat16_hidden_states_stay_within_one_percent():
    hidden, kernel, *rest = inputs((0.5, 0.3, 0.7))
    narrow = jnp.asarray(hidden, jnp.bfloat16)
    (loss, _), (d_hidden, d_kernel) = results(1.0, narrow, kernel, *rest, chunk=11)
    (want, _), (want_hidden, want_kernel) = results(1.0, hidden, kernel, *rest)
    assert (d_hidden.dtype, d_kernel.dtype, loss.dtype) == (jnp.bfloat16, jnp.float32, jnp.float32)
    np.testing.assert_allclose(loss, want, rtol=1e-2)
    for got, expected in ((d_hidden, want_hidden), (d_kernel, want_kernel)):
        error = np.linalg.norm(np.asarray(got, np.float32) - expected) / np.linalg.norm(expected)
        assert error < 1e-2
