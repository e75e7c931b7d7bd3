"""Sentencepiece vocabularies trained here: byte-pair merges over exact text, with a fallback to single bytes.

Measured on templated room text (1024 pieces): byte-pair merges give whole words ("▁cabinet", "▁1") and 25 tokens an
observation, the unigram model of the same size 38, because it prunes rare words that byte-pair merging keeps. Merging
across spaces (`phrases`) makes that 6 to 7: "▁cabinet▁1" and ".▁On▁the" are pieces then.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import sentencepiece
from jaxtyping import Int32

from maskworld.data.tokenizer import CONTROLS, SENTENCEPIECE_FILE, join_bytes, valid_text
from maskworld.errors import ConfigError, DataError

_SPACE = "\u2581"  # sentencepiece's name for a space; the character itself is spelled in bytes
_SPACE_BYTES = _SPACE.encode()
_FIXED_PIECES = ("\n", *(mark + digit for digit in "0123456789" for mark in (_SPACE, "")))
_NAME = re.compile(r" ?[^\W\d_]+ \d+(?!\w)")
"""A word and its number, what text games call a thing. No piece reaches across the edge of one."""
_PHRASE_CHARACTERS = 32
_PHRASE_SAMPLE = 400_000  # units that phrases are merged from
_RESERVED = 2 + (len(CONTROLS) - 1) + len(_FIXED_PIECES) + 256  # pad and unknown, controls, fixed pieces, bytes
_TRAINING_LINE = 4096  # bytes; longer lines are cut for training only
_TRAINING_CHARACTERS = 50_000_000
_PROBES = ("a", " a", "  a  b ", "\n\n", "\t", "\r\n", "a\x00b", "\ufb01 A\u030a", "\u2603", _SPACE, "<mask><0x41>")


class SentencePieceTokenizer:
    """A sentencepiece model as `Tokenizer`; see `train` for the only kind that is accepted."""

    def __init__(self, model: bytes, source: str = "sentencepiece model"):
        """Raises DataError (naming `source`) when `model` is no sentencepiece model or would not keep text as it is."""
        try:
            if not model:  # which the library takes for "no model yet"
                raise RuntimeError("it is empty")
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except (RuntimeError, OSError) as error:
            raise DataError(f"{source}: not a sentencepiece model ({error})") from None
        self._model = model
        self.fingerprint = hashlib.sha256(b"sentencepiece\0" + model).hexdigest()
        self.vocabulary_size: int = self._processor.vocab_size()
        self._read_controls(source)
        self._phrases = any(_SPACE in self._processor.id_to_piece(id)[1:] for id in range(self.vocabulary_size))
        self._bytes = [self._bytes_of(id) for id in range(self.vocabulary_size)]
        self._space_ids = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in _SPACE_BYTES]
        for probe in _PROBES:
            if self.decode(self.encode(probe)) != probe:
                raise DataError(
                    f"{source}: changes text ({probe!r} does not survive); give a model with identity normalisation, "
                    "byte fallback and no dummy prefix, such as one trained here"
                )

    def _read_controls(self, source: str) -> None:
        processor = self._processor
        ids = {name: processor.piece_to_id(f"<{name}>") for name in CONTROLS}
        missing = [f"<{name}>" for name, id in ids.items() if id == processor.unk_id() or not processor.is_control(id)]
        if missing:
            raise DataError(
                f"{source}: lacks the control symbol(s) {', '.join(missing)}; train a tokenizer here "
                "(leave data.tokenizer empty) or give a Hugging Face tokenizer.json"
            )
        self.pad_id, self.mask_id, self.end_id = ids["pad"], ids["mask"], ids["end"]
        self.action_id, self.observation_id, self.section_id = ids["action"], ids["observation"], ids["section"]

    def _bytes_of(self, id: int) -> bytes:
        processor = self._processor
        if processor.is_control(id) or processor.is_unknown(id):
            return b""
        piece = processor.id_to_piece(id)
        return bytes([int(piece[3:5], 16)]) if processor.is_byte(id) else piece.replace(_SPACE, " ").encode()

    @classmethod
    def train(cls, texts: Iterable[str], vocabulary_size: int, phrases: bool = False) -> SentencePieceTokenizer:
        """Train on `texts`, in order; the same texts give the same bytes.

        A line break is always a piece of its own, and so is a digit, with the space before it if there is one ("▁1",
        "2"), so that numbers, names and punctuation never melt into one piece. With `phrases` pieces may hold several
        words (as in SuperBPE, arXiv 2503.13423): a numbered name ("▁cabinet▁12"), or words that no such name
        interrupts. A name is then spelled alike wherever it stands after a space.

        The rarest characters go without a piece of their own when they would fill over half of the vocabulary (they
        stay spellable in bytes). The result is smaller than asked when the texts do not hold that many pieces. Training
        reads the first 50 M characters.

        Raises:
            ConfigError: vocabulary_size leaves no room beside control tokens, digits and bytes.
            DataError: there is no text to train on.
        """
        smallest = _RESERVED + 16
        if vocabulary_size < smallest:
            raise ConfigError(f"data.vocabulary_size: {vocabulary_size} is too small; at least {smallest} is needed")
        lines = _without_rare_characters(list(_training_lines(texts)), (vocabulary_size - _RESERVED) // 2)
        if not lines:
            raise DataError("the training split holds no text to train a tokenizer on")
        fixed = {"user_defined_symbols": list(_FIXED_PIECES), "required_chars": _SPACE}
        if phrases:
            lines = _units(lines)
            fixed = {
                "user_defined_symbols": ["\n"],
                "required_chars": _SPACE + "0123456789",
                "split_by_whitespace": False,
                "split_by_number": False,
                "split_by_unicode_script": False,
                "max_sentencepiece_length": _PHRASE_CHARACTERS,
            }
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=model,
                vocab_size=vocabulary_size,
                character_coverage=1.0,
                model_type="bpe",
                byte_fallback=True,
                normalization_rule_name="identity",
                add_dummy_prefix=False,
                remove_extra_whitespaces=False,
                allow_whitespace_only_pieces=True,
                control_symbols=[f"<{name}>" for name in CONTROLS if name != "pad"],
                pad_id=0,
                pad_piece="<pad>",
                unk_id=1,
                bos_id=-1,
                eos_id=-1,
                hard_vocab_limit=False,
                max_sentence_length=2 * _TRAINING_LINE,
                num_threads=1,  # more threads may order equally frequent merges differently
                minloglevel=2,
                **fixed,
            )
        except RuntimeError as error:
            raise ConfigError(f"data.vocabulary_size: cannot train {vocabulary_size} pieces: {error}") from None
        return cls(model.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> SentencePieceTokenizer:
        """Raises DataError when the file is no such model."""
        return cls(Path(path).read_bytes(), str(path))

    def save(self, folder: Path) -> None:
        """Write `tokenizer.model` into `folder`, made if absent."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SENTENCEPIECE_FILE).write_bytes(self._model)

    def encode(self, text: str) -> list[int]:
        """Ids of the pieces of `text`; a vocabulary of phrases is asked about each name and each text between names by
        itself, as it was trained."""
        encode = self._processor.encode
        units = self._units_of(valid_text(text))
        return [id for unit in units for id in (self._space_ids if unit == _SPACE else encode(unit))]

    def encode_batch(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " n"]]:
        """What `encode` gives for each text; a text that occurs often is looked at once."""
        units = [self._units_of(valid_text(text)) for text in texts]
        known = dict.fromkeys(unit for found in units for unit in found)
        encoded = self._processor.encode(list(known))
        ids = {unit: np.array(ids, np.int32) for unit, ids in zip(known, encoded, strict=True)}
        ids[_SPACE] = np.array(self._space_ids, np.int32)
        return [np.concatenate([ids[unit] for unit in found]) if found else np.zeros(0, np.int32) for found in units]

    def _units_of(self, text: str) -> list[str]:
        """What the model is asked about by itself, and the character that stands for a space wherever it occurs."""
        parts = text.split(_SPACE)
        units = _cut(parts[0]) if self._phrases else parts[:1]
        for part in parts[1:]:
            units += [_SPACE, *(_cut(part) if self._phrases else [part])]
        return units

    def decode(self, ids: Iterable[int]) -> str:
        """Text of any ids; control ids give nothing, incomplete UTF-8 the replacement character."""
        table = self._bytes
        return join_bytes([table[id] for id in ids])

    def piece(self, id: int) -> str:
        """What id stands for, for the eye."""
        return self._pieces[id]

    @cached_property
    def _pieces(self) -> list[str]:
        processor = self._processor
        return [
            processor.id_to_piece(id).replace(_SPACE, " ")
            if not processor.is_byte(id) or self._bytes[id] >= b"\x80"
            else self._bytes[id].decode()
            for id in range(self.vocabulary_size)
        ]

    def __reduce__(self):
        return SentencePieceTokenizer, (self._model,)


def _training_lines(texts: Iterable[str]) -> Iterator[str]:
    """Lines of at most _TRAINING_LINE bytes; the trainer would skip longer ones without a word."""
    left = _TRAINING_CHARACTERS
    for text in texts:
        for line in valid_text(text).split("\n"):
            for start in range(0, len(line), _TRAINING_LINE // 4):
                part = line[start : start + _TRAINING_LINE // 4]
                if part:
                    yield part
                left -= len(part)
        if left <= 0:
            return


def _cut(text: str) -> list[str]:
    """The numbered names of `text` and what stands between them, in order."""
    units, start = [], 0
    for name in _NAME.finditer(text):
        units += [text[start : name.start()], name.group()]
        start = name.end()
    return [unit for unit in (*units, text[start:]) if unit]


def _units(lines: list[str]) -> list[str]:
    """The names of the lines and the texts between them, each as often as its share of a sample asks for."""
    counts = Counter(unit for line in lines for unit in _cut(line))
    every = 1 + counts.total() // _PHRASE_SAMPLE
    return [unit for unit, count in sorted(counts.items()) for _ in range(-(-count // every))]


def _without_rare_characters(lines: list[str], budget: int) -> list[str]:
    """`lines`, split at every character that is not among the `budget` most frequent ones (ties by code point)."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    if len(counts) <= budget:
        return lines
    by_frequency = sorted(counts, key=lambda character: (-counts[character], character))
    cut = {ord(character): "\n" for character in by_frequency[budget:]}
    return [part for line in lines for part in line.translate(cut).split("\n") if part]
