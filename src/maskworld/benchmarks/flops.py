"""Floating-point operations of one two-stream training step, counted from its shapes and masks.

Only matrix products are counted, one multiply-add as two. `executed` is what the code does, masked parts of a visited
tile and recomputed scores included; `useful` is what no implementation of the method could leave out. Elementwise
work (norms, softmax, rotary angles, taps of short convolutions, the router's statistics, the optimizer) is in neither,
so a share of the matrix-product peak charges for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from maskworld.config import DiffusionConfig, ModelConfig
from maskworld.errors import ConfigError
from maskworld.models.attention import block_tile, chosen_implementation
from maskworld.models.kinds import LayerKind, layer_kinds
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


@dataclass(frozen=True)
class LayerProducts:
    """Multiply-adds that the linear maps of one layer take for a token."""

    memory: int
    """Of what later positions see: keys and values, or what enters a short convolution."""
    rest: int
    down: int
    """The part of `rest` whose result no gradient needs: a dense feed-forward network's last product."""
    router: int
    """The part of `rest` that the backward pass of `remat="dots"` forms again."""


def layer_products(config: ModelConfig, kind: LayerKind) -> LayerProducts:
    """One layer of a kind; of a mixture, the experts that a token goes to."""
    width, experts = config.width, config.experts
    if kind.mixer == "convolution":
        memory = mixing = 2 * width * width
    else:
        memory, mixing = (2 * width * heads * config.head_size for heads in (config.kv_heads, config.heads))
    if kind.experts:
        router = width * experts.count
        return LayerProducts(memory, mixing + router + 3 * experts.per_token * width * experts.feed_forward, 0, router)
    down = width * config.feed_forward
    return LayerProducts(memory, mixing + 3 * down, down, 0)


def linear_flops(config: ModelConfig, rows: int, clean: int, noisy: int, remat: str = "none") -> float:
    """All layers on clean and noisy tokens, but of the last one's clean stream only what noisy positions see of it."""
    total, both = 0.0, rows * (clean + noisy)
    for index, kind in enumerate(layer_kinds(config)):
        one = layer_products(config, kind)
        memory, rest = _TRAINING * one.memory, _TRAINING * one.rest
        if remat == "dots":
            rest += one.router
        elif remat == "full":
            memory, rest = memory + one.memory, rest + one.rest - one.down
        total += 2.0 * (both * memory + (rows * noisy if index == config.layers - 1 else both) * rest)
    return total


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
    """What the code executes for this batch and these masked noisy positions [B, N].

    The grouped products of experts count each row once, as accelerators run them; XLA's code for CPUs multiplies every
    row by every expert.

    Raises:
        ConfigError: what is not counted here, by field.
    """
    _check_counted(config, diffusion)
    rows, clean = batch["tokens"].shape
    noisy = masked.shape[1]
    tile_flops = 2.0 * config.heads * config.head_size
    tile = block_tile(diffusion.block_length)
    own = _MASKED[config.remat] * tile_flops * rows * -(-noisy // tile) * tile * tile

    def attention(mixer: str, first_query: int) -> float:
        start, end = (part[:, first_query:] for part in key_ranges(batch, diffusion, _window(config, mixer)))
        if chosen_implementation(config.attention, start.shape[1], clean) == "chunked":
            return own + _TILED[config.remat] * tile_flops * QUERY_TILE * KEY_TILE * visited_tiles(start, end)
        return own + _MASKED[config.remat] * tile_flops * rows * start.shape[1] * clean

    # The head takes `logits_chunk` positions of every row at a time while any row has masked ones left.
    chunk = min(diffusion.logits_chunk, noisy)
    chunks = -(-int(masked.sum(axis=1).max()) // chunk)
    head = 2.0 * _TRAINING * chunks * chunk * rows * config.width * vocabulary_size
    linear = linear_flops(config, rows, clean, noisy, config.remat)
    return Flops(linear, _over_layers(config, clean, attention), head)


def useful_flops(
    config: ModelConfig,
    vocabulary_size: int,
    diffusion: DiffusionConfig,
    batch: dict[str, np.ndarray],
    masked: np.ndarray,
) -> Flops:
    """Allowed (query, key) pairs and masked positions only, nothing recomputed."""
    _check_counted(config, diffusion)
    rows, clean = batch["tokens"].shape
    documents = _noisy(batch["document_ids"], batch["target_blocks"], diffusion)
    in_block = documents.reshape(rows, -1, diffusion.block_length)
    together = (in_block[..., :, None] == in_block[..., None, :]) & (in_block > 0)[..., None]
    back = np.arange(diffusion.block_length)[:, None] - np.arange(diffusion.block_length)

    def pairs(mixer: str, first_query: int) -> float:
        window = _window(config, mixer)
        start, end = key_ranges(batch, diffusion, window)
        own = (together & (back < window) if window else together).sum()
        return float(np.maximum(end - start, 0)[:, first_query:].sum() + own)

    return Flops(
        linear_flops(config, rows, clean, masked.shape[1]),
        _ATTENTION * 2.0 * config.heads * config.head_size * _over_layers(config, clean, pairs),
        2.0 * _TRAINING * int(masked.sum()) * config.width * vocabulary_size,
    )


def _over_layers(config: ModelConfig, clean: int, count: Callable[[str, int], float]) -> float:
    """Sum of `count(mixer, first query)` over the layers that attend; the last has no queries in the clean stream."""
    *inner, last = (kind.mixer for kind in layer_kinds(config))
    attending = Counter(mixer for mixer in inner if mixer != "convolution")
    total = sum(number * count(mixer, 0) for mixer, number in attending.items())
    return total + (count(last, clean) if last != "convolution" else 0.0)


def _window(config: ModelConfig, mixer: str) -> int:
    return config.sliding_window if mixer == "sliding" else 0


def _check_counted(config: ModelConfig, diffusion: DiffusionConfig) -> None:
    if config.lora.rank:
        raise ConfigError("model.lora.rank: the work of low-rank updates is not counted")
    if diffusion.objective != "block_diffusion":
        raise ConfigError(f"diffusion.objective: the work of {diffusion.objective} is not counted")


def key_ranges(
    batch: dict[str, np.ndarray], diffusion: DiffusionConfig, window: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The clean keys that each of the [B, L + N] queries sees, as the training forward lays them out.

    `window` above 0 limits how many keys back, the query's own included.
    """
    from maskworld.models.two_stream import two_stream_layout

    layout = two_stream_layout(
        batch["document_ids"],
        batch["positions"],
        batch["target_blocks"],
        diffusion.block_length,
        diffusion.noisy_copies,
    )
    start, index = np.asarray(layout.key_start), np.asarray(layout.index)
    return np.maximum(start, index - window + 1) if window else start, np.asarray(layout.key_end)


def _noisy(x: np.ndarray, target_blocks: np.ndarray, diffusion: DiffusionConfig) -> np.ndarray:
    from maskworld.models.two_stream import gather_blocks

    return np.tile(np.asarray(gather_blocks(x, target_blocks, diffusion.block_length, 0)), (1, diffusion.noisy_copies))
