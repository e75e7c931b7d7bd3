import json

import pytest
from foreign_records import SAMPLES, check_broken, convert, corpus, one_member_replaced
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.schema import SchemaError
from maskworld.data.sources.toolathlon import NO_TRANSITION, SOURCE

PATH = SAMPLES / "toolathlon" / "scripted-actor_1.jsonl"


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def chat_of(record):
    return json.loads(record["messages"]) if isinstance(record["messages"], str) else record["messages"]


RECORDS = lines(PATH)
UNPACKED = [r | {n: json.loads(r[n]) for n in ("task_status", "config", "tool_calls")} for r in RECORDS]


def test_the_corpus_has_456_calls_13_without_arguments_and_six_runs_end_on_an_answer():
    (path,) = corpus("toolathlon_like", "*.jsonl")
    found = [(r, convert(SOURCE, r, path, index)[0]) for index, r in enumerate(lines(path))]
    assert len({t.id for _, t in found}) == 32
    assert sum(len(t.steps) + t.metadata.get("no_transition_calls", 0) for _, t in found) == 456
    assert sum(t.metadata.get("empty_arguments", 0) for _, t in found) == 13
    ending = [(chat_of(r)[-1], t.steps[-1]) for r, t in found if chat_of(r)[-1]["role"] == "tool"]
    assert len(ending) == 6
    assert all(step.observation == message["content"] for message, step in ending)


@pytest.mark.parametrize("record", RECORDS, ids=range(len(RECORDS)))
def test_messages_as_a_list_and_as_a_string_are_the_same(record):
    assert SOURCE.matches(record, PATH)
    chat = chat_of(record)
    as_list = convert(SOURCE, record | {"messages": chat}, PATH)
    assert as_list == convert(SOURCE, record | {"messages": json.dumps(chat)}, PATH)
    (found,) = as_list
    assert len(found.tool_schemas) == len(json.loads(record["tool_calls"])["tools"])
    calls = [c["function"]["name"] for m in chat for c in m.get("tool_calls") or []]
    assert [json.loads(s.action)["name"] for s in found.steps] == [c for c in calls if c not in NO_TRANSITION]
    assert found.player == "scripted-actor"


def test_unreadable_messages_are_named():
    with pytest.raises(SchemaError) as caught:
        convert(SOURCE, RECORDS[0] | {"messages": "[{"}, PATH)
    assert caught.value.field == "messages"


def test_arguments_cut_short_are_kept_raw_and_counted():
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a'}}
    chat = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1", "content": "no"}]
    (found,) = convert(SOURCE, RECORDS[0] | {"messages": chat}, PATH)
    assert json.loads(found.steps[0].action) == {"name": "f", "arguments": '{"a'}
    assert found.metadata["unparsable_arguments"] == 1


@given(st.sampled_from(RECORDS + UNPACKED).flatmap(one_member_replaced))
@settings(max_examples=25, deadline=None)
def test_one_broken_member_of_toolathlon_is_refused_or_harmless(record):
    check_broken(SOURCE, record, PATH)
