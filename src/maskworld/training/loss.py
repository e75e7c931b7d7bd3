"""The losses of a packed batch, pure in all their inputs: block diffusion (noise, both streams, weighted cross-entropy
of masked tokens), for the same networks and rows masked diffusion over the whole document, the next token, and WeDLM's
sum of two means."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from maskworld.config import DiffusionConfig
from maskworld.diffusion.corruption import Corruption, corrupt, mask_exact_counts, observed_first
from maskworld.diffusion.objective import MaskedLoss, masked_cross_entropy
from maskworld.models.experts import RouterSums, balance_loss
from maskworld.models.transformer import Network, Params, Transformer
from maskworld.models.two_stream import (
    TwoStreams,
    clean_hidden,
    clean_layout,
    gather_blocks,
    scatter_blocks,
    two_stream_hidden,
    two_stream_layout,
)

Batch = dict[str, Array]
"""`tokens`, `document_ids`, `positions` [B, L] int32, `targets` [B, L] bool, `target_blocks` [B, K] int32."""


class LossSums(NamedTuple):
    """Sums over a batch; added up over microbatches and hosts before anything is divided."""

    loss: MaskedLoss
    normalizer: Float[Array, ""]
    """Target tokens times copies, masked or not: what SDAR divides by. For WeDLM the weights of the masked tokens."""
    router: RouterSums | None = None
    """Of every layer with experts."""
    next_token: MaskedLoss | None = None
    """WeDLM's second mean, that of the clean stream; its `masked` are the tokens it is taken over."""

    def mean(self, autoregressive_weight: float = 1.0) -> Float[Array, ""]:
        """The loss of all that was added up; 0 where there was nothing."""
        mean = self.loss.weighted / jnp.maximum(self.normalizer, 1.0)
        if self.next_token is None:
            return mean
        following = self.next_token.weighted / jnp.maximum(self.next_token.masked, 1.0)
        return (mean + autoregressive_weight * following) / (1.0 + autoregressive_weight)

    def objective(self, balance_weight: float, shares: Shares | None = None) -> Float[Array, ""]:
        """What is differentiated: the weighted loss and, in units of it, the experts' load balance.

        Load balance is not a sum over tokens; several microbatches add up to its mean, by their normalizers. A loss of
        two means needs the `shares` of the whole batch.
        """
        total = self.loss.weighted
        if self.next_token is not None:
            total = shares.masked * total + shares.next_token * self.next_token.weighted
        if self.router is None or not balance_weight:
            return total
        return total + balance_weight * self.normalizer * balance_loss(self.router)


class Shares(NamedTuple):
    """Factors of WeDLM's two sums, so that their sum divided by the first one's normalizer is the loss.

    Both normalizers are those of the whole batch; they are known before any forward (`wedlm_normalizers`), and so the
    gradients of microbatches can be added up.
    """

    masked: Float[Array, ""] | float
    next_token: Float[Array, ""]

    @staticmethod
    def of(masked: Float[Array, ""], following: Float[Array, ""], autoregressive_weight: float) -> Shares:
        """Of a batch with these normalizers."""
        exchange = jnp.maximum(masked, 1.0) / jnp.maximum(following, 1.0)
        share = 1.0 / (1.0 + autoregressive_weight)
        return Shares(share, (1.0 - share) * exchange)


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


def batch_loss(
    network: Network, params: Params, batch: Batch, key: Array, mask_id: int, config: DiffusionConfig
) -> LossSums:
    """The loss of the configured objective."""
    if config.objective == "autoregressive":
        return autoregressive_loss(network, params, batch, config.logits_chunk)
    if config.objective == "wedlm":
        return reordered_loss(network, params, batch, wedlm_noise(batch, key, mask_id, config), config)
    return diffusion_loss(network, params, batch, key, mask_id, config)


def autoregressive_loss(network: Network, params: Params, batch: Batch, logits_chunk: int = 128) -> LossSums:
    """Cross-entropy (nats, summed) of every target token given all tokens before it in its document.

    A document's first token has nothing before it and is no target.
    """
    model = network.bind(params)
    states = clean_hidden(model, batch["tokens"], clean_layout(batch["document_ids"], batch["positions"], 1))
    loss = _next_token_loss(model, states.hidden, batch, logits_chunk)
    return LossSums(loss, loss.masked, states.router)


def followed(batch: Batch) -> Bool[Array, "B L"]:
    """Positions whose next one holds a target of the same document."""
    documents, targets = (jnp.pad(batch[name][:, 1:], ((0, 0), (0, 1))) for name in ("document_ids", "targets"))
    return targets.astype(bool) & (documents == batch["document_ids"]) & (documents > 0)


def _next_token_loss(model: Transformer, hidden: Float[Array, "B L D"], batch: Batch, logits_chunk: int) -> MaskedLoss:
    supervised = followed(batch)
    labels = jnp.pad(batch["tokens"][:, 1:], ((0, 0), (0, 1)))
    weight = supervised.astype(jnp.float32)
    return masked_cross_entropy(model.normalize(hidden), model.head_kernel(), labels, weight, supervised, logits_chunk)


def shortened(batch: Batch, block_length: int, shorter: int) -> Batch:
    """The same rows with every target block cut into blocks of length `shorter`, a divisor of its own."""
    parts = block_length // shorter
    blocks = batch["target_blocks"]
    cut = jnp.where(blocks[..., None] >= 0, blocks[..., None] * parts + jnp.arange(parts), -1)
    return batch | {"target_blocks": cut.reshape(blocks.shape[0], -1)}


def diffusion_loss(
    network: Network, params: Params, batch: Batch, key: Array, mask_id: int, config: DiffusionConfig
) -> LossSums:
    """Negative ELBO (nats, summed) of a batch's target tokens under noise drawn from `key`, by blocks or in whole."""
    noisy = noisy_targets(batch, config)
    blocks = batch["target_blocks"].shape[1]
    noise = corrupt(key, *noisy, blocks, mask_id, config)
    given_noise = full_sequence_loss if config.objective == "full_sequence" else corrupted_loss
    return given_noise(network, params, batch, noise, config)


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


def full_sequence_loss(
    network: Network, params: Params, batch: Batch, noise: Corruption, config: DiffusionConfig
) -> LossSums:
    """LLaDA's fine-tuning loss (arXiv 2502.09992, section 2.3) for one noisy copy given from outside.

    One stream: the row itself with its masked targets in place, attention both ways over each document, the same
    weighted cross-entropy at the same position. Contexts and actions are never masked. Blocks only say where noise
    levels are drawn (`draw_t`; LLaDA's is "document") and where observations are filled with `<end>`.

    In a document of several turns an earlier observation sees the later ones, as far as they are not masked, and the
    actions between them, as in LLaDA's own multi-turn fine-tuning; when it is generated, nothing stands there. An
    earlier observation is thus trained on an easier question than it will be asked (an inventory two steps on tells
    what was taken), the last one on a harder (its past has masks). The sum bounds the likelihood of all observations
    together, given the context and all actions, not of each given its past: it does not compare with block diffusion's
    but in documents of one target turn.
    """
    noisy = noisy_targets(batch, config)
    blocks, rows = batch["target_blocks"], batch["tokens"]
    tokens = scatter_blocks(rows, noise.tokens, blocks, config.block_length)
    model = network.bind(params)
    states = clean_hidden(model, tokens, clean_layout(batch["document_ids"], batch["positions"], rows.shape[1]))
    index = jnp.broadcast_to(jnp.arange(rows.shape[1]), rows.shape)
    index = gather_blocks(index, blocks, config.block_length, 0)
    hidden = model.normalize(jnp.take_along_axis(states.hidden, index[..., None], axis=1))
    loss = masked_cross_entropy(
        hidden, model.head_kernel(), noisy.labels, noise.weight, noise.masked, config.logits_chunk
    )
    return LossSums(loss, noisy.targets.sum(dtype=jnp.float32), states.router)


def wedlm_noise(batch: Batch, key: Array, mask_id: int, config: DiffusionConfig) -> Corruption:
    """WeDLM's masks of a batch, tokens in the order of the text."""
    return mask_exact_counts(key, *noisy_targets(batch, config), batch["target_blocks"].shape[1], mask_id, config)


def wedlm_normalizers(
    batch: Batch, key: Array, mask_id: int, config: DiffusionConfig
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """What WeDLM's two sums over this batch will be divided by, without any network."""
    noise = wedlm_noise(batch, key, mask_id, config)
    return _masked_weight(noise), followed(batch).sum(dtype=jnp.float32)


def _masked_weight(noise: Corruption) -> Float[Array, ""]:
    return jnp.where(noise.masked, noise.weight, 0.0).sum()


def reordered_streams(
    model: Transformer, batch: Batch, noise: Corruption, config: DiffusionConfig
) -> tuple[TwoStreams, Int[Array, "B N"]]:
    """Both streams as WeDLM sees them, and which noisy position stands at each place of the noisy one.

    The clean stream is causal. A noisy block sees the clean tokens before it; inside, its observed tokens stand before
    its masks and every place sees those before it, while rotary positions stay those of the text.
    """
    block = config.block_length
    order = observed_first(noise.masked, noisy_targets(batch, config).document_ids, block)
    rows = batch["document_ids"], batch["positions"], batch["target_blocks"]
    layout = two_stream_layout(*rows, block, config.noisy_copies, clean_block_length=1, order=order)
    tokens = jnp.take_along_axis(noise.tokens, order, axis=1)
    hidden = two_stream_hidden(model, batch["tokens"], tokens, layout, block, causal_blocks=True, with_clean=True)
    return hidden, order


def reordered_loss(
    network: Network, params: Params, batch: Batch, noise: Corruption, config: DiffusionConfig
) -> LossSums:
    """WeDLM's loss for noise given from outside: masked tokens, each at its own position, and the next token."""
    model = network.bind(params)
    states, order = reordered_streams(model, batch, noise, config)
    targets = noisy_targets(batch, config).labels, noise.weight, noise.masked
    targets = (jnp.take_along_axis(x, order, axis=1) for x in targets)
    loss = masked_cross_entropy(model.normalize(states.noisy), model.head_kernel(), *targets, config.logits_chunk)
    following = _next_token_loss(model, states.clean, batch, config.logits_chunk)
    return LossSums(loss, _masked_weight(noise), states.router, following)
