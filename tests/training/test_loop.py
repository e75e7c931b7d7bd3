"""Whole training runs as a person starts them: stopped hard, started again, refused, out of disk space.

The runs are processes of their own, so that they can be killed. They share a cache of compiled programs.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_run

import maskworld
from maskworld.errors import ConfigError, UserError
from maskworld.training import loop
from maskworld.training.checkpoints import CHECKPOINT_FOLDER, load_params
from maskworld.training.writers import METRICS_FILE, read_metrics

STEPS, EVERY = 40, 8
NUMBERS = ("loss", "cross_entropy", "grad_norm", "masked_tokens", "learning_rate")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Folder with the data, the experiment and the cache of compiled programs."""
    folder = tmp_path_factory.mktemp("world")
    tiny_run.write_data(folder / "data")
    tiny_run.write_experiment(
        folder / "tiny.py", folder / "data", steps=STEPS, checkpoint_every=EVERY, log_every=3, validate_every=16
    )
    return folder


def start(world, run, *words, **environment):
    sources = [str(Path(maskworld.__file__).parents[1]), str(Path(tiny_run.__file__).parent)]
    return subprocess.Popen(
        [sys.executable, "-m", "maskworld.cli", "train", str(world / "tiny.py"), "--run", str(run), *words],
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(sources),
            "JAX_PLATFORMS": "cpu",
            # one device, and a compiler in a hurry: a step this small is all compilation
            "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
            "JAX_COMPILATION_CACHE_DIR": str(world / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=900)
    return process.returncode, out, err


def curve(run, kind="train"):
    """The numbers of every line of `kind`, exactly as written; times left out."""
    lines = [entry for entry in read_metrics(run / METRICS_FILE) if entry["kind"] == kind]
    return sorted((line["step"], *(line.get(name) for name in NUMBERS)) for line in lines)


def events(run):
    return [entry for entry in read_metrics(run / METRICS_FILE) if entry["kind"] == "event"]


@pytest.fixture(scope="module")
def undisturbed(world):
    """A run from the first step to the last, and what it printed."""
    run = world / "undisturbed"
    code, out, err = finish(start(world, run, JAX_LOG_COMPILES="1"))
    assert code == 0, err
    return run, out, err


@pytest.fixture
def copy(undisturbed, tmp_path):
    return Path(shutil.copytree(undisturbed[0], tmp_path / "run"))


def test_a_run_leaves_its_configuration_metrics_events_and_checkpoints(undisturbed):
    run, out, _ = undisturbed
    assert {"config.json", "data", "metrics.jsonl", "tensorboard", "checkpoints"} <= {p.name for p in run.iterdir()}
    ends_of_windows = sorted({*range(3, STEPS, 3), *range(EVERY, STEPS + 1, EVERY)})
    assert [line[0] for line in curve(run)] == ends_of_windows
    assert [line[0] for line in curve(run, "validation")] == [8, 16, 24, 32, 40]
    assert [event["event"] for event in events(run)] == ["started", "finished"]
    assert events(run)[0]["parameters"] > 0 and "CPU cores" in events(run)[0]["machine"]
    assert curve(run)[-1][1] < curve(run)[0][1], "it learns"
    assert "tokens/s" in out and "data wait" in out and f"step {STEPS}/{STEPS}" in out
    latest = load_params(run, "latest")
    assert latest.step == STEPS and latest.config.training.steps == STEPS


def test_the_step_is_compiled_exactly_once(undisturbed):
    compiled = [line for line in undisturbed[2].splitlines() if "Finished XLA compilation of jit(step)" in line]
    assert len(compiled) == 1, undisturbed[2]
    assert undisturbed[1].count("compiled the step") == 1


def test_eight_devices_split_three_ways_give_the_losses_of_other_meshes(world, undisturbed, tmp_path):
    words = "--mesh.cpu_devices 8 --mesh.data 2 --mesh.fsdp 2 --mesh.tensor 2".split()
    code, _, err = finish(start(world, tmp_path / "run", *words))
    assert code == 0, err
    split, reference = curve(tmp_path / "run"), curve(undisturbed[0])
    assert events(tmp_path / "run")[0]["machine"].startswith("8 x cpu")
    assert not events(undisturbed[0])[0]["machine"].startswith("8 x")
    assert [line[0] for line in split] == [line[0] for line in reference]
    for left, right in zip(split, reference, strict=True):
        assert left[1:] == pytest.approx(right[1:], rel=1e-4), f"step {left[0]}"


def test_a_run_killed_in_the_middle_and_started_again_equals_one_that_never_stopped(world, undisturbed, tmp_path):
    run = tmp_path / "run"
    process = start(world, run)
    wait_for_step(run, 2 * EVERY + 1, process)
    process.send_signal(signal.SIGKILL)
    assert finish(process)[0] == -signal.SIGKILL
    reached = max(step for step, *_ in curve(run))
    assert reached < STEPS, "killed too late to mean anything"
    with open(run / METRICS_FILE, "a") as file:
        file.write('{"step": 99, "kind": "tra')  # what a kill in the middle of a line leaves

    code, out, err = finish(start(world, run))
    assert code == 0, err
    resumed_from = next(event["step"] for event in events(run) if event["event"] == "resumed")
    assert resumed_from % EVERY == 0 and EVERY <= resumed_from <= reached
    assert f"resuming after step {resumed_from}" in out
    assert "was cut off when the run was stopped" in out
    assert curve(run) == curve(undisturbed[0]), "bit for bit"
    assert curve(run, "validation") == curve(undisturbed[0], "validation")
    written = (run / METRICS_FILE).read_text().splitlines()
    assert len(written) > len(read_metrics(run / METRICS_FILE)), "what had been written was not taken back"


def wait_for_step(run, step, process):
    until = time.monotonic() + 900
    while time.monotonic() < until:
        if (run / METRICS_FILE).exists() and any(line[0] >= step for line in curve(run)):
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    pytest.fail(f"step {step} was not reached in time")


def test_a_kill_during_a_checkpoint_write_falls_back_to_the_one_before_and_says_so(world, undisturbed, copy):
    checkpoints = copy / CHECKPOINT_FOLDER
    newest = checkpoints / str(STEPS)
    shutil.rmtree(newest / "optimizer")
    newest.rename(checkpoints / f"{STEPS}.orbax-checkpoint-tmp")
    code, out, err = finish(start(world, copy))
    assert code == 0, err
    said = f"the checkpoint of step {STEPS} was not finished when the run was stopped; using the one of step 32"
    assert said in out
    assert [e["message"] for e in events(copy) if e["event"] == "recovered"] == [said]
    assert curve(copy) == curve(undisturbed[0])


@pytest.mark.slow  # the schedule depends on the number of steps, so this compiles again
def test_more_steps_go_on_from_the_end(world, copy):
    code, out, err = finish(start(world, copy, "--training.steps", str(2 * STEPS)))
    assert code == 0, err
    assert f"resuming after step {STEPS}" in out
    assert curve(copy)[-1][0] == 2 * STEPS
    assert json.loads((copy / "config.json").read_text())["training"]["steps"] == 2 * STEPS


def test_a_run_that_is_done_has_nothing_left_to_train(copy, world):
    before = sorted(path.name for path in (copy / CHECKPOINT_FOLDER).iterdir())
    result = loop.train(load_params(copy, "latest").config, copy)
    assert (result.step, result.loss) == (STEPS, None) and result.seconds > 0
    assert sorted(path.name for path in (copy / CHECKPOINT_FOLDER).iterdir()) == before


def test_another_configuration_is_refused_by_field_before_anything_is_touched(copy, world):
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*") if path.is_file() and path.name != ".lock"}
    changed = tiny_run.experiment(world / "data", steps=STEPS, batch_size=16)
    with pytest.raises(ConfigError, match="training.batch_size: the run has 8, you gave 16"):
        loop.train(changed, copy)
    after = {path: path.stat().st_mtime_ns for path in copy.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == before


def test_other_trajectories_under_the_same_name_are_refused_before_anything_is_touched(copy, world):
    """The same configuration: another tokenizer would take the place of the one that the checkpoints need."""
    config = load_params(copy, "latest").config
    data = Path(config.data.trajectories)
    kept = data.rename(data.with_name("kept"))
    try:
        tiny_run.write_data(data)
        text = (data / "train.jsonl").read_text()
        (data / "train.jsonl").write_text(text.replace("lamp", "lantern"))
        before = {path: path.stat().st_mtime_ns for path in copy.rglob("*") if path.is_file() and path.name[0] != "."}
        with pytest.raises(ConfigError, match=r"prepared from other inputs \(train\), and this run has checkpoints"):
            loop.train(config, copy)
        assert all(path.stat().st_mtime_ns == stamp for path, stamp in before.items())
    finally:
        shutil.rmtree(data)
        kept.rename(data)


def test_a_run_without_a_checkpoint_may_begin_anew_with_another_configuration(copy, capsys):
    shutil.rmtree(copy / CHECKPOINT_FOLDER)
    config = tiny_run.experiment(copy, seed=5)
    loop._check_begun(config, copy, print)
    assert "beginning anew" in capsys.readouterr().out
    assert not (copy / METRICS_FILE).exists() and (copy / f"{METRICS_FILE}.before").exists()


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    with open(tmp_path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match=f"another process is training in {tmp_path}"):
            loop.train(tiny_run.experiment(tmp_path / "data"), tmp_path)


def test_a_loss_that_is_no_number_stops_the_run_before_a_checkpoint_is_written():
    class Nothing:
        steps = [8]

    with pytest.raises(UserError, match="the loss is nan after step 9; the last checkpoint is of step 8"):
        loop._refuse_divergence(9, {"loss": float("nan")}, Nothing())
    with pytest.raises(UserError, match="the grad_norm is inf after step 9"):
        loop._refuse_divergence(9, {"loss": 1.0, "grad_norm": float("inf")}, Nothing())
    loop._refuse_divergence(9, {"loss": 1.0, "grad_norm": 2.0}, Nothing())


def test_a_full_disk_ends_the_run_with_exit_code_2_and_loses_nothing(world, undisturbed, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)]).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        run = Path(shutil.copytree(undisturbed[0], disk / "run"))
        shutil.rmtree(run / CHECKPOINT_FOLDER / str(STEPS))
        free = shutil.disk_usage(disk).free
        (disk / "filler").write_bytes(bytes(free - 48 * 1024))  # room for lines of metrics, not for a checkpoint
        code, out, err = finish(start(world, run))
        assert code == 2, out + err
        assert "no space left" in err and str(run) in err and "Traceback" not in err
        assert load_params(run, "latest").step == STEPS - EVERY
        assert curve(run) == curve(undisturbed[0]), "the last lines were written before the save failed"
    finally:
        subprocess.run(["umount", "-l", str(disk)])
