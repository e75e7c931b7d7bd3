"""What a checkpoint's folder tells without reading its arrays: is it whole, what does it mean, which are kept."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from maskworld.config import Experiment, ModelContract
from maskworld.configure import check_resumable, from_dict, to_dict
from maskworld.errors import CheckpointError, ConfigError
from maskworld.storage import writing

_UNFINISHED = re.compile(r"(\d+)\.orbax-checkpoint-tmp.*")
_COMMIT_FILE = "commit_success.txt"


class Damaged(Exception):
    """This checkpoint cannot be used; an older one may."""


@dataclasses.dataclass(frozen=True)
class Record:
    """What a checkpoint says about itself."""

    config: Experiment
    contract: ModelContract
    data_hash: str
    """Digest of the packed training rows."""
    validation_loss: float | None = None
    fingerprints: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Part -> fingerprint of its arrays."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "config": to_dict(self.config),
            "contract": dataclasses.asdict(self.contract),
            "data_hash": self.data_hash,
            "validation_loss": self.validation_loss,
            "fingerprints": dict(self.fingerprints),
        }

    @staticmethod
    def from_json(values: Mapping[str, Any], place: Path) -> Record:
        """The record that `to_json` gave for the checkpoint in `place`.

        Raises:
            Damaged: parts of it are missing.
            CheckpointError: it was written by another version, with other fields.
        """
        absent = [field.name for field in dataclasses.fields(Record) if field.name not in values]
        if absent:
            raise Damaged(f"its metadata lack {', '.join(absent)}")
        try:
            config = from_dict(values["config"], str(place))
            contract = ModelContract(**values["contract"])
            contract = dataclasses.replace(contract, control_ids=tuple(contract.control_ids))
        except (ConfigError, TypeError) as error:
            raise CheckpointError(f"{place} was written by another version of maskworld: {error}") from error
        return Record(config, contract, values["data_hash"], values["validation_loss"], values["fingerprints"])

    def check_continues(self, run: Record, step: int, place: Path) -> None:
        """Refuse to go on from this checkpoint in a run of another meaning.

        Raises:
            CheckpointError: another model contract or other training data; names each field and both values.
            ConfigError: another configuration.
        """
        saved, wanted = dataclasses.asdict(self.contract), dataclasses.asdict(run.contract)
        lines = [
            f"  {name}: the checkpoint has {saved[name]!r}, this run has {wanted[name]!r}"
            for name in wanted
            if saved[name] != wanted[name]
        ]
        if lines:
            raise CheckpointError(
                f"{place} belongs to another model contract:\n"
                + "\n".join(lines)
                + "\nGive the values it was trained with, or another --run folder for a new run."
            )
        check_resumable(self.config, run.config, step)
        if self.data_hash != run.data_hash:
            raise CheckpointError(
                f"{place} was trained on other rows: data_hash: the checkpoint has {self.data_hash!r}, this run has "
                f"{run.data_hash!r}. The files in data.trajectories have changed; bring the old ones back, or give "
                "another --run folder for a new run."
            )


class KeepLastAndBest:
    """Orbax preservation policy: the last n, and the n with the lowest validation loss.

    Orbax's own BestN ranks by a metrics file of its own, whose damage keeps the whole folder from being opened.
    """

    def __init__(self, last: int, best: int, losses: Mapping[int, float]):
        """`losses` (step -> validation loss) is read anew at every decision."""
        self._last, self._best, self._losses = last, best, losses

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """For each checkpoint, ascending by step, whether it stays."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        ranked = sorted((loss, -step) for step, loss in self._losses.items() if step in steps and math.isfinite(loss))
        kept = {-step for _, step in ranked[: self._best]} | set(steps[-self._last :])
        return [step in kept for step in steps]


def preference(records: Mapping[int, Record], which: int | Literal["best", "latest"]) -> list[int]:
    """Steps in the order in which they answer `which`; `best` is `latest` where nothing was validated."""
    newest_first = sorted(records, reverse=True)
    if isinstance(which, int):
        return [which] if which in records else []
    if which == "latest":
        return newest_first

    def loss(step: int) -> float:
        found = records[step].validation_loss
        return math.inf if found is None or math.isnan(found) else found

    return sorted(newest_first, key=loss)


def check_committed(place: Path) -> None:
    """Orbax marks the whole and each part when they are complete, but does not look at the marks when it reads.

    Raises:
        Damaged: some have the mark and some have not.
    """
    committed = {part.name: (part / _COMMIT_FILE).is_file() for part in [place, *place.iterdir()] if part.is_dir()}
    missing = [name for name, marked in committed.items() if not marked]
    if missing and len(missing) < len(committed):
        raise Damaged(f"no {_COMMIT_FILE} in {missing[0]}: its writing was not finished")


def sweep_unfinished(folder: Path) -> list[int]:
    """Remove what saves that never finished have left; returns their steps, ascending.

    Raises:
        StorageError: the folder cannot be written.
    """
    steps = []
    for path in folder.iterdir():
        if match := _UNFINISHED.fullmatch(path.name):
            steps.append(int(match.group(1)))
            with writing(path):
                shutil.rmtree(path)
    return sorted(steps)


def set_aside(place: Path) -> None:
    """Rename a damaged checkpoint to `STEP.damaged`, so that its step can be written again and nothing is lost.

    Raises:
        StorageError: the folder cannot be written.
    """
    target = place.with_name(f"{place.name}.damaged")
    with writing(target):
        shutil.rmtree(target, ignore_errors=True)
        place.rename(target)
