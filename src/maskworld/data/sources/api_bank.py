"""API-Bank, levels 1 and 2: one JSON Lines file is one dialogue, a line is a turn of User, AI or API.

A turn of an API holds its call and its result. The target is `output` and `exception` of the result, as the benchmark
scores it; the members that repeat the call (`api_name`, missing in some files, and `input`) are left out. The action
has the arguments as the model wrote them (`param_dict`), not as the API parsed them.

- e0 is the start of the databases behind the APIs of the dialogue (`init_database/*.json`), the accounts among them
  where an API takes a token. Which API uses which database stands in the benchmark's code, hence the table here. A
  database that is not there or is longer than 16,000 characters (the search engine's 94,607) is left out and named in
  the metadata.
- Tool schemas are those of the APIs of the dialogue (`data/all_apis.csv`), as a level-1 agent is told.
- `ToolSearcher` is a transition: an API like the others, which the benchmark scores. It answers with the description
  of an API that is called later, in other words than `all_apis.csv` has; it has no schema there itself.
- Level 3 (free text) and the splits on Hugging Face (prompts cut into instruction and output) are not read.
"""

from __future__ import annotations

import ast
import csv
import io
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from maskworld.data.schema import SchemaError, Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.beside import json_beside, text_beside
from maskworld.data.sources.common.checks import Notes, array, mapping, member, text
from maskworld.data.sources.common.dialogue import Answered, Said, call_text, dialogue
from maskworld.data.sources.common.fields import compact
from maskworld.data.sources.common.pairing import Call, Result
from maskworld.data.sources.common.text import clean

_LONGEST_DATABASE = 16_000
_TALK, _API = {"role", "text"}, {"role", "api_name", "param_dict", "result"}
_ACCOUNTS, _SEARCHER = "Account", "ToolSearcher"
_DATABASES = {
    _ACCOUNTS: "GetUserToken RegisterUser DeleteAccount ModifyPassword ForgotPassword CheckToken",
    "Agenda": "AddAgenda QueryAgenda ModifyAgenda DeleteAgenda",
    "Alarm": "AddAlarm QueryAlarm ModifyAlarm DeleteAlarm",
    "Appointments": "AppointmentRegistration QueryRegistration ModifyRegistration CancelRegistration",
    "Bank": "QueryBalance",
    "HealthData": "RecordHealthData QueryHealthData",
    "History": "QueryHistoryToday",
    "Hotel": "BookHotel",
    "Meeting": "AddMeeting QueryMeeting ModifyMeeting DeleteMeeting",
    "QuestionAnswering": "DocumentQA",
    "Reminder": "AddReminder QueryReminder ModifyReminder DeleteReminder",
    "Scenes": "AddScene QueryScene ModifyScene DeleteScene",
    "SearchEngine": "SearchEngine",
    "SpeechRecognition": "SpeechRecognition",
    "Stock": "QueryStock",
    "Symptom": "SymptomSearch EmergencyKnowledge",
    "TimeSwitch": "TimedSwitch CancelTimedSwitch",
    "Wiki": "Wiki",
}
_DATABASE_OF = {api: database for database, apis in _DATABASES.items() for api in apis.split()}


def matches(record: Any, path: Path) -> bool:
    """Whether this is a turn: exactly the members that a turn of its role has."""
    if not isinstance(record, dict):
        return False
    role = record.get("role")
    return (role in ("User", "AI") and record.keys() == _TALK) or (role == "API" and record.keys() == _API)


def gathered_by(record: Any) -> str:
    """All turns of a file are one dialogue."""
    return "dialogue"


def accompanies(path: Path) -> bool:
    """Databases, the list of APIs with their error messages, and level 3's free texts."""
    return (
        path.parent.name == "init_database"
        or path.name in ("all_apis.csv", "exceptions.json")
        or (path.parent.name == "lv3-samples" and path.suffix == ".txt")
    )


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory]:
    """The dialogue's one trajectory; nothing where no API was called. Raises SchemaError with the turn's number."""
    notes = Notes()
    calls, said, answered = [], [], []
    for index, entry in enumerate(array(record, "")):
        at = f"[{index}]"
        turn = mapping(entry, at)
        role = text(member(turn, "role", f"{at}.role"), f"{at}.role")
        if role == "API":
            call, result = _called(turn, index, notes)
            calls.append(call)
            answered.append(Answered(call_text(call, f"{at}.param_dict", notes), result))
        elif role == "User":
            said.append(Said(index, notes.content(turn.get("text"), f"{at}.text")))
        elif role != "AI":
            raise SchemaError(f"{at}.role", "is none of User, AI and API")
    context, steps = dialogue(said, answered, notes)
    if steps:
        names = list(dict.fromkeys(call.name for call in calls))
        used = _databases(calls)
        state, left_out = _initial_state(origin.path, used)
        yield Trajectory(
            id=f"api_bank/{clean(origin.path.stem).text}",
            environment="api_bank",
            initial_state=state,
            task_context=context,
            steps=steps,
            tool_schemas=_schemas(origin.path, names),
            group="api_bank/" + _family(names, used),
            metadata=notes.metadata(databases_left_out=left_out),
        )


def _called(turn: dict[str, Any], index: int, notes: Notes) -> tuple[Call, Result]:
    at = f"[{index}]"
    name = clean(text(member(turn, "api_name", f"{at}.api_name"), f"{at}.api_name")).text
    if not name.strip():
        raise SchemaError(f"{at}.api_name", "must not be empty")
    arguments = mapping(member(turn, "param_dict", f"{at}.param_dict"), f"{at}.param_dict")
    result = mapping(member(turn, "result", f"{at}.result"), f"{at}.result")
    for asked in ("output", "exception"):
        member(result, asked, f"{at}.result.{asked}")
    target = {asked: value for asked, value in result.items() if asked in ("output", "exception")}
    shown = notes.observation(compact(target, f"{at}.result"), f"{at}.result")
    return Call("", name, arguments), Result("", shown, index, failed=result["exception"] is not None)


def _databases(calls: Iterable[Call]) -> list[str]:
    used = [_DATABASE_OF[call.name] for call in calls if call.name in _DATABASE_OF]
    if any("token" in call.arguments for call in calls):
        used.insert(0, _ACCOUNTS)
    return list(dict.fromkeys(used))


def _initial_state(path: Path, databases: list[str]) -> tuple[str, list[str]]:
    """The databases as one line of JSON, and the names of those left out."""
    kept, left_out = {}, []
    for name in databases:
        found = json_beside(path, f"init_database/{name}.json")
        if found is None or len(compact(found, name)) > _LONGEST_DATABASE:
            left_out.append(name)
        else:
            kept[name] = found
    return (clean(compact(kept, "init_database")).text if kept else ""), left_out


def _family(names: list[str], databases: list[str]) -> str:
    """What dialogues share that must not be split: their databases, or the APIs where these have none."""
    own = [name for name in databases if name != _ACCOUNTS] or databases
    return "+".join(sorted(own or [name for name in names if name != _SEARCHER] or names))


def _schemas(path: Path, names: list[str]) -> tuple[str, ...]:
    known = _documented(text_beside(path, "data/all_apis.csv"))
    return tuple(known[name] for name in names if name in known)


@lru_cache(maxsize=4)
def _documented(table: str) -> dict[str, str]:
    """The schema of each API of the list; those whose entry is broken are left out."""
    schemas = {}
    try:
        for row in csv.DictReader(io.StringIO(table)):
            name = row.get("类名")
            schema = _schema(name, row.get("api_info")) if name else ""
            if schema:
                schemas[name] = schema
    except csv.Error:
        return schemas
    return schemas


def _schema(name: str, info: str | None) -> str:
    """An API's name and what its `api_info`, a few Python assignments, says of it; empty where that cannot be read."""
    try:
        lines = ast.parse(info or "").body
        said = {line.targets[0].id: ast.literal_eval(line.value) for line in lines if isinstance(line, ast.Assign)}
        return clean(compact({"name": name} | said, name)).text if said else ""
    except (SyntaxError, ValueError, TypeError, AttributeError, RecursionError, MemoryError, SchemaError):
        return ""


# The repository is MIT, its folder api-bank carries the text of Apache-2.0.
SOURCE = Source(
    name="api_bank",
    licence="Apache-2.0",
    matches=matches,
    trajectories=trajectories,
    gathered_by=gathered_by,
    accompanies=accompanies,
)
