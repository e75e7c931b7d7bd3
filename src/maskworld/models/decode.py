"""Decoding with an exact cache: what whole blocks left behind, each row at its own position.

A block length of 1 is ordinary autoregressive decoding. Where attention goes both ways over a whole sequence there is
nothing to keep (`canvas_logits`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from maskworld.models.attention import masked_attention, merge, range_attention
from maskworld.models.kinds import layer_kinds
from maskworld.models.layers import KeyValue
from maskworld.models.transformer import Transformer
from maskworld.models.two_stream import clean_hidden, clean_layout

Cache = dict[str, Any]
"""By kind of layer, stacked over its layers: `KeyValue` of [layers, B, C, G, E] for C positions, or for convolutions a
ring [layers, B, S+K-1, D] in which position p lies at p modulo its length. What lies behind a row's position is never
read."""


def prefill(
    model: Transformer, prompts: Int[Array, "B P"], lengths: Int[Array, " B"], block_length: int, capacity: int
) -> Cache:
    """The cache of each prompt's whole blocks, with room for C = `capacity` positions.

    P must be a multiple of the block length; prompts shorter than P are filled with any token.
    """
    index = jnp.broadcast_to(jnp.arange(prompts.shape[1]), prompts.shape)
    whole = lengths // block_length * block_length
    layout = clean_layout((index < whole[:, None]).astype(jnp.int32), index, block_length)
    ring = partial(_ring, whole=whole, size=block_length + model.config.convolution_length - 1)
    room = ((0, 0), (0, 0), (0, capacity - prompts.shape[1]), (0, 0), (0, 0))
    return {
        name: KeyValue(*(jnp.pad(part, room) for part in memory)) if isinstance(memory, KeyValue) else ring(memory)
        for name, memory in clean_hidden(model, prompts, layout).memory.items()
    }


def canvas_logits(
    model: Transformer, tokens: Int[Array, "B C"], lengths: Int[Array, " B"], at: Int[Array, "B S"]
) -> Float[Array, "B S V"]:
    """Logits at positions `at` of rows in which every position sees all positions before the row's length."""
    index = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    layout = clean_layout((index < lengths[:, None]).astype(jnp.int32), index, tokens.shape[1])
    hidden = clean_hidden(model, tokens, layout).hidden
    return model.logits(jnp.take_along_axis(hidden, at[..., None], axis=1))


def _ring(memory: Float[Array, "n B P D"], whole: Int[Array, " B"], size: int) -> Float[Array, "n B size D"]:
    """The last `size` positions before `whole`, each at its place."""
    last = whole[:, None] - 1
    at = last - (last - jnp.arange(size)) % size
    return jnp.take_along_axis(memory, jnp.maximum(at, 0)[None, :, :, None], axis=2)


def decode_window(
    model: Transformer,
    cache: Cache,
    tokens: Int[Array, "B W"],
    positions: Int[Array, "B W"],
    start: Int[Array, " B"],
) -> tuple[Float[Array, "B W V"], Cache]:
    """Logits of a row's window, whose tokens may stand in another order than in the text (WeDLM).

    A token sees the cache before `start` and the tokens that stand before it; `positions` are those of its rotation.
    Keys and values are written from `start` on as the tokens stand, so that they are right, and may be kept, for the
    first ones that are also the next ones of the text. The others are overwritten by the next call.

    Raises:
        ValueError: the network has convolutions, which need neighbours.
    """
    if any(kind.mixer == "convolution" for kind in layer_kinds(model.config)):
        raise ValueError("a window in another order than the text's has no neighbours to convolve")
    return _decode(model, cache, tokens, start, positions, causal=True)


def decode_block(
    model: Transformer, cache: Cache, tokens: Int[Array, "B S"], start: Int[Array, " B"]
) -> tuple[Float[Array, "B S V"], Cache]:
    """Logits of one block per row at positions start .. start + S - 1, and the cache with the block written there.

    The block sees the cache before `start` and itself, both ways. Keys and values are written at every call; those of
    a block that still holds masks are overwritten by the next call at the same position, and until then nobody sees
    them, because nobody's `start` lies behind them.
    """
    return _decode(model, cache, tokens, start, None, causal=False)


def _decode(model: Transformer, cache: Cache, tokens, start, positions, causal: bool):
    """The places of the tokens are start, start + 1, ...; their positions, if not given, are the same."""
    rows, block_length = tokens.shape
    places = start[:, None] + jnp.arange(block_length)
    turn = model.rotation(places if positions is None else positions)
    row, seen_to = jnp.arange(rows)[:, None], jnp.broadcast_to(start[:, None], places.shape)

    def attend(mixer, normal, past: KeyValue):
        own, query = mixer.project_key_value(normal, turn), mixer.project_query(normal, turn)
        first = jnp.maximum(places - mixer.window + 1, 0) if mixer.window else jnp.zeros_like(places)
        before = range_attention(query, *past, first, seen_to, model.config.attention)
        back = jnp.arange(block_length)[:, None] - jnp.arange(block_length)
        visible = back < (mixer.window or block_length)
        visible = visible & (back >= 0) if causal else visible
        inside = masked_attention(query, *own, jnp.broadcast_to(visible, (rows, *back.shape)))
        return merge(*before, *inside), own

    def convolve(mixer, normal, past):
        own, reach = mixer.project_in(normal), mixer.length - 1
        earlier = start[:, None] + jnp.arange(-reach, 0)
        known = jnp.where((earlier >= 0)[..., None], past[row, earlier % past.shape[1]], 0)
        joined = jnp.concatenate([known, own], axis=1)
        back = [joined[:, reach - i : reach - i + block_length] for i in range(reach + 1)]
        return mixer.gate(normal, mixer.convolve(back)), own

    def step(layer, x, past):
        mix = convolve if layer.convolves else attend
        mixed, own = mix(layer.mixer, layer.normalize(x), past)
        return layer.finish(x, mixed)[0], own

    def write(past, own):
        if isinstance(past, KeyValue):
            # A finished row may stand behind the end; `drop` leaves the cache alone there.
            return KeyValue(*(old.at[:, row, places].set(new, mode="drop") for old, new in zip(past, own, strict=True)))
        return past.at[:, row, places % past.shape[2]].set(own)

    x, written = model.run_layers(step, model.embed(tokens), cache)
    return model.logits(x), {name: write(cache[name], written[name]) for name in cache}
