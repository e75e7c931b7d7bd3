import pytest
from foreign_records import SAMPLES, check_broken, convert, corpus, load, one_member_replaced
from hypothesis import given, settings
from hypothesis import strategies as st

from maskworld.data.schema import SchemaError
from maskworld.data.sources.webshop import SOURCE

REACT = SAMPLES / "webshop" / "react_derived_agenttraj_style.json"
SEARCH = SAMPLES / "webshop" / "derived_agenttraj_style.json"
LOST, INVALID, FULL, PARTIAL = range(4)
WISH = "find me a green jumpsuit, and price lower than 40.00 dollars"


def session(*said, item_id="webshop_7"):
    speakers = ["human", "gpt"] * len(said)
    return {
        "item_id": item_id,
        "conversations": [
            {"from": speaker, "loss": None, "value": value} for speaker, value in zip(speakers, said, strict=False)
        ],
    }


def separators():
    """The page style of AgentTraj-L and ETO, whose files are not here: built from the environment's own layout."""
    return session(
        "You are web shopping. Use the format Thought: ... Action: click[something]",
        "OK",
        f"Observation:\nWebShop [SEP] Instruction: [SEP] {WISH} [SEP] Search",
        "Thought: I should search.\nAction: search[green jumpsuit]",
        f"Observation:\nInstruction: [SEP] {WISH} [SEP] Back to Search [SEP] Page 1 (Total results: 50) [SEP] B01",
        "Thought: Buy it.\nAction: click[Buy Now]",
        "Observation:\nThank you for shopping with us! [SEP] Your score (min 0.0, max 1.0) [SEP] 0.75 [SEP] Reward",
    )


def test_the_corpus_has_299_sessions_whose_2030_turns_are_1391_transitions():
    # 634 turns are thoughts, which the harness answers with "OK."; 5 pages were lost (an empty answer).
    path = next(p for p in corpus("webshop", "react_derived*.json"))
    found = [t for index, record in enumerate(load(path)) for t in convert(SOURCE, record, path, index)]
    assert len(found) == len({t.id for t in found}) == 299
    assert sum(t.metadata.get("thoughts", 0) for t in found) == 634
    assert sum(t.metadata.get("lost_observations", 0) for t in found) == 5
    assert sum(len(t.steps) for t in found) == 1391 == 2030 - 634 - 5
    assert sum(s.observation == "Invalid action!" for t in found for s in t.steps) == 178
    assert sum(t.steps[-1].done for t in found) == 277


def test_the_score_in_the_corpus_text_is_the_reward_of_the_record():
    path = next(p for p in corpus("webshop", "react_derived*.json"))
    for index, record in enumerate(load(path)):
        (trajectory,) = convert(SOURCE, record, path, index)
        assert trajectory.steps[-1].done == (record["reward"] is not None)
        assert sum(step.reward for step in trajectory.steps) == (record["reward"] or 0.0)
        assert "record_reward" not in trajectory.metadata


@pytest.mark.parametrize("path", [REACT, SEARCH], ids=lambda path: path.stem)
def test_every_sample_is_a_session(path):
    for record in load(path):
        assert SOURCE.matches(record, path)
        (trajectory,) = convert(SOURCE, record, path)
        assert trajectory.task_context.startswith("i")
        assert trajectory.metadata["pages"] == "brackets"
        assert all(step.action.startswith(("search[", "click[")) for step in trajectory.steps)
        assert not trajectory.domain_rules


def test_the_score_stays_in_the_observation_and_is_the_reward():
    (trajectory,) = convert(SOURCE, load(REACT)[PARTIAL], REACT)
    assert trajectory.steps[-1].observation == "Your score (min 0.0, max 1.0): 0.6666666666666666"
    assert trajectory.steps[-1].reward == 0.6666666666666666
    assert trajectory.steps[-1].done
    assert {step.reward for step in trajectory.steps[:-1]} == {0.0}


def test_thoughts_are_left_out_and_counted_whatever_answers_them():
    (trajectory,) = convert(SOURCE, load(REACT)[FULL], REACT)
    assert trajectory.metadata["thoughts"] == 2
    assert "OK." not in [step.observation for step in trajectory.steps]
    (searched,) = convert(SOURCE, load(SEARCH)[0], SEARCH)  # this harness repeats the page instead
    assert searched.metadata["thoughts"] == 2
    assert len(searched.steps) == 2


def test_a_lost_page_is_no_transition_and_leaves_the_session_open():
    (trajectory,) = convert(SOURCE, load(REACT)[LOST], REACT)
    assert trajectory.metadata["lost_observations"] == 1
    assert trajectory.steps[-1].action == "click[#1]"
    assert not trajectory.steps[-1].done


def test_a_rejected_action_is_a_transition():
    (trajectory,) = convert(SOURCE, load(REACT)[INVALID], REACT)
    assert "Invalid action!" in [step.observation for step in trajectory.steps]


def test_pages_joined_by_separators_with_acknowledged_instructions():
    record = separators()
    assert SOURCE.matches(record, REACT)
    (trajectory,) = convert(SOURCE, record, REACT)
    assert trajectory.domain_rules == (record["conversations"][0]["value"],)
    assert trajectory.initial_observation == f"WebShop [SEP] Instruction: [SEP] {WISH} [SEP] Search"
    assert trajectory.task_context == WISH
    assert trajectory.group == "webshop/find me a green jumpsuit"
    assert trajectory.metadata == {"pages": "separators"}
    assert [step.action for step in trajectory.steps] == ["search[green jumpsuit]", "click[Buy Now]"]
    assert trajectory.steps[-1].reward == 0.75
    assert trajectory.steps[-1].done
    assert trajectory.steps[-1].observation.startswith("Thank you for shopping with us! [SEP]")


def test_pages_with_marked_buttons():
    first = f"Amazon Shopping Game\nInstruction: \n{WISH}\n[button] Search [button_]"
    record = session(first, "search[green jumpsuit]", "[button] Back to Search [button_]\nPage 1 (Total results: 50)")
    assert SOURCE.matches(record, REACT)
    (trajectory,) = convert(SOURCE, record, REACT)
    assert trajectory.task_context == WISH
    assert trajectory.metadata == {"pages": "buttons"}
    assert trajectory.steps[0].observation.startswith("[button] Back to Search [button_]")


def test_agentinstruct_and_eto_name_their_record_id():
    record = separators()
    record["id"] = record.pop("item_id")
    assert convert(SOURCE, record, REACT) == convert(SOURCE, separators(), REACT)


def test_a_session_that_stops_before_the_answer_counts_the_action():
    record = separators()
    record["conversations"].pop()
    (trajectory,) = convert(SOURCE, record, REACT)
    assert trajectory.metadata["unanswered_actions"] == 1
    assert len(trajectory.steps) == 1
    assert not trajectory.steps[-1].done


def test_a_reward_the_text_does_not_show_goes_into_the_metadata():
    record = separators() | {"reward": 0.5}
    (trajectory,) = convert(SOURCE, record, REACT)
    assert trajectory.metadata["record_reward"] == 0.5
    assert trajectory.steps[-1].reward == 0.75


def test_other_conversations_are_no_sessions():
    other = {"id": "alfworld_1", "conversations": [{"from": "human", "value": "You are in a room."}]}
    assert not SOURCE.matches(other, REACT)
    assert not SOURCE.matches({"conversations": []}, REACT)


def test_a_wrong_type_is_named_by_its_path():
    record = separators()
    record["conversations"][4]["value"] = ["page"]
    with pytest.raises(SchemaError) as caught:
        convert(SOURCE, record, REACT)
    assert caught.value.field == "conversations[4].value"


@given(
    st.sampled_from([LOST, INVALID, PARTIAL, -1]).flatmap(
        lambda index: one_member_replaced(separators() if index < 0 else load(REACT)[index])
    )
)
@settings(max_examples=100, deadline=None)
def test_one_broken_member_is_refused_or_harmless(record):
    check_broken(SOURCE, record, REACT)
