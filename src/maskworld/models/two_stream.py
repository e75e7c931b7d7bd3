"""The training forward: one clean pass over the row, noisy copies of its target blocks beside it.

Equal to block diffusion's [noisy; clean] sequence of 2L positions under the mask of BD3-LM (arXiv 2503.09573), for
the blocks that hold targets; blocks without targets have no noisy copy, and k copies share one clean pass.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from maskworld.models.attention import block_attention, merge, range_attention
from maskworld.models.transformer import KeyValue, Layer, Rotation, Transformer, rematerialized


class Layout(NamedTuple):
    """Who sees which clean keys. N = 0 describes a clean pass alone."""

    positions: Int[Array, "B L+N"]
    key_start: Int[Array, "B L+N"]
    key_end: Int[Array, "B L+N"]
    noisy_document_ids: Int[Array, "B N"]
    """0 where a copy's slot is unused or the position is padding."""


def gather_blocks(x: Int[Array, "B L"], blocks: Int[Array, "B K"], block_length: int, fill: int) -> Int[Array, "B K*S"]:
    """The tokens of the named blocks side by side; a block index of -1 gives `fill`."""
    split = x.reshape(x.shape[0], -1, block_length)
    taken = jnp.take_along_axis(split, jnp.maximum(blocks, 0)[..., None], axis=1)
    return jnp.where((blocks >= 0)[..., None], taken, fill).reshape(x.shape[0], -1)


def clean_layout(document_ids: Int[Array, "B L"], positions: Int[Array, "B L"], block_length: int) -> Layout:
    """Block-causal attention inside each document; documents start on the block grid."""
    rows, length = document_ids.shape
    index = jnp.arange(length)
    block_start = index // block_length * block_length
    real = document_ids > 0
    # A document may end inside its last block: the block's end is where the document ends.
    same = real & (document_ids == document_ids[:, block_start])
    filled = same.reshape(rows, -1, block_length).sum(axis=-1)
    key_start = jnp.where(real, index - positions, 0)
    key_end = jnp.where(real, block_start + filled[:, index // block_length], 0)
    return Layout(positions, key_start, key_end, jnp.zeros((rows, 0), jnp.int32))


def two_stream_layout(
    document_ids: Int[Array, "B L"],
    positions: Int[Array, "B L"],
    target_blocks: Int[Array, "B K"],
    block_length: int,
    copies: int,
) -> Layout:
    """Layout of L clean tokens followed by `copies` noisy copies of the target blocks (N = copies * K * S)."""
    clean = clean_layout(document_ids, positions, block_length)

    def noisy(x, fill=0):
        return jnp.tile(gather_blocks(x, target_blocks, block_length, fill), (1, copies))

    index = jnp.broadcast_to(jnp.arange(document_ids.shape[1]), document_ids.shape)
    documents = noisy(document_ids)
    seen_to = jnp.where(documents > 0, noisy(index // block_length * block_length), 0)
    return Layout(
        jnp.concatenate([positions, noisy(positions)], axis=1),
        jnp.concatenate([clean.key_start, noisy(clean.key_start)], axis=1),
        jnp.concatenate([clean.key_end, seen_to], axis=1),
        documents,
    )


def two_stream_hidden(
    model: Transformer,
    clean_tokens: Int[Array, "B L"],
    noisy_tokens: Int[Array, "B N"],
    layout: Layout,
    block_length: int,
) -> Float[Array, "B N D"]:
    """Hidden states of the noisy tokens after the last layer, before the final norm.

    The last layer's clean stream is needed for its keys and values only, so its queries, its output projection and
    its feed-forward network run on the noisy stream alone.
    """
    length = clean_tokens.shape[1]
    x = model.embed(jnp.concatenate([clean_tokens, noisy_tokens], axis=1))
    turn = model.rotation(layout.positions)
    attend = partial(_attend, layout=layout, turn=turn, length=length, block_length=block_length)
    attend = partial(attend, kernel=model.config.attention)

    def step(layer, x, _):
        return attend(layer, x), None

    x, _ = model.run_layers(step, x, layers=slice(0, -1))

    def last(layer, x):
        return attend(layer, x, queries=slice(length, None))

    return rematerialized(last, model.config, scanned=False)(model.layer(-1), x)


def _attend(
    layer: Layer, x, layout: Layout, turn: Rotation, length: int, block_length: int, kernel, queries=slice(0, None)
):
    """One layer of both streams; `queries` chooses whose outputs are computed (everyone's, or the noisy stream's)."""
    normal = layer.normalize(x)
    key_value = layer.attention.project_key_value(normal, turn)
    clean = KeyValue(*(part[:, :length] for part in key_value))
    noisy = KeyValue(*(part[:, length:] for part in key_value))
    query = layer.attention.project_query(normal[:, queries], Rotation(turn.cos[:, queries], turn.sin[:, queries]))
    start, end = layout.key_start[:, queries], layout.key_end[:, queries]
    out, log_sum = range_attention(query, clean.key, clean.value, start, end, kernel)
    first_noisy = out.shape[1] - noisy.key.shape[1]
    own = block_attention(query[:, first_noisy:], noisy.key, noisy.value, layout.noisy_document_ids, block_length)
    merged = merge(out[:, first_noisy:], log_sum[:, first_noisy:], *own)
    return layer.finish(x[:, queries], jnp.concatenate([out[:, :first_noisy], merged], axis=1))


def clean_hidden(
    model: Transformer, tokens: Int[Array, "B L"], layout: Layout
) -> tuple[Float[Array, "B L D"], KeyValue]:
    """A plain pass over clean tokens: hidden states before the final norm, and every layer's keys and values.

    The stacked keys and values, [layers, B, L, G, E], are what a decoder's cache holds after a prompt.
    """

    turn = model.rotation(layout.positions)

    def step(layer, x, _):
        normal = layer.normalize(x)
        key_value = layer.attention.project_key_value(normal, turn)
        query = layer.attention.project_query(normal, turn)
        out, _ = range_attention(query, *key_value, layout.key_start, layout.key_end, model.config.attention)
        return layer.finish(x, out), key_value

    return model.run_layers(step, model.embed(tokens))
