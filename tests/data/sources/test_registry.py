"""Every source is found by name, and claims its own records and no other's."""

import json
from pathlib import Path

import pytest
from foreign_records import SAMPLES, check_broken, convert, json_values, load
from hypothesis import given

from maskworld.data.schema import SchemaError
from maskworld.data.sources import registry
from maskworld.errors import DataError

MODULES = {"registry", "__init__"}
TASKS_ONLY = {"occubench"}
FILES = [
    path
    for path in sorted(SAMPLES.rglob("*"))
    if path.suffix in {".json", ".jsonl", ".traj"}
    and not any(source.accompanies(path) for source in registry.SOURCES.values())
]


def records(path):
    """What a file's reader would hand out first: a line, an entry of a list of objects, or the whole document."""
    try:
        document = load(path)
    except json.JSONDecodeError:  # JSON Lines, whatever its name ends in
        document = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    whole = registry.detect_source(document, path)
    return document if whole or not isinstance(document, list) else document[0]


def gathered(source, path):
    """What `trajectories` is given first: a record, or all records of the first one's name."""
    if source.gathered_by is None:
        return records(path)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [line for line in lines if source.gathered_by(line) == source.gathered_by(lines[0])]


def test_every_module_of_the_folder_is_registered():
    folder = Path(registry.__file__).parent
    assert {path.stem for path in folder.glob("*.py")} - MODULES == set(registry.SOURCES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_sample_is_claimed_by_the_source_it_is_filed_under(path):
    source = registry.detect_source(records(path), path)
    assert source is not None and source.name == path.relative_to(SAMPLES).parts[0]
    if source.name in TASKS_ONLY:
        with pytest.raises(SchemaError, match="tasks only"):
            convert(source, gathered(source, path), path)
    else:
        assert convert(source, gathered(source, path), path)


@given(json_values)
def test_no_value_makes_a_source_fail_in_another_way_than_it_says(value):
    for source in registry.SOURCES.values():
        check_broken(source, value, Path("x.json"))


def test_an_unknown_name_is_refused_and_the_nearest_named():
    with pytest.raises(DataError, match="did you mean swe_agent"):
        registry.source_named("swe-agent")
    with pytest.raises(DataError, match="there are .*intercode"):
        registry.source_named("zzz")


def test_what_two_sources_claim_is_left_to_the_user(monkeypatch):
    webshop = registry.SOURCES["webshop"]
    monkeypatch.setitem(registry.SOURCES, "other", webshop)
    record = records(SAMPLES / "webshop" / "derived_agenttraj_style.json")
    with pytest.raises(DataError, match="looks like .*give --source"):
        registry.detect_source(record, Path("a.json"))
