"""From finished units to the files of the result: all facts in canonical order, the choice, the shards, the index."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from maskworld.data.build.config import BuildConfig, parse_caps
from maskworld.data.build.facts import LENGTHS, NUMBERS, TEXTS
from maskworld.data.build.units import FACTS_FILE, ROWS_FILE, unit_folder
from maskworld.data.curation.near_duplicates import BINS
from maskworld.data.curation.selection import KEPT, REASONS, Candidates, Rules, Selection, select
from maskworld.data.curation.splits import SPLIT_NAMES
from maskworld.errors import ConfigError
from maskworld.storage import writing

INDEX_FILE = "index.parquet"
_SHARD_BYTES = 128 << 20
_LEVEL = 2  # of gzip: most of the size at a third of the time of the usual 6


@dataclass(frozen=True)
class Collected:
    """The facts of all units as one table, and the canonical order of its rows."""

    table: Any
    """A pyarrow table in canonical order, with the columns `unit` and `offset` of each line."""
    candidates: Candidates
    source_names: tuple[str, ...]


def collect(work: Path, unit_count: int, config: BuildConfig) -> Collected:
    """Read the facts of all units.

    Raises:
        ConfigError: a cap or a split names a source or an environment of which there is nothing.
    """
    import pyarrow

    tables = [_facts(work, unit) for unit in range(unit_count)]
    table = pyarrow.concat_tables(tables).combine_chunks()
    contents = _bytes(table, "content").view(np.uint64).reshape(-1, 2)
    identities = _bytes(table, "line_hash").view(np.uint64).reshape(-1)
    order = np.lexsort((identities, contents[:, 1], contents[:, 0]))
    table = table.take(pyarrow.array(order))
    return Collected(table, *_candidates(table, contents[order], config))


def _facts(work: Path, unit: int) -> Any:
    import pyarrow
    import pyarrow.feather

    table = pyarrow.feather.read_table(str(unit_folder(work, unit) / FACTS_FILE), memory_map=False)
    lengths = table.column("length").to_numpy() + 1
    table = table.append_column("unit", pyarrow.array(np.full(len(table), unit, np.int32)))
    return table.append_column("offset", pyarrow.array(np.cumsum(lengths) - lengths))


def _candidates(table: Any, contents: np.ndarray, config: BuildConfig) -> tuple[Candidates, tuple[str, ...]]:
    import pyarrow.compute as compute

    names, sources = np.unique(np.asarray(table.column("source").to_pylist(), object), return_inverse=True)
    environments = table.column("environment").to_pylist()
    licences = table.column("licence").to_pylist()
    steps = table.column("steps").to_numpy()
    entities = np.maximum(table.column("entities").to_numpy(), 1)
    apart = _out_of_distribution(table.column("source").to_pylist(), environments, config.out_of_distribution)
    candidates = Candidates(
        contents=contents,
        contexts=table.column("context").to_numpy(),
        groups=table.column("group_hash").to_numpy(),
        sources=sources.astype(np.int64),
        ends=np.cumsum(steps),
        questions=compute.list_flatten(table.column("questions")).to_numpy(),
        beginnings=compute.list_flatten(table.column("beginnings")).to_numpy(),
        signed=table.column("signed").to_numpy(),
        signatures=_bytes(table, "signature").view(np.uint16).reshape(-1, BINS),
        allowed=np.asarray([not config.licences or licence in config.licences for licence in licences], bool),
        revealed=table.column("revealed").to_numpy() / entities,
        out_of_distribution=apart,
    )
    return candidates, tuple(names.tolist())


def _out_of_distribution(sources: list[str], environments: list[str], wanted: Sequence[str]) -> np.ndarray:
    apart = np.zeros(len(sources), bool)
    for name in wanted:
        mine = np.asarray(
            [
                source == name or environment == name or environment.startswith(f"{name}/")
                for source, environment in zip(sources, environments, strict=True)
            ],
            bool,
        )
        if len(mine) and not mine.any():
            known = ", ".join(sorted({*sources, *environments})[:20])
            raise ConfigError(f"--out_of_distribution: nothing is called {name}; there are {known}")
        apart |= mine
    return apart


def choose(collected: Collected, config: BuildConfig) -> Selection:
    """The selection of a build.

    Raises:
        ConfigError: a cap names a source of which there is nothing.
    """
    caps = {}
    for name, most in parse_caps(config.caps).items():
        if name not in collected.source_names:
            raise ConfigError(f"--caps: nothing comes from {name}; there are {', '.join(collected.source_names)}")
        caps[collected.source_names.index(name)] = most
    rules = Rules(
        keep_duplicates=config.keep_duplicates,
        near_duplicates=config.near_duplicates,
        most_revealed=config.most_revealed,
        caps=caps,
        shares=(config.validation_share, config.test_share),
        seed=config.seed,
    )
    return select(collected.candidates, rules)


@dataclass(frozen=True)
class Shard:
    """One file of the result and where its lines are."""

    name: str
    units: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray
    renamed: dict[int, str]
    """New ids of lines whose id occurs elsewhere, by position."""


def shards(collected: Collected, selection: Selection, shard_rows: int) -> Iterator[tuple[Shard, np.ndarray]]:
    """The files of the result with the rows (of the table) that each holds, split by split, in canonical order."""
    units, offsets, lengths = (collected.table.column(name).to_numpy() for name in ("unit", "offset", "length"))
    renamed = _second_ids(collected, selection)
    for split, split_name in enumerate(SPLIT_NAMES):
        rows = np.flatnonzero((selection.reasons == KEPT) & (selection.splits == split))
        pieces = list(_pieces(rows, lengths, shard_rows))
        for number, piece in enumerate(pieces):
            ids = {place: renamed[row] for place, row in enumerate(piece.tolist()) if row in renamed}
            name = f"{split_name}-{number:05d}-of-{len(pieces):05d}.jsonl.gz"
            yield Shard(name, units[piece], offsets[piece], lengths[piece], ids), piece


def _pieces(rows: np.ndarray, lengths: np.ndarray, most_rows: int) -> Iterator[np.ndarray]:
    start, size = 0, 0
    for place, length in enumerate(lengths[rows].tolist()):
        if place > start and (place - start == most_rows or size + length > _SHARD_BYTES):
            yield rows[start:place]
            start, size = place, 0
        size += length
    if len(rows):
        yield rows[start:]


def _second_ids(collected: Collected, selection: Selection) -> dict[int, str]:
    """A new id for every kept row whose id an earlier kept row has: the id and the beginning of its content's hash."""
    kept = np.flatnonzero(selection.reasons == KEPT)
    ids = collected.table.column("id").take(kept).to_pylist()
    contents = collected.candidates.contents
    given, seen = set(ids), set()
    renamed: dict[int, str] = {}
    for row, name in zip(kept.tolist(), ids, strict=True):
        if name in seen:
            again = renamed[row] = f"{name}#{contents[row, 0]:016x}"
            number = 1
            while renamed[row] in given:  # equal trajectories that are kept on purpose
                number += 1
                renamed[row] = f"{again}-{number}"
            given.add(renamed[row])
        seen.add(name)
    return renamed


def write_shard(shard: Shard, work: Path, folder: Path) -> str:
    """Write one file of the result, if it is not there; returns its name. Raises StorageError."""
    path = folder / shard.name
    if path.exists():
        return shard.name
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        try:
            with open(draft, "wb") as raw, gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as file:
                for line in _lines(shard, work):
                    file.write(line + b"\n")
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    return shard.name


def _lines(shard: Shard, work: Path) -> Iterator[bytes]:
    """The lines in the order of the shard, read in the order in which they lie on disk."""
    found: list[bytes] = [b""] * len(shard.units)
    order = np.lexsort((shard.offsets, shard.units)).tolist()
    for unit in np.unique(shard.units).tolist():
        with open(unit_folder(work, unit) / ROWS_FILE, "rb") as file:
            while order and shard.units[order[0]] == unit:
                place = order.pop(0)
                file.seek(int(shard.offsets[place]))
                found[place] = file.read(int(shard.lengths[place]))
    for place, line in enumerate(found):
        if place in shard.renamed:
            row = json.loads(line) | {"id": shard.renamed[place]}
            line = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        yield line


def write_index(
    collected: Collected, selection: Selection, placed: Sequence[tuple[Shard, np.ndarray]], path: Path
) -> None:
    """The table of all trajectories of the result: split, file, line and facts of each, in the order of the files."""
    import pyarrow
    import pyarrow.parquet

    rows = np.concatenate([np.zeros(0, np.int64), *(piece for _, piece in placed)])
    table = collected.table.select([*TEXTS, *NUMBERS, LENGTHS]).take(pyarrow.array(rows))
    ids = table.column("id").to_pylist()
    first = 0
    for shard, piece in placed:
        for place, name in shard.renamed.items():
            ids[first + place] = name
        first += len(piece)
    files = [shard.name for shard, piece in placed for _ in range(len(piece))]
    lines = np.concatenate([np.zeros(0, np.int64), *(np.arange(len(piece)) for _, piece in placed)])
    splits = [SPLIT_NAMES[split] for split in selection.splits[rows].tolist()]
    table = table.set_column(table.schema.get_field_index("id"), "id", pyarrow.array(ids, pyarrow.string()))
    table = table.add_column(0, "line", pyarrow.array(lines.astype(np.int32)))
    table = table.add_column(0, "file", pyarrow.array(files, pyarrow.string()))
    table = table.add_column(0, "split", pyarrow.array(splits, pyarrow.string()))
    with writing(path):
        pyarrow.parquet.write_table(table, path, compression="zstd")


def removed(collected: Collected, selection: Selection) -> Iterator[dict[str, str]]:
    """One row for every trajectory that was read well and does not stay."""
    gone = np.flatnonzero(selection.reasons != KEPT)
    columns = (collected.table.column(name).take(gone).to_pylist() for name in ("id", "source"))
    for reason, name, source in zip(selection.reasons[gone].tolist(), *columns, strict=True):
        yield {"id": name, "source": source, "kind": REASONS[reason], "reason": REASONS[reason]}


def _bytes(table: Any, name: str) -> np.ndarray:
    """The content of a column of fixed-size binary values, as bytes."""
    column = table.column(name).combine_chunks()
    if hasattr(column, "chunks"):
        column = column.chunk(0) if column.num_chunks else None
    if column is None or not len(column):
        return np.zeros(0, np.uint8)
    width = column.type.byte_width
    content = np.frombuffer(column.buffers()[1], np.uint8)
    return content[column.offset * width : (column.offset + len(column)) * width]
