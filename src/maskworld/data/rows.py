"""Packed rows on disk: the bytes of one row, the folder that holds many, and a reader that trusts neither.

A folder of rows holds `rows-<i>-of-<n>.array_record` (one row per record, so that any row is read on its own) and
`manifest.json`: the shape of the rows, the vocabulary they were written with, counts, and size and sha256 of every
file. A record holds only what cannot be derived: the lengths of its documents, their tokens, one bit per target, and
a checksum.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from maskworld.data.rendering import Document
from maskworld.errors import DataError, StorageError
from maskworld.storage import writing

FORMAT = "maskworld.rows/1"
MANIFEST_FILE = "manifest.json"

Row = dict[str, np.ndarray]
"""tokens int32 [L], document_ids int32 [L], positions int32 [L], targets bool [L], target_blocks int32 [K]."""

_MAGIC = b"mwr1"
_HEADER = struct.Struct("<4sIII")  # magic, bytes per token, documents, tokens
_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True)
class RowShape:
    """What all rows of a folder have in common."""

    row_length: int
    """L"""
    target_blocks: int
    """K"""
    block_length: int
    """S"""
    pad_id: int

    def empty(self) -> Row:
        """A row of nothing but padding: it has no target, so it adds nothing to a loss."""
        return {
            "tokens": np.full(self.row_length, self.pad_id, np.int32),
            "document_ids": np.zeros(self.row_length, np.int32),
            "positions": np.zeros(self.row_length, np.int32),
            "targets": np.zeros(self.row_length, bool),
            "target_blocks": np.full(self.target_blocks, -1, np.int32),
        }


def encode_row(documents: Sequence[Document]) -> bytes:
    """The record of a row that holds `documents` one after the other, from its first position on."""
    lengths = np.asarray([len(document) for document in documents], "<u4")
    tokens = np.concatenate([document.tokens for document in documents])
    targets = np.concatenate([document.targets for document in documents])
    width = 2 if tokens.max(initial=0) < 2**16 else 4
    body = b"".join(
        (
            _HEADER.pack(_MAGIC, width, len(lengths), len(tokens)),
            lengths.tobytes(),
            tokens.astype(f"<u{width}").tobytes(),
            np.packbits(targets).tobytes(),
        )
    )
    return body + _CHECKSUM.pack(zlib.crc32(body))


def decode_row(record: bytes, shape: RowShape) -> Row:
    """The arrays of a record.

    Raises:
        DataError: the record is damaged or was written for another shape (the caller adds where it stood).
    """
    body, checksum = record[: -_CHECKSUM.size], record[-_CHECKSUM.size :]
    if len(body) < _HEADER.size or checksum != _CHECKSUM.pack(zlib.crc32(body)):
        raise DataError("the checksum of the record does not match its content")
    magic, width, document_count, used = _HEADER.unpack_from(body)
    if magic != _MAGIC:
        raise DataError("the record is not a packed row of this version")
    at = _HEADER.size
    lengths = np.frombuffer(body, "<u4", document_count, at)
    at += lengths.nbytes
    tokens = np.frombuffer(body, f"<u{width}", used, at)
    at += tokens.nbytes
    targets = np.unpackbits(np.frombuffer(body, np.uint8, offset=at), count=used).astype(bool)
    blocks = np.flatnonzero(targets.reshape(-1, shape.block_length).any(axis=1)) if used else np.zeros(0, np.int64)
    if used > shape.row_length or len(blocks) > shape.target_blocks:
        raise DataError(
            f"the row holds {used} tokens and {len(blocks)} target blocks; "
            f"the manifest allows {shape.row_length} and {shape.target_blocks}"
        )
    row = shape.empty()
    starts = np.cumsum(lengths) - lengths
    row["tokens"][:used] = tokens
    row["document_ids"][:used] = np.repeat(np.arange(1, document_count + 1), lengths)
    row["positions"][:used] = np.arange(used) - np.repeat(starts, lengths)
    row["targets"][:used] = targets
    row["target_blocks"][: len(blocks)] = blocks
    return row


def stack(rows: Sequence[Row], count: int, shape: RowShape) -> Row:
    """`rows` with a leading axis of `count`, filled up with empty rows."""
    filled = [*rows, *[shape.empty()] * (count - len(rows))]
    return {name: np.stack([row[name] for row in filled]) for name in filled[0]}


class RowWriter:
    """Writes rows into the shards of a new folder; `close` adds the manifest, without which the folder is none."""

    def __init__(self, folder: Path, shape: RowShape, rows_per_shard: int = 16_384):
        self._folder, self._shape, self._rows_per_shard = folder, shape, rows_per_shard
        self._drafts: list[Path] = []
        self._rows: list[int] = []
        self._writer: Any = None
        self._counts = dict.fromkeys(("rows", "documents", "tokens", "targets", "target_blocks", "steps"), 0)
        with writing(folder):
            folder.mkdir(parents=True)

    def write(self, documents: Sequence[Document]) -> None:
        """Append one row.

        Raises:
            StorageError: the disk is full or read-only.
        """
        with _writing_records(self._folder):
            if self._writer is None or self._rows[-1] == self._rows_per_shard:
                self._next_shard()
            self._writer.write(encode_row(documents))
        self._rows[-1] += 1
        self._counts["rows"] += 1
        self._counts["documents"] += len(documents)
        self._counts["tokens"] += sum(len(document) for document in documents)
        self._counts["targets"] += sum(int(document.targets.sum()) for document in documents)
        self._counts["target_blocks"] += sum(document.target_blocks for document in documents)
        self._counts["steps"] += sum(span.is_target for document in documents for span in document.steps)

    def close(self, details: dict[str, Any]) -> dict[str, Any]:
        """Finish the files and write the manifest: `details` and all that the writer knows. Returns it.

        Raises:
            StorageError: the disk is full or read-only.
        """
        with _writing_records(self._folder):
            self._finish_shard()
            total = len(self._drafts)
            files = []
            for index, (draft, rows) in enumerate(zip(self._drafts, self._rows, strict=True)):
                path = self._folder / f"rows-{index:05d}-of-{total:05d}.array_record"
                draft.rename(path)
                files.append({"file": path.name, "rows": rows, "bytes": path.stat().st_size, "sha256": sha256(path)})
            manifest = {
                "format": FORMAT,
                **asdict(self._shape),
                "counts": self._counts,
                "efficiency": _efficiency(self._counts, self._shape),
                **details,
                "files": files,
            }
            (self._folder / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        return manifest

    def _next_shard(self) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        self._finish_shard()
        self._drafts.append(self._folder / f"rows-{len(self._drafts):05d}.draft")
        self._rows.append(0)
        self._writer = ArrayRecordWriter(str(self._drafts[-1]), "group_size:1")

    def _finish_shard(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@contextmanager
def _writing_records(folder: Path) -> Iterator[None]:
    """As `writing`; besides, whatever the ArrayRecord writer reports (a bare RuntimeError) is a failure of storage."""
    with writing(folder):
        try:
            yield
        except RuntimeError as error:
            raise StorageError(f"cannot write {folder}: {error}") from error


def _efficiency(counts: dict[str, int], shape: RowShape) -> dict[str, float]:
    """Shares of what the rows could hold: of L tokens, and of K target blocks."""
    rows = max(counts["rows"], 1)
    return {
        "tokens": round(counts["tokens"] / (rows * shape.row_length), 4),
        "target_blocks": round(counts["target_blocks"] / (rows * max(shape.target_blocks, 1)), 4),
    }


class RowReader:
    """Random access to the rows of a folder. Cheap to open; checks sizes and counts of all files at once."""

    def __init__(self, folder: str | Path):
        """Raises DataError, naming the file, when the folder is incomplete, truncated or of another format."""
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self.shape = RowShape(**{name: self.manifest[name] for name in RowShape.__dataclass_fields__})
        self._paths = [self.folder / entry["file"] for entry in self.manifest["files"]]
        self._ends = list(np.cumsum([entry["rows"] for entry in self.manifest["files"]], dtype=int).tolist())
        self._readers = [
            _open_shard(path, entry) for path, entry in zip(self._paths, self.manifest["files"], strict=True)
        ]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, indices: Iterable[int]) -> list[Row]:
        """Rows by index, in the order asked for.

        Raises:
            DataError: a record is damaged; the message names file and row.
        """
        return [self._read_one(int(index)) for index in indices]

    def _read_one(self, index: int) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        shard = bisect_right(self._ends, index)
        position = index - (self._ends[shard - 1] if shard else 0)
        try:
            (record,) = self._readers[shard].read([position])
            return decode_row(record, self.shape)
        except (DataError, RuntimeError, ValueError, IndexError, OSError) as error:
            raise DataError(
                f"{self._paths[shard]}: row {position} cannot be read: {error}; prepare the data again"
            ) from None

    def __reduce__(self):
        return RowReader, (self.folder,)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder of rows, checked for what the reader relies on.

    Raises:
        DataError: it is missing, no JSON, of another format, or lacks a field; the message names the file.
    """
    path = folder / MANIFEST_FILE
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: missing; {folder} is no folder of packed rows, prepare the data first") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); prepare the data again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise DataError(f"{path}: field 'format' is {found!r}, this version reads {FORMAT!r}; prepare the data again")
    for name in RowShape.__dataclass_fields__:
        if type(manifest.get(name)) is not int:
            raise DataError(f"{path}: field {name!r} is missing or no integer; prepare the data again")
    entries = manifest.get("files")
    wanted = {"file": str, "rows": int, "bytes": int, "sha256": str}
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and all(type(entry.get(key)) is kind for key, kind in wanted.items())
        for entry in entries
    ):
        raise DataError(f"{path}: field 'files' needs {', '.join(wanted)} for every file; prepare the data again")
    return manifest


def _open_shard(path: Path, entry: dict[str, Any]) -> Any:
    from array_record.python.array_record_module import ArrayRecordReader

    if not path.is_file():
        raise DataError(f"{path}: missing, though {MANIFEST_FILE} lists it; prepare the data again")
    size = path.stat().st_size
    if size != entry["bytes"]:
        kind = "truncated" if size < entry["bytes"] else "longer than written"
        raise DataError(f"{path}: {kind} ({size} bytes, the manifest says {entry['bytes']}); prepare the data again")
    try:
        reader = ArrayRecordReader(str(path), options="readahead_buffer_size:0", file_reader_buffer_size=32_768)
        count = reader.num_records()
    except (RuntimeError, ValueError, OSError) as error:
        raise DataError(f"{path}: cannot be read ({error}); prepare the data again") from None
    if not reader.ok() or count != entry["rows"]:
        raise DataError(f"{path}: damaged ({count} rows, the manifest says {entry['rows']}); prepare the data again")
    return reader


def sha256(path: Path) -> str:
    """Hex digest of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
