"""What an observation says of its action, without what it says: success or failure, shape and size.

The words of an observation decide only where an environment has a fixed way to say something and that stands where it
says it: at the beginning, at the end, or as a member of a JSON object. A file that holds the word `error`, a member
`exception` that is null and a list of log lines are no failures. Where the source itself says whether the action
failed (`Step.failed`), that holds. A wrapper (the text parts of a tool protocol, `<returncode>` and `<output>` tags) is
looked through.

A negative answer is no failure: no matches, a test that did not pass, a wrong flag.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from maskworld.data.schema import Step

Kind = Literal["ok", "error", "empty", "truncated"]
Form = Literal["nothing", "object", "list", "line", "text"]

COUNTS = ("none", "one", "two", "three", "four", "five", "six to nine", "ten to ninety-nine", "a hundred or more")
"""Counts are exact up to five only: an answer's shape, and no number that the answer could be about."""
LENGTHS = {"tiny": 40, "short": 200, "medium": 1_000, "long": 4_000, "huge": None}
"""Classes of length, each with the most characters it holds."""
FORMS: tuple[Form, ...] = ("nothing", "object", "list", "line", "text")
STATUSES = ("", "1xx", "2xx", "3xx", "4xx", "5xx", "exit")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What may be said of an observation before it is there."""

    kind: Kind
    """The first that holds: error, empty (no text, or a value that holds nothing), truncated, ok."""
    status: str
    """Class of an HTTP status, or `exit` for an exit code other than zero; empty where neither is told."""
    count: str
    """Entries of a JSON list, of the one list in an object of at most three members, or rows of a query, as a name
    from `COUNTS`; empty where nothing is counted."""
    form: Form
    """JSON object, JSON list, one line, several lines."""
    length: str
    """A name from `LENGTHS`."""


class _Content(NamedTuple):
    """A text and what its first look shows."""

    text: str
    form: Form
    value: Any
    """The JSON object or list that the text is; None where it is neither."""
    failed: bool = False
    """Whether a wrapper says so."""
    status: str = ""
    """As a wrapper says it."""


_FEW_MEMBERS = 3
_ERROR_MEMBERS = ("error", "errors", "exception", "isError", "is_error")
_SUCCESS_MEMBERS = ("success", "ok")
_STATUS_MEMBERS = ("status", "status_code", "statusCode", "code")
_RESULT_MEMBERS = ("output", "result", "response", "data")
_SPEAKING = frozenset(_ERROR_MEMBERS + _SUCCESS_MEMBERS + _STATUS_MEMBERS + _RESULT_MEMBERS)
"""Members that can say how a call went; most objects have none of them."""
_NO_ERROR = frozenset({"", "none", "null", "false", "0"})
_FAILURE_WORDS = frozenset({"error", "fail", "failed", "failure"})
_NOTHING = frozenset({"", "None", "null", "{}", '""', "''"})

_HTTP = re.compile(r"HTTP/[\d.]+ ([1-5])\d\d\b")
_ERROR_WORD = re.compile(
    r"(?:\w+ )?error(?: (?:while |when |during )?\w+(?: \w+)?)?:|error\b[^\n:]{0,40}:\n", re.IGNORECASE
)
_REFUSALS = (
    "Invalid action!",  # WebShop
    "Nothing happens.",  # ALFWorld
    "No known action matches that input.",  # ScienceWorld
    "Unknown action.",
    "Your proposed edit has introduced new syntax error",  # SWE-agent
    "EXECUTION TIMED OUT",
    "No replacement was performed",
    "Security violation:",  # Toolathlon's terminal
    "(timed out)",
)
_RETURN_CODE = re.compile(r"\s*<returncode>(-?\d+)</returncode>")
_OUTPUT = re.compile(r"<output>(.*)</output>", re.DOTALL)
_EXIT = re.compile(
    r"(?:^Return code: |ommand completed with return code: |(?:finished|completed) with exit code |^[Ee]xit code:? )"
    r"(-?\d+)",
    re.MULTILINE,
)
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Warning|Iteration)\b(?::|$)")
_COMPLAINT = re.compile(
    r"(?:error|fatal|[\w./+-]+: (?:.*: )?error)\b.*$|"
    r"[\w./+-]+: (?:.*: )?(?:No such file(?: or directory)?|Permission denied|(?:command )?not found|Is a directory|"
    r"Not a directory|File exists|Directory not empty|Operation not permitted|Connection refused|"
    r"(?:cannot|can't) [a-z]+ .*|missing (?:argument|operand).*|(?:invalid|unrecognized) option.*|[Ss]yntax error.*|"
    r"unexpected EOF.*|No module named .*)$"
)
"""What a command says of itself: its name, a colon and one of the fixed texts of the C library or of shells."""
_LONGEST_COMPLAINT = 400
_STRING = re.compile(r"""'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*\"""", re.DOTALL)
_VALUE_STARTS = frozenset("'\"0123456789-NTFbDd")
"""A string, a number, None, a truth value, bytes, Decimal or datetime."""
_BETWEEN_ROWS = re.compile(r"\),? ?\(")
_CUTS = (
    "<response clipped><NOTE>",  # SWE-agent, OpenHands
    "The output of your last command was too long",  # mini-SWE-agent
    "is too long! Only the first ",  # Toolathlon
    "characters were elided",
    "Observation truncated",
    "[truncated",
    "(truncated",
    "output truncated",
)
_SHORTEST_CUT = 200
_SILENT_CUTS = frozenset({5_000, 10_000})
"""Lengths at which harnesses cut without a mark."""


def outcome(step: Step) -> Outcome:
    """The outcome of a step; the same for all observations that differ in content only. Never raises."""
    shown = _read(step.observation.strip())
    content = _unwrapped(shown)
    status = _status(content)
    failed = _failed(content, status) if step.failed is None else step.failed
    count = _count(content)
    kind: Kind = "ok"
    if failed:
        kind = "error"
    elif count == 0 or content.text in _NOTHING:
        kind = "empty"
    elif _is_cut(step.observation):
        kind = "truncated"
    return Outcome(kind, status, _count_name(count), shown.form, length_class(len(step.observation)))


def length_class(characters: int) -> str:
    """The class of a length, a name from `LENGTHS`."""
    for name, most in LENGTHS.items():
        if most is None or characters <= most:
            return name
    raise AssertionError("the last class has no bound")


def _read(text: str) -> _Content:
    """A text without blanks around it, decoded where it is a JSON object or list."""
    if not text:
        return _Content(text, "nothing", None)
    if text[0] in "{[" and text[-1] in "}]":
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            pass
        else:
            return _Content(text, "list" if isinstance(value, list) else "object", value)
    return _Content(text, "text" if "\n" in text else "line", None)


def _unwrapped(shown: _Content) -> _Content:
    """What stands inside of a tool protocol's text parts or of the tags around a shell's output."""
    if shown.value:
        parts = shown.value if shown.form == "list" else [shown.value]
        if isinstance(parts[0], dict) and parts[0].get("type") == "text" and all(map(_is_text_part, parts)):
            inner = _read("\n".join(part["text"] for part in parts).strip())
            return inner._replace(failed=any(part.get("error") or part.get("isError") for part in parts))
    elif shown.text.startswith("<returncode>"):
        code, output = _RETURN_CODE.match(shown.text), _OUTPUT.search(shown.text)
        if code and output:
            inner = _read(output.group(1).strip())
            return inner._replace(status="" if code.group(1) == "0" else "exit", failed=code.group(1) != "0")
    return shown


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _status(content: _Content) -> str:
    if content.status:
        return content.status
    if content.form == "object":
        return _object_status(content.value)
    if content.form == "list":
        return ""
    found = _HTTP.match(content.text)
    if found:
        return f"{found.group(1)}xx"
    return "exit" if _exit_code(content.text) else ""


def _object_status(value: dict[str, Any]) -> str:
    if _SPEAKING.isdisjoint(value):
        return ""
    for name in _STATUS_MEMBERS:
        code = value.get(name)
        if isinstance(code, str) and len(code) == 3 and code.isascii() and code.isdigit():
            code = int(code)
        # A code without a message may be anything.
        if isinstance(code, int) and 100 <= code <= 599 and (name != "code" or "message" in value):
            return f"{code // 100}xx"
    return ""


def _exit_code(text: str) -> int | None:
    """The exit code that a harness prints below an output."""
    end = text[-_LONGEST_COMPLAINT:]
    found = _EXIT.findall(end) if "code" in end else []
    return int(found[-1]) if found else None


def _failed(content: _Content, status: str) -> bool:
    if content.failed or status in ("4xx", "5xx", "exit"):
        return True
    if content.form == "object":
        return _object_failed(content.value)
    return content.form != "list" and _text_failed(content.text)


def _object_failed(value: dict[str, Any]) -> bool:
    if _SPEAKING.isdisjoint(value):
        return False
    for name in _ERROR_MEMBERS:
        said = value.get(name)
        if said and not (isinstance(said, str) and said.strip().lower() in _NO_ERROR):
            return True
    if any(value.get(name) is False for name in _SUCCESS_MEMBERS):
        return True
    # An envelope says how the call went; in a record these are facts among others.
    if len(value) > _FEW_MEMBERS:
        return False
    said = value.get("status")
    if isinstance(said, str) and said.lower() in _FAILURE_WORDS:
        return True
    return any(isinstance(inner := value.get(name), dict) and _object_failed(inner) for name in _RESULT_MEMBERS)


def _text_failed(text: str) -> bool:
    if text.startswith(_REFUSALS) or _ERROR_WORD.match(text):
        return True
    last = text[max(text.rfind("\n") + 1, len(text) - _LONGEST_COMPLAINT) :]
    if _RAISED.match(last) and (last == text or text.startswith('File "') or _TRACEBACK in text):
        return True
    return text.startswith(_TRACEBACK) or _COMPLAINT.match(last) is not None


def _count(content: _Content) -> int | None:
    if content.form == "list":
        return len(content.value)
    if content.form == "object":
        lists = [member for member in content.value.values() if isinstance(member, list)]
        return len(lists[0]) if len(lists) == 1 and len(content.value) <= _FEW_MEMBERS else None
    return _rows(content.text)


def _rows(text: str) -> int | None:
    """Rows of a query as Python prints them: a list of tuples, or tuples one after another."""
    if text.startswith("[("):
        if not (text.endswith(")]") and text[2:3] in _VALUE_STARTS):
            return None
    elif not (text.startswith("(") and text.endswith(")") and text[1:2] in _VALUE_STARTS):
        return None
    return 1 + len(_BETWEEN_ROWS.findall(_STRING.sub("", text)))


def _count_name(count: int | None) -> str:
    if count is None:
        return ""
    return COUNTS[count] if count <= 5 else COUNTS[6 if count < 10 else 7 if count < 100 else 8]


def _is_cut(text: str) -> bool:
    if len(text) < _SHORTEST_CUT:
        return False
    for mark in _CUTS:  # a generator costs more than the search
        if mark in text:
            return True
    return len(text) in _SILENT_CUTS
