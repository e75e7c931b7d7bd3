import copy
import json
from itertools import groupby

import pytest
from foreign_records import SAMPLES, check_broken, convert, corpus, one_member_replaced
from hypothesis import given, settings

from maskworld.data.schema import SchemaError
from maskworld.data.sources.common.base import Origin
from maskworld.data.sources.wmh_steps import SOURCE

PATH = SAMPLES / "wmh_steps" / "steps.jsonl"


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def traces(path):
    """The steps of a file by the name of their trace, which stand together in all files here."""
    return [list(steps) for _, steps in groupby(lines(path), SOURCE.gathered_by)]


def converted(path):
    return [trajectory for steps in traces(path) for trajectory in convert(SOURCE, steps, path)]


def step(span, task="t", **action):
    """A small step of the trace and number that its span tells."""
    return {
        "action": {"kind": "tool_call", "name": "look", "arguments": {}, "content": None} | action,
        "observation": {"content": "seen", "is_error": False, "reward": None, "metadata": {}},
        "state_before": {"structured": {}, "scratchpad": ""},
        "task": task,
        "raw_span_ids": [span + "a", span + "b"],
    }


@pytest.mark.parametrize(
    ("folder", "model", "found", "left_out", "failed"),
    [
        ("wmh_swe_bench", "", [14, 163], 0, 6),
        ("wmh_tau2", "tau-bench", [5, 30], 0, 0),
        # 326 steps, of which four call `calculate` and seven hand over to a human.
        ("wmh_tau2", "tau-telecom", [47, 315], 11, 13),
    ],
)
def test_the_corpus_has_these_traces_and_steps(folder, model, found, left_out, failed):
    (path,) = [path for path in corpus(folder, "steps.jsonl") if model in path.parts or not model]
    trajectories = converted(path)
    steps = [one for trajectory in trajectories for one in trajectory.steps]
    assert [len({one.id for one in trajectories}), len(steps)] == found
    assert sum(trajectory.metadata.get("no_transition_calls", 0) for trajectory in trajectories) == left_out
    assert sum(one.failed for one in steps) == failed
    assert len(trajectories) == len(traces(path))


def test_the_telecom_file_holds_16_tasks_of_three_domains():
    (path,) = [path for path in corpus("wmh_tau2", "steps.jsonl") if "tau-telecom" in path.parts]
    trajectories = converted(path)
    assert len({trajectory.group for trajectory in trajectories}) == 16
    assert {trajectory.environment for trajectory in trajectories} == {
        "wmh_steps/airline",
        "wmh_steps/retail",
        "wmh_steps/telecom",
    }


def test_a_trace_gives_its_steps_in_order_with_call_answer_and_error():
    steps = traces(PATH)
    assert [len(one) for one in steps] == [6, 3, 4]
    (first,) = convert(SOURCE, steps[0], PATH)
    assert first.id == "wmh_steps/cfcc23fb5233"
    assert first.environment == "wmh_steps/telecom"
    assert [one.observation for one in first.steps] == [one["observation"]["content"] for one in steps[0]]
    assert [one.failed for one in first.steps] == [one["observation"]["is_error"] for one in steps[0]]
    assert json.loads(first.steps[0].action) == {name: steps[0][0]["action"][name] for name in ("name", "arguments")}
    assert first.task_context == steps[0][0]["task"]


def test_handing_over_to_a_human_is_no_transition():
    (trajectory,) = convert(SOURCE, traces(PATH)[1], PATH)
    assert len(trajectory.steps) == 2
    assert trajectory.metadata == {"no_transition_calls": 1}


def test_runs_of_one_task_are_one_group_and_another_task_is_another():
    spans = [f"abcdefabcdef{number:04x}" for number in range(3)]
    one = convert(SOURCE, [step(spans[0])], PATH)[0]
    other = convert(SOURCE, [step("0" * 16)], PATH)[0]
    third = convert(SOURCE, [step("0" * 16, task="u")], PATH)[0]
    assert one.group == other.group != third.group
    assert one.id != other.id


@pytest.mark.parametrize("digits", [4, 6])
def test_both_widths_of_the_number_name_the_same_trace(digits):
    steps = [step(f"abcdefabcdef{number:0{digits}x}") for number in (9, 10, 255)]
    assert {SOURCE.gathered_by(one) for one in steps} == {"abcdefabcdef"}
    assert len(convert(SOURCE, steps, PATH)[0].steps) == 3


def test_a_short_trace_id_is_told_from_its_number():
    assert SOURCE.gathered_by(step("trace000001")) == "trace"


def test_two_traces_of_one_beginning_are_cut_apart():
    steps = [step(f"airline-task{number:04x}", task=task) for task in "ab" for number in (0, 1)]
    again = [step(f"airline-task{number:04x}", task="b") for number in (0, 1, 2)]
    found = convert(SOURCE, steps + again, PATH)
    assert [len(one.steps) for one in found] == [2, 2, 3]
    assert [one.id for one in found] == [f"wmh_steps/airline-task:{begin}" for begin in (0, 2, 4)]


def test_a_step_whose_span_is_named_otherwise_stands_alone():
    steps = [step("x"), step("y")]
    assert [SOURCE.gathered_by(one) for one in steps] == ["xa", "ya"]
    assert SOURCE.gathered_by({"raw_span_ids": []}) == SOURCE.gathered_by(3) == ""


def test_a_message_is_an_action_as_it_stands_and_the_state_before_is_e0():
    record = step("x", kind="message", name=None, content="Hello")
    record["state_before"] = {"structured": {"cwd": "/"}, "scratchpad": "logged in"}
    record["observation"]["reward"] = 0.5
    (trajectory,) = convert(SOURCE, [record], PATH)
    assert (trajectory.steps[0].action, trajectory.steps[0].reward) == ("Hello", 0.5)
    assert trajectory.initial_state == '{"cwd":"/"}\nlogged in'
    assert trajectory.environment == "wmh_steps"


def test_a_broken_step_costs_its_own_trace_only_and_is_named_by_its_path():
    steps = [step(f"airline-task{number:04x}", task=task) for task in "ab" for number in (0, 1)]
    steps[1]["observation"]["content"] = None
    error, sound = SOURCE.trajectories(steps, Origin(PATH, 0))
    assert isinstance(error, SchemaError) and error.field == "[1].observation.content"
    assert len(sound.steps) == 2


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"kind": "dance"}, "[0].action.kind"),
        ({"arguments": 3}, "[0].action.arguments"),
        ({"name": None}, "[0].action.name"),
        ({"kind": "message", "content": " "}, "[0].action.content"),
    ],
)
def test_wrong_actions_are_named_by_their_path(change, where):
    with pytest.raises(SchemaError) as caught:
        convert(SOURCE, [step("x", **change)], PATH)
    assert caught.value.field == where


@given(one_member_replaced(traces(PATH)[2]))
@settings(max_examples=100, deadline=None)
def test_one_broken_member_is_refused_or_harmless(record):
    check_broken(SOURCE, record, PATH)
    for one in record if isinstance(record, list) else [record]:
        assert SOURCE.matches(one, PATH) in (True, False)
        assert isinstance(SOURCE.gathered_by(copy.copy(one)), str)
