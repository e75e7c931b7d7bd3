"""The baseline inside this code base: block diffusion as published, one doubled sequence under one dense mask.

The same layers, head, objective and optimizer as the two-stream step, so what differs is only the layout: 2L
positions through every layer, and the full (2L)^2 attention of BD3-LM (arXiv 2503.09573, section 3.2).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from maskworld.config import Experiment
from maskworld.diffusion.corruption import corrupt
from maskworld.diffusion.objective import masked_cross_entropy
from maskworld.models.attention import masked_attention
from maskworld.models.transformer import Network
from maskworld.training.step import TrainState, accumulate_gradients


def make_doubled_step(experiment: Experiment, network: Network, optimizer: optax.GradientTransformation, mask_id: int):
    """The jitted `step(state, batch) -> (state, loss)`, for batches in which every token is a target."""
    config, training = experiment.diffusion, experiment.training

    def loss(params, batch, key):
        model = network.bind(params)
        tokens, documents, positions = batch["tokens"], batch["document_ids"], batch["positions"]
        blocks = tokens.shape[1] // config.block_length
        noise = corrupt(key, tokens, batch["targets"], documents, blocks, mask_id, config)
        mask = doubled_mask(documents, positions // config.block_length)
        turn = model.rotation(jnp.concatenate([positions, positions], axis=1))
        # Like the peer's kernel, attention keeps no scores for the backward pass.
        attend = jax.checkpoint(lambda *parts: masked_attention(*parts, mask)[0])

        def layer_step(layer, x, _):
            normal = layer.normalize(x)
            query = layer.mixer.project_query(normal, turn)
            return layer.finish(x, attend(query, *layer.mixer.project_key_value(normal, turn)))

        x, _ = model.run_layers(layer_step, model.embed(jnp.concatenate([noise.tokens, tokens], axis=1)))
        hidden = model.normalize(x[:, : tokens.shape[1]])
        sums = masked_cross_entropy(
            hidden, model.head_kernel(), tokens, noise.weight, noise.masked, config.logits_chunk
        )
        return sums.weighted, (sums.weighted, batch["targets"].sum())

    def step(state: TrainState, batch):
        key = jax.random.fold_in(jax.random.key(training.seed), state.step)
        sums, gradients = accumulate_gradients(loss, state.params, batch, key, training.gradient_accumulation)
        value, gradients = sums[0] / sums[1], jax.tree.map(lambda g: g / sums[1], gradients)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        return TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state), value

    return jax.jit(step, donate_argnums=0)


def doubled_mask(document_ids, block):
    """[B, 2L, 2L], noisy half first; `block` [B, L] counts blocks from the start of each document."""
    same = (document_ids[:, :, None] == document_ids[:, None, :]) & (document_ids > 0)[:, :, None]
    query, key = block[:, :, None], block[:, None, :]
    noisy = jnp.concatenate([same & (query == key), same & (query > key)], axis=2)
    clean = jnp.concatenate([jnp.zeros_like(same), same & (query >= key)], axis=2)
    return jnp.concatenate([noisy, clean], axis=1)
