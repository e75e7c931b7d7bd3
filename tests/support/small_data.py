"""Trajectories, vocabularies and rows small enough to make in a test."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

import hypothesis
import tokenizers
from hypothesis import strategies as st

from maskworld.data.packing import pack_documents
from maskworld.data.rendering import Document, render_windows
from maskworld.data.rows import RowShape, RowWriter
from maskworld.data.schema import Step, Trajectory
from maskworld.data.tokenizer_sentencepiece import SentencePieceTokenizer

# A busy machine makes single examples slow, which says nothing about the code.
hypothesis.settings.register_profile(
    "no deadline", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("no deadline")

SENTENCES = (
    "go to cabinet 12",
    "You arrive at cabinet 12. On the cabinet 12, you see a mug 1, and a cup 3.",
    "take mug 1 from cabinet 12",
    "You pick up the mug 1 from the cabinet 12.",
    "Nothing happens.\nYou are carrying: nothing.",
)


@functools.cache
def sentencepiece_tokenizer(phrases: bool = False) -> SentencePieceTokenizer:
    return SentencePieceTokenizer.train(SENTENCES * 4, 400, phrases)


def hugging_face_json(
    special: Iterable[str] = ("<|endoftext|>", "<|im_end|>", "<|MASK|>"),
    added: Iterable[tokenizers.AddedToken] = (),
    nfc: bool = True,
) -> tokenizers.Tokenizer:
    """A byte-level vocabulary built as those of Qwen models are; `.to_str()` is its tokenizer.json."""
    split = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    result = tokenizers.Tokenizer(tokenizers.models.BPE())
    result.normalizer = tokenizers.normalizers.NFC() if nfc else None
    result.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(split), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    result.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=350, initial_alphabet=alphabet, show_progress=False)
    result.train_from_iterator(list(SENTENCES) * 4, trainer)
    result.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in special])
    result.add_tokens(list(added))
    return result


def trajectory(observations: Iterable[str], id: str = "t", **fields) -> Trajectory:
    steps = tuple(Step(f"look {index}", observation) for index, observation in enumerate(observations))
    defaults = {"environment": "test", "initial_state": "mug 1 on cabinet 12", "task_context": "find it"}
    return Trajectory(id=id, steps=steps, **(defaults | fields))


def rooms(count: int, steps: int = 3) -> list[Trajectory]:
    """Trajectories of different lengths whose every observation is unique."""
    return [
        trajectory((f"You see mug {index} and cup {step}." for step in range(1 + index % steps)), id=f"room-{index}")
        for index in range(count)
    ]


texts = st.text(st.characters(codec="utf-8"), max_size=40)

trajectories = st.builds(
    Trajectory,
    id=st.just("t"),
    environment=st.just("test"),
    initial_state=texts,
    task_context=texts,
    steps=st.lists(st.builds(Step, action=texts, observation=texts), min_size=1, max_size=8).map(tuple),
    initial_observation=texts,
    tool_schemas=st.lists(texts, max_size=2).map(tuple),
    directives=st.lists(texts, max_size=2).map(tuple),
)


def documents_of(some: Iterable[Trajectory], shape: RowShape) -> list[Document]:
    tokenizer = sentencepiece_tokenizer()
    rendered = [render_windows(one, tokenizer, shape.block_length, shape.row_length)[0] for one in some]
    return [document for documents in rendered for document in documents]


def write_rows(folder: Path, count: int, shape: RowShape | None = None, **options) -> RowShape:
    """`count` rows of one document each, every row different."""
    shape = shape or RowShape(row_length=64, target_blocks=8, block_length=8, pad_id=0)
    writer = RowWriter(folder, shape, **options)
    for index in range(count):
        one = trajectory([f"mug {index}"], id=f"room-{index}", initial_state="", task_context="")
        writer.write(documents_of([one], shape))
    writer.close({})
    return shape


def write_packed(folder: Path, some: Iterable[Trajectory], shape: RowShape) -> list[Document]:
    documents = documents_of(some, shape)
    writer = RowWriter(folder, shape)
    for row in pack_documents(documents, shape.row_length, shape.target_blocks):
        writer.write(row)
    writer.close({})
    return documents
