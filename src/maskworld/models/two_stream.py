"""The training forward: one clean pass over the row, noisy copies of its target blocks beside it.

Equal to block diffusion's [noisy; clean] sequence of 2L positions under the mask of BD3-LM (arXiv 2503.09573), for
the blocks that hold targets; blocks without targets have no noisy copy, and k copies share one clean pass.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from maskworld.models.attention import block_attention, merge, range_attention
from maskworld.models.experts import RouterSums
from maskworld.models.layers import KeyValue, Layer, Rotation, ShortConvolution
from maskworld.models.transformer import Transformer, rematerialized


class Layout(NamedTuple):
    """Who sees which clean tokens. N = 0 describes a clean pass alone."""

    positions: Int[Array, "B L+N"]
    index: Int[Array, "B L+N"]
    """The place in the row; a noisy copy has that of its block, whatever the order of its tokens."""
    key_start: Int[Array, "B L+N"]
    key_end: Int[Array, "B L+N"]
    real: Bool[Array, "B L+N"]
    """Neither padding nor an unused slot."""
    noisy_document_ids: Int[Array, "B N"]
    """0 where a copy's slot is unused or the position is padding."""


class TwoStreams(NamedTuple):
    """Hidden states after the last layer, before the final norm."""

    noisy: Float[Array, "B N D"]
    clean: Float[Array, "B L D"] | None
    """Only where asked for."""
    router: RouterSums | None
    """One entry for each layer with experts."""


class CleanPass(NamedTuple):
    """Of a pass over clean tokens alone."""

    hidden: Float[Array, "B L D"]
    """After the last layer, before the final norm."""
    memory: dict[str, Any]
    """By kind of layer, stacked: `KeyValue`, or what a convolution projects [layers, B, L, D]."""
    router: RouterSums | None


def gather_blocks(x: Int[Array, "B L"], blocks: Int[Array, "B K"], block_length: int, fill: int) -> Int[Array, "B K*S"]:
    """The tokens of the named blocks side by side; a block index of -1 gives `fill`."""
    split = x.reshape(x.shape[0], -1, block_length)
    taken = jnp.take_along_axis(split, jnp.maximum(blocks, 0)[..., None], axis=1)
    return jnp.where((blocks >= 0)[..., None], taken, fill).reshape(x.shape[0], -1)


def scatter_blocks(
    x: Int[Array, "B L"], values: Int[Array, "B K*S"], blocks: Int[Array, "B K"], block_length: int
) -> Int[Array, "B L"]:
    """`x` with `values` in place of the named blocks, the way back of `gather_blocks`; -1 names none."""
    split = x.reshape(x.shape[0], -1, block_length)
    at = jnp.where(blocks >= 0, blocks, split.shape[1])  # behind the row, where nothing is written
    values = values.reshape(x.shape[0], -1, block_length)
    return split.at[jnp.arange(x.shape[0])[:, None], at].set(values, mode="drop").reshape(x.shape)


def clean_layout(document_ids: Int[Array, "B L"], positions: Int[Array, "B L"], block_length: int) -> Layout:
    """Block-causal attention inside each document; blocks count from its start.

    A block length of 1 is causal attention, one of L or more is attention both ways. A document is a stretch of equal
    ids above 0 with positions 0, 1, ...; it may end inside its last block, and 0 is padding on any side.
    """
    rows, length = document_ids.shape
    index = jnp.broadcast_to(jnp.arange(length), document_ids.shape)
    real = document_ids > 0
    ends = jnp.pad(document_ids[:, 1:] != document_ids[:, :-1], ((0, 0), (0, 1)), constant_values=True)
    document_end = jax.lax.cummin(jnp.where(ends, index + 1, length), axis=1, reverse=True)
    block_end = index - positions % block_length + block_length
    key_start = jnp.where(real, index - positions, 0)
    key_end = jnp.where(real, jnp.minimum(block_end, document_end), 0)
    return Layout(positions, index, key_start, key_end, real, jnp.zeros((rows, 0), jnp.int32))


def two_stream_layout(
    document_ids: Int[Array, "B L"],
    positions: Int[Array, "B L"],
    target_blocks: Int[Array, "B K"],
    block_length: int,
    copies: int,
    clean_block_length: int | None = None,
    order: Int[Array, "B N"] | None = None,
) -> Layout:
    """Layout of L clean tokens followed by `copies` noisy copies of the target blocks (N = copies * K * S).

    Documents start on the block grid. `clean_block_length` is that of the clean stream's attention, 1 for WeDLM.
    `order` says which of the noisy tokens stands at each place of its block; positions go with their tokens.
    """
    clean = clean_layout(document_ids, positions, clean_block_length or block_length)

    def noisy(x, fill=0):
        return jnp.tile(gather_blocks(x, target_blocks, block_length, fill), (1, copies))

    def ordered(x):
        return noisy(x) if order is None else jnp.take_along_axis(noisy(x), order, axis=1)

    index, documents = noisy(clean.index), ordered(document_ids)
    real = documents > 0
    return Layout(
        jnp.concatenate([positions, ordered(positions)], axis=1),
        jnp.concatenate([clean.index, index], axis=1),
        jnp.concatenate([clean.key_start, ordered(clean.key_start)], axis=1),
        jnp.concatenate([clean.key_end, jnp.where(real, index // block_length * block_length, 0)], axis=1),
        jnp.concatenate([clean.real, real], axis=1),
        documents,
    )


def two_stream_hidden(
    model: Transformer,
    clean_tokens: Int[Array, "B L"],
    noisy_tokens: Int[Array, "B N"],
    layout: Layout,
    block_length: int,
    *,
    causal_blocks: bool = False,
    with_clean: bool = False,
) -> TwoStreams:
    """Both streams through all layers.

    The last layer's clean stream is needed for its keys and values only, so its queries, its output projection and
    its feed-forward network run on the noisy stream alone, unless the clean states are asked for (`with_clean`).
    `causal_blocks` lets a noisy position see only those before it in its block, as they stand (WeDLM).
    """
    length = clean_tokens.shape[1]
    x = model.embed(jnp.concatenate([clean_tokens, noisy_tokens], axis=1))
    turn = model.rotation(layout.positions)
    mix = partial(_mix, layout=layout, turn=turn, length=length, block_length=block_length)
    mix = partial(mix, causal_blocks=causal_blocks, kernel=model.config.attention)

    def step(layer, x, queries=slice(None)):
        return layer.finish(x[:, queries], mix(layer, layer.normalize(x), queries), layout.real[:, queries])

    if with_clean:
        x, router = model.run_layers(lambda layer, x, _: step(layer, x), x)
        return TwoStreams(x[:, length:], x[:, :length], _all_layers(router))

    x, router = model.run_layers(lambda layer, x, _: step(layer, x), x, stop=-1)
    last = rematerialized(lambda layer, x: step(layer, x, slice(length, None)), model.config, scanned=False)
    hidden, sums = last(model.layer(-1), x)
    last_router = None if sums is None else jax.tree.map(lambda leaf: leaf[None], sums)
    return TwoStreams(hidden, None, _all_layers(router | {"the last layer": last_router}))


def _all_layers(router: dict[str, RouterSums | None]) -> RouterSums | None:
    found = [sums for sums in router.values() if sums is not None]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *found) if found else None


def _mix(layer: Layer, normal, queries: slice, *, layout, turn, length, block_length, causal_blocks, kernel):
    """What the layer's mixer finds for the chosen queries (everyone's, or the noisy stream's)."""
    if layer.convolves:
        back = _back(layer.mixer.project_in(normal), layer.mixer, layout, length, block_length)
        return layer.mixer.gate(normal[:, queries], layer.mixer.convolve([x[:, queries] for x in back]))
    key_value = layer.mixer.project_key_value(normal, turn)
    clean = KeyValue(*(part[:, :length] for part in key_value))
    noisy = KeyValue(*(part[:, length:] for part in key_value))
    query = layer.mixer.project_query(normal[:, queries], Rotation(turn.cos[:, queries], turn.sin[:, queries]))
    start, end = _windowed(layout, layer.mixer.window)[:, queries], layout.key_end[:, queries]
    out, log_sum = range_attention(query, clean.key, clean.value, start, end, kernel)
    first_noisy = out.shape[1] - noisy.key.shape[1]
    if first_noisy == out.shape[1]:
        return out
    noisy_query, documents = query[:, first_noisy:], layout.noisy_document_ids
    own = block_attention(noisy_query, *noisy, documents, block_length, causal_blocks, layer.mixer.window)
    merged = merge(out[:, first_noisy:], log_sum[:, first_noisy:], *own)
    return jnp.concatenate([out[:, :first_noisy], merged], axis=1)


def _windowed(layout: Layout, window: int) -> Int[Array, "B L+N"]:
    """The first clean key of every query, `window` positions back with its own (0: no window)."""
    return jnp.maximum(layout.key_start, layout.index - window + 1) if window else layout.key_start


def _back(x, convolution: ShortConvolution, layout: Layout, length: int, block_length: int) -> list[Array]:
    """For i = 0, 1, ...: x as it is i positions before each position of its document, zero where there is none.

    Before the first position of a noisy block stand the clean tokens.
    """
    rows, total, width = x.shape
    clean, noisy = x[:, :length], x[:, length:]
    reach = convolution.length - 1
    if noisy.shape[1]:
        noisy = noisy.reshape(rows, -1, block_length, width)
        first = layout.index[:, length:].reshape(rows, -1, block_length)[:, :, :1]
        before = jnp.maximum(first + jnp.arange(-reach, 0), 0).reshape(rows, -1, 1)
        before = jnp.take_along_axis(clean, before, axis=1).reshape(rows, -1, reach, width)
        noisy = jnp.concatenate([before, noisy], axis=2)
    found = []
    for i in range(reach + 1):
        shifted = jnp.pad(clean, ((0, 0), (i, 0), (0, 0)))[:, :length]
        own = noisy[:, :, reach - i : reach - i + block_length] if total > length else noisy
        shifted = jnp.concatenate([shifted, own.reshape(rows, total - length, width)], axis=1)
        found.append(jnp.where((layout.positions >= i)[..., None], shifted, 0))
    return found


def clean_hidden(model: Transformer, tokens: Int[Array, "B L"], layout: Layout) -> CleanPass:
    """A plain pass over clean tokens; the memory is what a decoder's cache holds after a prompt."""
    turn = model.rotation(layout.positions)

    def step(layer, x, _):
        normal = layer.normalize(x)
        if layer.convolves:
            memory = layer.mixer.project_in(normal)
            mixed = layer.mixer.convolve(_back(memory, layer.mixer, layout, tokens.shape[1], 1))
            mixed = layer.mixer.gate(normal, mixed)
        else:
            memory = layer.mixer.project_key_value(normal, turn)
            query, start = layer.mixer.project_query(normal, turn), _windowed(layout, layer.mixer.window)
            mixed, _ = range_attention(query, *memory, start, layout.key_end, model.config.attention)
        x, router = layer.finish(x, mixed, layout.real)
        return x, (memory, router)

    hidden, results = model.run_layers(step, model.embed(tokens))
    memory = {name: found for name, (found, _) in results.items()}
    return CleanPass(hidden, memory, _all_layers({name: router for name, (_, router) in results.items()}))
