"""Batches of packed rows: a pure function of (rows, seed, batch index).

The global order of rows is one shuffled stream without end, epoch after epoch, each epoch a new permutation. Global
batch b is rows [bB, (b + 1)B) of the stream; process p of P takes the p-th of P equal parts of it. So the state to
resume from is the index of the next batch, and neither the number of processes nor of workers changes any batch.

Reader processes are our own rather than grain's, because grain imports jax in every process it starts.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from maskworld.data.reader_process import ReaderProcess
from maskworld.data.rows import RowReader, stack
from maskworld.errors import ConfigError, DataError

Batch = dict[str, np.ndarray]
"""A row's arrays with a leading axis of B / process_count rows."""

_PREFETCH_THREADS = 2
_PREFETCH_BATCHES = 4  # asked for ahead of time, per worker process or of all threads together
_FOREVER = 2**62


def batches(
    rows_folder: str | Path,
    batch_size: int,
    seed: int = 0,
    start_batch: int = 0,
    process_index: int = 0,
    process_count: int = 1,
    workers: int = 0,
) -> Iterator[Batch]:
    """Training batches without end, from global batch `start_batch` on.

    Args:
        rows_folder: what `prepare` wrote.
        batch_size: B, rows of a global batch.
        seed: of the shuffle; any integer.
        start_batch: index of the first batch to give; the resume state.
        process_index: which part of every global batch this host gets.
        process_count: parts a global batch is split into; the parts in order are the batch.
        workers: reader processes; 0 reads in threads of this process. Workers never import jax.

    Yields:
        Arrays of shape [B / process_count, ...] as in a packed row. Close the iterator (or let it go) to stop the
        readers.

    Raises:
        ConfigError: the batch cannot be split, or an argument is out of range.
        DataError: the rows are missing or damaged.
    """
    share = _share(batch_size, process_index, process_count)
    if start_batch < 0 or workers < 0:
        raise ConfigError(f"start_batch and workers cannot be negative (got {start_batch} and {workers})")
    reader = RowReader(rows_folder)
    if not len(reader):
        raise DataError(f"{rows_folder}: holds no rows to train on")
    offset = process_index * share
    row_at = _shuffled(len(reader), seed)

    def indices(batch: int) -> list[int]:
        start = batch * batch_size + offset
        return [row_at(place) for place in range(start, start + share)]

    return (
        _from_workers(reader, indices, start_batch, workers) if workers else _from_threads(reader, indices, start_batch)
    )


def validation_batches(
    rows_folder: str | Path, batch_size: int, process_index: int = 0, process_count: int = 1
) -> Iterator[Batch]:
    """Every row once, in order, as batches of one shape: the last is filled up with empty rows.

    Arguments, shapes and errors as in `batches`. Rows without targets add nothing to a loss, so sums over all
    batches are sums over all rows.
    """
    share = _share(batch_size, process_index, process_count)
    reader = RowReader(rows_folder)
    return _in_order(reader, batch_size, process_index * share, share)


def _in_order(reader: RowReader, batch_size: int, offset: int, share: int) -> Iterator[Batch]:
    for start in range(0, len(reader), batch_size):
        mine = range(start + offset, start + offset + share)
        rows = reader.read(index for index in mine if index < len(reader))
        yield stack(rows, share, reader.shape)


def _read(reader: RowReader, indices: list[int]) -> Batch:
    return stack(reader.read(indices), len(indices), reader.shape)


def _share(batch_size: int, process_index: int, process_count: int) -> int:
    if batch_size < 1 or process_count < 1 or batch_size % process_count:
        raise ConfigError(
            f"training.batch_size: {batch_size} rows cannot be split evenly over {process_count} process(es)"
        )
    if not 0 <= process_index < process_count:
        raise ConfigError(f"process_index {process_index} is not one of {process_count} process(es)")
    return batch_size // process_count


def _shuffled(rows: int, seed: int) -> Callable[[int], int]:
    """The endless shuffled stream: from a place in it to the index of a row.

    Sorting raw Philox output, which NumPy promises never to change, gives the same order on every machine. (grain's
    own shuffle walks a domain of 65,536 places: 16 ms per row when there are two rows, 0.5 ms when there are a
    hundred.) An epoch's order is held in memory, 4 bytes a row, for the last two epochs met.
    """

    @lru_cache(maxsize=2)
    def order_of(epoch: int) -> np.ndarray:
        key = hashlib.sha256(f"maskworld shuffle {seed} {epoch}".encode()).digest()[:16]
        draws = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(rows)
        return np.argsort(draws, kind="stable").astype(np.uint32)

    def row_at(place: int) -> int:
        epoch, index = divmod(place, rows)
        return int(order_of(epoch)[index])

    return row_at


def _from_threads(reader: RowReader, indices: Callable[[int], list[int]], start_batch: int) -> Iterator[Batch]:
    import grain

    source = grain.MapDataset.range(start_batch, _FOREVER).map(lambda batch: _read(reader, indices(batch)))
    options = grain.ReadOptions(num_threads=_PREFETCH_THREADS, prefetch_buffer_size=_PREFETCH_BATCHES)
    yield from source.to_iter_dataset(options)


def _from_workers(
    reader: RowReader, indices: Callable[[int], list[int]], start_batch: int, workers: int
) -> Iterator[Batch]:
    processes = [ReaderProcess(reader.folder) for _ in range(workers)]
    try:
        for batch in range(start_batch, start_batch + workers * _PREFETCH_BATCHES):
            processes[batch % workers].ask(indices(batch))
        for batch in itertools.count(start_batch):
            yield processes[batch % workers].answer()
            processes[batch % workers].ask(indices(batch + workers * _PREFETCH_BATCHES))
    finally:
        for process in processes:
            process.close()
