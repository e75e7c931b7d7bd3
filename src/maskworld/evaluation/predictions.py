"""One generated observation and how it came about: the lines of `predictions.jsonl`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskworld.errors import DataError
from maskworld.storage import write_text

INITIAL_STATE_CHARACTERS = 1000


@dataclass(frozen=True)
class Commit:
    """One generated position that stopped being a mask."""

    position: int
    """Counted from 0 at the first token of the observation."""
    token: str
    """The token for the eye, as `Tokenizer.piece` gives it."""
    confidence: float
    """Probability the denoiser gave this token when it was committed, in [0, 1]."""
    denoising_step: int
    """The forward that committed it, counted from 0 behind the prompt; those that only write the cache count too."""


@dataclass(frozen=True)
class Prediction:
    """A held-out transition, its truth and what the model generated."""

    trajectory: str
    group: str
    """The room (or task, or database) the split goes by."""
    step: int
    """Counted from 0."""
    action: str
    truth: str
    prediction: str
    changes_state: bool
    """What the engine's fact deltas say about the true step."""
    forwards: int
    """Forward passes spent on this observation, those that only write the cache included, the prompt's not."""
    tokens: int
    """Tokens of the predicted observation up to and including its first <end>; what comes after is not counted."""
    finished: bool = True
    """Whether an <end> came before the limit of new tokens."""
    history: tuple[str, ...] = ()
    """The last turns before the action as `> action` and observation, oldest first."""
    initial_state: str = ""
    """The first `INITIAL_STATE_CHARACTERS` of e0, for the reader of a report."""
    block_starts: tuple[int, ...] = ()
    """Positions (as in Commit) at which a new block begins."""
    trace: tuple[tuple[Commit, ...], ...] = ()
    """The commits of each denoising step, in order. Empty if the sampler kept none."""

    @staticmethod
    def from_json(value: dict[str, Any]) -> Prediction:
        """Read one line's object. Raises TypeError or KeyError where it does not fit."""
        known = {field.name for field in dataclasses.fields(Prediction)}
        plain = {key: item for key, item in value.items() if key in known}
        plain["history"] = tuple(plain.get("history") or ())
        plain["block_starts"] = tuple(plain.get("block_starts") or ())
        plain["trace"] = tuple(tuple(Commit(**commit) for commit in step) for step in plain.get("trace") or ())
        return Prediction(**plain)

    def to_json(self) -> dict[str, Any]:
        """A JSON value that `from_json` takes back."""
        return dataclasses.asdict(self)


def write_predictions(path: Path, predictions: Iterable[Prediction]) -> None:
    """Replace `predictions.jsonl`, one JSON object a line. Raises StorageError if the folder cannot be written."""
    write_text(path, "".join(json.dumps(p.to_json(), ensure_ascii=False) + "\n" for p in predictions))


def read_predictions(path: Path) -> list[Prediction]:
    """Read `predictions.jsonl`.

    Raises:
        DataError: a line is not such an object; the message names the file and the line.
    """
    predictions = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                predictions.append(Prediction.from_json(json.loads(line)))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise DataError(f"{path}:{number}: not a prediction ({error}); evaluate the run again") from error
    return predictions
