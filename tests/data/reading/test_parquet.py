"""Rows of Parquet files: columns without type, unions padded with nulls, what JSON has no form for, and damage."""

import datetime
import decimal
import math
import os
import random
import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from maskworld.data.reading.parquet import row_groups
from maskworld.data.reading.records import Damage, Part, Record, read_records


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.parquet"


def read(path, table=None, part=None, **options):
    if table is not None:
        pyarrow.parquet.write_table(table, path, **options)
    return list(read_records(part or Part(path), lambda value: False))


def values(found):
    return [one.value for one in found if isinstance(one, Record)]


def broken_text(count, at):
    """A column of texts of which one is no UTF-8."""
    texts = [f"text {row}".encode() for row in range(count)]
    texts[at] = b"\xff\xfe"
    return pyarrow.array(texts, pyarrow.binary()).view(pyarrow.string())


def test_a_column_without_type_is_null_in_every_row(path):
    assert values(read(path, pyarrow.table({"a": pyarrow.nulls(2), "b": [1, 2]}))) == [
        {"a": None, "b": 1},
        {"a": None, "b": 2},
    ]


def test_a_union_comes_with_the_nulls_that_pad_it(path):
    messages = [
        [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": None}]}],
        [{"role": "tool", "content": None, "id": "1"}],
    ]
    found = values(read(path, pyarrow.table({"messages": messages})))
    assert found[0]["messages"][0] == {"role": "user", "content": "hi", "tool_calls": None, "id": None}
    assert found[1]["messages"] == [{"role": "tool", "content": None, "tool_calls": None, "id": "1"}]


@pytest.mark.parametrize("table", [pyarrow.table({"a": pyarrow.array([], pyarrow.string())}), pyarrow.table({})])
def test_a_file_without_rows_gives_nothing(path, table):
    assert read(path, table) == []
    with pyarrow.parquet.ParquetWriter(path, table.schema):
        pass
    assert row_groups(path) == [] and read(path) == []


def test_row_groups_can_be_read_one_by_one_and_number_their_rows_through(path):
    table = pyarrow.table({"n": range(10)})
    everything = read(path, table, row_group_size=3)
    assert [rows for rows, _ in row_groups(path)] == [3, 3, 3, 1]
    assert everything == [Record(n, {"n": n}) for n in range(10)]
    assert [*read(path, part=Part(path, 0, 2)), *read(path, part=Part(path, 2, None, 6))] == everything


def test_what_json_has_no_form_for_becomes_text(path):
    day = datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
    table = pyarrow.table(
        {
            "decimal": [decimal.Decimal("1.50")],
            "time": [day],
            "day": [day.date()],
            "length": [datetime.timedelta(days=1)],
            "bytes": [b"\x00\xff"],
            "half": np.array([1.5], np.float16),
            "choice": pyarrow.array(["a"]).dictionary_encode(),
            "map": pyarrow.array([[("a", 1), ("b", 2)]], pyarrow.map_(pyarrow.string(), pyarrow.int32())),
            "numbers": [[float("nan"), float("inf")]],
        }
    )
    ((found),) = values(read(path, table))
    assert math.isnan(found["numbers"][0]) and found.pop("numbers")[1] == math.inf
    assert found == {
        "decimal": "1.50",
        "time": "2024-05-06T07:08:09+00:00",
        "day": "2024-05-06",
        "length": "1 day, 0:00:00",
        "bytes": "[attachment]",
        "half": 1.5,
        "choice": "a",
        "map": {"a": 1, "b": 2},
    }


@pytest.mark.parametrize("kind", [pyarrow.timestamp("us"), pyarrow.timestamp("us", "No/Where"), pyarrow.time64("ns")])
def test_a_time_that_no_calendar_holds_does_not_cost_the_row(path, kind):
    table = pyarrow.table({"at": pyarrow.array([2**62, 0], pyarrow.int64()).view(kind), "n": [1, 2]})
    assert [row["n"] for row in values(read(path, table))] == [1, 2]


def test_text_that_is_no_utf8_costs_its_row_alone(path):
    found = read(path, pyarrow.table({"text": broken_text(50, 30), "n": range(50)}), row_group_size=20)
    assert [row["n"] for row in values(found)] == [n for n in range(50) if n != 30]
    assert [one for one in found if isinstance(one, Damage)] == [
        Damage(30, "", "no UTF-8 at byte 0 of a text (0xff)", "")
    ]


def test_names_that_occur_twice_cost_the_rows_that_have_them(path):
    one, two = pyarrow.array([1]), pyarrow.array([2])
    (found,) = read(path, pyarrow.table([one, two], names=["a", "a"]))
    assert isinstance(found, Damage) and "column a occurs twice" in found.reason
    inner = pyarrow.StructArray.from_arrays([one, two], names=["a", "a"])
    (found,) = read(path, pyarrow.table({"inner": inner}))
    assert isinstance(found, Damage) and "duplicate" in found.reason
    maps = pyarrow.array([[("a", 1), ("a", 2)], [("b", 3)]], pyarrow.map_(pyarrow.string(), pyarrow.int32()))
    twice, sound = read(path, pyarrow.table({"map": maps}))
    assert isinstance(twice, Damage) and sound.value == {"map": {"b": 3}}


def test_a_file_that_is_cut_off_is_one_damage(path):
    read(path, pyarrow.table({"n": range(10)}))
    whole = path.read_bytes()
    for end in (4, 9, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        (found,) = read(path)
        assert found.reason.startswith("the Parquet file cannot be read") and row_groups(path) == []


def test_a_damaged_row_group_costs_no_other(path):
    table = pyarrow.table({"text": [f"{n} " * 300 for n in range(30)]})
    read(path, table, row_group_size=10, compression="zstd", use_dictionary=False)
    content = bytearray(path.read_bytes())
    with pyarrow.parquet.ParquetFile(path) as file:
        start = file.metadata.row_group(1).column(0).data_page_offset
        size = file.metadata.row_group(1).column(0).total_compressed_size
    content[start + size // 2 : start + size] = b"\xff" * (size - size // 2)
    path.write_bytes(content)
    found = read(path)
    assert [one.index for one in found] == list(range(30))
    assert [one.index for one in found if isinstance(one, Damage)] == list(range(10, 20))


@pytest.mark.parametrize("seed", range(2))
def test_bytes_changed_anywhere_end_in_rows_or_damage(path, seed):
    chance = random.Random(seed)
    rows = [[{"role": "user", "content": "x" * (n % 50)}] * (n % 4) for n in range(60)]
    read(path, pyarrow.table({"id": [f"r{n}" for n in range(60)], "m": rows}), row_group_size=20)
    whole = path.read_bytes()
    for _ in range(25):
        content = bytearray(whole)
        for _ in range(chance.choice([1, 1, 2, 5])):
            content[chance.randrange(4, len(whole))] = chance.randrange(256)
        path.write_bytes(content)
        row_groups(path)
        assert read(path)


def test_a_row_group_far_larger_than_its_file_is_read_in_bounded_memory(path):
    large = pyarrow.array(["x" * (256 << 10)] * 300)
    pyarrow.parquet.write_table(pyarrow.table({"text": large}), path)
    del large
    assert path.stat().st_size < 1 << 20
    script = (
        "import pyarrow, sys; from pathlib import Path; from maskworld.data.reading.records import Part, read_records\n"
        "rows = sum(1 for _ in read_records(Part(Path(sys.argv[1])), lambda value: False))\n"
        "print(rows, pyarrow.default_memory_pool().max_memory() >> 20)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment, check=True)
    rows, mebibytes = map(int, done.stdout.split())
    assert rows == 300 and mebibytes < 45
