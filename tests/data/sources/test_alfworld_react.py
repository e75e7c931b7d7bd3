import pytest
from foreign_records import SAMPLES, check_broken, convert, corpus, load, one_member_replaced
from hypothesis import given, settings

from maskworld.data.schema import SchemaError, Trajectory
from maskworld.data.sources.alfworld_react import SOURCE
from maskworld.data.sources.common.base import Origin

PATH = SAMPLES / "alfworld_react" / "alfworld_3prompts.json"


def by_name(record):
    return {trajectory.id.partition("/")[2]: trajectory for trajectory in convert(SOURCE, record, PATH)}


def test_the_corpus_has_24_transcripts_of_12_examples():
    (path,) = corpus("alfworld_react", "*.json")
    found = by_name(load(path))
    assert len(found) == 24 and len({trajectory.group for trajectory in found.values()}) == 12
    assert sum(len(trajectory.steps) for trajectory in found.values()) == 259
    assert sum(trajectory.metadata.get("thoughts", 0) for trajectory in found.values()) == 60
    pairs = [(found[name], found[f"re{name}"]) for name in found if name.startswith("act_")]
    assert sum(act.steps == react.steps for act, react in pairs) == 11
    assert all(act.task_context == react.task_context for act, react in pairs)


def test_a_command_is_answered_by_the_lines_behind_it():
    trajectory = by_name(load(PATH))["act_put_0"]
    assert SOURCE.matches(load(PATH), PATH)
    assert [(step.action, step.observation) for step in trajectory.steps][3:] == [
        ("take spraybottle 2 from cabinet 2", "You pick up the spraybottle 2 from the cabinet 2."),
        ("go to toilet 1", "On the toilet 1, you see a soapbottle 2."),
        ("put spraybottle 2 in/on toilet 1", "You put the spraybottle 2 in/on the toilet 1."),
    ]
    assert trajectory.task_context == "put some spraybottle on toilet."
    assert trajectory.initial_observation.startswith("You are in the middle of a room.")
    assert "Your task" not in trajectory.initial_observation
    assert trajectory.group == "alfworld_react/put_0"


def test_thoughts_are_left_out_and_lost_answers_counted():
    found = by_name(load(PATH))
    assert found["react_put_0"].steps == found["act_put_0"].steps
    assert found["react_put_0"].metadata == {"thoughts": 4}
    assert found["react_cool_0"].metadata == {"lost_observations": 1, "thoughts": 5}
    assert len(found["react_cool_0"].steps) == len(found["act_cool_0"].steps) - 1


def test_a_cut_transcript_loses_its_last_action_only():
    record = load(PATH)
    record["act_put_0"] = record["act_put_0"][: record["act_put_0"].rindex("\nYou put")]
    found = by_name(record)
    assert len(found["act_put_0"].steps) == 5
    assert found["act_put_0"].metadata == {"unanswered_actions": 1}


def test_a_broken_transcript_is_named_and_costs_no_other():
    error, found = SOURCE.trajectories({"act_a_0": 5, "act_put_0": load(PATH)["act_put_0"]}, Origin(PATH, 0))
    assert isinstance(error, SchemaError) and error.field == "act_a_0"
    assert isinstance(found, Trajectory)


@pytest.mark.parametrize("record", [{}, [], {"act_a_0": 1}, {"act_a": "x"}, {"act_a_0": "x", "id": "y"}])
def test_other_objects_are_not_claimed(record):
    assert not SOURCE.matches(record, PATH)


@given(one_member_replaced(load(PATH)))
@settings(max_examples=50, deadline=None)
def test_one_broken_member_is_refused_or_harmless(record):
    check_broken(SOURCE, record, PATH)
