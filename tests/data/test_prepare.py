import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from small_data import hugging_face_json, rooms, sentencepiece_tokenizer, trajectory

from maskworld.config import DataConfig, DiffusionConfig
from maskworld.data.pipeline import batches, validation_batches
from maskworld.data.prepare import prepare, split_files
from maskworld.data.rendering import render
from maskworld.data.rows import RowReader
from maskworld.data.schema import trajectory_to_json
from maskworld.data.tokenizer import load_tokenizer
from maskworld.data.trajectories import write_trajectories
from maskworld.errors import ConfigError, DataError, StorageError

DIFFUSION = DiffusionConfig(block_length=8)


@pytest.fixture
def data(tmp_path) -> DataConfig:
    source = tmp_path / "source"
    write_trajectories(source / "train.jsonl.gz", rooms(30))
    write_trajectories(source / "train-more.jsonl", rooms(5))
    write_trajectories(source / "validation.jsonl", rooms(4))
    write_trajectories(source / "test.jsonl", rooms(2))
    return DataConfig(trajectories=str(source), vocabulary_size=400, row_length=128)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(data: DataConfig, out: Path, diffusion: DiffusionConfig = DIFFUSION):
    said: list[str] = []
    prepared = prepare(data, diffusion, out, said.append)
    return prepared, "\n".join(said)


def test_trajectories_become_batches_in_one_call(data, tmp_path):
    prepared, _ = run(data, tmp_path / "out")
    steps = sum(len(one.steps) for one in rooms(30) + rooms(5))
    assert prepared.manifest["splits"]["train"]["counts"]["steps"] == steps
    assert prepared.manifest["splits"]["train"]["trajectories"] == 35
    assert prepared.target_blocks == RowReader(prepared.train_rows).shape.target_blocks
    batch = next(batches(prepared.train_rows, 4))
    assert batch["tokens"].shape == (4, 128)
    assert batch["target_blocks"].shape == (4, prepared.target_blocks)
    (read,) = validation_batches(prepared.validation_rows, 8)
    targets = sum(int(render(one, prepared.tokenizer, 8).targets.sum()) for one in rooms(4))
    assert read["targets"].sum() == targets
    assert prepared.rejected.read_text() == ""
    assert "35 trajectories" in prepared.summary()


def test_the_same_input_gives_the_same_bytes(data, tmp_path):
    run(data, tmp_path / "one")
    run(data, tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_second_call_takes_what_is_there_and_says_so(data, tmp_path):
    first, _ = run(data, tmp_path / "out")
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    second, said = run(data, tmp_path / "out")
    assert not first.reused and second.reused and "already prepared" in said
    assert second.manifest == first.manifest and second.tokenizer.fingerprint == first.tokenizer.fingerprint
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == stamps


def test_other_settings_or_files_prepare_again_and_name_the_difference(data, tmp_path):
    out = tmp_path / "out"
    run(data, out)
    again, said = run(replace(data, row_length=64), out)
    assert not again.reused and "other settings (row_length)" in said
    assert RowReader(out / "train").shape.row_length == 64
    write_trajectories(Path(data.trajectories) / "train-more.jsonl", rooms(7))
    again, said = run(replace(data, row_length=64), out)
    assert not again.reused and "other inputs (train)" in said
    assert again.manifest["splits"]["train"]["trajectories"] == 37
    (Path(data.trajectories) / "test.jsonl").unlink()  # not an input of training
    assert run(replace(data, row_length=64), out)[0].reused


def test_what_checkpoints_depend_on_is_refused_and_kept_where_it_must_not_be_replaced(data, tmp_path):
    out = tmp_path / "out"
    first, _ = run(data, out)
    write_trajectories(Path(data.trajectories) / "train-more.jsonl", rooms(7))
    with pytest.raises(ConfigError, match=r"prepared from other inputs \(train\)"):
        prepare(data, DIFFUSION, out, replace=False)
    assert load_tokenizer(out / "tokenizer").fingerprint == first.tokenizer.fingerprint


def test_a_kill_between_old_and_new_leaves_what_the_same_command_mends(data, tmp_path):
    out = tmp_path / "out"
    first, _ = run(data, out)
    out.rename(tmp_path / ".out.old")  # where replacing stands after its first half
    again, _ = run(data, out)
    assert again.manifest == first.manifest
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith((".old", ".draft"))] == []


@pytest.mark.parametrize("damage", ["truncate", "remove", "manifest", "tokenizer"])
def test_a_damaged_result_is_prepared_again(data, tmp_path, damage):
    out = tmp_path / "out"
    run(data, out)
    whole = contents(out)
    (file,) = (out / "train").glob("*.array_record")
    if damage == "truncate":
        file.write_bytes(file.read_bytes()[:-10])
    elif damage == "remove":
        file.unlink()
    elif damage == "manifest":
        (out / "manifest.json").write_text("{")
    else:
        (out / "tokenizer" / "tokenizer.model").write_bytes(b"")
    prepared, said = run(data, out)
    assert not prepared.reused and "damaged" in said
    assert contents(out) == whole


def test_a_folder_that_holds_something_else_is_left_alone(data, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("precious")
    with pytest.raises(StorageError, match="something other than prepared data"):
        run(data, out)
    assert contents(out) == {"thesis.tex": b"precious"}


def test_a_failure_leaves_the_old_result_and_no_draft(data, tmp_path, monkeypatch):
    out = tmp_path / "out"
    run(data, out)
    whole = contents(out)
    monkeypatch.setattr("maskworld.data.prepare.pack_documents", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(replace(data, row_length=64), out)
    assert contents(out) == whole
    assert not (tmp_path / ".out.draft").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from maskworld.config import DataConfig, DiffusionConfig
from maskworld.data import prepare as module
module._build_split = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
data = DataConfig(trajectories=sys.argv[1], vocabulary_size=400, row_length=128)
module.prepare(data, DiffusionConfig(), sys.argv[2])
"""


def test_a_kill_in_the_middle_leaves_nothing_that_looks_complete(data, tmp_path):
    environment = {"PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", KILLED, data.trajectories, str(tmp_path / "out")]
    assert subprocess.run(command, env=environment, timeout=60, capture_output=True).returncode == -9
    assert not (tmp_path / "out").exists()
    prepared, _ = run(data, tmp_path / "out")
    assert not prepared.reused
    assert not (tmp_path / ".out.draft").exists()


PREPARING = """
import sys
from maskworld.config import DataConfig, DiffusionConfig
from maskworld.data.prepare import prepare
data = DataConfig(trajectories=sys.argv[1], vocabulary_size=400, row_length=128)
print("reused", prepare(data, DiffusionConfig(), sys.argv[2]).reused)
"""


def test_processes_that_prepare_the_same_folder_at_once_share_one_result(data, tmp_path):
    command = [sys.executable, "-c", PREPARING, data.trajectories, str(tmp_path / "out")]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    some = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = sorted(one.communicate(timeout=60)[0].splitlines()[-1] for one in some)
    assert said == ["reused False", "reused True", "reused True"]


def test_whatever_cannot_be_used_is_counted_and_written_down(data, tmp_path):
    good = [*rooms(3), trajectory(["a", "mug " * 300, "b"], id="long-step")]
    good.append(trajectory(["a", "b"], id="long-context", initial_state="mug " * 300))
    lines = [trajectory_to_json(one) for one in good] + ['{"schema": "maskworld.trajectory/1"}', "{"]
    (Path(data.trajectories) / "train-bad.jsonl").write_text("\n".join(lines))
    prepared, _ = run(data, tmp_path / "out")
    facts = prepared.manifest["splits"]["train"]
    assert facts["rejected"]["context_too_long"] == 2 and facts["rejected"]["step_too_long"] == 1
    assert sum(facts["rejected"].values()) == 5
    assert facts["trajectories"] == 40
    written = [json.loads(line) for line in prepared.rejected.read_text().splitlines()]
    assert {(line.get("trajectory"), line.get("step")) for line in written if "split" in line} == {
        ("long-step", 1),
        ("long-context", 0),
        ("long-context", 1),
    }
    assert [line["line"] for line in written if "line" in line] == [6, 7]
    steps = sum(len(one.steps) for one in [*rooms(30), *rooms(5), *good])
    assert facts["counts"]["steps"] == steps - 3


def test_nothing_to_train_on_is_refused_with_the_reasons(data, tmp_path):
    source = tmp_path / "other"
    with pytest.raises(DataError, match="there is no folder"):
        run(replace(data, trajectories=str(source)), tmp_path / "out")
    source.mkdir()
    with pytest.raises(DataError, match="holds no train"):
        run(replace(data, trajectories=str(source)), tmp_path / "out")
    write_trajectories(source / "train.jsonl", [trajectory(["mug " * 300])])
    with pytest.raises(DataError, match="not one step can be trained on .1x step_too_long"):
        run(replace(data, trajectories=str(source)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_a_validation_split_there_are_no_validation_rows(data, tmp_path):
    (Path(data.trajectories) / "validation.jsonl").unlink()
    prepared, _ = run(data, tmp_path / "out")
    assert prepared.validation_rows is None


@pytest.mark.parametrize("kind", ["model", "json"])
def test_a_given_tokenizer_is_used_and_its_change_noticed(data, tmp_path, kind):
    folder = tmp_path / "given"
    folder.mkdir()
    if kind == "model":
        sentencepiece_tokenizer().save(folder)
    else:
        (folder / "tokenizer.json").write_text(hugging_face_json().to_str())
    config = replace(data, tokenizer=str(folder / f"tokenizer.{kind}"), vocabulary_size=1)
    prepared, _ = run(config, tmp_path / "out")
    reread, _ = run(config, tmp_path / "out")
    assert reread.reused and reread.tokenizer.fingerprint == prepared.tokenizer.fingerprint
    row = next(batches(prepared.train_rows, 1))
    assert "You see mug" in prepared.tokenizer.decode(row["tokens"][0])
    if kind == "json":
        (folder / "control_tokens.json").write_text('{"action": "new", "section": "new", "end": 1500}')
        changed, said = run(config, tmp_path / "out")
        assert "other inputs (tokenizer)" in said and changed.tokenizer.end_id == 1500


def test_k_is_chosen_from_the_data_or_taken_as_given(data, tmp_path):
    chosen, _ = run(data, tmp_path / "chosen")
    assert 1 <= chosen.target_blocks < 128 // 8
    given, _ = run(replace(data, target_blocks=3), tmp_path / "given")
    assert given.target_blocks == 3
    rows = RowReader(given.train_rows).read(range(5))
    assert all(row["target_blocks"].shape == (3,) for row in rows)
    steps = {prepared.manifest["splits"]["train"]["counts"]["steps"] for prepared in (chosen, given)}
    assert len(steps) == 1


def test_files_of_a_split_are_found_by_name_in_a_fixed_order(data, tmp_path):
    assert [path.name for path in split_files(data.trajectories, "train")] == ["train-more.jsonl", "train.jsonl.gz"]
    assert [path.name for path in split_files(data.trajectories, "test")] == ["test.jsonl"]
