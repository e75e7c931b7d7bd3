"""What is measured while training: means over a window of steps, and the time a run takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from maskworld.training.progress import Pace

# How the metrics of several steps become one line: means by the tokens that each stands for, and sums; the others are
# plain means.
_WEIGHTS = {
    "loss": "target_tokens",
    "cross_entropy": "masked_tokens",
    "masked_accuracy": "masked_tokens",
    "next_token_cross_entropy": "target_tokens",
}
_SUMS = ("target_tokens", "masked_tokens")


def summarize(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """One value per metric over several steps. Summed in order in float64, so equal steps give equal bits."""
    sums = {name: sum(step[name] for step in steps) for name in steps[0]}

    def value(name: str) -> float:
        if name in _SUMS:
            return sums[name]
        weight = _WEIGHTS.get(name)
        if weight is None:
            return sums[name] / len(steps)
        total = sums[weight]
        return sum(step[name] * step[weight] for step in steps) / total if total else 0.0

    return {name: value(name) for name in steps[0]}


class Window:
    """Metrics, tokens and times of the steps since the last line of metrics."""

    def __init__(self, now: Callable[[], float] = time.perf_counter):
        self._now = now
        self._steps: list[dict[str, Any]] = []
        self._tokens = 0
        self._data_seconds = 0.0
        self._begun = now()

    def add(self, metrics: dict[str, Any], tokens: int) -> None:
        """Note a step that was started; its metrics are still on the device and may not be there yet."""
        self._steps.append(metrics)
        self._tokens += tokens

    def settle(self, fetch_seconds: float) -> None:
        """Note how long the next batch took, and wait until the step before the last is done.

        The wait keeps the host one step ahead of the devices and no more. Fetching counts as waiting for data only
        where the devices have nothing left to do after it: otherwise it was hidden behind their work.
        """
        if self._steps[-1]["loss"].is_ready():
            self._data_seconds += fetch_seconds
        if len(self._steps) > 1:
            jax.block_until_ready(self._steps[-2])

    def close(self) -> dict[str, float]:
        """The line of this window: its metrics, tokens_per_second, data_wait (share of the time) and step_seconds."""
        steps = [{name: float(value) for name, value in step.items()} for step in jax.device_get(self._steps)]
        seconds = self._now() - self._begun
        return summarize(steps) | {
            "tokens_per_second": self._tokens * jax.process_count() / seconds,
            "data_wait": min(self._data_seconds / seconds, 1.0),
            "step_seconds": seconds / len(steps),
        }


class Clock:
    """Training time of a run, the parts before earlier stops included."""

    def __init__(self, step: int, seconds_before: float, now: Callable[[], float] = time.perf_counter):
        self._now, self._begun = now, now()
        self._first_step, self._before = step, seconds_before

    @property
    def total(self) -> float:
        """Seconds."""
        return self._before + self._now() - self._begun

    def pace(self, step: int, steps: int, values: Mapping[str, float]) -> Pace:
        """Where the run is after `step`, with the time left at the speed since this start, validation included."""
        seconds_per_step = (self._now() - self._begun) / (step - self._first_step)
        return Pace(
            step=step,
            steps=steps,
            loss=values["loss"],
            tokens_per_second=values["tokens_per_second"],
            data_wait=values["data_wait"],
            seconds_left=(steps - step) * seconds_per_step,
        )
