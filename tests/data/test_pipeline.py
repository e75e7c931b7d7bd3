import itertools
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from small_data import write_rows

from maskworld.data.pipeline import batches, validation_batches
from maskworld.data.reader_process import ReaderProcess
from maskworld.data.rows import RowReader, RowShape
from maskworld.errors import ConfigError, DataError

ROWS = 22
PINNED_ORDER = [
    *(16, 21, 13, 18, 7, 10, 14, 11, 8, 2, 3, 4, 17, 5, 9, 15, 12, 1, 20, 6, 0, 19),
    *(11, 6, 7, 2, 15, 19, 14, 10, 5, 1, 16, 20, 8, 3, 12, 9, 17, 21, 0, 18, 13, 4),
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline") / "rows"
    write_rows(folder, ROWS, rows_per_shard=9)
    return folder


@pytest.fixture(scope="module")
def index_of(rows):
    """From the tokens of a row to its index."""
    reader = RowReader(rows)
    return {row["tokens"].tobytes(): index for index, row in enumerate(reader.read(range(ROWS)))}


def take(iterator, count):
    try:
        return list(itertools.islice(iterator, count))
    finally:
        iterator.close()


def indices(index_of, batch):
    return [index_of[tokens.tobytes()] for tokens in batch["tokens"]]


def assert_same(left, right):
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_a_batch_has_the_shapes_and_types_of_the_contract(rows):
    (batch,) = take(batches(rows, 4), 1)
    assert {name: (array.shape, array.dtype.name) for name, array in batch.items()} == {
        "tokens": ((4, 64), "int32"),
        "document_ids": ((4, 64), "int32"),
        "positions": ((4, 64), "int32"),
        "targets": ((4, 64), "bool"),
        "target_blocks": ((4, 8), "int32"),
    }


@pytest.mark.parametrize("batch_size", [1, 4, 11, 50])
def test_every_row_appears_once_in_every_epoch_and_epochs_differ(rows, index_of, batch_size):
    count = -(-3 * ROWS // batch_size)
    stream = [index for batch in take(batches(rows, batch_size, seed=3), count) for index in indices(index_of, batch)]
    epochs = [stream[start : start + ROWS] for start in range(0, 3 * ROWS, ROWS)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(ROWS))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_a_data_set_of_one_row_is_repeated(tmp_path):
    write_rows(tmp_path / "rows", 1)
    read = take(batches(tmp_path / "rows", 2), 3)
    assert len({tokens.tobytes() for batch in read for tokens in batch["tokens"]}) == 1


def test_the_order_is_the_same_on_every_machine(rows, index_of):
    """Pinned, because a run that resumes elsewhere must meet the rows that it has not seen yet."""
    stream = [index for batch in take(batches(rows, 11, seed=7), 4) for index in indices(index_of, batch)]
    assert stream == PINNED_ORDER


def test_the_order_depends_on_the_seed_alone(rows, index_of):
    orders = {
        seed: tuple(index for batch in take(batches(rows, 11, seed=seed), 4) for index in indices(index_of, batch))
        for seed in (0, 1, 2, -5, 2**40)
    }
    assert len(set(orders.values())) == len(orders)
    assert all(orders[1][:ROWS] != order[ROWS:] for order in orders.values())
    assert_same(take(batches(rows, 11, seed=1), 4), take(batches(rows, 11, seed=1), 4))


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("start", [0, 1, 7, 40])
def test_resuming_gives_what_the_uninterrupted_run_gives(rows, workers, start):
    whole = take(batches(rows, 4, seed=1), start + 6)
    assert_same(take(batches(rows, 4, seed=1, start_batch=start, workers=workers), 6), whole[start:])


@pytest.mark.parametrize("process_count", [2, 4])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_parts_of_all_hosts_in_order_are_the_global_batch(rows, process_count, workers):
    whole = take(batches(rows, 8, seed=1, start_batch=2), 5)
    parts = [
        take(batches(rows, 8, 1, 2, process_index, process_count, workers), 5) for process_index in range(process_count)
    ]
    joined = [
        {name: np.concatenate([part[name] for part in same_batch]) for name in same_batch[0]}
        for same_batch in zip(*parts, strict=True)
    ]
    assert_same(joined, whole)


def test_validation_reads_every_row_once_in_order_and_fills_the_last_batch(rows, index_of):
    read = list(validation_batches(rows, 8))
    assert [batch["tokens"].shape for batch in read] == [(8, 64)] * 3
    filled = {name: np.concatenate([batch[name] for batch in read]) for name in read[0]}
    assert [index_of[tokens.tobytes()] for tokens in filled["tokens"][:ROWS]] == list(range(ROWS))
    assert not filled["targets"][ROWS:].any() and not filled["document_ids"][ROWS:].any()
    assert (filled["target_blocks"][ROWS:] == -1).all()


def test_validation_parts_of_all_hosts_are_the_whole(rows):
    whole = list(validation_batches(rows, 8))
    parts = [list(validation_batches(rows, 8, process_index, 4)) for process_index in range(4)]
    joined = [
        {name: np.concatenate([part[name] for part in same_batch]) for name in same_batch[0]}
        for same_batch in zip(*parts, strict=True)
    ]
    assert_same(joined, whole)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads the memory of this process from /proc")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_thousand_batches_take_no_more_memory_than_a_hundred(tmp_path, workers):
    write_rows(tmp_path / "rows", 10, RowShape(row_length=2048, target_blocks=8, block_length=8, pad_id=0))
    iterator = batches(tmp_path / "rows", 2, workers=workers)
    for _ in itertools.islice(iterator, 100):
        pass
    before = resident_bytes()
    for _ in itertools.islice(iterator, 1000):
        pass
    grown = resident_bytes() - before
    iterator.close()
    assert grown < 15e6  # a thousand batches are 53 MB


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 8, "process_count": 3}, "training.batch_size: 8 rows cannot be split evenly over 3"),
        ({"batch_size": 0}, "training.batch_size: 0"),
        ({"batch_size": 8, "process_index": 2, "process_count": 2}, "process_index 2"),
        ({"batch_size": 8, "start_batch": -1}, "cannot be negative"),
        ({"batch_size": 8, "workers": -1}, "cannot be negative"),
    ],
)
def test_impossible_splits_are_refused_before_anything_is_read(rows, arguments, message):
    with pytest.raises(ConfigError, match=message):
        batches(rows, **arguments)


def test_rows_that_are_missing_or_empty_are_refused_at_once(tmp_path):
    with pytest.raises(DataError, match="manifest.json: missing"):
        batches(tmp_path / "nothing", 4)
    write_rows(tmp_path / "empty", 0)
    with pytest.raises(DataError, match="holds no rows"):
        batches(tmp_path / "empty", 4)
    assert list(validation_batches(tmp_path / "empty", 4)) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_row_met_on_the_way_is_reported_with_its_file(tmp_path, workers):
    write_rows(tmp_path / "rows", 100)
    (path,) = (tmp_path / "rows").glob("*.array_record")
    content = bytearray(path.read_bytes())
    content[500] ^= 0xFF
    path.write_bytes(content)
    iterator = batches(tmp_path / "rows", 10, workers=workers)
    with pytest.raises(DataError, match=path.name):
        take(iterator, 10)


def test_a_reader_process_that_dies_is_reported_and_does_not_hang(rows):
    process = ReaderProcess(rows)
    process.ask([0, 1])
    assert process.answer()["tokens"].shape == (2, 64)
    os.kill(process._child.pid, signal.SIGKILL)
    process._child.wait()
    process.ask([0])
    with pytest.raises(DataError, match="died"):
        process.answer()
    process.close()


MAIN_WITHOUT_GUARD = """
import sys
from maskworld.data.pipeline import batches
iterator = batches(sys.argv[1], 2, workers=2)
for _ in range(4):  # each worker has answered, so each has opened the rows
    next(iterator)
from maskworld.data.reader_process import ReaderProcess
children = [value for value in __import__("gc").get_objects() if isinstance(value, ReaderProcess)]
for child in children:
    maps = open(f"/proc/{child._child.pid}/maps").read()
    print("jaxlib" in maps, "array_record" in maps)
iterator.close()
print([child._child.returncode for child in children])
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="looks at the libraries that a process has loaded")
def test_reader_processes_load_no_jax_and_end_with_their_iterator(rows, tmp_path):
    script = tmp_path / "experiment.py"
    script.write_text(MAIN_WITHOUT_GUARD)
    result = subprocess.run(
        [sys.executable, script, rows],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.stdout.splitlines() == ["False True", "False True", "[-9, -9]"], result.stdout + result.stderr
