"""A trajectory as tokens: one document that supervises all of its observations, and the prompts that match it.

    <section> part ... <section> part <end>...          context: up to the next multiple of the block length
    <action> text <observation> text <end> <end>...     each step: likewise filled with <end>

Every step starts on a block boundary of the document, so an observation never shares a block with a later turn. What
is to be predicted is the observation's text and all <end> after it: the model learns where to stop, and the fill of
the last block is predicted in one go with it. Because every step owns its blocks, the tokens of a step are the same
wherever it stands, and the prompt of a step is exactly the beginning of the document.

A trajectory longer than a row becomes several documents: each holds the whole context, then a section that says how
many turns are left out, then the most recent earlier turns as clean context, then turns that are targets. Every step
is a target in exactly one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Int32

from maskworld.config import CONTEXT_PARTS
from maskworld.data.schema import Step, Trajectory
from maskworld.data.tokenizer import Tokenizer
from maskworld.errors import DataError


@dataclass(frozen=True)
class StepSpan:
    """Where step `step` of the trajectory stands in its document (token offsets)."""

    step: int
    start: int
    """Offset of its <action>; a multiple of the block length."""
    observation_start: int
    """Offset of the observation's first token, one past <observation>: the length of the prompt."""
    observation_end: int
    """One past the last token of the observation's text; the offset of its first <end>."""
    end: int
    """One past the last <end>; a multiple of the block length."""
    is_target: bool
    """Whether this document supervises the step, or holds it as history only."""


@dataclass(frozen=True)
class Document:
    """Tokens of one trajectory, or of a window of it. The length n is a multiple of the block length."""

    trajectory: str
    block_length: int
    tokens: Int32[np.ndarray, " n"]
    targets: Bool[np.ndarray, " n"]
    steps: tuple[StepSpan, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def target_blocks(self) -> int:
        """Blocks that hold at least one target."""
        return int(self.targets.reshape(-1, self.block_length).any(axis=1).sum())


@dataclass(frozen=True)
class Unfit:
    """A step that no document of the allowed size can supervise."""

    step: int
    reason: str
    """`context_too_long`, `step_too_long` or `too_many_target_blocks`."""
    detail: str
    """The numbers, in words."""


@dataclass(frozen=True)
class _Turn:
    """The tokens of one step, filled to whole blocks; they do not depend on where the step stands."""

    step: int
    tokens: list[int]
    observation_start: int
    observation_end: int

    def target_blocks(self, block_length: int) -> int:
        return len(self.tokens) // block_length - self.observation_start // block_length


def context_parts(trajectory: Trajectory, context: Sequence[str] = CONTEXT_PARTS) -> tuple[str, ...]:
    """The texts that precede the first step, in the order of `context` (field names); empty ones are left out."""
    values = (getattr(trajectory, name) for name in context)
    texts = (value if isinstance(value, str) else "\n".join(value) for value in values)
    return tuple(text for text in texts if text)


def render(
    trajectory: Trajectory, tokenizer: Tokenizer, block_length: int, context: Sequence[str] = CONTEXT_PARTS
) -> Document:
    """The whole trajectory as one document of any length; every step is a target."""
    head = _Head(trajectory, tokenizer, block_length, context)
    return _document(trajectory.id, head(0), _turns(trajectory, tokenizer, block_length), 0, block_length)


def render_windows(
    trajectory: Trajectory,
    tokenizer: Tokenizer,
    block_length: int,
    longest: int,
    most_target_blocks: int | None = None,
    context: Sequence[str] = CONTEXT_PARTS,
) -> tuple[list[Document], list[Unfit]]:
    """The trajectory as documents of at most `longest` tokens and `most_target_blocks` target blocks each.

    One document when it fits. Otherwise each next document spends at most half of the room behind the context on
    history, takes as many new turns as fit, and lends what is left to older history. A step that fits beside the
    context in no way is returned as `Unfit` and is in no document; the steps around it are.
    """
    head, turns = _Head(trajectory, tokenizer, block_length, context), _turns(trajectory, tokenizer, block_length)
    blocks = longest // block_length if most_target_blocks is None else most_target_blocks
    documents: list[Document] = []
    unfit: list[Unfit] = []
    step = 0
    while step < len(turns):
        problem = _problem(turns[step], len(head(step)), longest, blocks, block_length)
        if problem is not None:
            unfit.append(problem)
            step += 1
            continue
        first, last = _window(turns, step, head, longest, blocks, block_length)
        documents.append(_document(trajectory.id, head(first), turns[first:last], step, block_length))
        step = last
    return documents, unfit


def render_prompt(
    trajectory: Trajectory,
    step: int,
    tokenizer: Tokenizer,
    block_length: int,
    longest: int | None = None,
    context: Sequence[str] = CONTEXT_PARTS,
) -> Int32[np.ndarray, " n"]:
    """Tokens up to and including the <observation> of `step`: what the model sees before it predicts.

    Exactly the beginning of the trajectory's document. With `longest`, as many of the oldest turns are left out as
    needed for the prompt to have at most `longest` tokens, in the form that `render_windows` trains on. The
    observation of `step` and all that follows it have no influence.

    Raises:
        DataError: there is no such step, or context and action alone are longer than `longest`.
    """
    if not 0 <= step < len(trajectory.steps):
        raise DataError(f"trajectory {trajectory.id}: no step {step}; it has {len(trajectory.steps)}")
    seen = replace(trajectory, steps=(*trajectory.steps[:step], replace(trajectory.steps[step], observation="")))
    head, turns = _Head(seen, tokenizer, block_length, context), _turns(seen, tokenizer, block_length)
    asked = turns[step].tokens[: turns[step].observation_start]
    size = len(asked) + sum(len(turn.tokens) for turn in turns[:step])
    first = 0
    while longest is not None and len(head(first)) + size > longest:
        if first == step:
            raise DataError(
                f"trajectory {trajectory.id}, step {step}: context and action take {len(head(first)) + size} tokens; "
                f"at most {longest} are allowed"
            )
        size -= len(turns[first].tokens)
        first += 1
    history = [token for turn in turns[first:step] for token in turn.tokens]
    return np.asarray([*head(first), *history, *asked], np.int32)


class _Head:
    """The tokens before the first turn of a document: the context and, where turns are left out, how many."""

    def __init__(self, trajectory: Trajectory, tokenizer: Tokenizer, block_length: int, context: Sequence[str]):
        self._tokenizer, self._block_length = tokenizer, block_length
        self._context: list[int] = []
        for part in context_parts(trajectory, context):
            self._context += [tokenizer.section_id, *tokenizer.encode(part)]
        self._known: dict[int, list[int]] = {}

    def __call__(self, left_out: int) -> list[int]:
        if left_out not in self._known:
            tokens = list(self._context)
            if left_out:
                notice = f"({left_out} earlier turn{'s' if left_out > 1 else ''} left out)"
                tokens += [self._tokenizer.section_id, *self._tokenizer.encode(notice)]
            tokens += [self._tokenizer.end_id] * (-len(tokens) % self._block_length)
            self._known[left_out] = tokens
        return self._known[left_out]


def _turns(trajectory: Trajectory, tokenizer: Tokenizer, block_length: int) -> list[_Turn]:
    return [_turn(index, step, tokenizer, block_length) for index, step in enumerate(trajectory.steps)]


def _turn(index: int, step: Step, tokenizer: Tokenizer, block_length: int) -> _Turn:
    tokens = [tokenizer.action_id, *tokenizer.encode(step.action), tokenizer.observation_id]
    start = len(tokens)
    tokens += tokenizer.encode(step.observation)
    stop = len(tokens)
    tokens += [tokenizer.end_id] * (1 + -(stop + 1) % block_length)
    return _Turn(index, tokens, start, stop)


def _problem(turn: _Turn, head: int, longest: int, most_blocks: int, block_length: int) -> Unfit | None:
    """Why a document cannot supervise `turn` even without any history; None when it can."""
    blocks = turn.target_blocks(block_length)
    if head >= longest:
        return Unfit(turn.step, "context_too_long", f"the context takes {head} tokens, a row holds {longest}")
    if head + len(turn.tokens) > longest:
        detail = f"context ({head} tokens) and step ({len(turn.tokens)}) exceed the {longest} tokens of a row"
        return Unfit(turn.step, "step_too_long", detail)
    if blocks > most_blocks:
        return Unfit(turn.step, "too_many_target_blocks", f"{blocks} target blocks, a row holds {most_blocks}")
    return None


def _window(
    turns: Sequence[_Turn], step: int, head: _Head, longest: int, most_blocks: int, block_length: int
) -> tuple[int, int]:
    """Turns [first, last) of the document whose targets begin at `step`, which is known to fit."""
    first, size = step, len(turns[step].tokens)
    half = (longest - len(head(step))) // 2
    history = 0
    while first > 0:
        longer = len(turns[first - 1].tokens)
        if history + longer > half or len(head(first - 1)) + size + longer > longest:
            break
        first, size, history = first - 1, size + longer, history + longer
    last, blocks = step + 1, turns[step].target_blocks(block_length)
    while last < len(turns):
        blocks += turns[last].target_blocks(block_length)
        if len(head(first)) + size + len(turns[last].tokens) > longest or blocks > most_blocks:
            break
        last, size = last + 1, size + len(turns[last].tokens)
    while first > 0 and len(head(first - 1)) + size + len(turns[first - 1].tokens) <= longest:
        first, size = first - 1, size + len(turns[first - 1].tokens)
    return first, last


def _document(
    trajectory: str, head: list[int], turns: Sequence[_Turn], first_target: int, block_length: int
) -> Document:
    tokens = list(head)
    spans = []
    for turn in turns:
        start = len(tokens)
        tokens += turn.tokens
        spans.append(
            StepSpan(
                step=turn.step,
                start=start,
                observation_start=start + turn.observation_start,
                observation_end=start + turn.observation_end,
                end=len(tokens),
                is_target=turn.step >= first_target,
            )
        )
    targets = np.zeros(len(tokens), bool)
    for span in spans:
        if span.is_target:
            targets[span.observation_start : span.end] = True
    return Document(trajectory, block_length, np.asarray(tokens, np.int32), targets, tuple(spans))
