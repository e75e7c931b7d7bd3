"""A `ModelConfig` as the config.json of its family, in a form that transformers 4 and 5 both read.

Where a name differs between the two, both are written. What was written is read back and compared: a model that its
family's config.json cannot describe is refused, with the fields that would be lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from maskworld.config import Family, LoraConfig, ModelConfig
from maskworld.configure import leaves
from maskworld.conversion.config_reading import ARCHITECTURES, describe
from maskworld.errors import ConversionError

# What a config.json says nothing of and no number of the forward pass depends on.
_OF_TRAINING = ("scan_layers", "remat", "attention", "initializer_std", "embedding_std")
_IN_TRANSFORMERS = ("qwen3", "qwen3_moe", "mistral", "lfm2")
# Aliases that would outrank the keys written here.
_OUTRANKING = ("block_ff_dim", "full_attn_idxs", "theta", "block_norm_eps", "rope_parameters", "num_experts")


def config_json(
    model: ModelConfig, dtype: str, original: Mapping[str, Any] | None = None, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The content of config.json.

    Args:
        model: with `vocabulary_size` set.
        dtype: of the weights, "bfloat16" and the like.
        original: a config.json whose keys are kept (`auto_map`, token ids) as far as they do not contradict.
        more: keys that outrank those of `original`: token ids, the block length.

    Raises:
        ConversionError: the family cannot describe this model; names the fields.
    """
    raw = dict(original or {})
    if original is None or _essence(describe(original).model) != _essence(model):
        raw = {key: value for key, value in raw.items() if key not in _OUTRANKING}
        raw |= {"architectures": [ARCHITECTURES[model.family]], "model_type": model.family} | _WRITERS[model.family](
            model
        )
    raw |= dict(more or {})
    raw |= {"torch_dtype": dtype, "dtype": dtype}
    if model.family in _IN_TRANSFORMERS:
        raw |= {
            "rope_theta": model.rope_theta,
            "rope_parameters": {"rope_theta": model.rope_theta, "rope_type": "default"},
        }
    if model.family in ("qwen3_moe", "sdar_moe"):
        raw |= {"num_experts": model.experts.count, "num_local_experts": model.experts.count}
    if model.family == "lfm2":
        raw |= {"tie_embedding": model.tie_embeddings, "tie_word_embeddings": model.tie_embeddings}
    _check(model, raw)
    return raw


def _check(model: ModelConfig, raw: Mapping[str, Any]) -> None:
    told = f"the config.json of {model.family}"
    written, wanted = (dict(leaves(_essence(one))) for one in (describe(raw, told).model, model))
    lost = [f"  model.{key} = {wanted[key]!r}, {told} can only say {written[key]!r}" for key in wanted]
    lost = [line for key, line in zip(wanted, lost, strict=True) if written[key] != wanted[key]]
    if lost:
        raise ConversionError(
            f"this model is none of the family {model.family}:\n" + "\n".join(lost) + "\nExport it as the family it is."
        )


def _essence(model: ModelConfig) -> ModelConfig:
    """What the forward pass depends on, in one spelling."""
    blank = ModelConfig()
    same = {name: getattr(blank, name) for name in _OF_TRAINING}
    experts = dataclasses.replace(model.experts, balance_weight=0.0) if model.experts.count else blank.experts
    windowed = "sliding" in model.mixers
    convolving = "convolution" in model.mixers
    return dataclasses.replace(
        model,
        **same,
        lora=LoraConfig(),
        experts=experts,
        mixers=() if set(model.mixers) == {"attention"} else model.mixers,
        sliding_window=model.sliding_window if windowed else 0,
        convolution_length=model.convolution_length if convolving else blank.convolution_length,
        convolution_bias=convolving and model.convolution_bias,
    )


def _shared(model: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": model.vocabulary_size,
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_size,
        "intermediate_size": model.feed_forward,
        "hidden_act": "silu",
        "initializer_range": model.initializer_std,
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rope_theta,
        "rope_scaling": None,
        "tie_word_embeddings": model.tie_embeddings,
    }


def _windowed(model: ModelConfig) -> dict[str, Any]:
    mixers = model.mixers or ("attention",) * model.layers
    sliding = "sliding" in mixers
    names = {"attention": "full_attention", "sliding": "sliding_attention", "convolution": "conv"}
    return {
        "use_sliding_window": sliding,
        "sliding_window": model.sliding_window if sliding else None,
        "max_window_layers": mixers.index("sliding") if sliding else model.layers,
        "layer_types": [names[mixer] for mixer in mixers],
    }


def _qwen3(model: ModelConfig) -> dict[str, Any]:
    return _shared(model) | _windowed(model) | {"attention_bias": model.attention_bias}


def _qwen3_moe(model: ModelConfig) -> dict[str, Any]:
    experts = model.experts
    return _qwen3(model) | {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.per_token,
        "moe_intermediate_size": experts.feed_forward,
        "norm_topk_prob": experts.normalize_weights,
        "decoder_sparse_step": experts.every,
        "mlp_only_layers": list(experts.dense_layers),
        "router_aux_loss_coef": experts.balance_weight,
    }


def _mistral(model: ModelConfig) -> dict[str, Any]:
    sliding = "sliding" in model.mixers
    return _shared(model) | {"sliding_window": model.sliding_window if sliding else None} | _mistral_layers(model)


def _mistral_layers(model: ModelConfig) -> dict[str, Any]:
    mixed = 0 < model.mixers.count("sliding") < model.layers
    return {"layer_types": _windowed(model)["layer_types"]} if mixed else {}


def _lfm2(model: ModelConfig) -> dict[str, Any]:
    shared = _shared(model)
    del shared["rms_norm_eps"], shared["hidden_act"], shared["rope_scaling"]
    return shared | {
        "norm_eps": model.norm_epsilon,
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": model.convolution_length,
        "conv_bias": model.convolution_bias,
        "layer_types": _windowed(model)["layer_types"],
    }


def _wedlm(model: ModelConfig) -> dict[str, Any]:
    return _qwen3(model) | {"qk_norm": model.query_key_norm}


def _llada(model: ModelConfig) -> dict[str, Any]:
    return {
        "d_model": model.width,
        "n_layers": model.layers,
        "n_heads": model.heads,
        "n_kv_heads": model.kv_heads,
        "mlp_hidden_size": model.feed_forward,
        "vocab_size": model.vocabulary_size,
        "embedding_size": model.vocabulary_size,
        "weight_tying": model.tie_embeddings,
        "rope": True,
        "rope_theta": model.rope_theta,
        "rms_norm_eps": model.norm_epsilon,
        "include_bias": False,
        "include_qkv_bias": model.attention_bias,
        "block_type": "llama",
        "layer_norm_type": "rms",
        "activation_type": "silu",
        "init_std": model.initializer_std,
    }


_WRITERS: dict[Family, Callable[[ModelConfig], dict[str, Any]]] = {
    "sdar": _qwen3,
    "sdar_moe": _qwen3_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "mistral": _mistral,
    "lfm2": _lfm2,
    "llada": _llada,
    "wedlm": _wedlm,
}
