"""The same files in the same pieces, however they are named, and no folder read twice or for ever."""

import gzip
import json
import os
import random
import tracemalloc
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from foreign_records import SAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.build import plan
from maskworld.data.build.plan import InputFile, input_files, units
from maskworld.data.reading.records import Record, read_records
from maskworld.errors import DataError

NOWHERE = Path("/nowhere")


def written(folder, *names, content="{}\n"):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def names(paths, without=NOWHERE):
    return [file.name for file in input_files(paths, without)]


def test_files_are_found_in_folders_in_the_order_of_their_names(tmp_path):
    written(tmp_path, "b.json", "a/z.json", "a/b/c.json", "a.json", ".hidden", ".git/config", "a/.b/c.json")
    expected = ["a/b/c.json", "a/z.json", "a.json", "b.json"]
    assert names([tmp_path]) == expected
    assert names([str(tmp_path)]) == names([tmp_path / "a" / "..", tmp_path]) == expected
    listed = [tmp_path / name for name in expected]
    random.Random(0).shuffle(listed)
    assert names(listed) == names([*listed, tmp_path, *listed]) == expected


def test_a_relative_path_is_the_same(tmp_path, monkeypatch):
    written(tmp_path, "in/a.json", "in/b/c.json")
    monkeypatch.chdir(tmp_path / "in")
    for path in (".", "../in", tmp_path / "in"):
        assert names([path]) == ["a.json", "b/c.json"]
    assert names(["a.json"]) == ["a.json"]


def test_a_hidden_file_that_is_named_is_read(tmp_path):
    written(tmp_path, ".cache/.a.json")
    assert names([tmp_path / ".cache" / ".a.json"]) == [".a.json"]


def test_what_the_build_writes_is_no_input(tmp_path):
    written(tmp_path, "in/a.json", "in/out/train.jsonl", "in/out/.work/units/x", "in/outer.json")
    assert names([tmp_path / "in"], tmp_path / "in" / "out") == ["a.json", "outer.json"]
    (tmp_path / "link").symlink_to(tmp_path / "in" / "out")
    assert names([tmp_path / "in", tmp_path / "link"], tmp_path / "in" / "out") == ["a.json", "outer.json"]
    with pytest.raises(DataError, match="no file in .* but those of the build itself"):
        names([tmp_path / "in" / "out"], tmp_path / "in" / "out")


def test_a_file_with_several_names_is_read_once_and_by_its_own(tmp_path):
    written(tmp_path, "in/m/a.json", "elsewhere/b.json")
    (tmp_path / "in" / "a.json").symlink_to("m/a.json")
    (tmp_path / "in" / "y").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "x.json").symlink_to(tmp_path / "elsewhere" / "b.json")
    expected = ["m/a.json", "x.json"]  # `x.json` comes before `y/b.json`
    assert names([tmp_path / "in"]) == names([tmp_path / "in" / "y", tmp_path / "in"]) == expected
    both = [tmp_path / "elsewhere", tmp_path / "in"]
    assert names(both) == names(both[::-1]) == ["elsewhere/b.json", "in/m/a.json"]


def test_a_link_keeps_the_name_that_says_what_it_is(tmp_path):
    """As in the cache of the Hugging Face Hub, where the files themselves are called by their hashes."""
    written(tmp_path, "blobs/0a1b")
    (tmp_path / "snapshots" / "data").mkdir(parents=True)
    (tmp_path / "snapshots" / "data" / "gpt-4.jsonl").symlink_to("../../blobs/0a1b")
    (file,) = input_files([tmp_path / "snapshots"], NOWHERE)
    assert file.path.name == file.name == "gpt-4.jsonl" and file.bytes == 3


def test_links_that_lead_round_in_circles_end(tmp_path):
    written(tmp_path, "a/x.json", "b/y.json")
    for folder in "ab":
        for number in range(4):
            (tmp_path / folder / f"to_a{number}").symlink_to(tmp_path / "a")
            (tmp_path / folder / f"to_b{number}").symlink_to("../b")
            (tmp_path / folder / f"up{number}").symlink_to("..")
    assert names([tmp_path]) == ["a/x.json", "b/y.json"]
    assert names([tmp_path / "a"]) == ["to_b0/y.json", "x.json"]


def test_what_cannot_be_opened_is_planned_for_and_reported_later(tmp_path):
    written(tmp_path, "a.json")
    (tmp_path / "gone.json").symlink_to("nowhere")
    (tmp_path / "itself.json").symlink_to("itself.json")
    found = input_files([tmp_path], NOWHERE)
    assert [file.name for file in found] == ["a.json", "gone.json", "itself.json"]
    (unit,) = units(found, None)
    assert [part.path.name for part in unit.parts] == ["a.json", "gone.json", "itself.json"]


def test_a_folder_that_may_not_be_entered_is_planned_for_too(tmp_path, monkeypatch):
    written(tmp_path, "a.json", "locked/b.json")
    scan = os.scandir

    def scandir(path):
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert names([tmp_path]) == ["a.json", "locked"]


def test_what_is_no_file_is_passed_over_and_refused_where_it_is_named(tmp_path):
    written(tmp_path, "a.json")
    os.mkfifo(tmp_path / "pipe")
    assert names([tmp_path]) == ["a.json"]
    with pytest.raises(DataError, match="pipe: is neither a file nor a folder"):
        names([tmp_path / "pipe"])
    with pytest.raises(DataError, match="no file or folder .*missing"):
        names([tmp_path, tmp_path / "missing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no file in .*empty"):
        names([tmp_path / "empty"])


def test_a_name_that_is_no_utf8_can_be_written(tmp_path):
    (tmp_path / os.fsdecode(b"\xff.json")).write_text("{}")
    (file,) = input_files([tmp_path], NOWHERE)
    assert file.name.encode("utf-8") == b"\\udcff.json" and file.path.is_file()


def read(planned):
    return [one for unit in planned for part in unit.parts for one in read_records(part, lambda value: True)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["", " ", '{"a": 1}', '{"b": "' + "x" * 30 + '"}', '{"broken', "{}\r"]), min_size=3),
    st.sampled_from([1, 7, 40, 100]),
    st.sampled_from([2, 16, 1 << 20]),
)
def test_pieces_of_a_file_of_lines_are_the_whole_file(tmp_path_factory, lines, size, chunk):
    path = tmp_path_factory.getbasetemp() / "lines.jsonl"
    path.write_text("\n".join(['{"first": 1}', *lines]))
    file = InputFile(path, "lines.jsonl", path.stat().st_size, 0)
    with pytest.MonkeyPatch.context() as patch:
        whole = read(units([file], None))
        patch.setattr(plan, "UNIT_BYTES", size)
        patch.setattr(plan, "_CHUNK", chunk)
        planned = units([file], None)
        assert read(planned) == whole
        parts = [part for unit in planned for part in unit.parts]
        if len(parts) > 1:
            assert [part.start for part in parts] == [0, *(part.end for part in parts[:-1])]
            assert all(unit.bytes >= size for unit in planned[:-1])


def test_a_line_of_any_length_is_cut_into_pieces_in_bounded_memory(tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": "' + b"x" * (60 << 20) + b'"}\n{"c": 1}\n')
    file = InputFile(path, path.name, path.stat().st_size, 0)
    tracemalloc.start()
    planned = units([file], None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [part.first_index for unit in planned for part in unit.parts] == [0, 2] and peak < 8 << 20


def test_row_groups_are_cut_apart_and_rows_keep_their_numbers(tmp_path, monkeypatch):
    path = tmp_path / "rows.parquet"
    table = pyarrow.table({"n": range(100), "text": [f"{n}" * 50 for n in range(100)]})
    pyarrow.parquet.write_table(table, path, row_group_size=10)
    whole = read(units(input_files([path], NOWHERE), None))
    assert whole == [Record(n, {"n": n, "text": f"{n}" * 50}) for n in range(100)]
    monkeypatch.setattr(plan, "UNIT_BYTES", 1500)
    planned = units(input_files([path], NOWHERE), None)
    assert len(planned) > 3 and read(planned) == whole


def test_a_file_whose_records_are_parts_of_trajectories_stays_in_one_piece(tmp_path, monkeypatch):
    lines = (SAMPLES / "wmh_steps" / "steps.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    written(tmp_path, "steps.jsonl", content="\n".join(["{broken", *lines]) * 3)
    flat = [{name: json.dumps(value) for name, value in row.items()} for row in rows * 20]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(flat), tmp_path / "steps.parquet", row_group_size=5)
    monkeypatch.setattr(plan, "UNIT_BYTES", 2000)
    source = plan.detect_source(rows[0], tmp_path)
    assert source.gathered_by
    for named in (source, None):
        parts = [part for unit in units(input_files([tmp_path], NOWHERE), named) for part in unit.parts]
        assert parts[0].path.name == "steps.jsonl" and (parts[0].start, parts[0].end) == (0, None)
        assert named is None or len(parts) == 2


def test_small_files_go_together_and_zipped_ones_count_for_what_they_hold(tmp_path, monkeypatch):
    written(tmp_path, *(f"{number}.json" for number in range(9)), content="x" * 100)
    (tmp_path / "z.gz").write_bytes(gzip.compress(random.Random(0).randbytes(900)))
    monkeypatch.setattr(plan, "UNIT_BYTES", 450)
    planned = units(input_files([tmp_path], NOWHERE), None)
    assert [len(unit.parts) for unit in planned] == [4, 4, 1, 1]
    assert [unit.number for unit in planned] == [0, 1, 2, 3] and planned[-1].bytes > 4500
