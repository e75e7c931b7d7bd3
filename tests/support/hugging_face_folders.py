"""Hugging Face folders with random weights, and what is in such folders, read without the project's reader."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np

from maskworld.conversion.config_reading import describe
from maskworld.conversion.names import leaves, tensor_shapes
from maskworld.conversion.safetensors_writer import Outline, write_folder

DATA = Path(__file__).parents[1] / "data" / "public_models"
DTYPES = {"F32": np.float32, "BF16": ml_dtypes.bfloat16, "F16": np.float16}


def raw_config(family, version=4, **changes):
    folder = DATA / family if (DATA / family).is_dir() else DATA / "configs" / family
    name = "config_v5.json" if version == 5 and (folder / "config_v5.json").is_file() else "config.json"
    return json.loads((folder / name).read_text()) | changes


def write_checkpoint(folder, raw, dtype="F32", shard_bytes=10**9, seed=0, std=1.0):
    """A folder of random weights whose shapes are those of the configuration."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(raw))
    rng = np.random.default_rng(seed)
    shapes = tensor_shapes(leaves(describe(raw).model))
    outlines = [Outline(name, np.dtype(DTYPES[dtype]), shape) for name, shape in shapes.items()]
    write_folder(folder, outlines, (rng.normal(0, std, o.shape).astype(o.dtype) for o in outlines), shard_bytes)
    return folder


def tensors(folder):
    """Name -> (dtype, bytes), read with nothing of the project's but the header."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        content = file.read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            found[name] = entry["dtype"], tuple(entry["shape"]), content[8 + size + first : 8 + size + last]
    return found


def array(tensor):
    """What `tensors` has under a name, as float32."""
    kind, shape, content = tensor
    return np.frombuffer(content, DTYPES[kind]).reshape(shape).astype(np.float32)


def write_tokenizer(folder, tokens, words=0):
    """A byte-level tokenizer.json: 256 bytes, `words` merged pairs of them, and `tokens` (text -> id) added."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    pieces = {chr(byte): i for i, byte in enumerate([*printing, *(0x100 + i for i in range(len(others)))])}
    merges = [(one, two) for one in "abcdefghijklmnopqrstuvwxyz" for two in "abcdefghijklmnopqrstuvwxyz"][:words]
    pieces |= {one + two: 256 + i for i, (one, two) in enumerate(merges)}
    added = [
        {"id": id, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False}
        for text, id in tokens.items()
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    spec = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None}
    spec |= {"pre_tokenizer": level, "post_processor": None, "decoder": level}
    spec |= {"model": {"type": "BPE", "vocab": pieces, "merges": [" ".join(pair) for pair in merges]}}
    (folder / "tokenizer.json").write_text(json.dumps(spec))
