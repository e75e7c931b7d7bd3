import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from small_data import hugging_face_json, rooms, sentencepiece_tokenizer, trajectory

from maskworld.config import AugmentationConfig, DataConfig, DiffusionConfig, DropRates
from maskworld.data.augmentation import augmented
from maskworld.data.pipeline import batches, validation_batches
from maskworld.data.prepare import prepare, split_files
from maskworld.data.rendering import render
from maskworld.data.rows import RowReader
from maskworld.data.schema import Step, trajectory_to_json
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
from maskworld.config import AugmentationConfig, DataConfig, DiffusionConfig, DropRates
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
from maskworld.config import AugmentationConfig, DataConfig, DiffusionConfig, DropRates
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


def test_whatever_breaks_the_schema_is_counted_and_written_down(data, tmp_path):
    lines = [trajectory_to_json(one) for one in rooms(3)] + ['{"schema": "maskworld.trajectory/1"}', "{"]
    (Path(data.trajectories) / "train-bad.jsonl").write_text("\n".join(lines))
    prepared, _ = run(data, tmp_path / "out")
    facts = prepared.manifest["splits"]["train"]
    assert sum(facts["rejected"].values()) == 2 and facts["trajectories"] == 38
    assert [json.loads(line)["line"] for line in prepared.rejected.read_text().splitlines()] == [4, 5]


def test_what_a_row_cannot_hold_is_cut_and_counted_and_no_step_is_lost(data, tmp_path):
    long = [
        trajectory(["a", "mug " * 300, "b"], id="long-step"),
        trajectory(["a", "b"], id="long-context", initial_state="mug " * 300),
        replace(trajectory(["a"], id="long-action"), steps=(Step("go " * 300, "a"), Step("go", "cup " * 300))),
    ]
    write_trajectories(Path(data.trajectories) / "train-long.jsonl", long)
    prepared, _ = run(data, tmp_path / "out")
    facts = prepared.manifest["splits"]["train"]
    assert facts["cut"] == {"context": 1, "action": 1, "observation": 2, "targets": 0}
    assert facts["rejected"] == {}
    assert facts["counts"]["steps"] == sum(len(one.steps) for one in [*rooms(30), *rooms(5), *long])
    assert prepared.manifest["splits"]["validation"]["cut"] == dict.fromkeys(facts["cut"], 0)
    assert RowReader(prepared.train_rows).manifest["cut"] == facts["cut"]
    summary = prepared.summary()
    assert "1 contexts cut in the middle" in summary and "2 observations cut at their end" in summary
    few, _ = run(replace(data, target_blocks=2), tmp_path / "few")
    facts = few.manifest["splits"]["train"]
    assert facts["cut"]["targets"] >= 2 and facts["counts"]["target_blocks"] <= 2 * facts["counts"]["rows"]
    assert "observations taught without their end" in few.summary()


def test_a_step_without_room_in_a_row_of_few_blocks_is_counted_and_written_down(data, tmp_path):
    write_trajectories(Path(data.trajectories) / "train-long.jsonl", [trajectory(["a", "mug " * 300], id="long")])
    prepared, _ = run(replace(data, row_length=32), tmp_path / "out")
    facts = prepared.manifest["splits"]["train"]
    written = [json.loads(line) for line in prepared.rejected.read_text().splitlines()]
    train = [line for line in written if line["split"] == "train"]
    assert {line["reason"] for line in train} == {"row_too_short"}
    assert ("long", 1) in {(line["trajectory"], line["step"]) for line in train}
    assert facts["rejected"] == {"row_too_short": len(train)}
    steps = sum(len(one.steps) for one in [*rooms(30), *rooms(5)]) + 2
    assert facts["counts"]["steps"] == steps - len(train)


def tokens_of(prepared) -> list[str]:
    """The texts of all documents of the training rows, sorted."""
    found = []
    reader = RowReader(prepared.train_rows)
    for row in reader.read(range(len(reader))):
        for id in range(1, row["document_ids"].max() + 1):
            found.append(prepared.tokenizer.decode(row["tokens"][row["document_ids"] == id].tolist()))
    return sorted(found)


def weighted(data: DataConfig) -> DataConfig:
    """Adds trajectories of sources `shop` and `bank` to those of the environment `test`."""
    more = [
        trajectory([f"You see {source} {index}"], id=f"{source}-{index}", **fields)
        for source, fields in (("shop", {"source": "shop"}), ("bank", {"environment": "bank/retail"}))
        for index in range(40)
    ]
    write_trajectories(Path(data.trajectories) / "train-weighted.jsonl", more)
    return replace(data, source_weights=("shop=0.5", "bank=2", "test=0"))


def test_sources_are_rendered_as_often_as_their_weights_say(data, tmp_path):
    prepared, _ = run(weighted(data), tmp_path / "out")
    facts = prepared.manifest["splits"]["train"]
    shops = facts["by_source"]["shop"]["rendered"]
    assert 8 < shops < 32
    assert facts["by_source"] == {
        "bank": {"trajectories": 40, "rendered": 80},
        "shop": {"trajectories": 40, "rendered": shops},
        "test": {"trajectories": 35, "rendered": 0},
    }
    assert facts["trajectories"] == 115 and facts["counts"]["documents"] == 80 + shops
    found = tokens_of(prepared)
    assert sum("You see bank" in text for text in found) == 80
    assert len({text for text in found if "You see bank" in text}) == 40
    assert len({text for text in found if "You see shop" in text}) == shops
    validation = prepared.manifest["splits"]["validation"]
    assert validation["by_source"] == {"test": {"trajectories": 4, "rendered": 4}}
    assert "test: 35 trajectories, rendered 0 times" in prepared.summary()


def test_weights_are_part_of_the_settings_but_not_how_they_are_written(data, tmp_path):
    config = weighted(data)
    first, _ = run(config, tmp_path / "out")
    again, _ = run(replace(config, source_weights=("test=0.0", "bank=2", "shop=.5")), tmp_path / "out")
    assert again.reused
    other, said = run(replace(config, source_weights=("shop=0.5",)), tmp_path / "out")
    assert not other.reused and "other settings (source_weights)" in said


def test_a_weight_for_a_source_of_which_there_is_no_trajectory_is_refused_by_name(data, tmp_path):
    config = replace(weighted(data), source_weights=("shpo=2",))
    with pytest.raises(
        ConfigError, match=r"data\.source_weights: no trajectory has the source shpo; did you mean shop"
    ):
        run(config, tmp_path / "out")
    with pytest.raises(ConfigError, match="'shop' is no weight of a source"):
        run(replace(config, source_weights=("shop",)), tmp_path / "out")
    with pytest.raises(DataError, match="not one step can be trained on"):
        run(
            replace(config, source_weights=("shop=0", "bank=0", "test=0"), tokenizer=given_tokenizer(tmp_path)),
            tmp_path / "out",
        )
    assert not (tmp_path / "out").exists()


def given_tokenizer(folder: Path) -> str:
    sentencepiece_tokenizer().save(folder / "given")
    return str(folder / "given" / "tokenizer.model")


def test_variants_are_of_the_train_split_only_and_part_of_the_settings(data, tmp_path):
    out = tmp_path / "out"
    varied = replace(data, augmentation=AugmentationConfig(drop=DropRates(initial_state=1.0)))
    prepared = prepare(varied, DIFFUSION, out)
    assert not any("On the cabinet" in text.partition("look")[0] for text in tokens_of(prepared))
    (read,) = validation_batches(prepared.validation_rows, 8)
    assert "cabinet 12" in prepared.tokenizer.decode(read["tokens"][0].tolist())
    assert prepare(varied, DIFFUSION, out).reused
    assert not prepare(data, DIFFUSION, out).reused


def test_every_copy_of_a_trajectory_is_a_variant_of_its_own(data, tmp_path):
    source = Path(data.trajectories)
    told = [replace(one, directives=("Be brief.",), id=f"t{number}") for number, one in enumerate(rooms(20))]
    write_trajectories(source / "train.jsonl.gz", told)
    (source / "train-more.jsonl").unlink()
    drop = AugmentationConfig(drop=DropRates(directives=0.5))
    config = replace(data, source_weights=("test=3",), augmentation=drop, tokenizer=given_tokenizer(tmp_path))
    prepared, _ = run(config, tmp_path / "out")
    kept = [[bool(augmented(one, drop, copy).directives) for copy in range(3)] for one in told]
    assert sum("Be brief." in text for text in tokens_of(prepared)) == sum(map(sum, kept))
    assert any(len(set(copies)) == 2 for copies in kept)


def test_directives_of_single_steps_are_rendered_where_the_context_has_directives(data, tmp_path):
    one = trajectory(["You see mug 1"] * 2)
    one = replace(one, steps=(one.steps[0], replace(one.steps[1], directives=("the outcome is an error",))))
    write_trajectories(Path(data.trajectories) / "train-more.jsonl", [one])
    told, _ = run(data, tmp_path / "told")
    silent, _ = run(replace(data, context=("initial_state",)), tmp_path / "silent")
    assert sum("look 1the outcome is an errorYou see" in text for text in tokens_of(told)) == 1
    assert not any("outcome" in text for text in tokens_of(silent))


def test_what_another_version_prepared_is_made_anew_unless_checkpoints_depend_on_it(data, tmp_path):
    out = tmp_path / "out"
    run(data, out)
    path = out / "manifest.json"
    path.write_text(path.read_text().replace("maskworld.prepared/2", "maskworld.prepared/1"))
    with pytest.raises(ConfigError, match="prepared by another version .maskworld.prepared/1"):
        prepare(data, DIFFUSION, out, replace=False)
    prepared, said = run(data, out)
    assert not prepared.reused and "another version" in said


def test_nothing_to_train_on_is_refused_with_the_reasons(data, tmp_path):
    source = tmp_path / "other"
    with pytest.raises(DataError, match="there is no folder"):
        run(replace(data, trajectories=str(source)), tmp_path / "out")
    source.mkdir()
    with pytest.raises(DataError, match="holds no train"):
        run(replace(data, trajectories=str(source)), tmp_path / "out")
    write_trajectories(source / "train.jsonl", [trajectory(["mug " * 300])])
    with pytest.raises(DataError, match="not one step can be trained on .1x row_too_short"):
        run(replace(data, trajectories=str(source), row_length=16), tmp_path / "out")
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
    write_trajectories(Path(data.trajectories) / "train-zipped.jsonl.zst", rooms(3))
    names = [path.name for path in split_files(data.trajectories, "train")]
    assert names == ["train-more.jsonl", "train-zipped.jsonl.zst", "train.jsonl.gz"]
    assert run(data, data.trajectories + "-out")[0].manifest["splits"]["train"]["trajectories"] == 38
    assert [path.name for path in split_files(data.trajectories, "test")] == ["test.jsonl"]
