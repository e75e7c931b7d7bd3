"""Floating-point operations of one two-stream training step, counted from its shapes and masks.

Only matrix products are counted, one multiply-add as two. `executed` is what the code does, masked parts of a visited
tile and recomputed scores included; `useful` is what no implementation of the method could leave out. Elementwise
work (norms, softmax, rotary angles, the optimizer) is in neither, so a share of the matrix-product peak charges for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from maskworld.config import DiffusionConfig, ModelConfig
from maskworld.models.attention import block_tile, chosen_implementation
from maskworld.models.range_attention import KEY_TILE, QUERY_TILE

_TRAINING = 3
"""A linear map costs its forward product three times: forward, gradient of the input, gradient of the kernel."""
_ATTENTION = 6
"""Products of attention that keeps its weights: two forward (scores, mixing) and four gradients."""
_MASKED = {"none": _ATTENTION, "dots": _ATTENTION + 1, "full": _ATTENTION + 2}
"""The same under `model.remat`: "dots" forms the scores again, "full" mixes again too."""
_TILED = {"none": _ATTENTION + 1, "dots": _ATTENTION + 1, "full": _ATTENTION + 3}
"""A tile kernel always forms the scores again in the backward pass; "full" runs its forward pass twice."""


@dataclass(frozen=True)
class Flops:
    """Of one step over the whole batch."""

    linear: float
    """Projections and feed-forward networks."""
    attention: float
    head: float

    @property
    def total(self) -> float:
        """All kinds together."""
        return self.linear + self.attention + self.head


def layer_parameters(config: ModelConfig) -> tuple[int, int]:
    """Matrix parameters of one layer: (keys and values, everything else)."""
    key_value = 2 * config.width * config.kv_heads * config.head_size
    rest = 2 * config.width * config.heads * config.head_size + 3 * config.width * config.feed_forward
    return key_value, rest


def linear_flops(config: ModelConfig, rows: int, clean: int, noisy: int, remat: str = "none") -> float:
    """All layers on clean and noisy tokens, but the last one's clean stream makes keys and values only."""
    key_value, rest = layer_parameters(config)
    if remat == "full":  # every forward product twice, but the last one of a layer, whose result no gradient needs
        down = config.width * config.feed_forward
        key_value, rest = key_value * (1 + 1 / _TRAINING), (rest - down) * (1 + 1 / _TRAINING) + down
    both = rows * (clean + noisy)
    inner = (config.layers - 1) * both * (key_value + rest)
    last = both * key_value + rows * noisy * rest
    return 2.0 * _TRAINING * (inner + last)


def visited_tiles(key_start: np.ndarray, key_end: np.ndarray) -> int:
    """Tiles that the chunked range attention visits for queries with these ranges [B, N]: all from the first to the
    last key tile that any query of a query tile sees."""
    count = 0
    for starts, ends in zip(key_start, key_end, strict=True):
        for at in range(0, len(starts), QUERY_TILE):
            start, end = starts[at : at + QUERY_TILE], ends[at : at + QUERY_TILE]
            seen = end > start
            if seen.any():
                count += -(-int(end[seen].max()) // KEY_TILE) - int(start[seen].min()) // KEY_TILE
    return count


def executed_flops(
    config: ModelConfig,
    vocabulary_size: int,
    diffusion: DiffusionConfig,
    batch: dict[str, np.ndarray],
    masked: np.ndarray,
) -> Flops:
    """What the code executes for this batch and these masked noisy positions [B, N]."""
    rows, clean = batch["tokens"].shape
    noisy = masked.shape[1]
    start, end = key_ranges(batch, diffusion)
    tile_flops = 2.0 * config.heads * config.head_size

    def range_part(first_query: int) -> float:
        s, e = start[:, first_query:], end[:, first_query:]
        if chosen_implementation(config.attention, s.shape[1], clean) == "chunked":
            return _TILED[config.remat] * tile_flops * QUERY_TILE * KEY_TILE * visited_tiles(s, e)
        return _MASKED[config.remat] * tile_flops * rows * s.shape[1] * clean

    tile = block_tile(diffusion.block_length)
    own = _MASKED[config.remat] * tile_flops * rows * -(-noisy // tile) * tile * tile
    attention = (config.layers - 1) * range_part(0) + range_part(clean) + config.layers * own

    # The head takes `logits_chunk` positions of every row at a time while any row has masked ones left.
    chunk = min(diffusion.logits_chunk, noisy)
    chunks = -(-int(masked.sum(axis=1).max()) // chunk)
    head = 2.0 * _TRAINING * chunks * chunk * rows * config.width * vocabulary_size
    return Flops(linear_flops(config, rows, clean, noisy, config.remat), attention, head)


def useful_flops(
    config: ModelConfig,
    vocabulary_size: int,
    diffusion: DiffusionConfig,
    batch: dict[str, np.ndarray],
    masked: np.ndarray,
) -> Flops:
    """Allowed (query, key) pairs and masked positions only, nothing recomputed."""
    rows, clean = batch["tokens"].shape
    start, end = key_ranges(batch, diffusion)
    seen = np.maximum(end - start, 0)
    documents = _noisy(batch["document_ids"], batch["target_blocks"], diffusion)
    in_block = documents.reshape(rows, -1, diffusion.block_length)
    own = ((in_block[..., :, None] == in_block[..., None, :]) & (in_block > 0)[..., None]).sum()
    pairs = (config.layers - 1) * seen.sum() + seen[:, clean:].sum() + config.layers * own
    return Flops(
        linear_flops(config, rows, clean, masked.shape[1]),
        _ATTENTION * 2.0 * config.heads * config.head_size * float(pairs),
        2.0 * _TRAINING * int(masked.sum()) * config.width * vocabulary_size,
    )


def key_ranges(batch: dict[str, np.ndarray], diffusion: DiffusionConfig) -> tuple[np.ndarray, np.ndarray]:
    """The clean keys that each of the [B, L + N] queries sees, as the training forward lays them out."""
    from maskworld.models.two_stream import two_stream_layout

    layout = two_stream_layout(
        batch["document_ids"],
        batch["positions"],
        batch["target_blocks"],
        diffusion.block_length,
        diffusion.noisy_copies,
    )
    return np.asarray(layout.key_start), np.asarray(layout.key_end)


def _noisy(x: np.ndarray, target_blocks: np.ndarray, diffusion: DiffusionConfig) -> np.ndarray:
    from maskworld.models.two_stream import gather_blocks

    return np.tile(np.asarray(gather_blocks(x, target_blocks, diffusion.block_length, 0)), (1, diffusion.noisy_copies))
