"""Which tensor of a Hugging Face folder is which part of the parameters: one table a family, for both directions.

Parameters are stacked by kind of layer, Hugging Face has a tensor for each layer and expert. A `Piece` is one tensor,
or some of its rows, and its place in a leaf; `leaves` lists all of them, from the configuration alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from maskworld.config import Family, ModelConfig
from maskworld.errors import ConversionError
from maskworld.models.kinds import LayerKind, places

KeyPath = tuple[str, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """Rows of one tensor, and where they lie in a leaf."""

    place: tuple[int, ...]
    """Index in the leading axes of the leaf: (), (layer of its kind,) or (layer of its kind, expert)."""
    tensor: str
    shape: Shape
    """Of the whole tensor."""
    first: int
    """First row of the tensor that belongs to the leaf; there are as many as the leaf needs."""


@dataclass(frozen=True)
class Leaf:
    """One array of the parameters."""

    path: KeyPath
    shape: Shape
    stacked: int
    """Leading axes that a piece's `place` indexes."""
    transposed: bool
    """Whether rows of the tensor are the last axis here: torch keeps matrices as [out, in], kernels are [in, out]."""
    pieces: tuple[Piece, ...]

    @property
    def own_shape(self) -> Shape:
        """Of what one piece fills."""
        return self.shape[self.stacked :]

    @property
    def rows(self) -> int:
        """Rows of a tensor that one piece takes."""
        return self.own_shape[-1] if self.transposed else self.own_shape[0]


@dataclass(frozen=True)
class _Third:
    """One of three equal parts of a tensor's rows."""

    tensor: str
    index: int


_QWEN: dict[str, str | _Third] = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
    "mixer_norm": "model.layers.{layer}.input_layernorm.weight",
    "feed_forward_norm": "model.layers.{layer}.post_attention_layernorm.weight",
    "attention/query": "model.layers.{layer}.self_attn.q_proj",
    "attention/key": "model.layers.{layer}.self_attn.k_proj",
    "attention/value": "model.layers.{layer}.self_attn.v_proj",
    "attention/out": "model.layers.{layer}.self_attn.o_proj",
    "attention/query_norm": "model.layers.{layer}.self_attn.q_norm.weight",
    "attention/key_norm": "model.layers.{layer}.self_attn.k_norm.weight",
    "feed_forward/gate": "model.layers.{layer}.mlp.gate_proj",
    "feed_forward/up": "model.layers.{layer}.mlp.up_proj",
    "feed_forward/down": "model.layers.{layer}.mlp.down_proj",
}
_EXPERTS: dict[str, str | _Third] = _QWEN | {
    "experts/router": "model.layers.{layer}.mlp.gate.weight",
    "experts/gate": "model.layers.{layer}.mlp.experts.{expert}.gate_proj",
    "experts/up": "model.layers.{layer}.mlp.experts.{expert}.up_proj",
    "experts/down": "model.layers.{layer}.mlp.experts.{expert}.down_proj",
}
_LFM2: dict[str, str | _Third] = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.embedding_norm.weight",
    "head": "lm_head.weight",
    "mixer_norm": "model.layers.{layer}.operator_norm.weight",
    "feed_forward_norm": "model.layers.{layer}.ffn_norm.weight",
    "attention/query": "model.layers.{layer}.self_attn.q_proj",
    "attention/key": "model.layers.{layer}.self_attn.k_proj",
    "attention/value": "model.layers.{layer}.self_attn.v_proj",
    "attention/out": "model.layers.{layer}.self_attn.out_proj",
    "attention/query_norm": "model.layers.{layer}.self_attn.q_layernorm.weight",
    "attention/key_norm": "model.layers.{layer}.self_attn.k_layernorm.weight",
    # in_proj gives B, C and x; y = C * convolution(B * x)
    "convolution/input_gate": _Third("model.layers.{layer}.conv.in_proj", 0),
    "convolution/output_gate": _Third("model.layers.{layer}.conv.in_proj", 1),
    "convolution/value": _Third("model.layers.{layer}.conv.in_proj", 2),
    "convolution/out": "model.layers.{layer}.conv.out_proj",
    "convolution/taps": "model.layers.{layer}.conv.conv.weight",
    "convolution/taps_bias": "model.layers.{layer}.conv.conv.bias",
    "feed_forward/gate": "model.layers.{layer}.feed_forward.w1",
    "feed_forward/up": "model.layers.{layer}.feed_forward.w3",
    "feed_forward/down": "model.layers.{layer}.feed_forward.w2",
}
_LLADA: dict[str, str | _Third] = {
    "embedding": "model.transformer.wte.weight",
    "final_norm": "model.transformer.ln_f.weight",
    "head": "model.transformer.ff_out.weight",
    "mixer_norm": "model.transformer.blocks.{layer}.attn_norm.weight",
    "feed_forward_norm": "model.transformer.blocks.{layer}.ff_norm.weight",
    "attention/query": "model.transformer.blocks.{layer}.q_proj",
    "attention/key": "model.transformer.blocks.{layer}.k_proj",
    "attention/value": "model.transformer.blocks.{layer}.v_proj",
    "attention/out": "model.transformer.blocks.{layer}.attn_out",
    "feed_forward/gate": "model.transformer.blocks.{layer}.ff_proj",
    "feed_forward/up": "model.transformer.blocks.{layer}.up_proj",
    "feed_forward/down": "model.transformer.blocks.{layer}.ff_out",
}
TABLES: Mapping[Family, Mapping[str, str | _Third]] = {
    "sdar": _QWEN,
    "sdar_moe": _EXPERTS,
    "qwen3": _QWEN,
    "qwen3_moe": _EXPERTS,
    "mistral": _QWEN,
    "lfm2": _LFM2,
    "llada": _LLADA,
    "wedlm": _QWEN,
}
"""Family -> part of a layer -> name; the names of linear maps lack their `.weight` and `.bias`."""


def leaves(config: ModelConfig) -> tuple[Leaf, ...]:
    """Every array of the parameters of `config` (whose `vocabulary_size` is set), with all tensors that fill it.

    Raises:
        ConversionError: the family has no name for a part of the model, as for a convolution in Qwen3.
    """
    rows, width = config.vocabulary_size, config.width
    found = [
        _whole(config, "embedding", (rows, width), transposed=False),
        _whole(config, "final_norm", (width,), transposed=False),
    ]
    if not config.tie_embeddings:
        found.append(_whole(config, "head", (width, rows), transposed=True))
    layers_of: dict[LayerKind, list[int]] = {}
    for layer, (kind, _) in enumerate(places(config)):
        layers_of.setdefault(kind, []).append(layer)
    for kind, layers in layers_of.items():
        found += [_stack(config, kind, layers, part) for part in _parts(config, kind)]
    return tuple(found)


def tensor_shapes(found: tuple[Leaf, ...]) -> dict[str, Shape]:
    """Name -> shape of every tensor that the leaves are made of."""
    return {piece.tensor: piece.shape for leaf in found for piece in leaf.pieces}


def parameter_count(config: ModelConfig) -> int:
    """Numbers in the parameters; tied embeddings count once."""
    return sum(math.prod(leaf.shape) for leaf in leaves(config))


def is_redundant(config: ModelConfig, tensor: str) -> bool:
    """Whether a file may hold `tensor` without any use: the head of tied embeddings, and rotary tables."""
    head = TABLES[config.family]["head"]
    return (config.tie_embeddings and tensor == head) or tensor.endswith(".rotary_emb.inv_freq")


@dataclass(frozen=True)
class _Part:
    """One array of a layer, without the layers' axis."""

    path: KeyPath
    key: str
    """In the family's table."""
    suffix: str
    """Behind the name found there."""
    shape: Shape
    experts: int = 0
    """Above 0: the first axis counts experts."""


def _parts(config: ModelConfig, kind: LayerKind) -> Iterator[_Part]:
    width = config.width
    yield _Part(("mixer_norm",), "mixer_norm", "", (width,))
    yield _Part(("feed_forward_norm",), "feed_forward_norm", "", (width,))
    yield from _convolution(config) if kind.mixer == "convolution" else _attention(config)
    experts, inner = (config.experts.count, config.experts.feed_forward) if kind.experts else (0, config.feed_forward)
    table = "experts" if experts else "feed_forward"
    if experts:
        yield _Part(("feed_forward", "router"), "experts/router", "", (width, experts))
    for name, shape in (("gate", (width, inner)), ("up", (width, inner)), ("down", (inner, width))):
        stacked = (experts, *shape) if experts else shape
        yield _Part(("feed_forward", name, "kernel"), f"{table}/{name}", ".weight", stacked, experts)


def _attention(config: ModelConfig) -> Iterator[_Part]:
    width, queries, keys = config.width, config.heads * config.head_size, config.kv_heads * config.head_size
    for name, shape, bias in (
        ("query", (width, queries), config.attention_bias),
        ("key", (width, keys), config.attention_bias),
        ("value", (width, keys), config.attention_bias),
        ("out", (queries, width), config.attention_out_bias),
    ):
        yield from _linear("attention", name, shape, bias)
    if config.query_key_norm:
        for name in ("query_norm", "key_norm"):
            yield _Part(("mixer", name), f"attention/{name}", "", (config.head_size,))


def _convolution(config: ModelConfig) -> Iterator[_Part]:
    width = config.width
    for name in ("input_gate", "output_gate", "value", "out"):
        yield from _linear("convolution", name, (width, width), config.convolution_bias)
    yield _Part(("mixer", "taps"), "convolution/taps", "", (width, config.convolution_length))
    if config.convolution_bias:
        yield _Part(("mixer", "taps_bias"), "convolution/taps_bias", "", (width,))


def _linear(mixer: str, name: str, shape: Shape, bias: bool) -> Iterator[_Part]:
    yield _Part(("mixer", name, "kernel"), f"{mixer}/{name}", ".weight", shape)
    if bias:
        yield _Part(("mixer", name, "bias"), f"{mixer}/{name}", ".bias", shape[-1:])


def _whole(config: ModelConfig, name: str, shape: Shape, transposed: bool) -> Leaf:
    tensor = str(TABLES[config.family][name])
    piece = Piece((), tensor, shape[::-1] if transposed else shape, 0)
    return Leaf((name,), shape, 0, transposed, (piece,))


def _stack(config: ModelConfig, kind: LayerKind, layers: list[int], part: _Part) -> Leaf:
    """One part of all layers of a kind."""
    name = TABLES[config.family].get(part.key)
    if name is None:
        raise ConversionError(
            f"model.family is {config.family}, whose checkpoints have no {part.key.replace('/', ' ')}; "
            "choose the family that the model's layers are those of"
        )
    transposed = part.path[-1] in ("kernel", "router")
    own = part.shape[1:] if part.experts else part.shape
    shape = own[::-1] if transposed else own
    if part.path[-1] == "taps":
        shape = (own[0], 1, own[1])
    first = 0
    if isinstance(name, _Third):
        first, shape, name = name.index * shape[0], (3 * shape[0], *shape[1:]), name.tensor
    pieces = []
    for index, layer in enumerate(layers):
        for expert in range(part.experts or 1):
            place = (index, expert) if part.experts else (index,)
            pieces.append(Piece(place, name.format(layer=layer, expert=expert) + part.suffix, shape, first))
    path = ("layers", kind.name, *part.path)
    return Leaf(path, (len(layers), *part.shape), 2 if part.experts else 1, transposed, tuple(pieces))
