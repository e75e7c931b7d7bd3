"""The project's sampler as a function from prompts to generations, compiled once per prompt capacity."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from maskworld.config import Experiment
from maskworld.diffusion.autoregressive import sample_autoregressive
from maskworld.diffusion.full_sequence import sample_full_sequence
from maskworld.diffusion.sampler import Samples, Special, sample
from maskworld.diffusion.streaming import sample_streaming
from maskworld.evaluation.transitions import Generate, Generation
from maskworld.models.decode import canvas_logits, decode_block, decode_window, prefill
from maskworld.models.transformer import Network, Params
from maskworld.training.checkpoints import LoadedParams
from maskworld.training.initialize import whole_params
from maskworld.training.step import network_of


def make_sampler(network: Network, config: Experiment, special: Special):
    """The jitted `(params, prompts [B, P], lengths [B], keys [B]) -> Samples`; P a multiple of the block length."""
    if config.diffusion.objective == "autoregressive":
        return _make_autoregressive(network, config, special)
    if config.diffusion.objective == "full_sequence":
        return _make_full_sequence(network, config, special)
    if config.diffusion.objective == "wedlm":
        return _make_streaming(network, config, special)
    block = config.diffusion.block_length

    @jax.jit
    def run(params: Params, prompts, lengths, keys) -> Samples:
        model = network.bind(params)
        capacity = -(-(prompts.shape[1] + config.sampler.max_new_tokens) // block) * block
        cache = prefill(model, prompts, lengths, block, capacity)
        forward = partial(decode_block, model)
        return sample(forward, cache, prompts, lengths, keys, config.sampler, block, special)

    return run


def _make_autoregressive(network: Network, config: Experiment, special: Special):
    @jax.jit
    def run(params: Params, prompts, lengths, keys) -> Samples:
        model = network.bind(params)
        cache = prefill(model, prompts, lengths - 1, 1, prompts.shape[1] + config.sampler.max_new_tokens)
        forward = partial(decode_block, model)
        return sample_autoregressive(forward, cache, prompts, lengths, keys, config.sampler, special)

    return run


def _make_full_sequence(network: Network, config: Experiment, special: Special):
    block = config.diffusion.block_length

    @jax.jit
    def run(params: Params, prompts, lengths, keys) -> Samples:
        forward = partial(canvas_logits, network.bind(params))
        return sample_full_sequence(forward, prompts, lengths, keys, config.sampler, block, special)

    return run


def _make_streaming(network: Network, config: Experiment, special: Special):
    block = config.diffusion.block_length

    @jax.jit
    def run(params: Params, prompts, lengths, keys) -> Samples:
        model = network.bind(params)
        cache = prefill(model, prompts, lengths, 1, prompts.shape[1] + config.sampler.max_new_tokens)
        forward = partial(decode_window, model)
        return sample_streaming(forward, cache, prompts, lengths, keys, config.sampler, block, special)

    return run


def make_generate(loaded: LoadedParams, config: Experiment) -> Generate:
    """`Generate` for the parameters and the contract of a checkpoint."""
    contract = loaded.contract
    special = Special(contract.mask_id, contract.pad_id, (contract.end_id,), contract.vocabulary_size)
    run = make_sampler(network_of(config, contract), config, special)
    params = jax.tree.map(jnp.asarray, whole_params(loaded))
    seed = jax.random.key(config.evaluation.seed)

    def generate(prompts: Sequence[np.ndarray], prompt_capacity: int) -> list[Generation]:
        padded = np.full((len(prompts), prompt_capacity), contract.pad_id, np.int32)
        for row, prompt in enumerate(prompts):
            padded[row, : len(prompt)] = prompt
        lengths = np.array([len(prompt) for prompt in prompts], np.int32)
        # A row's draws depend on its prompt, not on its place in a batch.
        marks = np.array([zlib.crc32(prompt.astype("<i4").tobytes()) for prompt in prompts], np.uint32)
        keys = jax.vmap(partial(jax.random.fold_in, seed))(marks)
        samples = jax.device_get(run(params, padded, lengths, keys))
        return [_generation(samples, row, int(lengths[row])) for row in range(len(prompts))]

    return generate


def _generation(samples: Samples, row: int, length: int) -> Generation:
    made = samples.commit_forward[row] >= 0
    stop = int(np.flatnonzero(made)[-1]) + 1 if made.any() else length
    return Generation(
        tokens=samples.tokens[row, length:stop],
        forwards=int(samples.forwards[row]),
        denoising_steps=samples.commit_forward[row, length:stop],
        confidences=samples.confidence[row, length:stop],
    )
