"""What a run folder says about its run, read with tolerance: a part that is absent or damaged is named, not fatal."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskworld.configure import CONFIG_FILE
from maskworld.data.rows import MANIFEST_FILE
from maskworld.errors import DataError
from maskworld.evaluation.predictions import Prediction, read_predictions
from maskworld.evaluation.scores import SCORE_FIELDS
from maskworld.training.writers import METRICS_FILE

SCORES_FILE = "scores.json"
PREDICTIONS_FILE = "predictions.jsonl"
REPORT_FILE = "report.html"

_COMES_FROM = {
    CONFIG_FILE: "training writes it first",
    METRICS_FILE: "training writes it",
    SCORES_FILE: "`maskworld evaluate` writes it",
    PREDICTIONS_FILE: "`maskworld evaluate` writes it",
}


@dataclass(frozen=True)
class RunRecord:
    """The readable parts of a run folder; what is not there is empty, and `missing` says so in sentences."""

    folder: Path
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    """Of the prepared data; empty without a word where it is absent, for data may lie elsewhere."""
    metrics: tuple[Mapping[str, Any], ...]
    scores: Mapping[str, Any]
    predictions: tuple[Prediction, ...]
    missing: tuple[str, ...]

    def value(self, key: str) -> Any:
        """A configuration value by its dotted key; None where the configuration is missing or lacks it."""
        found: Any = self.config
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found

    def number(self, key: str) -> float | None:
        """A configuration value that is a finite number, else None."""
        found = self.value(key)
        return found if _is_number(found) else None

    def lines(self, kind: str) -> list[Mapping[str, Any]]:
        """Metric lines of one kind by ascending step. After a resume a step may stand twice; the last one counts."""
        return [line for _, line in sorted({m["step"]: m for m in self.metrics if m["kind"] == kind}.items())]

    def series(self, kind: str, name: str) -> list[tuple[float, float]]:
        """(step, value) of one metric where it is a finite number."""
        lines = self.lines(kind)
        return [(float(line["step"]), float(line[name])) for line in lines if _is_number(line.get(name))]

    def event(self, name: str) -> Any:
        """The last value that any metric line gives under `name`."""
        return next((m[name] for m in reversed(self.metrics) if name in m), None)


def read_run(folder: Path) -> RunRecord:
    """Read a run folder.

    Raises:
        DataError: there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a run folder: there is no such folder")
    missing: list[str] = []
    return RunRecord(
        folder=folder,
        config=_read_object(folder / CONFIG_FILE, missing),
        manifest=_read_object(folder / "data" / MANIFEST_FILE, []),
        metrics=_read_metrics(folder / METRICS_FILE, missing),
        scores=_read_scores(folder / SCORES_FILE, missing),
        predictions=_read_predictions(folder / PREDICTIONS_FILE, missing),
        missing=tuple(missing),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _missing(path: Path) -> str:
    comes_from = _COMES_FROM.get(path.name)
    return f"{path.name} is missing" + (f" ({comes_from})." if comes_from else ".")


def _read_object(path: Path, missing: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(value, dict):
            return value
        missing.append(f"{path.name} does not hold a JSON object.")
    except FileNotFoundError:
        missing.append(_missing(path))
    except (OSError, ValueError) as error:
        missing.append(f"{path.name} cannot be read: {error}.")
    return {}


def _read_scores(path: Path, missing: list[str]) -> dict[str, Any]:
    scores = _read_object(path, missing)
    if scores and not SCORE_FIELDS <= scores.keys():
        missing.append(f"{path.name} lacks {', '.join(sorted(SCORE_FIELDS - scores.keys()))}; evaluate the run again.")
        return {}
    return scores


def _read_metrics(path: Path, missing: list[str]) -> tuple[dict[str, Any], ...]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        missing.append(_missing(path))
        return ()
    except OSError as error:
        missing.append(f"{path.name} cannot be read: {error}.")
        return ()
    lines, damaged = [], 0
    for line in text.split("\n"):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            lines.append({**value, "step": int(value["step"]), "kind": str(value["kind"])})
        except (ValueError, TypeError, KeyError):
            damaged += 1  # a run killed while writing leaves half a line
    if damaged:
        missing.append(f"{path.name}: {damaged} damaged line{'s' if damaged > 1 else ''} left out.")
    return tuple(lines)


def _read_predictions(path: Path, missing: list[str]) -> tuple[Prediction, ...]:
    try:
        return tuple(read_predictions(path))
    except FileNotFoundError:
        missing.append(_missing(path))
    except (OSError, DataError) as error:
        missing.append(f"{path.name} cannot be read: {error}.")
    return ()
