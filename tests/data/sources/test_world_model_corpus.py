"""No real row was available: the sample is synthetic (samples/world_model_corpus/LICENCE) or rendered here."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from foreign_records import REPOSITORY, SAMPLES, check_broken, convert, one_member_replaced
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.schema import SchemaError
from maskworld.data.sources.common.written_calls import action_of
from maskworld.data.sources.world_model_corpus import SOURCE
from maskworld.data.state_text import corpus_messages
from maskworld.data.trajectories import read_trajectories

PATH = SAMPLES / "world_model_corpus" / "synthetic.jsonl"
ROWS = [json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()]
F = '{"name":"f","arguments":{}}'
CODING, SHOP, TAGGED, TRANSCRIPT, NO_STATE, RENDERED = ROWS[:3], ROWS[3:5], ROWS[5], ROWS[6], ROWS[7], ROWS[8:]


def read(row):
    assert SOURCE.matches(row, PATH)
    (trajectory,) = convert(SOURCE, row, PATH)
    return trajectory


def turns(trajectory):
    return [(step.action, step.observation) for step in trajectory.steps]


@pytest.mark.parametrize("rows", [CODING, SHOP, RENDERED], ids=["coding", "shop", "rendered"])
def test_rows_of_one_run_share_their_first_steps_and_their_group(rows):
    found = [read(row) for row in rows]
    longest = turns(found[-1])
    assert [turns(one) for one in found] == [longest[: len(one.steps)] for one in found]
    assert len({len(one.steps) for one in found}) == len(rows)
    assert len({one.group for one in found}) == 1
    assert not any("unpaired" in one.metadata for one in found)


def test_a_call_in_a_message_of_state_and_behind_action_is_the_same_action():
    trajectory = read(CODING[2])
    assert trajectory.steps[1].action == '{"name":"execute_bash","arguments":{"command":"cat src/version.py"}}'
    assert trajectory.steps[2].action == '{"name":"execute_bash","arguments":{"command":"pytest -q"}}'
    assert trajectory.steps[2].observation == ""
    assert trajectory.initial_observation == "parse_version drops the patch number. Please fix it."
    assert trajectory.tool_schemas == ("- execute_bash(command)", "- str_replace_editor(command, path)")
    assert trajectory.environment == "coderforge"


def test_the_directives_of_a_released_row_are_its_last_step_s():
    trajectory = read(CODING[2])
    assert trajectory.directives == ()
    assert [step.directives for step in trajectory.steps[:-1]] == [(), ()]
    assert trajectory.steps[-1].directives[1] == "- Expected outcome: empty output."


def test_an_environment_that_spoke_as_user_is_heard():
    trajectory = read(SHOP[1])
    assert [step.action for step in trajectory.steps] == ["search[blue mug]", "click[B01]"]
    assert trajectory.initial_observation.startswith("Instruction: [SEP]")


def test_tags_go_and_what_is_no_pair_is_kept_beside():
    trajectory = read(TAGGED)
    assert trajectory.initial_observation == "How many notes have I?"
    assert [step.action for step in trajectory.steps] == [
        '{"name":"notes__login","arguments":{"user":"ana"}}',
        '{"name":"notes__list","arguments":{"page_limit":20}}',
    ]
    assert trajectory.steps[0].observation == '{"message": "welcome \\ud83e\\udd73"}'
    assert json.loads(trajectory.steps[0].observation)["message"] == "welcome \U0001f973"
    assert trajectory.steps[1].observation == '{"total": 1, "notes": [{"id": 7, "title": "tea \U0001f375"}]}'
    assert [index for index, _ in json.loads(trajectory.metadata["unpaired"])] == [0, 4, 5]
    assert trajectory.metadata["user_turns"] == 1
    assert trajectory.metadata["computed_query_state"].startswith("- matched_count_after_filters: 1")
    assert "Strict JSON records" not in trajectory.initial_state + "".join(trajectory.domain_rules)


def test_every_message_of_state_is_a_turn_the_opening_or_beside():
    for row in [*CODING, *SHOP, TAGGED, *RENDERED]:
        trajectory = read(row)
        user = row["messages"][1]["content"]
        state, _ = json.JSONDecoder().raw_decode(user, len("State: "))
        beside = json.loads(trajectory.metadata.get("unpaired", "[]"))
        assert len(state) == 2 * (len(trajectory.steps) - 1) + bool(trajectory.initial_observation) + len(beside)
        assert all(state[index] == message for index, message in beside)


def test_a_state_that_is_no_array_of_messages_stands_as_it_is():
    trajectory = read(TRANSCRIPT)
    assert trajectory.initial_observation == "step 1\nAction: notes__login\nstep 2"
    assert turns(trajectory) == [('{"name":"notes__count","arguments":{}}', "1")]
    assert trajectory.metadata["unread_states"] == 1
    assert turns(read(NO_STATE)) == [("notes__logout", "")]


def test_a_row_rendered_here_is_the_trajectory_again():
    room = next(iter(read_trajectories(REPOSITORY / "tests" / "data" / "alfworld_rooms" / "test.jsonl.gz")))
    last = len(room.steps) - 1
    marked = replace(room, steps=(*room.steps[:last], replace(room.steps[last], directives=("Be brief.", "End."))))
    found = read({"dataset": "alfworld", "messages": json.loads(json.dumps(corpus_messages(marked, last)))})
    same = ("initial_state", "task_context", "initial_observation", "tool_schemas", "domain_rules", "directives")
    assert [getattr(found, name) for name in same] == [getattr(room, name) for name in same]
    assert turns(found) == turns(room)
    assert found.steps[last].directives == ("Be brief.", "End.")
    assert found.metadata == {}


def test_texts_of_a_row_rendered_here_are_never_taken_for_wrappings():
    room = next(iter(read_trajectories(REPOSITORY / "tests" / "data" / "alfworld_rooms" / "test.jsonl.gz")))
    call, wrapped = '[{"name": "a", "parameters": {}}]', "<tool_response>\nx\n</tool_response>"
    steps = (
        replace(room.steps[0], action=call, observation=wrapped),
        replace(room.steps[1], action=call, observation=wrapped),
    )
    hard = replace(room, steps=steps, initial_observation=wrapped)
    found = read({"dataset": "alfworld", "messages": corpus_messages(hard, 1)})
    assert turns(found) == [(call, wrapped)] * 2
    assert found.initial_observation == wrapped


def test_an_identical_id_in_state_goes_to_the_pending_call():
    state = []
    for number in (1, 2):
        call = {"id": "same", "function": {"name": f"f{number}", "arguments": {}}}
        state += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "same", "content": str(number)},
        ]
    row = json.loads(json.dumps(CODING[0]))
    row["messages"][1]["content"] = f"State: {json.dumps(state)}\n\nAction: ls"
    assert turns(read(row))[:2] == [('{"name":"f1","arguments":{}}', "1"), ('{"name":"f2","arguments":{}}', "2")]


@pytest.mark.parametrize(
    "text, action",
    [
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"name":"f","arguments":{"a":1}}'),
        ('[{"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}]', F),
        ('{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}', F),
        ('<tool_call>\n{"name": "f", "parameters": {"b": 2, "a": 1}}\n</tool_call>',
         '{"name":"f","arguments":{"b":2,"a":1}}'),
        ('{"name": "f", "arguments": "cut {"}', '{"name":"f","arguments":"cut {"}'),
        *[(text, text) for text in (
            "look", "{", '{"name": "f"}', '{"name": "", "arguments": {}}', '{"name": "f", "arguments": {}, "x": 1}',
            '[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]', '{"name": "f", "arguments": [1]}',
            'I call <tool_call>{"name": "f", "arguments": {}}</tool_call>', '{"name": "f", "arguments": {"a": NaN}}',
            '{"role": "assistant", "content": "hm", "tool_calls": [{"name": "f", "arguments": {}}]}', "[" * 100_000,
        )],
    ],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_one_call_and_nothing_else_is_written_in_one_form(text, action):
    assert action_of(text) == action


def test_no_other_chat_of_three_messages_is_claimed():
    chat = [{"role": role, "content": "hello"} for role in ("system", "user", "assistant")]
    assert not SOURCE.matches({"dataset": "x", "messages": chat}, PATH)
    assert not SOURCE.matches({"dataset": "x", "messages": CODING[0]["messages"][:2]}, PATH)
    assert SOURCE.matches({"messages": CODING[0]["messages"]}, PATH)
    assert SOURCE.matches({"dataset": "x", "messages": [chat[0], CODING[0]["messages"][1], chat[2]]}, PATH)


def test_contents_may_be_lists_of_parts():
    row = json.loads(json.dumps(CODING[1]))
    for message in row["messages"]:
        message["content"] = [{"type": "text", "text": message["content"]}]
    assert turns(read(row)) == turns(read(CODING[1]))


def test_what_is_wrong_is_named_by_its_path():
    row = json.loads(json.dumps(CODING[0]))
    row["messages"][1]["content"] = "State: []\n\nAction: \n"
    with pytest.raises(SchemaError) as caught:
        convert(SOURCE, row, PATH)
    assert caught.value.field == "messages[1].content.Action"
    row["messages"][1]["content"] = 'State: [{"role": "tool", "content": 5}]\n\nAction: ls'
    with pytest.raises(SchemaError) as caught:
        convert(SOURCE, row, PATH)
    assert caught.value.field == "messages[1].content.State[0].content"


@given(st.sampled_from(ROWS).flatmap(one_member_replaced))
@settings(max_examples=150, deadline=None)
def test_one_broken_member_is_refused_or_harmless(row):
    check_broken(SOURCE, row, Path("x.jsonl"))


@st.composite
def broken_states(draw):
    state = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "t",
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "x"},
        {"role": "assistant", "content": "look"},
        {"role": "user", "content": "<tool_response>y</tool_response>"},
    ]
    return draw(one_member_replaced(state))


@given(broken_states())
@settings(max_examples=150, deadline=None)
def test_a_broken_state_is_refused_or_harmless(state):
    row = json.loads(json.dumps(CODING[0]))
    row["messages"][1]["content"] = f"State: {json.dumps(state)}\n\nAction: ls"
    check_broken(SOURCE, row, Path("x.jsonl"))
