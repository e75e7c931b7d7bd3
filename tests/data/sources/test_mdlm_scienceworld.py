import json
from dataclasses import replace

import pytest
from foreign_records import SAMPLES, check_broken, convert, corpus, one_member_replaced
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.schema import SchemaError
from maskworld.data.sources.mdlm_scienceworld import SOURCE

PATHS = sorted((SAMPLES / "mdlm_scienceworld").glob("*.jsonl"))
PLAIN = PATHS[0]


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read(row, path=PLAIN):
    assert SOURCE.matches(row, path)
    (trajectory,) = convert(SOURCE, row, path)
    return trajectory


def of_corpus(name):
    (path,) = corpus("mdlm_sciworld", name)
    return rows(path)


@pytest.mark.parametrize("dialect, runs, steps", [("", 25, 306), ("_full_prompt", 25, 306), ("_mistral", 6, 90)])
def test_the_corpus_has_25_runs_of_306_steps_in_each_whole_dialect(dialect, runs, steps):
    found = [read(row) for row in of_corpus(f"sciworld_sft_gpt_perfect{dialect}.jsonl")]
    assert len(found) == runs
    assert sum(len(trajectory.steps) for trajectory in found) == steps
    assert all(trajectory.steps[-1].done and trajectory.steps[-1].reward == 100.0 for trajectory in found)


@pytest.mark.parametrize("dialect", ["_full_prompt", "_mistral"])
def test_runs_of_the_corpus_are_equal_in_all_dialects_but_for_the_order_of_things_in_a_room(dialect):
    plain = {trajectory.group: trajectory for trajectory in map(read, of_corpus("sciworld_sft_gpt_perfect.jsonl"))}
    for trajectory in map(read, of_corpus(f"sciworld_sft_gpt_perfect{dialect}.jsonl")):
        same = plain[trajectory.group]
        assert trajectory.steps == same.steps
        assert trajectory.domain_rules == same.domain_rules
        assert sorted(trajectory.initial_state.split()) == sorted(same.initial_state.split())
        assert sorted(trajectory.initial_observation.split("\n")) == sorted(same.initial_observation.split("\n"))


@pytest.mark.parametrize(
    "name, prompts",
    [("sciworld_rl_split.jsonl", 36), ("sciworld_test_split.jsonl", 25), ("sciworld_rl_split_lfm.jsonl", 10)],
)
def test_prompts_of_the_corpus_hold_no_transition_also_behind_a_demonstration(name, prompts):
    found = of_corpus(name)
    assert len(found) == prompts
    for row in found:
        with pytest.raises(SchemaError, match="messages: holds a prompt but no transition"):
            read(row)


def test_the_sampled_run_is_equal_in_its_three_dialects():
    first, *others = [read(row, PLAIN) for path in PATHS for row in rows(path)]
    assert len(others) == 2
    assert others == [first, first]


def test_a_run_has_the_room_as_e0_and_the_world_model_s_rules():
    (row,) = rows(PLAIN)
    trajectory = read(row)
    assert trajectory.task_context == row["instruction"]
    assert trajectory.initial_observation == row["messages"][1]["content"].split("You are in: ", 1)[1]
    assert (
        trajectory.initial_state.startswith("## ENVIRONMENT\nScienceWorld")
        and "## ROOM CONNECTIONS" in trajectory.initial_state
    )
    assert [rule.split("\n")[0] for rule in trajectory.domain_rules] == ["## ACTION RESPONSES", "## IMPORTANT RULES"]
    assert not any("## ACTION" in text or "## IMPORTANT" in text for text in (trajectory.initial_state,))
    assert [step.action for step in trajectory.steps] == [m["content"] for m in row["messages"][2::2]]
    assert [step.observation for step in trajectory.steps] == [m["content"] for m in row["messages"][3::2]]
    assert trajectory.group == "scienceworld/chemistry-mix-paint-secondary-color/13"
    assert trajectory.player == "gpt-5.5"


def test_messages_may_be_a_json_string_and_a_demonstration_is_left_out():
    (row,) = rows(PLAIN)
    chat = row["messages"]
    demonstration = [
        {"role": "user", "content": "Task: Find it.\n\nYou are in: a room."},
        {"role": "assistant", "content": "look around"},
        {"role": "user", "content": "It is here."},
    ]
    begun = {"role": "user", "content": "NEW " + chat[1]["content"].replace("Task", "TASK", 1)}
    found = read(row | {"messages": json.dumps([chat[0], *demonstration, begun, *chat[2:]])})
    assert found.metadata["demonstration_messages"] == 1
    assert replace(found, metadata={}) == replace(read(row), metadata={})


def test_a_run_that_was_stopped_early_did_not_end():
    (row,) = rows(PLAIN)
    trajectory = read(row | {"score": 40, "messages": row["messages"][:-1]})
    assert not trajectory.steps[-1].done and trajectory.steps[-1].reward == 40.0
    assert trajectory.metadata == {"score": 40.0, "unanswered_actions": 1}


def test_a_wrong_type_is_named_by_its_path():
    (row,) = rows(PLAIN)
    row["messages"][3]["content"] = 7
    with pytest.raises(SchemaError) as caught:
        read(row)
    assert caught.value.field == "messages[3].content"
    with pytest.raises(SchemaError, match="messages: is a string without readable JSON"):
        read(row | {"messages": "["})


@given(st.sampled_from([PLAIN, PATHS[2]]).flatmap(lambda path: one_member_replaced(rows(path)[0])))
@settings(max_examples=100, deadline=None)
def test_one_broken_member_is_refused_or_harmless(row):
    check_broken(SOURCE, row, PLAIN)
