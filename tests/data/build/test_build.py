"""A build of hostile files: every good row comes out once, every other has its reason, and equal input equal bytes."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pyarrow
import pyarrow.parquet
import pytest
from dumps import contents, hostile_files, lines, session, sessions, start
from foreign_records import SAMPLES

from maskworld import cli
from maskworld.data.build import convert, plan
from maskworld.data.build.build import build
from maskworld.data.build.config import BuildConfig
from maskworld.data.sources.registry import SOURCES
from maskworld.data.trajectories import read_trajectories
from maskworld.errors import DataError


def run(paths, out, source="", **settings):
    said: list[str] = []
    defaults = {"workers": 1, "longest_record": 2, "test_share": 0.2, "validation_share": 0.2}
    manifest = build(paths, out, source, BuildConfig(**defaults | settings), said.append)
    return manifest, "\n".join(said)


def rejected(out):
    return [json.loads(line) for line in (out / "rejected.jsonl").read_text(encoding="utf-8").splitlines()]


def trajectories(out):
    return [one for path in sorted(out.glob("*.jsonl.gz")) for one in read_trajectories(path)]


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dump")
    return folder, hostile_files(folder)


@pytest.fixture(scope="module")
def built(dump, tmp_path_factory):
    out = tmp_path_factory.mktemp("built") / "out"
    return out, *run([dump[0]], out)


def test_every_good_row_of_a_hostile_folder_comes_out_once(dump, built):
    out, manifest, _ = built
    found = Counter(one.task_context.removeprefix("buy thing ") for one in trajectories(out))
    assert found == Counter(str(number) for good, _ in dump[1].values() for number in good)
    assert manifest["rows"]["out"] == found.total()


def test_every_other_row_of_it_has_its_place_and_reason(dump, built):
    out, manifest, said = built
    rows = rejected(out)
    for name, (_, reasons) in dump[1].items():
        told = [row["reason"] for row in rows if row["file"] == name]
        assert len(told) == len(reasons), (name, told)
        assert all(reason in one for reason, one in zip(reasons, told, strict=True)), (name, told)
    assert manifest["rows"]["in"] == manifest["rows"]["out"] + len(rows)
    assert Counter(row["kind"] for row in rows) == manifest["rows"]["rejected"]
    assert manifest["inputs"]["files"] == len(dump[1]) and manifest["inputs"]["without_rows"] == 3
    assert (
        f"{manifest['rows']['in']} rows in = {manifest['rows']['out']} trajectories out + {len(rows)} rejected" in said
    )


def test_rejected_rows_of_one_fault_are_one_kind(tmp_path):
    faults = [b'{"a": ' + b"9" * digits + b"}\n" for digits in (5000, 6000)]
    faults += [b'{"a": %s}\n' % (b'"' + b"x" * size + b'"') for size in (2 << 20, 3 << 20)]
    faults += [b'{"a": "%s\xff"}\n' % (b"x" * size) for size in (1, 2)] + [b'{"a": %sx}\n' % (b" " * n) for n in (1, 2)]
    (tmp_path / "lines.jsonl").write_bytes(b"".join(faults) + lines(sessions(0, 1)))
    (tmp_path / "array.json").write_bytes(b"[" + b",".join(faults[4:]) + b"," + lines(sessions(1, 1)) + b"]")
    manifest, _ = run([tmp_path / "lines.jsonl", tmp_path / "array.json"], tmp_path / "out")
    assert sorted(manifest["rows"]["rejected"].values()) == [2, 2, 4, 4], manifest["rows"]["rejected"]


def test_the_index_names_each_trajectory_as_its_file_does(built):
    index = pyarrow.parquet.read_table(built[0] / "index.parquet").to_pylist()
    assert [row["id"] for row in index] == [
        one.id for name in dict.fromkeys(row["file"] for row in index) for one in read_trajectories(built[0] / name)
    ]
    assert all(row["file"].startswith(row["split"]) for row in index)


def test_equal_ids_are_told_apart_also_in_the_index(tmp_path):
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
        changed = [session(number, pages=2 + (folder == "c")) for number in range(3)]
        (tmp_path / folder / "same.jsonl").write_bytes(lines(changed))
    run([tmp_path], tmp_path / "out", keep_duplicates=True, validation_share=0, test_share=0)
    ids = [one.id for one in trajectories(tmp_path / "out")]
    index = pyarrow.parquet.read_table(tmp_path / "out" / "index.parquet").column("id").to_pylist()
    assert len(set(ids)) == 9 and index == ids
    assert len({name.partition("#")[0] for name in ids}) == 3


@pytest.fixture(scope="module")
def small_pieces(tmp_path_factory):
    """A dump of several pieces, and the bytes of its build."""
    folder = tmp_path_factory.mktemp("small")
    for number in range(6):
        (folder / f"{number}").mkdir()
        content = lines([*sessions(10 * number, 10), session(10 * number + 3), {"a": number}])
        (folder / f"{number}" / "sessions.jsonl").write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "UNIT_BYTES", 3000)
        run([folder], tmp_path_factory.mktemp("built") / "out", shard_rows=7)
    return folder, contents(tmp_path_factory.getbasetemp() / "built1" / "out")


def test_any_order_of_paths_gives_the_same_bytes(small_pieces, tmp_path, monkeypatch):
    folder, expected = small_pieces
    monkeypatch.setattr(plan, "UNIT_BYTES", 3000)
    files = sorted(folder.rglob("*.jsonl"))
    assert len(plan.units(plan.input_files(files, tmp_path), None)) > 6
    for number in range(3):
        given = [*files, *files[:2], folder / "4"]
        random.Random(number).shuffle(given)
        run(given, tmp_path / f"out{number}", shard_rows=7)
        assert contents(tmp_path / f"out{number}") == expected
    monkeypatch.setattr(plan, "UNIT_BYTES", 16 << 20)
    run([folder], tmp_path / "one piece", shard_rows=7)
    assert contents(tmp_path / "one piece") == expected


def test_any_number_of_workers_gives_the_same_bytes(small_pieces, tmp_path, monkeypatch):
    folder, expected = small_pieces
    monkeypatch.setattr(plan, "UNIT_BYTES", 3000)
    run([folder], tmp_path / "out", shard_rows=7, workers=4)  # two: see test_build_kill.py
    assert contents(tmp_path / "out") == expected


def test_a_fault_of_a_source_costs_its_record_alone(tmp_path, monkeypatch):
    webshop = SOURCES["webshop"]

    def failing(record, origin):
        if record["item_id"] == "webshop_3":
            raise KeyError("\ud800 a bug")
        if record["item_id"] == "webshop_4":
            raise RecursionError
        yield from webshop.trajectories(record, origin)

    monkeypatch.setitem(SOURCES, "webshop", replace(webshop, trajectories=failing))
    (tmp_path / "a.jsonl").write_bytes(lines(sessions(0, 6)))
    manifest, _ = run([tmp_path / "a.jsonl"], tmp_path / "out")
    assert manifest["rows"]["out"] == 4
    assert [(row["row"], row["reason"][:27]) for row in rejected(tmp_path / "out")] == [
        (3, "the source failed (KeyError"),
        (4, "the source failed (Recursio"),
    ]


def test_a_fault_behind_the_source_costs_its_trajectory_alone(tmp_path, monkeypatch):
    webshop = SOURCES["webshop"]

    def twice(record, origin):
        for one in webshop.trajectories(record, origin):
            steps = [replace(step, action=f"{step.action} again") for step in one.steps]
            yield from (replace(one, id=""), one, replace(one, id="\ud800"), replace(one, steps=tuple(steps)))

    monkeypatch.setitem(SOURCES, "webshop", replace(webshop, trajectories=twice))
    grounding = convert.grounding

    def failing(trajectory):
        return 1 / 0 if "thing 2 page 0] again" in trajectory.steps[0].action else grounding(trajectory)

    monkeypatch.setattr(convert, "grounding", failing)
    (tmp_path / "a.jsonl").write_bytes(lines(sessions(0, 4)))
    manifest, _ = run([tmp_path / "a.jsonl"], tmp_path / "out")
    assert (manifest["rows"]["in"], manifest["rows"]["out"]) == (16, 7)
    assert [row["row"] for row in rejected(tmp_path / "out") if "ZeroDivisionError" in row["reason"]] == [2]


def test_a_record_that_a_source_cannot_even_look_at_costs_no_other(tmp_path, monkeypatch):
    webshop = SOURCES["webshop"]
    matches = replace(webshop, matches=lambda record, path: webshop.matches(record, path) or 1 / record["zero"])
    monkeypatch.setitem(SOURCES, "webshop", matches)
    (tmp_path / "a.jsonl").write_bytes(lines([*sessions(0, 2), {"zero": 0}, {}, *sessions(2, 2)]))
    (tmp_path / "b.json").write_text(json.dumps([{"zero": 0}, *sessions(4, 2)]))
    manifest, _ = run([tmp_path / "a.jsonl", tmp_path / "b.json"], tmp_path / "out")
    assert manifest["rows"]["out"] == 6
    assert [row["reason"].partition(" (")[2] for row in rejected(tmp_path / "out")] == [
        "ZeroDivisionError: division by zero)",
        "KeyError: 'zero')",
        "ZeroDivisionError: division by zero)",
    ]


def test_what_was_read_before_a_device_failed_is_kept(tmp_path, monkeypatch):
    """Steps of a trace wait for those that follow; what waits when reading ends is no less a trajectory."""
    read = convert.read_records

    def failing(*given):
        yield from read(*given)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(convert, "read_records", failing)
    manifest, _ = run([SAMPLES / "wmh_steps" / "steps.jsonl"], tmp_path / "out", keep_duplicates=True)
    assert manifest["rows"]["out"] > 0
    assert rejected(tmp_path / "out")[0]["reason"] == "the file cannot be read (Input/output error)"
    monkeypatch.undo()
    undisturbed, _ = run([SAMPLES / "wmh_steps" / "steps.jsonl"], tmp_path / "whole", keep_duplicates=True)
    assert undisturbed["rows"]["out"] == manifest["rows"]["out"]


def test_rows_that_each_teach_one_step_of_an_episode_all_stay(tmp_path, monkeypatch):
    """As in the released world-model corpus: each holds the steps before its own, which it only shows."""
    webshop = SOURCES["webshop"]

    def step_by_step(record, origin):
        for one in webshop.trajectories(record, origin):
            for end in range(1, len(one.steps) + 1):
                yield replace(one, steps=one.steps[:end], history_steps=end - 1)

    monkeypatch.setitem(SOURCES, "webshop", replace(webshop, trajectories=step_by_step))
    (tmp_path / "a.jsonl").write_bytes(lines([session(1, pages=60)]))
    manifest, _ = run([tmp_path / "a.jsonl"], tmp_path / "out")
    assert manifest["rows"]["out"] == 60
    assert len({one.group for one in trajectories(tmp_path / "out")}) == 1


def refused(words, capsys):
    """The message of a command that must leave with 2."""
    assert cli.main(["data", "build", *map(str, words)]) == 2
    return capsys.readouterr().err


@pytest.fixture
def small(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(lines(sessions(0, 12)))
    return tmp_path / "in.jsonl"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--source", "web_shop"], "did you mean webshop?"),
        (["--tset_share", "0.1"], "--tset_share; nearest known key: --test_share"),
        (["--test_share", "2"], "--test_share: must be at least 0 and below 1"),
        (["--test_share", "nan"], "--test_share: must be"),
        (["--near_duplicates", "nan"], "--near_duplicates: must be"),
        (["--test_share", "0.5", "--validation_share", "0.5"], "leave nothing to train on"),
        (["--caps", "webshop"], "--caps: 'webshop' is no NAME=NUMBER"),
        (["--caps", "webshop=1,webshop=2"], "--caps: webshop occurs twice"),
        (["--workers", "-1"], "--workers: cannot be negative"),
        (["--directives", "some"], "--directives"),
        (["--sourec", "webshop"], "did you mean --source?"),
        (["nowhere.jsonl"], "no file or folder nowhere.jsonl"),
    ],
)
def test_wrong_options_are_refused_by_name_before_anything_is_written(small, tmp_path, capsys, words, message):
    assert message in refused([small, "--out", tmp_path / "out", *words], capsys)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_things_in_it_is_left_alone(small, tmp_path, capsys):
    for name in ("file", "folder/file", "recorded/manifest.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    for name, message in (
        ("file", "is a file"),
        ("folder", "holds something other than a build"),
        ("recorded", "is no manifest of a build"),
        (".", "no file in"),
    ):
        assert message in refused([small, "--out", tmp_path / name], capsys)
    assert "choose another folder" in refused([small, "--out", "/"], capsys)
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "file").read_text() == "{}"
    assert sorted(path.name for path in tmp_path.glob("*")) == [
        ".file.lock", ".folder.lock", ".recorded.lock", "file", "folder", "in.jsonl", "recorded",
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", [["--caps", "nosuch=1"], ["--out_of_distribution", "nosuch"]])
def test_a_name_that_only_the_data_can_refuse_costs_no_conversion(small, tmp_path, capsys, monkeypatch, wrong):
    words = [small, "--out", tmp_path / "out", "--workers", "1"]
    assert "nothing" in refused([*words, *wrong], capsys)
    monkeypatch.setattr("maskworld.data.build.units._write_unit", None)  # would be called to convert again
    assert cli.main(["data", "build", *map(str, words), "--caps", "webshop=5"]) == 0
    said = capsys.readouterr().out
    assert "1 of 1 pieces are already converted" in said and "7x: over the cap of its source" in said


def test_other_files_or_settings_of_conversion_do_not_mix_with_what_is_there(small, tmp_path, capsys):
    words = [small, "--out", tmp_path / "out", "--workers", "1"]
    refused([*words, "--caps", "nosuch=1"], capsys)
    before = contents(tmp_path / "out")
    message = refused([*words, "--longest_observation", "7", "--seed", "3"], capsys)
    assert "unfinished build of other longest_observation and seed" in message
    (tmp_path / "more.jsonl").write_bytes(b"")
    assert "unfinished build of other files" in refused([*words, tmp_path / "more.jsonl"], capsys)
    assert contents(tmp_path / "out") == before
    assert cli.main(["data", "build", *map(str, words)]) == 0
    message = refused([*words, "--caps", "webshop=1"], capsys)
    assert "holds a finished build, but its files are others, or the settings are" in message


def test_a_finished_build_is_taken_as_it_is_until_a_file_changes(small, tmp_path, capsys):
    words = ["data", "build", str(small), "--out", str(tmp_path / "out"), "--workers", "1"]
    assert cli.main(words) == 0
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert cli.main(words) == 0
    assert "already built" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == stamps
    small.write_bytes(small.read_bytes().replace(b"thing 0", b"thing X"))
    assert "changed since (in.jsonl)" in refused(words[2:], capsys)


@pytest.mark.parametrize("content", [b"", b"no JSON", b'{"a": 1}'])
def test_a_build_without_a_trajectory_says_why_and_is_no_obstacle(tmp_path, capsys, content):
    (tmp_path / "in.jsonl").write_bytes(content)
    words = [tmp_path / "in.jsonl", "--out", tmp_path / "out", "--workers", "1"]
    first = refused(words, capsys)
    assert "not one trajectory came out" in first
    assert len(rejected(tmp_path / "out")) == bool(content)
    assert refused(words, capsys) == first
    (tmp_path / "in.jsonl").write_bytes(lines(sessions(0, 3)))
    assert cli.main(["data", "build", *map(str, words)]) == 0
    assert len(trajectories(tmp_path / "out")) == 3


def test_the_result_may_lie_among_the_files_that_it_is_made_of(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(lines(sessions(0, 5)))
    run([tmp_path / "in"], tmp_path / "in" / "out")
    assert len(trajectories(tmp_path / "in" / "out")) == 5
    _, said = run([tmp_path / "in"], tmp_path / "in" / "out")
    assert "already built" in said
    with pytest.raises(DataError, match="those of the build itself"):
        run([tmp_path / "in" / "out"], tmp_path / "in" / "out")


FULL_DISK = """
import contextlib, io, json, resource, signal, sys
from maskworld.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
told = []
for more in ["--caps=nosuch=1"], []:
    limit, said = 150, "cannot write"
    while "cannot write" in said:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
        with contextlib.redirect_stderr(io.StringIO()) as shown, contextlib.redirect_stdout(io.StringIO()):
            code = main(["data", "build", *sys.argv[1:], *more])
        said = shown.getvalue()
        told.append((code, said))
        limit *= 1.6
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps(told))
"""


def test_a_full_disk_is_reported_and_the_work_goes_on_afterwards(small, tmp_path):
    """No file may grow beyond a limit that rises until the pieces are converted, and again until the build is done."""
    words = [sys.executable, "-c", FULL_DISK, str(small), "--out", str(tmp_path / "out"), "--workers", "1"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    *told, last = json.loads(done.stdout)
    assert last == [0, ""] and all(code == 2 for code, _ in told)
    failed = [said for _, said in told if "nothing comes from nosuch" not in said]
    assert len(failed) == len(told) - 1 and all("ulimit -f" in said for said in failed), told
    places = [said.split("cannot write ")[1].split(":")[0].rpartition("/")[2] for said in failed]
    assert {"plan.json", "000000", "index.parquet"} < set(places) and any("jsonl.gz" in one for one in places), places
    run([small], tmp_path / "undisturbed", longest_record=128, test_share=0.05, validation_share=0.05)
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


SLOW = """
import time
from maskworld.data.build import units
write = units._write_unit
def slow(*given):
    time.sleep(0.5)
    write(*given)
units._write_unit = slow
"""


def test_two_builds_into_one_folder_wait_for_each_other(small, tmp_path):
    words = ["data", "build", str(small), "--workers=1", "--out", str(tmp_path / "out")]
    both = [start(words, SLOW) for _ in range(2)]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("already built" in one for one in said) == 1
    assert len(trajectories(tmp_path / "out")) == 12 and not (tmp_path / "out" / ".work").exists()
