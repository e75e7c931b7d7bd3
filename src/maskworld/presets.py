"""The exact shapes of public models, for experiment files: `model=PRESETS["SDAR-8B"]`. Pure values.

Vocabulary sizes are the rows of the public embeddings, which are more than their tokenizers have ids.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from maskworld.config import ExpertsConfig, ModelConfig

_QWEN3 = ModelConfig(
    family="qwen3",
    vocabulary_size=151_936,
    kv_heads=8,
    head_size=128,
    rope_theta=1_000_000.0,
    norm_epsilon=1e-6,
    tie_embeddings=False,
)
_QWEN3_0_6B = replace(_QWEN3, width=1024, layers=28, heads=16, feed_forward=3072, tie_embeddings=True)
_QWEN3_1_7B = replace(_QWEN3, width=2048, layers=28, heads=16, feed_forward=6144, tie_embeddings=True)
_QWEN3_4B = replace(_QWEN3, width=2560, layers=36, heads=32, feed_forward=9728, tie_embeddings=True)
_QWEN3_8B = replace(_QWEN3, width=4096, layers=36, heads=32, feed_forward=12_288)
_QWEN3_30B_A3B = replace(
    _QWEN3,
    family="qwen3_moe",
    width=2048,
    layers=48,
    heads=32,
    kv_heads=4,
    feed_forward=6144,
    experts=ExpertsConfig(count=128, per_token=8, feed_forward=768),
)
_HYBRID = ("convolution", "convolution", "attention") * 3 + ("convolution", "attention") * 3 + ("convolution",)

PRESETS = MappingProxyType(
    {
        # Whether SDAR-1.7B ties its embeddings is not known; SDAR-4B does not, other than Qwen3-4B.
        "SDAR-1.7B": replace(_QWEN3_1_7B, family="sdar", tie_embeddings=False),
        "SDAR-4B": replace(_QWEN3_4B, family="sdar", tie_embeddings=False),
        "SDAR-8B": replace(_QWEN3_8B, family="sdar"),
        "SDAR-30B-A3B": replace(_QWEN3_30B_A3B, family="sdar_moe"),
        "Qwen3-0.6B": _QWEN3_0_6B,
        "Qwen3-1.7B": _QWEN3_1_7B,
        "Qwen3-4B": _QWEN3_4B,
        "Qwen3-8B": _QWEN3_8B,
        "Qwen3-30B-A3B": _QWEN3_30B_A3B,
        "Mistral-7B-v0.3": ModelConfig(
            family="mistral",
            vocabulary_size=32_768,
            width=4096,
            layers=32,
            heads=32,
            kv_heads=8,
            head_size=128,
            feed_forward=14_336,
            rope_theta=1_000_000.0,
            norm_epsilon=1e-5,
            query_key_norm=False,
            tie_embeddings=False,
        ),
        "LFM2.5-1.2B": ModelConfig(
            family="lfm2",
            vocabulary_size=65_536,
            width=2048,
            layers=16,
            heads=32,
            kv_heads=8,
            head_size=64,
            feed_forward=8192,
            rope_theta=1_000_000.0,
            norm_epsilon=1e-5,
            mixers=_HYBRID,
        ),
        "LLaDA-8B": ModelConfig(
            family="llada",
            vocabulary_size=126_464,
            width=4096,
            layers=32,
            heads=32,
            kv_heads=32,
            head_size=128,
            feed_forward=12_288,
            rope_theta=500_000.0,
            norm_epsilon=1e-5,
            query_key_norm=False,
            tie_embeddings=False,
        ),
        "WeDLM-8B": replace(_QWEN3_8B, family="wedlm"),
    }
)
"""Name -> shape."""
