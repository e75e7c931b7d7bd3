"""From parameters back to the tensors of a Hugging Face folder, one at a time; updates of low rank are merged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from maskworld.config import ModelConfig
from maskworld.conversion.load import WEIGHT_DTYPES
from maskworld.conversion.names import KeyPath, Leaf, Piece, leaves
from maskworld.conversion.safetensors_writer import Outline, write_folder
from maskworld.errors import ConversionError

_UPDATES = ("lora_a", "lora_b")


def unload(
    folder: Path,
    config: ModelConfig,
    params: Mapping[str, Any],
    dtype: str | None = None,
    shard_bytes: int = 5_000_000_000,
    advance: Callable[[int], None] = lambda nbytes: None,
) -> list[str]:
    """Write the parameters as safetensors into `folder`; returns the names of the files.

    Args:
        config: the model's, with `vocabulary_size` set.
        params: the tree of `names.leaves`, with `lora_a` and `lora_b` beside some kernels.
        dtype: of all tensors; None keeps each leaf's.
        advance: called with the bytes written since the last call.

    Raises:
        ConversionError: the parameters are not those of `config`.
        StorageError: the folder cannot be written.
    """
    found = leaves(config)
    check_params(config, params)
    parts = _parts_of_tensors(found)
    kinds = {leaf.path: WEIGHT_DTYPES[dtype] if dtype else _dtype(params, leaf) for leaf in found}
    outlines = [Outline(name, kinds[of[0][0].path], of[0][1].shape) for name, of in parts.items()]

    def tensors() -> Iterator[np.ndarray]:
        for outline, of in zip(outlines, parts.values(), strict=True):
            yield _tensor(config, params, outline, of)
            advance(outline.nbytes)

    return write_folder(folder, outlines, tensors(), shard_bytes)


def check_params(config: ModelConfig, params: Mapping[str, Any]) -> tuple[str, ...]:
    """Compare the arrays with those of the configuration; returns the names at the top that no checkpoint knows.

    Raises:
        ConversionError: an array is missing, has another shape, or is none of the layers of this configuration.
    """
    given = _flat(params)
    wanted = {leaf.path: leaf.shape for leaf in leaves(config)}
    for path, shape in wanted.items():
        if path not in given:
            raise ConversionError(f"the checkpoint lacks {'/'.join(path)}, which its configuration asks for")
        if tuple(given[path].shape) != shape:
            raise ConversionError(
                f"the checkpoint's {'/'.join(path)} has shape {list(given[path].shape)}; its configuration asks for "
                f"{list(shape)}"
            )
    more = [path for path in given if path not in wanted and not (path[-1] in _UPDATES and _base(path) in wanted)]
    for path in more:
        if path[0] == "layers":
            raise ConversionError(f"the checkpoint holds {'/'.join(path)}, which no checkpoint of {config.family} has")
    return tuple(dict.fromkeys(path[0] for path in more))


def _parts_of_tensors(found: tuple[Leaf, ...]) -> dict[str, list[tuple[Leaf, Piece]]]:
    """Name -> what it is made of, ascending by row; names in the order embedding, layers, norm, head."""
    parts: dict[str, list[tuple[Leaf, Piece]]] = {}
    for leaf in found:
        for piece in leaf.pieces:
            parts.setdefault(piece.tensor, []).append((leaf, piece))
    for of in parts.values():
        of.sort(key=lambda part: part[1].first)
    return parts


def _tensor(
    config: ModelConfig, params: Mapping[str, Any], outline: Outline, of: list[tuple[Leaf, Piece]]
) -> np.ndarray:
    rows = []
    for leaf, piece in of:
        own = _merged(config, params, leaf, piece, outline.dtype)
        rows.append((own.T if leaf.transposed else own).reshape(leaf.rows, *outline.shape[1:]))
    return rows[0] if len(rows) == 1 else np.concatenate(rows)


def _merged(config: ModelConfig, params: Mapping[str, Any], leaf: Leaf, piece: Piece, dtype: np.dtype) -> np.ndarray:
    """One piece's own array with its update, which is added in float32 and rounded once."""
    above = _at(params, leaf.path[:-1])
    own = _taken(above[leaf.path[-1]], piece.place)
    if leaf.path[-1] == "kernel" and _UPDATES[0] in above:
        first, second = (_taken(above[name], piece.place).astype(np.float32) for name in _UPDATES)
        own = own.astype(np.float32) + np.float32(config.lora.scale) * (first @ second)
    return own if own.dtype == dtype else own.astype(dtype)


def _taken(array: Any, place: tuple[int, ...]) -> np.ndarray:
    """`array[place]` on the host; only that much leaves the devices."""
    if isinstance(array, np.ndarray):
        return array[place]
    return np.asarray(_slice(array, place) if place else array)


@jax.jit
def _slice(array: jax.Array, place: tuple[int, ...]) -> jax.Array:
    for i in place:  # traced, so that one program serves all layers
        array = jax.lax.dynamic_index_in_dim(array, i, keepdims=False)
    return array


def _dtype(params: Mapping[str, Any], leaf: Leaf) -> np.dtype:
    dtype = np.dtype(_at(params, leaf.path).dtype)
    if dtype not in WEIGHT_DTYPES.values():
        raise ConversionError(f"the checkpoint's {'/'.join(leaf.path)} is {dtype}; it must be float")
    return dtype


def _at(params: Mapping[str, Any], path: KeyPath) -> Any:
    for part in path:
        params = params[part]
    return params


def _base(path: KeyPath) -> KeyPath:
    return (*path[:-1], "kernel")


def _flat(params: Mapping[str, Any], above: KeyPath = ()) -> dict[KeyPath, Any]:
    found: dict[KeyPath, Any] = {}
    for name, value in params.items():
        found |= _flat(value, (*above, name)) if isinstance(value, Mapping) else {(*above, name): value}
    return found


def total_bytes(config: ModelConfig, params: Mapping[str, Any], dtype: str | None = None) -> int:
    """Bytes that `unload` will write."""
    size = WEIGHT_DTYPES[dtype].itemsize if dtype else None
    return sum(math.prod(leaf.shape) * (size or _dtype(params, leaf).itemsize) for leaf in leaves(config))
