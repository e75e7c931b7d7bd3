"""Hashes by which trajectories are told apart: equal contents, common beginnings, and what must not be in two splits.

All are 64-bit BLAKE2b digests but the content's, which decides on removal alone and has 128 bits. Texts are hashed with
their lengths, so that no two different sequences of texts give the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from maskworld.data.schema import Trajectory


@dataclass(frozen=True)
class Keys:
    """The hashes of one trajectory."""

    content: bytes
    """Of everything that is shown or predicted; neither id, player nor what was derived later."""
    context: int
    """Of the parts around the steps other than e0, and of how many steps are history: what one trajectory only shows
    as history is not learned from it."""
    questions: tuple[int, ...]
    """Per step, of (e0, history, action): what the model is asked. None may occur in two splits."""
    beginnings: tuple[int, ...]
    """Per step, of (e0, history, action, observation): equal where the steps so far are equal."""
    group: int
    """Of the group; of the content where the trajectory has none."""


def keys_of(trajectory: Trajectory) -> Keys:
    """The hashes of a trajectory, in one pass over its texts."""
    running = hashlib.blake2b(digest_size=16)
    _update(running, trajectory.initial_state)
    questions, beginnings = [], []
    for step in trajectory.steps:
        _update(running, step.action)
        questions.append(int.from_bytes(running.digest()[:8], "little"))
        _update(running, step.observation)
        beginnings.append(int.from_bytes(running.digest()[:8], "little"))
    around = hashlib.blake2b(trajectory.history_steps.to_bytes(8, "little"), digest_size=16)
    around.update(_lasting(trajectory.tool_schemas, trajectory.domain_rules))
    for text in (
        trajectory.environment,
        trajectory.task_context,
        trajectory.initial_observation,
        *trajectory.directives,
    ):
        _update(around, text)
    content = hashlib.blake2b(running.digest() + around.digest(), digest_size=16).digest()
    return Keys(
        content=content,
        context=int.from_bytes(around.digest()[:8], "little"),
        questions=tuple(questions),
        beginnings=tuple(beginnings),
        group=hash_of([trajectory.group]) if trajectory.group else int.from_bytes(content[:8], "little"),
    )


@lru_cache(maxsize=64)
def _lasting(*parts: tuple[str, ...]) -> bytes:
    """Of schemas and rules, which many trajectories share."""
    running = hashlib.blake2b(digest_size=16)
    for texts in parts:
        running.update(len(texts).to_bytes(4, "little"))
        for text in texts:
            _update(running, text)
    return running.digest()


def hash_of(texts: Iterable[str]) -> int:
    """A 64-bit hash of a sequence of texts, the same on every machine."""
    running = hashlib.blake2b(digest_size=8)
    for text in texts:
        _update(running, text)
    return int.from_bytes(running.digest(), "little")


def _update(running: hashlib.blake2b, text: str) -> None:
    content = text.encode("utf-8")
    running.update(len(content).to_bytes(8, "little"))
    running.update(content)
