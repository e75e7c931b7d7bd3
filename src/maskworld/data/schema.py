"""The project's one trajectory schema: what every source is turned into and every renderer reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCHEMA = "maskworld.trajectory/1"


@dataclass(frozen=True)
class Step:
    """One action and what the environment answered."""

    action: str
    observation: str
    reward: float = 0.0
    """Reward of this action alone (never cumulative)."""
    done: bool = False
    facts_added: tuple[str, ...] = ()
    """Engine facts that became true through the action; with `facts_deleted` the exact state change."""
    facts_deleted: tuple[str, ...] = ()

    @property
    def changes_state(self) -> bool:
        return bool(self.facts_added or self.facts_deleted)


@dataclass(frozen=True)
class Trajectory:
    """One episode. The first five text fields are the paper's five-part state (e0, c, T, R, D)."""

    id: str
    environment: str
    initial_state: str
    """e0: the true state before the first action, as text."""
    task_context: str
    """What the agent is asked to do."""
    steps: tuple[Step, ...]
    initial_observation: str = ""
    """What the agent saw before its first action."""
    tool_schemas: tuple[str, ...] = ()
    """One command pattern or JSON tool schema per entry."""
    domain_rules: tuple[str, ...] = ()
    directives: tuple[str, ...] = ()
    """Steering directives D, natural language."""
    group: str = ""
    """What splits go by (the room, the task, the database), never the row."""
    player: str = ""
    """Who acted: expert, noisy_expert, random, a model's name."""
    metadata: dict[str, Any] = field(default_factory=dict)
