"""The mesh solver and the logical-axis rules, on eight virtual devices in a process of their own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

from maskworld.config import MeshConfig
from maskworld.errors import ConfigError
from maskworld.parallel.mesh import (
    AXES,
    LOGICAL_RULES,
    batch_sharding,
    check_batch,
    make_mesh,
    parameter_shardings,
    partition_spec,
    solve_axes,
)


def abstract_mesh(**sizes):
    return jax.sharding.AbstractMesh(tuple(sizes.get(axis, 1) for axis in AXES), AXES)


def test_one_open_axis_takes_the_devices_that_are_left():
    assert solve_axes(MeshConfig(data=-1, fsdp=2, tensor=2), 8) == {"data": 2, "fsdp": 2, "tensor": 2, "expert": 1}
    assert solve_axes(MeshConfig(data=2, fsdp=-1), 2) == {"data": 2, "fsdp": 1, "tensor": 1, "expert": 1}


@pytest.mark.parametrize(
    ("config", "count", "words"),
    [
        (MeshConfig(data=-1, fsdp=3), 8, ["mesh.fsdp=3", "8 devices", "take 3"]),
        (MeshConfig(data=2, fsdp=2), 8, ["mesh.data=2", "need 4 devices", "there are 8", "-1"]),
        (MeshConfig(data=-1, tensor=-1), 8, ["mesh.data and mesh.tensor", "only one"]),
        (MeshConfig(data=0), 8, ["mesh.data is 0"]),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_the_field_and_the_device_count(config, count, words):
    with pytest.raises(ConfigError) as refused:
        solve_axes(config, count)
    assert all(word in str(refused.value) for word in words), refused.value


def test_the_mesh_has_the_four_axes_and_says_its_axis_types():
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    assert mesh.axis_names == AXES
    assert set(mesh.axis_types) == {AxisType.Auto}


def test_a_batch_is_split_over_data_fsdp_and_experts_together():
    assert batch_sharding(make_mesh(MeshConfig(), jax.devices()[:1])).spec == PartitionSpec(("data", "fsdp", "expert"))
    with pytest.raises(ConfigError, match=r"training.batch_size.*3 rows.*2 x 2 x 1 = 4"):
        check_batch(abstract_mesh(data=2, fsdp=2), batch_size=6, gradient_accumulation=2)
    check_batch(abstract_mesh(data=2, fsdp=2), batch_size=8, gradient_accumulation=2)


def test_rules_split_what_divides_and_keep_the_rest_whole():
    mesh = abstract_mesh(fsdp=2, tensor=4)
    assert partition_spec(mesh, (6, 8), ("embed", "feed_forward")) == PartitionSpec("fsdp", "tensor")
    assert partition_spec(mesh, (5, 8), ("embed", "feed_forward")) == PartitionSpec(None, "tensor")
    assert partition_spec(mesh, (6, 6), ("embed", "heads")) == PartitionSpec("fsdp")
    assert partition_spec(mesh, (3, 6, 8), ("layers", "embed", "heads")) == PartitionSpec(None, "fsdp", "tensor")
    assert partition_spec(mesh, (8, 8), ("heads", "kv_heads")) == PartitionSpec("tensor"), "an axis is used once"
    assert partition_spec(mesh, (8,), ("embed_norm",)) == PartitionSpec()


def test_axis_names_that_are_missing_or_unknown_are_reported_with_the_parameter():
    mesh = abstract_mesh(fsdp=2)
    params = {"layer": {"query": jax.ShapeDtypeStruct((4, 4), jnp.float32)}}
    with pytest.raises(ValueError, match="query.*axis names"):
        parameter_shardings(mesh, params, {"layer": {"query": ("embed",)}})
    with pytest.raises(ValueError, match="query.*'embde' has no rule"):
        parameter_shardings(mesh, params, {"layer": {"query": ("embde", "heads")}})
    assert all(target in (None, *AXES) for target in LOGICAL_RULES.values())


@pytest.mark.parametrize(("asked", "rows", "devices"), [(0, 1, {1}), (3, 8, {3})])
def test_a_cpu_is_split_into_as_many_devices_as_divide_the_rows_or_as_asked(asked, rows, devices):
    program = f"""
        import os
        os.environ.pop("XLA_FLAGS", None)
        import jax
        from maskworld.config import MeshConfig
        from maskworld.parallel.mesh import make_mesh, split_cpu
        split_cpu(MeshConfig(cpu_devices={asked}), {rows})
        assert jax.device_count() in {devices}, jax.device_count()
        assert make_mesh(MeshConfig()).shape["data"] == jax.device_count()
        print("split as said")
    """
    assert "split as said" in run(program)


def run(program):
    source = Path(__file__).parents[2] / "src"
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": str(source),
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_eight_devices_hold_an_eighth_of_a_split_array_each():
    program = """
        import jax, jax.numpy as jnp
        from maskworld.config import MeshConfig
        from maskworld.parallel.mesh import batch_sharding, make_mesh, parameter_shardings
        mesh = make_mesh(MeshConfig(data=-1, fsdp=2, tensor=2))
        assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2, "expert": 1}, mesh.shape
        rows = jax.device_put(jnp.zeros((8, 3)), batch_sharding(mesh))
        assert {shard.data.shape for shard in rows.addressable_shards} == {(2, 3)}
        weights = {"w": jnp.zeros((4, 6))}
        placed = jax.device_put(weights, parameter_shardings(mesh, weights, {"w": ("embed", "feed_forward")}))
        assert {shard.data.shape for shard in placed["w"].addressable_shards} == {(2, 3)}
        print("split as said")
    """
    assert "split as said" in run(program)
