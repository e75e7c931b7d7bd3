"""A trajectory as tokens: one document that supervises all of its observations, and the prompts that match it.

    <section> part ... <section> part <end>...                      context: filled with <end> to whole blocks
    <action> text <section> directives <observation> text <end>...  each step: likewise; most have no directives

Every step starts on a block boundary of the document, so an observation never shares a block with a later turn. What
is to be predicted is the observation's text and all <end> after it: the model learns where to stop, and the fill of
the last block is predicted in one go with it. Because every step owns its blocks, and what holds for one step only
stands in its turn, the tokens of a step are the same wherever it stands, all steps share the context before them, and
the prompt of a step is exactly the beginning of the document.

A trajectory longer than a row becomes several documents. Each holds the whole context, then turns that are history,
then turns that are targets; every step is a target in exactly one document. History too long for its room is left
out from the middle, by whole turns:

    context | first turn | <section> (n turns left out) <end>... | most recent turns | target turns

The first turn is kept if it takes at most a quarter of the row beside the context. A context, an action or an
observation that leaves no room for the rest is cut (`data/turns.py` says where).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Int32

from maskworld.config import CONTEXT_PARTS
from maskworld.data.schema import Trajectory
from maskworld.data.tokenizer import Tokenizer
from maskworld.data.turns import Layout, Tokens, Turn, lay_out
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
    """One past the last token shown of the observation's text; the offset of its first <end> if it is not cut."""
    target_end: int
    """One past the last token that is a target if the step is one; a multiple of the block length. Before `end` where
    the observation is cut, or takes more target blocks than a row may have."""
    end: int
    """One past the last token; a multiple of the block length."""
    is_target: bool
    """Whether this document supervises the step, or holds it as history only."""
    action_cut: int = 0
    """Tokens left out of the action and its directives."""
    observation_cut: int = 0
    """Tokens left out at the end of the observation."""


@dataclass(frozen=True)
class Document:
    """Tokens of one trajectory, or of a window of it. The length n is a multiple of the block length."""

    trajectory: str
    block_length: int
    tokens: Int32[np.ndarray, " n"]
    targets: Bool[np.ndarray, " n"]
    steps: tuple[StepSpan, ...]
    context_cut: int = 0
    """Tokens left out of the context."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def target_blocks(self) -> int:
        """Blocks that hold at least one target."""
        return int(self.targets.reshape(-1, self.block_length).any(axis=1).sum())


@dataclass(frozen=True)
class Unfit:
    """A step that no document of the allowed size can supervise: the row has too few blocks for anything."""

    step: int
    reason: str
    """`row_too_short`"""
    detail: str
    """The numbers, in words."""


def render(
    trajectory: Trajectory, tokenizer: Tokenizer, block_length: int, context: Sequence[str] = CONTEXT_PARTS
) -> Document:
    """The whole trajectory as one document of any length; nothing is cut and every step is a target but history."""
    layout = lay_out(trajectory, tokenizer, block_length, context)
    return _document(trajectory.id, layout, _History(0, False, 0), trajectory.history_steps, len(layout.turns), None)


def render_windows(
    trajectory: Trajectory,
    tokenizer: Tokenizer,
    block_length: int,
    longest: int,
    most_target_blocks: int | None = None,
    context: Sequence[str] = CONTEXT_PARTS,
) -> tuple[list[Document], list[Unfit]]:
    """The trajectory as documents of at most `longest` tokens (L) and `most_target_blocks` target blocks (K) each.

    One document when it fits. Otherwise each next document spends at most half of the room beside the context on
    history, takes as many new turns as fit, and lends what is left to older history. Of an observation that needs more
    than K blocks the first K are targets. A step is `Unfit`, and in no document, only where a row of few blocks leaves
    it no room at all.
    """
    layout = lay_out(trajectory, tokenizer, block_length, context, longest)
    documents: list[Document] = []
    unfit: list[Unfit] = []
    step = trajectory.history_steps
    while step < len(layout.turns):
        size, room = len(layout.turns[step]), layout.room(step)
        if size > room:
            detail = f"the step takes {size} tokens; a row of {longest} has {max(room, 0)} for it"
            unfit.append(Unfit(step, "row_too_short", detail))
            step += 1
            continue
        history, last = _window(layout, step, most_target_blocks)
        documents.append(_document(trajectory.id, layout, history, step, last, most_target_blocks))
        step = last
    return documents, unfit


def render_prompt(
    trajectory: Trajectory,
    step: int,
    tokenizer: Tokenizer,
    block_length: int,
    longest: int | None = None,
    context: Sequence[str] = CONTEXT_PARTS,
    row_length: int | None = None,
) -> Int32[np.ndarray, " n"]:
    """Tokens up to and including the <observation> of `step`: what the model sees before it predicts.

    Exactly the beginning of the trajectory's document. The observation of `step` and all that follows it have no
    influence.

    Args:
        longest: most tokens of the prompt. From a longer one turns are left out from the middle, as in training; only
            if it is too long without any, its context and action are cut to shares of `longest`.
        row_length: L of the rows that the model was trained on: contexts, actions and earlier observations are cut as
            they were there. None takes `longest`; nothing is cut where that is None too.

    Raises:
        DataError: there is no such step, or `longest` is too short for anything.
    """
    if not 0 <= step < len(trajectory.steps):
        raise DataError(f"trajectory {trajectory.id}: no step {step}; it has {len(trajectory.steps)}")
    seen = replace(trajectory, steps=(*trajectory.steps[:step], replace(trajectory.steps[step], observation="")))
    for length in (row_length or longest, longest):
        layout = lay_out(seen, tokenizer, block_length, context, length)
        asked = layout.turns[step].tokens[: layout.turns[step].observation_start]
        room = None if longest is None else longest - len(layout.context) - len(asked)
        prompt = np.concatenate([layout.context, *_history(layout, step, room).pieces(layout, step), asked])
        if longest is None or len(prompt) <= longest:
            return prompt
    raise DataError(
        f"trajectory {trajectory.id}, step {step}: context and action take {len(prompt)} tokens; at most {longest} "
        "are allowed"
    )


@dataclass(frozen=True)
class _History:
    """The turns before a target: turn 0 if `opening`, a notice if any are left out, then all from `first` on."""

    left_out: int
    opening: bool
    first: int

    def shown(self, layout: Layout, step: int) -> list[Turn]:
        """The turns before turn `step`."""
        return [*layout.turns[: self.opening], *layout.turns[self.first : step]]

    def pieces(self, layout: Layout, step: int) -> list[Tokens]:
        """Their tokens, and those of the notice in its place."""
        pieces = [turn.tokens for turn in self.shown(layout, step)]
        if self.left_out:
            pieces.insert(self.opening, layout.remarks.notice(self.left_out))
        return pieces


def _history(layout: Layout, step: int, room: int | None) -> _History:
    """What stands before turn `step` in at most `room` tokens; a notice alone where they hold nothing."""
    sizes = [len(turn) for turn in layout.turns[:step]]
    if not sizes or room is None or sum(sizes) <= room:
        return _History(0, False, 0)
    used = layout.remarks.notice_length
    opening = sizes[0] <= layout.beside // 4 and used + sizes[0] <= room
    used += sizes[0] if opening else 0
    first = step
    while first - 1 > opening and used + sizes[first - 1] <= room:
        first -= 1
        used += sizes[first]
    return _History(first - opening, opening, first)


def _window(layout: Layout, step: int, most_blocks: int | None) -> tuple[_History, int]:
    """History and end of the document whose targets begin at `step`, which is known to fit."""
    turns, block_length = layout.turns, layout.remarks.block_length
    half = max(layout.beside // 2, layout.remarks.notice_length)
    history = _history(layout, step, min(half, layout.beside - len(turns[step])))
    room = layout.beside - sum(map(len, history.pieces(layout, step)))
    last, size, blocks = step, 0, 0
    while last < len(turns):
        size += len(turns[last])
        blocks += turns[last].target_blocks(block_length, most_blocks)
        if size > room or (most_blocks is not None and blocks > most_blocks):
            size -= len(turns[last])
            break
        last += 1
    return _history(layout, step, layout.beside - size), last


def _document(
    trajectory: str, layout: Layout, history: _History, step: int, last: int, most_blocks: int | None
) -> Document:
    """Context, `history`, and turns [step, last) as targets."""
    block_length = layout.remarks.block_length
    pieces = [layout.context, *history.pieces(layout, step), *(turn.tokens for turn in layout.turns[step:last])]
    tokens = np.concatenate(pieces)
    targets = np.zeros(len(tokens), bool)
    notice = layout.remarks.notice_length if history.left_out else 0
    start = len(layout.context)
    spans = []
    for turn in (*history.shown(layout, step), *layout.turns[step:last]):
        if turn.step == history.first:
            start += notice
        span = _span(turn, start, turn.step >= step, turn.target_end(block_length, most_blocks))
        targets[span.observation_start : span.target_end] = span.is_target
        spans.append(span)
        start = span.end
    return Document(trajectory, block_length, tokens, targets, tuple(spans), layout.context_cut)


def _span(turn: Turn, start: int, is_target: bool, target_end: int) -> StepSpan:
    return StepSpan(
        step=turn.step,
        start=start,
        observation_start=start + turn.observation_start,
        observation_end=start + turn.observation_end,
        target_end=start + target_end,
        end=start + len(turn),
        is_target=is_target,
        action_cut=turn.action_cut,
        observation_cut=turn.observation_cut,
    )
