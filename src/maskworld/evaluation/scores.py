"""From predictions to a table: exact match with intervals, ROUGE-L and BLEU-1, by system and kind of step."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maskworld.evaluation.baselines import BASELINES, verb
from maskworld.evaluation.predictions import Prediction
from maskworld.evaluation.text_metrics import Words, bleu1, exact_match, normalize, rouge_l, words_for
from maskworld.storage import write_text

if TYPE_CHECKING:
    from rich.table import Table

MODEL = "model"
STATE_CHANGING, OTHER, ALL = "state-changing", "other", "all"
SLICES = (STATE_CHANGING, OTHER, ALL)
_ROOM_ENVIRONMENTS = {"alfworld"}
SCORE_FIELDS = frozenset("split transitions groups words systems model_by_verb best_baseline ratio generation".split())
"""What every `scores.json` has."""


def wilson_interval(correct: int, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Score interval of a share of independent trials; z = 1.96 gives 95 %. (0, 1) if there were no trials.

    Source: Wilson, JASA 22 (1927).
    """
    if n == 0:
        return 0.0, 1.0
    share, spread = correct / n, z * z / n
    middle = share + spread / 2
    half_width = z * math.sqrt(share * (1 - share) / n + spread / (4 * n))
    low, high = (middle - half_width) / (1 + spread), (middle + half_width) / (1 + spread)
    return (0.0 if correct == 0 else low), (1.0 if correct == n else high)


def score_texts(predictions: Sequence[str], truths: Sequence[str], words: Words = "latin") -> dict[str, Any]:
    """One cell of the table: n, correct, exact_match, interval (Wilson 95 %), rouge_l (mean), bleu1 (corpus).

    All but the counts lie in [0, 1], and are None where n = 0. `both_empty` counts pairs of empty texts, which every
    metric takes as a match.
    """
    n = len(truths)
    if n == 0:
        nothing = dict.fromkeys(("exact_match", "interval", "rouge_l", "bleu1"))
        return {"n": 0, "correct": 0, **nothing, "both_empty": 0}
    correct = sum(exact_match(p, t) for p, t in zip(predictions, truths, strict=True))
    spaced = [[normalize(text, compact=False) for text in texts] for texts in (predictions, truths)]
    return {
        "n": n,
        "correct": correct,
        "exact_match": correct / n,
        "interval": list(wilson_interval(correct, n)),
        "rouge_l": sum(rouge_l(p, t, words) for p, t in zip(*spaced, strict=True)) / n,
        "bleu1": bleu1(*spaced),
        "both_empty": sum(not p and not t for p, t in zip(*spaced, strict=True)),
    }


def score(
    predictions: Sequence[Prediction],
    baselines: Sequence[Mapping[str, str]],
    *,
    split: str = "test",
    available: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The value of `scores.json`.

    Args:
        predictions: what the model generated.
        baselines: for each of them, the text every baseline predicts (`baselines.predict`).
        split: name of the split the rows come from.
        available: how many transitions the split has in `state-changing` and `other`, chosen or not.

    Returns:
        A JSON value: `systems[name][slice]` and `model_by_verb[verb]` hold cells of `score_texts`; `best_baseline` is
        the one with the highest exact match on state-changing steps; `ratio` is the model's over the best baseline's
        there (None if that is 0 or nothing was scored); `generation` counts forwards and tokens.
    """
    truths = [p.truth for p in predictions]
    words = words_for(truths)
    texts = {MODEL: [p.prediction for p in predictions]}
    texts |= {name: [row[name] for row in baselines] for name in BASELINES}
    members = {
        STATE_CHANGING: [i for i, p in enumerate(predictions) if p.changes_state],
        OTHER: [i for i, p in enumerate(predictions) if not p.changes_state],
        ALL: list(range(len(predictions))),
    }

    def cell(system: str, rows: Sequence[int]) -> dict[str, Any]:
        return score_texts([texts[system][i] for i in rows], [truths[i] for i in rows], words)

    systems = {name: {part: cell(name, rows) for part, rows in members.items()} for name in texts}
    verbs: dict[str, list[int]] = {}
    for i, prediction in enumerate(predictions):
        verbs.setdefault(verb(prediction.action), []).append(i)
    best = best_baseline(systems, STATE_CHANGING)
    ours, theirs = (systems[name][STATE_CHANGING]["exact_match"] for name in (MODEL, best))
    return {
        "split": split,
        "transitions": len(predictions),
        "groups": len({p.group or p.trajectory for p in predictions}),
        "trajectories": len({p.trajectory for p in predictions}),
        "available": dict(available or {}),
        "words": words,
        "systems": systems,
        "model_by_verb": {
            name: cell(MODEL, rows) for name, rows in sorted(verbs.items(), key=lambda item: (-len(item[1]), item[0]))
        },
        "best_baseline": best,
        "ratio": ours / theirs if ours is not None and theirs else None,
        "generation": generation_counts(predictions),
    }


def group_noun(environments: Iterable[str], count: int) -> str:
    """What a split goes by, in the environment's own word where it is known."""
    names = set(environments)
    return ("room" if names and names <= _ROOM_ENVIRONMENTS else "group") + ("" if count == 1 else "s")


def held_out_groups(scores: Mapping[str, Any]) -> str:
    """`24 unseen rooms`: where the scored transitions come from."""
    data = scores.get("data") or {}
    unseen = "unseen " if data.get("seen_groups") == 0 else ""
    return f"{scores['groups']:,} {unseen}{group_noun(data.get('environments') or (), scores['groups'])}"


def best_baseline(systems: Mapping[str, Any], part: str) -> str:
    """Name of the baseline with the highest exact match in a slice; the first of equals."""
    return max((name for name in systems if name != MODEL), key=lambda name: systems[name][part]["exact_match"] or 0.0)


def generation_counts(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Cost of the observations.

    Forwards count cache writes and not the prompt's; tokens count up to and including the first <end>.
    """
    forwards, tokens = sum(p.forwards for p in predictions), sum(p.tokens for p in predictions)
    return {
        "observations": len(predictions),
        "unfinished": sum(not p.finished for p in predictions),
        "forwards": forwards,
        "tokens": tokens,
        "forwards_per_observation": forwards / len(predictions) if predictions else None,
        "tokens_per_forward": tokens / forwards if forwards else None,
    }


def write_scores(path: Path, scores: Mapping[str, Any]) -> None:
    """Replace `scores.json`. Raises StorageError if the folder cannot be written."""
    write_text(path, json.dumps(scores, indent=1, ensure_ascii=False) + "\n")


def share(value: float | None, digits: int = 3) -> str:
    """A number in [0, 1] for the eye; a dash for what was not measured."""
    return "–" if value is None else f"{value:.{digits}f}"


def times(ours: float | None, theirs: float | None) -> str:
    """How often `ours` holds `theirs`, for the eye: `6.9 times`, `23 times`; empty unless it is more than once."""
    if not ours or not theirs or ours <= theirs:
        return ""
    ratio = ours / theirs
    return f"{ratio:.2g} times" if ratio < 10 else f"{ratio:,.0f} times"


def table(scores: Mapping[str, Any]) -> Table:
    """The score table as a rich value."""
    from rich.table import Table
    from rich.text import Text

    count, split = scores["transitions"], scores["split"]
    result = Table(
        title=f"{count:,} held-out transitions from {held_out_groups(scores)} of the {split} split",
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for heading in ("steps", "system"):
        result.add_column(heading)
    for heading in ("n", "exact match", "95 % interval", "ROUGE-L", "BLEU-1"):
        result.add_column(heading, justify="right")
    for part in SLICES:
        for system, cells in scores["systems"].items():
            cell = cells[part]
            best = system == scores["best_baseline"] and part == STATE_CHANGING
            low, high = cell["interval"] or (None, None)
            values = (
                part if system == MODEL else "",
                system + (" (best baseline)" if best else ""),
                str(cell["n"]),
                share(cell["exact_match"]),
                f"{share(low)} to {share(high)}",
                share(cell["rouge_l"]),
                share(cell["bleu1"]),
            )
            style = "bold" if system == MODEL else ""
            result.add_row(*(Text(value, style=style) for value in values), end_section=system == BASELINES[-1])
    return result


def table_text(scores: Mapping[str, Any], width: int = 110) -> str:
    """The score table as plain lines."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table(scores))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
