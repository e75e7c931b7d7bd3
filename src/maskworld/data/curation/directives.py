"""Steering directives derived from how a step turned out, and a measure of what a directive gives away.

A derived directive is a function of the step's `Outcome` and of the phrasing drawn, of nothing else: two observations
with equal outcomes get the same directives, and all texts there can be are in `ALTERNATIVES`. No text holds a digit or
a quotation mark. Counts are named up to five ("with three entries") because a user steers the size of an answer that
way; above that only their class is told, so that no count says a total, a quantity or an id.

A derived directive holds for one step and stands beside its action (`Step.directives`): all that precedes the first
step is the same for the whole trajectory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

from maskworld.data.curation.outcomes import COUNTS, Outcome, outcome
from maskworld.data.draws import draws
from maskworld.data.schema import Step, Trajectory

_KINDS = {
    "ok": (
        "The action is valid and succeeds.",
        "Expected outcome: success.",
        "Let the action succeed.",
        "Treat this as a valid action.",
    ),
    "error": (
        "The action is refused or fails.",
        "Expected outcome: an error.",
        "Let the action fail.",
        "Treat this as an action that cannot be carried out.",
    ),
    "empty": (
        "The action is accepted but nothing comes of it.",
        "Expected outcome: an empty result.",
        "Let the result be empty.",
        "Treat this as an action that finds or shows nothing.",
    ),
    "truncated": (
        "The action succeeds but its output is cut.",
        "Expected outcome: success with truncated output.",
        "Let the output be too large to be shown in full.",
        "Show a part of the output and mark the cut.",
    ),
}
_STATUSES = {
    "1xx": ("The status is of the informational class.", "Answer with an informational status."),
    "2xx": ("The status is of the success class.", "Answer with a success status."),
    "3xx": ("The status is of the redirection class.", "Answer with a redirection status."),
    "4xx": ("The status is of the client error class.", "Answer with a client error status."),
    "5xx": ("The status is of the server error class.", "Answer with a server error status."),
    "exit": ("The exit code is not zero.", "Let the process end with a nonzero exit code."),
}
_NO_TEXT = ("Show no text at all.", "Leave the observation blank.", "Format: no text.")
_FORMS = {
    "object": ("Answer with one JSON object{}.", "Format: a JSON object{}.", "Write the answer as a JSON object{}."),
    "list": ("Answer with a JSON list{}.", "Format: a JSON list{}.", "Write the answer as a JSON list{}."),
    "line": ("Answer in a single line{}.", "Format: one line of plain text{}.", "Write the answer as one line{}."),
    "text": ("Answer in several lines{}.", "Format: plain text over lines{}.", "Write the answer as lines of text{}."),
}
_LENGTHS = {
    "tiny": ("Use a few words at most.", "Length: a few words."),
    "short": ("Keep it short.", "Length: short."),
    "medium": ("Be of medium length.", "Length: medium."),
    "long": ("Give a long answer.", "Length: long."),
    "huge": ("Give a very long answer.", "Length: very long."),
}
_ENTRIES = {"": "", "none": " with no entries", "one": " with one entry"}
_SHAPES = {("nothing", count): _NO_TEXT for count in ("", *COUNTS)} | {
    (form, count): tuple(text.format(_ENTRIES.get(count, f" with {count} entries")) for text in _FORMS[form])
    for form, count in product(_FORMS, ("", *COUNTS))
}

ALTERNATIVES: dict[str, tuple[str, ...]] = {
    text: group
    for table in (_KINDS, _STATUSES, _SHAPES, _LENGTHS)
    for group in table.values()  # type: ignore[attr-defined]
    for text in group
}
"""Every text that can be derived, with all phrasings of the same directive, itself among them."""

_WORD = re.compile(r"\w+")
_QUOTED = re.compile(r"\"([^\"\n]+)\"|`([^`\n]+)`|(?<!\w)'([^'\n]+)'(?!\w)")


def derived_directives(step: Step, choice: int = 0) -> tuple[str, ...]:
    """How the step turned out: success, status if any, form with count, length; `choice` >= 0 picks the phrasings."""
    return directives_of(outcome(step), choice)


def directives_of(known: Outcome, choice: int = 0) -> tuple[str, ...]:
    """The directives of an outcome; `choice` >= 0 picks the phrasings."""
    groups = [_KINDS[known.kind]]
    if known.status:
        groups.append(_STATUSES[known.status])
    groups.append(_SHAPES[known.form, known.count])
    if known.form != "nothing":
        groups.append(_LENGTHS[known.length])
    texts = []
    for group in groups:
        choice, index = divmod(choice, len(group))
        texts.append(group[index])
    return tuple(texts)


def with_derived_directives(trajectory: Trajectory, seed: int, outcomes: Iterable[Outcome] | None = None) -> Trajectory:
    """The trajectory with the derived directives of every step behind those that its source gave.

    The phrasing depends on the seed, the trajectory's id and the step. Derived directives that are there already are
    replaced. `outcomes` are those of the steps, where they are known already.
    """
    choices = draws(seed, "derived directives", trajectory.id)
    steps = []
    known = map(outcome, trajectory.steps) if outcomes is None else outcomes
    for step, result, choice in zip(trajectory.steps, known, choices, strict=False):
        texts = directives_of(result, choice)
        if step.directives:
            texts = (*(text for text in step.directives if text not in ALTERNATIVES), *texts)
        told = object.__new__(Step)  # a tenth of what `replace` takes; the fields stay as they were checked
        vars(told).update(vars(step), directives=texts)
        steps.append(told)
    return replace(trajectory, steps=tuple(steps))


def leak(directives: Iterable[str], observation: str, n: int = 3) -> float:
    """The share of what the directives hold that stands in the observation too; 0 where they hold nothing.

    Counted are the distinct word n-grams (a directive of fewer words is one shorter gram), words of two or more
    characters with a digit, and quoted strings; letter case is ignored. Raises ValueError for n below one.
    """
    if n < 1:
        raise ValueError(f"n must be at least one, is {n}")
    target = observation.lower()
    pieces = {piece for text in directives for piece in _pieces(text.lower(), n)}
    told = _WORD.findall(target)
    sizes = {len(piece) for piece in pieces if isinstance(piece, tuple)}
    grams = {gram for size in sizes for gram in zip(*(told[start:] for start in range(size)), strict=False)}
    found = sum(piece in grams if isinstance(piece, tuple) else piece in target for piece in pieces)
    return found / len(pieces) if pieces else 0.0


def _pieces(text: str, n: int) -> Iterator[tuple[str, ...] | str]:
    """Word n-grams as tuples, words with a digit as tuples of one, quoted strings as they are."""
    words = _WORD.findall(text)
    size = min(n, len(words))
    if size:
        yield from zip(*(words[start:] for start in range(size)), strict=False)
    yield from ((word,) for word in words if len(word) > 1 and any(letter.isdigit() for letter in word))
    yield from (next(filter(None, found)) for found in _QUOTED.findall(text))
