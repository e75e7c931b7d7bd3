"""OpenTelemetry spans of generative AI: one span per record, or an OTLP envelope (`resourceSpans`) with many.

A trace is a trajectory. A `chat` span names the call that the model made (`gen_ai.tool.name`, `.call.arguments`, or
tool calls among `gen_ai.output.messages`), the `execute_tool` span that follows it holds the answer
(`gen_ai.tool.message`, in newer files `gen_ai.tool.call.result`). Calls with ids are answered by id. Calls without are
answered in order, but never by a tool that ran after the next chat. Where tool spans hold arguments of their own, they
are call and answer in one, and what chat spans tell of calls is not needed.

- Spans are taken in the order of their start, where each has one; spans of other operations are no part of it.
- A tool span whose status is an error is a step that failed.
- A tool span without an answer is no transition, counted as `lost_observations`; an empty answer is one.
- A shell's call with nothing but a `command` is that command; others are written as calls are everywhere.
- Traces with the same prompt are one group.

A trace whose envelopes begin with different traces comes apart: a record is gathered by its first trace id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from maskworld.data.schema import SchemaError, Step, Trajectory
from maskworld.data.sources.common.base import Origin, Source
from maskworld.data.sources.common.checks import Notes, array, label, mapping, member, nested_text, text
from maskworld.data.sources.common.fields import compact, decoded
from maskworld.data.sources.common.pairing import Call, Pair, Result, action_text, pair, parse_arguments
from maskworld.data.sources.common.text import clean

_CHATS = {"chat", "generate_content", "text_completion"}
_SHELLS = {"bash", "sh", "shell", "terminal"}
_FAILED = {"STATUS_CODE_ERROR": True, "STATUS_CODE_OK": False, 2: True, 1: False}
_UNTOLD = -1
"""The message number of a result that a tool span does not tell."""


class _Span(NamedTuple):
    attributes: dict[str, Any]
    """The wrapped values as they stand."""
    record: dict[str, Any]
    path: str


def matches(record: Any, path: Path) -> bool:
    """Whether this is a span with its ids, or an envelope that holds one of generative AI."""
    if not isinstance(record, dict):
        return False
    if "resourceSpans" in record:
        return any(_of_genai(span.get("attributes")) for span in _inside(record))
    return (
        isinstance(record.get("traceId"), str)
        and isinstance(record.get("spanId"), str)
        and isinstance(record.get("attributes"), list)
    )


def trace_of(record: Any) -> str:
    """The trace of a span, or of the first span of an envelope; empty where there is none."""
    found = next((span for span in _inside(record) if isinstance(span.get("traceId"), str)), {})
    return found.get("traceId", "")


def trajectories(record: Any, origin: Origin) -> Iterator[Trajectory | SchemaError]:
    """One trajectory, or the error of a broken one, for each trace that holds a transition."""
    traces: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for index, entry in enumerate(array(record, "")):
        try:
            for span, path in _spans(mapping(entry, f"[{index}]"), f"[{index}]"):
                name = text(member(span, "traceId", f"{path}.traceId"), f"{path}.traceId")
                traces.setdefault(name, []).append((span, path))
        except SchemaError as error:
            yield error
    for name, spans in traces.items():
        try:
            found = _trajectory(clean(name).text, [_Span(_attributes(span, path), span, path) for span, path in spans])
        except SchemaError as error:
            yield error
            continue
        if found is not None:
            yield found


def _of_genai(attributes: Any) -> bool:
    names = (
        [entry.get("key") for entry in attributes if isinstance(entry, dict)] if isinstance(attributes, list) else []
    )
    return any(isinstance(name, str) and name.startswith("gen_ai.") for name in names)


def _inside(record: Any) -> Iterator[dict[str, Any]]:
    """The spans of a record, as far as it can be read."""
    try:
        yield from (span for span, _ in _spans(mapping(record, ""), ""))
    except SchemaError:
        return


def _spans(record: dict[str, Any], path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Spans and their paths. Raises SchemaError for an envelope that is built in another way."""
    if "resourceSpans" not in record:
        yield record, path
        return
    found = [(record, path)]
    for level in ("resourceSpans", "scopeSpans", "spans"):
        found = [
            (mapping(entry, f"{at}.{level}[{index}]"), f"{at}.{level}[{index}]")
            for one, at in found
            for index, entry in enumerate(array(one.get(level) or [], f"{at}.{level}"))
        ]
    yield from found


def _attributes(span: dict[str, Any], path: str) -> dict[str, Any]:
    found = {}
    for index, entry in enumerate(array(span.get("attributes") or [], f"{path}.attributes")):
        here = f"{path}.attributes[{index}]"
        name = text(member(mapping(entry, here), "key", f"{here}.key"), f"{here}.key")
        found[name] = entry.get("value")
    return found


def _trajectory(trace: str, spans: list[_Span]) -> Trajectory | None:
    notes = Notes()
    spans = _in_order(spans)
    steps = []
    for call, result in _pairs(spans, notes):
        action = notes.content(_action(call, spans[result.message].path), spans[result.message].path)
        if action.strip():
            steps.append(Step(action, result.text, failed=result.failed))
        else:
            notes.count("empty_actions")
    if not steps:
        return None
    told = next(_structures(spans, "wmh.trace.metadata"), {})
    environment = nested_text(told, "benchmark") or "otel_genai"
    task = _first(spans, "gen_ai.prompt") or _message(spans, "gen_ai.input.messages", "user")
    task = notes.content(task, "gen_ai.prompt")
    rules = notes.content(_message(spans, "gen_ai.system_instructions", ""), "gen_ai.system_instructions")
    schemas = array(next(_structures(spans, "gen_ai.tool.definitions"), []), "gen_ai.tool.definitions")
    model = _first(spans, "gen_ai.response.model") or _first(spans, "gen_ai.request.model")
    kin = hashlib.sha256(task.encode()).hexdigest()[:16] if task else trace
    return Trajectory(
        id=f"otel_genai/{trace or 'unnamed'}",
        environment=environment,
        initial_state="",
        task_context=task,
        steps=tuple(steps),
        tool_schemas=tuple(clean(compact(entry, "gen_ai.tool.definitions")).text for entry in schemas),
        domain_rules=(rules,) if rules else (),
        group=f"{environment}/{kin}",
        player=label(model, "gen_ai.request.model"),
        metadata=notes.metadata(task_category=nested_text(told, "task_category")),
    )


def _in_order(spans: list[_Span]) -> list[_Span]:
    """By start time, which is an integer or its digits; as they came where one has none."""
    starts = []
    for span in spans:
        start = span.record.get("startTimeUnixNano")
        if isinstance(start, str) and start.isascii() and start.isdigit() and len(start) < 30:
            start = int(start)
        if isinstance(start, bool) or not isinstance(start, int):
            return spans
        starts.append(start)
    return [spans[index] for index in sorted(range(len(spans)), key=starts.__getitem__)]


def _pairs(spans: list[_Span], notes: Notes) -> list[Pair]:
    """Calls and their answers, `Result.message` the index of the tool's span; answers that nobody told are left out."""
    tools = {i for i, span in enumerate(spans) if _string(span, "gen_ai.operation.name") == "execute_tool"}
    alone = any("gen_ai.tool.call.arguments" in spans[index].attributes for index in tools)
    turns: list[list[Call | Result]] = [[]]
    for index, span in enumerate(spans):
        if index in tools:
            own = f"span {index}" if alone else _string(span, "gen_ai.tool.call.id")
            if alone:
                turns[-1].append(_call(own, span.attributes, span.path, notes))
            turns[-1].append(_result(own, index, span, notes))
        elif not alone and _string(span, "gen_ai.operation.name") in _CHATS:
            calls = _calls(span, notes)
            turns.append([*calls])
    if any(isinstance(event, Call) and event.id for events in turns for event in events):
        turns = [[event for events in turns for event in events]]
    found = [pair(events) for events in turns]
    notes.count("unpaired_calls", sum(one.unpaired_calls for one in found))
    notes.count("orphan_results", sum(one.orphan_results for one in found))
    pairs = [one for turn in found for one in turn.pairs]
    kept = [one for one in pairs if one.result.message != _UNTOLD]
    notes.count("lost_observations", len(pairs) - len(kept))
    return kept


def _calls(span: _Span, notes: Notes) -> list[Call]:
    """The calls of a chat span: the one in its attributes, or those in its output."""
    if "gen_ai.tool.name" in span.attributes:
        return [_call(_string(span, "gen_ai.tool.call.id"), span.attributes, span.path, notes)]
    path = f"{span.path}.gen_ai.output.messages"
    calls = []
    for message in _messages([span], "gen_ai.output.messages"):
        for part in array(message.get("parts") or [], path):
            if mapping(part, path).get("type") == "tool_call":
                given = {"gen_ai.tool.name": part.get("name"), "gen_ai.tool.call.arguments": part.get("arguments")}
                calls.append(_call(label(part.get("id"), path), given, path, notes))
    return calls


def _call(id: str, given: dict[str, Any], path: str, notes: Notes) -> Call:
    name = text(_value(given.get("gen_ai.tool.name"), path), f"{path}.gen_ai.tool.name")
    if not name.strip():
        raise SchemaError(f"{path}.gen_ai.tool.name", "must not be empty")
    here = f"{path}.gen_ai.tool.call.arguments"
    try:
        arguments = parse_arguments(_value(given.get("gen_ai.tool.call.arguments"), here))
    except ValueError as error:
        raise SchemaError(here, str(error)) from error
    notes.count("unparsable_arguments", isinstance(arguments, str))
    return Call(id, name, arguments)


def _result(id: str, index: int, span: _Span, notes: Notes) -> Result:
    for name in ("gen_ai.tool.message", "gen_ai.tool.call.result"):
        if name in span.attributes:
            here = f"{span.path}.{name}"
            told = _value(span.attributes[name], here)
            shown = notes.observation(told if isinstance(told, str) else compact(told, here), here)
            status = span.record.get("status")
            code = status.get("code") if isinstance(status, dict) else None
            return Result(id, shown, index, _FAILED.get(code) if isinstance(code, str | int) else None)
    return Result(id, "", _UNTOLD)


def _action(call: Call, path: str) -> str:
    arguments = call.arguments
    if call.name in _SHELLS and isinstance(arguments, dict) and [*arguments] == ["command"]:
        if isinstance(arguments["command"], str):
            return arguments["command"]
    try:
        return action_text(call.name, arguments)
    except ValueError as error:
        raise SchemaError(path, f"the arguments of {call.name[:80]!r} are no JSON ({error})") from error


def _message(spans: list[_Span], name: str, role: str) -> str:
    """The words of the first message of a role; where messages have no roles, of all of them."""
    found = _messages(spans, name)
    if role:
        chosen = next((message for message in found if message.get("role") == role), {})
        found = [chosen] if "content" in chosen else array(chosen.get("parts") or [], f"{name}.parts")
    words = [part.get("content") for part in found if isinstance(part, dict)]
    return "\n".join(word for word in words if isinstance(word, str))


def _messages(spans: list[_Span], name: str) -> list[dict[str, Any]]:
    """The objects of the first of the spans that has such a list."""
    return [mapping(entry, name) for entry in array(next(_structures(spans, name), []), name)]


def _structures(spans: list[_Span], name: str) -> Iterator[Any]:
    """The values of an attribute that holds a structure, or its JSON, where it is not empty."""
    for span in spans:
        if value := _value(span.attributes.get(name), f"{span.path}.{name}"):
            yield decoded(value, f"{span.path}.{name}")


def _first(spans: list[_Span], name: str) -> str:
    """The first text of an attribute that is not empty."""
    return next((found for span in spans if (found := _string(span, name))), "")


def _string(span: _Span, name: str) -> str:
    value = _value(span.attributes.get(name), f"{span.path}.{name}")
    return "" if value is None else text(value, f"{span.path}.{name}")


def _value(wrapped: Any, path: str) -> Any:
    """What OTLP wraps as `{"stringValue": ...}` or its kin, or a value that is not wrapped; None for nothing."""
    if not isinstance(wrapped, dict):
        return wrapped
    for name in ("stringValue", "intValue", "doubleValue", "boolValue"):
        if name in wrapped:
            return wrapped[name]
    try:
        if "arrayValue" in wrapped:
            inner = mapping(wrapped["arrayValue"], path).get("values") or []
            return [_value(entry, path) for entry in array(inner, path)]
        if "kvlistValue" in wrapped:
            inner = array(mapping(wrapped["kvlistValue"], path).get("values") or [], path)
            pairs = [mapping(entry, path) for entry in inner]
            return {text(entry.get("key"), path): _value(entry.get("value"), path) for entry in pairs}
    except RecursionError as error:
        raise SchemaError(path, "nested too deeply") from error
    return wrapped or None


SOURCE = Source(name="otel_genai", licence="unknown", matches=matches, trajectories=trajectories, gathered_by=trace_of)
