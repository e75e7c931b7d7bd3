import copy
import json

import pytest
from foreign_records import SAMPLES, check_broken, convert, corpus, one_member_replaced
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.sources.bfcl import SOURCE

FOLDER = SAMPLES / "bfcl"
PATHS = sorted((FOLDER / "result").rglob("*.json"))


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


ROWS = {row["id"]: (row, path) for path in PATHS for row in lines(path)}


def executed(row):
    """Calls as the model gave them and what the tools said, both in the order of the log."""
    steps = [
        step
        for turn in row["inference_log"]
        if isinstance(turn, dict)
        for name, step in turn.items()
        if name != "begin_of_turn_query"
    ]
    calls = [
        {"name": name, "arguments": json.loads(arguments)}
        for step in steps
        for message in step
        if message["role"] == "assistant"
        for call in message["content"]
        for name, arguments in call.items()
    ]
    return calls, [message["content"] for step in steps for message in step if message["role"] == "tool"]


def step_of(row, name):
    return next(turn[name] for turn in row["inference_log"] if isinstance(turn, dict))


def requests(row):
    asked = [turn["begin_of_turn_query"] for turn in row["inference_log"] if isinstance(turn, dict)]
    return [message["content"] for messages in asked for message in messages]


def check(row, path):
    (found,) = convert(SOURCE, row, path)
    calls, results = executed(row)
    assert [json.loads(step.action.rpartition("\n")[2]) for step in found.steps] == calls
    assert [step.observation for step in found.steps] == results
    told = "\n".join([found.task_context, *(step.action for step in found.steps)])
    lost = [text for text in requests(row) if text not in told]
    assert len(lost) == found.metadata.get("unanswered_requests", 0)
    return found


def test_every_call_of_the_corpus_gets_its_result():
    paths = [path for path in corpus("bfcl", "*_result.json")]
    found = [check(row, path) for path in paths for row in lines(path)]
    assert (len(found), len({t.id for t in found}), len({t.group for t in found})) == (235, 235, 120)
    steps = [step for t in found for step in t.steps]
    assert len(steps) == 1586
    assert sum(step.observation == "None" for step in steps) == 115
    assert sum(step.observation.startswith("Error during execution:") for step in steps) == 33
    assert sum(step.failed for step in steps) == 90
    assert all(t.initial_state and t.tool_schemas and not t.metadata.get("unparsable_calls") for t in found)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_read_with_what_lies_beside_it(name):
    row, path = ROWS[name]
    assert SOURCE.matches(row, path)
    found = check(row, path)
    (question,) = (one for file in (FOLDER / "data").glob("*.json") for one in lines(file) if one["id"] == name)
    state = json.loads(found.initial_state)
    assert list(state) == question["involved_classes"]
    assert {name: state[name] for name in question["initial_config"]} == question["initial_config"]
    assert found.task_context == requests(row)[0]
    assert found.player == path.parts[-3]
    assert (found.environment, found.group) == ("bfcl/multi_turn", f"bfcl/multi_turn/{name.rpartition('_')[2]}")
    assert [step.failed for step in found.steps] == [
        step.observation.startswith(("Error during execution:", '{"error":')) for step in found.steps
    ]


def test_parallel_calls_without_ids_are_answered_in_order():
    row, path = ROWS["multi_turn_base_46"]
    assert max(sum(m["role"] == "tool" for m in step) for step in row["inference_log"][1].values()) == 2
    check(row, path)


def test_a_later_request_stands_in_front_of_its_first_call():
    row, path = ROWS["multi_turn_base_26"]
    (found,) = convert(SOURCE, row, path)
    asked = [step.action.rpartition("\n")[0] for step in found.steps]
    assert [text for text in asked if text] == ["User: " + text for text in requests(row)[1:]]


def test_a_class_that_the_questions_do_not_describe_has_the_snapshots_state():
    row, path = ROWS["multi_turn_base_46"]
    (found,) = convert(SOURCE, row, path)
    (snapshot,) = (one["content"] for one in row["inference_log"][0] if one["class_name"] == "MessageAPI")
    assert json.loads(found.initial_state)["MessageAPI"] == snapshot


def test_without_neighbours_the_snapshot_is_the_state(tmp_path):
    row, _ = ROWS["multi_turn_base_26"]
    (found,) = convert(SOURCE, row, tmp_path / "rows.json")
    assert json.loads(found.initial_state) == {one["class_name"]: one["content"] for one in row["inference_log"][0]}
    assert (found.tool_schemas, found.player) == ((), "")


def test_held_back_tools_are_shown_and_named():
    row, path = ROWS["multi_turn_miss_func_12"]
    (found,) = convert(SOURCE, row, path)
    assert found.metadata["held_back"] == {"1": ["cd"]}
    assert "cd" in [json.loads(schema)["name"] for schema in found.tool_schemas]


def test_an_answer_that_was_not_decoded_is_no_transition():
    row, path = copy.deepcopy(ROWS["multi_turn_base_26"])
    before = len(executed(row)[1])
    said = {"role": "handler_log", "content": "Error decoding the model response.", "error": "no call"}
    step = step_of(row, "step_0")
    step[:] = [step[0], said]
    (found,) = convert(SOURCE, row, path)
    assert len(found.steps) == before - 1
    assert found.metadata["undecoded_answers"] == 1


def test_an_empty_answer_that_is_logged_twice_counts_once():
    row, path = copy.deepcopy(ROWS["multi_turn_base_26"])
    step = step_of(row, "step_0")
    again = {"role": "handler_log", "content": "Proceed to next turn.", "model_response_decoded": [""]}
    step[:] = [step[0], again | {"content": "Successfully decoded model response."}, again]
    (found,) = convert(SOURCE, row, path)
    assert "unpaired_calls" not in found.metadata


@pytest.mark.parametrize(
    ("decoded", "action"),
    [
        ("cat('a.txt')", {"name": "cat", "arguments": {"file_name": "a.txt"}}),
        ("mv('a', destination='b')", {"name": "mv", "arguments": {"source": "a", "destination": "b"}}),
        (r"grep(pattern='\d', file_name='x')", {"name": "grep", "arguments": {"pattern": r"\d", "file_name": "x"}}),
        ("touch(names=('a', 1.0, None, True))", {"name": "touch", "arguments": {"names": ["a", 1.0, None, True]}}),
        ("GorillaFileSystem.pwd()", {"name": "GorillaFileSystem.pwd", "arguments": {}}),
        ("cd(folder=home)", None),
        ("cd('a', 'b')", None),
        ("cd(**x)", None),
        ("touch({1, 2})", None),
        ("cd(", None),
    ],
)
def test_a_python_call_becomes_json_or_stays_itself(decoded, action):
    row, path = copy.deepcopy(ROWS["multi_turn_base_26"])
    step = step_of(row, "step_0")
    step[:] = [{"role": "handler_log", "model_response_decoded": [decoded]}, {"role": "tool", "content": "seen"}]
    (found,) = convert(SOURCE, row, path)
    assert found.steps[0].action == decoded if action is None else json.loads(found.steps[0].action) == action
    assert found.metadata.get("unparsable_calls", 0) == (action is None)


def test_a_single_turn_row_holds_no_transition():
    row = {"id": "simple_python_0", "result": [{"f": "{}"}], "input_token_count": 1, "latency": 0.1}
    path = FOLDER / "result" / "m" / "non_live" / "BFCL_v4_simple_python_result.json"
    assert SOURCE.matches(row, path)
    assert convert(SOURCE, row, path) == []


def test_neighbours_are_no_results():
    assert all(SOURCE.accompanies(path) for path in (FOLDER / "data").rglob("*.json"))
    assert SOURCE.accompanies(FOLDER / "score" / "m" / "BFCL_v4_multi_turn_base_score.json")
    assert not any(map(SOURCE.accompanies, PATHS))


@given(st.sampled_from([row for row, _ in ROWS.values()]).flatmap(one_member_replaced))
@settings(max_examples=25, deadline=None)
def test_one_broken_member_of_bfcl_is_refused_or_harmless(record):
    check_broken(SOURCE, record, PATHS[0])
