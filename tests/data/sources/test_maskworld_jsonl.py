import json
from dataclasses import replace

import pytest
from foreign_records import REPOSITORY, SAMPLES, check_broken, convert, load, one_member_replaced
from hypothesis import given, settings

from maskworld.data.schema import SchemaError, trajectory_to_json
from maskworld.data.sources.maskworld_jsonl import SOURCE
from maskworld.data.trajectories import read_trajectories

PATH = SAMPLES / "maskworld_jsonl" / "rooms.jsonl"
ROWS = [json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()]


def test_a_recording_is_what_its_own_reader_reads():
    assert all(SOURCE.matches(row, PATH) for row in ROWS)
    found = [trajectory for row in ROWS for trajectory in convert(SOURCE, row, PATH)]
    assert found == list(read_trajectories(PATH))
    recorded = read_trajectories(REPOSITORY / "tests" / "data" / "alfworld_rooms" / "test.jsonl.gz")
    assert found == [next(recorded), next(recorded)]


def test_what_a_trajectory_says_of_itself_stays():
    (trajectory,) = convert(SOURCE, ROWS[0], PATH)
    marked = replace(trajectory, source="tau_bench", licence="MIT", model_family="gpt", metadata={"cleaned": ["crlf"]})
    assert convert(SOURCE, json.loads(trajectory_to_json(marked)), PATH) == [marked]


def test_another_version_is_claimed_and_refused_by_name():
    row = ROWS[0] | {"schema": "maskworld.trajectory/9"}
    assert SOURCE.matches(row, PATH)
    with pytest.raises(SchemaError, match="schema: must be 'maskworld.trajectory/1'"):
        convert(SOURCE, row, PATH)
    assert not SOURCE.matches(ROWS[0] | {"schema": "other"}, PATH)
    assert not SOURCE.matches(load(REPOSITORY / "tests" / "data" / "alfworld_rooms" / "manifest.json")["config"], PATH)


@given(one_member_replaced(ROWS[0]))
@settings(max_examples=100, deadline=None)
def test_one_broken_member_is_refused_or_harmless(row):
    check_broken(SOURCE, row, PATH)
