import json

import pytest
from foreign_records import SAMPLES, check_broken, convert, corpus, one_member_replaced
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.schema import SchemaError
from maskworld.data.sources.mdlm_alfworld import SOURCE

PATH = SAMPLES / "mdlm_alfworld" / "derived_expert.jsonl"
ROWS = [json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()]
FULL, EXPERT, PROMPT, MERGED = ROWS


def read(row):
    assert SOURCE.matches(row, PATH)
    (trajectory,) = convert(SOURCE, row, PATH)
    return trajectory


def test_the_190_prompts_of_the_corpus_hold_no_transition():
    rows = [json.loads(line) for path in corpus("mdlm_alfworld", "*.jsonl") for line in open(path, encoding="utf-8")]
    assert len(rows) == 190
    for row in rows:
        with pytest.raises(SchemaError, match="messages: holds a prompt but no transition"):
            read(row)


def test_command_and_engine_s_answer_are_freed_of_what_is_the_agent_s():
    trajectory = read(FULL)
    assert [(step.action, step.observation) for step in trajectory.steps[1:3]] == [
        (
            "go to toilet 1",
            "You arrive at toilet 1. On the toilet 1, you see a candle 1, a dishsponge 1, a papertowelroll 1, "
            "a spraybottle 2, and a spraybottle 1.",
        ),
        ("take dishsponge 1 from toilet 1", "You pick up the dishsponge 1 from the toilet 1."),
    ]
    assert len(trajectory.steps) == 6
    assert trajectory.metadata["unanswered_actions"] == 1
    assert trajectory.task_context == "put a clean dishsponge in cart."
    assert trajectory.initial_observation.startswith("You are in the middle of a room. Looking quickly around you, you")
    assert trajectory.initial_observation.endswith("towelholder 1.")
    assert trajectory.initial_state.startswith("## INITIAL SCENE\n- bathtubbasin 1 (open)")
    assert "## INITIAL OBJECT LOCATIONS" in trajectory.initial_state
    assert trajectory.group == "alfworld/floor-plan-401"


def test_the_layouts_of_one_run_give_the_same_steps():
    full, expert, merged = read(FULL), read(EXPERT), read(MERGED)
    assert merged == full
    assert expert.steps == full.steps
    assert (expert.domain_rules, expert.task_context) == (full.domain_rules, full.task_context)
    assert (expert.player, full.player) == ("expert", "")
    assert expert.initial_state == ""


def test_a_prompt_is_refused_by_what_it_lacks():
    with pytest.raises(SchemaError, match="messages: holds a prompt but no transition"):
        read(PROMPT)


def test_messages_may_be_a_json_string():
    assert read(FULL | {"messages": json.dumps(FULL["messages"])}) == read(FULL)


def test_a_list_in_an_answer_that_is_not_the_commands_stays():
    row = json.loads(json.dumps(EXPERT))
    row["messages"][3]["content"] = (
        "Observation:\nAdmissible commands:\n- none\nsays the note.\n\nAdmissible commands:\n- look"
    )
    assert read(row).steps[0].observation == "Admissible commands:\n- none\nsays the note."


@given(st.sampled_from(ROWS).flatmap(one_member_replaced))
@settings(max_examples=100, deadline=None)
def test_one_broken_member_is_refused_or_harmless(row):
    check_broken(SOURCE, row, PATH)
