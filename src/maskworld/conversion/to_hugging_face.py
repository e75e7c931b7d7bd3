"""A run becomes a Hugging Face folder: safetensors in shards, config.json, tokenizer files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax
from jax.sharding import SingleDeviceSharding

from maskworld.config import Experiment, ModelConfig, ModelContract
from maskworld.configure import CONFIG_FILE as RUN_CONFIG_FILE
from maskworld.configure import load_config
from maskworld.conversion.config_reading import CONFIG_FILE, read_config_file
from maskworld.conversion.config_writing import config_json
from maskworld.conversion.folders import check_free_space, copy_files, whole_folder
from maskworld.conversion.from_hugging_face import HUGGING_FACE_FOLDER, Bar, no_bar
from maskworld.conversion.mask_token import CODE_FILES, TOKENIZER_FILES, VOCABULARY_FILES
from maskworld.conversion.unload import check_params, total_bytes, unload
from maskworld.data.tokenizer import HUGGING_FACE_FILE, SENTENCEPIECE_FILE
from maskworld.errors import ConversionError
from maskworld.storage import write_text
from maskworld.training.checkpoints import load_params
from maskworld.training.initialize import whole_params

SHARD_BYTES = 5_000_000_000
_BLOCK_FAMILIES = ("sdar", "sdar_moe")


def export(
    run: Path,
    folder: Path,
    *,
    checkpoint: int | Literal["best", "latest"] = "best",
    dtype: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    bar: Bar = no_bar,
) -> list[str]:
    """Write a checkpoint of `run` as a Hugging Face folder; returns what a person should know, a sentence each.

    Args:
        dtype: "float32", "bfloat16" or "float16"; None keeps that of the checkpoint.
        shard_bytes: most bytes of one file.

    Raises:
        CheckpointError: there is no such checkpoint, or it cannot be read.
        ConversionError: the model is none of its family, or `folder` is there already; nothing is left behind.
        StorageError: `folder` cannot be written.
    """
    with whole_folder(folder) as draft:
        host = SingleDeviceSharding(jax.devices("cpu")[0])
        loaded = load_params(run, checkpoint, host)
        origin = _origin(run, loaded.config)
        original = _original(origin)
        loaded = replace(loaded, params=whole_params(loaded))
        model = replace(loaded.config.model, vocabulary_size=_rows(loaded.params))
        unknown = check_params(model, loaded.params)
        kind = dtype or str(loaded.params["embedding"].dtype)
        raw = config_json(model, kind, original, _tokens(model, loaded.contract, original))
        total = total_bytes(model, loaded.params, dtype)
        check_free_space(draft, total)
        with bar("writing", total) as advance:
            unload(draft, model, loaded.params, dtype, shard_bytes, advance)
        write_text(draft / CONFIG_FILE, json.dumps(raw, indent=2) + "\n")
        remark = _copy_tokenizer(run, origin, draft)
    left_out = f"left out, as no {model.family} has it: {', '.join(unknown)}" if unknown else ""
    merged = "the low-rank updates are merged into the weights" if model.lora.rank else ""
    return [note for note in (*loaded.notes, left_out, merged, remark) if note]


def _origin(run: Path, experiment: Experiment) -> Path:
    """The run that was made of a Hugging Face folder: this one, or one whose weights it began with; else `run`."""
    at, seen = run, {run}
    while not (at / HUGGING_FACE_FOLDER).is_dir():
        base = Path(experiment.training.initialize_from)
        if not experiment.training.initialize_from or base in seen or not (base / RUN_CONFIG_FILE).is_file():
            return run
        at, experiment = base, load_config(base / RUN_CONFIG_FILE)
        seen.add(at)
    return at


def _original(origin: Path) -> Mapping[str, Any] | None:
    file = origin / HUGGING_FACE_FOLDER / CONFIG_FILE
    if not file.is_file():
        return None
    try:
        return read_config_file(file).raw
    except ConversionError as error:
        raise ConversionError(f"{error}. Without that file the run can be exported too") from None


def _rows(params: Mapping[str, Any]) -> int:
    if "embedding" not in params:
        raise ConversionError("the checkpoint holds no embedding; it was written by another version of maskworld")
    return int(params["embedding"].shape[0])


def _tokens(model: ModelConfig, contract: ModelContract, original: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the checkpoint knows better than the config.json that it came with."""
    found: dict[str, Any] = {}
    if contract.mask_id >= 0:
        found["mask_token_id"] = contract.mask_id
    if model.family in _BLOCK_FAMILIES:
        found["block_size"] = contract.block_length
    if original is None:
        named = (("eos_token_id", contract.end_id), ("pad_token_id", contract.pad_id))
        found |= {key: id for key, id in named if id >= 0}
    return found


def _copy_tokenizer(run: Path, origin: Path, target: Path) -> str:
    """The origin's own files, unless the run was trained with another vocabulary."""
    own, theirs = run / "data" / "tokenizer" / HUGGING_FACE_FILE, origin / HUGGING_FACE_FOLDER / HUGGING_FACE_FILE
    sentencepiece = own.with_name(SENTENCEPIECE_FILE).is_file()
    if not sentencepiece and (not own.is_file() or not theirs.is_file() or own.read_bytes() == theirs.read_bytes()):
        copied = copy_files(origin / HUGGING_FACE_FOLDER, target, TOKENIZER_FILES)
        if any(name in VOCABULARY_FILES for name in copied):
            return ""
    else:
        copy_files(origin / HUGGING_FACE_FOLDER, target, CODE_FILES)
    copied = copy_files(run / "data" / "tokenizer", target, (HUGGING_FACE_FILE, SENTENCEPIECE_FILE))
    if copied == [SENTENCEPIECE_FILE]:
        return f"{SENTENCEPIECE_FILE} is sentencepiece's; transformers needs a tokenizer class to be told for it"
    return "" if copied else "the run has no tokenizer to export"


def parse_size(text: str) -> int:
    """Bytes of "5GB", "500 MB", "1000000".

    Raises:
        ConversionError: no such number.
    """
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "B": 1}
    digits = text.strip().upper()
    unit = next((name for name in units if digits.endswith(name)), "")
    try:
        size = float(digits.removesuffix(unit)) * units.get(unit, 1)
    except ValueError:
        size = math.nan
    if not 1 <= size < math.inf:
        raise ConversionError(f"--shard_size: {text!r} is no size; write 5GB or 500MB")
    return int(size)
