"""Vocabularies of pretrained models: a Hugging Face `tokenizer.json` with byte-level byte-pair merges.

Three things in such files would break the promise of a tokenizer here, and are set right on loading: special tokens
are never matched in text, an NFC normaliser is dropped (text that is NFC already gets the same ids), and truncation
and padding are off. A file whose text does not survive for another reason is refused.

Control tokens are found by the names that models give them, or named in `control_tokens.json` beside the file:
`{"mask": 151669, "end": "<|im_end|>", "action": "new"}` (an id, a token, or "new" for an id beyond the vocabulary).
What is neither found nor named gets a new id, in the order of `CONTROLS`; only the mask must be said, because a
pretrained model with a wrong mask id would run and give nonsense.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Int32

from maskworld.data.tokenizer import CONTROL_FILE, CONTROLS, HUGGING_FACE_FILE, join_bytes, valid_text
from maskworld.errors import DataError

_NAMES = {
    "pad": ("<pad>", "<|pad|>", "[PAD]", "<|endoftext|>"),
    "mask": ("<mask>", "<|mask|>", "<|MASK|>", "<MASK>", "[MASK]", "<|mdm_mask|>"),
    "end": ("<end>", "<|end|>", "<|im_end|>", "<|eot_id|>", "</s>", "<|endoftext|>"),
    "action": ("<action>", "<|action|>"),
    "observation": ("<observation>", "<|observation|>"),
    "section": ("<section>", "<|section|>"),
}
_PROBES = ("a", " a", "  a  b ", "\n\n x", "\t", "\r\n", "a\x00b", "\ufb01 A\u030a", "\u2603", "don't 12345 !?")


class HuggingFaceTokenizer:
    """A byte-level `tokenizer.json` as `Tokenizer`."""

    def __init__(self, content: bytes, controls: dict[str, int | str] | None = None, source: str = HUGGING_FACE_FILE):
        """Args: bytes of `tokenizer.json`; control tokens as in `control_tokens.json`; the name used in errors.

        Raises:
            DataError: the file cannot serve, or a control token cannot be placed; the message names `source`.
        """
        self._content = content
        spec = _parsed(content, source)
        added = {token["content"]: token["id"] for token in spec["added_tokens"]}
        pieces: dict[str, int] = spec["model"]["vocab"]
        ids = _placed(controls or {}, added, pieces, source)
        self.pad_id, self.mask_id, self.end_id = ids["pad"], ids["mask"], ids["end"]
        self.action_id, self.observation_id, self.section_id = ids["action"], ids["observation"], ids["section"]
        self._controls = ids
        self._control_ids = frozenset(ids.values())
        self.vocabulary_size: int = 1 + max(*pieces.values(), *added.values(), *ids.values())
        self.fingerprint = hashlib.sha256(
            b"hugging face\0" + json.dumps(ids, sort_keys=True).encode() + b"\0" + content
        ).hexdigest()
        self._tokenizer = _text_only(spec, self._control_ids, source)
        self._bytes = _byte_table(self.vocabulary_size, pieces, added)
        for id in self._control_ids:
            self._bytes[id] = b""
        self._names = {id: f"<{name}>" for name, id in ids.items()}
        for probe in (*_PROBES, *added):
            encoded = self.encode(probe)
            if self.decode(encoded) != probe or not self._control_ids.isdisjoint(encoded):
                raise DataError(f"{source}: changes text ({probe!r} does not survive); it cannot be used")

    @classmethod
    def load(cls, path: str | Path) -> HuggingFaceTokenizer:
        """Read `path`, and `control_tokens.json` beside it if there is one. Raises DataError."""
        path = Path(path)
        control_path = path.with_name(CONTROL_FILE)
        controls = None
        if control_path.is_file():
            try:
                controls = json.loads(control_path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise DataError(f"{control_path}: no JSON ({error})") from None
            if not isinstance(controls, dict) or not all(type(value) in (int, str) for value in controls.values()):
                raise DataError(f'{control_path}: must map control names to an id, a token or "new"')
        return cls(path.read_bytes(), controls, str(path))

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` into `folder`, made if absent."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / HUGGING_FACE_FILE).write_bytes(self._content)
        (folder / CONTROL_FILE).write_text(json.dumps(self._controls) + "\n", encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, never a control id; `decode` gives back the same text."""
        return self._encode_valid(valid_text(text))

    def encode_batch(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " n"]]:
        """What `encode` gives for each text, on all cores."""
        texts = [valid_text(text) for text in texts]
        # The fast call finds no offsets, which only a text that spells a control token needs.
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        found = []
        for text, encoding in zip(texts, encodings, strict=True):
            ids = encoding.ids
            spelled = not self._control_ids.isdisjoint(ids)
            found.append(np.array(self._encode_valid(text) if spelled else ids, np.int32))
        return found

    def _encode_valid(self, text: str) -> list[int]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        found = zip(encoding.ids, encoding.offsets, strict=True)
        cuts = [start + 1 for id, (start, _) in found if id in self._control_ids]
        if not cuts:
            return encoding.ids
        # The text spells a control token that is also an ordinary piece: cut it apart, so that it stays text.
        bounds = [0, *cuts, len(text)]
        return [id for start, end in itertools.pairwise(bounds) for id in self._encode_valid(text[start:end])]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of any ids; control ids give nothing, incomplete UTF-8 the replacement character."""
        table = self._bytes
        return join_bytes([table[id] for id in ids])

    def piece(self, id: int) -> str:
        """What id stands for, for the eye."""
        if id in self._names:
            return self._names[id]
        try:
            return self._bytes[id].decode()
        except UnicodeDecodeError:
            return "".join(f"<0x{byte:02X}>" for byte in self._bytes[id])


def _parsed(content: bytes, source: str) -> dict[str, Any]:
    """The file as JSON, with all that could change text taken out or refused."""
    try:
        spec = json.loads(content)
        model, added = spec["model"], spec["added_tokens"]
        kind, vocabulary = model["type"], model["vocab"]
        assert isinstance(vocabulary, dict) and all(isinstance(token["content"], str) for token in added)
    except (ValueError, KeyError, TypeError, AssertionError):
        raise DataError(f"{source}: not a Hugging Face tokenizer.json") from None
    byte_level = [stage for stage in _stages(spec.get("pre_tokenizer")) if stage.get("type") == "ByteLevel"]
    if kind != "BPE" or not byte_level or not all(character in vocabulary for character in _BYTE_OF):
        raise DataError(
            f"{source}: only byte-level byte-pair vocabularies keep every text as it is; this is {kind} "
            f"{'with' if byte_level else 'without'} the ByteLevel stage"
        )
    if any(stage.get("type") not in ("NFC",) for stage in _stages(spec.get("normalizer"))):
        raise DataError(f"{source}: has a normalizer that changes text; it cannot be used")
    spec["normalizer"] = spec["truncation"] = spec["padding"] = spec["post_processor"] = None
    if any(stage.get("add_prefix_space") for stage in byte_level):
        raise DataError(f"{source}: puts a space before every text (add_prefix_space); it cannot be used")
    return spec


def _stages(stage: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A pipeline stage, or the stages of a sequence, as a flat list."""
    if stage is None:
        return []
    parts = stage.get("pretokenizers") or stage.get("decoders") or stage.get("normalizers")
    return [stage] if parts is None else [inner for part in parts for inner in _stages(part)]


def _placed(wanted: dict[str, int | str], added: dict[str, int], pieces: dict[str, int], source: str) -> dict[str, int]:
    """The id of every control token; all different, none an ordinary piece."""
    unknown = sorted(set(wanted) - set(CONTROLS))
    if unknown:
        raise DataError(f"{source}: {CONTROL_FILE} names {unknown[0]!r}; control tokens are {', '.join(CONTROLS)}")
    ordinary = {id for piece, id in pieces.items() if piece not in added or len(piece) == 1}
    next_new = 1 + max(*pieces.values(), *added.values(), *(id for id in wanted.values() if isinstance(id, int)))
    ids: dict[str, int] = {}
    for name in sorted(CONTROLS, key=lambda name: name not in wanted):  # what is said outranks what is found
        choice = wanted.get(name)
        if isinstance(choice, str) and choice != "new":
            if choice not in added:
                raise DataError(f"{source}: {CONTROL_FILE} gives {name} as {choice!r}, which is no added token")
            choice = added[choice]
        if choice is None:
            taken = set(ids.values())
            choice = next((added[n] for n in _NAMES[name] if n in added and added[n] not in taken), "new")
            if choice == "new" and name == "mask":
                raise DataError(
                    f"{source}: no mask token among the added tokens; put {CONTROL_FILE} beside it with "
                    '{"mask": ID}, or {"mask": "new"} for a model trained from scratch'
                )
        if choice == "new":
            choice, next_new = next_new, next_new + 1
        if choice in ordinary or choice < 0 or choice in ids.values():
            problem = "is a piece of ordinary text" if choice in ordinary else "is taken or out of range"
            raise DataError(f"{source}: {name} cannot have id {choice}, which {problem}")
        ids[name] = choice
    return {name: ids[name] for name in CONTROLS}


def _text_only(spec: dict[str, Any], control_ids: frozenset[int], source: str) -> tokenizers.Tokenizer:
    """The tokenizer that matches no control or special token in text, nor one that eats the spaces around it."""
    for token in spec["added_tokens"]:
        if token["id"] in control_ids or token.get("lstrip") or token.get("rstrip"):
            token["special"] = True
    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(spec))
    except Exception as error:  # the library raises bare Exception for whatever it cannot read
        raise DataError(f"{source}: cannot be read ({error})") from None
    tokenizer.encode_special_tokens = True
    return tokenizer


def _byte_table(size: int, pieces: dict[str, int], added: dict[str, int]) -> list[bytes]:
    table = [b""] * size
    for piece, id in pieces.items():
        if all(character in _BYTE_OF for character in piece):
            table[id] = bytes(_BYTE_OF[character] for character in piece)
        else:
            table[id] = piece.encode("utf-8", "replace")
    for token, id in added.items():
        table[id] = token.encode("utf-8", "replace")
    return table


def _byte_names() -> dict[str, int]:
    """Characters that byte-level vocabularies write for bytes: itself where it prints, else one from U+0100 on."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_names()
