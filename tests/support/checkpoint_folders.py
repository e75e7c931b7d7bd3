"""Hugging Face folders of random weights, for any configuration."""

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
