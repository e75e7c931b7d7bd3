"""What every vocabulary offers, and how one is loaded.

Text in, ids out, and back without loss: `decode(encode(text)) == text` for every valid unicode string. Six control
tokens mark structure; no text whatsoever produces their ids, so a line that spells "<mask>" stays a line of text.
A lone surrogate is not valid text: a pair of surrogates becomes the character it spells, a lone one becomes U+FFFD.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32

from maskworld.errors import DataError

CONTROLS = ("pad", "mask", "end", "action", "observation", "section")
"""Names of the control tokens, in the order in which they get ids."""

SENTENCEPIECE_FILE = "tokenizer.model"
HUGGING_FACE_FILE = "tokenizer.json"
CONTROL_FILE = "control_tokens.json"


@runtime_checkable
class Tokenizer(Protocol):
    """A vocabulary of V ids. Immutable; equal fingerprints mean equal ids for every text."""

    @property
    def vocabulary_size(self) -> int:
        """V; every id is in [0, V)."""

    @property
    def pad_id(self) -> int: ...

    @property
    def mask_id(self) -> int: ...

    @property
    def end_id(self) -> int: ...

    @property
    def action_id(self) -> int: ...

    @property
    def observation_id(self) -> int: ...

    @property
    def section_id(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) over all that decides the ids; part of the model contract."""

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, never a control id."""

    def encode_batch(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " n"]]:
        """What `encode` gives for each text, faster."""

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`. Control ids give nothing; bytes that are no UTF-8 (a model may produce them) give U+FFFD."""

    def piece(self, id: int) -> str:
        """One id for the eye: its text, `<mask>` and the like for control ids, `<0xE2>` for part of a character."""

    def save(self, folder: Path) -> None:
        """Write the vocabulary into `folder`, from where `load_tokenizer` reads it back with the same fingerprint."""


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read a vocabulary from `tokenizer.model` (sentencepiece), `tokenizer.json` (Hugging Face) or their folder.

    Raises:
        DataError: there is no such file, or it cannot serve as a lossless vocabulary; the message says why.
    """
    file = tokenizer_files(path)[0]
    if file.suffix == ".model":
        from maskworld.data.tokenizer_sentencepiece import SentencePieceTokenizer

        return SentencePieceTokenizer.load(file)
    from maskworld.data.tokenizer_hugging_face import HuggingFaceTokenizer

    return HuggingFaceTokenizer.load(file)


def tokenizer_files(path: str | Path) -> list[Path]:
    """The files that decide what `load_tokenizer` gives for `path`, the vocabulary first. Raises DataError likewise."""
    path = Path(path)
    if path.is_dir():
        found = [path / name for name in (SENTENCEPIECE_FILE, HUGGING_FACE_FILE) if (path / name).is_file()]
        if len(found) != 1:
            state = "both" if found else "neither"
            raise DataError(
                f"{path}: holds {state} of {SENTENCEPIECE_FILE} and {HUGGING_FACE_FILE}; give the file itself"
            )
        path = found[0]
    if not path.is_file():
        raise DataError(f"{path}: no such tokenizer file")
    if path.suffix not in (".model", ".json"):
        raise DataError(f"{path}: a tokenizer is a sentencepiece `.model` or a Hugging Face `tokenizer.json`")
    controls = path.with_name(CONTROL_FILE)
    return [path, controls] if path.suffix == ".json" and controls.is_file() else [path]


def valid_text(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates replaced by U+FFFD; valid text comes back unchanged."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def join_bytes(parts: Sequence[bytes]) -> str:
    """Concatenated UTF-8; what is none becomes U+FFFD."""
    return b"".join(parts).decode("utf-8", "replace")
