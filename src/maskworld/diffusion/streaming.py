"""WeDLM's decoding loop, wholly on device: causal attention, observed tokens before masks, an exact cache.

One iteration is one forward over the window of each row: first the tokens that no cache holds yet, in the order of the
text, then the masks that are open, each with the position it has in the text. The attention is causal in this order.
What stands at the beginning of the window without a gap is therefore computed from the text before it alone, as if
nothing had been filled out of order, and the same forward caches it for good. Tokens behind the first mask are computed
anew every time. No forward is spent on the cache alone, and every one equals the forward of WeDLM's own loop
(`generate_wedlm`) over the whole sequence. Rows share nothing but the forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from maskworld.config import SamplerConfig
from maskworld.diffusion.sampler import Samples, Special, propose
from maskworld.diffusion.unmasking import (
    RULES,
    Candidates,
    commit_count,
    entropy_distance,
    low_confidence_at_least,
)

WindowForward = Callable[[Any, Int[Array, "B W"], Int[Array, "B W"], Int[Array, " B"]], tuple[Array, Any]]
"""(cache, tokens as they stand, their positions, tokens cached) -> (logits [B, W, V], cache that holds the window)."""


_RULES = RULES | {"low_confidence_dynamic": low_confidence_at_least}


class Window(NamedTuple):
    """What a forward is given: W slots a row, those that are not used last."""

    tokens: Int[Array, "B W"]
    positions: Int[Array, "B W"]
    """In the text; each slot has one of the W that follow the cached tokens."""
    masked: Bool[Array, "B W"]
    used: Bool[Array, "B W"]
    """Not behind the last open position."""


class _State(NamedTuple):
    samples: Samples
    cache: Any
    cached: Int[Array, " B"]
    """Tokens in the cache: the prompt, and what followed it without a gap before the last forward."""
    step: Int[Array, " B"]
    """Forwards its block has had, or the row where a window slides."""
    done: Bool[Array, " B"]


def window_slots(config: SamplerConfig, block_length: int) -> int:
    """W: all positions that are open at a time, and before them as many whose tokens were just committed."""
    return min(2 * (config.window or block_length), max(config.max_new_tokens, 1))


def sample_streaming(
    forward: WindowForward,
    cache: Any,
    prompts: Int[Array, "B P"],
    lengths: Int[Array, " B"],
    keys: Array,
    config: SamplerConfig,
    block_length: int,
    special: Special,
    observe: Callable[[Window, Samples, Bool[Array, " B"]], None] | None = None,
) -> Samples:
    """Continue each prompt by `config.max_new_tokens` tokens, or to its first stop token.

    The cache holds all of each prompt, and has room for C = P + max_new_tokens positions. The last block may be short,
    and so may the first unless blocks count from the prompt. A row is done once everything up to a stop token is
    there; what was already filled behind it is taken back. `observe` is called on the host with what a forward was
    given, the samples after it, and the rows that were already done. Keys and temperature are as in `sampler.sample`.
    """
    rows, width = prompts.shape
    capacity, slots = width + config.max_new_tokens, window_slots(config, block_length)
    zeros, ends = jnp.zeros(rows, jnp.int32), lengths + config.max_new_tokens
    samples = Samples(
        jnp.where(
            jnp.arange(capacity) < lengths[:, None],
            jnp.pad(prompts, ((0, 0), (0, config.max_new_tokens))),
            special.mask,
        ),
        jnp.full((rows, capacity), -1, jnp.int32),
        jnp.zeros((rows, capacity)),
        zeros,
        zeros,
    )
    origin = lengths if config.blocks_from_prompt else zeros
    steps, row = config.denoising_steps or block_length, jnp.arange(rows)[:, None]

    def body(state: _State) -> _State:
        first = _first_mask(state.samples, lengths)
        last = first + config.window if config.window else _block_end(first, origin, block_length)
        window = _window(state.samples, state.cached, jnp.minimum(last, ends), slots)
        logits, cache = forward(state.cache, window.tokens, window.positions, state.cached)
        row_keys = jax.vmap(jax.random.fold_in)(keys, state.samples.forwards)
        proposal, confidence = propose(logits, row_keys, config.temperature, special)
        if config.rule == "entropy_distance":
            limits = config.entropy_threshold, config.distance_penalty
            chosen = entropy_distance(logits, window.masked, window.positions, *limits)
        else:
            candidates = Candidates(confidence, window.masked, commit_count(block_length, steps, state.step % steps))
            chosen = _RULES[config.rule](candidates, config.threshold)
        at = jnp.where(chosen & ~state.done[:, None], window.positions, capacity)  # others fall off the end

        def put(canvas, value):
            return canvas.at[row, at].set(value.astype(canvas.dtype), mode="drop")

        samples = Samples(
            put(state.samples.tokens, proposal),
            put(state.samples.commit_forward, jnp.broadcast_to(state.samples.forwards[:, None], at.shape)),
            put(state.samples.confidence, confidence),
            state.samples.forwards + ~state.done,
            zeros,
        )
        if observe is not None:
            jax.debug.callback(observe, window, samples, state.done, ordered=True)
        reached = _first_mask(samples, lengths)
        done = state.done | (reached >= ends) | (_first_stop(samples, special) < reached)
        begins = jnp.zeros_like(done) if config.window else reached >= last
        cached = jnp.where(state.done, state.cached, first)
        return _State(samples, cache, cached, jnp.where(begins, 0, state.step + 1), done)

    state = _State(samples, cache, lengths, zeros, jnp.full(rows, config.max_new_tokens <= 0))
    samples = jax.lax.while_loop(lambda state: ~state.done.all(), body, state).samples
    behind = jnp.arange(capacity) > _first_stop(samples, special)[:, None]
    return samples._replace(
        tokens=jnp.where(behind, special.mask, samples.tokens),
        commit_forward=jnp.where(behind, -1, samples.commit_forward),
        confidence=jnp.where(behind, 0.0, samples.confidence),
    )


def _first_true(marks: Bool[Array, "B C"]) -> Int[Array, " B"]:
    """C where there is none."""
    return jnp.where(marks.any(axis=1), marks.argmax(axis=1), marks.shape[1])


def _first_mask(samples: Samples, lengths: Int[Array, " B"]) -> Int[Array, " B"]:
    index = jnp.arange(samples.tokens.shape[1])
    return _first_true((index >= lengths[:, None]) & (samples.commit_forward < 0))


def _first_stop(samples: Samples, special: Special) -> Int[Array, " B"]:
    stop = jnp.asarray(special.stop, jnp.int32)
    return _first_true((samples.commit_forward >= 0) & (samples.tokens[..., None] == stop).any(axis=-1))


def _block_end(first: Int[Array, " B"], origin: Int[Array, " B"], block_length: int) -> Int[Array, " B"]:
    """Where the block of the first mask ends; blocks count from `origin`."""
    return origin + ((first - origin) // block_length + 1) * block_length


def _window(samples: Samples, cached: Int[Array, " B"], last: Int[Array, " B"], slots: int) -> Window:
    """The positions from `cached` to `last`, those with a token first."""
    at = cached[:, None] + jnp.arange(slots)
    there = jnp.minimum(at, samples.tokens.shape[1] - 1)
    used = at < last[:, None]
    masked = used & (jnp.take_along_axis(samples.commit_forward, there, axis=1) < 0)
    order = jnp.argsort(jnp.where(used, masked, 2), axis=1, stable=True)
    tokens = jnp.take_along_axis(samples.tokens, there, axis=1)
    return Window(*(jnp.take_along_axis(x, order, axis=1) for x in (tokens, at, masked, used)))
