"""Which id masks: what the checkpoint says, checked against what its tokenizer says of the same id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskworld.conversion.config_reading import CONFIG_FILE, Description
from maskworld.data.tokenizer import HUGGING_FACE_FILE
from maskworld.errors import ConversionError

TOKENIZER_FILES = (
    HUGGING_FACE_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "*.py",
)
"""What belongs to a Hugging Face folder besides weights and config.json; an export gives it back as it was. Modules
(`*.py`) are the model's own code, which `auto_map` names; they are copied, never run."""

CODE_FILES = ("generation_config.json", "*.py")
"""Those that have nothing to do with a tokenizer."""

VOCABULARY_FILES = (HUGGING_FACE_FILE, "vocab.json", "tokenizer.model")
"""Those that hold a vocabulary."""

NO_TOKEN = -1
"""Stands in the contract for a token that a checkpoint does not have."""

_SPARE = ("mask", "reserved", "unused", "extra_id")

TokenTable = Mapping[int, str]


@dataclass(frozen=True)
class MaskChoice:
    """The id that masks (NO_TOKEN: none) and what a person should know of the choice."""

    id: int
    note: str = ""


def token_table(folder: Path) -> TokenTable | None:
    """Id -> token, from all files of a tokenizer that name ids; None where there is none.

    Raises:
        ConversionError: a file is no JSON of the form that it must have.
    """
    table: dict[int, str] = {}
    for name, tokens in _READERS.items():
        if (folder / name).is_file():
            try:
                found = tokens(json.loads((folder / name).read_text(encoding="utf-8")))
                table |= {int(id): str(token) for id, token in found.items() if int(id) not in table}
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise ConversionError(f"{folder / name}: not what such a file holds ({error!r})") from None
    return table or None


def choose_mask(description: Description, table: TokenTable | None, wanted: int | None) -> MaskChoice:
    """The id that masks: `wanted`, else config.json's `mask_token_id`, else the tokenizer's mask, else a free row, else
    the first behind the embedding, which must grow for it.

    Raises:
        ConversionError: the id is no row of the embedding, no token of the tokenizer (unless it was asked for), or
            means something else already; names the id, both meanings and a free id.
    """
    rows = description.model.vocabulary_size
    free = free_row(table, rows)
    advice = f"give a free one: --mask_id {free}" if free is not None else "no row of the embedding is without a token"
    if table is None:
        advice = "give the row that masks: --mask_id ID"
    if table is not None and max(table) >= rows:
        raise ConversionError(
            f"the tokenizer has {table[max(table)]!r} as {max(table)}; the embedding has {rows} rows. "
            "It belongs to another model"
        )
    said = "--mask_id" if wanted is not None else f"mask_token_id of {CONFIG_FILE}"
    id = wanted if wanted is not None else description.mask_id
    if id is None:
        return _undescribed(table, free, rows)
    if not 0 <= id < rows:
        raise ConversionError(f"{said} is {id}; the embedding has rows 0 to {rows - 1}. {_capital(advice)}")
    for role, ids in (("eos", description.end_ids), ("pad", (description.pad_id,)), ("bos", (description.bos_id,))):
        if id in ids:
            raise ConversionError(f"{said} is {id}, which is the {role}_token_id too; {advice}")
    if table is None:
        return MaskChoice(id)
    if id not in table and wanted is None:
        raise ConversionError(
            f"{said} is {id}, which the tokenizer has no token for (its last is {max(table)}, {table[max(table)]!r}); "
            f"to mask with that row all the same: --mask_id {id}"
        )
    if id in table and not any(word in table[id].lower() for word in _SPARE):
        raise ConversionError(
            f"{said} is {id}: the model would read it as the mask, the tokenizer writes it for {table[id]!r}; {advice}"
        )
    return MaskChoice(id)


def free_row(table: TokenTable | None, rows: int) -> int | None:
    """The first row behind all tokens, or else between them, that no token uses; None where there is none."""
    if table is None:
        return None
    behind = max(table) + 1
    return behind if behind < rows else next((id for id in range(rows) if id not in table), None)


def _undescribed(table: TokenTable | None, free: int | None, rows: int) -> MaskChoice:
    if table is None:
        return MaskChoice(NO_TOKEN, f"no mask: {CONFIG_FILE} names none; to mask with a row give --mask_id ID")
    named = [id for id, token in table.items() if token.strip("<>|[]").lower() == "mask"]
    if named:
        return MaskChoice(named[0])
    if free is None:
        return MaskChoice(rows, f"mask: {rows}, a new row, because every row of the embedding has a token")
    return MaskChoice(free, f"mask: {free}, the first row of the embedding without a token; the checkpoint names none")


def _vocabulary(content: Any) -> dict[int, str]:
    pieces = content["model"]["vocab"]
    found = {id: piece for piece, id in pieces.items()} if isinstance(pieces, dict) else {}
    if isinstance(pieces, list):
        found = {id: piece for id, (piece, _) in enumerate(pieces)}
    return found | {token["id"]: token["content"] for token in content.get("added_tokens", ())}


def _inverse(content: Any) -> dict[int, str]:
    return {id: token for token, id in content.items()}


def _decoder(content: Any) -> dict[int, str]:
    return {int(id): token["content"] for id, token in (content.get("added_tokens_decoder") or {}).items()}


_READERS = {
    HUGGING_FACE_FILE: _vocabulary,
    "tokenizer_config.json": _decoder,
    "vocab.json": _inverse,
    "added_tokens.json": _inverse,
}


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
