"""The tokens of a trajectory's parts: its context, its turns, and the remarks that stand where something was cut.

All of it depends on the row length L and the block length S, never on the document in which a part will stand, so
that what is trained and what is asked have the same tokens. What a row cannot hold is cut, never dropped:

| part | may take | is cut |
|---|---|---|
| context, all parts together | half of a row | in the middle of its largest parts |
| action and its directives | half of what is left beside the context | in the middle of the larger of them |
| observation | the rest | at its end, at a block boundary |

In a context or an action `(n tokens left out)` stands where tokens are missing. A cut observation fills its last
block, so that all that is shown of it is a target and no <end> is; the remark follows behind a <section> in blocks of
its own, which are no targets. So nothing teaches to stop early or to write the remark, and later turns can read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int32

from maskworld.config import CONTEXT_PARTS
from maskworld.data.schema import Step, Trajectory
from maskworld.data.tokenizer import Tokenizer

Tokens = Int32[np.ndarray, " n"]

_NOTICE_DIGITS = 5


@dataclass(frozen=True)
class Turn:
    """The tokens of one step, filled to whole blocks."""

    step: int
    tokens: Tokens
    observation_start: int
    observation_end: int
    """One past the last token that is shown of the observation's text."""
    action_cut: int
    """Tokens left out of the action and its directives."""
    observation_cut: int
    """Tokens left out at the end of the observation."""

    def __len__(self) -> int:
        return len(self.tokens)

    def target_end(self, block_length: int, most_blocks: int | None) -> int:
        """One past the last target if only `most_blocks` blocks may hold targets; a multiple of the block length."""
        end = self.observation_end if self.observation_cut else len(self.tokens)
        if most_blocks is None:
            return end
        return min(end, (self.observation_start // block_length + most_blocks) * block_length)

    def target_blocks(self, block_length: int, most_blocks: int | None) -> int:
        """Blocks that hold targets then."""
        return self.target_end(block_length, most_blocks) // block_length - self.observation_start // block_length


@dataclass(frozen=True)
class Layout:
    """A trajectory in parts, each filled to whole blocks."""

    context: Tokens
    context_cut: int
    """Tokens left out of the context."""
    turns: tuple[Turn, ...]
    remarks: Remarks
    row_length: int | None
    """L, or None where nothing has a limit."""

    @property
    def beside(self) -> int | None:
        """Tokens of a row beside the context."""
        return None if self.row_length is None else self.row_length - len(self.context)

    def room(self, step: int) -> int | None:
        """Tokens that turn `step` may take, which leave room for a notice before all turns but the first."""
        return None if self.beside is None else _room(step, self.beside, self.remarks)


def lay_out(
    trajectory: Trajectory,
    tokenizer: Tokenizer,
    block_length: int,
    context: Sequence[str] = CONTEXT_PARTS,
    row_length: int | None = None,
) -> Layout:
    """The parts of a trajectory for rows of `row_length` tokens, cut to their budgets; uncut where that is None.

    A row of few blocks may leave an observation no room even so: its turn is uncut then, and longer than its room.
    """
    remarks = Remarks(tokenizer, block_length)
    ids = iter(tokenizer.encode_batch(rendered_texts(trajectory, context)))
    parts = [next(ids) for _ in context_parts(trajectory, context)]
    most = None if row_length is None else row_length // 2 // block_length * block_length - len(parts)
    parts, context_cut = remarks.shortened(parts, most)
    head = remarks.filled(*(piece for part in parts for piece in (remarks.section, part)))
    turns = []
    beside = None if row_length is None else row_length - len(head)
    for index, step in enumerate(trajectory.steps):
        room = None if beside is None else _room(index, beside, remarks)
        turns.append(_turn(index, [next(ids) for _ in step_texts(step, context)], room, remarks))
    return Layout(head, context_cut, tuple(turns), remarks, row_length)


def context_parts(trajectory: Trajectory, context: Sequence[str] = CONTEXT_PARTS) -> tuple[str, ...]:
    """The texts that precede the first step, in the order of `context` (field names); empty ones are left out."""
    values = (getattr(trajectory, name) for name in context)
    texts = (value if isinstance(value, str) else "\n".join(value) for value in values)
    return tuple(text for text in texts if text)


def step_texts(step: Step, context: Sequence[str] = CONTEXT_PARTS) -> tuple[str, ...]:
    """Action, the step's directives if it has any and `context` names directives, and observation."""
    directives = "\n".join(step.directives) if "directives" in context else ""
    return (step.action, directives, step.observation) if directives else (step.action, step.observation)


def rendered_texts(trajectory: Trajectory, context: Sequence[str] = CONTEXT_PARTS) -> list[str]:
    """All texts of a trajectory that become tokens, in order."""
    steps = (step_texts(step, context) for step in trajectory.steps)
    return [*context_parts(trajectory, context), *(text for texts in steps for text in texts)]


def _room(step: int, beside: int, remarks: Remarks) -> int:
    return beside - (remarks.notice_length if step else 0)


def _turn(index: int, texts: Sequence[Tokens], room: int | None, remarks: Remarks) -> Turn:
    *said, observation = texts
    controls = len(said) + 1
    # The budget of the action must not depend on the observation, or the prompt would tell of it.
    said, action_cut = remarks.shortened(said, None if room is None else room // 2 - controls)
    pieces = [remarks.action, said[0]]
    for part in said[1:]:
        pieces += remarks.section, part
    pieces.append(remarks.observation)
    start = sum(map(len, pieces))
    end = start + len(observation)
    if room is not None and remarks.whole(end + 1) > room:
        boundary = (room - remarks.gap_length(len(observation))) // remarks.block_length * remarks.block_length
        if boundary > start:
            left_out = end - boundary
            tokens = np.concatenate([*pieces, observation[: boundary - start], remarks.gap(left_out)])
            return Turn(index, tokens, start, boundary, action_cut, left_out)
    return Turn(index, remarks.filled(*pieces, observation, remarks.end), start, end, action_cut, 0)


class Remarks:
    """Control tokens, fill, and the remarks that stand in place of what is left out.

    The number in a remark is encoded apart from its words, and no digit takes more than one token: so the length of a
    remark is bounded before its number is known.
    """

    def __init__(self, tokenizer: Tokenizer, block_length: int):
        self.block_length = block_length
        self._encode = tokenizer.encode_batch
        self.action, self.observation, self.section, self.end = (
            np.array([id], np.int32)
            for id in (tokenizer.action_id, tokenizer.observation_id, tokenizer.section_id, tokenizer.end_id)
        )
        self._fill = np.repeat(self.end, block_length)

    def whole(self, tokens: int) -> int:
        """`tokens` rounded up to whole blocks."""
        return -(-tokens // self.block_length) * self.block_length

    def filled(self, *pieces: Tokens) -> Tokens:
        """The pieces joined, and as many <end> as reach the next block boundary."""
        fill = -sum(map(len, pieces)) % self.block_length
        return np.concatenate([*pieces, self._fill[:fill]])

    @cached_property
    def notice_length(self) -> int:
        """Tokens of every notice: equal, so that one notice fits where another was planned."""
        return self.whole(1 + self._most("turn", _NOTICE_DIGITS))

    def notice(self, turns: int) -> Tokens:
        """<section> (n turns left out), in blocks of its own; it counts to 99999."""
        said = self._said(min(turns, 10**_NOTICE_DIGITS - 1), "turn")
        fill = self.notice_length - 1 - len(said)
        return np.concatenate([self.section, said, np.repeat(self.end, fill)])

    def gap_length(self, tokens: int) -> int:
        """Most tokens of a gap where at most `tokens` are left out."""
        return self.whole(1 + self._most("token", len(str(tokens))))

    def gap(self, tokens: int) -> Tokens:
        """<section> (n tokens left out), in blocks of its own."""
        return self.filled(self.section, self._said(tokens, "token"))

    def shortened(self, parts: Sequence[Tokens], most: int | None) -> tuple[list[Tokens], int]:
        """Parts of at most `most` tokens in all, the largest cut in the middle to equal lengths; how many are left out.

        Where `most` leaves no room for the remark, a part ends without it.
        """
        if most is None or sum(map(len, parts)) <= most:
            return [*parts], 0
        share = _share([len(part) for part in parts], max(most, 0))
        cut = [self._cut(part, share) for part in parts]
        return [part for part, _ in cut], sum(left_out for _, left_out in cut)

    def _cut(self, part: Tokens, most: int) -> tuple[Tokens, int]:
        if len(part) <= most:
            return part, 0
        keep = most - self._most("token", len(str(len(part))), " ")
        if keep < 2:
            return part[:most], len(part) - most
        left_out, behind = len(part) - keep, keep // 2
        return np.concatenate([part[: keep - behind], self._said(left_out, "token", " "), part[-behind:]]), left_out

    def _said(self, number: int, what: str, around: str = "") -> Tokens:
        words = (f"{around}(", str(number), f" {what}{'' if number == 1 else 's'} left out){around}")
        return np.concatenate(self._encode(words))

    def _most(self, what: str, digits: int, around: str = "") -> int:
        """Most tokens of what `_said` gives for a number of at most `digits` digits."""
        return max(len(self._said(number, what, around)) for number in (1, 2)) - 1 + digits


def _share(lengths: Sequence[int], most: int) -> int:
    """The largest n for which the sum of min(length, n) is at most `most`."""
    for index, length in enumerate(sorted(lengths)):
        share = most // (len(lengths) - index)
        if length > share:
            return share
        most -= length
    return max(lengths)
