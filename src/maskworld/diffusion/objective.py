"""Weighted cross-entropy of masked tokens, without ever holding the logits of more than a chunk of them."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class MaskedLoss(NamedTuple):
    """Sums over the whole batch; divide by a weight only after all microbatches and hosts are added."""

    weighted: Float[Array, ""]
    """sum of weight * cross-entropy (nats); the only field with a gradient."""
    cross_entropy: Float[Array, ""]
    """sum of unweighted cross-entropy over masked positions (nats)."""
    correct: Float[Array, ""]
    """masked positions whose most likely token is the true one."""
    masked: Float[Array, ""]
    """number of masked positions."""


def masked_cross_entropy(
    hidden: Float[Array, "B N D"],
    kernel: Float[Array, "D V"],
    labels: Int[Array, "B N"],
    weight: Float[Array, "B N"],
    masked: Bool[Array, "B N"],
    chunk: int = 128,
) -> MaskedLoss:
    """Cross-entropy of `hidden @ kernel` against `labels`, summed over masked positions.

    Masked positions are moved to the front of every row and taken `chunk` at a time; a chunk in which no row has a
    masked position is skipped at run time, so the head costs what the mask rate asks for, whatever it is. With all
    positions unmasked the result is zero, not NaN. Logits are float32.
    """
    chunk = min(chunk, hidden.shape[1])
    order = jnp.argsort(~masked, axis=1, stable=True)
    fill = -hidden.shape[1] % chunk

    def front(x, value=0):
        moved = jnp.take_along_axis(x, order.reshape(order.shape + (1,) * (x.ndim - 2)), axis=1)
        return jnp.pad(moved, ((0, 0), (0, fill)) + ((0, 0),) * (x.ndim - 2), constant_values=value)

    masked = front(masked)
    weight = jnp.where(masked, front(weight), 0.0)
    return MaskedLoss(*_chunked(chunk, front(hidden), kernel, front(labels), weight, masked))


def _chunks(x, chunk):
    """[B, N, ...] -> [N / chunk, B, chunk, ...]"""
    return jnp.moveaxis(x.reshape(x.shape[0], -1, chunk, *x.shape[2:]), 1, 0)


def _chunk_sums(hidden, kernel, labels, weight, masked):
    logits = jnp.matmul(hidden, kernel.astype(hidden.dtype), preferred_element_type=jnp.float32)
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    label_logits = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    loss = jnp.where(masked, log_normalizer - label_logits, 0.0)
    correct = masked & (label_logits >= logits.max(axis=-1))
    sums = ((weight * loss).sum(), loss.sum(), correct.sum(dtype=jnp.float32), masked.sum(dtype=jnp.float32))
    return sums, (logits, log_normalizer)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunked(chunk, hidden, kernel, labels, weight, masked):
    def add(total, inputs):
        some = inputs[-1].any()
        sums = jax.lax.cond(some, lambda: _chunk_sums(inputs[0], kernel, *inputs[1:])[0], lambda: (jnp.zeros(()),) * 4)
        return jax.tree.map(jnp.add, total, sums), None

    pieces = tuple(_chunks(x, chunk) for x in (hidden, labels, weight, masked))
    return jax.lax.scan(add, (jnp.zeros(()),) * 4, pieces)[0]


def _chunked_forward(chunk, hidden, kernel, labels, weight, masked):
    """The loss is a sum, so its gradients are formed in the forward pass while a chunk's logits are at hand."""

    def gradients(inputs):
        h, label, w, mask = inputs
        sums, (logits, log_normalizer) = _chunk_sums(h, kernel, label, w, mask)
        d_logits = jnp.exp(logits - log_normalizer[..., None]) - jax.nn.one_hot(label, logits.shape[-1])
        d_logits = (d_logits * w[..., None]).astype(h.dtype)
        d_hidden = jnp.matmul(d_logits, kernel.T.astype(h.dtype), preferred_element_type=jnp.float32)
        d_kernel = jnp.einsum("bnd,bnv->dv", h, d_logits, preferred_element_type=jnp.float32)
        return sums, d_hidden.astype(h.dtype), d_kernel

    def nothing(inputs):
        return (jnp.zeros(()),) * 4, jnp.zeros_like(inputs[0]), jnp.zeros(kernel.shape, jnp.float32)

    def add(carry, inputs):
        total, d_kernel = carry
        sums, d_hidden, d_part = jax.lax.cond(inputs[-1].any(), gradients, nothing, inputs)
        return (jax.tree.map(jnp.add, total, sums), d_kernel + d_part), d_hidden

    pieces = tuple(_chunks(x, chunk) for x in (hidden, labels, weight, masked))
    start = ((jnp.zeros(()),) * 4, jnp.zeros(kernel.shape, jnp.float32))
    (sums, d_kernel), d_hidden = jax.lax.scan(add, start, pieces)
    d_hidden = jnp.moveaxis(d_hidden, 0, 1).reshape(hidden.shape)
    return sums, (d_hidden, d_kernel.astype(kernel.dtype))


def _chunked_backward(chunk, residuals, cotangents):
    d_hidden, d_kernel = residuals
    scale = cotangents[0]
    return d_hidden * scale.astype(d_hidden.dtype), d_kernel * scale.astype(d_kernel.dtype), None, None, None


_chunked.defvjp(_chunked_forward, _chunked_backward)
