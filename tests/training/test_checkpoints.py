"""What a kill, a bad disk, a full disk or another contract does to the checkpoints of a run."""

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from maskworld.config import Experiment, MeshConfig, ModelConfig, ModelContract, TrainingConfig
from maskworld.errors import CheckpointError, ConfigError, StorageError
from maskworld.parallel.mesh import make_mesh, replicated
from maskworld.training.checkpoints import Checkpoints, load_params

# What Orbax has open when it meets damage is closed by the garbage collector, in some later test, and pytest tells.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CONFIG = Experiment(training=TrainingConfig(steps=100, keep_last=2, keep_best=1))
CONTRACT = ModelContract(
    block_length=8, mask_id=1, pad_id=0, end_id=2, vocabulary_size=64, schedule="linear", tokenizer_hash="abc"
)
ROWS = "digest of the rows"
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


@flax.struct.dataclass
class State:
    step: Any
    params: Any
    opt_state: Any


def state_of(step, size=16):
    params = {
        "embedding": jax.random.normal(jax.random.key(step), (size, size)),
        "layers": {"query": jnp.full((2, 3), step, jnp.bfloat16), "norm": jnp.ones(3)},
    }
    return State(jnp.int32(step), params, OPTIMIZER.init(params))


def abstract(state):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)


ABSTRACT = abstract(state_of(0))


def assert_equal(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, left, right)


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    """A run with good checkpoints of steps 10 and 20, copied by each test that hurts it."""
    run = tmp_path_factory.mktemp("two") / "run"
    with Checkpoints(run, CONFIG, CONTRACT, ROWS) as checkpoints:
        checkpoints.save(10, state_of(10), {"next_batch": 10, "seconds": 1 / 3}, validation_loss=0.5)
        checkpoints.save(20, state_of(20), {"next_batch": 20, "seconds": 2 / 3}, validation_loss=0.7)
    return run


@pytest.fixture
def run(two_steps, tmp_path):
    return Path(shutil.copytree(two_steps, tmp_path / "run"))


def restore(run, config=CONFIG, contract=CONTRACT, rows=ROWS):
    told = []
    with Checkpoints(run, config, contract, rows, tell=told.append) as checkpoints:
        return checkpoints.restore_latest(ABSTRACT), told


def test_the_newest_state_comes_back_bit_for_bit_with_its_data_position(run):
    restored, told = restore(run)
    assert (restored.step, restored.notes, told) == (20, (), [])
    assert restored.data == {"next_batch": 20, "seconds": 2 / 3}
    assert_equal(restored.state, state_of(20))


def test_a_run_without_checkpoints_has_nothing_to_restore(tmp_path):
    assert restore(tmp_path / "new") == (None, [])


def test_the_last_and_the_best_are_kept(tmp_path):
    losses = {1: 0.9, 2: 0.2, 3: float("nan"), 4: 0.6, 5: None, 6: 0.7}
    with Checkpoints(tmp_path, CONFIG, CONTRACT, ROWS) as checkpoints:
        for step, loss in losses.items():
            checkpoints.save(step, state_of(step), {"next_batch": step}, loss)
        checkpoints.wait()
        assert checkpoints.steps == [2, 5, 6]
    with Checkpoints(tmp_path, CONFIG, CONTRACT, ROWS) as reopened:  # knows the losses of before
        reopened.save(7, state_of(7), {"next_batch": 7}, 0.8)
        reopened.wait()
        assert reopened.steps == [2, 6, 7]


def test_a_save_is_not_touched_by_the_steps_that_follow_it(tmp_path):
    """The training step donates its state: the buffers are overwritten while the disk still writes."""
    add = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + leaf.dtype.type(1), state), donate_argnums=0)
    state = state_of(1, size=1024)
    kept = jax.tree.map(np.array, state)
    with Checkpoints(tmp_path, CONFIG, CONTRACT, ROWS) as checkpoints:
        checkpoints.save(1, state, {"next_batch": 1})
        for _ in range(5):
            state = add(state)
        jax.block_until_ready(state)
        checkpoints.wait()
        assert_equal(checkpoints.restore_latest(abstract(state)).state, kept)


def first(run, pattern):
    return next(path for path in sorted((run / "checkpoints" / "20").rglob(pattern)) if path.is_file())


def biggest(run):
    return max((run / "checkpoints" / "20" / "params").rglob("d/*"), key=lambda path: path.stat().st_size)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


DAMAGES = {
    "weights truncated": lambda run: os.truncate(biggest(run), biggest(run).stat().st_size // 2),
    "weights with one flipped bit": lambda run: flip(biggest(run)),
    "weights gone": lambda run: biggest(run).unlink(),
    "optimizer gone": lambda run: shutil.rmtree(run / "checkpoints" / "20" / "optimizer"),
    "no commit file": lambda run: (run / "checkpoints" / "20" / "commit_success.txt").unlink(),
    "no commit file of a part": lambda run: (run / "checkpoints" / "20" / "params" / "commit_success.txt").unlink(),
    "no metadata": lambda run: first(run, "_CHECKPOINT_METADATA").unlink(),
    "metadata cut": lambda run: os.truncate(first(run, "_CHECKPOINT_METADATA"), 40),
    "structure empty": lambda run: os.truncate(run / "checkpoints" / "20" / "params" / "_METADATA", 0),
    "index empty": lambda run: os.truncate(run / "checkpoints" / "20" / "params" / "manifest.ocdbt", 0),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_checkpoint_is_set_aside_told_and_the_previous_one_used(run, damage):
    DAMAGES[damage](run)
    restored, told = restore(run)
    assert restored.step == 10
    assert_equal(restored.state, state_of(10))
    assert len(told) == 1 and "step 20 is damaged" in told[0] and "using the one of step 10" in told[0], told
    assert (run / "checkpoints" / "20.damaged").is_dir()
    with Checkpoints(run, CONFIG, CONTRACT, ROWS) as checkpoints:
        checkpoints.save(20, state_of(20), {"next_batch": 20})  # the way is free for the same step again
        checkpoints.wait()
        assert checkpoints.steps == [10, 20]


def test_a_checkpoint_whose_writing_was_cut_off_is_told_and_the_previous_one_used(run):
    # Orbax writes aside under this name and renames at the end; a kill leaves the name.
    (run / "checkpoints" / "20").rename(run / "checkpoints" / "20.orbax-checkpoint-tmp")
    restored, told = restore(run)
    assert restored.step == 10
    assert told == ["the checkpoint of step 20 was not finished when the run was stopped; using the one of step 10"]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["10"], "the remains do not fill the disk"


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_never_started_over(run):
    for step in ("10", "20"):
        shutil.rmtree(run / "checkpoints" / step / "params")
    with pytest.raises(CheckpointError, match="(?s)no checkpoint in .* can be read.*step 20.*step 10"):
        restore(run)
    assert (run / "checkpoints" / "20").is_dir()


def test_another_contract_is_refused_with_field_and_both_values(run):
    other = dataclasses.replace(CONTRACT, block_length=4, tokenizer_hash="xyz")
    with pytest.raises(CheckpointError) as refused:
        restore(run, contract=other)
    assert "block_length: the checkpoint has 8, this run has 4" in str(refused.value)
    assert "tokenizer_hash: the checkpoint has 'abc', this run has 'xyz'" in str(refused.value)
    assert "vocabulary_size" not in str(refused.value)


def test_another_configuration_is_refused_by_field_and_more_steps_are_not(run):
    with pytest.raises(ConfigError, match="model.width: the run has 192, you gave 64"):
        restore(run, config=dataclasses.replace(CONFIG, model=ModelConfig(width=64)))
    longer = dataclasses.replace(CONFIG, training=dataclasses.replace(CONFIG.training, steps=500))
    assert restore(run, config=longer)[0].step == 20


def test_other_training_rows_are_refused(run):
    with pytest.raises(CheckpointError, match="data_hash: the checkpoint has 'digest of the rows', this run has 'new'"):
        restore(run, rows="new")


def test_a_checkpoint_written_on_one_device_is_read_onto_eight(run):
    mesh = make_mesh(MeshConfig(data=1, fsdp=-1), jax.devices())
    rows = NamedSharding(mesh, PartitionSpec("fsdp"))

    def place(leaf):
        splits = leaf.ndim and leaf.shape[0] % len(jax.devices()) == 0
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=rows if splits else replicated(mesh))

    with Checkpoints(run, CONFIG, CONTRACT, ROWS) as checkpoints:
        state = checkpoints.restore_latest(jax.tree.map(place, ABSTRACT)).state
        assert state.params["embedding"].sharding == rows
        assert_equal(state, state_of(20))
        checkpoints.save(30, state, {"next_batch": 30})  # and back
    restored, told = restore(run)
    assert (restored.step, told) == (30, [])
    assert_equal(restored.state.params, state_of(20).params)


def test_parameters_load_without_the_optimizer(run):
    shutil.rmtree(run / "checkpoints" / "10" / "optimizer")
    best, latest = load_params(run, "best"), load_params(run, "latest")
    assert (best.step, best.validation_loss, best.config, best.contract) == (10, 0.5, CONFIG, CONTRACT)
    assert_equal(best.params, state_of(10).params)
    assert latest.step == 20 and load_params(run, 20).step == 20
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 15; it has \[10, 20\]"):
        load_params(run, 15)
    with pytest.raises(CheckpointError, match="holds no trained model"):
        load_params(run / "absent")


def test_damaged_parameters_are_passed_over_for_latest_and_refused_for_a_given_step(run):
    flip(biggest(run))
    latest = load_params(run, "latest")
    assert latest.step == 10 and "step 20 is damaged" in latest.notes[0]
    with pytest.raises(CheckpointError, match="step 20 is damaged"):
        load_params(run, 20)
    assert (run / "checkpoints" / "20").is_dir(), "reading changes nothing"


@contextlib.contextmanager
def small_disk(folder, size):
    """A file system of `size`; skips where none can be mounted."""
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_save_that_cannot_fit_is_refused_before_it_begins(tmp_path):
    with small_disk(tmp_path / "disk", "3m") as disk:
        small, big = state_of(1), state_of(1, size=1024)
        with pytest.raises(StorageError, match="no space left for a checkpoint of 12.6 MB"):
            with Checkpoints(disk, CONFIG, CONTRACT, ROWS) as checkpoints:
                checkpoints.save(1, small, {"next_batch": 1})
                checkpoints.save(2, big, {"next_batch": 2})
        restored, told = restore(disk)
        assert (restored.step, told) == (1, [])
        assert_equal(restored.state, small)


def test_a_disk_that_fills_up_during_a_save_is_one_clear_error_and_costs_no_earlier_checkpoint(tmp_path):
    """In a process of its own, which ends hard as the command line does: Orbax may leave threads that wait."""
    program = """
        import os, sys
        from pathlib import Path
        import test_checkpoints as t
        from maskworld.training import checkpoints as module
        module._check_space = lambda folder, state: None  # the space goes after the look
        big, run = t.state_of(1, size=512), Path(sys.argv[1])  # 1 MiB; the zero moments compress away
        try:
            with module.Checkpoints(run, t.CONFIG, t.CONTRACT, t.ROWS) as checkpoints:
                for step in (1, 2, 3, 4):
                    checkpoints.save(step, big, {"next_batch": step})
                checkpoints.wait()
        except t.StorageError as error:
            print(error)
        with module.Checkpoints(run, t.CONFIG, t.CONTRACT, t.ROWS) as checkpoints:
            restored = checkpoints.restore_latest(t.abstract(big))
        t.assert_equal(restored.state.params, big.params)
        print("restored", restored.step)
        sys.stdout.flush()
        os._exit(0)
    """
    paths = [*sys.path, str(Path(__file__).parent)]
    with small_disk(tmp_path / "disk", "3m") as disk:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), str(disk)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert f"cannot write {disk / 'checkpoints'}" in done.stdout and "no space left" in done.stdout, done.stderr
    assert "restored 2" in done.stdout, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_made_is_a_storage_error_naming_it(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(StorageError, match="run"):
        Checkpoints(tmp_path / "run", CONFIG, CONTRACT, ROWS)
