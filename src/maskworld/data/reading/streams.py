"""The bytes of a file, unzipped in pieces: what stands before a damaged place is never lost with it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

CHUNK = 1 << 18
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_GZIP, _ZSTD, _PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"


def compression(path: Path) -> str:
    """`gzip`, `zstd`, `parquet` or an empty string, by the first bytes of the file; its name does not matter.

    Raises OSError where it cannot be opened.
    """
    with open(path, "rb") as file:
        start = file.read(4)
    if start.startswith(_GZIP):
        return "gzip"
    return {_ZSTD: "zstd", _PARQUET: "parquet"}.get(start, "")


def chunks(path: Path, start: int = 0, end: int | None = None, how: str | None = None) -> Iterator[tuple[bytes, str]]:
    """(bytes, damage) of the file's content. `damage` is empty but in the last pair of a file that is damaged.

    Args:
        path: a file, plain, gzip or zstd.
        start: first byte; of a plain file only.
        end: one past the last byte, or None for the file's end; of a plain file only.
        how: what `compression` says, where something else is to decide.

    Raises OSError where the file cannot be read.
    """
    how = compression(path) if how is None else how
    with open(path, "rb") as file:
        if how == "gzip":
            yield from _gzip_chunks(file)
        elif how == "zstd":
            yield from _zstd_chunks(file)
        else:
            yield from _plain_chunks(file, start, end)


def _plain_chunks(file: BinaryIO, start: int, end: int | None) -> Iterator[tuple[bytes, str]]:
    file.seek(start)
    left = None if end is None else end - start
    while chunk := file.read(CHUNK if left is None else min(CHUNK, left)):
        left = None if left is None else left - len(chunk)
        yield chunk, ""


def _gzip_chunks(file: BinaryIO) -> Iterator[tuple[bytes, str]]:
    most = 4 * CHUNK  # at a time: a small file may unzip to anything
    unzip = zlib.decompressobj(zlib.MAX_WBITS | 16)
    pending, full = b"", False
    while full or (pending := pending or file.read(CHUNK)):
        if unzip.eof:  # the next of several members, or zeros that fill a block of a tape
            pending = pending.lstrip(b"\0")
            if not pending:
                continue
            unzip = zlib.decompressobj(zlib.MAX_WBITS | 16)
        before = unzip.copy()
        try:
            data = unzip.decompress(pending, most)
        except zlib.error as error:
            yield _salvage(before, pending), f"the gzip stream is damaged ({error})"
            return
        pending = unzip.unused_data if unzip.eof else unzip.unconsumed_tail
        full = len(data) == most and not unzip.eof  # more may be waiting inside
        yield data, ""
    if not unzip.eof:
        yield unzip.flush(), "the gzip stream is cut off"


def _salvage(unzip: Any, data: bytes) -> bytes:
    """What `data` unzips to before its damaged byte; a whole chunk that fails gives nothing."""
    good = bytearray()
    try:
        for index in range(len(data)):
            good += unzip.decompress(data[index : index + 1])
    except zlib.error:
        pass
    return bytes(good)


def _zstd_chunks(file: BinaryIO) -> Iterator[tuple[bytes, str]]:
    stream = _zstd_stream(file)
    done = 0
    while True:
        try:
            chunk = stream.read(CHUNK)
        except OSError as error:
            yield _salvage_zstd(file, done), f"the zstd stream is damaged or cut off ({error})"
            return
        if not chunk:
            return
        done += len(chunk)
        yield chunk, ""


def _salvage_zstd(file: BinaryIO, done: int) -> bytes:
    """What the file unzips to behind its first `done` bytes and before its damaged place."""
    near = max(0, file.tell() - (1 << 17))  # pyarrow unzips what it has read in one go, and drops all of it at an error
    file.seek(0)
    stream = _zstd_stream(_ByteByByte(file, near))
    good = bytearray()
    try:
        while done:
            done -= len(stream.read(min(CHUNK, done)))
        while byte := stream.read(1):
            good += byte
    except OSError:
        pass
    return bytes(good)


def _zstd_stream(file: Any) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd")


class _ByteByByte:
    """A file that gives single bytes from a place on, whatever is asked for."""

    closed = False

    def __init__(self, file: BinaryIO, start: int):
        self._file, self._left = file, start

    def close(self) -> None:
        """The file is closed by who opened it."""

    def read(self, size: int) -> bytes:
        content = self._file.read(min(size, self._left) or 1)
        self._left = max(0, self._left - len(content))
        return content
