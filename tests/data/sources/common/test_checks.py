import pytest

from maskworld.data.schema import SchemaError
from maskworld.data.sources.common import checks


def test_an_integer_too_long_to_print_is_refused():
    with pytest.raises(SchemaError, match="task_id: is too large"):
        checks.identifier(10**5000, "task_id")
    with pytest.raises(SchemaError, match="reward: is too large"):
        checks.number(10**5000, "reward")


@pytest.mark.parametrize("value", [True, "1", None, float("nan"), float("-inf")])
def test_what_is_no_finite_number_is_refused(value):
    with pytest.raises(SchemaError):
        checks.number(value, "reward")


def test_notes_name_operations_once_and_leave_out_what_is_empty():
    notes = checks.Notes()
    assert notes.observation("a\r\nb\0", "x") == "a\nb"
    assert notes.observation([{"type": "text", "text": "c\r\n"}], "x") == "c\n"
    notes.count("thoughts", 0)
    assert notes.metadata(kept=0.0, empty="", absent=None) == {"kept": 0.0, "cleaned": ["crlf", "nul"]}


@pytest.mark.parametrize("value", [None, 5, {"text": "a"}])
def test_an_observation_must_be_text_or_parts(value):
    with pytest.raises(SchemaError) as caught:
        checks.Notes().observation(value, "trajectory[3].observation")
    assert caught.value.field == "trajectory[3].observation"
