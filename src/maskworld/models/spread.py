"""The mesh that a traced function runs under, for the few places that say by hand what each device does."""

from __future__ import annotations

import jax
from jax.sharding import AbstractMesh

ROWS = ("data", "fsdp", "expert")
"""Mesh axes over which the rows of a batch are spread (`parallel.mesh.BATCH_AXES`)."""


def mesh_in_use() -> AbstractMesh | None:
    """The mesh of the context; None where there is none or it is a single device."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty or mesh.size == 1 else mesh
