"""Decoding one token at a time, from left to right, with the results of the denoising loop: the autoregressive
baseline of the same network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from maskworld.config import SamplerConfig
from maskworld.diffusion.sampler import Forward, Samples, Special, open_canvas, propose


class _State(NamedTuple):
    samples: Samples
    cache: Any
    last: Int[Array, " B"]
    """Position of the last known token."""
    done: Bool[Array, " B"]


def sample_autoregressive(
    forward: Forward,
    cache: Any,
    prompts: Int[Array, "B P"],
    lengths: Int[Array, " B"],
    keys: Array,
    config: SamplerConfig,
    special: Special,
    observe: Callable[[Samples, Int[Array, " B"]], None] | None = None,
) -> Samples:
    """Continue each prompt of one token or more, until a stop token or `config.max_new_tokens` tokens.

    The cache holds each prompt without its last token; `forward` is called with blocks of one token, whose logits are
    those of the token that follows. Keys, temperature and `observe` are as in `sampler.sample`.
    """
    rows, longest = prompts.shape
    capacity = longest + config.max_new_tokens
    samples = open_canvas(prompts, lengths, capacity, special)
    row, stop = jnp.arange(rows), jnp.asarray(special.stop, jnp.int32)

    def body(state: _State) -> _State:
        logits, cache = forward(state.cache, state.samples.tokens[row, state.last][:, None], state.last)
        row_keys = jax.vmap(jax.random.fold_in)(keys, state.samples.forwards)
        token, confidence = (part[:, 0] for part in propose(logits, row_keys, config.temperature, special))
        at = jnp.where(state.done, capacity, state.last + 1)  # writes of finished rows fall off the end

        def put(canvas, value):
            return canvas.at[row, at].set(value.astype(canvas.dtype), mode="drop")

        samples = Samples(
            put(state.samples.tokens, token),
            put(state.samples.commit_forward, state.samples.forwards),
            put(state.samples.confidence, confidence),
            state.samples.forwards + ~state.done,
            state.samples.cache_forwards,
        )
        full = state.last + 2 - lengths >= config.max_new_tokens
        done = state.done | (token[:, None] == stop).any(axis=-1) | full
        if observe is not None:
            jax.debug.callback(observe, samples, state.last, ordered=True)
        return _State(samples, cache, jnp.where(done, state.last, state.last + 1), done)

    state = _State(samples, cache, lengths - 1, jnp.full(rows, config.max_new_tokens <= 0))
    return jax.lax.while_loop(lambda state: ~state.done.all(), body, state).samples
