"""What tables say of a trajectory without holding it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maskworld.data.curation.grounding import StepGrounding, grounding
from maskworld.data.curation.outcomes import Outcome, outcome
from maskworld.data.schema import Trajectory

TEXTS = ("id", "environment", "source", "group", "player", "model_family", "licence")
OUTCOMES = ("error", "empty", "truncated")
NUMBERS = ("steps", *OUTCOMES, "observations_cut", "entities", "revealed")
LENGTHS = "observation_characters"


def facts_of(
    trajectory: Trajectory,
    outcomes: Sequence[Outcome] | None = None,
    grounded: Sequence[StepGrounding] | None = None,
    observations_cut: int = 0,
) -> dict[str, Any]:
    """One row: the texts and numbers named above, and the characters of every observation.

    Args:
        trajectory: of which.
        outcomes: of its steps, where they are known already; likewise `grounded`.
        grounded: the entities of its observations.
        observations_cut: observations that were shortened.
    """
    outcomes = [outcome(step) for step in trajectory.steps] if outcomes is None else outcomes
    grounded = grounding(trajectory) if grounded is None else grounded
    kinds = [one.kind for one in outcomes]
    return {
        **{name: getattr(trajectory, name) for name in TEXTS},
        "steps": len(trajectory.steps),
        **{kind: kinds.count(kind) for kind in OUTCOMES},
        "observations_cut": observations_cut,
        "entities": sum(len(step.entities) for step in grounded),
        "revealed": sum(len(step.revealed) for step in grounded),
        LENGTHS: [len(step.observation) for step in trajectory.steps],
    }
