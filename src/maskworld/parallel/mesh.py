"""One mesh, one table of rules: where every array of a run lives.

All sharding is jit with named shardings (formerly pjit) over the mesh that `make_mesh` makes. Axis types are always
given: JAX changed its default to Explicit, under which indexing into a sharded table and some kernels fail.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from maskworld.config import MeshConfig
from maskworld.errors import ConfigError

AXES = ("data", "fsdp", "tensor", "expert")
BATCH_AXES = ("data", "fsdp", "expert")
_FORCED_DEVICES = "xla_force_host_platform_device_count"

LOGICAL_RULES: dict[str, str | None] = {
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "feed_forward": "tensor",
    "vocabulary": "tensor",
    "experts": "expert",
    "channels": "tensor",
    "layers": None,
    "head_size": None,
    "embed_norm": None,
    "router": None,
    "taps": None,
    "rank": None,
}
"""Logical axis of a parameter -> mesh axis that splits it; None keeps it whole (too small to split)."""


def split_cpu(config: MeshConfig, rows: int) -> None:
    """Make each core of this machine a JAX device of its own. Must precede any use of a device.

    Other kinds of devices are not touched. A number given by XLA_FLAGS, or devices already in use, stay as they are.

    Args:
        rows: rows of a microbatch; a number of devices that does not divide them is not chosen.
    """
    if _FORCED_DEVICES in os.environ.get("XLA_FLAGS", ""):
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = config.cpu_devices or max(n for n in range(1, cores + 1) if rows % n == 0)
    with contextlib.suppress(RuntimeError):  # devices are in use already
        jax.config.update("jax_num_cpu_devices", count)


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh with axes data, fsdp, tensor, expert over `devices` (all devices when None).

    Raises:
        ConfigError: the axis sizes do not multiply to the number of devices; names the fields and the number.
    """
    devices = jax.devices() if devices is None else list(devices)
    sizes = solve_axes(config, len(devices))
    kinds = (AxisType.Auto,) * len(AXES)
    return jax.make_mesh(tuple(sizes[axis] for axis in AXES), AXES, axis_types=kinds, devices=devices)


def solve_axes(config: MeshConfig, device_count: int) -> dict[str, int]:
    """Axis -> size with -1 solved.

    Raises:
        ConfigError: more than one -1, a size below 1, or sizes that do not multiply to `device_count`.
    """
    sizes = {axis: getattr(config, axis) for axis in AXES}
    wanted = ", ".join(f"mesh.{axis}={size}" for axis, size in sizes.items())
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    if len(open_axes) > 1:
        raise ConfigError(
            f"{' and '.join(f'mesh.{axis}' for axis in open_axes)} are -1; only one axis may be left open"
        )
    for axis, size in sizes.items():
        if size == 0 or size < -1:
            raise ConfigError(f"mesh.{axis} is {size}; it must be above 0, or -1 for all devices that are left")
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if open_axes:
        if device_count % fixed:
            raise ConfigError(
                f"{wanted} cannot be laid over {device_count} devices: the fixed axes take {fixed}, which does not "
                f"divide {device_count}; make them smaller"
            )
        sizes[open_axes[0]] = device_count // fixed
    elif fixed != device_count:
        raise ConfigError(
            f"{wanted} need {fixed} devices and there are {device_count}; set one axis to -1 to take all that are left"
        )
    return sizes


def batch_shards(mesh: Mesh) -> int:
    """Into how many parts a batch is split."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def check_batch(mesh: Mesh, batch_size: int, gradient_accumulation: int = 1) -> None:
    """Refuse a batch whose microbatches cannot be split evenly over the mesh.

    Raises:
        ConfigError: names the fields and the number of parts.
    """
    shards = batch_shards(mesh)
    rows = batch_size // gradient_accumulation
    if rows % shards:
        sizes = " x ".join(str(mesh.shape[axis]) for axis in BATCH_AXES)
        raise ConfigError(
            f"training.batch_size / training.gradient_accumulation is {rows} rows; it must be a multiple of "
            f"mesh.data x mesh.fsdp x mesh.expert = {sizes} = {shards}"
        )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows split over data, fsdp and expert, everything behind the first axis whole."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def parameter_shardings(mesh: Mesh, abstract_params: Any, logical_axes: Any) -> Any:
    """A tree of NamedShardings like `abstract_params`.

    A dimension that its mesh axis does not divide, or whose mesh axis an earlier dimension took, stays whole.

    Args:
        abstract_params: tree of anything with a `shape`.
        logical_axes: the same tree with a tuple of logical axis names (keys of LOGICAL_RULES) for each leaf.

    Raises:
        ValueError: a leaf has another number of names than dimensions, or a name has no rule.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(abstract_params)
    names = structure.flatten_up_to(logical_axes)
    return structure.unflatten(
        [
            NamedSharding(mesh, partition_spec(mesh, leaf.shape, axes, jax.tree_util.keystr(path)))
            for (path, leaf), axes in zip(leaves, names, strict=True)
        ]
    )


def partition_spec(mesh: Mesh, shape: Sequence[int], axes: Sequence[str], name: str = "array") -> PartitionSpec:
    """The PartitionSpec of one array by LOGICAL_RULES, see `parameter_shardings`."""
    if len(axes) != len(shape):
        raise ValueError(f"{name} has shape {tuple(shape)} and {len(axes)} axis names {tuple(axes)}")
    taken: list[str | None] = []
    for size, axis in zip(shape, axes, strict=True):
        if axis not in LOGICAL_RULES:
            raise ValueError(f"{name}: logical axis {axis!r} has no rule; known: {', '.join(LOGICAL_RULES)}")
        target = LOGICAL_RULES[axis]
        splits = (
            target is not None and target not in taken and mesh.shape[target] > 1 and size % mesh.shape[target] == 0
        )
        taken.append(target if splits else None)
    while taken and taken[-1] is None:
        taken.pop()
    return PartitionSpec(*taken)
