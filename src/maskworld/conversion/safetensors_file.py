"""Reading `.safetensors`: headers checked before a byte of weights is touched, then one tensor's rows at a time.

A file is an unsigned 64-bit length, that many bytes of JSON (name -> dtype, shape, [begin, end) in what follows) and
the tensors, little-endian, without gaps. Rows are read with `pread` into a buffer of their own: a mapped file would
count as resident memory.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from maskworld.errors import ConversionError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""Names of the format and what they hold."""

_LONGEST_HEADER = 100_000_000
_MOST_ELEMENTS = 1 << 56
_POINTER = b"version "  # with which the text begins that stands for a file in Git LFS


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies."""

    name: str
    file: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    """Byte of the file at which it starts."""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """The whole tensor, in a buffer of its own."""
        return self._read(0, self.nbytes).reshape(self.shape)

    def rows(self, first: int, last: int) -> np.ndarray:
        """Rows [first, last) of the first axis, each flattened: [last - first, elements of a row].

        Raises:
            ConversionError: the file has become shorter, or cannot be read.
        """
        width = math.prod(self.shape[1:])
        row_bytes = width * self.dtype.itemsize
        return self._read(first * row_bytes, last * row_bytes).reshape(last - first, width)

    def _read(self, first: int, last: int) -> np.ndarray:
        buffer = np.empty(last - first, np.uint8)
        view, done = memoryview(buffer), 0
        try:
            with open(self.file, "rb", buffering=0) as file:
                while done < len(view):
                    got = os.preadv(file.fileno(), [view[done : done + (1 << 30)]], self.begin + first + done)
                    if got == 0:
                        raise ConversionError(f"{self.file}: ends inside {self.name}; fetch the file again")
                    done += got
        except OSError as error:
            raise ConversionError(f"{self.file}: cannot be read ({error.strerror})") from error
        return buffer.view(self.dtype)


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of one file, by name, in the order in which they lie.

    Raises:
        ConversionError: no such file, cut off, or a header that contradicts itself or the file; names the tensor.
    """
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            start = file.read(8)
            if start == _POINTER:
                raise ConversionError(f"{path}: is a Git LFS pointer instead of the weights; fetch them: git lfs pull")
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if len(start) < 8 or 8 + length > size:
                wanted = f"a header of {length:,} bytes" if len(start) == 8 else "a header"
                raise ConversionError(f"{path}: is cut off: needs {wanted}, has {size:,} bytes; fetch the file again")
            if length > _LONGEST_HEADER:
                raise ConversionError(f"{path}: a header of {length:,} bytes; this is no safetensors file")
            header = file.read(length)
    except OSError as error:
        raise ConversionError(f"{path}: cannot be read ({error.strerror})") from error
    entries = [_entry(path, name, value, 8 + length) for name, value in _parsed(path, header).items()]
    entries.sort(key=lambda entry: (entry.begin, entry.nbytes))
    end = 8 + length
    for entry in entries:
        if entry.begin != end:
            raise ConversionError(
                f"{path}: {entry.name} begins at byte {entry.begin:,}, where {end:,} was expected: its header has "
                "overlaps or gaps; the file is damaged"
            )
        end += entry.nbytes
    if size != end:
        state = "is cut off" if size < end else "has bytes that its header does not know"
        raise ConversionError(f"{path}: {state}: its header tells of {end:,} bytes, it has {size:,}; fetch it again")
    return {entry.name: entry for entry in entries}


def read_folder(folder: Path) -> dict[str, Entry]:
    """All tensors of a folder: of `model.safetensors`, or of the shards that its index names.

    Raises:
        ConversionError: neither is there, a shard is missing, damaged or does not hold what the index says.
    """
    if (folder / SINGLE_FILE).is_file():
        return read_header(folder / SINGLE_FILE)
    index = folder / INDEX_FILE
    if not index.is_file():
        there = [path.name for kind in ("*.safetensors", "*.bin") for path in sorted(folder.glob(kind))]
        held = f"; it holds {', '.join(there[:4])}" if there else ""
        raise ConversionError(f"{folder}: no {SINGLE_FILE} and no {INDEX_FILE}{held}. Only safetensors are read")
    shard_of = _weight_map(index)
    missing = sorted({shard for shard in shard_of.values() if not (folder / shard).is_file()})
    if missing:
        raise ConversionError(f"{index}: names {len(missing)} shards that are not there: {', '.join(missing[:4])}")
    shards = {shard: read_header(folder / shard) for shard in sorted(set(shard_of.values()))}
    for name, shard in shard_of.items():
        if name not in shards[shard]:
            raise ConversionError(f"{folder / shard}: lacks {name}, which {INDEX_FILE} says it holds")
    entries = {}
    for shard, held in shards.items():
        for name, entry in held.items():
            if shard_of.get(name) != shard:
                told = f"says is in {shard_of[name]}" if name in shard_of else "does not name"
                raise ConversionError(f"{folder / shard}: holds {name}, which {INDEX_FILE} {told}")
            entries[name] = entry
    return entries


def _parsed(path: Path, header: bytes) -> Mapping[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
            raise ConversionError(f"{path}: its header names {twice!r} twice; the file is damaged")
        return found

    try:
        found = json.loads(header.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"{path}: its header is no JSON ({error}); this is no safetensors file") from None
    if not isinstance(found, dict):
        raise ConversionError(f"{path}: its header is no JSON object; this is no safetensors file")
    found.pop("__metadata__", None)
    return found


def _entry(path: Path, name: str, value: Any, body: int) -> Entry:
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        raise ConversionError(f"{path}: {name}: its header entry lacks dtype, shape or data_offsets")
    kind, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(kind, str) or kind not in DTYPES:
        raise ConversionError(f"{path}: {name}: dtype {kind!r} is not read here; known: {', '.join(DTYPES)}")
    if not (_naturals(shape) and _naturals(offsets) and len(offsets) == 2 and offsets[0] <= offsets[1]):
        raise ConversionError(f"{path}: {name}: shape {shape!r} and data_offsets {offsets!r} are not what they must be")
    if math.prod(max(1, number) for number in shape) > _MOST_ELEMENTS:  # also where a zero makes it none
        raise ConversionError(f"{path}: {name}: no tensor has shape {shape}; the file is damaged")
    entry = Entry(name, path, DTYPES[kind], tuple(shape), body + offsets[0])
    if entry.nbytes != offsets[1] - offsets[0]:
        raise ConversionError(
            f"{path}: {name}: {kind} of shape {shape} takes {entry.nbytes:,} bytes; its data_offsets span "
            f"{offsets[1] - offsets[0]:,}"
        )
    return entry


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)


def _weight_map(index: Path) -> dict[str, str]:
    try:
        found = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards = dict(found)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConversionError(f"{index}: no index with a weight_map ({error})") from None
    for name, shard in shards.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ConversionError(f"{index}: weight_map: {name}: {shard!r} is no file name")
    if not shards:
        raise ConversionError(f"{index}: weight_map is empty")
    return shards
