"""Decoding with an exact cache: the clean keys and values of whole blocks, each row at its own position."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from maskworld.models.attention import masked_attention, merge, range_attention
from maskworld.models.transformer import KeyValue, Transformer
from maskworld.models.two_stream import clean_hidden, clean_layout


def prefill(
    model: Transformer, prompts: Int[Array, "B P"], lengths: Int[Array, " B"], block_length: int, capacity: int
) -> KeyValue:
    """The cache of each prompt's whole blocks, [layers, B, capacity, G, E]; what lies behind them is never read.

    P must be a multiple of the block length; prompts shorter than P are filled with any token.
    """
    rows, length = prompts.shape
    index = jnp.broadcast_to(jnp.arange(length), prompts.shape)
    whole = lengths[:, None] // block_length * block_length
    layout = clean_layout((index < whole).astype(jnp.int32), index, block_length)
    _, cache = clean_hidden(model, prompts, layout)
    room = ((0, 0), (0, 0), (0, capacity - length), (0, 0), (0, 0))
    return KeyValue(*(jnp.pad(part, room) for part in cache))


def decode_block(
    model: Transformer, cache: KeyValue, tokens: Int[Array, "B S"], start: Int[Array, " B"]
) -> tuple[Float[Array, "B S V"], KeyValue]:
    """Logits of one block per row at positions start .. start + S - 1, and the cache with the block written there.

    The block sees the cache before `start` and itself, both ways. Keys and values are written at every call; those of
    a block that still holds masks are overwritten by the next call at the same position, and until then nobody sees
    them, because nobody's `start` lies behind them.
    """
    rows, block_length = tokens.shape
    positions = start[:, None] + jnp.arange(block_length)
    turn = model.rotation(positions)
    nothing = jnp.zeros_like(positions)
    everything = jnp.ones((rows, block_length, block_length), bool)
    seen_to = jnp.broadcast_to(start[:, None], positions.shape)

    def step(layer, x, past):
        normal = layer.normalize(x)
        own = layer.attention.project_key_value(normal, turn)
        query = layer.attention.project_query(normal, turn)
        before = range_attention(query, *past, nothing, seen_to, model.config.attention)
        inside = masked_attention(query, *own, everything)
        return layer.finish(x, merge(*before, *inside)), own

    x, written = model.run_layers(step, model.embed(tokens), per_layer=cache)
    row = jnp.arange(rows)[:, None]
    # A finished row may stand behind the end; `drop` leaves the cache alone there.
    cache = KeyValue(
        *(past.at[:, row, positions].set(new, mode="drop") for past, new in zip(cache, written, strict=True))
    )
    return model.logits(x), cache
