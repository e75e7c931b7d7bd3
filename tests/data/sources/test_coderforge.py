import json

import pyarrow.parquet as pq
import pytest
from foreign_records import SAMPLES, check_broken, convert, corpus, one_member_replaced
from hypothesis import given, settings

from maskworld.data.schema import SchemaError
from maskworld.data.sources import registry
from maskworld.data.sources.coderforge import SOURCE

PATH = SAMPLES / "coderforge" / "filtered_reward1-00000-of-00001.parquet"


def row():
    (only,) = pq.read_table(PATH).to_pylist()
    return only


def with_messages(change):
    """The sample with `change` done to its list of messages."""
    chat = json.loads(row()["messages"])
    change(chat)
    return row() | {"messages": json.dumps(chat)}


def test_the_corpus_has_53_steps_in_two_rows():
    # 21 + 32; beside them one thought, and in each row the call `finish`, which nothing answers.
    (path,) = corpus("coderforge_like", "*.parquet")
    found = [
        trajectory
        for index, record in enumerate(pq.read_table(path).to_pylist())
        for trajectory in convert(SOURCE, record, path, index)
    ]
    assert [len(trajectory.steps) for trajectory in found] == [21, 32]
    assert [trajectory.metadata.get("no_transition_calls", 0) for trajectory in found] == [1, 0]
    assert [trajectory.metadata["unpaired_calls"] for trajectory in found] == [1, 1]


def test_a_row_gives_its_run_its_task_and_its_own_licence():
    record = row()
    assert registry.detect_source(record, PATH) is SOURCE
    (trajectory,) = convert(SOURCE, record, PATH)
    assert trajectory.id == "coderforge/ponylang__ponyc-4595_run1"
    assert trajectory.group == "swe/ponylang__ponyc-4595"
    assert trajectory.licence == "MIT"
    assert SOURCE.licence == "Apache-2.0"
    assert trajectory.player == "Qwen3-Coder-480B"
    assert [json.loads(one)["function"]["name"] for one in trajectory.tool_schemas] == [
        tool["function"]["name"] for tool in json.loads(record["tools"])
    ]
    assert trajectory.task_context.startswith("<uploaded_files>")
    assert trajectory.domain_rules[0].startswith("You are OpenHands agent")
    assert trajectory.metadata["image"] == "docker.io/mswebench/ponylang__ponyc-4595"
    assert trajectory.metadata["finish_reason"] == "tool_calls"


def test_calls_and_results_are_the_messages_and_the_thought_is_left_out():
    chat = json.loads(row()["messages"])
    (trajectory,) = convert(SOURCE, row(), PATH)
    results = [one["content"] for one in chat if one["role"] == "tool" and "thought" not in one["content"]]
    assert [step.observation for step in trajectory.steps] == results
    assert json.loads(trajectory.steps[0].action)["name"] == "execute_bash"
    assert not any("think" in json.loads(step.action)["name"] for step in trajectory.steps)


def test_the_same_row_of_another_split_has_the_same_id():
    elsewhere = PATH.with_name("SWE_Rebench-00003-of-00018.parquet")
    assert convert(SOURCE, row(), PATH) == convert(SOURCE, row(), elsewhere, 17)


def test_the_reward_stands_at_the_last_step_and_may_be_negative():
    (trajectory,) = convert(SOURCE, row() | {"reward": -1.0}, PATH)
    assert [step.reward for step in trajectory.steps] == [0.0] * (len(trajectory.steps) - 1) + [-1.0]
    (unknown,) = convert(SOURCE, row() | {"reward": None}, PATH)
    assert unknown.steps[-1].reward == 0.0


def test_a_stray_tag_in_an_answer_changes_nothing():
    def spoil(chat):
        for message in chat:
            if message["role"] == "assistant":
                message["content"] += "\n</tool_call>"

    assert convert(SOURCE, with_messages(spoil), PATH) == convert(SOURCE, row(), PATH)


def test_parallel_calls_come_in_the_order_of_the_calls():
    def together(chat):
        first, second = chat[2], chat[4]
        first["tool_calls"] += second["tool_calls"]
        chat[3:6] = [chat[5], chat[3]]

    assert convert(SOURCE, with_messages(together), PATH)[0].steps == convert(SOURCE, row(), PATH)[0].steps


def test_wrong_types_are_named_by_their_path():
    for broken, where in (
        ({"messages": "{"}, "messages"),
        ({"tools": "{}"}, "tools"),
        ({"reward": "1"}, "reward"),
        ({"license": 3}, "license"),
    ):
        with pytest.raises(SchemaError) as caught:
            convert(SOURCE, row() | broken, PATH)
        assert caught.value.field == where


def _decoded():
    return row() | {"messages": json.loads(row()["messages"])[:8], "tools": json.loads(row()["tools"])[:1]}


@given(one_member_replaced(_decoded()))
@settings(max_examples=100, deadline=None)
def test_one_broken_member_is_refused_or_harmless(record):
    check_broken(SOURCE, record, PATH)
