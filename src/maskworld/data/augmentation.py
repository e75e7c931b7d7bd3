"""Variants of a trajectory that mean the same or tell less: other words, left-out conditions, other names.

All functions are pure: the result depends on the trajectory and the seed alone. None changes id, group, player, source
or metadata of a trajectory, so a variant stays in the split of its original.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from maskworld.config import AugmentationConfig, DropRates
from maskworld.data.curation.directives import ALTERNATIVES
from maskworld.data.draws import draws, fraction
from maskworld.data.renaming import rename_entities as rename_entities
from maskworld.data.schema import Step, Trajectory

_FRAMES = ("", "Note: ", "Please observe: ", "Required: ", "Keep to this: ")
"""What may stand before a directive whose words are a source's own."""


def augmented(trajectory: Trajectory, config: AugmentationConfig, copy: int = 0) -> Trajectory:
    """The variant of a trajectory that a configuration asks for; of several copies each its own."""
    seed = config.seed + 1_000_003 * copy
    if config.rename_entities:
        trajectory = rename_entities(trajectory, seed)
    if config.paraphrase_directives:
        trajectory = paraphrase_directives(trajectory, seed)
    return trajectory if config.drop == DropRates() else drop_conditions(trajectory, seed, config.drop)


def paraphrase_directives(trajectory: Trajectory, seed: int) -> Trajectory:
    """The same directives in other words, those of the steps too.

    A derived directive becomes another of its phrasings. Of any other nothing is known but that it is one: its words
    stay, and one of a few openings is put before it, in place of the one it may have.
    """
    numbers = draws(seed, "paraphrase", trajectory.id)
    directives = _paraphrased(trajectory.directives, numbers)
    steps = (_with_directives(step, _paraphrased(step.directives, numbers)) for step in trajectory.steps)
    return replace(trajectory, directives=directives, steps=tuple(steps))


def drop_conditions(trajectory: Trajectory, seed: int, rates: DropRates) -> Trajectory:
    """The trajectory with each condition left out at its rate, independently of the others.

    What a model learns without a condition is what guidance compares with. Actions and observations stay. A draw
    depends on neither the rates nor what is there, so a higher rate drops what a lower one dropped.
    """
    numbers = map(fraction, draws(seed, "conditions", trajectory.id))
    dropped = {}
    for part in fields(rates):
        if part.name != "step_directives" and next(numbers) < getattr(rates, part.name):
            dropped[part.name] = type(getattr(trajectory, part.name))()
    steps = (
        _with_directives(step, () if number < rates.step_directives else step.directives)
        for step, number in zip(trajectory.steps, numbers, strict=False)
    )
    return replace(trajectory, steps=tuple(steps), **dropped)


def _paraphrased(directives: tuple[str, ...], numbers: Iterator[int]) -> tuple[str, ...]:
    return tuple(_other_words(directive, next(numbers)) for directive in directives)


def _other_words(directive: str, number: int) -> str:
    phrasings = ALTERNATIVES.get(directive)
    if phrasings:
        return phrasings[number % len(phrasings)]
    for frame in _FRAMES:
        if frame and directive.startswith(frame):
            directive = directive.removeprefix(frame)
            break
    return _FRAMES[number % len(_FRAMES)] + directive


def _with_directives(step: Step, directives: tuple[str, ...]) -> Step:
    return step if directives == step.directives else replace(step, directives=directives)
