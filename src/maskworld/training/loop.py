"""The training loop: every effect around one pure jitted step.

Batch i is a pure function of (rows, seed, i), noise i of (seed, i), and a checkpoint holds the exact state: a run that
is killed and started again writes the same losses, bit for bit on the same machine, as one that never stopped.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from maskworld.config import Experiment
from maskworld.config_rules import block_curriculum, block_length_at
from maskworld.configure import CONFIG_FILE, check_resumable, load_config, save_config, validate
from maskworld.data.pipeline import batches
from maskworld.data.prepare import prepare
from maskworld.errors import ConfigError, UserError
from maskworld.parallel.mesh import batch_sharding, split_cpu
from maskworld.storage import writing
from maskworld.training.checkpoints import CHECKPOINT_FOLDER, Checkpoints, Restored
from maskworld.training.job import (
    DATA_FOLDER,
    Job,
    make_job,
    model_contract,
    rows_digest,
    to_devices,
    with_tokenizer_of_base,
)
from maskworld.training.measures import Clock, Window
from maskworld.training.progress import Progress, duration
from maskworld.training.writers import METRICS_FILE, MetricsWriter

_LOCK_FILE = ".lock"


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    run: Path
    step: int
    loss: float | None
    """Mean over the last logged steps; None where nothing was left to train."""
    validation_loss: float | None
    seconds: float
    """Training time of all parts of the run; preparing data and compiling are not in it."""


def train(experiment: Experiment, run_folder: str | Path, progress: Progress | None = None) -> TrainResult:
    """Train `experiment` in `run_folder`, from its last checkpoint if it has one, to `training.steps`.

    Writes config.json, data/, checkpoints/, metrics.jsonl and tensorboard/ there.

    Raises:
        ConfigError: the configuration cannot be used, or means something else than the one the folder was begun with.
        DataError: the trajectories cannot be used.
        CheckpointError: the checkpoints are of another model contract, or none can be read.
        StorageError: the folder cannot be written; what was written before stays.
        UserError: the loss is no longer a number.
    """
    validate(experiment)
    experiment = with_tokenizer_of_base(experiment)
    split_cpu(experiment.mesh, experiment.training.batch_size // experiment.training.gradient_accumulation)
    run, is_first = Path(run_folder), jax.process_index() == 0
    with progress or Progress(enabled=is_first) as progress, _sole_trainer(run):
        _check_begun(experiment, run, progress.say)
        replace = not _has_checkpoints(run)
        prepared = prepare(experiment.data, experiment.diffusion, run / DATA_FOLDER, progress.say, replace)
        progress.say(prepared.summary())
        job = make_job(experiment, run, prepared)
        told: list[str] = []

        def tell(text: str) -> None:
            told.append(text)
            progress.say(text)

        with (
            MetricsWriter(run, enabled=is_first) as metrics,
            Checkpoints(
                run,
                experiment,
                model_contract(experiment, prepared),
                rows_digest(prepared),
                base_fingerprint=job.base_fingerprint,
                tell=tell,
            ) as checkpoints,
        ):
            if metrics.torn_line:
                tell(f"the last line of {METRICS_FILE} was cut off when the run was stopped; removed it")
            restored = checkpoints.restore_latest(job.abstract_state)
            save_config(run / CONFIG_FILE, experiment)
            _write_beginning(metrics, job, restored, told)
            return _run(job, restored, metrics, checkpoints, progress)


def _run(
    job: Job, restored: Restored | None, metrics: MetricsWriter, checkpoints: Checkpoints, progress: Progress
) -> TrainResult:
    """From the restored step, or the first, to the last."""
    training = job.experiment.training
    step = restored.step if restored else 0
    before = restored.data if restored else {"next_batch": 0, "seconds": 0.0}
    if step == training.steps:
        progress.say(f"all {step} steps are done; nothing is left to train")
        return TrainResult(job.run, step, None, None, before["seconds"])
    progress.say(f"resuming after step {step}" if restored else f"training {job.parameters:,} parameters")
    state = restored.state if restored else job.create_state()
    with contextlib.closing(_Feed(job, int(before["next_batch"]))) as feed:
        steps = _Steps(job, progress)
        clock, window, validation = Clock(step, before["seconds"]), Window(), None
        while step < training.steps:
            take_step = steps.at(step, feed.batch)
            state, step_metrics = take_step(state, feed.batch, *job.frozen)  # returns at once, the devices work on
            window.add(step_metrics, feed.tokens)
            window.settle(feed.advance())
            step += 1
            saving = step == training.steps or step % training.checkpoint_every == 0
            validating = job.validate and (saving or step % training.validate_every == 0)

            # A window ends at every checkpoint too: then a resumed run has the windows of an undisturbed one.
            if saving or validating or step % training.log_every == 0:
                values, window = window.close(), Window()
                metrics.write(step, "train", **values, seconds=clock.total)
                progress.pace(clock.pace(step, training.steps, values))
                _refuse_divergence(step, {name: values[name] for name in ("loss", "grad_norm")}, checkpoints)
            if validating:
                validation, window = job.validate(state.params), Window()
                metrics.write(step, "validation", **validation)
                _refuse_divergence(step, {"validation loss": validation["loss"]}, checkpoints)
            if saving:
                position = {"next_batch": feed.next_batch, "seconds": clock.total}
                checkpoints.save(step, state, position, validation["loss"] if validation else None)
                window = Window()
        checkpoints.wait()
        metrics.write(step, "event", event="finished", seconds=clock.total)
        progress.say(f"trained to step {step} in {duration(clock.total)}")
        return TrainResult(job.run, step, values["loss"], validation["loss"] if validation else None, clock.total)


class _Feed:
    """The next batch, on the devices already, and how to go on from it."""

    def __init__(self, job: Job, next_batch: int):
        experiment = job.experiment
        self._sharding = batch_sharding(job.mesh)
        self._batches = batches(
            job.prepared.train_rows,
            experiment.training.batch_size,
            seed=experiment.data.shuffle_seed,
            start_batch=next_batch,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            workers=experiment.data.workers,
        )
        self.next_batch = next_batch - 1
        self.advance()

    def advance(self) -> float:
        """Fetch the batch after this one; returns the seconds it took."""
        begun = time.perf_counter()
        rows = next(self._batches)
        self.batch = to_devices(rows, self._sharding)
        self.tokens = int(np.count_nonzero(rows["document_ids"]))
        self.next_batch += 1
        return time.perf_counter() - begun

    def close(self) -> None:
        self._batches.close()


class _Steps:
    """The step of each stage of the block curriculum, as an executable for these shapes and shardings.

    An executable never compiles again: a batch or state of another shape, dtype or placement is an error, where a
    jitted function would silently take minutes to compile a second time.
    """

    def __init__(self, job: Job, progress: Progress):
        self._job, self._progress = job, progress
        self._stages = block_curriculum(job.experiment.diffusion.block_curriculum)
        self._compiled: dict[int, Any] = {}

    def at(self, step: int, batch: dict[str, jax.Array]) -> Any:
        """The executable of step `step`, from 0; compiled where its block length is new."""
        length = block_length_at(step, self._job.experiment.diffusion.block_length, self._stages)
        if length not in self._compiled:
            begun, job = time.perf_counter(), self._job
            jitted = job.train_step(length)
            self._compiled[length] = jitted.lower(job.abstract_state, batch, *job.frozen).compile()
            stage = f" with blocks of {length}" if self._stages else ""
            self._progress.say(f"compiled the step{stage} in {duration(time.perf_counter() - begun)}")
        return self._compiled[length]


def _refuse_divergence(step: int, values: dict[str, float], checkpoints: Checkpoints) -> None:
    """Before anything of this step is saved, so that no checkpoint holds what cannot be gone on from."""
    bad = [f"the {name} is {value}" for name, value in values.items() if not math.isfinite(value)]
    if bad:
        last = checkpoints.steps[-1:] or ["none"]
        raise UserError(
            f"{' and '.join(bad)} after step {step}; the last checkpoint is of step {last[0]}. "
            "A lower optimizer.peak_learning_rate or optimizer.clip_norm, or more warmup_steps, may help."
        )


def _has_checkpoints(run: Path) -> bool:
    checkpoints = run / CHECKPOINT_FOLDER
    return checkpoints.is_dir() and any(path.name.isdecimal() for path in checkpoints.iterdir())


def _check_begun(experiment: Experiment, run: Path, say: Callable[[str], None]) -> None:
    """Refuse another configuration before anything of the run is touched; a run without checkpoints may begin anew."""
    if not (run / CONFIG_FILE).exists():
        return
    try:
        check_resumable(load_config(run / CONFIG_FILE), experiment, step=0)
    except ConfigError:
        if _has_checkpoints(run):
            raise
        aside = run / f"{METRICS_FILE}.before"
        say(f"{run} was begun with another configuration and has no checkpoint; beginning anew, old metrics in {aside}")
        with writing(aside), contextlib.suppress(FileNotFoundError):
            (run / METRICS_FILE).replace(aside)


def _write_beginning(metrics: MetricsWriter, job: Job, restored: Restored | None, told: list[str]) -> None:
    step = restored.step if restored else 0
    for text in told:
        metrics.write(step, "event", event="recovered", message=text)
    devices = jax.devices()
    metrics.write(
        step,
        "event",
        event="resumed" if restored else "started",
        parameters=job.parameters,
        vocabulary_size=job.network.vocabulary_size,
        steps=job.experiment.training.steps,
        machine=f"{len(devices)} x {devices[0].device_kind}, {os.cpu_count()} CPU cores a host, jax {jax.__version__}",
    )
    if restored:
        metrics.resumed(step)


@contextlib.contextmanager
def _sole_trainer(run: Path) -> Iterator[None]:
    """Hold the run folder for this process; the lock goes with the process, however it ends."""
    if jax.process_index():
        yield
        return
    with writing(run):
        run.mkdir(parents=True, exist_ok=True)
        lock = open(run / _LOCK_FILE, "w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another process is training in {run}; wait for it or give another --run") from None
        except OSError:
            pass  # a file system without locks: nothing can be known
        yield
