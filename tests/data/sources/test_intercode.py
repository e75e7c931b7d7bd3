import copy

import pytest
from foreign_records import SAMPLES, check_broken, convert, corpus, load, one_member_replaced
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.schema import SchemaError
from maskworld.data.sources.common.base import Origin
from maskworld.data.sources.intercode import SOURCE

FOLDER = SAMPLES / "intercode"
HUMAN = FOLDER / "ic_sql_multiturn_human_10_turns.json"
REACT = FOLDER / "ic_sql_react_10_turns.json"
SQL = FOLDER / "ic_sql_multiturn_gpt-4_10_turns.json"
BASH = FOLDER / "ic_bash_multiturn_gpt-4_10_turns_fs_1.json"
CTF = FOLDER / "ic_ctf_gpt-4_25_turns.json"


def test_the_corpus_has_1132_episodes_and_6086_steps():
    found = [t for path in corpus("intercode", "*.json") for t in convert(SOURCE, load(path), path)]
    assert len(found) == len({t.id for t in found}) == 1132
    assert sum(len(t.steps) for t in found) == 6086


def test_grades_fall_inside_episodes_of_the_corpus_so_they_are_no_running_sums():
    falling = 0
    for path in corpus("intercode", "*.json"):
        for episode in load(path).values():
            grades = episode.get("turn_history", {}).get("rewards", [])
            falling += any(before > after for before, after in zip(grades, grades[1:], strict=False))
    assert falling == 17


def test_the_same_question_is_one_group_whoever_asked():
    groups = {}
    for path in corpus("intercode", "*sql*.json"):
        groups[path.name] = {t.group for t in convert(SOURCE, load(path), path)}
    assert groups[HUMAN.name] < groups[SQL.name]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_actions_and_observations_stand_as_in_the_file(path):
    record = load(path)
    assert SOURCE.matches(record, path)
    found = convert(SOURCE, record, path)
    assert len(found) == len(record)
    for trajectory, (key, episode) in zip(found, record.items(), strict=True):
        turns = episode.get("trajectory") or [
            {"action": action, "observation": observation}
            for action, observation in zip(
                episode["turn_history"]["actions"], episode["turn_history"]["observations"], strict=True
            )
        ]
        assert [(s.action, s.observation) for s in trajectory.steps] == [(t["action"], t["observation"]) for t in turns]
        assert trajectory.id.endswith(f"/{key}")
        assert trajectory.task_context == episode["query"]
        assert trajectory.environment == "intercode/" + episode["environment"].removeprefix("ic_")


def test_the_reward_of_sql_is_the_grade_of_the_turn():
    for trajectory, episode in zip(convert(SOURCE, load(SQL), SQL), load(SQL).values(), strict=True):
        assert [s.reward for s in trajectory.steps] == episode["turn_history"]["rewards"]
        assert trajectory.steps[-1].done == (trajectory.steps[-1].reward == 1)


def test_grades_of_the_file_system_are_no_rewards_of_single_actions():
    for trajectory, episode in zip(convert(SOURCE, load(BASH), BASH), load(BASH).values(), strict=True):
        assert {s.reward for s in trajectory.steps} == {0.0}
        assert trajectory.metadata["turn_scores"] == episode["turn_history"]["rewards"]


def test_submit_is_a_step_and_ends_the_episode():
    for trajectory in convert(SOURCE, load(REACT), REACT):
        assert trajectory.steps[-1].action == "submit"
        assert trajectory.steps[-1].done
        assert trajectory.player == ""  # neither the file's name nor its folder here names the model


def test_the_human_reward_is_that_of_the_last_query():
    for trajectory, episode in zip(convert(SOURCE, load(HUMAN), HUMAN), load(HUMAN).values(), strict=True):
        assert trajectory.player == "human"
        assert [s.reward for s in trajectory.steps] == [0.0] * (len(trajectory.steps) - 1) + [episode["reward"]]


def test_whole_and_fractional_rewards_are_equal():
    record = load(CTF)
    as_floats = copy.deepcopy(record)
    for episode in as_floats.values():
        episode["turn_history"]["rewards"] = [float(reward) for reward in episode["turn_history"]["rewards"]]
    assert convert(SOURCE, record, CTF) == convert(SOURCE, as_floats, CTF)


def test_a_single_episode_is_read_like_the_file_of_it():
    record = load(SQL)
    key = next(iter(record))
    assert SOURCE.matches(record[key], SQL)
    assert convert(SOURCE, record[key], SQL) == convert(SOURCE, {key: record[key]}, SQL)


def test_an_action_without_its_observation_is_left_out_and_counted():
    episode = next(iter(load(SQL).values()))
    episode["turn_history"]["observations"].pop()
    (trajectory,) = convert(SOURCE, episode, SQL)
    assert len(trajectory.steps) == len(episode["turn_history"]["actions"]) - 1
    assert trajectory.metadata["unanswered_actions"] == 1
    assert not trajectory.steps[-1].done


def test_a_broken_episode_is_named_and_costs_no_other():
    record = load(SQL)
    first, second = list(record)[:2]
    record[first]["turn_history"]["observations"][1] = 5
    error, found = SOURCE.trajectories(record, Origin(SQL, 0))
    assert isinstance(error, SchemaError) and error.field == f"{first}.turn_history.observations[1]"
    assert found.id.rsplit("/", 1)[1] == second


@given(st.sampled_from([SQL, HUMAN, CTF, BASH]).flatmap(lambda path: one_member_replaced(load(path))))
@settings(max_examples=100, deadline=None)
def test_one_broken_member_is_refused_or_harmless(record):
    check_broken(SOURCE, record, SQL)
