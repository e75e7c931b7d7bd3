"""What the training benchmark runs: the peers' model on full rows, and real trajectories packed in two ways."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from maskworld.config import (
    DataConfig,
    DiffusionConfig,
    Experiment,
    MeshConfig,
    ModelConfig,
    TrainingConfig,
)
from maskworld.data.packing import choose_target_blocks, pack_documents, size_of
from maskworld.data.prepare import split_files
from maskworld.data.rendering import Document, render_windows
from maskworld.data.rows import Row, RowShape, decode_row, encode_row
from maskworld.data.schema import Trajectory
from maskworld.data.tokenizer import Tokenizer
from maskworld.data.tokenizer_sentencepiece import SentencePieceTokenizer
from maskworld.data.trajectories import read_trajectories
from maskworld.data.turns import rendered_texts
from maskworld.errors import DataError

PEER_MODEL = ModelConfig(
    width=384, layers=8, heads=6, kv_heads=2, head_size=64, feed_forward=1024, tie_embeddings=False
)
PEER_VOCABULARY = 8192
PEER_PARAMETERS = 18_881_920
ROWS = 4
MASK_ID = 1


def peer_experiment(
    model: ModelConfig = PEER_MODEL, dtype: str = "float32", block_length: int = 4, microbatches: int = 1
) -> Experiment:
    """The peers' setting: batch 4, block 4, one noisy copy, linear schedule, AdamW, one device."""
    return Experiment(
        name="bench",
        model=model,
        diffusion=DiffusionConfig(block_length=block_length, schedule="linear", noisy_copies=1),
        training=TrainingConfig(batch_size=ROWS, compute_dtype=dtype, gradient_accumulation=microbatches),
        mesh=MeshConfig(data=1),
    )


def full_batch(rows: int, length: int, block_length: int, vocabulary_size: int, seed: int = 0) -> Row:
    """Random tokens, one document a row, every token a target. Arrays [B, L]; K = L / S."""
    rng = np.random.default_rng(seed)
    blocks = np.arange(length // block_length, dtype=np.int32)
    return {
        "tokens": rng.integers(8, vocabulary_size, (rows, length)).astype(np.int32),
        "document_ids": np.ones((rows, length), np.int32),
        "positions": np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        "targets": np.ones((rows, length), bool),
        "target_blocks": np.tile(blocks, (rows, 1)),
    }


@dataclass(frozen=True)
class PackedWork:
    """The same observations as packed batches of one layout."""

    batches: tuple[Row, ...]
    """Arrays [B, L] and [B, K]; the last rows that fill no batch are left out."""
    observations: tuple[int, ...]
    """Supervised observations in each batch."""
    rows: int
    target_blocks: int
    filled: float
    """Share of the rows' positions that hold a token."""


@dataclass(frozen=True)
class Recording:
    """The first trajectories of a folder's train split and a tokenizer trained on them."""

    trajectories: tuple[Trajectory, ...]
    tokenizer: Tokenizer
    source: str


def load_recording(folder: str, count: int, vocabulary_size: int = DataConfig.vocabulary_size) -> Recording:
    """Raises DataError when the folder holds no train split, or nothing in it."""
    files = split_files(folder, "train")
    trajectories = tuple(itertools.islice(read_trajectories(files), count))
    if not trajectories:
        raise DataError(f"--trajectories: {folder} holds no train*.jsonl (or .gz, .zst) with a trajectory in it")
    texts = (text for trajectory in trajectories for text in rendered_texts(trajectory))
    tokenizer = SentencePieceTokenizer.train(texts, vocabulary_size)
    return Recording(trajectories, tokenizer, str(Path(folder)))


def whole_documents(recording: Recording, block_length: int, row_length: int) -> list[Document]:
    """As training renders them: every step of a trajectory is a target of one document."""
    return [
        document
        for trajectory in recording.trajectories
        for document in render_windows(trajectory, recording.tokenizer, block_length, row_length)[0]
    ]


def step_documents(recording: Recording, block_length: int, row_length: int) -> list[Document]:
    """One document per step: context, history and that step; only its observation is a target."""
    documents = []
    for trajectory in recording.trajectories:
        for count in range(1, len(trajectory.steps) + 1):
            seen = replace(trajectory, steps=trajectory.steps[:count])
            windows, unfit = render_windows(seen, recording.tokenizer, block_length, row_length)
            if not any(item.step == count - 1 for item in unfit):
                documents.append(_only_last_target(windows[-1]))
    return documents


def _only_last_target(document: Document) -> Document:
    *history, last = document.steps
    targets = np.zeros_like(document.targets)
    targets[last.observation_start : last.target_end] = True
    spans = (*(replace(span, is_target=False) for span in history), last)
    return replace(document, targets=targets, steps=spans)


def pack_work(documents: Sequence[Document], row_length: int, pad_id: int, batch_size: int) -> PackedWork:
    """Both layouts go through the packer of training, each with the K that suits it."""
    if not documents:
        raise DataError(f"--row-length: no step of the trajectories fits into rows of {row_length} tokens")
    block_length = documents[0].block_length
    k = choose_target_blocks([size_of(document) for document in documents], row_length // block_length, 1)
    shape = RowShape(row_length, k, block_length, pad_id)
    rows = list(pack_documents(documents, row_length, k))
    if len(rows) < batch_size:
        raise DataError(f"--count: the trajectories fill {len(rows)} rows, a batch takes {batch_size}; take more")
    whole = [rows[i : i + batch_size] for i in range(0, len(rows) - batch_size + 1, batch_size)]
    used = sum(len(document) for document in documents)
    return PackedWork(
        tuple(_stack(decode_row(encode_row(row), shape) for row in batch) for batch in whole),
        tuple(sum(span.is_target for row in batch for document in row for span in document.steps) for batch in whole),
        len(rows),
        k,
        used / (len(rows) * row_length),
    )


def _stack(rows: Iterable[Row]) -> Row:
    rows = list(rows)
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
