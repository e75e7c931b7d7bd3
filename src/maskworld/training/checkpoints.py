"""Checkpoints of one run, on Orbax's v1 API; no other file imports Orbax.

One folder per step under `RUN/checkpoints`, with three parts: `params`, `optimizer` and `data` (`next_batch` and the
like). Parameters stand apart so that evaluation never reads, or needs to know, the optimizer. The checkpoint's metadata
holds the configuration, the model contract, the validation loss and a fingerprint of the weights, which is what tells a
flipped bit on the disk from a good checkpoint: TensorStore does not.

A checkpoint is written aside and renamed when complete, so a kill leaves the previous ones as they were. What a kill or
a bad disk leaves is recognised here, set aside, and said.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding
from orbax.checkpoint import v1 as ocp

from maskworld.config import Experiment, ModelContract
from maskworld.errors import CheckpointError, StorageError
from maskworld.storage import storage_error, writing
from maskworld.training.checkpoint_folder import (
    Damaged,
    KeepLastAndBest,
    Record,
    check_committed,
    preference,
    set_aside,
    sweep_unfinished,
)
from maskworld.training.fingerprint import fingerprint
from maskworld.training.quiet import quieten_orbax

CHECKPOINT_FOLDER = "checkpoints"
BASE = "base"
"""Entry of the fingerprints for frozen weights, which lie in another run."""


@dataclasses.dataclass(frozen=True)
class Restored:
    """A train state read back."""

    step: int
    state: Any
    data: dict[str, int | float]
    """What `save` was given as `data`."""
    notes: tuple[str, ...]
    """What was found damaged or unfinished and therefore passed over, for a person to read."""


@dataclasses.dataclass(frozen=True)
class LoadedParams:
    """Parameters read back for use, without the optimizer."""

    params: Any
    step: int
    config: Experiment
    contract: ModelContract
    validation_loss: float | None
    notes: tuple[str, ...]
    base_fingerprint: int | None = None
    """Of the frozen weights that low-rank updates belong to."""


class Checkpoints:
    """The sequence of checkpoints of one run, for the process that trains. Use as a context manager."""

    def __init__(
        self,
        run: Path,
        config: Experiment,
        contract: ModelContract,
        data_hash: str,
        *,
        base_fingerprint: int | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ):
        """Open, or begin, the checkpoints of the run in folder `run`.

        Args:
            data_hash: digest of the packed training rows; a run does not go on with others.
            base_fingerprint: of the frozen weights, where only low-rank updates are saved.
            tell: called with a sentence for each thing found that a person should know.

        Raises:
            StorageError: the folder cannot be written.
        """
        quieten_orbax()
        self.folder = run / CHECKPOINT_FOLDER
        self._record, self._tell = Record(config, contract, data_hash), tell
        self._base = {} if base_fingerprint is None else {BASE: base_fingerprint}
        self._pending: Any = None
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._unfinished = sweep_unfinished(self.folder)
        self._losses: dict[int, float] = {}
        policy = KeepLastAndBest(config.training.keep_last, config.training.keep_best, self._losses)
        # Folders are made before `save` returns: where that fails in the background, Orbax's other threads go on
        # waiting for them.
        context = ocp.Context(async_options=ocp.options.AsyncOptions(create_directories_asynchronously=False))
        self._orbax = ocp.training.Checkpointer(self.folder.absolute(), context=context, preservation_policy=policy)
        for step in self.steps:
            self._remember(step)

    @property
    def steps(self) -> list[int]:
        """Steps that have a finished checkpoint, ascending."""
        return [checkpoint.step for checkpoint in self._orbax.checkpoints]

    def save(self, step: int, state: Any, data: dict[str, int | float], validation_loss: float | None = None) -> None:
        """Start writing `state` (with fields `step`, `params`, `opt_state`) and return while the disk works.

        The arrays are copied before this returns, so the caller may donate them.

        Args:
            data: where to go on: `next_batch`, the index of the next global batch, and other numbers.

        Raises:
            StorageError: this or the previous save could not be written; earlier checkpoints are untouched.
        """
        self.wait()
        _check_space(self.folder, state)
        record = dataclasses.replace(
            self._record,
            validation_loss=validation_loss,
            fingerprints={
                "params": fingerprint(state.params),
                "optimizer": fingerprint(state.opt_state),
                **self._base,
            },
        )
        if validation_loss is not None:
            self._losses[step] = validation_loss
        with self._storage():
            self._pending = self._orbax.save_checkpointables_async(
                step,
                {
                    "params": state.params,
                    "optimizer": state.opt_state,
                    "data": data,
                },
                force=True,
                custom_metadata=record.to_json(),
            )

    def wait(self) -> None:
        """Return when what was saved is on the disk.

        Raises:
            StorageError: it could not be written; earlier checkpoints are untouched.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            with self._storage():
                pending.result()

    def restore_latest(self, abstract_state: Any) -> Restored | None:
        """The newest state that can be read, placed as `abstract_state` says; None where the run has none yet.

        A damaged or unfinished newer checkpoint is set aside as `STEP.damaged` and told.

        Args:
            abstract_state: a train state of ShapeDtypeStructs with shardings.

        Raises:
            CheckpointError: written under another contract or on other rows, or none of several can be read.
            ConfigError: written under a configuration that means something else.
        """
        notes: list[str] = []
        damaged: list[int] = []
        found: Restored | None = None
        for step in reversed(self.steps):
            try:
                found = self._restore(step, abstract_state)
                break
            except Damaged as damage:
                damaged.append(step)
                notes.append(f"the checkpoint of step {step} is damaged ({damage})")
        if damaged and found is None:
            raise CheckpointError(
                f"no checkpoint in {self.folder} can be read:\n  "
                + "\n  ".join(notes)
                + "\nMove that folder away to train from the start."
            )
        unfinished = [step for step in self._unfinished if found is None or step > found.step]
        notes[:0] = [f"the checkpoint of step {step} was not finished when the run was stopped" for step in unfinished]
        for step in damaged:
            set_aside(self.folder / str(step))
            self._losses.pop(step, None)
        if damaged:
            self._orbax.reload()
        for note in notes:
            self._tell(note + (f"; using the one of step {found.step}" if found else "; there is no earlier one"))
        return dataclasses.replace(found, notes=tuple(notes)) if found else None

    def close(self) -> None:
        """Wait and let go. Raises what `wait` raises."""
        try:
            self.wait()
        finally:
            try:
                self._orbax.close()
            except Exception as error:
                # A failed save is raised by `wait`, once; Orbax raises it again for every later call.
                if storage_error(error, self.folder) is None:
                    raise

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception as second:
            self._tell(f"while stopping: {second}")

    def _restore(self, step: int, abstract_state: Any) -> Restored:
        record = _read_record(self._orbax, self.folder, step)
        record.check_continues(self._record, step, self.folder / str(step))
        parts = _load(
            self._orbax,
            step,
            {"params": abstract_state.params, "optimizer": abstract_state.opt_state, "data": None},
            record,
        )
        counter = abstract_state.step
        placed = jax.device_put(np.asarray(step, counter.dtype), counter.sharding)
        state = abstract_state.replace(step=placed, params=parts["params"], opt_state=parts["optimizer"])
        return Restored(step, state, parts["data"], ())

    def _remember(self, step: int) -> None:
        try:
            loss = _read_record(self._orbax, self.folder, step).validation_loss
        except (Damaged, CheckpointError):
            return
        if loss is not None:
            self._losses[step] = loss

    def _storage(self) -> Any:
        return writing(self.folder)


def load_params(run: Path, which: int | Literal["best", "latest"] = "best", shardings: Any = None) -> LoadedParams:
    """Parameters of a run's checkpoint of a given step, the newest one, or the one with the lowest validation loss.

    `best` is `latest` where nothing was validated. With `best` and `latest` the next candidate takes the place of a
    damaged one, and `notes` says so.

    Args:
        shardings: tree of shardings like the parameters, one for all, or a function from the checkpoint's
            configuration and contract to a tree; None puts everything on the first device.

    Raises:
        CheckpointError: no checkpoint, no such step, or none that can be read.
    """
    quieten_orbax()
    folder = run / CHECKPOINT_FOLDER
    if not folder.is_dir():
        raise CheckpointError(f"no {folder}: {run} holds no trained model")
    with ocp.training.Checkpointer(folder.absolute()) as orbax:
        steps = [checkpoint.step for checkpoint in orbax.checkpoints]
        if isinstance(which, int) and which not in steps:
            raise CheckpointError(f"{folder} has no checkpoint of step {which}; it has {steps}")
        notes: list[str] = []
        records: dict[int, Record] = {}
        for step in reversed(steps):
            try:
                records[step] = _read_record(orbax, folder, step)
            except Damaged as damage:
                notes.append(f"the checkpoint of step {step} is damaged ({damage})")
        for step in preference(records, which):
            record = records[step]
            placed = shardings(record.config, record.contract) if callable(shardings) else shardings
            try:
                params = _load(orbax, step, {"params": _abstract_params(orbax, step, placed)}, record)["params"]
                loss, base = record.validation_loss, record.fingerprints.get(BASE)
                return LoadedParams(params, step, record.config, record.contract, loss, tuple(notes), base)
            except Damaged as damage:
                notes.append(f"the checkpoint of step {step} is damaged ({damage})")
    if not notes:
        raise CheckpointError(f"{folder} holds no finished checkpoint")
    raise CheckpointError("\n  ".join([f"no checkpoint in {folder} can be read:", *notes]))


def save_params(run: Path, config: Experiment, contract: ModelContract, params: Any) -> None:
    """Make `params` the checkpoint of step 0 of a run that has none, without an optimizer: what `load_params` reads.

    Raises:
        StorageError: the folder cannot be written.
    """
    quieten_orbax()
    folder = run / CHECKPOINT_FOLDER
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    _check_space(folder, params)
    record = Record(config, contract, data_hash="", fingerprints={"params": fingerprint(params)})
    context = ocp.Context(async_options=ocp.options.AsyncOptions(create_directories_asynchronously=False))
    with writing(folder), ocp.training.Checkpointer(folder.absolute(), context=context) as orbax:
        orbax.save_checkpointables(0, {"params": params}, custom_metadata=record.to_json())


def _check_space(folder: Path, state: Any) -> None:
    """Refuse a save that cannot fit before it begins: a write that fails in Orbax's threads leaves some of them waiting
    for twenty minutes, and a process waits for its threads before it ends."""
    shards = (shard for leaf in jax.tree.leaves(state) for shard in leaf.addressable_shards)
    needed = sum(shard.data.nbytes for shard in shards if shard.replica_id == 0)
    with writing(folder):
        free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"cannot write {folder}: no space left for a checkpoint of {needed / 1e6:,.1f} MB "
            f"({free / 1e6:,.1f} MB are free); free some or choose another run folder"
        )


def _read_record(orbax: Any, folder: Path, step: int) -> Record:
    """What the checkpoint of `step` says about itself; Damaged where it is incomplete."""
    place = folder / str(step)
    check_committed(place)
    try:
        metadata = orbax.checkpointables_metadata(step).custom_metadata or {}
    except Exception as error:
        raise Damaged(_reason(error)) from error
    return Record.from_json(metadata, place)


def _load(orbax: Any, step: int, abstract: dict[str, Any], record: Record) -> dict[str, Any]:
    try:
        parts = orbax.load_checkpointables(step, abstract)
    except Exception as error:
        raise Damaged(_reason(error)) from error
    for name, expected in record.fingerprints.items():
        if name in parts and fingerprint(parts[name]) != expected:
            raise Damaged(f"the {name} read are not the {name} that were written")
    return parts


def _abstract_params(orbax: Any, step: int, shardings: Any) -> Any:
    try:
        stored = orbax.checkpointables_metadata(step).metadata["params"]
    except Exception as error:
        raise Damaged(_reason(error)) from error
    shardings = SingleDeviceSharding(jax.devices()[0]) if shardings is None else shardings
    if isinstance(shardings, Sharding):
        everywhere = shardings
        shardings = jax.tree.map(lambda leaf: everywhere, stored)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), stored, shardings
    )


def _reason(error: BaseException) -> str:
    """The first line of the first cause: Orbax wraps it several times over."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
