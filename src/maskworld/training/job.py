"""All that a run's loop needs, made once: mesh, network, first state, jitted steps, validation."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from maskworld.config import Experiment, ModelContract
from maskworld.data.pipeline import validation_batches
from maskworld.data.prepare import Prepared
from maskworld.data.rows import read_manifest
from maskworld.data.tokenizer import CONTROLS
from maskworld.errors import ConfigError
from maskworld.models.transformer import Network
from maskworld.parallel.mesh import batch_sharding, check_batch, make_mesh
from maskworld.training.initialize import Beginning, begin_from
from maskworld.training.step import (
    TrainState,
    create_state,
    loss_metrics,
    make_optimizer,
    make_train_step,
    make_validation_step,
    network_of,
    state_of,
    state_shardings,
)

DATA_FOLDER = "data"

Validate = Callable[[Any], dict[str, float]]
"""Parameters -> metrics over the validation rows."""


@dataclass(frozen=True)
class Job:
    """All that the loop needs, made once."""

    experiment: Experiment
    run: Path
    prepared: Prepared
    mesh: Mesh
    network: Network
    abstract_state: TrainState
    """Shapes, dtypes and shardings."""
    create_state: Callable[[], TrainState]
    train_step: Callable[[int], Any]
    """The jitted step for a block length."""
    frozen: tuple[Any, ...]
    """Nothing, or the tree of parameters that low-rank updates leave as they are."""
    base_fingerprint: int | None
    validate: Validate | None

    @property
    def parameters(self) -> int:
        """How many are trained."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.abstract_state.params))


def model_contract(experiment: Experiment, prepared: Prepared) -> ModelContract:
    """What a checkpoint of this experiment on this data means."""
    tokenizer = prepared.tokenizer
    return ModelContract(
        block_length=experiment.diffusion.block_length,
        mask_id=tokenizer.mask_id,
        pad_id=tokenizer.pad_id,
        end_id=tokenizer.end_id,
        vocabulary_size=tokenizer.vocabulary_size,
        schedule=experiment.diffusion.schedule,
        tokenizer_hash=tokenizer.fingerprint,
        logit_alignment="shifted" if experiment.diffusion.objective == "autoregressive" else "same_position",
        control_ids=tuple(getattr(tokenizer, f"{name}_id") for name in CONTROLS),
    )


def rows_digest(prepared: Prepared) -> str:
    """Hex digest of the packed training rows: what batch i holds depends on nothing else but the shuffle."""
    files = read_manifest(prepared.train_rows)["files"]
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def make_job(experiment: Experiment, run: Path, prepared: Prepared) -> Job:
    """The job of a run.

    Raises:
        ConfigError: what does not fit the machine, the tokenizer or the weights to begin with.
        CheckpointError: those weights cannot be read.
    """
    training, contract = experiment.training, model_contract(experiment, prepared)
    mesh = make_mesh(experiment.mesh)
    check_batch(mesh, training.batch_size, training.gradient_accumulation)
    network = network_of(experiment, contract)
    _check_vocabulary(network, contract)
    optimizer, learning_rate = make_optimizer(experiment.optimizer, training.steps)
    create = partial(create_state, network, optimizer, jax.random.key(training.seed))
    shardings = state_shardings(network, optimizer, mesh)
    abstract_state = jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        jax.eval_shape(create),
        shardings,
    )

    @cache
    def begin() -> Beginning:
        return begin_from(experiment, network, mesh, contract.control_ids, contract.tokenizer_hash)

    def begin_state() -> TrainState:
        return jax.jit(partial(state_of, optimizer=optimizer), out_shardings=shardings)(begin().trained)

    frozen = experiment.model.lora.rank > 0
    validation_step = make_validation_step(experiment, network, mesh, contract.mask_id)
    return Job(
        experiment=experiment,
        run=run,
        prepared=prepared,
        mesh=mesh,
        network=network,
        abstract_state=abstract_state,
        create_state=begin_state if training.initialize_from else jax.jit(create, out_shardings=shardings),
        train_step=partial(make_train_step, experiment, network, optimizer, learning_rate, mesh, contract.mask_id),
        frozen=(begin().frozen,) if frozen else (),
        base_fingerprint=begin().fingerprint if frozen else None,
        validate=_validator(experiment, prepared, validation_step, mesh, (begin().frozen,) if frozen else ()),
    )


def with_tokenizer_of_base(experiment: Experiment) -> Experiment:
    """The same, with the tokenizer of the run whose weights it begins with where it names none."""
    base = experiment.training.initialize_from
    if base and not Path(base).is_dir():
        raise ConfigError(f"training.initialize_from: {base}: no such run folder")
    if not base or experiment.data.tokenizer:
        return experiment
    tokenizer = Path(base) / DATA_FOLDER / "tokenizer"
    if not tokenizer.is_dir():
        raise ConfigError(f"training.initialize_from: {base} holds no tokenizer; give --data.tokenizer")
    return dataclasses.replace(experiment, data=dataclasses.replace(experiment.data, tokenizer=str(tokenizer)))


def _check_vocabulary(network: Network, contract: ModelContract) -> None:
    if network.vocabulary_size < contract.vocabulary_size:
        raise ConfigError(
            f"model.vocabulary_size is {network.vocabulary_size} and the tokenizer has {contract.vocabulary_size} "
            "tokens; give at least as many rows (weights with fewer get new ones), or 0 to have as many as tokens"
        )


def _validator(
    experiment: Experiment, prepared: Prepared, validation_step: Any, mesh: Mesh, frozen: tuple[Any, ...]
) -> Validate | None:
    """The validation loss, over the same rows and noise every time; None where none is wanted or there are no rows."""
    training = experiment.training
    if not training.validate_every or prepared.validation_rows is None:
        return None
    host_batches = validation_batches(
        prepared.validation_rows, training.batch_size, jax.process_index(), jax.process_count()
    )
    sharding = batch_sharding(mesh)
    chosen = [to_devices(rows, sharding) for rows in itertools.islice(host_batches, training.validation_batches)]

    def validate_params(params: Any) -> dict[str, float]:
        # One batch at a time: several programs with collectives in flight can starve each other of a CPU's few
        # threads until XLA gives up on them.
        sums = [
            jax.device_get(validation_step(params, batch, np.int32(index), *frozen))
            for index, batch in enumerate(chosen)
        ]
        total = jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *sums)
        metrics = jax.device_get(loss_metrics(total, experiment.diffusion.autoregressive_weight))
        return {name: float(value) for name, value in metrics.items()}

    return validate_params


def to_devices(rows: dict[str, np.ndarray], sharding: NamedSharding) -> dict[str, jax.Array]:
    """This host's rows as its part of global arrays."""
    return {name: jax.make_array_from_process_local_data(sharding, array) for name, array in rows.items()}
