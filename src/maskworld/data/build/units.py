"""One unit of work on disk: its trajectories, a table of facts about them, and what it rejected.

A unit is a folder that appears under its name only when all of it is written, so that a build that was killed finds
what it had finished and does the rest. Trajectories lie uncompressed, one a line, because the files of the result pick
single lines out of all units.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from maskworld.data.build.config import BuildConfig
from maskworld.data.build.convert import Accompanying, Converted, Rejected, convert_part
from maskworld.data.build.facts import LENGTHS, NUMBERS, TEXTS
from maskworld.data.build.plan import Unit
from maskworld.data.curation.keys import keys_of
from maskworld.data.curation.near_duplicates import BINS, signature
from maskworld.data.reading.values import printable
from maskworld.data.schema import Trajectory
from maskworld.data.sources.registry import source_named
from maskworld.storage import writing

ROWS_FILE, FACTS_FILE, REJECTED_FILE, FILES_FILE = "rows.jsonl", "facts.arrow", "rejected.jsonl", "files.json"


def unit_folder(work: Path, unit: int) -> Path:
    """Where a finished unit lies."""
    return work / "units" / f"{unit:06d}"


def convert_unit(unit: Unit, names: Sequence[str], work: Path, source_name: str, config: BuildConfig) -> int:
    """Convert a unit and put its folder into place; returns its number.

    Args:
        unit: what to convert.
        names: of each part's file, as reports call it.
        work: folder of the unfinished build.
        source_name: empty to tell the source from the records.
        config: of the build.

    Raises:
        StorageError: the disk is full or read-only.
    """
    gc.set_threshold(100_000)  # decoded records are many small objects and no cycles
    final = unit_folder(work, unit.number)
    draft = final.with_name(f".{final.name}.{os.getpid()}")
    with writing(final):
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        try:
            _write_unit(unit, names, draft, source_name, config)
            os.replace(draft, final)
        except OSError:
            if not final.is_dir():  # a worker of a build that was killed has been faster
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return unit.number


def _write_unit(unit: Unit, names: Sequence[str], folder: Path, source_name: str, config: BuildConfig) -> None:
    source = source_named(source_name) if source_name else None
    facts, files = _Facts(), []
    with open(folder / ROWS_FILE, "wb") as rows, open(folder / REJECTED_FILE, "w", encoding="utf-8") as rejected:
        for part, name in zip(unit.parts, names, strict=True):
            counts: Counter[str] = Counter()
            for item in convert_part(part, source, config):
                if isinstance(item, Converted):
                    facts.add(item)
                    rows.write(item.line + b"\n")
                    counts["trajectories"] += 1
                elif isinstance(item, Rejected):
                    rejected.write(rejected_line(name, item) + "\n")
                    counts["rejected"] += 1
                elif isinstance(item, Accompanying):
                    counts["accompanying"] += 1
            files.append({"file": name, **counts})
    facts.write(folder / FACTS_FILE)
    (folder / FILES_FILE).write_text(json.dumps(files), encoding="utf-8")


def rejected_line(name: str, item: Rejected) -> str:
    """One line of the file of rejected rows."""
    texts = {
        "source": item.source,
        "field": item.field,
        "reason": item.reason,
        "kind": item.kind,
        "excerpt": item.excerpt,
    }
    row = {"file": name, "row": item.index} | {key: printable(text) for key, text in texts.items()}
    return json.dumps(row, ensure_ascii=False)


class _Facts:
    """Columns of what later stages need to know of each trajectory without reading it."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in (*TEXTS, *NUMBERS, LENGTHS, "length")}
        self._contents, self._line_hashes, self._signatures = bytearray(), bytearray(), bytearray()
        self._contexts: list[int] = []
        self._groups: list[int] = []
        self._questions: list[tuple[int, ...]] = []
        self._beginnings: list[tuple[int, ...]] = []
        self._signed: list[bool] = []

    def add(self, item: Converted) -> None:
        trajectory, keys = item.trajectory, keys_of(item.trajectory)
        for name, value in item.facts.items():
            self._columns[name].append(value)
        self._columns["length"].append(len(item.line))
        self._line_hashes += hashlib.blake2b(item.line, digest_size=8).digest()
        self._contents += keys.content
        self._contexts.append(keys.context)
        self._groups.append(keys.group)
        self._questions.append(keys.questions)
        self._beginnings.append(keys.beginnings)
        # Rows of one episode share their history, and differ in the one step that is learned from each.
        signed = None if trajectory.history_steps else signature(_text_of(trajectory))
        self._signed.append(signed is not None)
        self._signatures += bytes(2 * BINS) if signed is None else signed.tobytes()

    def write(self, path: Path) -> None:
        import pyarrow
        import pyarrow.feather

        numbers = {name: pyarrow.array(np.asarray(self._columns[name], np.int64)) for name in (*NUMBERS, "length")}
        strings = {name: pyarrow.array(self._columns[name], pyarrow.string()) for name in TEXTS}
        lists = pyarrow.list_(pyarrow.uint64())
        table = pyarrow.table(
            {
                **strings,
                **numbers,
                LENGTHS: pyarrow.array(self._columns[LENGTHS], pyarrow.list_(pyarrow.int32())),
                "content": _fixed(self._contents, 16),
                "line_hash": _fixed(self._line_hashes, 8),
                "context": pyarrow.array(self._contexts, pyarrow.uint64()),
                "group_hash": pyarrow.array(self._groups, pyarrow.uint64()),
                "questions": pyarrow.array(self._questions, lists),
                "beginnings": pyarrow.array(self._beginnings, lists),
                "signed": pyarrow.array(self._signed, pyarrow.bool_()),
                "signature": _fixed(self._signatures, 2 * BINS),
            }
        )
        pyarrow.feather.write_feather(table, str(path), compression="uncompressed")


def _fixed(content: bytearray, width: int) -> Any:
    import pyarrow

    return pyarrow.FixedSizeBinaryArray.from_buffers(
        pyarrow.binary(width), len(content) // width, [None, pyarrow.py_buffer(bytes(content))]
    )


def _text_of(trajectory: Trajectory) -> bytes:
    """What nearly equal trajectories have in common: the steps. Databases and rules are shared by many that differ."""
    texts = []
    for step in trajectory.steps:
        texts += [step.action, step.observation]
    return "\n".join(texts).encode("utf-8")
