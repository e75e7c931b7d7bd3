"""metrics.jsonl survives kills and full disks; TensorBoard gets the same numbers."""

import json
import os
import struct
import subprocess
import sys

import pytest

from maskworld.errors import DataError, StorageError
from maskworld.training.progress import Pace, Progress, duration, pace_line
from maskworld.training.writers import MetricsWriter, read_metrics


def test_lines_are_on_the_disk_before_the_writer_closes(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.write(3, "train", loss=1.5, tokens=7)
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {
        "step": 3,
        "kind": "train",
        "loss": 1.5,
        "tokens": 7,
    }
    writer.close()


def test_a_line_that_a_kill_cut_is_removed_and_the_rest_stays(tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = '{"step": 1, "kind": "train", "loss": 2.0}\n'
    path.write_text(whole + '{"step": 2, "kind": "tra')
    assert [entry["step"] for entry in read_metrics(path)] == [1], "a reader does not choke on it either"
    with MetricsWriter(tmp_path) as writer:
        assert writer.torn_line
        writer.write(2, "train", loss=1.0)
    assert path.read_text() == whole + '{"step": 2, "kind": "train", "loss": 1.0}\n'
    with MetricsWriter(tmp_path) as writer:
        assert not writer.torn_line


def test_a_resumed_run_appends_and_readers_keep_the_last_of_each_step_and_all_events(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        for loss, step in ((1.0, 1), (2.0, 2), (3.0, 3)):
            writer.write(step, "train", loss=loss)
        writer.write(2, "validation", loss=5.0)
        writer.write(2, "event", event="first")
    with MetricsWriter(tmp_path) as writer:
        writer.write(2, "event", event="second")
        writer.write(3, "train", loss=4.0)
    entries = read_metrics(tmp_path / "metrics.jsonl")
    assert [(e["step"], e["loss"]) for e in entries if e["kind"] == "train"] == [(1, 1.0), (2, 2.0), (3, 4.0)]
    assert [e["event"] for e in entries if e["kind"] == "event"] == ["first", "second"]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 7, "nothing written is taken back"


def test_numbers_that_are_not_finite_do_not_break_the_json(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, "train", loss=float("nan"), grad_norm=float("inf"))
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "kind": "train", "loss": None, "grad_norm": None}]


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "kind": "train"}\nnonsense\n{"step": 2, "kind": "train"}\n')
    with pytest.raises(DataError, match=r"metrics.jsonl:2"):
        read_metrics(path)
    with pytest.raises(DataError, match="no training has written there"):
        read_metrics(tmp_path / "absent.jsonl")


def test_only_process_zero_writes(tmp_path):
    with MetricsWriter(tmp_path / "run", enabled=False) as writer:
        writer.write(1, "train", loss=1.0)
    assert not (tmp_path / "run").exists()


def events_of(folder):
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        while content:  # TFRecord: length, its checksum, bytes, their checksum
            (length,) = struct.unpack("<Q", content[:8])
            yield Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]


def test_tensorboard_gets_every_number_and_forgets_what_a_resume_repeats(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(5, "train", loss=1.5, note="text is left out")
        writer.write(5, "validation", loss=2.5)
        writer.write(5, "event", event="nothing to draw")
        writer.resumed(4)
    events = list(events_of(tmp_path / "tensorboard"))
    drawn = [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value]
    assert drawn == [(5, "train/loss", 1.5), (5, "validation/loss", 2.5)]
    assert events[-1].session_log.status == 1 and events[-1].step == 5


def test_a_full_disk_is_a_storage_error_naming_the_file(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    writer = MetricsWriter(tmp_path)
    with pytest.raises(StorageError, match=r"metrics.jsonl: no space left"):
        writer.write(1, "train", loss=1.0)


def test_the_pace_line_says_what_one_wants_to_know():
    pace = Pace(step=200, steps=1000, loss=1.23456, tokens_per_second=12_345, data_wait=0.012, seconds_left=200)
    assert pace_line(pace) == ("step  200/1000   20 %  loss 1.2346  12.3k tokens/s  data wait 1 %  left 3 min 20 s")
    assert [duration(s) for s in (44.6, 60, 7500)] == ["45 s", "1 min 00 s", "2 h 05 min"]


def test_off_a_terminal_every_pace_is_a_line_of_its_own(capsys):
    with Progress() as progress:
        progress.say("begin [x]")
        progress.pace(Pace(1, 2, 1.0, 10, 0, 1))
        progress.pace(Pace(2, 2, 0.5, 10, 0, 0))
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "begin [x]",
        "step 1/2",
        "step 2/2",
    ]


def test_on_a_terminal_the_line_renews_itself_and_messages_stay():
    """Run under a pseudo-terminal, as a person would."""
    program = (
        "from maskworld.training.progress import Pace, Progress\n"
        "with Progress() as progress:\n"
        "    progress.pace(Pace(1, 2, 1.0, 10, 0, 1))\n"
        "    progress.say('saved [bold] 1')\n"
        "    progress.pace(Pace(2, 2, 0.5, 10, 0, 0))\n"
    )
    spawn = "import pty, sys; sys.exit(pty.spawn([sys.executable, '-c', sys.argv[1]]))"
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = subprocess.run(
        [sys.executable, "-c", spawn, program], capture_output=True, text=True, timeout=300, env=environment
    ).stdout
    assert "saved [bold] 1" in shown
    assert "step 2/2  100 %  loss 0.5000" in shown.splitlines()[-1]
