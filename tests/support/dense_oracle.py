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


def windowed(mask: np.ndarray, positions: np.ndarray, window: int) -> np.ndarray:
    """A doubled mask without the keys that lie `window` positions or more before their query."""
    doubled = np.concatenate([positions, positions], axis=1)
    return mask & (doubled[:, :, None] - doubled[:, None, :] < window)


def earlier(positions: np.ndarray, block_length: int, back: int) -> np.ndarray:
    """[B, 2L]: where in the doubled sequence a position finds the token `back` positions before it, -1 for nowhere.

    A noisy position looks into its own block's noisy copy, and before that into the clean half.
    """
    rows, length = positions.shape
    index = np.broadcast_to(np.arange(length), (rows, length))
    in_block = positions % block_length >= back
    noisy = np.where(in_block, index - back, length + index - back)
    found = np.concatenate([noisy, length + index - back], axis=1)
    return np.where(np.concatenate([positions, positions], axis=1) >= back, found, -1)


def forward(model, tokens, positions, mask, block_length=None):
    """Hidden states after the last layer, before the final norm.

    `mask` is one for all layers, or a dict by window (0: none). Convolutions need the block length and numpy positions
    of one half; without a block length tokens are plain clean ones.
    """
    x, turn = model.embed(tokens), model.rotation(positions)
    for index in range(model.config.layers):
        layer = model.layer(index)
        normal = layer.normalize(x)
        if layer.convolves:
            mixed = _convolve(layer.mixer, normal, positions, block_length)
        else:
            key_value = layer.mixer.project_key_value(normal, turn)
            query = layer.mixer.project_query(normal, turn)
            seen = mask[layer.mixer.window] if isinstance(mask, dict) else mask
            mixed, _ = masked_attention(query, *key_value, seen)
        x, _ = layer.finish(x, mixed)
    return x


def _convolve(mixer, normal, positions, block_length):
    x = mixer.project_in(normal)
    half = np.asarray(positions)[:, : x.shape[1] // 2] if block_length else np.asarray(positions)
    total = 0
    for back in range(mixer.length):
        if block_length:
            place = earlier(half, block_length, back)
        else:
            place = np.where(half >= back, np.arange(half.shape[1]) - back, -1)
        taken = jnp.take_along_axis(x, np.maximum(place, 0)[..., None], axis=1)
        total = total + jnp.where((place >= 0)[..., None], taken, 0) * mixer.taps[...][:, mixer.length - 1 - back]
    if mixer.has_bias:
        total = total + mixer.taps_bias[...]
    return mixer.gate(normal, total)


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
