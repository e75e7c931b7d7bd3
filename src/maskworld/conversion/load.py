"""From a Hugging Face folder straight into sharded arrays.

Every name, shape and dtype of every shard is compared with the configuration before the first array is made. Then one
leaf after the other is filled: for each device its own part, from just the rows that lie in it, a few megabytes at a
time. On a CPU that buffer becomes the array; elsewhere it is gone before the next one is made. So host memory holds
the model once at most, and a process of many holds its own part only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from maskworld.conversion.config_reading import CONFIG_FILE, Description, read_config
from maskworld.conversion.names import Leaf, Piece, is_redundant, leaves
from maskworld.conversion.safetensors_file import Entry, read_folder
from maskworld.errors import ConversionError

WEIGHT_DTYPES: Mapping[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
_BYTES_AT_A_TIME = 8 << 20
_TURNED_AT_A_TIME = 32  # rows: so many columns of two bytes are a cache line of the target
_ALIGNMENT = 64  # what XLA's CPU client asks of memory that it takes over instead of copying
_LISTED = 5


@dataclass(frozen=True)
class Checkpoint:
    """A Hugging Face folder whose tensors are those of its configuration."""

    folder: Path
    description: Description
    leaves: tuple[Leaf, ...]
    entries: Mapping[str, Entry]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that are used."""
        used = {piece.tensor for leaf in self.leaves for piece in leaf.pieces}
        return sum(self.entries[name].nbytes for name in used)

    def dtype(self, leaf: Leaf) -> np.dtype:
        """What a leaf is kept as: the dtype of its tensors, the wider one where they differ."""
        kinds = {self.entries[piece.tensor].dtype for piece in leaf.pieces}
        return kinds.pop() if len(kinds) == 1 else np.dtype(np.float32)


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read the configuration and all headers, and compare them; no weights are read.

    Raises:
        ConversionError: what `read_config` and `read_folder` raise; missing or unexpected tensors, a wrong shape, a
            dtype that is none of weights.
    """
    description = read_config(folder)
    found = leaves(description.model)
    entries = read_folder(folder)
    wanted = {piece.tensor: piece for leaf in found for piece in leaf.pieces}
    missing = [name for name in wanted if name not in entries]
    if missing:
        raise ConversionError(
            f"{folder}: lacks {len(missing)} of {len(wanted)} tensors that {CONFIG_FILE} asks for: {_some(missing)}"
        )
    strange = [name for name in entries if name not in wanted and not is_redundant(description.model, name)]
    if strange:
        raise ConversionError(
            f"{folder}: holds {len(strange)} tensors that no {description.model.family} of its {CONFIG_FILE} has: "
            f"{_some(strange)}"
        )
    for leaf in found:
        for piece in leaf.pieces:
            _check_entry(entries[piece.tensor], piece, leaf, description)
    return Checkpoint(folder, description, found, entries)


def load(
    checkpoint: Checkpoint,
    shardings: Any = None,
    dtype: str | None = None,
    advance: Callable[[int], None] = lambda nbytes: None,
) -> dict[str, Any]:
    """The parameters, placed as `shardings` says.

    Args:
        shardings: tree of shardings like the parameters; None puts everything on the first device.
        dtype: "float32", "bfloat16" or "float16" for all leaves; None keeps the checkpoint's.
        advance: called with the bytes read since the last call.

    Raises:
        ConversionError: a file became shorter or unreadable since it was opened.
    """
    one_device = SingleDeviceSharding(jax.devices()[0])
    params: dict[str, Any] = {}
    for leaf in checkpoint.leaves:
        *above, name = leaf.path
        place, sharding = params, shardings
        for part in above:
            place = place.setdefault(part, {})
            sharding = sharding and sharding[part]
        kind = WEIGHT_DTYPES[dtype] if dtype else checkpoint.dtype(leaf)
        place[name] = _load_leaf(checkpoint, leaf, sharding[name] if sharding else one_device, kind, advance)
    return params


def load_folder(folder: Path, shardings: Any = None, dtype: str | None = None) -> dict[str, Any]:
    """`open_checkpoint` and `load` in one."""
    return load(open_checkpoint(folder), shardings, dtype)


def _check_entry(entry: Entry, piece: Piece, leaf: Leaf, description: Description) -> None:
    if entry.dtype not in WEIGHT_DTYPES.values():
        raise ConversionError(
            f"{entry.file}: {entry.name} is {entry.dtype}; weights are {', '.join(WEIGHT_DTYPES)} "
            "(quantised checkpoints are not read)"
        )
    if entry.shape == piece.shape:
        return
    model, hint = description.model, ""
    heads = {"query": model.heads, "key": model.kv_heads, "value": model.kv_heads}
    if leaf.path[-1] == "kernel" and leaf.path[-2] in heads and len(entry.shape) == 2:
        count = heads[leaf.path[-2]]
        implied = f"{entry.shape[0] / count:g}"
        hint = f". {CONFIG_FILE}: {count} heads of head_dim {model.head_size}; by the weights head_dim is {implied}"
    raise ConversionError(
        f"{entry.file}: {entry.name} has shape {list(entry.shape)}; {CONFIG_FILE} asks for {list(piece.shape)}{hint}"
    )


def _load_leaf(
    checkpoint: Checkpoint, leaf: Leaf, sharding: Sharding, dtype: np.dtype, advance: Callable[[int], None]
) -> jax.Array:
    def part(index: tuple[slice, ...]) -> np.ndarray:
        bounds = [slice(*one.indices(size)[:2]) for one, size in zip(index, leaf.shape, strict=True)]
        buffer = _aligned([one.stop - one.start for one in bounds], dtype)
        outer, own = bounds[: leaf.stacked], bounds[leaf.stacked :]
        for piece in leaf.pieces:
            inside = all(one.start <= i < one.stop for i, one in zip(piece.place, outer, strict=True))
            if inside:
                place = tuple(i - one.start for i, one in zip(piece.place, outer, strict=True))
                _fill(buffer[place], checkpoint.entries[piece.tensor], piece.first, leaf.transposed, own, advance)
        return buffer

    return jax.make_array_from_callback(leaf.shape, sharding, part)


def _fill(
    target: np.ndarray,
    entry: Entry,
    first: int,
    transposed: bool,
    own: list[slice],
    advance: Callable[[int], None],
) -> None:
    """Write the part `own` of a piece into `target`: its rows from `first` on, turned where they must be."""
    rows, columns = (own[-1], own[0]) if transposed else (own[0], own[-1])
    if target.ndim == 1:
        columns = slice(0, 1)
    width = math.prod(entry.shape[1:])
    some = max(1, _BYTES_AT_A_TIME // max(1, width * entry.dtype.itemsize))
    for start in range(rows.start, rows.stop, some):
        stop = min(start + some, rows.stop)
        read = entry.rows(first + start, first + stop)
        here = slice(start - rows.start, stop - rows.start)
        chosen = read[:, columns]
        if target.ndim == 1:
            target[here] = chosen[:, 0]
        elif transposed:
            for first_row in range(0, stop - start, _TURNED_AT_A_TIME):
                turned = slice(first_row, first_row + _TURNED_AT_A_TIME)
                _copy(target[:, here][:, turned], chosen[turned].T)
        else:
            _copy(target[here], chosen)
        advance(read.nbytes)


def _copy(target: np.ndarray, source: np.ndarray) -> None:
    if target.dtype == source.dtype:  # bits: numpy copies a foreign dtype element by element
        bits = np.dtype(f"u{target.dtype.itemsize}")
        target, source = target.view(bits), source.view(bits)
    target[...] = source


def _aligned(shape: list[int], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array that begins where a device may take it over."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def _some(names: list[str]) -> str:
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
