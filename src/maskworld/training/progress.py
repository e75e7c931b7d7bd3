"""What a person sees while training: one line that renews itself on a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Pace:
    """Where a run is and how fast it goes."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float
    """Clean tokens, padding not counted, over all hosts."""
    data_wait: float
    """Share of the time spent waiting for data, 0 to 1."""
    seconds_left: float


class Progress:
    """Prints messages and the pace of a run; silent where `enabled` is false. Use as a context manager."""

    def __init__(self, *, enabled: bool = True, stream: Any = None):
        self._enabled = enabled
        self._stream = stream or sys.stdout
        self._status: Any = None
        if enabled and self._stream.isatty():
            from rich.console import Console

            self._console = Console(file=self._stream, highlight=False)

    def say(self, text: str) -> None:
        """Print a sentence that stays."""
        if not self._enabled:
            return
        if self._stream.isatty():
            self._console.print(text, markup=False)
        else:
            print(text, file=self._stream, flush=True)

    def pace(self, pace: Pace) -> None:
        """Show where the run is."""
        if not self._enabled:
            return
        line = pace_line(pace)
        if not self._stream.isatty():
            print(line, file=self._stream, flush=True)
        elif self._status is None:
            self._status = self._console.status(line, spinner="dots")
            self._status.start()
        else:
            self._status.update(line)

    def close(self) -> None:
        """Leave the last pace standing as an ordinary line."""
        if self._status is not None:
            line = self._status.status
            self._status.stop()
            self._status = None
            self._console.print(line)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def pace_line(pace: Pace) -> str:
    """`step  200/1000  20 %  loss 1.234  12.3k tokens/s  data wait 1 %  left 3 min 20 s`."""
    width = len(str(pace.steps))
    return "  ".join(
        (
            f"step {pace.step:{width}d}/{pace.steps}",
            f"{100 * pace.step // pace.steps:3d} %",
            f"loss {pace.loss:.4f}",
            f"{_short(pace.tokens_per_second)} tokens/s",
            f"data wait {100 * pace.data_wait:.0f} %",
            f"left {duration(pace.seconds_left)}",
        )
    )


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def _short(number: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return f"{number:.0f}"
