"""SWE-agent's `.traj` files, those of SWE-smith among them: one JSON document is one run on one repository or task.

Transitions come from `trajectory` (action, observation), which has the environment's own words in all versions. A
demonstration file may have `history` only, the conversation with the model: then an assistant message's `action` is
paired with the message that follows it, without what the harness wraps around an observation. The two agree wherever
both exist.

The last action, `submit`, is answered by the patch or by nothing; both are kept, as is every empty observation. A step
without an action (the model's answer could not be read) tells nothing of the environment and is left out, counted as
`empty_actions`. The files hold no reward: whether the patch resolved the issue stands in a separate report.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskworld.data.schema import SchemaError, Step, Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, array, label, mapping, member, nested_text, text
from maskworld.data.sources.common.text import clean

_PREFIX = "OBSERVATION:\n"
_PROMPT = re.compile(
    r"\n?\(Open file: [^\n]*\)\n\(Current directory: [^\n]*\)\n(?:\(Interactive session: [^\n]*\)\n)?bash-\$\s*\Z"
)
_NO_OUTPUT = "Your command ran successfully and did not produce any output."
_ENVIRONMENTS_WITHOUT_MEANING = {"", "main", "swe_main"}
_MODEL = re.compile(r"^(?:gpt|claude|o[0-9]|gemini|llama|deepseek|qwen|mistral)[\w.-]*?(?=__|$)", re.IGNORECASE)


def matches(record: Any, path: Path) -> bool:
    """Whether this object has SWE-agent's steps, or its history of messages that name their agent."""
    if not isinstance(record, dict):
        return False
    steps, history = record.get("trajectory"), record.get("history")
    if isinstance(steps, list) and steps and isinstance(history, list):
        return isinstance(steps[0], dict) and {"action", "observation"} <= steps[0].keys()
    if isinstance(history, list) and history:
        return isinstance(history[0], dict) and {"role", "content", "agent"} <= history[0].keys()
    return False


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """The run's one trajectory; nothing where no action was taken. Raises SchemaError for a member of a wrong type."""
    mapping(record, "")
    notes = Notes()
    history = [
        mapping(entry, f"history[{index}]") for index, entry in enumerate(array(record.get("history", []), "history"))
    ]
    info = {} if record.get("info") is None else mapping(record["info"], "info")
    exit_status = label(info.get("exit_status"), "info.exit_status")
    if record.get("trajectory") is None:
        turns = history_turns(history, notes)
    else:
        entries = array(record["trajectory"], "trajectory")
        turns = [notes.turn(entry, f"trajectory[{index}]") for index, entry in enumerate(entries)]
    rules, task = _prompts(history, notes)
    model, instance = _replayed(record.get("replay_config"))
    environment = label(record.get("environment"), "environment")
    stem = clean(origin.path.stem).text
    if not instance:
        instance = stem if environment in _ENVIRONMENTS_WITHOUT_MEANING else environment
    steps = []
    for index, (action, observation) in enumerate(turns):
        if not action.strip():
            notes.count("empty_actions")
            continue
        # "submitted (exit_cost)" and the like: the harness stopped the run and took what was there.
        ended = exit_status == "submitted" or (not exit_status and action.split()[0] == "submit")
        steps.append(Step(action, observation, done=ended and index == len(turns) - 1))
    if steps:
        run = clean(origin.path.parent.name).text
        yield Trajectory(
            id=f"swe_agent/{run}/{stem}" + (f":{origin.index}" if origin.index else ""),
            environment="swe_agent",
            initial_state="",
            task_context=task,
            steps=tuple(steps),
            domain_rules=rules,
            group=f"swe/{instance}",
            player=model or _folder_model(run),
            metadata=notes.metadata(
                exit_status=exit_status,
                swe_agent_version=label(info.get("swe_agent_version"), "info.swe_agent_version"),
            ),
        )


def history_turns(history: list[dict[str, Any]], notes: Notes) -> list[tuple[str, str]]:
    """Actions of the conversation with the observations that answered them, demonstrations left out.

    An action that no message follows is counted as `unanswered_actions`. Raises SchemaError with the message's path.
    """
    turns: list[tuple[str, str]] = []
    pending: str | None = None
    for index, message in enumerate(history):
        at = f"history[{index}]"
        if _is_demonstration(message, at):
            continue
        role = text(member(message, "role", f"{at}.role"), f"{at}.role")
        if role == "assistant":
            notes.count("unanswered_actions", pending is not None)
            action = message.get("action")
            pending = "" if action is None else notes.command(action, f"{at}.action")
        elif pending is not None:
            shown = notes.observation(member(message, "content", f"{at}.content"), f"{at}.content")
            turns.append((pending, unwrapped(shown)))
            pending = None
    notes.count("unanswered_actions", pending is not None)
    return turns


def unwrapped(shown: str) -> str:
    """An observation without what the harness wraps around it for the model: the environment's own words."""
    shown = _PROMPT.sub("", shown.removeprefix(_PREFIX))
    return "" if shown == _NO_OUTPUT else shown


def _prompts(history: list[dict[str, Any]], notes: Notes) -> tuple[tuple[str, ...], str]:
    """The system prompts, and the first message to the model that is neither one of them nor a demonstration."""
    rules = []
    for index, message in enumerate(history):
        at = f"history[{index}]"
        if _is_demonstration(message, at):
            continue
        role = text(member(message, "role", f"{at}.role"), f"{at}.role")
        if role == "assistant":
            break
        said = notes.content(message.get("content"), f"{at}.content")
        if role != "system":
            return tuple(rules), said
        rules.append(said)
    return tuple(rules), ""


def _is_demonstration(message: dict[str, Any], at: str) -> bool:
    marked = message.get("is_demo", False)
    if not isinstance(marked, bool):
        raise SchemaError(f"{at}.is_demo", "must be true or false")
    return marked


def _replayed(config: Any) -> tuple[str, str]:
    """Model and task as the run's configuration names them, JSON text or an object; empty where absent."""
    if config is None:
        return "", ""
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError) as error:
            raise SchemaError("replay_config", f"is no JSON: {error}") from error
    mapping(config, "replay_config")
    model = nested_text(config, "agent", "model", "name")
    return "" if model == "replay" else model, nested_text(config, "problem_statement", "id")


def _folder_model(run: str) -> str:
    """Runs are filed under `<model>__<data>__<settings>`."""
    found = _MODEL.search(run)
    return found.group() if found and found.end() < len(run) else ""


SOURCE = Source(name="swe_agent", licence="MIT", matches=matches, trajectories=trajectories)
