import json

import pytest
from foreign_records import SAMPLES, check_broken, convert, corpus, load, one_member_replaced
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.schema import SchemaError
from maskworld.data.sources.common.checks import Notes
from maskworld.data.sources.common.fields import paired
from maskworld.data.sources.tau_bench import NO_TRANSITION, SOURCE

PATH = SAMPLES / "tau_bench" / "gpt-4o-airline.json"
RECORDS = load(PATH)


def test_the_corpus_has_577_calls_of_which_469_to_tools_that_change_or_show_the_database():
    (path,) = corpus("tau_bench", "gpt-4o-airline.json")
    records = load(path)
    pairs = [p for record in records for p in paired(record["traj"], "traj", Notes(), "tool_call_id").pairs]
    tools = [m["name"] for record in records for m in record["traj"] if m["role"] == "tool"]
    assert len(pairs) == 577
    assert [p.call.name for p in pairs] == tools
    found = [t for index, record in enumerate(records) for t in convert(SOURCE, record, path, index)]
    assert len(found) == len({t.id for t in found}) == 89
    assert sum(len(t.steps) for t in found) == sum(name not in NO_TRANSITION for name in tools)


@pytest.mark.parametrize("record", RECORDS, ids=range(len(RECORDS)))
def test_steps_are_the_calls_with_what_their_tools_answered(record):
    assert SOURCE.matches(record, PATH)
    (found,) = convert(SOURCE, record, PATH)
    told = [m for m in record["traj"] if m["role"] == "tool" and m["name"] not in NO_TRANSITION]
    assert [(json.loads(s.action)["name"], s.observation) for s in found.steps] == [
        (m["name"], m["content"]) for m in told
    ]
    assert found.steps[-1].reward == record["reward"]
    assert (found.player, found.environment) == ("gpt-4o", "tau_bench/airline")
    assert found.group == f"tau_bench/airline/task-{record['task_id']}"
    assert found.domain_rules == (record["traj"][0]["content"],)


def test_a_reused_id_still_pairs_with_its_own_result():
    chat = RECORDS[0]["traj"]
    pairs = [p for p in paired(chat, "traj", Notes(), "tool_call_id").pairs if p.call.id.endswith("4gYXan")]
    assert [p.call.name for p in pairs] == ["search_direct_flight", "search_onestop_flight"]
    assert [chat[p.result.message]["name"] for p in pairs] == [p.call.name for p in pairs]
    assert len({p.result.text for p in pairs}) == 2


def test_a_run_without_transition_yields_nothing():
    assert convert(SOURCE, RECORDS[0] | {"traj": RECORDS[0]["traj"][:2]}, PATH) == []


def test_a_wrong_type_is_named():
    with pytest.raises(SchemaError) as caught:
        convert(SOURCE, RECORDS[0] | {"traj": [{"role": "tool", "content": 5}]}, PATH)
    assert caught.value.field == "traj[0].content"


@given(st.sampled_from(RECORDS).flatmap(one_member_replaced))
@settings(max_examples=25, deadline=None)
def test_one_broken_member_of_tau_bench_is_refused_or_harmless(record):
    check_broken(SOURCE, record, PATH)


def test_examples_without_calls_are_refused_by_name():
    shown = {"messages_display": "user: Hi\nassistant: None\ntool: Error: user not found"}
    assert SOURCE.matches(shown, PATH)
    with pytest.raises(SchemaError) as caught:
        convert(SOURCE, shown, PATH)
    assert caught.value.field == "messages_display"


def test_policies_accompany_the_runs():
    assert SOURCE.accompanies(PATH.parent / "envs" / "airline" / "wiki.md") and not SOURCE.accompanies(PATH)
