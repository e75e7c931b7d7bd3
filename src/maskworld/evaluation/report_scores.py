"""The part of the report that holds numbers: the three that matter, the score table, and the table by verb."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from maskworld.evaluation.charts import interval_bar
from maskworld.evaluation.scores import (
    ALL,
    MODEL,
    OTHER,
    SLICES,
    STATE_CHANGING,
    best_baseline,
    held_out_groups,
    share,
    times,
)

Scores = Mapping[str, Any]

_SLICE_NAMES = {STATE_CHANGING: "Steps that change the state", OTHER: "Other steps", ALL: "All steps"}
_MOST_VERBS = 12


def _headline_numbers(scores: Scores) -> list[tuple[str, str, str, str]]:
    """(value, what it is, its spread or detail, what it is to be compared with) of the three numbers that matter."""
    numbers = []
    for part, what in ((STATE_CHANGING, "exact match, state-changing steps"), (ALL, "exact match, all steps")):
        cell, best = scores["systems"][MODEL][part], best_baseline(scores["systems"], part)
        theirs = scores["systems"][best][part]["exact_match"]
        beside = ", ".join(filter(None, (f"best baseline {share(theirs)}", times(cell["exact_match"], theirs))))
        numbers.append((share(cell["exact_match"]), what, f"95 % interval {interval(cell)}", beside))
    cost = scores["generation"]
    if cost["tokens_per_forward"] is not None:
        forwards = f"{cost['forwards_per_observation']:.1f} forwards per observation"
        numbers.append((f"{cost['tokens_per_forward']:.2f}", "tokens per forward", forwards, ""))
    return numbers


def headline(scores: Scores) -> str:
    """Exact match on state-changing and on all steps, beside the best baseline of each, and tokens per forward."""
    items = "".join(map(_headline_item, _headline_numbers(scores))) if scores else ""
    return f'<div class="headline">{items}</div>' if items else ""


def headline_lines(scores: Scores) -> list[str]:
    """The same three numbers as lines for a terminal."""
    if not scores:
        return ["not scored yet"]
    numbers = _headline_numbers(scores)
    widest = max(len(what) for _, what, _, _ in numbers)
    lines = [f"{scores['transitions']:,} held-out transitions from {held_out_groups(scores)}"]
    for value, what, detail, beside in numbers:
        lines.append(f"  {what:<{widest}}  {value}  ({'; '.join(part for part in (detail, beside) if part)})")
    return lines


def _headline_item(item: tuple[str, str, str, str]) -> str:
    value, what, *beside = map(escape, item)
    lines = "".join(f'<div class="beside">{line}</div>' for line in beside if line)
    return f'<div><div class="value">{value}</div><div class="what">{what}</div>{lines}</div>'


def interval(cell: Mapping[str, Any]) -> str:
    """`0.571–0.655`, or a dash where nothing was scored."""
    return "–".join(share(bound) for bound in cell["interval"]) if cell["interval"] else "–"


def score_section(scores: Scores) -> str:
    """Heading, table of all systems, what the numbers mean, and the model by verb."""
    heading = "<h2>Scores beside the baselines</h2>"
    if not scores:
        return heading + '<p class="missing">Not scored yet: run <code>maskworld evaluate</code> on this folder.</p>'
    rows = []
    systems = scores["systems"]
    for part in SLICES:
        count = systems[MODEL][part]["n"]
        rows.append(f'<tr class="part"><td colspan="6">{_SLICE_NAMES[part]} ({count:,})</td></tr>')
        for system, cells in systems.items():
            best = system == scores["best_baseline"] and part == STATE_CHANGING
            label = escape(system) + ('<span class="tag">best baseline</span>' if best else "")
            kind = ("model " if system == MODEL else "") + ("last" if system == list(systems)[-1] else "")
            rows.append(_row(label, "", cells[part], kind, emphasis=system == MODEL))
    table = _table("", rows)
    return f"{heading}{_ratio_sentence(scores)}{table}{_notes(scores)}{_verbs(scores)}"


def _ratio_sentence(scores: Scores) -> str:
    best = scores["best_baseline"]
    ours, theirs = (scores["systems"][name][STATE_CHANGING]["exact_match"] for name in (MODEL, best))
    if ours is None:
        return ""
    if ratio := times(ours, theirs):
        how = f"exactly right {ratio} as often as the best baseline ({best})"
    elif ours > theirs:
        how = "the only system that is ever exactly right"
    else:
        how = f"no better than the best baseline ({best})"
    return f"<p>On steps that change the state the model is {escape(how)}.</p>"


def _table(count_heading: str, rows: list[str]) -> str:
    headings = ("", count_heading, "exact match", "", "95 % interval", "ROUGE-L", "BLEU-1")
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _row(label: str, count: str, cell: Mapping[str, Any], kind: str = "", emphasis: bool = False) -> str:
    bar = interval_bar(cell["exact_match"], *cell["interval"], emphasis=emphasis) if cell["interval"] else ""
    values = (count, share(cell["exact_match"]), bar, interval(cell), share(cell["rouge_l"]), share(cell["bleu1"]))
    return f'<tr class="{kind}"><td>{label}</td>' + "".join(f"<td>{value}</td>" for value in values) + "</tr>"


def _notes(scores: Scores) -> str:
    words = "word characters of any script" if scores["words"] == "unicode" else "runs of a–z and 0–9"
    model, available = scores["systems"][MODEL], scores.get("available") or {}
    notes = [
        "A step changes the state if the engine's facts differ after it. Exact match compares texts after outer white "
        "space, Unicode form and the key order of JSON are set aside. The line behind each dot spans 0 to 1; intervals "
        "are Wilson's and take steps as independent, which those of one episode are not quite. ROUGE-L is the mean F1 "
        f"over {words}, BLEU-1 is at corpus level over 13a tokens. Baselines predict the same rows; frequencies are "
        "counted on the training split."
    ]
    if sum(available.values()) > scores["transitions"]:
        notes.append(
            f"Scored were {model[STATE_CHANGING]['n']:,} of {available[STATE_CHANGING]:,} steps that change the state "
            f"and {model[OTHER]['n']:,} of {available[OTHER]:,} others, a seeded choice from the {scores['split']} "
            "split."
        )
    if scores.get("left_out"):
        notes.append(f"{scores['left_out']:,} transitions were left out: a row has no room for their prompt.")
    if unfinished := scores["generation"]["unfinished"]:
        notes.append(f"{unfinished:,} predictions reached the limit of new tokens before they ended.")
    return f'<p class="note">{escape(" ".join(notes))}</p>'


def _verbs(scores: Scores) -> str:
    by_verb = scores["model_by_verb"]
    if not by_verb:
        return ""
    shown = list(by_verb.items())[:_MOST_VERBS]
    rows = [
        _row(f'<span class="mono">{escape(name) or "(none)"}</span>', f"{cell['n']:,}", cell) for name, cell in shown
    ]
    rest = len(by_verb) - len(shown)
    note = f'<p class="note">{rest:,} rarer kinds of action are in scores.json.</p>' if rest else ""
    return f"<h3>The model by kind of action</h3>{_table('steps', rows)}{note}"
