import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskworld.data.schema import SchemaError
from maskworld.data.sources.common.checks import Notes
from maskworld.data.sources.common.dialogue import Answered, Said, call_text, dialogue
from maskworld.data.sources.common.pairing import Call, Result


def answered(place, action='{"name":"f","arguments":{}}'):
    return Answered(action, Result("", f"seen {place}", place))


def test_a_text_is_told_from_its_place_on_and_not_before():
    said = [Said(0, "first"), Said(1, "also"), Said(4, "later"), Said(5, " "), Said(6, "and this"), Said(9, "bye")]
    notes = Notes()
    context, steps = dialogue(said, [answered(3), answered(7), answered(8)], notes)
    assert context == "first\nalso"
    assert [step.action.split("\n") for step in steps] == [
        ['{"name":"f","arguments":{}}'],
        ["User: later", "User: and this", '{"name":"f","arguments":{}}'],
        ['{"name":"f","arguments":{}}'],
    ]
    assert notes.metadata() == {"unanswered_requests": 1}


def test_without_calls_every_text_is_the_task():
    assert dialogue([Said(0, "a"), Said(1, "b")], [], Notes()) == ("a\nb", ())


@given(st.lists(st.tuples(st.booleans(), st.text("ab\n", min_size=1)), max_size=12))
def test_no_text_is_lost_and_the_call_is_the_last_line(turns):
    said = [Said(place, words) for place, (speaks, words) in enumerate(turns) if speaks]
    calls = [answered(place) for place, (speaks, _) in enumerate(turns) if not speaks]
    notes = Notes()
    context, steps = dialogue(said, calls, notes)
    assert all(step.action.rpartition("\n")[2] == '{"name":"f","arguments":{}}' for step in steps)
    spoken = [one.text for one in said if one.text.strip()]
    left = notes.metadata().get("unanswered_requests", 0)
    told = "\n".join([context, *(step.action for step in steps)])
    assert all(words in told for words in spoken[: len(spoken) - left])
    assert sum(step.action.count("User: ") for step in steps) + left <= len(spoken)


def test_a_call_without_a_name_is_its_text_and_never_empty():
    notes = Notes()
    assert call_text(Call("", "f", {"x": 1}), "here", notes) == '{"name":"f","arguments":{"x":1}}'
    assert call_text(Call("", "", "f(x"), "here", notes) == "f(x"
    assert call_text(Call("", "", "\0"), "here", notes) == r"'\x00'"
    with pytest.raises(SchemaError, match="here: the arguments of 'f' are no JSON"):
        call_text(Call("", "f", {"x": float("nan")}), "here", notes)
