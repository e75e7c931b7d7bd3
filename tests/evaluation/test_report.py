import json
import re
from html.parser import HTMLParser

import pytest

from maskworld.config import Experiment
from maskworld.configure import to_dict
from maskworld.errors import DataError
from maskworld.evaluation.baselines import BASELINES
from maskworld.evaluation.charts import (
    denoising_picture,
    interval_bar,
    log_ticks,
    loss_chart,
    nice_ticks,
    number,
    picture_width,
    thin,
)
from maskworld.evaluation.differences import marked_pair
from maskworld.evaluation.predictions import Commit, Prediction, write_predictions
from maskworld.evaluation.report import pick_denoising, pick_transitions, render_report, write_report
from maskworld.evaluation.run_facts import data_facts, training_facts
from maskworld.evaluation.run_record import read_run
from maskworld.evaluation.scores import score, write_scores

HOSTILE = """</style></script><script>alert('x')</script><img src=x onerror="alert(1)">&amp;'"\ud800\u202e"""
VOID = {"meta", "link", "br", "line", "circle", "rect", "polyline", "i"}


class Page(HTMLParser):
    """Collects tags and text, and fails on what a report must not hold."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        assert tag not in {"script", "img", "iframe", "object", "embed", "form", "base"}
        for name, value in attributes:
            assert not name.startswith("on") and name != "src"
            assert name != "href" or value == "data:,"
        if tag not in VOID - {"i"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID - {"i"}:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text += data


def prediction(text="You open the drawer 1.", truth="You open the drawer 1.", *, step=0, **more):
    fields = {
        "trajectory": "t0",
        "group": "room 1",
        "action": "open drawer 1",
        "changes_state": True,
        "forwards": 5,
        "tokens": 4,
        "history": ("You see a drawer 1.", "> go to drawer 1", "The drawer 1 is closed."),
        "initial_state": "closed(drawer 1)",
        "block_starts": (2,),
        "trace": (
            (Commit(1, " open", 0.9, 0),),
            (Commit(0, "You", 0.5, 1),),
            (Commit(2, " it", 0.99, 2), Commit(3, "<end>", 1.0, 2)),
        ),
    }
    return Prediction(**(fields | more), step=step, prediction=text, truth=truth)


def write_run(folder, predictions, name="a run", metrics=(), manifest=None):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(to_dict(Experiment(name=name))))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    scores = score(predictions, [dict.fromkeys(BASELINES, "You open the drawer 2.")] * len(predictions))
    counts = {"trajectories": 10, "groups": 3, "steps": 90}
    scores["data"] = {"environments": [name], "splits": {"train": counts}, "seen_groups": 0}
    write_scores(folder / "scores.json", scores)
    write_predictions(folder / "predictions.jsonl", predictions)
    if manifest:
        (folder / "data").mkdir()
        (folder / "data" / "manifest.json").write_text(json.dumps(manifest))
    return folder


METRICS = (
    {"step": 0, "kind": "event", "event": "start", "parameters": 1_432_100, "machine": "2 cpu"},
    {"step": 10, "kind": "train", "loss": 4.0, "tokens_per_second": 9000.4},
    {"step": 20, "kind": "train", "loss": 2.0, "tokens_per_second": 9100.0},
    {"step": 20, "kind": "validation", "loss": 2.5},
    {"step": 20, "kind": "train", "loss": 1.5, "tokens_per_second": 9200.0},
    {"step": 20, "kind": "event", "event": "end", "seconds": 125.0},
)
MANIFEST = {"vocabulary_size": 777, "splits": {"train": {"counts": {"rows": 10, "tokens": 5000, "targets": 2500}}}}


def test_the_report_is_one_page_with_every_part_and_no_resource(tmp_path):
    predictions = [prediction(step=i) for i in range(6)] + [prediction("You open the fridge 1.", step=7)]
    path = write_report(write_run(tmp_path / "r", predictions, "quickstart", METRICS, MANIFEST))
    assert path == tmp_path / "r" / "report.html"
    html = path.read_text(encoding="utf-8")
    assert "http" not in html.replace("http-equiv", "") and "@import" not in html and "url(" not in html
    page = Page(html)
    assert page.tags.count("article") == 5
    for wanted in ("quickstart", "1.43M", "777", "2 min 05 s", "best baseline", "0.857", "train 1.5", "tokens seen"):
        assert wanted in page.text, wanted
    assert "missing" not in page.text


def test_hostile_text_stays_text_everywhere(tmp_path):
    trace = ((Commit(0, HOSTILE, 0.5, 0),), (Commit(1, "<end>", 0.5, 1),))
    predictions = [
        prediction(
            HOSTILE,
            HOSTILE[::-1],
            trajectory=HOSTILE,
            group=HOSTILE,
            action=HOSTILE,
            history=(HOSTILE, "> " + HOSTILE),
            initial_state=HOSTILE,
            trace=trace,
            block_starts=(),
        )
    ]
    safe = [p.from_json(json.loads(json.dumps(p.to_json()).replace("\\ud800", "?"))) for p in predictions]
    metrics = [{"step": 1, "kind": "train", "loss": 1.0, "machine": HOSTILE, "parameters": HOSTILE}]
    run = write_run(tmp_path / "r", safe, HOSTILE.replace("\ud800", "?"), metrics)
    config = to_dict(Experiment(name=HOSTILE))
    config["diffusion"]["schedule"] = HOSTILE
    (run / "config.json").write_text(json.dumps(config))
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert page.text.count("alert('x')") >= 8


def test_an_empty_folder_gives_a_report_that_says_what_is_missing(tmp_path):
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    for name in ("config.json", "metrics.jsonl", "scores.json", "predictions.jsonl"):
        assert f"{name} is missing" in page.text
    assert "Not scored yet" in page.text and "No loss has been recorded" in page.text


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "scores.json", "predictions.jsonl", "manifest.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]\n", b"\xff\xfe\x00", b'{"a": 1}\n{"st', b"null\n", b'{"a": 1}'])
def test_a_damaged_part_leaves_the_others(tmp_path, name, content):
    run = write_run(tmp_path / "r", [prediction()], "quickstart", METRICS, MANIFEST)
    (run / "data" / name if name == "manifest.json" else run / name).write_bytes(content)
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert "denoised step by step" in page.text
    assert ("quickstart" in page.text) or name == "config.json"


def test_no_folder_is_refused_by_name(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        write_report(tmp_path / "nowhere")


def test_a_run_without_a_state_changing_step_is_reported(tmp_path):
    page = Page(write_report(write_run(tmp_path / "r", [prediction(changes_state=False)])).read_text(encoding="utf-8"))
    assert "–" in page.text and "Other steps (1)" in page.text


@pytest.mark.parametrize(
    ("truth", "said"),
    [
        ("You open the drawer 1.", "the only system that is ever exactly right"),
        ("You open the drawer 2.", "no better than the best baseline"),
    ],
)
def test_the_comparison_says_who_is_ahead(tmp_path, truth, said):
    run = write_run(tmp_path / "r", [prediction(truth=truth), prediction("x", "y", step=1)])
    assert said in Page(write_report(run).read_text(encoding="utf-8")).text


def test_after_a_resume_the_last_line_of_a_step_counts(tmp_path):
    run = read_run(write_run(tmp_path / "r", [], metrics=METRICS))
    assert run.series("train", "loss") == [(10.0, 4.0), (20.0, 1.5)]
    assert run.event("seconds") == 125.0


def test_losses_that_are_no_numbers_are_left_out(tmp_path):
    metrics = [{"step": i, "kind": "train", "loss": loss} for i, loss in enumerate([None, "x", True, 2.0])]
    run = read_run(write_run(tmp_path / "r", [], metrics=metrics))
    assert run.series("train", "loss") == [(3.0, 2.0)]


def test_facts_come_from_the_files(tmp_path):
    run = read_run(write_run(tmp_path / "r", [], "alfworld", METRICS, MANIFEST))
    data, training = dict(data_facts(run)), dict(training_facts(run))
    assert data["training tokens"] == "5,000" and data["of them targets"] == "2,500 (50%)"
    assert data["train"] == "3 rooms, 10 episodes, 90 steps"
    assert training["steps"] == "20 of 1,000" and training["tokens seen"] == "80k"
    assert training["best validation loss"] == "2.5 at step 20"


def test_shown_transitions_are_various_and_hold_both_verdicts():
    right = [prediction(step=i) for i in range(9)]
    right.append(prediction(step=9, action="look", changes_state=False))
    right.append(prediction(step=10, action="take mug 1", group="room 2"))
    wrong = [prediction("no", step=11), prediction("no", step=12, action="close drawer 1")]
    assert [p.step for p in pick_transitions(right + wrong)] == [0, 10, 9, 11, 12]
    assert [p.step for p in pick_transitions(wrong)] == [11, 12]
    assert len(pick_transitions(right)) == 5 and pick_transitions([]) == []


def test_the_picture_is_of_the_median_cost():
    predictions = [prediction(step=i, forwards=f) for i, f in enumerate((9, 3, 5, 4, 20))]
    assert pick_denoising(predictions).forwards == 5
    assert pick_denoising([prediction(trace=())]) is None
    only_short = prediction(trace=((Commit(0, "a", 1.0, 0),),), block_starts=())
    assert pick_denoising([only_short]) is only_short


def test_the_picture_has_a_row_per_step_and_shows_masks_until_they_are_committed():
    picture = denoising_picture(prediction())
    Page(picture)
    assert picture.count('class="fresh"') == 4
    # Start and two steps inside block 1: two masks, one mask, none; block 2 waits for two rows of two, then begins.
    assert picture.count('class="mask"') == 3
    assert picture.count('class="later"') == 6
    assert "block 1, step 2" in picture and "block 2, step 1" in picture and "block 2, step 2" not in picture


def test_a_trace_with_holes_is_not_drawn():
    broken = prediction(trace=((Commit(0, "a", 1.0, 0), Commit(2, "b", 1.0, 0)),))
    assert denoising_picture(broken) == "" and picture_width(broken) == 0


def test_differences_are_marked_on_both_sides_and_rebuild_the_texts():
    truth, predicted = marked_pair("a <mug> 1 and b", "a cup 1 and")
    assert truth == "a <mark>&lt;mug&gt;</mark> 1 and<mark> b</mark>"
    assert predicted == "a <mark>cup</mark> 1 and"
    assert "(empty)" in marked_pair("", "x")[0]
    assert "1,000 more characters" in marked_pair("x" * 3000, "x")[0]


def test_charts_survive_degenerate_curves():
    assert loss_chart([]) == "" and loss_chart([("train", [(1, float("nan")), (2, -1.0)])]) == ""
    for curves in ([("a", [(0, 1.0)])], [("a", [(5, 2.0)] * 3)], [("a", [(1, 1e-9), (2, 1e9)])]):
        chart = loss_chart(curves, 100.0)
        Page(chart)
        assert "nan" not in chart and "inf" not in chart
    Page(interval_bar(0.5, -1, 2))


def test_ticks_are_round_and_inside():
    assert nice_ticks(0, 1000) == [0, 200, 400, 600, 800, 1000]
    assert log_ticks(0.3, 7) == [0.5, 1, 2, 5]
    assert all(0.31 <= t <= 0.34 for t in log_ticks(0.31, 0.34))
    assert nice_ticks(3, 3) == [3]


def test_thinning_keeps_the_level_and_bounds_the_count():
    points = [(i, 2.0) for i in range(10_001)]
    thinned = thin(points, 100)
    assert len(thinned) <= 100 and all(y == 2.0 for _, y in thinned)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.33, "0.33"),
        (950, "950"),
        (9817.3, "9,817"),
        (12_345, "12.3k"),
        (999_800, "1M"),
        (1.4321e9, "1.43B"),
        (3e12, "3,000B"),
    ],
)
def test_numbers_have_sensible_digits(value, shown):
    assert number(value) == shown


def test_the_page_depends_on_the_files_alone(tmp_path):
    run = write_run(tmp_path / "r", [prediction()], "quickstart", METRICS)
    assert render_report(read_run(run)) == render_report(read_run(run))
    assert not re.search(r"\b20\d\d-\d\d-\d\d\b", render_report(read_run(run)))
