"""AppWorld's data must not be published in the open: the rows are invented, in the layout of the real ones."""

import json

import pytest
from foreign_records import SAMPLES, check_broken, convert, one_member_replaced
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.schema import SchemaError
from maskworld.data.sources.mdlm_appworld import SOURCE

PATH = SAMPLES / "mdlm_appworld" / "synthetic.jsonl"
ROWS = [json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()]
RUN, STRING, MERGED, PROMPT = ROWS


def read(row):
    assert SOURCE.matches(row, PATH)
    (trajectory,) = convert(SOURCE, row, PATH)
    return trajectory


def test_calls_and_their_answers_are_the_steps():
    trajectory = read(RUN)
    assert [step.action for step in trajectory.steps] == [
        '{"name":"shelf__login","arguments":{"user":"ana"}}',
        '{"name":"shelf__list_boxes","arguments":{"page":0}}',
    ]
    assert trajectory.metadata == {"format_errors": 1, "unanswered_actions": 1}
    assert trajectory.tool_schemas == (
        "supervisor__complete_task(answer)", "shelf__login(user)", "shelf__list_boxes(page)",
    )  # fmt: skip
    assert trajectory.domain_rules == ("You are an assistant for small offices.\nAnswer with one call.",)
    assert trajectory.task_context == "Which box holds the lamps?"
    assert trajectory.group == "appworld/0ff1ce0"
    assert trajectory.player == "gpt-5.4"


def test_escapes_of_surrogate_pairs_stay_escapes_of_one_character():
    text = PATH.read_text(encoding="ascii")
    assert "\\\\\\\\ud83e\\\\\\\\udd73" in text
    for row in (RUN, STRING):
        greeting, boxes = (step.observation for step in read(row).steps)
        assert json.loads(json.loads(greeting)["response"])["greeting"] == "hello \U0001f973"
        assert json.loads(boxes) == [{"box": 3, "holds": "lamps \U0001f4a1"}]
        assert greeting.isascii() and boxes.isascii()
    assert read(STRING).initial_state.encode("utf-8").endswith("lamps \U0001f4a1".encode())


def test_the_dialects_of_one_run_give_the_same_trajectory():
    assert read(MERGED) == read(RUN)
    string = read(STRING)
    assert (string.steps, string.domain_rules) == (read(RUN).steps, read(RUN).domain_rules)
    assert string.player == ""


def test_a_prompt_is_refused_by_what_it_lacks():
    with pytest.raises(SchemaError, match="messages: holds a prompt but no transition"):
        read(PROMPT)


def test_answers_without_any_tags_are_answers():
    row = json.loads(json.dumps(RUN))
    for message in row["messages"]:
        message["content"] = message["content"].replace("<tool_response>\n", "").replace("\n</tool_response>", "")
    assert [step.observation for step in read(row).steps][:1] == [read(RUN).steps[0].observation]
    assert len(read(row).steps) == 3


@given(st.sampled_from(ROWS).flatmap(one_member_replaced))
@settings(max_examples=100, deadline=None)
def test_one_broken_member_is_refused_or_harmless(row):
    check_broken(SOURCE, row, PATH)
