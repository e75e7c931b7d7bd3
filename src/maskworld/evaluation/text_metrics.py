"""Overlap of a predicted observation with the true one: exact match, ROUGE-L, corpus BLEU-1. Standard library only.

All scores lie in [0, 1]. Two empty texts are a perfect match (1.0) in every metric here; the `rouge-score` and
`sacrebleu` packages give 0 there, which is the one place where this module departs from them on Latin text.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

Words = Literal["latin", "unicode"]

_LATIN_WORD = re.compile(r"[a-z0-9]+")
# Scripts written without spaces (kana, Han, Hangul is spaced and stays a word): one token per character.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_UNICODE_WORD = re.compile(f"[{_UNSPACED}]|[^\\W{_UNSPACED}]+")

_THINK_BLOCK = re.compile(r"<think>.*?</think>", re.DOTALL)
_TOOL_RESPONSE = re.compile(r"<tool_response>(.*?)(?:</tool_response>|\Z)", re.DOTALL)
_JSON_START = frozenset('{["-0123456789tfnNI')

# The 13a rules of mteval-v13a, in order: punctuation apart; full stop and comma apart unless between digits
# (two passes); a hyphen after a digit apart.
_RULES_13A = (
    (re.compile(r"([{-~\[-` -&(-+:-@/])"), r" \1 "),
    (re.compile(r"([^0-9])([.,])"), r"\1 \2 "),
    (re.compile(r"([.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
)
_ENTITIES_13A = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))


def normalize(text: str, compact: bool = True) -> str:
    """The form in which observations are compared.

    Closed `<think>` blocks go, one `<tool_response>` is unwrapped, outer white space goes, Unicode becomes NFC, and
    a text that is JSON as a whole gets sorted keys and the separators `,` and `:` (`compact`, for equality) or `, `
    and `: ` (for token metrics, where compact JSON would be one word).
    """
    text = _THINK_BLOCK.sub("", text)
    wrapped = _TOOL_RESPONSE.search(text)
    text = unicodedata.normalize("NFC", (wrapped.group(1) if wrapped else text).strip())
    value, is_json = _parse_json(text)
    if not is_json:
        return text
    separators = (",", ":") if compact else (", ", ": ")
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=separators)


def _parse_json(text: str) -> tuple[Any, bool]:
    if not text or text[0] not in _JSON_START:
        return None, False
    try:
        return json.loads(text), True
    except (ValueError, RecursionError):  # not JSON, a number beyond Python's digit limit, nesting beyond its stack
        return None, False


def exact_match(prediction: str, truth: str) -> bool:
    """Whether both texts are the same string after `normalize`."""
    return prediction == truth or normalize(prediction) == normalize(truth)


def words(text: str, kind: Words = "latin") -> list[str]:
    """Lower-case tokens of ROUGE-L.

    `latin`: runs of [a-z0-9], as in Google's rouge-score; every other character is dropped, so a Chinese text has no
    tokens at all. `unicode`: runs of word characters of any script, and one token per character for Han and kana.
    """
    return (_LATIN_WORD if kind == "latin" else _UNICODE_WORD).findall(text.lower())


def words_for(references: Iterable[str], threshold: float = 0.05) -> Words:
    """`unicode` where more than `threshold` of the references' letters and digits lie outside ASCII, else `latin`."""
    total = foreign = 0
    for text in references:
        counted = sum(map(str.isalnum, text))
        total += counted
        foreign += 0 if text.isascii() else sum(c.isalnum() and not c.isascii() for c in text)
    return "unicode" if foreign > threshold * total else "latin"


def longest_common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence. One bit per token of `a` in a Python integer, |b| steps.

    Source: Hyyrö, "Bit-parallel LCS-length computation revisited" (2004).
    """
    shortest = min(len(a), len(b))
    head = next((i for i in range(shortest) if a[i] != b[i]), shortest)
    tail = next((i for i in range(shortest - head) if a[-1 - i] != b[-1 - i]), shortest - head)
    a, b = a[head : len(a) - tail], b[head : len(b) - tail]
    positions: dict[str, int] = {}
    for index, token in enumerate(a):
        positions[token] = positions.get(token, 0) | 1 << index
    everything = (1 << len(a)) - 1
    unmatched = everything
    for token in b:
        here = unmatched & positions.get(token, 0)
        unmatched = ((unmatched + here) | (unmatched - here)) & everything
    return head + tail + len(a) - unmatched.bit_count()


def rouge_l(prediction: str, truth: str, kind: Words = "latin") -> float:
    """ROUGE-L F1 = 2 LCS / (a + b), with a and b the token counts of `words`.

    1.0 if neither side has a token and the texts are equal, 0.0 if nothing is shared. `latin` equals rouge-score's
    rougeL without stemmer. Source: Lin, "ROUGE" (2004), section 3.1 (sentence level).
    """
    a, b = words(prediction, kind), words(truth, kind)
    if not a and not b:
        return float(prediction.strip() == truth.strip())
    if not a or not b:
        return 0.0
    return 2 * longest_common_subsequence(a, b) / (len(a) + len(b))


def tokens_13a(text: str) -> list[str]:
    """Tokens of the 13a convention (mteval-v13a; sacrebleu's default)."""
    text = text.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    if "&" in text:
        for entity, character in _ENTITIES_13A:
            text = text.replace(entity, character)
    text = f" {text} "
    for pattern, replacement in _RULES_13A:
        text = pattern.sub(replacement, text)
    return text.split()


def bleu1(predictions: Sequence[str], truths: Sequence[str]) -> float:
    """Corpus BLEU of order 1 over 13a tokens, in [0, 1] (sacrebleu prints 100 times this).

    brevity penalty x (clipped unigram matches / prediction tokens), both summed over the corpus before dividing; no
    smoothing. A corpus without any token on either side scores 1.0. Source: Papineni et al. (2002).

    Raises:
        ValueError: the sequences differ in length.
    """
    matched = predicted = expected = 0
    for prediction, truth in zip(predictions, truths, strict=True):
        a, b = Counter(tokens_13a(prediction)), Counter(tokens_13a(truth))
        matched += (a & b).total()
        predicted += a.total()
        expected += b.total()
    if predicted == expected == 0:
        return 1.0
    if matched == 0:
        return 0.0
    brevity_penalty = 1.0 if predicted > expected else math.exp(1 - expected / predicted)
    return brevity_penalty * matched / predicted
