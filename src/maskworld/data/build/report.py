"""What a build came to: its manifest, and the lines for the terminal."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from maskworld.data.build.facts import LENGTHS, NUMBERS
from maskworld.data.build.result import Collected
from maskworld.data.build.units import FILES_FILE
from maskworld.data.curation.selection import KEPT, Selection
from maskworld.data.curation.splits import SPLIT_NAMES

FORMAT = "maskworld.build/1"
_KINDS = 200  # reasons that the manifest tells apart; the file of rejected rows has all
UNKNOWN = "(not recognised)"


def manifest_of(
    collected: Collected,
    selection: Selection,
    rejected: Counter[tuple[str, str]],
    unit_folders: Sequence[Path],
    inputs: dict[str, Any],
    settings: dict[str, Any],
    placed: Sequence[tuple[str, np.ndarray]],
) -> dict[str, Any]:
    """The manifest. Raises RuntimeError where a row of the input is in no account of the result."""
    files = Counter()
    rows_in = 0
    for folder in unit_folders:
        for entry in json.loads((folder / FILES_FILE).read_text(encoding="utf-8")):
            rows_in += entry.get("trajectories", 0) + entry.get("rejected", 0)
            files["accompanying"] += entry.get("accompanying", 0)
            files["without_rows"] += len(entry) == 1
    rows_out = sum(len(rows) for _, rows in placed)
    if rows_in != rows_out + rejected.total():
        raise RuntimeError(f"rows are missing: {rows_in} came in, {rows_out} went out, {rejected.total()} rejected")
    kinds: Counter[str] = Counter()
    for (_, kind), count in rejected.items():
        kinds[kind] += count
    return {
        "format": FORMAT,
        "inputs": {**inputs, **dict(files)},
        "settings": settings,
        "rows": {"in": rows_in, "out": rows_out, "rejected": _ranked(kinds)},
        "splits": {name: _totals(collected, rows) for name, rows in _by_split(placed).items()},
        "sources": _sources(collected, selection, rejected),
        "files": [{"file": name, "rows": len(rows)} for name, rows in placed],
    }


def _by_split(placed: Sequence[tuple[str, np.ndarray]]) -> dict[str, np.ndarray]:
    found: dict[str, list[np.ndarray]] = {name: [] for name in SPLIT_NAMES}
    for name, rows in placed:
        found[name.partition("-")[0]].append(rows)
    return {name: np.concatenate(pieces) for name, pieces in found.items() if pieces}


def _totals(collected: Collected, rows: np.ndarray) -> dict[str, int]:
    import pyarrow
    import pyarrow.compute as compute

    table = collected.table.select([*NUMBERS, LENGTHS]).take(pyarrow.array(rows))
    totals = {name: int(table.column(name).to_numpy().sum()) for name in NUMBERS}
    characters = int(compute.list_flatten(table.column(LENGTHS)).to_numpy().sum())
    return {"trajectories": len(rows), "characters": characters, **totals}


def _sources(
    collected: Collected, selection: Selection, rejected: Counter[tuple[str, str]]
) -> dict[str, dict[str, Any]]:
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for (source, kind), count in rejected.items():
        kinds[source or UNKNOWN][kind] += count
    kept = selection.reasons == KEPT
    found: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(collected.source_names):
        rows = np.flatnonzero(kept & (collected.candidates.sources == number))
        table = collected.table.take(rows)
        found[name] = {
            **_totals(collected, rows),
            **{
                f"{split}_trajectories": int((selection.splits[rows] == index).sum())
                for index, split in enumerate(SPLIT_NAMES)
            },
            "licences": _counted(table.column("licence").to_pylist()),
            "model_families": _counted(table.column("model_family").to_pylist()),
        }
    for name in sorted({*found, *kinds}):
        entry = found.setdefault(name, {"trajectories": 0})
        entry["rejected"] = _ranked(kinds[name])
    return dict(sorted(found.items()))


def _counted(values: Sequence[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def _ranked(kinds: Counter[str]) -> dict[str, int]:
    ordered = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    shown = dict(ordered[:_KINDS])
    if len(ordered) > _KINDS:
        shown[f"({len(ordered) - _KINDS} other reasons)"] = sum(count for _, count in ordered[_KINDS:])
    return shown


def summary(manifest: dict[str, Any], converted_bytes: int, converting: float, all_of_it: float) -> str:
    """What a user wants to know when a build is done."""
    rows = manifest["rows"]
    lines = [
        f"{rows['in']} rows in = {rows['out']} trajectories out + {sum(rows['rejected'].values())} rejected",
        *(f"  rejected {count}x: {kind}" for kind, count in list(rows["rejected"].items())[:12]),
    ]
    if len(rows["rejected"]) > 12:
        lines.append(f"  ... {len(rows['rejected']) - 12} more reasons in manifest.json")
    for split, facts in manifest["splits"].items():
        lines.append(f"{split}: {facts['trajectories']} trajectories, {facts['steps']} steps")
    lines += _empty_splits(manifest)
    if converted_bytes:
        share = converted_bytes / max(1, manifest["inputs"]["bytes"])
        lines.append(
            f"{rows['in'] / max(all_of_it, 1e-9):,.0f} rows/s in {all_of_it:.1f} s "
            f"(converting {converting:.1f} s, {converted_bytes / 1e6 / max(converting, 1e-9):,.1f} MB/s"
            + (f"; {1 - share:.0%} of the input was converted before)" if share < 0.995 else ")")
        )
    return "\n".join(lines)


def _empty_splits(manifest: dict[str, Any]) -> list[str]:
    """Sources with so much in common that none of their groups could be held out."""
    told = []
    for name, facts in manifest["sources"].items():
        total = facts.get("trajectories", 0)
        apart = facts.get("ood_test_trajectories", 0)
        for split in ("validation", "test"):
            if total - apart >= 20 and manifest["settings"][f"{split}_share"] and not facts[f"{split}_trajectories"]:
                told.append(
                    f"  nothing of {name} is in {split}: groups that share questions are larger than "
                    f"--{split}_share allows"
                )
    return told
