import json

import pytest
from foreign_records import SAMPLES, check_broken, convert, corpus, load, one_member_replaced
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.schema import SchemaError
from maskworld.data.sources.common.checks import Notes
from maskworld.data.sources.swe_agent import SOURCE, history_turns

FOLDER = SAMPLES / "swe_agent"
OLD = FOLDER / "flash.traj"
HISTORY_ONLY = FOLDER / "function_calling_simple.traj"
SMITH = FOLDER / "pandas-dev__pandas.95280573.pr_53856.traj"


def turns_of(trajectory):
    return [(step.action, step.observation) for step in trajectory.steps]


def test_the_swe_agent_corpus_has_162_steps_in_15_files():
    # 157 in `trajectory` of 14 files, and 5 of function_calling_simple.traj, which has `history` only.
    found = [t for path in corpus("swe_agent", "*.traj") for t in convert(SOURCE, load(path), path)]
    assert len(found) == len({t.id for t in found}) == 15
    assert sum(len(t.steps) for t in found) == 162
    assert all(t.task_context and t.domain_rules for t in found)
    assert not any("Here is a demonstration" in t.task_context for t in found)


def test_trajectory_and_history_agree_on_the_54_steps_of_swe_smith():
    steps = 0
    for path in corpus("swe_smith", "*.traj"):
        record = load(path)
        (trajectory,) = convert(SOURCE, record, path)
        assert history_turns(record["history"], Notes()) == turns_of(trajectory)
        steps += len(trajectory.steps)
    assert steps == 54


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.traj")), ids=lambda path: path.stem)
def test_every_sample_is_one_trajectory_that_ended_with_submit(path):
    record = load(path)
    assert SOURCE.matches(record, path)
    (trajectory,) = convert(SOURCE, record, path)
    assert trajectory.steps[-1].action.startswith("submit")
    assert trajectory.steps[-1].done
    assert trajectory.domain_rules[0]
    assert trajectory.initial_state == ""


def test_an_empty_observation_of_submit_is_kept():
    (trajectory,) = convert(SOURCE, load(OLD), OLD)
    assert len(trajectory.steps) == 4
    assert trajectory.steps[-1].observation == ""
    assert trajectory.task_context.startswith("We're currently solving the following CTF challenge")


def test_swe_smith_names_model_and_instance_and_loses_its_carriage_returns():
    record = load(SMITH)
    (trajectory,) = convert(SOURCE, record, SMITH)
    assert trajectory.player == "claude-3-7-sonnet-20250219"
    assert trajectory.group == "swe/pandas-dev__pandas.95280573.pr_53856"
    assert trajectory.metadata["cleaned"] == ["crlf"]
    assert trajectory.metadata["exit_status"] == "submitted"
    assert turns_of(trajectory) == [
        (step["action"], step["observation"].replace("\r\n", "\n")) for step in record["trajectory"]
    ]
    assert history_turns(record["history"], Notes()) == turns_of(trajectory)


def test_what_the_harness_wraps_around_an_observation_of_the_history_is_removed():
    (trajectory,) = convert(SOURCE, load(HISTORY_ONLY), HISTORY_ONLY)
    assert [step.action.split()[0] for step in trajectory.steps] == ["find_file", "open", "edit", "python", "submit"]
    assert trajectory.steps[3].observation == "8.2"
    assert not any("(Current directory:" in step.observation for step in trajectory.steps)


def test_a_demonstration_is_neither_task_nor_steps():
    record = load(HISTORY_ONLY)
    clean = convert(SOURCE, record, HISTORY_ONLY)
    demonstration = [
        {"role": "user", "content": "Here is a demonstration", "agent": "main", "is_demo": True},
        {"role": "assistant", "content": "", "action": "ls", "agent": "main", "is_demo": True},
    ]
    record["history"][1:1] = demonstration
    assert convert(SOURCE, record, HISTORY_ONLY) == clean


def test_steps_without_an_action_are_left_out_and_counted():
    record = load(OLD)
    record["trajectory"].insert(1, record["trajectory"][0] | {"action": "\n"})
    (trajectory,) = convert(SOURCE, record, OLD)
    assert len(trajectory.steps) == 4
    assert trajectory.metadata["empty_actions"] == 1


def test_a_run_the_harness_stopped_did_not_end():
    record = load(OLD)
    record["info"]["exit_status"] = "submitted (exit_cost)"
    (trajectory,) = convert(SOURCE, record, OLD)
    assert not any(step.done for step in trajectory.steps)


def test_a_shortened_observation_is_counted():
    record = load(OLD)
    record["trajectory"][0]["observation"] += "<response clipped><NOTE>To save on context ...</NOTE>"
    (trajectory,) = convert(SOURCE, record, OLD)
    assert trajectory.metadata["truncated_observations"] == 1


def test_a_configuration_may_be_an_object_or_json_text_and_nothing_else():
    record = load(SMITH)
    as_text = convert(SOURCE, record, SMITH)
    assert convert(SOURCE, record | {"replay_config": json.loads(record["replay_config"])}, SMITH) == as_text
    with pytest.raises(SchemaError, match="replay_config: is no JSON"):
        convert(SOURCE, record | {"replay_config": "{"}, SMITH)


def test_a_wrong_type_is_named_by_its_path():
    record = load(OLD)
    record["trajectory"][3]["observation"] = 7
    with pytest.raises(SchemaError) as caught:
        convert(SOURCE, record, OLD)
    assert caught.value.field == "trajectory[3].observation"


@given(st.sampled_from([OLD, HISTORY_ONLY, SMITH]).flatmap(lambda path: one_member_replaced(load(path))))
@settings(max_examples=100, deadline=None)
def test_one_broken_member_is_refused_or_harmless(record):
    check_broken(SOURCE, record, SMITH)
