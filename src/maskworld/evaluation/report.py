"""report.html: what a run trained, how it learned, what it scores, and how it writes. One file, nothing external."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from maskworld.evaluation.baselines import verb
from maskworld.evaluation.charts import denoising_picture, loss_chart, picture_width
from maskworld.evaluation.differences import marked_pair
from maskworld.evaluation.predictions import INITIAL_STATE_CHARACTERS, Prediction
from maskworld.evaluation.report_scores import headline, headline_lines, score_section
from maskworld.evaluation.run_facts import data_facts, model_facts, tokens_per_step, training_facts
from maskworld.evaluation.run_record import REPORT_FILE, RunRecord, read_run
from maskworld.evaluation.scores import held_out_groups
from maskworld.evaluation.text_metrics import exact_match
from maskworld.report_style import STYLE
from maskworld.storage import write_text

SHOWN_TRANSITIONS = 5
_PICTURE_PIXELS = 960


def write_report(run_folder: str | Path) -> Path:
    """Write `report.html` into the run folder from the files that are there, and return its path.

    Raises:
        DataError: there is no such folder.
        StorageError: the folder cannot be written.
    """
    run = read_run(Path(run_folder))
    path = run.folder / REPORT_FILE
    write_text(path, render_report(run))
    return path


def last_lines(run_folder: str | Path) -> list[str]:
    """What a terminal ends with: the path of the report and the three numbers that matter.

    Raises:
        DataError: there is no such folder.
    """
    run = read_run(Path(run_folder))
    return [*headline_lines(run.scores), f"report: {run.folder / REPORT_FILE}"]


def render_report(run: RunRecord) -> str:
    """The whole page. Every text that comes from a file is escaped."""
    name = str(run.value("name") or run.folder.name)
    sections = (_header(run, name), _facts(run), _loss(run), score_section(run.scores), _transitions(run))
    page = "\n".join((*sections, _denoising(run), _footer(run)))
    html = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(name)} · maskworld report</title><style>{STYLE}</style></head>\n"
        f"<body><main>\n{page}\n</main></body></html>\n"
    )
    return html.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate in a file must not stop the report


def _header(run: RunRecord, name: str) -> str:
    data = run.scores.get("data") or {}
    environments = ", ".join(map(str, data.get("environments") or ()))
    what = "A block-diffusion world model" + (f" of {environments}." if environments else ".")
    if run.scores:
        seen = data.get("seen_groups")
        what += f" Scored on {run.scores['transitions']:,} transitions from {held_out_groups(run.scores)}"
        what += f", {seen:,} of which were trained on." if seen else "."
    notes = "".join(f'<p class="missing">{escape(note)}</p>' for note in run.missing)
    return f'<h1>{escape(name)}</h1><p class="lead">{escape(what)}</p>{notes}{headline(run.scores)}'


def _facts(run: RunRecord) -> str:
    columns = (("Data", data_facts(run)), ("Model", model_facts(run)), ("Training", training_facts(run)))
    blocks = []
    for heading, facts in columns:
        if facts:
            rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
            blocks.append(f"<div><h3>{heading}</h3><dl>{rows}</dl></div>")
    return f'<h2>What was trained on what</h2><div class="facts">{"".join(blocks)}</div>' if blocks else ""


def _loss(run: RunRecord) -> str:
    heading = "<h2>Loss</h2>"
    curves = [("train", run.series("train", "loss")), ("validation", run.series("validation", "loss"))]
    chart = loss_chart(curves, tokens_per_step(run))
    if not chart:
        return heading + '<p class="missing">No loss has been recorded.</p>'
    return (
        f'{heading}<p class="note">Upper bound on the negative log-likelihood, in nats per target token; the axis is '
        "logarithmic. Training values come from single batches with fresh noise, validation values from the "
        f"validation split with the same noise each time.</p>{chart}"
    )


def _transitions(run: RunRecord) -> str:
    heading = "<h2>Held-out transitions, truth beside prediction</h2>"
    if not run.predictions:
        return heading + '<p class="missing">There are no predictions to show.</p>'
    shown = pick_transitions(run.predictions)
    right = sum(exact_match(p.prediction, p.truth) for p in run.predictions)
    note = (
        f"{len(shown)} of {len(run.predictions):,}, picked to show different actions, and both right and wrong "
        f"predictions where both exist. They are not a sample: {right:,} of all are right. Underlined in the truth is "
        "what the prediction lacks; struck out in the prediction is what the truth does not say."
    )
    return f'{heading}<p class="note">{note}</p>{"".join(map(_transition, shown))}'


def pick_transitions(predictions: Sequence[Prediction], count: int = SHOWN_TRANSITIONS) -> list[Prediction]:
    """Up to `count` predictions, two of them wrong where there are two, the right ones first.

    Among each, different verbs first, then steps that change the state, then different rooms. Depends on nothing but
    the predictions and their order.
    """
    right = [p for p in predictions if exact_match(p.prediction, p.truth)]
    wrong = [p for p in predictions if not exact_match(p.prediction, p.truth)]
    wrong_places = min(len(wrong), max(2, count - len(right)))
    return _various(right, count - wrong_places) + _various(wrong, wrong_places)


def _various(predictions: Sequence[Prediction], count: int) -> list[Prediction]:
    chosen: list[Prediction] = []
    left = list(predictions)
    while left and len(chosen) < count:
        verbs, groups = {verb(p.action) for p in chosen}, {p.group for p in chosen}
        best = min(left, key=lambda p: (verb(p.action) in verbs, not p.changes_state, p.group in groups))
        chosen.append(best)
        left.remove(best)
    return chosen


def _transition(p: Prediction) -> str:
    right = exact_match(p.prediction, p.truth)
    verdict = '<span class="verdict right">right</span>' if right else '<span class="verdict wrong">wrong</span>'
    kind = "changes the state" if p.changes_state else "does not change the state"
    cost = f"{_count(p.tokens, 'token')} in {_count(p.forwards, 'forward')}"
    where = f"{p.group or p.trajectory}, step {p.step + 1}, {kind}; {cost}"
    state = ""
    if p.initial_state:
        cut = "…" if len(p.initial_state) >= INITIAL_STATE_CHARACTERS else ""
        state = f"<details><summary>initial state</summary><div>{escape(p.initial_state)}{cut}</div></details>"
    lines = [_history_line(line) for line in p.history]
    lines.append(f'<span class="act now">&gt; {escape(p.action)}</span>')
    truth, prediction = marked_pair(p.truth, p.prediction)
    return (
        f'<article class="transition"><header>{verdict}<span class="soft">{escape(where)}</span></header>{state}'
        f'<div class="history">{"<br>".join(lines)}</div><div class="pair">'
        f'<div class="truth"><div class="side">truth</div><div class="text">{truth}</div></div>'
        f'<div class="prediction"><div class="side">prediction</div><div class="text">{prediction}</div></div>'
        "</div></article>"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _history_line(line: str) -> str:
    return f'<span class="act">{escape(line)}</span>' if line.startswith("> ") else escape(line)


def _denoising(run: RunRecord) -> str:
    heading = "<h2>One observation, denoised step by step</h2>"
    example = pick_denoising(run.predictions)
    if example is None:
        return heading + '<p class="missing">No prediction holds a trace of its denoising.</p>'
    right = exact_match(example.prediction, example.truth)
    verdict = "right" if right else f"wrong, the truth is “{escape(example.truth)}”"
    where = escape(f"{example.group or example.trajectory}, step {example.step + 1}")
    writes = example.forwards - len(example.trace)
    cost = f"{_count(example.tokens, 'token')}, the first end included, took {_count(example.forwards, 'forward')}"
    if writes > 0:
        cost += f", {writes} of which only wrote finished blocks into the cache"
    caption = (
        f"What follows “{escape(example.action)}” ({where}); the prediction is {verdict}. Columns are positions of the "
        f"observation, rows are denoising steps, dotted lines part the blocks, and the number at the end of a row "
        f"counts what the step committed. {cost}. Of the observations that fit the page this is one with the median "
        "number of forwards."
    )
    legend = (
        '<div class="legend"><span><i class="hidden"></i>masked</span>'
        '<span><i class="waiting"></i>block not begun</span>'
        '<span>committed in this step with confidence 0 <i class="shades"></i> 1</span></div>'
    )
    return f'{heading}<p class="note">{caption}</p>{legend}<div class="scroll">{denoising_picture(example)}</div>'


def pick_denoising(predictions: Sequence[Prediction]) -> Prediction | None:
    """The prediction to draw, the first whose number of forwards is the median among the candidates.

    Candidates are those with a trace, if possible of three steps or more, on a step that changes the state, ended
    and narrow enough for the page. None without any trace.
    """
    traced = [(p, picture_width(p)) for p in predictions if p.trace]
    for strict in (2, 1, 0):
        candidates = [
            p
            for p, width in traced
            if width
            and (strict < 1 or (p.finished and width <= _PICTURE_PIXELS))
            and (strict < 2 or (p.changes_state and len(p.trace) > 2))
        ]
        if candidates:
            median = sorted(p.forwards for p in candidates)[len(candidates) // 2]
            return next(p for p in candidates if p.forwards == median)
    return None


def _footer(run: RunRecord) -> str:
    return (
        '<footer class="note">Made from config.json, metrics.jsonl, scores.json and predictions.jsonl in '
        f"<code>{escape(str(run.folder))}</code>.</footer>"
    )
