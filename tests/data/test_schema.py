"""What the schema takes and refuses, and that files lose no row unnoticed."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskworld.data.schema import SCHEMA, SchemaError, Step, Trajectory, trajectory_from_json, trajectory_to_json
from maskworld.data.trajectories import ReadReport, read_trajectories, write_trajectories
from maskworld.errors import DataError, StorageError


def make(name: str = "a", **changes) -> Trajectory:
    step = Step("open fridge 1", "You open the fridge 1.", 0.5, True, ("opened(fridge 1)",), ("closed(fridge 1)",))
    full = Trajectory(
        id=name,
        environment="test",
        initial_state="fridge 1 (closed): egg 1",
        task_context="put a cool egg in fridge.",
        steps=(Step("look", "You see nothing."), step),
        initial_observation="You are in a room.",
        tool_schemas=("look",),
        domain_rules=("Doors stick.",),
        directives=("Be brief.",),
        group="room-1",
        player="expert",
        metadata={"seed": 1, "nested": {"list": [1, 2.5, None, True, "x"]}},
    )
    return replace(full, **changes)


def row(**changes) -> dict:
    return json.loads(trajectory_to_json(make())) | changes


def without(name: str) -> dict:
    return {key: value for key, value in row().items() if key != name}


def with_step(**changes) -> dict:
    steps = row()["steps"]
    steps[1] |= changes
    return row(steps=steps)


TEXTS = st.text(max_size=20)
WORDS = TEXTS.filter(str.strip)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
TUPLES = st.lists(TEXTS, max_size=3).map(tuple)
STEPS = st.builds(
    Step,
    action=WORDS,
    observation=TEXTS,
    reward=st.floats(allow_nan=False, allow_infinity=False),
    done=st.booleans(),
    facts_added=TUPLES,
    facts_deleted=TUPLES,
)
TRAJECTORIES = st.builds(
    Trajectory,
    id=WORDS,
    environment=WORDS,
    initial_state=TEXTS,
    task_context=TEXTS,
    steps=st.lists(STEPS, min_size=1, max_size=3).map(tuple),
    initial_observation=TEXTS,
    tool_schemas=TUPLES,
    domain_rules=TUPLES,
    directives=TUPLES,
    group=TEXTS,
    player=TEXTS,
    metadata=st.dictionaries(TEXTS, JSON, max_size=3),
)


@given(TRAJECTORIES)
def test_every_trajectory_survives_the_way_through_json(trajectory: Trajectory):
    line = trajectory_to_json(trajectory)
    assert "\n" not in line
    assert trajectory_from_json(line) == trajectory


def test_a_line_carries_the_schema_and_leaves_defaults_out():
    line = json.loads(trajectory_to_json(Trajectory("a", "e", "s", "t", (Step("look", ""),))))
    assert line == {
        "schema": SCHEMA,
        "id": "a",
        "environment": "e",
        "initial_state": "s",
        "task_context": "t",
        "steps": [{"action": "look", "observation": ""}],
    }


BAD_ROWS = {
    "history without a step after it": (row(history_steps=len(make().steps)), "history_steps", "must leave a step"),
    "negative history": (row(history_steps=-1), "history_steps", "cannot be negative"),
    "history that is no number": (row(history_steps=True), "history_steps", "must be a whole number"),
    "missing schema": (without("schema"), "schema", "is missing"),
    "other schema": (row(schema="maskworld.trajectory/9"), "schema", "maskworld.trajectory/1"),
    "missing member": (without("task_context"), "task_context", "is missing"),
    "missing steps": (without("steps"), "steps", "is missing"),
    "no steps": (row(steps=[]), "steps", "at least one"),
    "misspelt member": (row(directive=["x"]), "directive", "did you mean directives"),
    "unknown member": (row(zzz=1), "zzz", "metadata"),
    "empty id": (row(id=""), "id", "empty"),
    "number for text": (row(initial_state=3), "initial_state", "must be a string, is a number"),
    "null for text": (row(group=None), "group", "must be a string, is null"),
    "text for list": (row(directives="x"), "directives", "must be an array, is a string"),
    "number in list": (row(tool_schemas=["a", 1]), "tool_schemas[1]", "must be a string"),
    "list for metadata": (row(metadata=[]), "metadata", "must be an object"),
    "nan in metadata": (row(metadata={"a": [float("nan")]}), "metadata.a[0]", "finite"),
    "half a surrogate": (row(task_context="\ud800"), "task_context", "surrogate"),
    "step is text": (row(steps=["look"]), "steps[0]", "must be an object"),
    "empty action": (with_step(action=" "), "steps[1].action", "empty"),
    "missing observation": (row(steps=[{"action": "look"}]), "steps[0].observation", "is missing"),
    "nan reward": (with_step(reward=float("nan")), "steps[1].reward", "finite"),
    "infinite reward": (with_step(reward=float("inf")), "steps[1].reward", "finite"),
    "huge reward": (with_step(reward=10**400), "steps[1].reward", "too large"),
    "true as reward": (with_step(reward=True), "steps[1].reward", "must be a number, is a boolean"),
    "number as done": (with_step(done=1), "steps[1].done", "must be true or false"),
    "fact is a list": (with_step(facts_added=[["x"]]), "steps[1].facts_added[0]", "must be a string"),
    "unknown step member": (with_step(obs="x"), "steps[1].obs", "no member"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_row_that_breaks_the_schema_is_refused_by_field_and_reason(name: str):
    bad, field, reason = BAD_ROWS[name]
    with pytest.raises(SchemaError) as caught:
        trajectory_from_json(json.dumps(bad))
    assert caught.value.field == field
    assert reason in caught.value.reason


BAD_TEXTS = {
    "cut off": (trajectory_to_json(make())[:-5], "", "no JSON"),
    "empty": ("", "", "no JSON"),
    "a list": ("[1]", "", "must be an object, is an array"),
    "a number": ("7", "", "must be an object, is a number"),
    "two rows in one line": (trajectory_to_json(make()) * 2, "", "no JSON"),
    "deep": ("[" * 100_000, "", "too deeply"),
    "many digits": ('{"id": ' + "9" * 5000 + "}", "", "digits"),
    "member twice": ('{"id": "a", "id": "b"}', "id", "twice"),
}


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_text_that_is_no_row_is_refused(name: str):
    text, field, reason = BAD_TEXTS[name]
    with pytest.raises(SchemaError) as caught:
        trajectory_from_json(text)
    assert caught.value.field == field
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    "bad", [make(id=""), make(steps=()), make(metadata={"a": (1,)}), make(metadata={1: "a"}), make(group="\udcff")]
)
def test_what_could_not_be_read_back_is_not_written(bad: Trajectory, tmp_path: Path):
    with pytest.raises(SchemaError):
        write_trajectories(tmp_path / "x.jsonl", [make(), bad])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_files_give_back_what_was_written(suffix: str, tmp_path: Path):
    rows = [make("a"), make("b", task_context="Zeile\nzwei \u2028 \U0001f600")]
    path = tmp_path / f"rows{suffix}"
    assert write_trajectories(path, rows) == 2
    report = ReadReport()
    assert list(read_trajectories(path, report=report)) == rows
    assert (report.rows, report.rejected) == (2, 0)


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst"])
def test_equal_rows_give_equal_compressed_files(suffix: str, tmp_path: Path):
    for name in ("one", "two"):
        write_trajectories(tmp_path / f"{name}{suffix}", [make("a"), make("b")] * 50)
    content = (tmp_path / f"one{suffix}").read_bytes()
    assert content == (tmp_path / f"two{suffix}").read_bytes()
    assert len(content) < 50 * len(trajectory_to_json(make("a")))


def test_a_bad_row_is_set_aside_with_its_place_and_the_rows_after_it_are_read(tmp_path: Path):
    good = [make("a"), make("b")]
    broken = json.dumps(with_step(reward=float("nan")))
    lines = [trajectory_to_json(good[0]), "", broken, '{"id": 1', trajectory_to_json(good[1])]
    path, rejected, report = tmp_path / "rows.jsonl", tmp_path / "run" / "rejected.jsonl", ReadReport()
    path.write_text("\n".join(lines), encoding="utf-8")
    assert list(read_trajectories([path], rejected, report)) == good
    assert (report.rows, report.rejected) == (2, 2)
    entries = [json.loads(line) for line in rejected.read_text().splitlines()]
    assert entries[0] == {
        "file": str(path),
        "line": 3,
        "field": "steps[1].reward",
        "reason": "must be finite, is nan",
        "row": broken,
    }
    assert (entries[1]["line"], entries[1]["row"]) == (4, '{"id": 1')
    assert "2 rejected" in report.summary()
    assert report.reasons["steps.reward: must be finite, is nan"] == 1


def test_bytes_that_are_no_utf8_are_set_aside_readably(tmp_path: Path):
    path, rejected = tmp_path / "rows.jsonl", tmp_path / "rejected.jsonl"
    path.write_bytes(b'{"id": "\xff"}\n' + trajectory_to_json(make()).encode() + b"\n")
    assert list(read_trajectories(path, rejected)) == [make()]
    entry = json.loads(rejected.read_text())
    assert entry["line"] == 1
    assert "UTF-8" in entry["reason"]
    assert entry["row"] == '{"id": "\\xff"}'


def test_without_a_place_to_set_rows_aside_the_first_bad_one_is_an_error(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text(trajectory_to_json(make()) + "\n[]\n", encoding="utf-8")
    reading = read_trajectories(path)
    assert next(reading) == make()
    with pytest.raises(DataError, match=r"rows\.jsonl, line 2, row: must be an object"):
        next(reading)


def many(count: int = 3000) -> list[Trajectory]:
    return [make(f"{index}-{index * 7919 % 1009}") for index in range(count)]


@pytest.mark.parametrize("damage", ["cut", "flipped", "checksum"])
def test_whole_rows_before_a_damaged_place_in_gzip_are_kept_and_the_damage_is_reported(damage: str, tmp_path: Path):
    rows, after = many(), tmp_path / "after.jsonl"
    path, rejected, report = tmp_path / "rows.jsonl.gz", tmp_path / "rejected.jsonl", ReadReport()
    write_trajectories(path, rows)
    write_trajectories(after, [make("after")])
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[: len(data) * 2 // 3]
    elif damage == "flipped":
        data[len(data) * 2 // 3] ^= 0xFF
    else:
        data[-8] ^= 0xFF
    path.write_bytes(data)
    found = list(read_trajectories([path, after], rejected, report))
    assert found[-1] == make("after")
    assert len(rows) // 3 < len(found) - 1 <= len(rows)
    assert report.rejected >= 1
    assert "gzip stream is" in json.loads(rejected.read_text().splitlines()[-1])["reason"]
    if damage != "flipped":  # after a flip, garbage that unzips may come before the place where it is noticed
        assert found[:-1] == rows[: len(found) - 1]
        assert report.rejected == 1


def zstd_frames(rows: list[Trajectory], size: int) -> list[bytes]:
    """`rows` as zstd frames of `size` rows each."""
    texts = (
        b"".join(trajectory_to_json(row).encode() + b"\n" for row in rows[start : start + size])
        for start in range(0, len(rows), size)
    )
    codec = pyarrow.Codec("zstd")
    return [codec.compress(text, asbytes=True) for text in texts]


@pytest.mark.parametrize(
    "damage",
    [
        lambda frame: frame[: len(frame) // 2],
        lambda frame: frame[:-1],
        lambda frame: frame[:1],
        lambda frame: b"\0" + frame[1:],
        lambda frame: b"this is no zstd frame",
    ],
)
@pytest.mark.parametrize("whole", [0, 1, 25])
def test_all_rows_before_a_damaged_place_in_zstd_are_kept_and_the_damage_is_reported(damage, whole, tmp_path: Path):
    rows, after = many(30 * 100), tmp_path / "after.jsonl"
    path, rejected, report = tmp_path / "rows.jsonl.zst", tmp_path / "rejected.jsonl", ReadReport()
    frames = zstd_frames(rows, 100)
    path.write_bytes(b"".join((*frames[:whole], damage(frames[whole]))))
    write_trajectories(after, [make("after")])
    found = list(read_trajectories([path, after], rejected, report))
    assert found == [*rows[: whole * 100], make("after")]
    assert report.rejected == 1
    assert "zstd stream is" in json.loads(rejected.read_text().splitlines()[-1])["reason"]


def test_a_zstd_stream_of_one_frame_that_is_cut_off_keeps_its_whole_blocks(tmp_path: Path):
    rows = [make(hashlib.sha256(str(index).encode()).hexdigest() * 4) for index in range(5000)]
    path, report = tmp_path / "rows.jsonl.zst", ReadReport()
    write_trajectories(path, rows)
    path.write_bytes(path.read_bytes()[:-100])
    found = list(read_trajectories(path, tmp_path / "rejected.jsonl", report))
    assert found == rows[: len(found)] and report.rejected == 1
    lost = sum(len(trajectory_to_json(row)) + 1 for row in rows[len(found) :])
    assert lost < 2 * 128 * 1024  # a block holds at most 128 KiB


def test_several_zstd_frames_are_read_as_one_file_and_none_is_damage(tmp_path: Path):
    path, report = tmp_path / "rows.jsonl.zst", ReadReport()
    path.write_bytes(b"".join(zstd_frames(many(50), 7)))
    assert list(read_trajectories(path)) == many(50)
    path.write_bytes(b"")
    assert list(read_trajectories(path, tmp_path / "rejected.jsonl", report)) == []
    assert list(report.reasons) == ["row: the zstd stream is cut off"]


def test_several_gzip_members_are_read_as_one_file(tmp_path: Path):
    path = tmp_path / "rows.jsonl.gz"
    rows = many(5)
    path.write_bytes(b"".join(gzip.compress(trajectory_to_json(row).encode() + b"\n") for row in rows))
    assert list(read_trajectories(path)) == rows


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    for ending in (b"\n", b"\r\n", b""):
        path.write_bytes(b"\xef\xbb\xbf" + trajectory_to_json(make()).encode() + ending)
        assert list(read_trajectories(path)) == [make()]


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(DataError, match="nowhere.jsonl"):
        list(read_trajectories(tmp_path / "nowhere.jsonl"))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        write_trajectories(tmp_path / "file" / "rows.jsonl", [make()])
