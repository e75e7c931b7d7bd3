"""Writing `.safetensors`, one tensor in memory at a time, in shards of bounded size with their index."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from maskworld.conversion.safetensors_file import DTYPES, INDEX_FILE, SINGLE_FILE
from maskworld.storage import write_text, writing

_NAME_OF = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Outline:
    """A tensor that is to be written."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_folder(
    folder: Path, outlines: Sequence[Outline], tensors: Iterable[np.ndarray], shard_bytes: int
) -> list[str]:
    """Write `tensors`, which come in the order of `outlines`, as shards of at most `shard_bytes`; returns their names.

    A tensor larger than a shard gets one of its own. One shard is `model.safetensors`, more get an index.

    Raises:
        StorageError: the folder cannot be written.
        ValueError: a tensor is not what its outline says.
    """
    shards = split(outlines, shard_bytes)
    names = [SINGLE_FILE] if len(shards) == 1 else [_shard_name(i, len(shards)) for i in range(len(shards))]
    coming = iter(tensors)
    for name, shard in zip(names, shards, strict=True):
        _write_file(folder / name, shard, coming)
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(outline.nbytes for outline in outlines)},
            "weight_map": {o.name: name for name, shard in zip(names, shards, strict=True) for o in shard},
        }
        write_text(folder / INDEX_FILE, json.dumps(index, indent=2, sort_keys=True) + "\n")
    return names


def split(outlines: Sequence[Outline], shard_bytes: int) -> list[list[Outline]]:
    """`outlines` in order, cut wherever the next would make a shard larger than `shard_bytes`."""
    shards: list[list[Outline]] = [[]]
    filled = 0
    for outline in outlines:
        if shards[-1] and filled + outline.nbytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(outline)
        filled += outline.nbytes
    return shards


def _shard_name(index: int, count: int) -> str:
    return f"model-{index + 1:05d}-of-{count:05d}.safetensors"


def _write_file(path: Path, outlines: Sequence[Outline], tensors: Iterator[np.ndarray]) -> None:
    with writing(path), open(path, "wb") as file:
        file.write(_header(outlines))
        for outline in outlines:
            tensor = next(tensors)
            if (tensor.shape, tensor.dtype) != (outline.shape, outline.dtype):
                raise ValueError(
                    f"{outline.name}: {tensor.dtype}{tensor.shape} instead of {outline.dtype}{outline.shape}"
                )
            file.write(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)


def _header(outlines: Sequence[Outline]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for outline in outlines:
        end = begin + outline.nbytes
        kind = _NAME_OF[outline.dtype]
        entries[outline.name] = {"dtype": kind, "shape": list(outline.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # readers map the file: tensors begin at a multiple of eight
    return struct.pack("<Q", len(text)) + text
