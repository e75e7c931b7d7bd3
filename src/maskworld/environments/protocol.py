"""What every text environment looks like to players, recorders and agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Turn:
    """What an environment says at one moment."""

    text: str
    """The observation."""
    admissible: tuple[str, ...] = ()
    """Commands that would have an effect or an answer of their own, sorted; empty where the engine cannot tell."""
    facts: frozenset[str] = frozenset()
    """The true state; empty where the engine does not tell."""
    reward: float = 0.0
    """Of the last command alone."""
    done: bool = False
    won: bool = False


class TextEnvironment(Protocol):
    """A started episode: commands in, turns out."""

    def step(self, command: str) -> Turn:
        """Plays one command. An unknown or impossible one is answered in words and never raises."""
        ...

    def close(self) -> None: ...
