"""Held-out transitions: which are chosen, how they are grouped for generation, and what comes back as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Float32, Int32

from maskworld.config import CONTEXT_PARTS
from maskworld.data.rendering import render_prompt
from maskworld.data.schema import Trajectory
from maskworld.data.tokenizer import Tokenizer, valid_text
from maskworld.data.tokenizer_memory import RememberingTokenizer
from maskworld.errors import DataError
from maskworld.evaluation.baselines import last_observation
from maskworld.evaluation.predictions import INITIAL_STATE_CHARACTERS, Commit, Prediction
from maskworld.evaluation.scores import OTHER, STATE_CHANGING

HISTORY_TURNS = 2


@dataclass(frozen=True)
class Transition:
    """Step `step` (counted from 0) of a trajectory: all before it is given, its observation is to be predicted."""

    trajectory: Trajectory
    step: int

    @property
    def changes_state(self) -> bool:
        """Whether the engine's facts differ after its step."""
        return self.trajectory.steps[self.step].changes_state


@dataclass(frozen=True)
class Generation:
    """What a sampler returns for one prompt: n tokens after it, of which the first may complete the prompt's block."""

    tokens: Int32[np.ndarray, " n"]
    forwards: int
    """Forward passes spent on this row, cache writes included, the prompt's not."""
    denoising_steps: Int32[np.ndarray, " n"]
    """For each token the forward that committed it, counted from 0 over the whole row."""
    confidences: Float32[np.ndarray, " n"]
    """Probability each token had when it was committed."""


class Generate(Protocol):
    """Completes every prompt. Called with few distinct (len(prompts), prompt_capacity): one compilation each."""

    def __call__(self, prompts: Sequence[Int32[np.ndarray, " p"]], prompt_capacity: int) -> Sequence[Generation]:
        """`prompt_capacity` is a multiple of the block length and at least the longest prompt."""


def choose_transitions(
    trajectories: Iterable[Trajectory], count: int, seed: int, least_share: float = 0.25
) -> tuple[list[Transition], dict[str, int]]:
    """A seeded choice of `count` transitions (0: all), and how many there were in `state-changing` and `other`.

    The two kinds keep their share of the split, so that the score over all steps is one of the split; but a rare kind
    gets at least `least_share` of the places, or all it has. Ordered as in the split.
    """
    everything = [
        Transition(trajectory, step)
        for trajectory in trajectories
        for step in range(trajectory.history_steps, len(trajectory.steps))
    ]
    kinds = {
        STATE_CHANGING: [i for i, t in enumerate(everything) if t.changes_state],
        OTHER: [i for i, t in enumerate(everything) if not t.changes_state],
    }
    available = {kind: len(rows) for kind, rows in kinds.items()}
    if count == 0 or count >= len(everything):
        return everything, available
    floors = {kind: min(n, round(least_share * count)) for kind, n in available.items()}
    changing = round(count * available[STATE_CHANGING] / len(everything))
    changing = max(floors[STATE_CHANGING], min(changing, count - floors[OTHER]))
    random = np.random.default_rng(seed)
    chosen = [
        rows[i]
        for rows, places in ((kinds[STATE_CHANGING], changing), (kinds[OTHER], count - changing))
        for i in random.permutation(len(rows))[:places]
    ]
    return [everything[i] for i in sorted(chosen)], available


def render_prompts(
    transitions: Sequence[Transition],
    tokenizer: Tokenizer,
    block_length: int,
    longest: int,
    context: Sequence[str] = CONTEXT_PARTS,
    row_length: int | None = None,
) -> tuple[list[tuple[Transition, Int32[np.ndarray, " p"]]], list[str]]:
    """The prompt of each transition, p <= `longest`, in the form of training; and why some have none.

    Where a prompt would be longer, turns are left out from its middle. `row_length` is that of the training rows,
    whose budgets say what is cut. Where `longest` is too short for anything, a transition has no prompt; the reason
    names it.
    """
    tokenizer = RememberingTokenizer(tokenizer)  # the prompts of a trajectory repeat its context and earlier turns
    rendered, reasons = [], []
    for transition in transitions:
        try:
            prompt = render_prompt(
                transition.trajectory, transition.step, tokenizer, block_length, longest, context, row_length
            )
        except DataError as error:
            reasons.append(str(error))
        else:
            rendered.append((transition, prompt))
    return rendered, reasons


@dataclass(frozen=True)
class Batch:
    """Indices of prompts that are generated together, padded to `prompt_capacity` tokens."""

    prompt_capacity: int
    rows: tuple[int, ...]


def plan_batches(lengths: Sequence[int], batch_size: int, block_length: int, shapes: int = 2) -> list[Batch]:
    """Batches of prompts of like length with at most `shapes` distinct capacities; the last batch may be short."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    chunks = [tuple(order[i : i + batch_size]) for i in range(0, len(order), batch_size)]
    run = max(1, -(-len(chunks) // shapes))
    batches = []
    for number, rows in enumerate(chunks):
        last = chunks[min(number // run * run + run, len(chunks)) - 1]
        blocks = -(-lengths[last[-1]] // block_length)
        batches.append(Batch(blocks * block_length, rows))
    return batches


def generate_all(
    prompts: Sequence[Int32[np.ndarray, " p"]],
    generate: Generate,
    batch_size: int,
    block_length: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Generation]:
    """Complete all prompts in batches of exactly `batch_size` (a short one is filled up with a repeated prompt)."""
    generations: dict[int, Generation] = {}
    for batch in plan_batches([len(prompt) for prompt in prompts], batch_size, block_length):
        rows = batch.rows + batch.rows[:1] * (batch_size - len(batch.rows))
        results = generate([prompts[i] for i in rows], batch.prompt_capacity)
        generations.update(zip(batch.rows, results, strict=False))
        progress(len(generations), len(prompts))
    return [generations[i] for i in range(len(prompts))]


def to_prediction(
    transition: Transition, offset: int, generation: Generation, tokenizer: Tokenizer, block_length: int
) -> Prediction:
    """Cut at the first <end>, decode, and keep the commits up to the end of the block that holds it.

    `offset` is where the generation begins on the grid of blocks: the prompt's length, or 0 if blocks begin with it.
    """
    trajectory, number = transition.trajectory, transition.step
    step = trajectory.steps[number]
    tokens = np.asarray(generation.tokens)
    ends = np.flatnonzero(tokens == tokenizer.end_id)
    finished = bool(len(ends))
    length = int(ends[0]) if finished else len(tokens)
    shown = length
    if finished:
        shown = min(len(tokens), -(-(offset + length + 1) // block_length) * block_length - offset)
    return Prediction(
        trajectory=trajectory.id,
        group=trajectory.group,
        step=number,
        action=valid_text(step.action),
        truth=valid_text(step.observation),
        prediction=tokenizer.decode(tokens[:length].tolist()),
        changes_state=step.changes_state,
        forwards=int(generation.forwards),
        tokens=length + finished,
        finished=finished,
        history=_history(transition),
        initial_state=valid_text(trajectory.initial_state)[:INITIAL_STATE_CHARACTERS],
        block_starts=tuple(i for i in range(shown) if (offset + i) % block_length == 0),
        trace=_trace(generation, shown, tokenizer),
    )


def _history(transition: Transition) -> tuple[str, ...]:
    trajectory, number = transition.trajectory, transition.step
    first = max(0, number - HISTORY_TURNS)
    lines = [last_observation(trajectory, first)]
    for step in trajectory.steps[first:number]:
        lines += [f"> {step.action}", step.observation]
    return tuple(valid_text(line) for line in lines if line)


def _trace(generation: Generation, shown: int, tokenizer: Tokenizer) -> tuple[tuple[Commit, ...], ...]:
    by_step: dict[int, list[Commit]] = {}
    for position in range(shown):
        commit = Commit(
            position=position,
            token=tokenizer.piece(int(generation.tokens[position])),
            confidence=round(float(generation.confidences[position]), 4),
            denoising_step=int(generation.denoising_steps[position]),
        )
        by_step.setdefault(commit.denoising_step, []).append(commit)
    return tuple(tuple(by_step[number]) for number in sorted(by_step))
