"""Block diffusion as published: the doubled sequence [noisy ; clean] under one dense mask. Slow and obvious.

Written from BD3-LM (arXiv 2503.09573) for the tests: nothing here is shared with the two-stream path but the layers'
projections and an attention over an explicit mask.
"""

import jax
import jax.numpy as jnp
import numpy as np

from maskworld.models.attention import masked_attention


def doubled_mask(document_ids: np.ndarray, positions: np.ndarray, block_length: int) -> np.ndarray:
    """[B, 2L, 2L], noisy half first. Blocks count from the start of the document; padding sees and shows nothing."""
    block = positions // block_length
    document = document_ids
    same_document = (document[:, :, None] == document[:, None, :]) & (document > 0)[:, :, None]
    query, key = block[:, :, None], block[:, None, :]
    noisy_noisy = same_document & (query == key)
    noisy_clean = same_document & (query > key)
    clean_clean = same_document & (query >= key)
    nothing = np.zeros_like(clean_clean)
    return np.concatenate(
        [np.concatenate([noisy_noisy, noisy_clean], 2), np.concatenate([nothing, clean_clean], 2)], axis=1
    )


def forward(model, tokens, positions, mask):
    """Hidden states after the last layer, before the final norm."""
    x, turn = model.embed(tokens), model.rotation(positions)
    for index in range(model.config.layers):
        layer = model.layer(index)
        normal = layer.normalize(x)
        key_value = layer.attention.project_key_value(normal, turn)
        query = layer.attention.project_query(normal, turn)
        out, _ = masked_attention(query, *key_value, mask)
        x = layer.finish(x, out)
    return x


def doubled_loss(network, params, batch, mask, noisy_tokens, masked, weight):
    """(sum of weight * cross-entropy, sum of cross-entropy); noisy arrays are [B, L] at their row positions.

    `mask` is that of `doubled_mask`: made outside, because a compiler takes long over large constants.
    """
    model = network.bind(params)
    tokens = jnp.concatenate([noisy_tokens, batch["tokens"]], axis=1)
    positions = jnp.concatenate([batch["positions"]] * 2, axis=1)
    hidden = forward(model, tokens, positions, mask)[:, : batch["tokens"].shape[1]]
    log_probs = jax.nn.log_softmax(model.logits(hidden), axis=-1)
    loss = -jnp.take_along_axis(log_probs, batch["tokens"][..., None], axis=-1)[..., 0]
    loss = jnp.where(masked, loss, 0.0)
    return (loss * weight).sum(), loss.sum()
