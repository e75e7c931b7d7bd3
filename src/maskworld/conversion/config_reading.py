"""A `config.json` of transformers 4 or 5, or of a model's own code, as `ModelConfig`.

The dialects differ in names (`rope_theta` or `rope_parameters.rope_theta`, `num_experts` or `num_local_experts`) and in
what is left out because it equals a default. Where a key is absent, the default is that of the family's own class. What
the network does not have is refused by name; keys that change no number (dropout, caches, initialisation) are passed
over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskworld.config import ExpertsConfig, Family, Mixer, ModelConfig
from maskworld.conversion.keys import Keys
from maskworld.errors import ConversionError

CONFIG_FILE = "config.json"
ARCHITECTURES: dict[Family, str] = {
    "sdar": "SDARForCausalLM",
    "sdar_moe": "SDARMoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "mistral": "MistralForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "llada": "LLaDAModelLM",
    "wedlm": "WeDLMForCausalLM",
}
"""Family, which is also the `model_type`, and the class that its config.json names."""

_LATER_DTYPE = "dtype"
_MOST = 10_000
"""Layers of a model, and experts of a layer. Tables are as long: a damaged number must not fill the memory."""


@dataclass(frozen=True)
class Description:
    """What a config.json says."""

    model: ModelConfig
    """With `vocabulary_size`, the rows of the embedding."""
    block_length: int | None
    mask_id: int | None
    pad_id: int | None
    bos_id: int | None
    end_ids: tuple[int, ...]
    dtype: str | None
    """What the weights are said to be; the files decide."""
    raw: Mapping[str, Any]


def read_config(folder: Path) -> Description:
    """The config.json of a Hugging Face folder.

    Raises:
        ConversionError: no such folder or file, or what `read_config_file` raises.
    """
    file = folder / CONFIG_FILE
    if not file.is_file():
        what = f"no {CONFIG_FILE} in it" if folder.is_dir() else "a file" if folder.exists() else "no such folder"
        raise ConversionError(f"{folder}: {what}; give the folder into which a Hugging Face checkpoint was fetched")
    return read_config_file(file)


def read_config_file(file: Path) -> Description:
    """One config.json.

    Raises:
        ConversionError: no JSON object, or what `describe` raises; names the file.
    """
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"{file}: no JSON ({error})") from None
    if not isinstance(raw, dict):
        raise ConversionError(f"{file}: no JSON object")
    return describe(raw, str(file))


def describe(raw: Mapping[str, Any], where: str = CONFIG_FILE) -> Description:
    """What the content of a config.json says.

    Raises:
        ConversionError: an unknown architecture, a missing key, a value of another type, or something that the network
            does not have (scaled rotary positions, another activation); names the key.
    """
    keys = Keys(raw, where)
    family = _family(keys)
    keys.only("quantization_config", what="quantised weights are not read; fetch the unquantised checkpoint")
    model = _READERS[family](keys, family)
    if model.heads % model.kv_heads:
        raise keys.refuse(f"{model.heads} query heads are no multiple of {model.kv_heads} key/value heads")
    if model.head_size % 2:
        raise keys.refuse(f"heads of {model.head_size}; rotary positions need an even number")
    return Description(
        model=model,
        block_length=keys.whole("block_size", default=None),
        mask_id=keys.token("mask_token_id"),
        pad_id=keys.token("pad_token_id"),
        bos_id=keys.token("bos_token_id"),
        end_ids=keys.tokens("eos_token_id"),
        dtype=raw.get(_LATER_DTYPE) or raw.get("torch_dtype"),
        raw=raw,
    )


def _family(keys: Keys) -> Family:
    kind, classes = keys.raw.get("model_type"), keys.raw.get("architectures") or []
    known = ", ".join(f"{name} ({family})" for family, name in ARCHITECTURES.items())
    by_class = {name: family for family, name in ARCHITECTURES.items()}
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise keys.refuse(f"architectures is {classes!r}; it must be a list of names")
    if kind is None and not classes:
        raise keys.refuse(f"has neither model_type nor architectures; known: {known}")
    if kind is not None and (not isinstance(kind, str) or kind not in ARCHITECTURES):
        raise keys.refuse(f"model_type {kind!r} is not known here; known: {known}")
    if classes and classes[0] not in by_class:
        raise keys.refuse(f"architecture {classes[0]!r} is not known here; known: {known}")
    family = kind if kind is not None else by_class[classes[0]]
    if classes and by_class[classes[0]] != family:
        raise keys.refuse(f"model_type {kind!r} and architecture {classes[0]!r} are of different families")
    return family


def _shared(keys: Keys, family: Family, head_size: int | None = None) -> dict[str, Any]:
    """What all but LLaDA call alike. `head_size` is the family's default, None width / heads."""
    keys.only("hidden_act", "silu", "swish", what="the network has silu")
    width, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    if keys.raw.get("head_dim") is None and head_size is None and width % heads:
        raise keys.refuse(
            f"hidden_size {width} is no multiple of num_attention_heads {heads}, and there is no head_dim"
        )
    return {
        "family": family,
        "vocabulary_size": keys.whole("vocab_size"),
        "width": width,
        "layers": keys.whole("num_hidden_layers", most=_MOST),
        "heads": heads,
        "kv_heads": _kv_heads(keys, heads),
        "head_size": keys.whole("head_dim", default=head_size or width // heads),
        "initializer_std": keys.real("initializer_range", default=0.02),
        "embedding_std": keys.real("initializer_range", default=0.02),
    }


def _kv_heads(keys: Keys, heads: int) -> int:
    if "num_key_value_heads" not in keys.raw:  # the classes' defaults (32, 4, 8) fit their largest model only
        raise keys.refuse("lacks num_key_value_heads; the model's shape depends on it")
    return keys.whole("num_key_value_heads", default=heads)


def _theta(keys: Keys, *names: str, default: float | None = None) -> float:
    """Base of the rotary angles, under any of its names. `default` None: required."""
    parameters = keys.raw.get("rope_parameters") or {}
    scaling = keys.raw.get("rope_scaling") or {}
    for name, value in (("rope_parameters", parameters), ("rope_scaling", scaling)):
        if not isinstance(value, dict):
            raise keys.refuse(f"{name} is {value!r}; it must be an object or null")
        kind = value.get("rope_type", value.get("type", "default"))
        if kind != "default":
            raise keys.refuse(f"{name} is of type {kind!r}; the network has unscaled rotary positions only")
        if any(isinstance(one, dict) for one in value.values()):
            raise keys.refuse(f"{name} differs from layer to layer; the network has one for all")
    for source in (keys.raw, parameters):
        if source.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise keys.refuse(
                f"partial_rotary_factor is {source['partial_rotary_factor']!r}; the network turns whole heads"
            )
    if parameters.get("rope_theta") is not None:
        return Keys(parameters, f"{keys.where}: rope_parameters").real("rope_theta")
    return keys.real(*names, "rope_theta") if default is None else keys.real(*names, "rope_theta", default=default)


def _windowed(keys: Keys, layers: int, from_layer: int) -> tuple[tuple[Mixer, ...], int]:
    """Mixers and window of the Qwen3 kind, where `use_sliding_window` decides whether there is any."""
    window = keys.whole("sliding_window", default=4096) if keys.truth("use_sliding_window", default=False) else None
    kinds = keys.words("layer_types", default=None)
    if kinds is None:
        sliding = [window is not None and layer >= from_layer for layer in range(layers)]
        kinds = tuple("sliding_attention" if one else "full_attention" for one in sliding)
    mixers = _mixers(keys, kinds, layers, {"full_attention": "attention", "sliding_attention": "sliding"})
    if "sliding" in mixers and window is None:
        raise keys.refuse("layer_types has sliding_attention, but use_sliding_window is false")
    return mixers, (window or 0) if "sliding" in mixers else 0


def _mixers(keys: Keys, kinds: tuple[str, ...], layers: int, known: Mapping[str, Mixer]) -> tuple[Mixer, ...]:
    if len(kinds) != layers:
        raise keys.refuse(f"layer_types names {len(kinds)} layers, num_hidden_layers is {layers}")
    for kind in kinds:
        if kind not in known:
            raise keys.refuse(f"layer_types has {kind!r}; known: {', '.join(known)}")
    mixers = tuple(known[kind] for kind in kinds)
    return () if set(mixers) == {"attention"} else mixers


def _qwen3(keys: Keys, family: Family) -> ModelConfig:
    """Qwen3 and SDAR, whose classes both take 128 for an absent head_dim."""
    shared = _shared(keys, family, head_size=128)
    bias = keys.truth("attention_bias", default=False)
    layers = shared["layers"]
    mixers, window = _windowed(keys, layers, keys.whole("max_window_layers", default=28, least=0))
    return ModelConfig(
        **shared,
        feed_forward=keys.whole("intermediate_size"),
        rope_theta=_theta(keys),
        norm_epsilon=keys.real("rms_norm_eps", default=1e-6),
        attention_bias=bias,
        attention_out_bias=bias,
        mixers=mixers,
        sliding_window=window,
        tie_embeddings=keys.truth("tie_word_embeddings", default=False),
    )


def _qwen3_moe(keys: Keys, family: Family) -> ModelConfig:
    """Qwen3-MoE and SDAR-MoE; a window there holds for all layers. An absent head_dim is width / heads."""
    shared = _shared(keys, family)
    bias = keys.truth("attention_bias", default=False)
    mixers, window = _windowed(keys, shared["layers"], from_layer=0)
    experts = ExpertsConfig(
        count=keys.whole("num_experts", "num_local_experts", default=128, least=0, most=_MOST),
        per_token=keys.whole("num_experts_per_tok", default=8),
        feed_forward=keys.whole("moe_intermediate_size", default=768),
        normalize_weights=keys.truth("norm_topk_prob", default=False),
        every=keys.whole("decoder_sparse_step", default=1),
        dense_layers=keys.wholes("mlp_only_layers", default=()),
        balance_weight=keys.raw.get("router_aux_loss_coef") or 0.0,
    )
    if experts.count and experts.per_token > experts.count:
        raise keys.refuse(f"num_experts_per_tok is {experts.per_token}, and there are {experts.count} experts")
    return ModelConfig(
        **shared,
        feed_forward=keys.whole("intermediate_size"),
        rope_theta=_theta(keys),
        norm_epsilon=keys.real("rms_norm_eps", default=1e-6),
        attention_bias=bias,
        attention_out_bias=bias,
        mixers=mixers,
        sliding_window=window,
        experts=experts,
        tie_embeddings=keys.truth("tie_word_embeddings", default=False),
    )


def _mistral(keys: Keys, family: Family) -> ModelConfig:
    """Mistral: `sliding_window` holds for all layers, absent it is 4096 and null is none. head_dim: width / heads."""
    shared = _shared(keys, family)
    layers = shared["layers"]
    window = keys.whole("sliding_window", default=None) if "sliding_window" in keys.raw else 4096
    kinds = keys.words("layer_types", default=None)
    expected = "full_attention" if window is None else "sliding_attention"
    if kinds is not None and set(kinds) != {expected}:
        raise keys.refuse(
            f"layer_types is not all {expected}, as sliding_window {window} makes a Mistral; this is another model"
        )
    return ModelConfig(
        **shared,
        feed_forward=keys.whole("intermediate_size"),
        rope_theta=_theta(keys),
        norm_epsilon=keys.real("rms_norm_eps", default=1e-6),
        query_key_norm=False,
        mixers=("sliding",) * layers if window else (),
        sliding_window=window or 0,
        tie_embeddings=keys.truth("tie_word_embeddings", default=False),
    )


def _lfm2(keys: Keys, family: Family) -> ModelConfig:
    """LFM2 and LFM2.5. Embeddings are tied unless it says otherwise; heads are width / heads."""
    shared = _shared(keys, family)
    layers = shared["layers"]
    kinds = keys.words("layer_types", default=None)
    if kinds is None:
        attending = keys.wholes("full_attn_idxs", default=tuple(range(layers)))
        kinds = tuple("full_attention" if layer in attending else "conv" for layer in range(layers))
    return ModelConfig(
        **shared,
        feed_forward=_lfm2_feed_forward(keys),
        rope_theta=_theta(keys, "theta", default=1e6),
        norm_epsilon=keys.real("norm_eps", "block_norm_eps", default=1e-5),
        mixers=_mixers(keys, kinds, layers, {"full_attention": "attention", "conv": "convolution"}),
        convolution_length=keys.whole("conv_L_cache", default=3),
        convolution_bias=keys.truth("conv_bias", default=False),
        tie_embeddings=keys.truth("tie_embedding", "tie_word_embeddings", default=True),
    )


def _lfm2_feed_forward(keys: Keys) -> int:
    """Two thirds of the size given, times a factor, rounded up; unless that is switched off."""
    size = keys.whole("block_ff_dim", "intermediate_size")
    if not keys.truth("block_auto_adjust_ff_dim", default=True):
        return size
    size = int(2 * size / 3)
    if "block_ffn_dim_multiplier" in keys.raw and keys.raw["block_ffn_dim_multiplier"] is None:
        return size  # null switches the rounding off as well
    size = int(keys.real("block_ffn_dim_multiplier", default=1.0) * size)
    multiple = keys.whole("block_multiple_of", default=256)
    return multiple * -(-size // multiple)


def _wedlm(keys: Keys, family: Family) -> ModelConfig:
    """WeDLM: the norm of queries and keys is a choice, and the output projection never has a bias."""
    shared = _shared(keys, family)
    mixers, window = _windowed(keys, shared["layers"], keys.whole("max_window_layers", default=28, least=0))
    return ModelConfig(
        **shared,
        feed_forward=keys.whole("intermediate_size"),
        rope_theta=_theta(keys),
        norm_epsilon=keys.real("rms_norm_eps", default=1e-6),
        query_key_norm=keys.truth("qk_norm"),
        attention_bias=keys.truth("attention_bias", default=False),
        mixers=mixers,
        sliding_window=window,
        tie_embeddings=keys.truth("tie_word_embeddings", default=False),
    )


_LLADA_FIXED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("alibi", (False,), "the network has rotary positions only"),
    ("rope", (True,), "the network has rotary positions"),
    ("layer_norm_type", ("rms",), "the network has root-mean-square norms (rms)"),
    ("layer_norm_with_affine", (True,), "the network's norms have weights"),
    ("bias_for_layer_norm", (False,), "the network's norms have no bias"),
    ("activation_type", ("silu",), "the network has silu"),
    ("attention_layer_norm", (False,), "the network has no such norm"),
    ("input_emb_norm", (False,), "the network has no such norm"),
    ("scale_logits", (False,), "the network does not scale logits"),
    ("include_bias", (False,), "the network's feed-forward layers have no bias"),
    ("clip_qkv", (), "the network does not clip queries and keys"),
    ("block_type", ("llama",), "the network has blocks of type llama"),
)


def _llada(keys: Keys, family: Family) -> ModelConfig:
    """LLaDA, whose keys are OLMo's. Embeddings are tied unless it says otherwise."""
    for name in ("block_type", "layer_norm_type", "activation_type"):  # the class's own defaults are others
        if keys.raw.get(name) is None:
            raise keys.refuse(f"lacks {name}; what the layers compute depends on it")
    for name, allowed, what in _LLADA_FIXED:
        keys.only(name, *allowed, what=what)
    if keys.raw.get("rope") is None:
        raise keys.refuse("lacks rope; the network has rotary positions")
    width, heads = keys.whole("d_model"), keys.whole("n_heads")
    if width % heads:
        raise keys.refuse(f"d_model {width} is no multiple of n_heads {heads}")
    single = keys.truth("multi_query_attention", default=False)
    rows = keys.whole("vocab_size")
    return ModelConfig(
        family=family,
        vocabulary_size=keys.whole("embedding_size", default=rows),
        width=width,
        layers=keys.whole("n_layers", most=_MOST),
        heads=heads,
        kv_heads=keys.whole("n_kv_heads", default=1 if single else heads),
        head_size=width // heads,
        feed_forward=keys.whole("mlp_hidden_size", default=keys.whole("mlp_ratio", default=4) * width),
        rope_theta=_theta(keys),
        norm_epsilon=keys.real("rms_norm_eps", default=1e-5),
        query_key_norm=False,
        attention_bias=keys.truth("include_qkv_bias", default=False),
        tie_embeddings=keys.truth("weight_tying", default=True),
        initializer_std=keys.real("init_std", default=0.02),
        embedding_std=keys.real("init_std", default=0.02),
    )


_READERS: dict[Family, Callable[[Keys, Family], ModelConfig]] = {
    "sdar": _qwen3,
    "sdar_moe": _qwen3_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "mistral": _mistral,
    "lfm2": _lfm2,
    "llada": _llada,
    "wedlm": _wedlm,
}
