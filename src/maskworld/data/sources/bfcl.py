"""BFCL v3 and v4, multi-turn: a line of a result file is one task that a model worked on.

Transitions come from `inference_log`: in each step the calls that the harness decoded (`model_response_decoded`, Python
calls as text) are answered, in order, by the tool messages of the same step, which carry no ids. Only the first log of
a step that has decoded calls counts: an empty answer is logged twice. An answer that could not be decoded was never
executed, hence is no transition (counted as `undecoded_answers`). Turns and steps without calls are normal.

- The user asks anew in every turn: the texts stand where `common/dialogue.py` puts them.
- e0 is the `initial_config` of the task's questions, class by class; for a class that it does not describe, or where
  there is no questions file, the harness's snapshot before the first turn (Python reprs and all). Later snapshots go
  nowhere: they are the states between turns, not between steps.
- Tool schemas are the documents of the classes involved, without the functions that the task excludes; those it
  holds back until a later turn are among them (`held_back` in the metadata).
- A call failed where its result says so: `Error during execution: ...`, or an object with an `error`.
- The model is the folder below `result`. Not read: gold calls (`possible_answer`), scores, and the system prompts of
  models that take the tools in it, where the documents are at hand.
- Rows of single-turn categories hold calls that nobody executed: no transition.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from maskworld.data.schema import SchemaError, Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.beside import find_beside, lines_beside
from maskworld.data.sources.common.checks import Notes, array, identifier, mapping, member, text
from maskworld.data.sources.common.dialogue import Answered, Said, call_text, dialogue
from maskworld.data.sources.common.fields import compact
from maskworld.data.sources.common.pairing import Call, Result, pair
from maskworld.data.sources.common.text import clean

_DOCUMENTS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
    "WebSearchAPI": "web_search",
    "MemoryAPI_kv": "memory_kv",
    "MemoryAPI_vector": "memory_vector",
    "MemoryAPI_rec_sum": "memory_rec_sum",
}
_DATA = ("data", "bfcl_eval/data", ".")
_RESULT = re.compile(r"(BFCL_v\d+_\w+)_result\.")
_BESIDE = re.compile(r"BFCL_v\d+_(?!\w+_result\.).*\.jsonl?\Z")
_ID = re.compile(r"(.*?)_(\d+)(?:-.*)?\Z", re.DOTALL)
_VARIANT = re.compile(r"multi_turn_(?:base|miss_func|miss_param|long_context|composite)\Z")
_CATEGORIES = {"multi_turn", "agentic", "memory", "live", "non_live"}
_STEP = re.compile(r"step_\d+\Z")
_FAILED = re.compile(r'Error during execution:|\{"error":')


def matches(record: Any, path: Path) -> bool:
    """Whether this is a row of results: an id, the answers, and the harness's log or its token counts."""
    if not isinstance(record, dict) or not {"id", "result"} <= record.keys():
        return False
    return isinstance(record.get("inference_log"), list) or {"input_token_count", "latency"} <= record.keys()


def accompanies(path: Path) -> bool:
    """Questions, gold answers, scores and the documents of the functions."""
    return path.parent.name == "multi_turn_func_doc" or _BESIDE.match(path.name) is not None


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """The task's one trajectory; nothing where no call was executed. Raises SchemaError for a broken record."""
    row = mapping(record, "")
    notes = Notes()
    own = identifier(row.get("id"), "id") or clean(origin.identity).text
    log = array(row.get("inference_log") or [], "inference_log")
    question = _question(origin.path, own)
    classes = [name for name in question.get("involved_classes") or [] if isinstance(name, str)]
    snapshot = _snapshot(log)
    documents = _documented(origin.path, classes or list(snapshot))
    prompts, said, answered = _turns(log, _parameters(documents), notes)
    context, steps = dialogue(said, answered, notes)
    if steps:
        model, (category, number) = _model(origin.path), _numbered(own)
        config = question.get("initial_config") or {}
        excluded = question.get("excluded_function") or []
        state = {name: config.get(name, snapshot.get(name)) for name in classes or snapshot}
        state = {name: value for name, value in state.items() if value is not None}
        yield Trajectory(
            id="/".join(part for part in ("bfcl", model, own) if part),
            environment=f"bfcl/{category}",
            initial_state=clean(compact(state, "inference_log[0]")).text if state else "",
            task_context=context,
            steps=steps,
            tool_schemas=tuple(schema for name, _, schema in documents if name not in excluded),
            domain_rules=() if documents else tuple(prompts),
            group=f"bfcl/{category}/{number}",
            player=model,
            metadata=notes.metadata(classes=classes or list(snapshot), held_back=_held_back(question)),
        )


def _turns(
    log: list[Any], parameters: dict[str, list[str]], notes: Notes
) -> tuple[list[str], list[Said], list[Answered]]:
    """System prompts, what the user said, and the executed calls; places are numbered through."""
    prompts: list[str] = []
    said: list[Said] = []
    answered: list[Answered] = []
    place = 0
    for index, entry in enumerate(log):
        if isinstance(entry, list):
            continue
        at = f"inference_log[{index}]"
        turn = mapping(entry, at)
        asked = array(turn.get("begin_of_turn_query") or [], f"{at}.begin_of_turn_query")
        for number, message in enumerate(asked):
            here = f"{at}.begin_of_turn_query[{number}]"
            content = notes.content(mapping(message, here).get("content"), f"{here}.content")
            if message.get("role") == "system":
                prompts.append(content)
            else:
                said.append(Said(place, content))
        for name, messages in turn.items():
            if _STEP.match(name):
                place += 1
                answered += _executed(array(messages, f"{at}.{name}"), f"{at}.{name}", place, parameters, notes)
        place += 1
    return prompts, said, answered


def _executed(
    messages: list[Any], path: str, place: int, parameters: dict[str, list[str]], notes: Notes
) -> list[Answered]:
    """The calls of one step with their results, in order."""
    calls: list[Call] | None = None
    results = []
    for index, message in enumerate(messages):
        at = f"{path}[{index}]"
        role = mapping(message, at).get("role")
        if role == "tool":
            shown = notes.observation(member(message, "content", f"{at}.content"), f"{at}.content")
            results.append(Result("", shown, place, failed=_FAILED.match(shown) is not None))
        elif role == "handler_log" and calls is None:
            if "model_response_decoded" in message:
                here = f"{at}.model_response_decoded"
                decoded = [
                    text(one, here) for one in array(message["model_response_decoded"], here) if one not in ("", [])
                ]
                calls = [_call(one, parameters) for one in decoded]
            else:
                notes.count("undecoded_answers", "error" in message)
    found = pair([*(calls or []), *results])
    notes.count("unpaired_calls", found.unpaired_calls)
    notes.count("orphan_results", found.orphan_results)
    notes.count("unparsable_calls", sum(not call.name for call, _ in found.pairs))
    return [Answered(call_text(call, path, notes), result) for call, result in found.pairs]


def _call(source: str, parameters: dict[str, list[str]]) -> Call:
    """`cd(folder='a')` as name and arguments; what is no such call of literals, as a call without a name.

    Positional arguments get the names that the function's document has.
    """
    try:
        call = _parsed(source.strip())
        if not isinstance(call, ast.Call):
            return Call("", "", source)
        name = call.func.id if isinstance(call.func, ast.Name) else ast.unparse(call.func)
        names = parameters.get(name, [])[: len(call.args)]
        named = list(zip(names, call.args, strict=True)) + [(word.arg, word.value) for word in call.keywords]
        arguments = {word: ast.literal_eval(value) for word, value in named}
        compact(arguments, name)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError, SchemaError):
        return Call("", "", source)
    return Call("", "", source) if None in arguments else Call("", name, arguments)


def _parsed(source: str) -> ast.expr:
    if "\\" not in source:
        return ast.parse(source, mode="eval").body
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "\d" in a model's text
        return ast.parse(source, mode="eval").body


def _snapshot(log: list[Any]) -> dict[str, Any]:
    """The states of the classes before the first turn; empty where the log has none."""
    first = log[0] if log and isinstance(log[0], list) else []
    states = {}
    for index, entry in enumerate(first):
        at = f"inference_log[0][{index}]"
        name = mapping(entry, at).get("class_name")
        states[text(name, f"{at}.class_name")] = entry.get("content")
    return states


def _held_back(question: dict[str, Any]) -> dict[str, Any]:
    """The functions shown only from a turn on, by turn."""
    held = (question.get("missed_function") or {}).items()
    return {turn: names for turn, names in held if isinstance(names, list) and all(isinstance(n, str) for n in names)}


def _numbered(own: str) -> tuple[str, str]:
    """Category and number of a task: the variants of a multi-turn task share state and requests, hence both."""
    found = _ID.match(own)
    category, number = found.groups() if found else (own, "")
    return ("multi_turn" if _VARIANT.match(category) else category), number or own


def _model(path: Path) -> str:
    """`result/MODEL/...`; without such a folder the one above the category's; empty where neither is there."""
    folders = path.parts[:-1]
    if "result" in folders[:-1]:
        return clean(folders[len(folders) - 1 - folders[::-1].index("result") + 1]).text
    return clean(folders[-2]).text if len(folders) > 1 and folders[-1] in _CATEGORIES else ""


def _question(path: Path, own: str) -> dict[str, Any]:
    """The task's line of the questions file, with members of the types that are used; empty where there is none."""
    named = _RESULT.match(path.name)
    found = _beside(path, f"{named.group(1)}.json") if named else None
    return _questions(found).get(own, {}) if found else {}


@lru_cache(maxsize=32)
def _questions(path: Path) -> dict[str, dict[str, Any]]:
    kinds = {"involved_classes": list, "initial_config": dict, "excluded_function": list, "missed_function": dict}
    lines = (line for line in lines_beside(path, path.name) if isinstance(line, dict))
    return {
        line["id"]: {name: line[name] for name, kind in kinds.items() if isinstance(line.get(name), kind)}
        for line in lines
        if isinstance(line.get("id"), str)
    }


def _documented(path: Path, classes: list[str]) -> list[tuple[str, list[str], str]]:
    """Name, parameters and schema of each function of the classes."""
    found = []
    for name in classes:
        file = _beside(path, f"multi_turn_func_doc/{_DOCUMENTS[name]}.json") if name in _DOCUMENTS else None
        found += _functions(file) if file else []
    return found


@lru_cache(maxsize=64)
def _functions(path: Path) -> list[tuple[str, list[str], str]]:
    functions = []
    for line in lines_beside(path, path.name):
        if not isinstance(line, dict) or not isinstance(line.get("name"), str):
            continue
        schema = line.get("parameters")
        properties = schema.get("properties") if isinstance(schema, dict) else None
        try:
            described = clean(compact(line, path.name)).text
        except SchemaError:  # a neighbour's fault costs no row
            continue
        functions.append((line["name"], list(properties) if isinstance(properties, dict) else [], described))
    return functions


def _parameters(documents: list[tuple[str, list[str], str]]) -> dict[str, list[str]]:
    return {name: names for name, names, _ in documents}


def _beside(path: Path, name: str) -> Path | None:
    return next((found for folder in _DATA if (found := find_beside(path, f"{folder}/{name}"))), None)


SOURCE = Source(name="bfcl", licence="Apache-2.0", matches=matches, trajectories=trajectories, accompanies=accompanies)
