from maskworld.data.schema import Step, Trajectory
from maskworld.evaluation.baselines import (
    BASELINES,
    COPY_LAST,
    FREQUENT_FOR_ACTION,
    FREQUENT_FOR_VERB,
    count_observations,
    last_observation,
    predict,
    verb,
)


def trajectory(*steps, initial="You are in a room."):
    return Trajectory(
        id="t",
        environment="toy",
        initial_state="",
        task_context="",
        initial_observation=initial,
        steps=tuple(Step(action=a, observation=o) for a, o in steps),
    )


TRAINING = [
    trajectory(("open drawer 1", "empty"), ("open drawer 1", "a pen"), ("open drawer 1", "a pen")),
    trajectory(("open fridge 1", "an egg"), ("open fridge 1", "an egg"), ("open fridge 1", "an egg")),
    trajectory(*[("look", "You are facing the bed 1.")] * 5),
]


def test_verb_is_the_first_word_or_the_name_of_a_tool_call():
    assert verb("Go to shelf 1") == "go"
    assert verb("get_user(id=7)") == "get_user"
    assert verb('{"name": "cancel_order", "arguments": {"id": 1}}') == "cancel_order"
    assert verb('{"name": ') == '{"name":'
    assert verb("  ") == ""


def test_copy_takes_the_initial_observation_before_the_first_action():
    t = trajectory(("look", "a"), ("look", "b"))
    assert [last_observation(t, i) for i in range(2)] == ["You are in a room.", "a"]


def test_frequency_is_by_action_then_by_verb_then_overall():
    frequent = count_observations(TRAINING)
    assert frequent.for_action("open drawer 1") == "a pen"
    assert frequent.for_action("open cabinet 9") == "an egg"
    assert frequent.for_action("dance") == "You are facing the bed 1."
    assert frequent.for_verb("open drawer 1") == "an egg"


def test_of_equally_frequent_observations_the_first_seen_wins():
    assert count_observations([trajectory(("look", "z"), ("look", "a"))]).for_action("look") == "z"


def test_no_training_data_predicts_nothing():
    assert count_observations([]).for_action("look") == ""


def test_every_baseline_predicts_every_step():
    t = trajectory(("look", "a"), ("open drawer 1", "b"))
    predictions = predict(t, 1, count_observations(TRAINING))
    assert tuple(predictions) == BASELINES
    assert predictions == {COPY_LAST: "a", FREQUENT_FOR_VERB: "an egg", FREQUENT_FOR_ACTION: "a pen"}
