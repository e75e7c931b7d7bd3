import pytest
from foreign_records import SAMPLES
from small_data import sentencepiece_tokenizer

from maskworld.config import DataConfig, DiffusionConfig
from maskworld.data.build.build import build
from maskworld.data.build.config import BuildConfig
from maskworld.data.prepare import prepare
from maskworld.data.schema import Step, Trajectory
from maskworld.data.show import FORMS, find_trajectory, is_prepared, print_pieces, shown, shown_row
from maskworld.data.trajectories import read_trajectories, write_trajectories
from maskworld.errors import DataError

ONE = Trajectory(
    id="one",
    environment="test",
    initial_state="a mug on the shelf",
    task_context="find it",
    tool_schemas=("look", "take THING"),
    steps=(
        Step("look", "You see a mug.\nAnd a cup.", directives=("Answer in two lines.",)),
        Step("take mug", "", failed=True),
    ),
    source="tests",
    licence="MIT",
)


def text(pieces, *kinds):
    return "".join(piece.text for piece in pieces if piece.kind in kinds)


@pytest.mark.parametrize("form", ["plain", "document"])
def test_the_targets_are_all_observations_and_nothing_else(form):
    told = text(shown(ONE, form, None), "target")
    assert "".join(told.split()) == "Youseeamug.Andacup."


@pytest.mark.parametrize("form", ["corpus", "chat"])
def test_of_messages_only_the_answer_of_the_step_is_a_target(form):
    assert text(shown(ONE, form, 0), "target").strip() == ONE.steps[0].observation
    assert text(shown(ONE, form, None), "target").strip() == ONE.steps[-1].observation
    assert ONE.steps[0].observation.split("\n")[1] in text(shown(ONE, form, 1), "context")
    with pytest.raises(DataError, match="no step 2"):
        list(shown(ONE, form, 2))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_shows_state_task_tools_and_directives(form):
    told = text(shown(ONE, form, 0), "context", "target")
    for part in (ONE.initial_state, ONE.task_context, *ONE.tool_schemas, *ONE.steps[0].directives):
        assert part in told


def test_a_document_names_its_control_tokens():
    told = text(shown(ONE, "document", None), "control").split()
    assert told[:5] == ["<section>", "<section>", "<section>", "<action>", "<section>"]
    assert told.count("<observation>") == told.count("<action>") == len(ONE.steps)


def test_a_trajectory_is_found_in_a_file_a_folder_and_a_build(tmp_path):
    rows = [Trajectory(f"t{n}", "test", "", "", (Step("a", str(n)),)) for n in range(3)]
    write_trajectories(tmp_path / "plain" / "train.jsonl.gz", rows)
    assert (
        find_trajectory(tmp_path / "plain", 2) == find_trajectory(tmp_path / "plain" / "train.jsonl.gz", 2) == rows[2]
    )
    out = tmp_path / "built"
    build([SAMPLES / "intercode"], out, config=BuildConfig(workers=1, shard_rows=2), say=lambda line: None)
    files = sorted(out.glob("train-*"))
    assert len(files) > 1
    in_order = [one for path in files for one in read_trajectories(path)]
    assert [find_trajectory(out, n) for n in range(len(in_order))] == in_order
    for folder, index, problem in (
        (out, len(in_order), "split train holds"),
        (tmp_path / "plain", 3, "holds no trajectory 3"),
        (tmp_path / "nothing", 0, "there is no file or folder"),
    ):
        with pytest.raises(DataError, match=problem):
            find_trajectory(folder, index)
    with pytest.raises(DataError, match="holds no validation"):
        find_trajectory(tmp_path / "plain", 0, "validation")


def test_a_packed_row_shows_its_blocks_and_targets(tmp_path):
    write_trajectories(tmp_path / "data" / "train.jsonl", [ONE])
    sentencepiece_tokenizer().save(tmp_path / "tokenizer")
    data = DataConfig(trajectories=str(tmp_path / "data"), tokenizer=str(tmp_path / "tokenizer"), row_length=128)
    prepare(data, DiffusionConfig(block_length=8), tmp_path / "rows", say=lambda line: None)
    assert is_prepared(tmp_path / "rows") and not is_prepared(tmp_path / "data")
    pieces = list(shown_row(tmp_path / "rows", 0, "train"))
    target = text(pieces, "target")
    assert target.startswith("You see a mug.\\nAnd a cup.<end>") and "take" not in target
    assert "take mug" in text(pieces, "context", "control")
    with pytest.raises(DataError, match="there is no row 1"):
        list(shown_row(tmp_path / "rows", 1, "train"))


def test_without_colours_targets_stand_between_marks(capsys):
    print_pieces(shown(ONE, "corpus", 0))
    assert "[[You see a mug.\nAnd a cup.]]\n" in capsys.readouterr().out
