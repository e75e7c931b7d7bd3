"""Which kind of layer stands where: layers of one kind share shapes, are stacked in one tree and scanned together."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from maskworld.config import Mixer, ModelConfig

_LONGEST_PATTERN = 12


class LayerKind(NamedTuple):
    """What a layer is made of."""

    mixer: Mixer
    experts: bool

    @property
    def name(self) -> str:
        """Key of the kind's stack in `params["layers"]`: "attention", "convolution_experts" and so on."""
        return f"{self.mixer}_experts" if self.experts else self.mixer


class Segment(NamedTuple):
    """`repeats` times the same pattern of kinds, one after another; one scan whose body is the pattern."""

    pattern: tuple[LayerKind, ...]
    repeats: int


def layer_kinds(config: ModelConfig) -> tuple[LayerKind, ...]:
    """The kind of every layer, from the first."""
    mixers = config.mixers or ("attention",) * config.layers
    return tuple(LayerKind(mixer, has_experts(config, index)) for index, mixer in enumerate(mixers))


def has_experts(config: ModelConfig, layer: int) -> bool:
    """Whether a layer's feed-forward network is a mixture of experts (the rule of Qwen3-MoE's configuration)."""
    experts = config.experts
    return experts.count > 0 and (layer + 1) % experts.every == 0 and layer not in experts.dense_layers


def kind_counts(config: ModelConfig) -> dict[LayerKind, int]:
    """How many layers there are of each kind, in the order of first appearance."""
    return dict(Counter(layer_kinds(config)))


def places(config: ModelConfig) -> tuple[tuple[LayerKind, int], ...]:
    """For each layer its kind and its index in that kind's stack."""
    seen: Counter[LayerKind] = Counter()
    found = []
    for kind in layer_kinds(config):
        found.append((kind, seen[kind]))
        seen[kind] += 1
    return tuple(found)


def segments(kinds: tuple[LayerKind, ...]) -> list[Segment]:
    """The layers cut into repeated patterns, from the left, each as long as it gets; the shorter pattern among equals.

    Alternating kinds become one scan over pairs, irregular stretches patterns that are run once.
    """
    cut, start = [], 0
    while start < len(kinds):
        best = Segment(kinds[start : start + 1], 1)
        for length in range(1, min(_LONGEST_PATTERN, len(kinds) - start) + 1):
            pattern, repeats = kinds[start : start + length], 1
            while kinds[start + repeats * length : start + (repeats + 1) * length] == pattern:
                repeats += 1
            if repeats > 1 and repeats * length > len(best.pattern) * best.repeats:
                best = Segment(pattern, repeats)
        cut.append(best)
        start += len(best.pattern) * best.repeats
    return cut
