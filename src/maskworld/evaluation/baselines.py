"""Predictions that need no network: what a world model has to beat. Pure functions over Trajectory values."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from maskworld.data.schema import Trajectory

COPY_LAST = "copy last observation"
FREQUENT_FOR_VERB = "most frequent for verb"
FREQUENT_FOR_ACTION = "most frequent for action"
BASELINES = (COPY_LAST, FREQUENT_FOR_VERB, FREQUENT_FOR_ACTION)


def verb(action: str) -> str:
    """What kind of action it is: the tool's name in a JSON call, else the text before the first space or bracket."""
    action = action.strip()
    if action.startswith("{"):
        try:
            call = json.loads(action)
        except (ValueError, RecursionError):
            call = {}
        for key in ("name", "tool", "action"):
            if isinstance(call, dict) and isinstance(call.get(key), str):
                return call[key]
    head = action.split(maxsplit=1)
    return head[0].split("(", 1)[0].lower() if head else ""


def last_observation(trajectory: Trajectory, step: int) -> str:
    """The observation the agent saw before acting in `step` (counted from 0)."""
    return trajectory.steps[step - 1].observation if step else trajectory.initial_observation


@dataclass(frozen=True)
class FrequentObservations:
    """The most frequent training observation after each action string, after each verb, and overall."""

    by_action: Mapping[str, str]
    by_verb: Mapping[str, str]
    overall: str

    def for_verb(self, action: str) -> str:
        """Observation for the action's verb; the overall one for a verb never seen in training."""
        return self.by_verb.get(verb(action), self.overall)

    def for_action(self, action: str) -> str:
        """Observation for this very action; falls back to its verb, then to the overall one."""
        return self.by_action.get(action.strip(), self.for_verb(action))


def count_observations(training: Iterable[Trajectory]) -> FrequentObservations:
    """Count the training steps. Of equally frequent observations the one seen first wins.

    An empty training set predicts the empty text everywhere.
    """
    by_action: dict[str, Counter[str]] = defaultdict(Counter)
    by_verb: dict[str, Counter[str]] = defaultdict(Counter)
    overall: Counter[str] = Counter()
    for trajectory in training:
        for step in trajectory.steps:
            by_action[step.action.strip()][step.observation] += 1
            by_verb[verb(step.action)][step.observation] += 1
            overall[step.observation] += 1
    return FrequentObservations(
        by_action=MappingProxyType({key: _most_frequent(counter) for key, counter in by_action.items()}),
        by_verb=MappingProxyType({key: _most_frequent(counter) for key, counter in by_verb.items()}),
        overall=_most_frequent(overall),
    )


def _most_frequent(counter: Counter[str]) -> str:
    return max(counter, key=counter.__getitem__, default="")  # max keeps the first of equals; insertion order = seen


def predict(trajectory: Trajectory, step: int, frequent: FrequentObservations) -> dict[str, str]:
    """The prediction of every baseline for one step, by the names in `BASELINES`."""
    action = trajectory.steps[step].action
    return {
        COPY_LAST: last_observation(trajectory, step),
        FREQUENT_FOR_VERB: frequent.for_verb(action),
        FREQUENT_FOR_ACTION: frequent.for_action(action),
    }
