"""The rows are made up, in the layout of the data set: see the note beside them."""

import copy
import json

import pytest
from foreign_records import SAMPLES, check_broken, convert, one_member_replaced
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.schema import SchemaError
from maskworld.data.sources.openresearcher import SOURCE

PATH = SAMPLES / "openresearcher" / "synthetic.jsonl"
ANSWERED, FAILED, EMPTY = [json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()]


def test_calls_of_the_browser_are_the_actions_and_pages_keep_their_bytes():
    assert SOURCE.matches(ANSWERED, PATH)
    (found,) = convert(SOURCE, ANSWERED, PATH)
    actions = [json.loads(step.action) for step in found.steps]
    assert [action["name"] for action in actions] == ["browser.search", "browser.open", "browser.find"]
    assert actions[1]["arguments"] == {"cursor": 0, "id": 0}
    pages = [m["content"][0]["text"] for m in ANSWERED["messages"] if m["role"] == "tool"]
    assert [step.observation for step in found.steps] == [page.replace("\r\n", "\n") for page in pages]
    assert found.metadata["cleaned"] == ["crlf"]
    assert (found.task_context, found.group) == (ANSWERED["question"], "openresearcher/7")
    assert found.player == "gpt-oss-120b"


def test_schemas_come_without_padding_and_under_the_names_that_calls_use():
    (found,) = convert(SOURCE, ANSWERED, PATH)
    schemas = [json.loads(schema) for schema in found.tool_schemas]
    assert [schema["name"] for schema in schemas] == ["browser.search", "browser.open", "browser.find"]
    assert list(schemas[0]["parameters"]["properties"]) == ["query", "topn"]
    assert "null" not in "".join(found.tool_schemas)
    assert [rule.split()[0] for rule in found.domain_rules] == ["A", "Answer"]


def test_a_run_that_failed_keeps_what_the_browser_showed():
    (found,) = convert(SOURCE, FAILED, PATH)
    (step,) = found.steps
    # The first search was never answered: the next call shows it.
    assert json.loads(step.action)["arguments"] == '{"query": "mill owner"'
    assert step.failed is None
    assert found.metadata == {
        "status": "failed",
        "error": "ran out of rounds",
        "attempts": "3",
        "unpaired_calls": 2,
        "unparsable_arguments": 1,
    }


def test_a_run_without_messages_gives_nothing():
    for chat in ([], None):
        row = EMPTY | {"messages": chat}
        assert SOURCE.matches(row, PATH)
        assert convert(SOURCE, row, PATH) == []


def test_what_the_model_appends_to_a_name_is_cut_off():
    row = copy.deepcopy(ANSWERED)
    row["messages"][4]["recipient"] = "browser.search<|channel|>commentary"
    row["messages"][6]["recipient"] = "browser.open code"
    (found,) = convert(SOURCE, row, PATH)
    names = [json.loads(step.action)["name"] for step in found.steps]
    assert names == ["browser.search", "browser.open", "browser.find"]


def test_the_seed_of_the_folder_is_in_the_id():
    (found,) = convert(SOURCE, ANSWERED, PATH.parent / "seed_42" / "train-00000-of-00003.parquet")
    assert found.id == "openresearcher/seed_42/7"


def test_a_question_is_looked_up_where_the_row_has_none():
    (found,) = convert(SOURCE, ANSWERED | {"question": None}, PATH)
    assert found.task_context == "Question: " + ANSWERED["question"]


def test_another_layout_of_messages_is_not_claimed():
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": []}]
    assert not SOURCE.matches(ANSWERED | {"messages": chat}, PATH)


def test_a_broken_block_is_named():
    row = copy.deepcopy(ANSWERED)
    row["messages"][5]["content"] = {"text": "x"}
    with pytest.raises(SchemaError) as caught:
        convert(SOURCE, row, PATH)
    assert caught.value.field == "messages[5].content"


@given(st.sampled_from([ANSWERED, FAILED]).flatmap(one_member_replaced))
@settings(max_examples=25, deadline=None)
def test_one_broken_member_of_openresearcher_is_refused_or_harmless(record):
    check_broken(SOURCE, record, PATH)
