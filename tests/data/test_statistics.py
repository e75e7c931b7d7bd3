import re

import pytest
from foreign_records import SAMPLES

from maskworld import cli
from maskworld.data.build.build import build
from maskworld.data.build.config import BuildConfig
from maskworld.data.schema import Step, Trajectory
from maskworld.data.statistics import statistics
from maskworld.data.statistics_page import render_page, tables
from maskworld.data.trajectories import write_trajectories
from maskworld.errors import DataError


def made(number: int, steps: int, **fields) -> Trajectory:
    turns = tuple(Step("look", "x" * (10 * turn)) for turn in range(steps))
    return Trajectory(f"t{number}", "test", "", "", turns, **fields)


@pytest.fixture
def folder(tmp_path):
    write_trajectories(
        tmp_path / "train.jsonl", [made(0, 1, source="a"), made(1, 3, source="a"), made(2, 5, source="b")]
    )
    write_trajectories(tmp_path / "test.jsonl.gz", [made(3, 2, source="b", licence="MIT", model_family="gpt")])
    return tmp_path


def test_counts_of_a_folder_of_trajectories(folder):
    found = statistics(folder)
    assert (found.rows_in, found.trajectories, found.rejected) == (4, 4, {})
    assert [(group.name, group.trajectories, group.steps) for group in found.splits] == [
        ("train", 3, 9),
        ("test", 1, 2),
    ]
    a, b = found.sources
    assert a.steps_of_trajectory == (1, 3, 3) or a.steps_of_trajectory[-1] == 3
    assert b.characters[-1] == 40 and b.outcomes["empty"] == 2
    assert found.licences == {"(none)": 3, "MIT": 1} and found.model_families == {"(none)": 3, "gpt": 1}
    # 0; 10; 20; 30 and 40 characters: 4, 3, 2 and 2 observations
    assert {bound: count for bound, count in found.lengths if count} == {0: 4, 16: 3, 32: 3, 64: 1}


def test_a_bad_row_is_counted(folder):
    with open(folder / "train.jsonl", "a") as file:
        file.write("{}\n")
    found = statistics(folder)
    assert (found.rows_in, found.trajectories) == (5, 4) and sum(found.rejected.values()) == 1


def test_a_build_is_counted_from_its_index(tmp_path):
    manifest = build([SAMPLES / "webshop", SAMPLES / "tau_bench"], tmp_path / "out", config=BuildConfig(workers=1))
    found = statistics(tmp_path / "out")
    assert found.rows_in == manifest["rows"]["in"] and found.trajectories == manifest["rows"]["out"]
    assert {group.name for group in found.sources} == {"webshop", "tau_bench"}
    assert sum(group.steps for group in found.splits) == sum(group.steps for group in found.sources)
    assert sum(group.steps for group in found.splits) == sum(s["steps"] for s in manifest["splits"].values())


def test_what_holds_no_trajectories_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds neither a build nor files"):
        statistics(tmp_path)
    (tmp_path / "train.jsonl").write_text("")
    with pytest.raises(DataError, match="holds no trajectory"):
        statistics(tmp_path)
    (tmp_path / "index.parquet").write_text("damaged")
    with pytest.raises(DataError, match="damaged"):
        statistics(tmp_path)


def test_the_page_and_the_tables_show_the_counts(folder, capsys):
    assert cli.main(["data", "stats", str(folder)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"train +3 +9 ", out) and "4 rows in, 4 trajectories out, 0 rejected" in out
    page = (folder / "stats.html").read_text()
    assert page == render_page(statistics(folder))
    assert "<td>train</td><td>3</td><td>9</td>" in page and "<script" not in page
    assert [table.row_count for table in tables(statistics(folder))] == [2, 2]


def test_names_from_the_data_cannot_become_markup(tmp_path):
    write_trajectories(tmp_path / "train.jsonl", [made(0, 1, source="<script>", licence="</div>")])
    page = render_page(statistics(tmp_path))
    assert "<script>" not in page and "&lt;script&gt;" in page and "&lt;/div&gt;" in page
