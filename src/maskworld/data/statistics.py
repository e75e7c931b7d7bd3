"""What is in a folder of trajectories, in numbers: of a build from its index, of any other folder by reading it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from maskworld.data.build.facts import facts_of
from maskworld.data.build.report import FORMAT
from maskworld.data.build.result import INDEX_FILE
from maskworld.data.trajectories import ReadReport, read_trajectories
from maskworld.errors import DataError

QUANTILES = (0.5, 0.9, 0.99, 1.0)


@dataclass(frozen=True)
class Group:
    """Counts over the trajectories of one source, or of one split."""

    name: str
    trajectories: int
    steps: int
    steps_of_trajectory: tuple[int, ...]
    """At `QUANTILES`."""
    characters: tuple[int, ...]
    """Of an observation, at `QUANTILES`."""
    outcomes: dict[str, int]
    """Steps by outcome: error, empty, truncated; the others are ordinary."""
    cut: int
    """Observations cut by the build."""
    revealed: float
    """Share of the named things in observations that no earlier text holds."""


@dataclass(frozen=True)
class Statistics:
    """Of one folder."""

    folder: str
    rows_in: int
    rejected: dict[str, int]
    """Rows by reason, duplicates among them."""
    splits: tuple[Group, ...]
    sources: tuple[Group, ...]
    environments: dict[str, int]
    licences: dict[str, int]
    model_families: dict[str, int]
    lengths: tuple[tuple[int, int], ...] = field(default=())
    """(upper bound in characters, observations up to it and above the bound before), bounds doubling."""

    @property
    def trajectories(self) -> int:
        return sum(group.trajectories for group in self.splits)


def statistics(folder: str | Path) -> Statistics:
    """The statistics of a build, or of a folder with files of trajectories.

    Raises:
        DataError: the folder holds neither, or its files are damaged.
    """
    folder = Path(folder)
    if (folder / INDEX_FILE).is_file():
        return _of_build(folder)
    files = sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz"), *folder.glob("*.jsonl.zst")])
    files = [path for path in files if path.name != "rejected.jsonl"]
    if not files:
        raise DataError(f"{folder}: holds neither a build nor files of trajectories (*.jsonl, .gz, .zst)")
    columns: dict[str, list[Any]] = {}
    report = ReadReport()
    for path in files:
        for trajectory in read_trajectories(path, Path("/dev/null"), report):
            row = facts_of(trajectory) | {"split": path.name.split(".")[0].split("-")[0]}
            for name, value in row.items():
                columns.setdefault(name, []).append(value)
    if not columns:
        raise DataError(f"{folder}: holds no trajectory ({report.summary()})")
    return _counted(folder, columns, report.rows + report.rejected, dict(report.reasons))


def _of_build(folder: Path) -> Statistics:
    import pyarrow
    import pyarrow.parquet

    path = folder / INDEX_FILE
    try:
        columns = pyarrow.parquet.read_table(path).to_pydict()
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise DataError(f"{folder}: was built by another version; build it again")
        return _counted(folder, columns, manifest["rows"]["in"], manifest["rows"]["rejected"])
    except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException) as error:
        raise DataError(f"{folder}: {INDEX_FILE} or manifest.json is damaged ({error}); build it again") from None


def _counted(folder: Path, columns: dict[str, list[Any]], rows_in: int, rejected: dict[str, int]) -> Statistics:
    lengths = np.asarray([size for sizes in columns["observation_characters"] for size in sizes], np.int64)
    return Statistics(
        folder=str(folder),
        rows_in=rows_in,
        rejected=rejected,
        splits=_groups(columns, "split", ("train", "validation", "test", "ood_test")),
        sources=_groups(columns, "source", ()),
        environments=_frequent(columns["environment"]),
        licences=_frequent(columns["licence"]),
        model_families=_frequent(columns["model_family"]),
        lengths=_doubling(lengths),
    )


def _groups(columns: dict[str, list[Any]], by: str, order: Sequence[str]) -> tuple[Group, ...]:
    names = np.asarray(columns[by], object)
    found = []
    for name in sorted(set(columns[by]), key=lambda one: (order.index(one) if one in order else len(order), one)):
        rows = np.flatnonzero(names == name).tolist()

        def total(column: str, rows: list[int] = rows) -> int:
            return int(sum(columns[column][row] for row in rows))

        sizes = [size for row in rows for size in columns["observation_characters"][row]]
        found.append(
            Group(
                name=name or "(none)",
                trajectories=len(rows),
                steps=total("steps"),
                steps_of_trajectory=_quantiles([columns["steps"][row] for row in rows]),
                characters=_quantiles(sizes),
                outcomes={kind: total(kind) for kind in ("error", "empty", "truncated")},
                cut=total("observations_cut"),
                revealed=total("revealed") / max(1, total("entities")),
            )
        )
    return tuple(found)


def _quantiles(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(value) for value in np.quantile(np.asarray(values), QUANTILES, method="inverted_cdf"))


def _frequent(values: Sequence[str]) -> dict[str, int]:
    return dict(sorted(Counter(value or "(none)" for value in values).items(), key=lambda item: (-item[1], item[0])))


def _doubling(sizes: np.ndarray) -> tuple[tuple[int, int], ...]:
    if not len(sizes):
        return ()
    powers = np.ceil(np.log2(np.maximum(sizes, 1))).astype(int)
    powers[sizes == 0] = -1
    counts = np.bincount(powers + 1)
    return tuple((0 if place == 0 else 1 << (place - 1), int(count)) for place, count in enumerate(counts))
