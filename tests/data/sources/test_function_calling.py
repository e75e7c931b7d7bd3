"""The records are made up, each in the layout of a public data set: see the note beside them."""

import json

import pytest
from foreign_records import SAMPLES, check_broken, convert, one_member_replaced
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.schema import SchemaError
from maskworld.data.sources.function_calling import SOURCE
from maskworld.data.sources.registry import detect_source

FOLDER = SAMPLES / "function_calling"


def lines(name):
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


TIDES, LITERAL, CHAT = lines("conversations.jsonl")
PARALLEL, LEGACY = lines("messages.jsonl")
(SEARCH,) = lines("hermes.jsonl")
ALL = [TIDES, LITERAL, CHAT, PARALLEL, LEGACY, SEARCH]
PATH = FOLDER / "x.jsonl"


def calls(found):
    return [json.loads(step.action.rpartition("\n")[2])["arguments"] for step in found.steps]


def observations(found):
    return [step.observation for step in found.steps]


def test_function_calls_and_observations_of_a_conversation():
    (found,) = convert(SOURCE, TIDES, PATH)
    assert calls(found) == [{"port": "Port Ellen", "hour": hour} for hour in (6, 7, 8)]
    assert observations(found) == ['{"metres": 1.2}', '{"metres": 1.4}', "null"]
    assert found.task_context == "When is high tide in Port Ellen?\nAt 6."
    assert found.steps[1].action.startswith("User: And at 7?\nAnd at 8?\n{")
    assert not found.steps[2].action.startswith("User: ")
    assert found.domain_rules == ("You look up tides.",)
    assert [json.loads(schema) for schema in found.tool_schemas] == json.loads(TIDES["tools"])
    assert found.metadata == {"unanswered_requests": 1}


def test_a_call_that_is_no_json_keeps_its_text():
    (found,) = convert(SOURCE, LITERAL, PATH)
    assert [(step.action, step.observation) for step in found.steps] == [
        ("get_tide(Port Ellen)", "Error: no such function")
    ]
    assert found.metadata == {"unparsable_calls": 1}


def test_a_conversation_without_calls_gives_nothing():
    assert convert(SOURCE, CHAT, PATH) == []


def test_parallel_calls_are_paired_by_id_and_thoughts_left_out():
    (found,) = convert(SOURCE, PARALLEL, PATH)
    assert calls(found) == [{"port": "Oban"}, {"port": "Leith"}, {}]
    assert observations(found) == ["1.0", "2.0", "missing port"]
    assert found.metadata == {"empty_arguments": 1, "no_transition_calls": 1}


def test_messages_as_a_string_and_a_call_as_one_member():
    assert SOURCE.matches(LEGACY, PATH)
    (found,) = convert(SOURCE, LEGACY, PATH)
    assert found == convert(SOURCE, LEGACY | {"messages": json.loads(LEGACY["messages"])}, PATH)[0]
    assert (calls(found), observations(found)) == ([{"port": "Ayr"}], ["3.0"])


def test_calls_and_responses_inside_of_texts():
    (found,) = convert(SOURCE, SEARCH, PATH)
    assert calls(found) == [{"query": ["A </tool_call> B", "B"]}, {"url": ["a"]}, {"url": ["b"]}, {"url": ["c"]}]
    assert observations(found) == ["\nFound <tool_response> in text\n=======\nnothing ", "Page A", "Page B", ""]
    assert found.task_context == "Who was first, A or B?\nOr neither?"
    assert found.steps[3].action.startswith("User: Go on.\n{")
    assert [json.loads(schema)["name"] for schema in found.tool_schemas] == ["search", "visit"]
    assert not any("<tools>" in rule for rule in found.domain_rules)
    assert found.environment == "function_calling/multiturn_search"
    assert found.metadata == {"tag": "made_up"}


def test_one_request_is_one_group():
    (once,) = convert(SOURCE, PARALLEL, PATH)
    chat = json.loads(json.dumps(PARALLEL["messages"]))
    chat[1]["content"] = chat[1]["content"].upper() + " "
    (again,) = convert(SOURCE, PARALLEL | {"messages": chat}, PATH, index=1)
    (other,) = convert(SOURCE, LEGACY, PATH, index=2)
    assert once.id != again.id
    assert once.group == again.group != other.group


def test_a_path_that_names_pandora_names_the_environment():
    (found,) = convert(SOURCE, PARALLEL, PATH.parent / "pandora-tool-calling" / "train.parquet")
    assert found.environment == "function_calling/pandora"


def test_only_this_family_is_claimed():
    assert all(SOURCE.matches(record, PATH) for record in ALL)
    assert not SOURCE.matches(PARALLEL | {"instance_id": "x"}, PATH)
    assert not SOURCE.matches({"dataset": "x", "messages": PARALLEL["messages"]}, PATH)
    assert not SOURCE.matches({"messages": [{"role": "user", "content": "Hello"}]}, PATH)
    assert not SOURCE.matches({"id": "1", "conversations": [{"from": "human", "value": "Hello"}]}, PATH)
    assert not SOURCE.matches({"messages": "[" * 100_000, "tools": ""}, PATH)


def test_a_conversation_about_a_shop_is_still_a_conversation_with_tools():
    shop = {"conversations": [{"from": "human", "value": "Play the WebShop game."}, *TIDES["conversations"]]}
    assert detect_source(shop | {"tools": TIDES["tools"]}, PATH) is SOURCE


def test_an_unknown_role_is_named():
    record = {"messages": [{"role": "narrator", "content": "x"}], "tools": []}
    with pytest.raises(SchemaError) as caught:
        convert(SOURCE, record, PATH)
    assert caught.value.field == "messages[0].role"


@given(st.sampled_from(ALL).flatmap(one_member_replaced))
@settings(max_examples=40, deadline=None)
def test_one_broken_member_of_a_conversation_is_refused_or_harmless(record):
    check_broken(SOURCE, record, PATH)
