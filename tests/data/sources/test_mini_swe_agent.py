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
    assert new.group == "mini_swe_agent/owner__repository-1"
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


def test_native_tool_calls_and_wrong_types_are_refused_by_path():
    record = load(PATH)
    record[4]["tool_calls"] = [{"id": "1"}]
    with pytest.raises(SchemaError) as caught:
        convert(SOURCE, record, PATH)
    assert caught.value.field == "[4].tool_calls"
    record = as_object(load(PATH))
    record["messages"][5]["content"] = 1
    with pytest.raises(SchemaError) as caught:
        convert(SOURCE, record, PATH)
    assert caught.value.field == "messages[5].content"


@given(st.booleans().flatmap(lambda new: one_member_replaced(as_object(load(PATH)) if new else load(PATH))))
@settings(max_examples=100, deadline=None)
def test_one_broken_member_is_refused_or_harmless(record):
    check_broken(SOURCE, record, PATH)
