"""The tiny SDAR reference model in this project's parameter layout, and its recorded inputs and outputs."""

import json
import struct
from pathlib import Path

import numpy as np

from maskworld.config import ModelConfig
from maskworld.models.transformer import Network

FOLDER = Path(__file__).parents[1] / "data" / "sdar"
ORACLE_FOLDER = Path(__file__).parents[3] / "shared" / "fixtures"


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    body = data[8 + size :]

    def array(entry):
        assert entry["dtype"] == "F32", entry
        first, last = entry["data_offsets"]
        return np.frombuffer(body[first:last], np.float32).reshape(entry["shape"])

    return {name: array(entry) for name, entry in header.items()}


def model_config(folder: Path = FOLDER, **changes) -> tuple[ModelConfig, dict]:
    raw = json.loads((folder / "config.json").read_text())
    config = ModelConfig(
        width=raw["hidden_size"],
        layers=raw["num_hidden_layers"],
        heads=raw["num_attention_heads"],
        kv_heads=raw["num_key_value_heads"],
        head_size=raw["head_dim"],
        feed_forward=raw["intermediate_size"],
        rope_theta=raw["rope_theta"],
        norm_epsilon=raw["rms_norm_eps"],
        tie_embeddings=raw["tie_word_embeddings"],
        **changes,
    )
    return config, raw


_LAYER_NAMES = {
    ("mixer_norm",): ("input_layernorm", False),
    ("feed_forward_norm",): ("post_attention_layernorm", False),
    ("mixer", "query", "kernel"): ("self_attn.q_proj", True),
    ("mixer", "key", "kernel"): ("self_attn.k_proj", True),
    ("mixer", "value", "kernel"): ("self_attn.v_proj", True),
    ("mixer", "out", "kernel"): ("self_attn.o_proj", True),
    ("mixer", "query_norm"): ("self_attn.q_norm", False),
    ("mixer", "key_norm"): ("self_attn.k_norm", False),
    ("feed_forward", "gate", "kernel"): ("mlp.gate_proj", True),
    ("feed_forward", "up", "kernel"): ("mlp.up_proj", True),
    ("feed_forward", "down", "kernel"): ("mlp.down_proj", True),
}


def reference_entry(params: dict, name: str) -> np.ndarray:
    """The entry of our parameter (or gradient) tree that corresponds to a reference name, in the reference's layout."""
    if name == "model.embed_tokens.weight":
        return np.asarray(params["embedding"])
    if name == "model.norm.weight":
        return np.asarray(params["final_norm"])
    if name == "lm_head.weight":
        return np.asarray(params["head"]).T
    _, _, index, rest = name.split(".", 3)
    for path, (reference, transposed) in _LAYER_NAMES.items():
        if rest == f"{reference}.weight":
            leaf = params["layers"]["attention"]
            for part in path:
                leaf = leaf[part]
            leaf = np.asarray(leaf[int(index)])
            return leaf.T if transposed else leaf
    raise KeyError(name)


def load_params(config: ModelConfig, folder: Path = FOLDER) -> dict:
    tensors = read_safetensors(folder / "model.safetensors")
    params = {
        "embedding": tensors["model.embed_tokens.weight"],
        "final_norm": tensors["model.norm.weight"],
        "layers": {"attention": {}},
    }
    if not config.tie_embeddings:
        params["head"] = tensors["lm_head.weight"].T
    for path, (name, transposed) in _LAYER_NAMES.items():
        stack = [tensors[f"model.layers.{i}.{name}.weight"] for i in range(config.layers)]
        leaf = np.stack([x.T if transposed else x for x in stack])
        target = params["layers"]["attention"]
        for part in path[:-1]:
            target = target.setdefault(part, {})
        target[path[-1]] = leaf
    return params


def load_network(folder: Path = FOLDER, **changes) -> tuple[Network, dict, dict]:
    """(network, params, raw config)"""
    config, raw = model_config(folder, **changes)
    return Network(config, raw["vocab_size"]), load_params(config, folder), raw
