import json

import pytest

from maskworld.errors import DataError
from maskworld.evaluation.baselines import BASELINES, COPY_LAST, FREQUENT_FOR_ACTION, FREQUENT_FOR_VERB
from maskworld.evaluation.predictions import Commit, Prediction, read_predictions, write_predictions
from maskworld.evaluation.scores import (
    MODEL,
    held_out_groups,
    score,
    score_texts,
    table_text,
    times,
    wilson_interval,
    write_scores,
)


def prediction(text, truth, *, changes_state=True, action="open drawer 1", forwards=4, tokens=8, **more):
    return Prediction("t0", "room 1", 3, action, truth, text, changes_state, forwards, tokens, **more)


def baseline_row(copy="x", by_verb="x", by_action="x"):
    return {COPY_LAST: copy, FREQUENT_FOR_VERB: by_verb, FREQUENT_FOR_ACTION: by_action}


@pytest.mark.parametrize(
    ("correct", "n", "expected"),
    [
        (0, 10, (0.0, 0.27753279986288926)),
        (10, 10, (0.7224672001371109, 1.0)),
        (1, 134, (0.001318564353840538, 0.041059533430896106)),
        (67, 134, (0.41653043215653485, 0.5834695678434652)),
    ],
)
def test_wilson_interval_equals_scipy(correct, n, expected):
    assert wilson_interval(correct, n) == pytest.approx(expected, abs=1e-9)


def test_no_trials_say_nothing():
    assert wilson_interval(0, 0) == (0.0, 1.0)
    cell = score_texts([], [])
    assert cell["n"] == 0 and cell["exact_match"] is None and cell["interval"] is None


def test_systems_are_scored_on_the_same_rows_by_kind_of_step():
    predictions = [
        prediction("an egg", "an egg"),
        prediction("a pen", "an egg"),
        prediction("Nothing happens.", "Nothing happens.", changes_state=False, action="look"),
    ]
    baselines = [baseline_row(by_action="an egg"), baseline_row(), baseline_row(copy="Nothing happens.")]
    scores = score(predictions, baselines)
    assert set(scores["systems"]) == {MODEL, *BASELINES}
    model = scores["systems"][MODEL]
    assert [model[part]["n"] for part in ("state-changing", "other", "all")] == [2, 1, 3]
    assert model["state-changing"]["exact_match"] == 0.5
    assert model["all"]["correct"] == 2
    assert scores["systems"][COPY_LAST]["other"]["exact_match"] == 1.0
    assert scores["best_baseline"] == FREQUENT_FOR_ACTION and scores["ratio"] == 1.0
    assert {name: cell["n"] for name, cell in scores["model_by_verb"].items()} == {"open": 2, "look": 1}
    assert list(scores["model_by_verb"]) == ["open", "look"]


def test_ratio_is_absent_where_every_baseline_fails():
    scores = score([prediction("a", "a")], [baseline_row()])
    assert scores["ratio"] is None


def test_generation_counts_forwards_tokens_and_unfinished():
    scores = score([prediction("a", "a"), prediction("a", "a", tokens=4, finished=False)], [baseline_row()] * 2)
    counts = scores["generation"]
    assert (counts["forwards"], counts["tokens"], counts["unfinished"]) == (8, 12, 1)
    assert counts["tokens_per_forward"] == 1.5 and counts["forwards_per_observation"] == 4


def test_nothing_to_score_gives_a_table_of_dashes():
    scores = score([], [])
    assert scores["systems"][MODEL]["all"]["exact_match"] is None
    assert "–" in table_text(scores)


def test_scores_survive_json_and_the_table_shows_every_system(tmp_path):
    scores = score([prediction("a [b]", "a")], [baseline_row(by_verb="a")], available={"state-changing": 9, "other": 4})
    write_scores(tmp_path / "scores.json", scores)
    assert json.loads((tmp_path / "scores.json").read_text()) == scores
    text = table_text(scores)
    assert all(name in text for name in (MODEL, *BASELINES))
    assert f"{FREQUENT_FOR_VERB} (best baseline)" in text
    assert "1.000" in text


def test_foreign_texts_switch_rouge_to_unicode_words():
    scores = score([prediction("箱の中に猫がいる", "箱の中に鍵がある")], [baseline_row()])
    assert scores["words"] == "unicode"
    assert scores["systems"][MODEL]["all"]["rouge_l"] == pytest.approx(12 / 16)


def test_predictions_round_trip_and_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "predictions.jsonl"
    kept = [
        prediction("a\u2028b", "é", history=("> look", "x"), trace=((Commit(0, "a", 0.5, 0),), ()), block_starts=(3,)),
        prediction("", "b", finished=False),
    ]
    write_predictions(path, kept)
    assert read_predictions(path) == kept
    path.write_text(path.read_text() + '{"trajectory": "x"}\n')
    with pytest.raises(DataError, match=r"predictions\.jsonl:3"):
        read_predictions(path)


def test_a_line_with_the_required_fields_only_is_read(tmp_path):
    line = {"trajectory": "t", "group": "g", "step": 0, "action": "look", "truth": "a", "prediction": "a"}
    line |= {"changes_state": False, "forwards": 1, "tokens": 2, "something_new": 1}
    (tmp_path / "predictions.jsonl").write_text(json.dumps(line) + "\n")
    [read] = read_predictions(tmp_path / "predictions.jsonl")
    assert read.finished and read.trace == () and read.history == ()


def test_groups_are_called_rooms_only_where_they_are():
    scores = {"groups": 24, "data": {"environments": ["alfworld"], "seen_groups": 0}}
    assert held_out_groups(scores) == "24 unseen rooms"
    assert held_out_groups({"groups": 1, "data": {"environments": ["alfworld", "tau"], "seen_groups": 1}}) == "1 group"
    assert held_out_groups({"groups": 2}) == "2 groups"


def test_a_ratio_is_named_only_where_the_model_is_ahead():
    assert times(0.69, 0.1) == "6.9 times" and times(0.9, 0.04) == "22 times"
    assert times(0.1, 0.2) == times(0.0, 0.0) == times(0.5, 0.0) == times(None, 0.1) == ""
