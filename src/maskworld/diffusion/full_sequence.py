"""LLaDA's semi-autoregressive sampler (arXiv 2502.09992, section 2.4 and appendix A.4), wholly on device.

For networks that attend both ways over the whole sequence: prompt and open positions are one canvas, and every forward
sees all of it, the masks of later blocks included. So no cache can hold what is done, and how many masks stand behind
the block at hand (`max_new_tokens`) bears on every prediction. Blocks count from the end of each row's prompt.

LLaDA's `steps` are those of all blocks together: its steps 128, gen_length 128, block_length 32 are `denoising_steps`
32 and blocks of 32 here. Its loop runs to the end of the canvas; here a row also ends with the block in which a stop
token appears, and without stop tokens the results are the same, but for these: a mask is never emitted, a step for
which no mask is left is not run, and at temperature > 0 the confidence is that of the tempered distribution, as in
`sampler.sample`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from maskworld.config import SamplerConfig
from maskworld.diffusion.sampler import Samples, Special, commit, open_canvas, propose
from maskworld.diffusion.unmasking import RULES, Candidates, commit_count

Forward = Callable[[Int[Array, "B C"], Int[Array, " B"], Int[Array, "B S"]], Float[Array, "B S V"]]
"""(canvas, its length in each row, positions) -> logits at these positions, from one pass over the whole canvas.

Nothing behind a row's length may be attended. Logits are asked for at one block only, because those of the whole canvas
would be the largest array by far."""


class _State(NamedTuple):
    samples: Samples
    start: Int[Array, " B"]
    """Position of the block at hand."""
    step: Int[Array, " B"]
    """Denoising steps its block has had."""
    done: Bool[Array, " B"]


def sample_full_sequence(
    forward: Forward,
    prompts: Int[Array, "B P"],
    lengths: Int[Array, " B"],
    keys: Array,
    config: SamplerConfig,
    block_length: int,
    special: Special,
    observe: Callable[[Samples, Int[Array, " B"]], None] | None = None,
) -> Samples:
    """Complete each prompt with exactly `config.max_new_tokens` positions, or fewer blocks where a stop token appears.

    Prompts shorter than P are filled with any token. The last block is shorter where S does not divide
    `max_new_tokens`. A block takes at most `denoising_steps` forwards: the schedule commits masks // steps positions at
    each, one more in the first masks % steps. Keys, temperature and `observe` are as in `sampler.sample`; a row's
    result depends on nothing of the other rows'.
    """
    # Whole blocks of room, so that the positions of a short last block lie inside the arrays.
    room = -(-config.max_new_tokens // block_length) * block_length
    samples = open_canvas(prompts, lengths, prompts.shape[1] + room, special)
    ends = lengths + config.max_new_tokens
    steps = config.denoising_steps or block_length
    stop = jnp.asarray(special.stop, jnp.int32)

    def body(state: _State) -> _State:
        at = state.start[:, None] + jnp.arange(block_length)
        inside = at < ends[:, None]
        tokens = jnp.take_along_axis(state.samples.tokens, at, axis=1)
        masked = inside & (tokens == special.mask) & ~state.done[:, None]
        row_keys = jax.vmap(jax.random.fold_in)(keys, state.samples.forwards)
        logits = forward(state.samples.tokens, ends, at)
        proposal, confidence = propose(logits, row_keys, config.temperature, special)
        count = commit_count(inside.sum(axis=-1), steps, state.step)
        chosen = RULES[config.rule](Candidates(confidence, masked, count), config.threshold)
        samples = commit(state.samples, at, chosen, proposal, confidence, state.done, masked)
        complete = ~state.done & ~(masked & ~chosen).any(axis=-1)
        tokens = jnp.where(chosen, proposal, tokens)
        ended = (inside & (tokens[..., None] == stop).any(axis=-1)).any(axis=-1)
        done = state.done | (complete & (ended | (state.start + block_length >= ends)))
        moves = complete & ~done
        if observe is not None:
            jax.debug.callback(observe, samples, state.start, ordered=True)
        start = jnp.where(moves, state.start + block_length, state.start)
        return _State(samples, start, jnp.where(moves, 0, state.step + 1), done)

    zeros = jnp.zeros_like(lengths)
    state = _State(samples, lengths, zeros, lengths >= ends)
    return jax.lax.while_loop(lambda state: ~state.done.all(), body, state).samples
