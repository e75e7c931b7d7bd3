"""Raw dumps to one data set: files of each split, index.parquet, rejected.jsonl, manifest.json.

1. Plan: which files, in which pieces (`plan`).
2. Convert each piece on its own, in any number of processes (`convert`, `units`).
3. Choose among all trajectories at once, by their hashes (`curation/selection`).
4. Write the files of the result (`result`).

A finished piece is never done again: a build that was killed goes on where it was when the same command is given, also
with other settings of stages 3 and 4. The bytes of the result depend on the files and the settings alone.

Until it is finished, a build lies in `OUT/.work`: plan.json, a folder for each piece, and the files of the result in a
folder named by what was chosen. They are moved into `OUT` one by one, the manifest last: where it is, all is.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from maskworld.data.build.config import CONVERSION, BuildConfig
from maskworld.data.build.plan import UNIT_BYTES, InputFile, Unit, input_files, units
from maskworld.data.build.report import manifest_of, summary
from maskworld.data.build.result import (
    INDEX_FILE,
    Collected,
    Shard,
    choose,
    collect,
    removed,
    shards,
    write_index,
    write_shard,
)
from maskworld.data.build.units import REJECTED_FILE, convert_unit, unit_folder
from maskworld.data.build.workers import available_cores, run_tasks
from maskworld.data.curation.selection import Selection
from maskworld.data.schema import SCHEMA
from maskworld.data.sources.registry import source_named
from maskworld.errors import ConfigError, DataError, StorageError
from maskworld.storage import one_at_a_time, write_text, writing

MANIFEST_FILE = "manifest.json"
_WORK, _PLAN_FILE = ".work", "plan.json"


def build(
    paths: Iterable[str | Path],
    out: str | Path,
    source: str = "",
    config: BuildConfig | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Build the data set `out` from files and folders of raw trajectories; returns its manifest.

    Args:
        paths: files and folders, in any order.
        out: folder of the result; an unfinished build of the same files and settings is taken up again.
        source: name of the format of all files; empty to tell it from the records.
        config: settings; None for the defaults.
        say: what to do with a line for the user.

    Raises:
        DataError: a path does not exist, the source is unknown, or not one trajectory is left.
        ConfigError: a setting names what is not there; `out` holds a build of other files or settings.
        StorageError: `out` cannot be written or holds something else.
    """
    config, out = config or BuildConfig(), Path(os.path.abspath(out))
    if source:
        source_named(source)
    files = input_files(paths, out)
    if not out.name:
        raise StorageError(f"{out}: choose another folder")
    with writing(out), one_at_a_time(out):
        found = _finished(out, files, source, config)
        if found is not None:
            say(f"{out} was already built from these files with these settings; taking it")
            return found
        work = _work_folder(out, files, source, config)
        began = time.perf_counter()
        planned = units(files, source_named(source) if source else None)
        redone = _convert(planned, files, work, source, config, say)
        converted_in = time.perf_counter() - began
        manifest = _finish(planned, files, work, out, source, config, say)
        say(summary(manifest, redone, converted_in, time.perf_counter() - began))
    if not manifest["rows"]["out"]:
        most = ", ".join(f"{count}x {kind}" for kind, count in list(manifest["rows"]["rejected"].items())[:5])
        raise DataError(f"not one trajectory came out ({most or 'no file has content'}); see {out / REJECTED_FILE}")
    return manifest


def settings_of(source: str, config: BuildConfig) -> dict[str, Any]:
    """Everything but the input that decides the bytes of a build."""
    settings = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(config).items() if name != "workers"}
    return {"source": source or "detected", **settings}


def _finished(out: Path, files: Sequence[InputFile], source: str, config: BuildConfig) -> dict[str, Any] | None:
    """The manifest of a finished build in `out`, if it is of the same making; None where there is none at all.

    One without a trajectory is none: it is made anew, so that a mistake in the command can be mended.
    """
    if out.exists() and not out.is_dir():
        raise StorageError(f"{out}: is a file; choose another folder")
    path = out / MANIFEST_FILE
    if not path.is_file():
        is_begun = (out / _WORK / _PLAN_FILE).is_file()
        if out.exists() and not is_begun and any(entry.name != _WORK for entry in out.iterdir()):
            raise StorageError(f"{out}: holds something other than a build; choose another folder or remove it")
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        same = manifest["inputs"]["digest"] == _digest(files) and manifest["settings"] == settings_of(source, config)
        rows = manifest["rows"]["out"]
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path}: is no manifest of a build ({error}); choose another folder or remove it") from None
    shutil.rmtree(out / _WORK, ignore_errors=True)  # of a build that was killed when all else was done
    if not rows:
        for name in (MANIFEST_FILE, INDEX_FILE, REJECTED_FILE):
            (out / name).unlink(missing_ok=True)
        return None
    newer = [file.name for file in files if file.modified > path.stat().st_mtime_ns]
    if not same or newer:
        why = f"changed since ({newer[0]})" if same else "are others, or the settings are"
        raise ConfigError(f"{out}: holds a finished build, but its files {why}; give another --out or remove it")
    return manifest


def _work_folder(out: Path, files: Sequence[InputFile], source: str, config: BuildConfig) -> Path:
    """The folder of the unfinished build, new or taken up again."""
    settings = settings_of(source, config)
    plan = {
        "schema": SCHEMA,
        "files": hashlib.sha256(repr([(f.name, f.bytes, f.modified) for f in files]).encode()).hexdigest(),
        "piece_bytes": UNIT_BYTES,
        **{name: settings[name] for name in ("source", *CONVERSION)},
    }
    path = out / _WORK / _PLAN_FILE
    if path.is_file():
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            known = {}
        changed = sorted(name for name in plan if plan[name] != known.get(name))
        if changed:
            raise ConfigError(
                f"{out}: holds an unfinished build of other {' and '.join(changed)}; give the same command to go on "
                "with it, another --out, or remove the folder"
            )
    else:
        write_text(path, json.dumps(plan, indent=1) + "\n")
    folder = out / _WORK / "units"
    folder.mkdir(exist_ok=True)
    for draft in folder.glob(".*"):  # of workers that were killed
        shutil.rmtree(draft, ignore_errors=True)
    return out / _WORK


def _convert(
    planned: Sequence[Unit],
    files: Sequence[InputFile],
    work: Path,
    source: str,
    config: BuildConfig,
    say: Callable[[str], None],
) -> int:
    """Convert what is not converted yet; returns the bytes of input that this took."""
    names = {file.path: file.name for file in files}
    missing = [unit for unit in planned if not unit_folder(work, unit.number).is_dir()]
    if len(missing) < len(planned):
        say(f"going on: {len(planned) - len(missing)} of {len(planned)} pieces are already converted")
    tasks = ((unit, [names[part.path] for part in unit.parts], work, source, config) for unit in missing)
    sizes = {unit.number: unit.bytes for unit in missing}
    workers = min(config.workers or available_cores(), max(1, len(missing)))
    with _progress("converting", sum(sizes.values())) as advance:
        for number in run_tasks(convert_unit, tasks, workers):
            advance(sizes[number])
    return sum(sizes.values())


def _finish(
    planned: Sequence[Unit],
    files: Sequence[InputFile],
    work: Path,
    out: Path,
    source: str,
    config: BuildConfig,
    say: Callable[[str], None],
) -> dict[str, Any]:
    collected = collect(work, len(planned), config)
    selection = choose(collected, config)
    placed = list(shards(collected, selection, config.shard_rows))
    result = _result_folder(out, work, collected, selection, config)
    _write_shards([shard for shard, _ in placed if not (out / shard.name).exists()], work, result, config)
    write_index(collected, selection, placed, result / INDEX_FILE)
    rejected = _write_rejected(planned, work, collected, selection, result / REJECTED_FILE)
    inputs = {"files": len(files), "bytes": sum(file.bytes for file in files), "digest": _digest(files)}
    rows = [(shard.name, rows) for shard, rows in placed]
    folders = [unit_folder(work, unit.number) for unit in planned]
    manifest = manifest_of(collected, selection, rejected, folders, inputs, settings_of(source, config), rows)
    write_text(result / MANIFEST_FILE, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    for name in (*(name for name, _ in rows), INDEX_FILE, REJECTED_FILE, MANIFEST_FILE):
        if (result / name).exists():
            os.replace(result / name, out / name)
    shutil.rmtree(work)
    return manifest


def _result_folder(out: Path, work: Path, collected: Collected, selection: Selection, config: BuildConfig) -> Path:
    """Where the files of the result are written, new or with what an earlier run has written of the same choice."""
    chosen = hashlib.sha256(repr(config.shard_rows).encode())
    for values in (collected.candidates.contents, selection.reasons, selection.splits):
        chosen.update(values.tobytes())
    result = work / f"result-{chosen.hexdigest()[:16]}"
    if not result.is_dir():
        if any(entry.name != _WORK for entry in out.iterdir()):
            raise ConfigError(
                f"{out}: holds files of an unfinished build with other settings; give the same command to finish it, "
                "another --out, or remove the folder"
            )
        for other in work.glob("result-*"):
            shutil.rmtree(other, ignore_errors=True)
        result.mkdir()
    return result


def _write_shards(missing: Sequence[Shard], work: Path, result: Path, config: BuildConfig) -> None:
    sizes = {shard.name: int(shard.lengths.sum()) for shard in missing}
    workers = min(config.workers or available_cores(), max(1, len(missing)))
    with _progress("writing", sum(sizes.values())) as advance:
        for name in run_tasks(write_shard, ((shard, work, result) for shard in missing), workers):
            advance(sizes[name])


def _write_rejected(
    planned: Sequence[Unit], work: Path, collected: Collected, selection: Selection, path: Path
) -> Counter[tuple[str, str]]:
    """All rejected rows in one file, those of the input first; returns their number by (source, kind)."""
    counts: Counter[tuple[str, str]] = Counter()
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        try:
            with open(draft, "w", encoding="utf-8") as file:
                for row, text in _rejected_rows(planned, work, collected, selection):
                    counts[row["source"], row["kind"]] += 1
                    file.write(text)
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    return counts


def _rejected_rows(
    planned: Sequence[Unit], work: Path, collected: Collected, selection: Selection
) -> Iterator[tuple[dict[str, Any], str]]:
    for unit in planned:
        with open(unit_folder(work, unit.number) / REJECTED_FILE, encoding="utf-8") as file:
            for line in file:
                yield json.loads(line), line
    for row in removed(collected, selection):
        yield row, json.dumps(row, ensure_ascii=False) + "\n"


def _digest(files: Sequence[InputFile]) -> str:
    return hashlib.sha256(repr([(file.name, file.bytes) for file in files]).encode()).hexdigest()


class _progress:
    """A bar of bytes on a terminal; nothing where standard error is none."""

    def __init__(self, what: str, total: int):
        self._what, self._total = what, total

    def __enter__(self) -> Callable[[int], None]:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

        console = Console(stderr=True)
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._bar = Progress(
            "{task.description}", *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._bar.start()
        task = self._bar.add_task(self._what, total=max(1, self._total))
        return lambda amount: self._bar.advance(task, amount)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
