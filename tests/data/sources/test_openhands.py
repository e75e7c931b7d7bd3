import copy
import json
from collections import Counter

import pytest
from foreign_records import SAMPLES, check_broken, convert, corpus, load, one_member_replaced
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.schema import SchemaError
from maskworld.data.sources.openhands import SOURCE

FOLDER = SAMPLES / "openhands"
ROW = FOLDER / "output.jsonl"
RESOLVER = FOLDER / "resolver" / "output.jsonl"
EDIT = FOLDER / "ui_trajectories" / "basic.json"
WINDOW = FOLDER / "ui_trajectories" / "basic_gui_mode.json"


def record(path):
    """The first record of a file."""
    return json.loads(path.read_text(encoding="utf-8").splitlines()[0]) if path.suffix == ".jsonl" else load(path)


def action(number, command, **members):
    return {"id": number, "source": "agent", "action": "run", "args": {"command": command, "thought": ""}} | members


def answer(number, cause, content, **members):
    known = {} if cause is None else {"cause": cause}
    return {"id": number, "source": "agent", "observation": "run", "content": content, "extras": {}} | known | members


def turns(events):
    (trajectory,) = convert(SOURCE, events, WINDOW)
    return [(json.loads(step.action)["arguments"]["command"], step.observation) for step in trajectory.steps]


def test_the_corpus_has_63_observations_of_which_61_answer_an_action():
    # 63 without what the harness says (recall, agent_state_changed, null). One is the answer to a thought, and one the
    # error of a call that its event stream does not hold.
    kinds, steps, orphans, thoughts = Counter(), 0, 0, 0
    files = [*corpus("openhands", "*.jsonl"), *corpus("openhands", "*.json")]
    for path in files:
        rows = path.read_text(encoding="utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        for index, text in enumerate(rows):
            row = json.loads(text)
            assert SOURCE.matches(row, path)
            (trajectory,) = convert(SOURCE, row, path, index)
            kinds.update(
                one["observation"] for one in (row["history"] if "history" in row else row) if "observation" in one
            )
            steps += len(trajectory.steps)
            orphans += trajectory.metadata.get("orphan_results", 0)
            thoughts += trajectory.metadata.get("no_transition_calls", 0)
    observed = sum(kinds.values()) - sum(kinds[kind] for kind in ("recall", "agent_state_changed", "null"))
    assert (observed, steps, orphans, thoughts) == (63, 61, 1, 1)


def test_a_row_gives_task_rules_tools_and_model():
    row = record(ROW)
    (trajectory,) = convert(SOURCE, row, ROW)
    assert trajectory.id == "openhands/ponylang__ponyc-4593/2025-04-30T16:45:41.913899"
    assert trajectory.group == "swe/ponylang__ponyc-4593"
    assert trajectory.player == "openai/openrouter-llama-4-maverick"
    assert trajectory.task_context == row["instruction"].replace("\r\n", "\n")
    assert trajectory.domain_rules[0].startswith("You are OpenHands agent")
    assert [json.loads(tool)["function"]["name"] for tool in trajectory.tool_schemas] == ["think"]
    assert trajectory.metadata["finished"] is True
    assert trajectory.metadata["agent"] == "CodeActAgent"


def test_the_action_is_the_models_call_and_the_observation_its_content():
    row = record(ROW)
    (trajectory,) = convert(SOURCE, row, ROW)
    run, read, edit = (json.loads(step.action) for step in trajectory.steps)
    assert run == {"name": "execute_bash", "arguments": {"command": "ls src/lib"}}
    assert read["name"] == edit["name"] == "str_replace_editor"
    assert read["arguments"]["command"] == "view"  # the event has no such member
    assert edit["arguments"]["command"] == "insert"
    assert [step.failed for step in trajectory.steps] == [True, None, None]
    contents = [event["content"] for event in row["history"] if event.get("cause") in (7, 32, 64)]
    assert [step.observation for step in trajectory.steps] == contents


def test_the_text_of_a_new_file_is_in_the_action_and_the_file_is_not_in_the_target():
    events = record(EDIT)
    (trajectory,) = convert(SOURCE, events, EDIT)
    (step,) = trajectory.steps
    written = events[2]["extras"]["new_content"]
    assert json.loads(step.action)["arguments"]["file_text"].rstrip("\n") == written.rstrip("\n")
    assert step.observation == events[2]["content"]
    assert written not in step.observation
    assert trajectory.player == "claude-3-5-sonnet-20241022"


def test_an_error_without_a_cause_answers_an_open_action_and_otherwise_nothing():
    (trajectory,) = convert(SOURCE, record(ROW), ROW)
    assert trajectory.metadata["orphan_results"] == 1
    error = answer(2, None, "no such tool", observation="error")
    (answered,) = convert(SOURCE, [action(1, "ls"), error], WINDOW)
    assert [(step.observation, step.failed) for step in answered.steps] == [("no such tool", True)]


def test_a_cause_decides_and_not_the_place():
    events = [
        action(1, "a"),
        action(2, "b"),
        answer(3, 2, "B"),
        answer(4, 1, "A"),
        answer(5, 9, "?"),
        answer(6, 2, "?"),
    ]
    assert turns(events) == [("a", "A"), ("b", "B")]
    assert convert(SOURCE, events, WINDOW)[0].metadata["orphan_results"] == 2


def test_events_without_ids_follow_one_another():
    row = record(RESOLVER)
    (trajectory,) = convert(SOURCE, row, RESOLVER)
    assert trajectory.group == "swe/neubig/pr-viewer#5"
    assert [json.loads(step.action)["name"] for step in trajectory.steps] == ["run", "run_ipython", "run"]
    assert json.loads(trajectory.steps[0].action)["arguments"] == {"command": "touch LICENSE"}
    assert trajectory.steps[0].observation == "\nroot@bcd3959393a1:/workspace # "
    assert [step.failed for step in trajectory.steps] == [False, None, False]
    assert trajectory.metadata == {"cleaned": ["crlf"], "finished": True, "judged_success": True}
    del row["history"][2]  # the answer to the first action: the next answer is still the second's
    (cut,) = convert(SOURCE, row, RESOLVER)
    assert cut.steps == trajectory.steps[1:]
    assert cut.metadata["unpaired_calls"] == 1


def test_a_history_of_pairs_is_the_same_as_its_events():
    row = record(ROW)
    events = row["history"]
    by_id = {event["id"]: event for event in events}
    pairs = [[by_id[event["cause"]], event] for event in events if "cause" in event]
    (trajectory,) = convert(SOURCE, row | {"history": pairs}, ROW)
    assert SOURCE.matches(row | {"history": pairs}, ROW)
    assert trajectory.steps == convert(SOURCE, row, ROW)[0].steps


def test_what_the_window_exports_holds_states_and_nulls_that_are_no_transitions():
    events = record(WINDOW)
    (trajectory,) = convert(SOURCE, events, WINDOW)
    assert [json.loads(step.action)["name"] for step in trajectory.steps] == ["execute_bash", "execute_bash"]
    assert [step.observation for step in trajectory.steps][0] == ""
    assert trajectory.task_context.startswith("I want to create a VueJS app")


def test_thoughts_and_the_users_commands_are_left_out_and_counted():
    events = record(WINDOW)
    think = {"id": 90, "source": "agent", "action": "think", "args": {"thought": "hm"}}
    logged = {"id": 91, "source": "agent", "observation": "think", "content": "logged", "cause": 90, "extras": {}}
    typed = action(92, "pwd", source="user")
    (sound,) = convert(SOURCE, events, WINDOW)
    (trajectory,) = convert(SOURCE, [*events, think, logged, typed, answer(93, 92, "/")], WINDOW)
    assert trajectory.steps == sound.steps
    assert trajectory.metadata["no_transition_calls"] == trajectory.metadata["user_calls"] == 1


def test_several_calls_of_one_answer_each_keep_their_own_arguments():
    made = [
        {
            "id": str(number),
            "type": "function",
            "function": {"name": "execute_bash", "arguments": json.dumps({"command": name})},
        }
        for number, name in enumerate("ab")
    ]
    response = {"model": "m", "choices": [{"message": {"tool_calls": made}}]}
    events = []
    for number, name in enumerate("ab"):
        known = {"tool_call_id": str(number), "total_calls_in_response": 2, "model_response": response}
        events += [action(number * 2, name, tool_call_metadata=known), answer(number * 2 + 1, number * 2, name.upper())]
    assert turns(events) == [("a", "A"), ("b", "B")]


def test_without_the_models_answer_the_action_is_its_kind_and_arguments():
    row = record(ROW)
    for event in row["history"]:
        event.pop("tool_call_metadata", None)
    (trajectory,) = convert(SOURCE, row, ROW)
    run = json.loads(trajectory.steps[0].action)
    assert run == {"name": "run", "arguments": {"command": "ls src/lib", "is_input": False}}
    assert json.loads(trajectory.steps[2].action)["arguments"]["insert_line"] == 102


@pytest.mark.parametrize(
    ("code", "success", "failed"),
    [(0, True, False), (1, False, True), (-1, False, None), (2, None, True), (None, None, None)],
)
def test_a_command_failed_where_its_event_says_so(code, success, failed):
    said = {"extras": {"metadata": {"exit_code": code}}} | ({} if success is None else {"success": success})
    (trajectory,) = convert(SOURCE, [action(1, "ls"), answer(2, 1, "x", **said)], WINDOW)
    assert trajectory.steps[0].failed is failed


def test_an_evaluation_that_was_written_into_the_row_is_the_reward():
    row = record(ROW)
    assert convert(SOURCE, row, ROW)[0].steps[-1].reward == 0.0
    for told in ({"report": {"resolved": True}}, {"test_result": {"report": {"resolved": True}}}):
        assert [step.reward for step in convert(SOURCE, row | told, ROW)[0].steps] == [0.0, 0.0, 1.0]


def test_windows_with_the_same_task_are_one_group():
    events = record(WINDOW)
    other = copy.deepcopy(events)
    other[0]["timestamp"] = "2026-01-01T00:00:00"
    one, two = convert(SOURCE, events, WINDOW)[0], convert(SOURCE, other, EDIT)[0]
    assert one.group == two.group != convert(SOURCE, record(EDIT), EDIT)[0].group
    assert one.id != two.id


def test_what_only_resembles_events_is_not_claimed():
    event = action(1, "ls")
    assert SOURCE.matches([event], WINDOW)
    assert not SOURCE.matches(event, WINDOW)
    assert not SOURCE.matches([], WINDOW)
    assert not SOURCE.matches([event | {"role": "assistant"}], WINDOW)
    assert not SOURCE.matches([{"action": "ls", "observation": "a"}], WINDOW)
    assert not SOURCE.matches([{"action": "ls -la"}], WINDOW)


def test_wrong_types_are_named_by_their_path():
    row = record(ROW)
    row["history"][5]["content"] = None
    with pytest.raises(SchemaError) as caught:
        convert(SOURCE, row, ROW)
    assert caught.value.field == "history[5].content"
    events = record(WINDOW)
    events[1]["action"] = 3
    with pytest.raises(SchemaError) as caught:
        convert(SOURCE, events, WINDOW)
    assert caught.value.field == "[1].action"


@given(st.sampled_from([ROW, RESOLVER, WINDOW]).flatmap(lambda path: one_member_replaced(record(path))))
@settings(max_examples=100, deadline=None)
def test_one_broken_member_is_refused_or_harmless(broken):
    check_broken(SOURCE, broken, WINDOW)
