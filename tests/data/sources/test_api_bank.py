import json

import pytest
from foreign_records import SAMPLES, check_broken, convert, corpus, one_member_replaced
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.schema import SchemaError
from maskworld.data.sources.api_bank import SOURCE

FOLDER = SAMPLES / "api_bank"
PATHS = sorted(FOLDER.rglob("*.jsonl"))


def turns(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def sample(name):
    (path,) = (path for path in PATHS if path.stem == name)
    return turns(path), path


def test_the_corpus_has_152_dialogues_with_321_answers_grounded_in_their_databases():
    paths = corpus("api_bank", "*.jsonl")
    found = [t for path in paths for t in convert(SOURCE, turns(path), path)]
    assert (len(paths), len(found), len({t.id for t in found})) == (153, 152, 152)
    steps = [step for t in found for step in t.steps]
    assert len(steps) == 321
    assert not any(step.failed for step in steps)
    assert all(list(json.loads(step.observation)) == ["output", "exception"] for step in steps)
    # 25 results of the files lack the name of their API, and 15 dialogues use no database that is there.
    assert sum(bool(t.initial_state) for t in found) == 137
    tokens = [
        (json.loads(step.observation)["output"]["token"], t.initial_state)
        for t in found
        for step in t.steps
        if '"name":"GetUserToken"' in step.action
    ]
    assert len(tokens) == 73
    assert all(token in state for token, state in tokens)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_steps_are_the_turns_of_the_apis(path):
    record = turns(path)
    assert all(SOURCE.matches(turn, path) for turn in record)
    assert len({SOURCE.gathered_by(turn) for turn in record}) == 1
    (found,) = convert(SOURCE, record, path)
    called = [turn for turn in record if turn["role"] == "API"]
    for step, turn in zip(found.steps, called, strict=True):
        action = json.loads(step.action.rpartition("\n")[2])
        assert action == {"name": turn["api_name"], "arguments": turn["param_dict"]}
        assert json.loads(step.observation) == {name: turn["result"][name] for name in ("output", "exception")}
    for turn in record:
        if turn["role"] == "User":
            assert turn["text"] in found.task_context or any(turn["text"] in step.action for step in found.steps)


def test_the_five_parts_come_from_the_files_beside():
    (found,) = convert(SOURCE, *sample("AddAgenda-level-3-1"))
    state = json.loads(found.initial_state)
    assert list(state) == ["Account", "Agenda"]
    assert state["Agenda"] == json.loads((FOLDER / "init_database" / "Agenda.json").read_text(encoding="utf-8"))
    assert [json.loads(schema)["name"] for schema in found.tool_schemas] == ["GetUserToken", "AddAgenda"]
    assert found.group == "api_bank/Agenda"
    assert json.loads(found.steps[0].action)["name"] == "ToolSearcher"
    assert found.steps[1].action.startswith("User: My username is newuser, ")


def test_an_exception_is_a_failure_and_keeps_its_place():
    record, path = sample("DeleteAccount-level-1-1")
    place = next(index for index, turn in enumerate(record) if turn["role"] == "API")
    record[place]["result"] = {"exception": "The token is invalid.", "input": {}, "output": None}
    (found,) = convert(SOURCE, record, path)
    assert found.steps[0].failed
    assert found.steps[0].observation == '{"exception":"The token is invalid.","output":null}'


def test_a_database_that_is_not_there_is_named(tmp_path):
    record, _ = sample("AddAgenda-level-3-1")
    (found,) = convert(SOURCE, record, tmp_path / "x.jsonl")
    assert (found.initial_state, found.tool_schemas) == ("", ())
    assert found.metadata["databases_left_out"] == ["Account", "Agenda"]


def test_a_result_without_output_is_named():
    record, path = sample("DeleteAccount-level-1-1")
    place = next(index for index, turn in enumerate(record) if turn["role"] == "API")
    del record[place]["result"]["output"]
    with pytest.raises(SchemaError) as caught:
        convert(SOURCE, record, path)
    assert caught.value.field == f"[{place}].result.output"


def test_neighbours_are_no_dialogues():
    beside = [path for path in FOLDER.rglob("*") if path.is_file() and path.suffix in (".json", ".csv")]
    assert len(beside) == 3
    assert all(map(SOURCE.accompanies, beside))
    assert SOURCE.accompanies(FOLDER / "lv3-samples" / "Shopping.txt")
    assert not any(map(SOURCE.accompanies, PATHS))


@given(st.sampled_from([turns(path) for path in PATHS]).flatmap(one_member_replaced))
@settings(max_examples=25, deadline=None)
def test_one_broken_member_of_api_bank_is_refused_or_harmless(record):
    check_broken(SOURCE, record, PATHS[0])
