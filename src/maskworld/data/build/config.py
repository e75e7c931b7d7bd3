"""What decides the bytes of a build, and what only its speed. Overridable on the command line like an experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from maskworld.errors import ConfigError

CONVERSION = ("directives", "seed", "longest_observation", "longest_record")
"""The fields that bear on how a record is converted; the others only on what is chosen of the trajectories."""


@dataclass(frozen=True)
class BuildConfig:
    """How trajectories are chosen, marked and split."""

    validation_share: float = 0.05
    """Of the trajectories of each source, held out for validation; whole groups only."""
    test_share: float = 0.05
    """Likewise for the test."""
    out_of_distribution: tuple[str, ...] = ()
    """Sources or environments (`api_bank`, `intercode/sql`) that go to a split `ood_test` of their own, none of whose
    questions any other split may answer."""
    seed: int = 0
    """Of the splits, the caps and the phrasing of directives."""
    caps: tuple[str, ...] = ()
    """Most trajectories of a source, `webshop=5000`; which ones are left is chosen by a hash."""
    near_duplicates: float = 0.9
    """Estimated Jaccard similarity from which on one of two trajectories is removed; above 1 only equal ones are."""
    keep_duplicates: bool = False
    """Keep equal and nearly equal trajectories, and those that are the beginning of another."""
    directives: Literal["derived", "none"] = "derived"
    """Whether steps get directives derived from their outcome (error, empty, cut off, format, length; never content).
    Directives of the source are kept either way."""
    most_revealed: float = 1.0
    """Grounding filter: largest share of a trajectory's named things that an observation may bring up although no
    earlier text holds them; 1 keeps all."""
    licences: tuple[str, ...] = ()
    """SPDX names of the licences that are allowed; empty allows all, `unknown` included."""
    longest_observation: int = 100_000
    """Characters an observation may have; the rest is cut off, marked and counted."""
    longest_record: int = 128
    """MiB a line or a JSON document may have; memory for one per worker is taken several times."""
    workers: int = 0
    """Processes; 0 takes one per core. The result does not depend on it."""
    shard_rows: int = 8192
    """Most trajectories in a file of the result."""

    def __post_init__(self) -> None:
        for name in ("validation_share", "test_share"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"--{name}: must be at least 0 and below 1, is {getattr(self, name)}")
        if self.validation_share + self.test_share >= 1:
            raise ConfigError("--validation_share and --test_share leave nothing to train on")
        for name in ("longest_observation", "longest_record", "shard_rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name}: must be at least 1, is {getattr(self, name)}")
        if not 0 <= self.most_revealed <= 1:
            raise ConfigError(f"--most_revealed: must be between 0 and 1, is {self.most_revealed}")
        if not self.near_duplicates >= 0.5:  # nor is NaN
            raise ConfigError(f"--near_duplicates: must be at least 0.5, is {self.near_duplicates}")
        if self.workers < 0:
            raise ConfigError(f"--workers: cannot be negative, is {self.workers}")
        parse_caps(self.caps)


def parse_caps(caps: tuple[str, ...]) -> dict[str, int]:
    """Trajectories allowed by source.

    Raises:
        ConfigError: an entry is no `NAME=NUMBER`, or a name occurs twice.
    """
    found: dict[str, int] = {}
    for entry in caps:
        name, _, number = entry.partition("=")
        if not name or not number.isdecimal():
            raise ConfigError(f"--caps: {entry!r} is no NAME=NUMBER, such as webshop=5000")
        if name in found:
            raise ConfigError(f"--caps: {name} occurs twice")
        found[name] = int(number)
    return found
