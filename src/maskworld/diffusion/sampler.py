"""The denoising loop, wholly on device: block by block, every row at its own pace.

One iteration is one forward over one block of each row. A row whose block still has masks denoises it; a row whose
block is complete uses the same forward to write the block's keys and values into the cache and moves on. Rows share
nothing but the forward, so a row's result does not depend on its neighbours (the batched loop of SDAR's evaluation
code re-decides finished blocks, and there it does).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from maskworld.config import SamplerConfig
from maskworld.diffusion.unmasking import RULES, Candidates, commit_count

Forward = Callable[[Any, Int[Array, "B S"], Int[Array, "B"]], tuple[Float[Array, "B S V"], Any]]
"""(cache, block tokens, position of the block) -> (logits, cache that holds the block's keys and values)."""


class Special(NamedTuple):
    """Token ids the loop must know. Neither mask nor pad is ever emitted."""

    mask: int
    pad: int
    stop: tuple[int, ...]
    """A row ends with the block in which one of these appears."""
    vocabulary: int | None = None
    """Ids from here on have no token: rows that public embeddings have beyond their tokenizer. Never emitted."""


class Samples(NamedTuple):
    """Prompts and what followed them, C = capacity positions a row."""

    tokens: Int[Array, "B C"]
    """Mask ids from the end of the last generated block on."""
    commit_forward: Int[Array, "B C"]
    """The forward of its row, from 0, that committed the token; -1 for prompt and open positions."""
    confidence: Float[Array, "B C"]
    """Probability of the token when it was committed; 0 for prompt and open positions."""
    forwards: Int[Array, " B"]
    """Forwards spent on the row after the prompt's, those that only fill the cache included."""
    cache_forwards: Int[Array, " B"]
    """How many of them only filled the cache."""


class _State(NamedTuple):
    samples: Samples
    cache: Any
    start: Int[Array, " B"]
    """Position of the block at hand."""
    step: Int[Array, " B"]
    """Denoising steps its block has had."""
    done: Bool[Array, " B"]


def sample(
    forward: Forward,
    cache: Any,
    prompts: Int[Array, "B P"],
    lengths: Int[Array, " B"],
    keys: Array,
    config: SamplerConfig,
    block_length: int,
    special: Special,
    observe: Callable[[Samples, Int[Array, " B"]], None] | None = None,
) -> Samples:
    """Complete each prompt with at least `config.max_new_tokens` positions, up to the end of their last block.

    The cache holds each prompt up to its last whole block, lengths // S * S. The prompt's remainder stays as it is,
    visible inside the first block. `keys` is one typed key per row, used only at temperature > 0: then a token is drawn
    from softmax(logits / temperature) and its confidence is its probability there. `observe` is called on the host
    after every forward (for traces in tests).
    """
    blocks = -(-(lengths + config.max_new_tokens) // block_length)
    capacity = -(-(prompts.shape[1] + config.max_new_tokens) // block_length) * block_length
    samples = open_canvas(prompts, lengths, capacity, special)
    start = lengths // block_length * block_length
    state = _State(samples, cache, start, samples.forwards, start >= blocks * block_length)
    steps = config.denoising_steps or block_length
    stop = jnp.asarray(special.stop, jnp.int32)

    def body(state: _State) -> _State:
        at = state.start[:, None] + jnp.arange(block_length)
        at = jnp.minimum(at, capacity - 1)  # a finished row may stand behind the end
        tokens = jnp.take_along_axis(state.samples.tokens, at, axis=1)
        masked = (tokens == special.mask) & ~state.done[:, None]
        logits, cache = forward(state.cache, tokens, state.start)
        row_keys = jax.vmap(jax.random.fold_in)(keys, state.samples.forwards)
        proposal, confidence = propose(logits, row_keys, config.temperature, special)
        count = commit_count(block_length, steps, state.step)
        chosen = RULES[config.rule](Candidates(confidence, masked, count), config.threshold)
        samples = commit(state.samples, at, chosen, proposal, confidence, state.done, masked)
        open_left = (masked & ~chosen).any(axis=-1)
        # A complete block ends the row if it is the last or holds a stop token behind the prompt.
        tokens = jnp.where(chosen, proposal, tokens)
        ended = ((tokens[..., None] == stop).any(axis=-1) & (at >= lengths[:, None])).any(axis=-1)
        last = state.start + block_length >= blocks * block_length
        done = state.done | (~open_left & (ended | last))
        # The forward of an already complete block has written the cache; the row moves to its next block.
        moves = ~masked.any(axis=-1) & ~done
        next_start = jnp.where(moves, state.start + block_length, state.start)
        next_step = jnp.where(moves | done, 0, state.step + masked.any(axis=-1))
        state = _State(samples, cache, next_start, next_step, done)
        if observe is not None:
            jax.debug.callback(observe, samples, at[:, 0], ordered=True)
        return state

    return jax.lax.while_loop(lambda state: ~state.done.all(), body, state).samples


def propose(
    logits: Float[Array, "B S V"], keys: Array, temperature: float, special: Special
) -> tuple[Int[Array, "B S"], Float[Array, "B S"]]:
    """A token for every position, never mask, pad or an id without a token, and its probability under all logits."""
    if temperature > 0:
        logits = logits / temperature
    # By comparison: the -1 of a token that does not exist must not forbid the last row.
    allowed = ~jnp.isin(jnp.arange(logits.shape[-1]), jnp.array([special.mask, special.pad]))
    if special.vocabulary is not None:
        allowed &= jnp.arange(logits.shape[-1]) < special.vocabulary
    ranked = jnp.where(allowed, logits, -jnp.inf)
    if temperature > 0:
        ranked += jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[1:]))(keys)
    token = ranked.argmax(axis=-1)
    chosen = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
    return token, jnp.exp(chosen - jax.nn.logsumexp(logits, axis=-1))


def open_canvas(prompts: Int[Array, "B P"], lengths: Int[Array, " B"], capacity: int, special: Special) -> Samples:
    """Prompts of the given lengths and masks behind them, C = `capacity` positions, before the first forward."""
    rows, longest = prompts.shape
    canvas = jnp.pad(prompts, ((0, 0), (0, capacity - longest)))
    return Samples(
        jnp.where(jnp.arange(capacity) < lengths[:, None], canvas, special.mask),
        jnp.full((rows, capacity), -1, jnp.int32),
        jnp.zeros((rows, capacity)),
        jnp.zeros(rows, jnp.int32),
        jnp.zeros(rows, jnp.int32),
    )


def commit(
    samples: Samples,
    at: Int[Array, "B S"],
    chosen: Bool[Array, "B S"],
    proposal: Int[Array, "B S"],
    confidence: Float[Array, "B S"],
    done: Bool[Array, " B"],
    masked: Bool[Array, "B S"],
) -> Samples:
    """What one forward leaves behind: the chosen proposals at positions `at`, and the counts of rows not `done`."""
    row = jnp.arange(at.shape[0])[:, None]

    def put(canvas, value):
        current = canvas[row, at]
        return canvas.at[row, at].set(jnp.where(chosen, value.astype(canvas.dtype), current))

    return Samples(
        put(samples.tokens, proposal),
        put(samples.commit_forward, jnp.broadcast_to(samples.forwards[:, None], at.shape)),
        put(samples.confidence, confidence),
        samples.forwards + ~done,
        samples.cache_forwards + (~done & ~masked.any(axis=-1)),
    )
