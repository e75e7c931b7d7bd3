"""The block-diffusion loss of a packed batch: noise, both streams, weighted cross-entropy. Pure in all its inputs."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from maskworld.config import DiffusionConfig
from maskworld.diffusion.corruption import Corruption, corrupt
from maskworld.diffusion.objective import MaskedLoss, masked_cross_entropy
from maskworld.models.experts import RouterSums, balance_loss
from maskworld.models.transformer import Network, Params
from maskworld.models.two_stream import gather_blocks, two_stream_hidden, two_stream_layout

Batch = dict[str, Array]
"""`tokens`, `document_ids`, `positions` [B, L] int32, `targets` [B, L] bool, `target_blocks` [B, K] int32."""


class LossSums(NamedTuple):
    """Sums over a batch; added up over microbatches and hosts before anything is divided."""

    loss: MaskedLoss
    normalizer: Float[Array, ""]
    """Target tokens times copies, masked or not: what SDAR divides by."""
    router: RouterSums | None = None
    """Of every layer with experts."""

    def objective(self, balance_weight: float) -> Float[Array, ""]:
        """What is differentiated: the weighted loss and, in units of it, the experts' load balance.

        Load balance is not a sum over tokens; several microbatches add up to its mean, by their normalizers.
        """
        if self.router is None or not balance_weight:
            return self.loss.weighted
        return self.loss.weighted + balance_weight * self.normalizer * balance_loss(self.router)


class NoisyTargets(NamedTuple):
    """Tokens and masks of the noisy stream's positions, k copies of K blocks of S."""

    labels: Int[Array, "B N"]
    targets: Bool[Array, "B N"]
    document_ids: Int[Array, "B N"]


def noisy_targets(batch: Batch, config: DiffusionConfig) -> NoisyTargets:
    """What the noisy stream has to reproduce; unused block slots belong to document 0 and hold no target."""

    def copied(name):
        taken = gather_blocks(batch[name], batch["target_blocks"], config.block_length, 0)
        return jnp.tile(taken, (1, config.noisy_copies))

    return NoisyTargets(copied("tokens"), copied("targets").astype(bool), copied("document_ids"))


def diffusion_loss(
    network: Network, params: Params, batch: Batch, key: Array, mask_id: int, config: DiffusionConfig
) -> LossSums:
    """Negative ELBO (nats, summed) of a batch's target tokens under noise drawn from `key`."""
    noisy = noisy_targets(batch, config)
    blocks = batch["target_blocks"].shape[1]
    noise = corrupt(key, *noisy, blocks, mask_id, config)
    return corrupted_loss(network, params, batch, noise, config)


def corrupted_loss(
    network: Network, params: Params, batch: Batch, noise: Corruption, config: DiffusionConfig
) -> LossSums:
    """The same for noise given from outside: sum of weight * cross-entropy over masked tokens, same position."""
    noisy = noisy_targets(batch, config)
    layout = two_stream_layout(
        batch["document_ids"], batch["positions"], batch["target_blocks"], config.block_length, config.noisy_copies
    )
    model = network.bind(params)
    states = two_stream_hidden(model, batch["tokens"], noise.tokens, layout, config.block_length)
    hidden = model.normalize(states.noisy)
    loss = masked_cross_entropy(
        hidden, model.head_kernel(), noisy.labels, noise.weight, noise.masked, config.logits_chunk
    )
    return LossSums(loss, noisy.targets.sum(dtype=jnp.float32), states.router)
