import json
import random
from pathlib import Path

import pytest

from maskworld.evaluation.text_metrics import (
    bleu1,
    exact_match,
    longest_common_subsequence,
    normalize,
    rouge_l,
    tokens_13a,
    words,
    words_for,
)

REPOSITORY = Path(__file__).parents[2]
SUBSET = REPOSITORY / "tests" / "data" / "metric_fixtures"
FULL = REPOSITORY.parent / "shared" / "metric_fixtures"
# The references give 0 when neither side has a token; here equal texts are a perfect match.
NO_TOKENS = {"both_empty", "dots_only"}
# Decided otherwise here: canonical Unicode makes the first kind equal, and no project's own wrapper is opened.
OWN_EXACT_MATCH = {"unicode_nfc_nfd", "api_bank_wrapper"}


def subset_pairs():
    return [json.loads(line) for line in (SUBSET / "pairs.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("pair", subset_pairs(), ids=lambda pair: f"{pair['id']}-{pair['kind']}")
def test_metrics_equal_the_reference_packages(pair):
    prediction, truth = pair["normalized"]
    if pair["kind"] in NO_TOKENS:
        assert rouge_l(prediction, truth) == 1.0
    else:
        assert rouge_l(prediction, truth) == pytest.approx(pair["rouge_l"], abs=1e-9)
    if pair["kind"] != "both_empty":
        assert 100 * bleu1([prediction], [truth]) == pytest.approx(pair["bleu1_13a"], abs=1e-9)
    if pair["kind"] not in OWN_EXACT_MATCH:
        assert exact_match(pair["prediction"], pair["truth"]) == pair["exact_match"]


def test_corpus_bleu_sums_before_dividing():
    pairs = [pair["normalized"] for pair in subset_pairs()]
    expected = json.loads((SUBSET / "corpus.json").read_text())["corpus_bleu1_13a"]
    assert 100 * bleu1([p for p, _ in pairs], [t for _, t in pairs]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.skipif(not FULL.is_dir(), reason=f"the full set of reference pairs is not at {FULL}")
def test_metrics_equal_the_reference_packages_on_the_full_set():
    expected = json.loads((FULL / "expected.json").read_text(encoding="utf-8"))
    pairs = [json.loads(line) for line in (FULL / "pairs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(pairs) == 208
    for pair in pairs:
        reference = expected["per_pair"][pair["id"]]
        prediction, truth = reference["norm_sdar"]
        if pair["kind"] not in NO_TOKENS:
            assert rouge_l(prediction, truth) == pytest.approx(reference["rouge_score"]["rougeL"][2], abs=1e-9)
        if pair["kind"] != "both_empty":
            assert 100 * bleu1([prediction], [truth]) == pytest.approx(reference["sacrebleu"]["1_13a"], abs=1e-9)
        if pair["kind"] not in OWN_EXACT_MATCH:
            same = bool(reference["sdar_script"]["exact_match"])
            assert exact_match(pair["prediction_raw"], pair["reference_raw"]) == same or pair["kind"] == "both_empty"
    normalized = {pair["id"]: expected["per_pair"][pair["id"]]["norm_sdar"] for pair in pairs}
    for name, keep in (("all", lambda r: True), ("json_ref", lambda r: r["json_valid_ref"])):
        rows = [normalized[i] for i, r in expected["per_pair"].items() if keep(r)]
        corpus = expected["corpus"][name]["sacrebleu_corpus_bleu1_13a"]["score"]
        assert 100 * bleu1([p for p, _ in rows], [t for _, t in rows]) == pytest.approx(corpus, abs=1e-9)


def test_lcs_equals_the_table_of_dynamic_programming():
    def by_table(a, b):
        row = [0] * (len(b) + 1)
        for x in a:
            previous = row
            row = [0]
            for j, y in enumerate(b):
                row.append(previous[j] + 1 if x == y else max(row[j], previous[j + 1]))
        return row[-1]

    draw = random.Random(0)
    for _ in range(200):
        a, b = (draw.choices("abcd", k=draw.randrange(0, 70)) for _ in range(2))
        assert longest_common_subsequence(a, b) == by_table(a, b)


def test_texts_that_differ_only_in_unicode_composition_are_equal():
    assert exact_match("Cafe\u0301", "Caf\u00e9")


def test_two_empty_texts_match_and_one_empty_text_does_not():
    assert exact_match("", "") and rouge_l("", "") == 1.0 and bleu1([""], [""]) == 1.0 and bleu1([], []) == 1.0
    assert not exact_match("", "a") and rouge_l("", "a") == 0.0 and bleu1([""], ["a"]) == bleu1(["a"], [""]) == 0.0


def test_token_free_texts_match_only_if_equal():
    assert rouge_l("...", "...") == 1.0
    assert rouge_l("...", "!") == 0.0


def test_unicode_words_see_what_latin_words_drop():
    assert words("引き出し7 открыт", "latin") == ["7"]
    assert words("引き出し7 открыт", "unicode") == ["引", "き", "出", "し", "7", "открыт"]
    assert rouge_l("箱の中に鍵がある", "箱の中に猫がいる", "latin") == 0.0
    assert rouge_l("箱の中に鍵がある", "箱の中に猫がいる", "unicode") == pytest.approx(12 / 16)


def test_the_fallback_is_chosen_by_the_share_of_foreign_letters():
    assert words_for(["On the desk 1, you see a mug 2 in the café."]) == "latin"
    assert words_for(["On the desk 1, you see a mug 2.", "箱の中に鍵がある"]) == "unicode"
    assert words_for([]) == "latin"


def test_13a_keeps_numbers_whole_and_parts_punctuation():
    assert tokens_13a("total 12.5 USD, 3-4 &amp; more.") == "total 12.5 USD , 3 - 4 & more .".split()


def test_normalize_makes_json_canonical_and_leaves_prose_alone():
    assert normalize('{"b": 1, "a": [1.0, true]}') == '{"a":[1.0,true],"b":1}'
    assert normalize('{"b": 1, "a": 2}', compact=False) == '{"a": 2, "b": 1}'
    assert normalize("You open the drawer 1.\n") == "You open the drawer 1."
    assert normalize("<think>hm</think><tool_response>ok</tool_response>") == "ok"
    assert not exact_match('{"price": "120"}', '{"price": 120}')
    assert not exact_match("1", "1.0")


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 10_000, '{"a": ' * 5_000])
def test_hostile_json_is_compared_as_text(text):
    assert exact_match(text, text)
    assert not exact_match(text, "x")


def test_a_megabyte_is_scored_in_seconds():
    text = "mug 1 on desk 2. " * 60_000
    assert rouge_l(text, text) == 1.0
    assert bleu1([text], [text]) == 1.0
    half = len(text) // 10
    assert 0.9 < rouge_l(text[:half] + "lamp", "vase " + text[:half]) < 1.0


def test_unequal_numbers_of_texts_are_refused():
    with pytest.raises(ValueError):
        bleu1(["a"], [])
