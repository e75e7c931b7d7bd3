"""A build that is killed goes on where it was, and its bytes are those of one that was not."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from dumps import contents, lines, sessions, start

from maskworld.data.build import plan
from maskworld.data.build.build import build
from maskworld.data.build.config import BuildConfig
from maskworld.data.build.units import convert_unit

SETTINGS = ["--test_share=0.2", "--validation_share=0.2", "--shard_rows=9"]
SMALL_PIECES = """
from maskworld.data.build import plan
plan.UNIT_BYTES = 2500
"""
SLOW = f"""{SMALL_PIECES}
import os, pathlib, time
from maskworld.data.build import units
write = units._write_unit
def slow(unit, names, folder, *more):
    pathlib.Path(os.environ["WORKERS"], str(os.getpid())).touch()
    time.sleep(0.15)
    write(unit, names, folder, *more)
units._write_unit = slow
"""


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """A file of many pieces, and the bytes of its undisturbed build."""
    path = tmp_path_factory.mktemp("dump") / "sessions.jsonl"
    path.write_bytes(lines(sessions(0, 120) + sessions(0, 20)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "UNIT_BYTES", 2500)
        config = BuildConfig(test_share=0.2, validation_share=0.2, shard_rows=9, workers=1)
        build([path], path.parent / "undisturbed", config=config, say=lambda line: None)
    return path, contents(path.parent / "undisturbed")


def wait_for(what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_alive(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def finished(out: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of every file of the finished pieces."""
    found = {}
    for path in (out / ".work" / "units").glob("0*/*"):
        facts = path.stat()
        found[str(path)] = (facts.st_ino, facts.st_mtime_ns)
    return found


@pytest.mark.parametrize("killer", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_build_takes_its_workers_along_and_redoes_nothing(dump, tmp_path, killer):
    path, expected = dump
    out, workers = tmp_path / "out", tmp_path / "workers"
    workers.mkdir()
    words = ["data", "build", str(path), *SETTINGS, "--workers=2", "--out", str(out)]
    process = start(words, SLOW, WORKERS=str(workers))
    wait_for(lambda: len(finished(out)) >= 5 * 4)
    process.send_signal(killer)
    _, said = process.communicate(timeout=30)
    assert process.returncode == (-9 if killer == signal.SIGKILL else 130), said
    assert killer == signal.SIGKILL or ("goes on" in said and "Traceback" not in said), said
    started = [int(entry.name) for entry in workers.iterdir()]
    wait_for(lambda: not any(map(is_alive, started)), 5)
    assert len(started) == 2
    done = finished(out)
    assert 5 * 4 <= len(done) < 4 * len(plan_of(path)), "the build was killed too late to say anything"

    process = start([*words[:-3], "--workers=1", *words[-2:]], WATCH)
    shown, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert f"going on: {len(done) // 4} of {len(plan_of(path))} pieces are already converted" in shown
    kept = dict(json.loads(line) for line in said.splitlines() if line.startswith("["))
    assert {name: tuple(facts) for name, facts in kept.items() if name in done} == done
    assert contents(out) == expected


WATCH = f"""{SMALL_PIECES}
import json, pathlib, sys
from maskworld.data.build import build
finish = build._finish
def watched(planned, files, work, *more):
    for path in (work / "units").glob("0*/*"):
        facts = path.stat()
        print(json.dumps([str(path), [facts.st_ino, facts.st_mtime_ns]]), file=sys.stderr)
    return finish(planned, files, work, *more)
build._finish = watched
"""


def plan_of(path: Path) -> list[plan.Unit]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "UNIT_BYTES", 2500)
        return plan.units(plan.input_files([path], path.parent / "undisturbed"), None)


KILLED = """
import contextlib, os, shutil, sys
import pyarrow.feather, pyarrow.parquet, scipy.sparse.csgraph
from maskworld.cli import main
from maskworld.data.build import plan
plan.UNIT_BYTES = 12_000  # some pieces

def is_killed(at, words):
    # Runs the command in a process that ends before its change number `at` of any name; whether it did.
    child = os.fork()
    if child:
        code = os.waitpid(child, 0)[1] >> 8
        if code not in (0, 9):
            sys.exit(f"the command left with {code}")
        return code == 9
    left = [at]
    for name in ("replace", "rmdir", "unlink", "mkdir"):
        def counted(*given, own=getattr(os, name), **more):
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)
            return own(*given, **more)
        setattr(os, name, counted)
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        os._exit(main(words))

"""
CONVERTING = """
kills = 0
while is_killed(kills, sys.argv[1:]):
    kills += 1
print(kills)
"""
FINISHING = """
out, kills = sys.argv[-1], 0
main([*sys.argv[1:], "--caps=nosuch=1"])
shutil.copytree(out, out + ".converted")
while is_killed(kills, sys.argv[1:]):
    is_killed(10_000, sys.argv[1:])
    os.rename(out, f"{out}.{kills}")
    shutil.copytree(out + ".converted", out)
    kills += 1
print(kills)
"""


def killed(script: str, words: list[str]) -> int:
    """Runs the script; how often the command was killed in it."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", KILLED + script, *words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
def test_a_build_killed_over_and_over_a_little_later_each_time_gets_through(dump, tmp_path):
    words = ["data", "build", str(dump[0]), *SETTINGS, "--workers=1", "--out", str(tmp_path / "out")]
    assert killed(CONVERTING, words) > 10
    assert contents(tmp_path / "out") == dump[1]


def test_a_kill_at_any_change_of_a_name_in_the_last_stages_changes_nothing(tmp_path):
    """Each time from the state in which everything is converted."""
    (tmp_path / "in.jsonl").write_bytes(lines(sessions(0, 20)))
    words = ["data", "build", str(tmp_path / "in.jsonl"), "--workers=1", "--out", str(tmp_path / "out")]
    kills = killed(FINISHING, words)
    build([tmp_path / "in.jsonl"], tmp_path / "undisturbed", config=BuildConfig(workers=1), say=lambda line: None)
    assert kills > 20
    expected = contents(tmp_path / "undisturbed")
    for number in range(kills):
        assert contents(tmp_path / f"out.{number}") == expected, number


def test_a_full_disk_ends_the_workers_too(dump, tmp_path):
    workers = tmp_path / "workers"
    workers.mkdir()
    words = ["data", "build", str(dump[0]), *SETTINGS, "--workers=2", "--out", str(tmp_path / "out")]
    process = start(words, SLOW + FULL, WORKERS=str(workers))
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2 and "cannot write" in said and "Traceback" not in said, said
    wait_for(lambda: not any(is_alive(int(entry.name)) for entry in workers.iterdir()), 5)
    process = start([*words[:-3], "--workers=1", *words[-2:]], SMALL_PIECES)
    assert process.communicate(timeout=60) and process.returncode == 0
    assert contents(tmp_path / "out") == dump[1]


FULL = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
"""


def test_a_worker_that_outlived_its_build_does_not_disturb_the_next(dump, tmp_path):
    """Both have converted the same piece; the second to be done finds the first's folder in its place."""
    (unit, *_) = plan_of(dump[0])
    (tmp_path / "units").mkdir()
    words = (unit, ["sessions.jsonl"], tmp_path, "", BuildConfig())
    assert convert_unit(*words) == unit.number
    first = contents(tmp_path)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    assert convert_unit(*words) == unit.number
    assert contents(tmp_path) == first and first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")} == stamps
