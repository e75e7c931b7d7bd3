import copy
import json

import pytest
from foreign_records import SAMPLES, check_broken, convert, corpus, one_member_replaced
from hypothesis import given, settings

from maskworld.data.schema import SchemaError, Trajectory
from maskworld.data.sources.common.base import Origin
from maskworld.data.sources.otel_genai import SOURCE

PATH = SAMPLES / "otel_genai" / "traces.otel.jsonl"


def traces(path):
    found = {}
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line:
            found.setdefault(SOURCE.gathered_by(json.loads(line)), []).append(json.loads(line))
    return list(found.values())


SAMPLED = traces(PATH)


def attribute(span, name):
    return next((entry["value"]["stringValue"] for entry in span["attributes"] if entry["key"] == name), None)


def span(start, operation, status=None, **attributes):
    """One span; `__` in a name stands for a dot."""
    named = {"operation__name": operation, **attributes}
    wrapped = {name: value if isinstance(value, dict) else {"stringValue": value} for name, value in named.items()}
    given = [{"key": "gen_ai." + name.replace("__", "."), "value": value} for name, value in wrapped.items()]
    made = {"traceId": "t", "spanId": f"s{start}", "startTimeUnixNano": str(start), "attributes": given}
    return made | ({} if status is None else {"status": {"code": status}})


def chat(start, **attributes):
    return span(start, "chat", **attributes)


def tool(start, status=None, **attributes):
    return span(start, "execute_tool", status, **attributes)


def read(spans):
    (trajectory,) = convert(SOURCE, spans, PATH)
    return trajectory


def test_the_corpus_has_190_traces_459_steps_45_failures_and_its_longest_answer_whole():
    (path,) = corpus("wmh_terminal_tasks", "*.jsonl")
    found = [read(spans) for spans in traces(path)]
    steps = [step for trajectory in found for step in trajectory.steps]
    assert (len(found), len(steps)) == (190, 459)
    assert len({trajectory.group for trajectory in found}) == 190
    assert sum(step.failed for step in steps) == 45
    assert max(len(step.observation) for step in steps) == 147_911
    assert sum(not step.observation for step in steps) == 68
    assert not any("unpaired_calls" in trajectory.metadata for trajectory in found)


@pytest.mark.parametrize("spans", SAMPLED, ids=lambda spans: spans[0]["traceId"][:6])
def test_a_chat_and_the_tool_behind_it_are_a_step(spans):
    assert all(SOURCE.matches(one, PATH) for one in spans)
    trajectory = read(spans)
    told = [one for one in spans if attribute(one, "gen_ai.tool.message") is not None]
    asked = [json.loads(attribute(one, "gen_ai.tool.call.arguments")) for one in spans if one not in told]
    assert [step.action for step in trajectory.steps] == [arguments["command"] for arguments in asked]
    assert [step.observation for step in trajectory.steps] == [attribute(one, "gen_ai.tool.message") for one in told]
    assert [step.failed for step in trajectory.steps] == [one["status"]["code"] == "STATUS_CODE_ERROR" for one in told]
    assert trajectory.task_context == attribute(spans[0], "gen_ai.prompt")
    assert trajectory.environment == "terminal-tasks"
    assert trajectory.player == "terminal-agent"
    assert trajectory.metadata.keys() == {"task_category"}


def test_the_sample_holds_failures_and_empty_answers():
    steps = [step for spans in SAMPLED for step in read(spans).steps]
    assert any(step.failed for step in steps) and any(step.observation == "" for step in steps)


def test_a_long_answer_is_kept_whole():
    spans = copy.deepcopy(SAMPLED[0])
    spans[1]["attributes"][-1]["value"]["stringValue"] = "x" * 186_799
    assert read(spans).steps[0].observation == "x" * 186_799


def test_an_envelope_gives_what_its_spans_give():
    envelope = {"resourceSpans": [
        {"resource": {}, "scopeSpans": [{"spans": SAMPLED[0] + SAMPLED[1][:1]}, {"scope": {}}]},
        {"scopeSpans": [{"spans": SAMPLED[1][1:]}]},
        {},
    ]}  # fmt: skip
    assert SOURCE.matches(envelope, PATH)
    assert SOURCE.gathered_by(envelope) == SAMPLED[0][0]["traceId"]
    assert convert(SOURCE, [envelope], PATH) == [read(SAMPLED[0]), read(SAMPLED[1])]


def test_an_envelope_without_generative_ai_is_not_claimed():
    other = {"traceId": "t", "spanId": "s", "attributes": [{"key": "http.method", "value": {"stringValue": "GET"}}]}
    assert not SOURCE.matches({"resourceSpans": [{"scopeSpans": [{"spans": [other]}]}]}, PATH)
    assert not SOURCE.matches({"resourceSpans": 5}, PATH)


def test_spans_are_taken_in_the_order_of_their_start():
    shuffled = SAMPLED[3][::-1]
    assert read(shuffled) == read(SAMPLED[3])
    untimed = copy.deepcopy(SAMPLED[3])
    del untimed[2]["startTimeUnixNano"]
    assert read(untimed) == read(SAMPLED[3])


def test_calls_in_a_chat_s_output_are_answered_by_id():
    parts = [
        {"type": "text", "content": "I look twice."},
        {"type": "tool_call", "id": "a", "name": "weather", "arguments": {"city": "Paris"}},
        {"type": "tool_call", "id": "b", "name": "weather", "arguments": '{"city": "Rome"}'},
    ]
    asked = [{"role": "user", "parts": [{"type": "text", "content": "Where is it warm?"}]}]
    tools = [{"type": "function", "name": "weather"}]
    trajectory = read([
        chat(1, output__messages=json.dumps([{"role": "assistant", "parts": parts}]),
             input__messages=json.dumps(asked), tool__definitions=json.dumps(tools),
             system_instructions=json.dumps([{"type": "text", "content": "Be kind."}]), request__model="m",
             response__model="m-2"),
        tool(2, 1, tool__name="weather", tool__call__id="b", tool__call__result="hot"),
        tool(3, 2, tool__name="weather", tool__call__id="a", tool__call__result="cold"),
        span(4, "invoke_agent"),
    ])  # fmt: skip
    assert [(step.action, step.observation, step.failed) for step in trajectory.steps] == [
        ('{"name":"weather","arguments":{"city":"Paris"}}', "cold", True),
        ('{"name":"weather","arguments":{"city":"Rome"}}', "hot", False),
    ]
    assert trajectory.task_context == "Where is it warm?"
    assert trajectory.domain_rules == ("Be kind.",)
    assert trajectory.tool_schemas == ('{"type":"function","name":"weather"}',)
    assert trajectory.player == "m-2"
    assert trajectory.environment == "otel_genai"


def test_a_tool_span_with_arguments_of_its_own_needs_no_chat():
    structured = {"kvlistValue": {"values": [{"key": "total", "value": {"intValue": "2"}}]}}
    trajectory = read([
        chat(1, tool__name="count", tool__call__arguments='{"of": "x"}'),
        tool(2, tool__name="count", tool__call__arguments='{"of": "x"}', tool__call__result=structured),
        tool(3, tool__name="count", tool__call__arguments="", tool__call__result=""),
    ])  # fmt: skip
    assert [(step.action, step.observation, step.failed) for step in trajectory.steps] == [
        ('{"name":"count","arguments":{"of":"x"}}', '{"total":"2"}', None),
        ('{"name":"count","arguments":{}}', "", None),
    ]


def test_what_has_no_partner_is_counted_and_moves_no_other_answer():
    trajectory = read([
        tool(1, tool__name="f", tool__message="nobody asked"),
        chat(2, tool__name="unanswered", tool__call__arguments="{}"),
        chat(3, tool__name="untold", tool__call__arguments="{}"),
        tool(4, tool__name="untold"),
        chat(5, tool__name="bash", tool__call__arguments='{"command": "ls", "timeout": 1}'),
        tool(6, tool__name="bash", tool__message="a.txt"),
        chat(7, tool__name="bash", tool__call__arguments='{"command": " "}'),
        tool(8, tool__name="bash", tool__message=""),
    ])  # fmt: skip
    assert [(step.action, step.observation) for step in trajectory.steps] == [
        ('{"name":"bash","arguments":{"command":"ls","timeout":1}}', "a.txt")
    ]
    assert trajectory.metadata == {
        "empty_actions": 1,
        "lost_observations": 1,
        "orphan_results": 1,
        "unpaired_calls": 1,
    }


def test_a_trace_without_a_tool_is_no_trajectory():
    assert convert(SOURCE, [chat(1, request__model="m")], PATH) == []


def test_a_broken_span_costs_its_own_trace_only():
    broken = copy.deepcopy(SAMPLED[1])
    broken[1]["attributes"][0]["key"] = 5
    error, found = SOURCE.trajectories(broken + SAMPLED[0], Origin(PATH, 0))
    assert isinstance(error, SchemaError) and error.field == "[1].attributes[0].key"
    assert isinstance(found, Trajectory)
    nameless, found = SOURCE.trajectories([{"spanId": "x"}, *SAMPLED[0]], Origin(PATH, 0))
    assert isinstance(nameless, SchemaError) and nameless.field == "[0].traceId"
    assert isinstance(found, Trajectory)


@given(one_member_replaced(SAMPLED[0]))
@settings(max_examples=150, deadline=None)
def test_one_broken_member_is_refused_or_harmless(spans):
    check_broken(SOURCE, spans, PATH)
    for one in spans if isinstance(spans, list) else []:
        assert SOURCE.matches(one, PATH) in (True, False)
        assert isinstance(SOURCE.gathered_by(one), str)


@given(one_member_replaced([{"resourceSpans": [{"scopeSpans": [{"spans": SAMPLED[4]}]}]}]))
@settings(max_examples=150, deadline=None)
def test_one_broken_member_of_an_envelope_is_refused_or_harmless(envelopes):
    check_broken(SOURCE, envelopes, PATH)
