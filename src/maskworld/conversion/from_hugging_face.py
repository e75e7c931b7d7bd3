"""A Hugging Face folder becomes a run: configuration, parameters as the checkpoint of step 0, tokenizer.

RUN/config.json         an experiment with the model's shape, ready to be read by `train` and `evaluate`
RUN/checkpoints/0       the parameters, in the checkpoint's own dtype; with more rows where control tokens need them
RUN/data/tokenizer      the vocabulary with its control tokens, where it can serve here
RUN/hugging_face        config.json and tokenizer files as they were, for the way back
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from maskworld.config import DataConfig, DiffusionConfig, Experiment, MeshConfig, ModelConfig, ModelContract
from maskworld.configure import CONFIG_FILE, save_config, validate
from maskworld.conversion.folders import copy_files, whole_folder
from maskworld.conversion.load import Checkpoint, load, open_checkpoint
from maskworld.conversion.mask_token import CODE_FILES, NO_TOKEN, TOKENIZER_FILES, MaskChoice, choose_mask, token_table
from maskworld.data.tokenizer import CONTROL_FILE, CONTROLS, HUGGING_FACE_FILE, Tokenizer, load_tokenizer
from maskworld.errors import ConversionError, DataError
from maskworld.models.transformer import Network, Params
from maskworld.parallel.mesh import make_mesh
from maskworld.training.checkpoints import save_params
from maskworld.training.initialize import with_rows
from maskworld.training.step import network_shardings

HUGGING_FACE_FOLDER = "hugging_face"
_TOKENIZER_FOLDER = Path("data") / "tokenizer"
_DEFAULT_BLOCK_LENGTHS = {"llada": 32}  # its authors' chat settings; no config.json of LLaDA names any
_DEFAULT_BLOCK_LENGTH = 4  # SDAR's
_ROW_LENGTH = 512
_NEXT_TOKEN_FAMILIES = ("qwen3", "qwen3_moe", "mistral", "lfm2")
_OBJECTIVES = dict.fromkeys(_NEXT_TOKEN_FAMILIES, "autoregressive") | {"llada": "full_sequence", "wedlm": "wedlm"}

Bar = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""(what, bytes in all) -> a context whose value is called with the bytes done since the last call."""


def no_bar(what: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    """Shows nothing."""
    return nullcontext(lambda nbytes: None)


def convert(
    folder: Path,
    run: Path,
    *,
    tokenizer: Path | None = None,
    dtype: str | None = None,
    mask_id: int | None = None,
    bar: Bar = no_bar,
) -> list[str]:
    """Make `run` from the checkpoint in `folder`; returns what a person should know, a sentence each.

    Args:
        tokenizer: folder (or a file in it) whose tokenizer is taken in place of the checkpoint's.
        dtype: "float32", "bfloat16" or "float16"; None keeps that of every tensor.
        mask_id: the id that masks, in place of config.json's.

    Raises:
        ConversionError: the folder cannot be converted, or `run` is there already; nothing is left behind.
        StorageError: `run` cannot be written.
    """
    checkpoint = open_checkpoint(folder)
    description = checkpoint.description
    vocabulary = _tokenizer_folder(folder, tokenizer)
    table = token_table(vocabulary)
    if tokenizer is not None and table is None:
        raise ConversionError(f"{tokenizer}: holds no tokenizer; known files: {', '.join(TOKENIZER_FILES[:5])}")
    mask = choose_mask(description, table, mask_id)
    with whole_folder(run) as draft:
        (draft / HUGGING_FACE_FOLDER).mkdir()
        copy_files(folder, draft / HUGGING_FACE_FOLDER, (CONFIG_FILE, *CODE_FILES))
        copy_files(vocabulary, draft / HUGGING_FACE_FOLDER, TOKENIZER_FILES)
        own, remark = _own_tokenizer(vocabulary, mask, draft / _TOKENIZER_FOLDER)
        rows = description.model.vocabulary_size
        if own is None and mask.id >= rows:
            mask = MaskChoice(
                NO_TOKEN, "no mask: every row of the embedding has a token; give one up with --mask_id ID"
            )
        experiment = _experiment(checkpoint, run, own)
        save_config(draft / CONFIG_FILE, experiment)
        with bar("reading", checkpoint.nbytes) as advance:
            params = load(checkpoint, _placement(description.model), dtype, advance)
        params = _grown(params, experiment.model)
        save_params(draft, experiment, _contract(checkpoint, experiment, mask, own), params)
    notes = [mask.note, remark, _rows_note(rows, experiment.model), _block_note(checkpoint, experiment)]
    return [note for note in notes if note]


def _placement(model: ModelConfig) -> Any:
    """Spread over all devices of this host's mesh, so that no single one has to hold the model."""
    mesh = make_mesh(MeshConfig(data=1, fsdp=-1))
    return network_shardings(Network(model, model.vocabulary_size), mesh)


def _grown(params: Params, model: ModelConfig) -> Params:
    """The parameters with `model.vocabulary_size` rows, placed as before; those that are there keep every bit."""
    rows = params["embedding"].shape[0]
    if rows == model.vocabulary_size:
        return params
    new = jnp.arange(rows, model.vocabulary_size)
    key = jax.random.key(0)
    names = ("embedding", "head") if "head" in params else ("embedding",)
    places = _placement(model)
    grow = jax.jit(
        lambda ends: with_rows(ends, model.vocabulary_size, new, key),
        out_shardings={name: places[name] for name in names},
    )
    return params | grow({name: params[name] for name in names})


def _tokenizer_folder(folder: Path, tokenizer: Path | None) -> Path:
    if tokenizer is None:
        return folder
    if not tokenizer.exists():
        raise ConversionError(f"{tokenizer}: no such tokenizer; give its folder or its {HUGGING_FACE_FILE}")
    return tokenizer if tokenizer.is_dir() else tokenizer.parent


def _own_tokenizer(vocabulary: Path, mask: MaskChoice, target: Path) -> tuple[Tokenizer | None, str]:
    """The vocabulary as it is used here, written to `target`; or None and the reason."""
    if not (vocabulary / HUGGING_FACE_FILE).is_file():
        return None, f"no {HUGGING_FACE_FILE}: training needs one, data.tokenizer may name it"
    without = "the tokenizer's files are kept for an export, but it cannot be used here: "
    if mask.id == NO_TOKEN:
        return None, without + "there is no mask"
    target.mkdir(parents=True)
    copy_files(vocabulary, target, (HUGGING_FACE_FILE,))
    (target / CONTROL_FILE).write_text(json.dumps({"mask": mask.id}) + "\n", encoding="utf-8")
    try:
        own = load_tokenizer(target / HUGGING_FACE_FILE)
    except DataError as error:
        for file in target.iterdir():
            file.unlink()
        target.rmdir()
        return None, without + str(error).removeprefix(f"{target / HUGGING_FACE_FILE}: ")
    own.save(target)  # with every control token's id, also those that were found
    return own, ""


def _experiment(checkpoint: Checkpoint, run: Path, own: Tokenizer | None) -> Experiment:
    description = checkpoint.description
    family = description.model.family
    block = description.block_length or _DEFAULT_BLOCK_LENGTHS.get(family, _DEFAULT_BLOCK_LENGTH)
    data = DataConfig(row_length=max(block, _ROW_LENGTH // block * block))
    model = description.model
    if own is not None:
        model = replace(model, vocabulary_size=max(model.vocabulary_size, own.vocabulary_size))
        data = replace(data, tokenizer=str(run / _TOKENIZER_FOLDER / HUGGING_FACE_FILE))
    diffusion = DiffusionConfig(objective=_OBJECTIVES.get(family, "block_diffusion"), block_length=block)
    if family == "llada":
        diffusion = replace(diffusion, draw_t="document")
    experiment = Experiment(name=run.name, data=data, model=model, diffusion=diffusion)
    return validate(experiment, str(checkpoint.folder))


def _contract(checkpoint: Checkpoint, experiment: Experiment, mask: MaskChoice, own: Tokenizer | None) -> ModelContract:
    description = checkpoint.description
    pad, end = description.pad_id, next(iter(description.end_ids), NO_TOKEN)
    return ModelContract(
        block_length=experiment.diffusion.block_length,
        mask_id=mask.id,
        pad_id=own.pad_id if own else NO_TOKEN if pad is None else pad,
        end_id=own.end_id if own else end,
        vocabulary_size=own.vocabulary_size if own else description.model.vocabulary_size,
        schedule=experiment.diffusion.schedule,
        tokenizer_hash=own.fingerprint if own else "",
        logit_alignment="shifted" if description.model.family in _NEXT_TOKEN_FAMILIES else "same_position",
        control_ids=tuple(getattr(own, f"{name}_id") for name in CONTROLS) if own else (),
    )


def _rows_note(rows: int, model: ModelConfig) -> str:
    if rows == model.vocabulary_size:
        return ""
    return (
        f"the embedding grows from {rows} to {model.vocabulary_size} rows, for the control tokens that have none; "
        "an export keeps them"
    )


def _block_note(checkpoint: Checkpoint, experiment: Experiment) -> str:
    if checkpoint.description.block_length is not None:
        return ""
    return f"block length: {experiment.diffusion.block_length}, because {CONFIG_FILE} gives no block_size"
