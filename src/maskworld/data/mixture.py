"""Which trajectories are rendered and how often: the weights of their sources."""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from maskworld.data.schema import Trajectory
from maskworld.errors import ConfigError


def source_of(trajectory: Trajectory) -> str:
    """What weights name: the trajectory's source, or the name of its environment where it has none."""
    return trajectory.source or trajectory.environment.partition("/")[0]


def copies(trajectory: Trajectory, weights: Mapping[str, float]) -> int:
    """How often a trajectory is rendered: the whole part of its source's weight, and once more in as many cases as
    the rest says. A hash of source and id decides which, so neither order nor any seed changes the choice."""
    source = source_of(trajectory)
    weight = weights.get(source, 1.0)
    digest = hashlib.sha256(f"source weight\0{source}\0{trajectory.id}".encode()).digest()
    return int(weight) + (int.from_bytes(digest[:8]) / 2**64 < weight % 1)


@dataclass
class Mixture:
    """Trajectories as often as the weights say, and a count of them by source."""

    weights: Mapping[str, float]
    found: Counter[str] = field(default_factory=Counter)
    """Trajectories of each source."""
    rendered: Counter[str] = field(default_factory=Counter)
    """Times that trajectories of each source are handed out."""

    def rounds(self, read: Callable[[int], Iterator[Trajectory]]) -> Iterator[tuple[int, Trajectory]]:
        """(0, trajectory) for every one, then (1, trajectory) for those with a second copy, and so on: so that copies
        lie far apart and hardly ever in one row.

        Args:
            read: all trajectories in order; called once for each round, with its number.

        Raises:
            ConfigError: after the first round, if there is no trajectory of a source that has a weight.
        """
        number, most = 0, 1
        while number < most:
            for trajectory in read(number):
                count = copies(trajectory, self.weights)
                if not number:
                    self.found[source_of(trajectory)] += 1
                    self.rendered[source_of(trajectory)] += count
                    most = max(most, count)
                if count > number:
                    yield number, trajectory
            if not number:
                self._check()
            number += 1

    def _check(self) -> None:
        for name in self.weights:
            if name not in self.found:
                near = difflib.get_close_matches(name, self.found, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(self.found)) or 'none'}"
                raise ConfigError(f"data.source_weights: no trajectory has the source {name}; {hint}")

    def to_json(self) -> dict[str, dict[str, int]]:
        """For each source how many trajectories there are, and how often some was handed out."""
        return {
            name: {"trajectories": self.found[name], "rendered": self.rendered[name]} for name in sorted(self.found)
        }
