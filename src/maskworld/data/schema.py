"""The project's one trajectory schema: what every source is turned into and every renderer reads.

On disk: JSON Lines, optionally gzipped, one trajectory a line, UTF-8. Required members: schema, id, environment,
initial_state, task_context, steps, and in each step action and observation; the others have the defaults below and
are left out when they have them. A member that is not named here is refused, so that a misspelt one cannot pass for an
absent one: what a source knows beyond the schema belongs into `metadata`, which may hold any JSON object.
"""

from __future__ import annotations

import difflib
import json
import math
import reprlib
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from maskworld.errors import DataError

SCHEMA = "maskworld.trajectory/1"
TOO_MANY_DIGITS = "holds an integer of more digits than Python converts"


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
    failed: bool | None = None
    """Whether the environment refused the action or failed at it, where the source itself says so; None where not."""
    directives: tuple[str, ...] = ()
    """Steering directives that hold for this step alone; rendered beside its action."""

    @property
    def changes_state(self) -> bool:
        """Whether the engine's facts differ after the step."""
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
    history_steps: int = 0
    """The first so many steps are context only, never targets: where the state was written for the last step, as in
    rows of the released world-model corpus, it may hold the answers to earlier ones."""
    tool_schemas: tuple[str, ...] = ()
    """One command pattern or JSON tool schema per entry."""
    domain_rules: tuple[str, ...] = ()
    directives: tuple[str, ...] = ()
    """Steering directives D, natural language."""
    group: str = ""
    """What splits go by (the room, the task, the database), never the row."""
    player: str = ""
    """Who acted: expert, noisy_expert, random, a model's name."""
    model_family: str = ""
    """Family of the player's model (gpt, claude, qwen); empty for a player that is none."""
    source: str = ""
    """Name of the format that the trajectory was read from (`data/sources/`)."""
    licence: str = ""
    """SPDX name of the licence of the record; `unknown` where its owner names none."""
    metadata: dict[str, Any] = field(default_factory=dict)


class SchemaError(DataError):
    """A row breaks the schema. `field` is the path of the member (`steps[3].reward`; empty for the row itself)."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field or 'row'}: {reason}")
        self.field = field
        self.reason = reason


def trajectory_to_json(trajectory: Trajectory) -> str:
    """One line of JSON without its newline. Raises SchemaError where `trajectory_from_json` would refuse it."""
    row: dict[str, Any] = {"schema": SCHEMA} | _without_defaults(trajectory)
    row["steps"] = [_without_defaults(step) for step in trajectory.steps]
    if not _is_plainly_sound(trajectory):
        trajectory_from_row(row)
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def _is_plainly_sound(trajectory: Trajectory) -> bool:
    """Whether a quick look shows that the trajectory obeys the schema; what it does not show, reading it back does."""
    texts = [getattr(trajectory, name) for name in _TEXTS]
    for several in (trajectory.tool_schemas, trajectory.domain_rules, trajectory.directives):
        texts += several
    for step in trajectory.steps:
        texts += (step.action, step.observation, *step.directives)
        if (
            step.facts_added
            or step.facts_deleted
            or type(step.reward) is not float
            or not math.isfinite(step.reward)
            or type(step.done) is not bool
            or (step.failed is not None and type(step.failed) is not bool)
            or not step.action.strip()
        ):
            return False
    if not trajectory.steps or not trajectory.id.strip() or not trajectory.environment.strip():
        return False
    if trajectory.history_steps != 0 or not all(type(text) is str for text in texts):
        return False
    try:
        _check_json(trajectory.metadata, "")
        for text in texts:
            if not text.isascii():
                text.encode("utf-8")
    except (SchemaError, UnicodeEncodeError, RecursionError):
        return False
    return type(trajectory.metadata) is dict


def trajectory_from_json(text: str) -> Trajectory:
    """The trajectory of one line. Raises SchemaError with the path of the offending member and the reason."""
    return trajectory_from_row(decode_json(text))


def decode_json(text: str) -> Any:
    """The JSON value of a text. Raises SchemaError where it is none, or where a member occurs twice in one object."""
    try:
        return DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise SchemaError("", f"no JSON: {error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise SchemaError("", "nested too deeply") from error
    except ValueError as error:
        raise SchemaError("", TOO_MANY_DIGITS) from error


def _without_defaults(record: Step | Trajectory) -> dict[str, Any]:
    kept = {}
    for name, value in vars(record).items():
        if value != _DEFAULTS[name]:
            kept[name] = list(value) if isinstance(value, tuple) else value
    return kept


def trajectory_from_row(row: Any) -> Trajectory:
    """The trajectory of a decoded line. Raises SchemaError with the path of the offending member and the reason."""
    if not isinstance(row, dict):
        raise SchemaError("", f"must be an object, is {kind(row)}")
    if "schema" not in row:
        raise SchemaError("schema", f"is missing; it must be {SCHEMA!r}")
    if row["schema"] != SCHEMA:
        raise SchemaError("schema", f"must be {SCHEMA!r}, is {reprlib.repr(row['schema'])}")
    members = {name: value for name, value in row.items() if name != "schema"}
    try:
        trajectory = Trajectory(**_parse_members(members, "", _TRAJECTORY_MEMBERS))
    except RecursionError as error:
        raise SchemaError("metadata", "nested too deeply") from error
    if trajectory.history_steps >= len(trajectory.steps):
        raise SchemaError("history_steps", f"must leave a step of {len(trajectory.steps)}")
    return trajectory


def _parse_members(row: dict[str, Any], path: str, members: dict[str, Callable]) -> dict[str, Any]:
    for name in row:
        if name not in members:
            near = difflib.get_close_matches(name, members, n=1)
            hint = f" (did you mean {near[0]}?)" if near else "; put what the schema does not name into metadata"
            raise SchemaError(path + _printable(name), f"is no member of the schema{hint}")
    values = {}
    for name, check in members.items():
        if name in row:
            values[name] = check(row[name], path + name)
        elif _DEFAULTS[name] is MISSING:
            raise SchemaError(path + name, "is missing")
    return values


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise SchemaError(path, f"must be a string, is {kind(value)}")
    if value.isascii():
        return value
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SchemaError(path, f"holds half of a surrogate pair at character {error.start}") from error
    return value


def _nonempty_text(value: Any, path: str) -> str:
    if not _text(value, path).strip():
        raise SchemaError(path, "must not be empty")
    return value


def number(value: Any, path: str) -> float:
    """A finite number; true and false are none. Raises SchemaError with `path`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SchemaError(path, f"must be a number, is {kind(value)}")
    try:
        result = float(value)
    except OverflowError as error:
        raise SchemaError(path, "is too large") from error
    if not math.isfinite(result):
        raise SchemaError(path, f"must be finite, is {result}")
    return result


def _truth(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise SchemaError(path, f"must be true or false, is {kind(value)}")
    return value


def _count(value: Any, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SchemaError(path, f"must be a whole number, is {kind(value)}")
    if value < 0:
        raise SchemaError(path, f"cannot be negative, is {value}")
    return value


def _texts(value: Any, path: str) -> tuple[str, ...]:
    return tuple(_text(entry, f"{path}[{index}]") for index, entry in enumerate(array(value, path)))


def array(value: Any, path: str) -> list:
    """A JSON array. Raises SchemaError with `path`."""
    if not isinstance(value, list):
        raise SchemaError(path, f"must be an array, is {kind(value)}")
    return value


def _steps(value: Any, path: str) -> tuple[Step, ...]:
    if not array(value, path):
        raise SchemaError(path, "must hold at least one step")
    steps = []
    for index, entry in enumerate(value):
        here = f"{path}[{index}]"
        if not isinstance(entry, dict):
            raise SchemaError(here, f"must be an object, is {kind(entry)}")
        steps.append(Step(**_parse_members(entry, f"{here}.", _STEP_MEMBERS)))
    return tuple(steps)


def _metadata(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SchemaError(path, f"must be an object, is {kind(value)}")
    _check_json(value, path)
    return value


def _check_json(value: Any, path: str) -> None:
    if isinstance(value, dict):
        for name, entry in value.items():
            _check_json(entry, f"{path}.{_printable(_text(name, path))}")
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            _check_json(entry, f"{path}[{index}]")
    elif isinstance(value, str):
        _text(value, path)
    elif isinstance(value, float) and not math.isfinite(value):
        raise SchemaError(path, f"must be finite, is {value}")
    elif value is not None and not isinstance(value, bool | int | float):
        raise SchemaError(path, f"must be a JSON value, is {kind(value)}")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in row if names.count(name) > 1)
        raise SchemaError(_printable(twice), "occurs twice in one object")
    return row


DECODER = json.JSONDecoder(object_pairs_hook=_no_duplicates)
"""Of JSON as all files here are read: raises SchemaError for a member that occurs twice."""


def _printable(name: str) -> str:
    """A member's name as a message may hold it: short, and without what no terminal can encode."""
    return name[:80].encode("utf-8", "backslashreplace").decode("utf-8")


def kind(value: Any) -> str:
    """What a message calls a decoded JSON value: `an object`, `null`."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


_STEP_MEMBERS: dict[str, Callable[[Any, str], Any]] = {
    "action": _nonempty_text,
    "observation": _text,
    "reward": number,
    "done": _truth,
    "facts_added": _texts,
    "facts_deleted": _texts,
    "failed": _truth,
    "directives": _texts,
}
_TRAJECTORY_MEMBERS: dict[str, Callable[[Any, str], Any]] = {
    "id": _nonempty_text,
    "environment": _nonempty_text,
    "initial_state": _text,
    "task_context": _text,
    "steps": _steps,
    "initial_observation": _text,
    "history_steps": _count,
    "tool_schemas": _texts,
    "domain_rules": _texts,
    "directives": _texts,
    "group": _text,
    "player": _text,
    "model_family": _text,
    "source": _text,
    "licence": _text,
    "metadata": _metadata,
}
_TEXTS = tuple(name for name, check in _TRAJECTORY_MEMBERS.items() if check in (_text, _nonempty_text))
_DEFAULTS: dict[str, Any] = {
    f.name: f.default_factory() if f.default_factory is not MISSING else f.default
    for record in (Step, Trajectory)
    for f in fields(record)
}
