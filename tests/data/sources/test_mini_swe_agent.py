import json

import pytest
from foreign_records import SAMPLES, check_broken, convert, corpus, load, one_member_replaced
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.schema import SchemaError
from maskworld.data.sources.mini_swe_agent import SOURCE

PATH = SAMPLES / "mini_swe_agent" / "github_issue.traj.json"


def as_object(messages):
    """The newer layout, as mini-swe-agent's documentation gives it; no real file of it is here."""
    return {
        "info": {
            "exit_status": "Submitted",
            "submission": "",
            "mini_version": "1.9.0",
            "config": {"model": {"model_name": "some-model"}},
        },
        "messages": messages,
        "trajectory_format": "mini-swe-agent-1",
        "instance_id": "owner__repository-1",
    }


def test_the_corpus_file_has_10_steps():
    (path,) = corpus("mini_swe_agent", "*.json")
    (trajectory,) = convert(SOURCE, load(path), path)
    assert len(trajectory.steps) == 10


def test_the_command_of_the_block_and_the_whole_answer_are_a_step():
    record = load(PATH)
    assert SOURCE.matches(record, PATH)
    (trajectory,) = convert(SOURCE, record, PATH)
    assert trajectory.id == "mini_swe_agent/github_issue"
    assert trajectory.steps[1].action == "ls -la"
    assert [step.observation for step in trajectory.steps] == [message["content"] for message in record[3::2]]
    assert trajectory.domain_rules == (record[0]["content"],)
    assert trajectory.task_context == record[1]["content"].replace("\r\n", "\n")
    assert trajectory.metadata == {"cleaned": ["crlf"]}


def test_the_episode_ends_with_the_command_that_submits():
    (trajectory,) = convert(SOURCE, load(PATH), PATH)
    assert trajectory.steps[-1].action.startswith("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    assert trajectory.steps[-1].done
    (cut,) = convert(SOURCE, load(PATH)[:-1], PATH)
    assert len(cut.steps) == 9
    assert not any(step.done for step in cut.steps)
    assert cut.metadata["unanswered_actions"] == 1


def test_the_newer_object_gives_the_same_steps_and_names_model_and_instance():
    messages = load(PATH)
    record = as_object(messages)
    assert SOURCE.matches(record, PATH)
    (old,) = convert(SOURCE, messages, PATH)
    (new,) = convert(SOURCE, record, PATH)
    assert new.steps == old.steps
    assert new.player == "some-model"
    assert new.group == "swe/owner__repository-1"
    assert new.metadata["exit_status"] == "Submitted"


@pytest.mark.parametrize("answer", ["no block at all", "```bash\nls\n```\nand\n```bash\npwd\n```", "```bash\n\n```"])
def test_an_answer_without_exactly_one_command_is_no_transition(answer):
    record = load(PATH)
    (sound,) = convert(SOURCE, record, PATH)
    record[4:4] = [{"role": "assistant", "content": answer}, {"role": "user", "content": "Please provide one action."}]
    (trajectory,) = convert(SOURCE, record, PATH)
    assert trajectory.steps == sound.steps
    assert trajectory.metadata["format_errors"] == 1


def test_a_shortened_output_is_counted():
    record = load(PATH)
    record[5]["content"] = "<returncode>0</returncode>\n<warning>\nThe output of your last command was too long."
    (trajectory,) = convert(SOURCE, record, PATH)
    assert trajectory.metadata["truncated_observations"] == 1


def native(messages):
    """The run's commands as native tool calls, two in one answer; after version 2's code, no real file is here."""
    chat, number = messages[:2], 0
    for said, shown in zip(messages[2::2], messages[3::2], strict=True):
        command = said["content"].split("```")[1].partition("\n")[2].removesuffix("\n")
        made = {"id": f"call_{number}", "type": "function"}
        made["function"] = {"name": "bash", "arguments": json.dumps({"command": command})}
        chat.append({"role": "assistant", "content": None, "tool_calls": [made]})
        chat[-1]["extra"] = {"actions": [{"command": command, "tool_call_id": made["id"]}], "cost": 0.1}
        chat.append({"role": "tool", "tool_call_id": made["id"], "content": shown["content"]})
        number += 1
    first, answered, second, also = chat[2:6]
    first["tool_calls"] += second["tool_calls"]
    first["extra"]["actions"] += second["extra"]["actions"]
    chat[2:6] = [first, answered, also]
    submitted = {"exit_status": "Submitted", "submission": chat[-1]["content"]}
    chat[-1] = {"role": "exit", "content": chat[-1]["content"], "extra": submitted}
    return chat


def as_responses(chat):
    """The same calls as items of OpenAI's newer interface."""
    made = []
    for message in chat:
        if message["role"] == "assistant":
            items = [{"type": "reasoning", "summary": []}]
            for call in message["tool_calls"]:
                items.append({"type": "function_call", "call_id": call["id"], "id": "fc"} | call["function"])
            made.append({"object": "response", "output": items, "extra": message["extra"]})
        elif message["role"] == "tool":
            answer = {"type": "function_call_output", "call_id": message["tool_call_id"]}
            made.append(answer | {"output": message["content"]})
        else:
            made.append(message)
    return made


def without_lists(chat):
    return [{name: value for name, value in message.items() if name != "extra"} for message in chat[:-1]] + chat[-1:]


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("layout", [native, lambda messages: as_responses(native(messages))])
def test_the_same_run_gives_the_same_steps_with_native_calls(layout, listed):
    messages = load(PATH)
    (old,) = convert(SOURCE, messages, PATH)
    chat = layout(messages) if listed else without_lists(layout(messages))
    (new,) = convert(SOURCE, as_object(chat), PATH)
    assert new.steps == old.steps
    assert new.steps[-1].done
    assert new.task_context == old.task_context
    assert "unanswered_actions" not in new.metadata and "format_errors" not in new.metadata


def test_a_run_that_a_limit_ended_has_no_answer_to_its_last_command():
    chat = native(load(PATH))
    chat[-1] = {"role": "exit", "content": "LimitsExceeded", "extra": {"exit_status": "LimitsExceeded"}}
    (trajectory,) = convert(SOURCE, as_object(chat), PATH)
    assert len(trajectory.steps) == 9
    assert not trajectory.steps[-1].done
    assert trajectory.metadata["unanswered_actions"] == 1


def test_complaints_and_remarks_between_native_calls_answer_nothing():
    chat = native(load(PATH))
    (sound,) = convert(SOURCE, as_object(chat), PATH)
    complaint = {"role": "user", "content": "No tool calls found", "extra": {"interrupt_type": "FormatError"}}
    (trajectory,) = convert(
        SOURCE, as_object([*chat[:3], {"role": "user", "content": "Hi"}, complaint, *chat[3:]]), PATH
    )
    assert trajectory.steps == sound.steps
    assert trajectory.metadata["format_errors"] == 1


def test_a_listed_command_goes_before_the_block_of_the_text():
    record = load(PATH)
    record[2]["extra"] = {"actions": [{"command": "listed"}]}
    (trajectory,) = convert(SOURCE, record, PATH)
    assert trajectory.steps[0].action == "listed"


def test_a_call_of_another_tool_is_kept_as_json():
    chat = without_lists(native(load(PATH)))
    chat[2]["tool_calls"][0]["function"]["name"] = "search"
    chat[2]["tool_calls"][1]["function"]["arguments"] = "{"
    (trajectory,) = convert(SOURCE, as_object(chat), PATH)
    assert json.loads(trajectory.steps[0].action)["name"] == "search"
    assert json.loads(trajectory.steps[1].action) == {"name": "bash", "arguments": "{"}
    assert trajectory.metadata["unparsable_arguments"] == 1


@pytest.mark.parametrize(
    ("shown", "code", "failed"),
    [
        ("<returncode>0</returncode>", None, False),
        ("<returncode>2</returncode>\n<output>\n</output>", None, True),
        ("<exception>timed out</exception>\n<returncode>-1</returncode>", None, True),
        ("Exit code <returncode>1</returncode>", None, None),
        ("as configured", 1, True),
        ("as configured", 0, False),
    ],
)
def test_a_step_failed_where_the_harness_tells_of_another_code_than_0(shown, code, failed):
    record = load(PATH)
    record[3] = {"role": "user", "content": shown} | ({} if code is None else {"extra": {"returncode": code}})
    assert convert(SOURCE, record, PATH)[0].steps[0].failed is failed


def test_wrong_types_are_refused_by_path():
    record = load(PATH)
    record[4]["tool_calls"] = [{"id": "1"}]
    with pytest.raises(SchemaError) as caught:
        convert(SOURCE, record, PATH)
    assert caught.value.field == "[4].tool_calls[0].name"
    record = as_object(load(PATH))
    record["messages"][5]["content"] = 1
    with pytest.raises(SchemaError) as caught:
        convert(SOURCE, record, PATH)
    assert caught.value.field == "messages[5].content"
    record = as_object(native(load(PATH)))
    record["messages"][2]["extra"]["actions"][1] = {"tool_call_id": "x"}
    with pytest.raises(SchemaError) as caught:
        convert(SOURCE, record, PATH)
    assert caught.value.field == "messages[2].extra.actions[1].command"


LAYOUTS = [lambda chat: chat, as_object, lambda chat: as_object(native(chat))]
LAYOUTS += [lambda chat: as_object(as_responses(native(chat))), lambda chat: as_object(without_lists(native(chat)))]


@given(st.sampled_from(LAYOUTS).flatmap(lambda layout: one_member_replaced(layout(load(PATH)))))
@settings(max_examples=100, deadline=None)
def test_one_broken_member_is_refused_or_harmless(record):
    check_broken(SOURCE, record, PATH)
