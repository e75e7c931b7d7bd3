import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_trajectories import SOURCES_WITH_FILES, corpus_trajectories, sample_trajectories

from maskworld.data.person_names import ALSO_WORDS, NAMES_BY_LENGTH
from maskworld.data.renaming import rename_entities, renamed, renaming
from maskworld.data.schema import Step, Trajectory, trajectory_from_json, trajectory_to_json

USER = {
    "user_id": "mia_li_3668",
    "name": {"first_name": "Mia", "last_name": "Li"},
    "email": "mia.li3818@example.com",
    "address": {"street": "12 Elm Street", "zip": "10145", "city": "Limoges"},
    "payment_methods": {"credit_card_7891819": {"source": "credit_card", "last_four": "4388", "amount": 163.5}},
    "reservations": ["60RX9E", "H9ZU1C"],
    "dob": "1990-04-05",
}
FLIGHT = {"reservation_id": "IFOYYZ", "flight_number": "HAT023", "origin": "JFK", "price": 3668, "status": "available"}
BOOKING = Trajectory(
    id="tau/mia_li_3668",
    environment="tau",
    initial_state="Users: mia_li_3668 (MIA LI)",
    task_context="You are Mia Li (mia_li_3668) and want to change H9ZU1C. Limit: $3668.",
    initial_observation="Hello Mia",
    tool_schemas=('{"name": "get_user_details", "parameters": {"user_id": {"type": "string"}}}',),
    domain_rules=("Never tell HAT023 from HAT024. Mia is an example.",),
    directives=("Answer as Mia would.",),
    steps=(
        Step('{"name":"get_user_details","arguments":{"user_id":"mia_li_3668"}}', json.dumps(USER)),
        Step(
            '{"name":"note","arguments":{"text":"line\\nMia, then\\tLi \\"H9ZU1C\\""}}',
            json.dumps([FLIGHT, FLIGHT]),
            facts_added=("booked HAT023",),
            facts_deleted=("free HAT023",),
            directives=("Name HAT023.",),
        ),
    ),
    group="tau/mia_li_3668",
    metadata={"user": "mia_li_3668"},
)


def texts(trajectory: Trajectory) -> Iterator[str]:
    """All that is renamed, in a fixed order."""
    yield from (trajectory.initial_state, trajectory.task_context, trajectory.initial_observation)
    yield from (*trajectory.tool_schemas, *trajectory.domain_rules, *trajectory.directives)
    for step in trajectory.steps:
        yield from (step.action, step.observation, *step.facts_added, *step.facts_deleted, *step.directives)


def inverse(mapping: dict[str, str]) -> dict[str, str]:
    return {new: old for old, new in mapping.items()}


def shape(text: str) -> str:
    """The text with all letters and digits made equal: what renaming must keep."""
    return re.sub("[0-9]", "0", re.sub("[A-Z]", "A", re.sub("[a-z]", "a", text)))


def structure(value):
    if isinstance(value, dict):
        return {"members": [structure(entry) for entry in value.values()]}
    return [structure(entry) for entry in value] if isinstance(value, list) else type(value)


def check(trajectory: Trajectory, seed: int) -> dict[str, str]:
    """All properties of a renaming; returns it."""
    mapping = renaming(trajectory, seed)
    found = rename_entities(trajectory, seed)
    assert found == renamed(trajectory, mapping)
    assert renamed(found, inverse(mapping)) == trajectory
    assert len(inverse(mapping)) == len(mapping)
    whole = "\n".join(texts(trajectory))
    tokens = set(re.findall(r"\w+", whole))
    for old, new in mapping.items():
        assert old in whole and new not in tokens
        assert shape(old) == shape(new)
    for before, after in zip(texts(trajectory), texts(found), strict=True):
        assert shape(before) == shape(after)
        try:
            decoded = json.loads(before)
        except ValueError:
            continue
        assert structure(json.loads(after)) == structure(decoded)
    assert replace(found, steps=(), **dict.fromkeys(CONTEXT, "")) == replace(
        trajectory, steps=(), **dict.fromkeys(CONTEXT, "")
    )
    return mapping


CONTEXT = ("initial_state", "task_context", "initial_observation", "tool_schemas", "domain_rules", "directives")


def test_people_and_ids_get_other_names_everywhere():
    mapping = check(BOOKING, 0)
    assert mapping.keys() == {
        *("Mia", "Li", "MIA", "LI", "mia", "mia_li_3668", "li3818"),
        *("credit_card_7891819", "60RX9E", "H9ZU1C", "IFOYYZ", "HAT023"),
    }
    first, last = mapping["Mia"].lower(), mapping["Li"].lower()
    assert mapping["MIA"] == first.upper() and mapping["LI"] == last.upper()
    assert re.fullmatch(f"{first}_{last}_[0-9]{{4}}", mapping["mia_li_3668"])
    assert re.fullmatch(f"{last}[0-9]{{4}}", mapping["li3818"])
    assert mapping["credit_card_7891819"].startswith("credit_card_") and mapping["HAT023"].startswith("HAT0")
    found = rename_entities(BOOKING, 0)
    assert f"{mapping['Mia']} is an example" in found.domain_rules[0]
    assert found.steps[1].facts_added == (f"booked {mapping['HAT023']}",)
    assert f"line\\n{mapping['Mia']}, then\\t{mapping['Li']}" in found.steps[1].action
    seen = json.loads(found.steps[0].observation)
    assert seen["email"] == f"{first}.{mapping['li3818']}@example.com"
    for kept in ("address", "dob"):
        assert seen[kept] == USER[kept]
    assert (found.id, found.group, found.metadata) == (BOOKING.id, BOOKING.group, BOOKING.metadata)
    assert found.tool_schemas == BOOKING.tool_schemas


def test_seeds_and_trajectories_differ_and_repeat():
    assert rename_entities(BOOKING, 1) == rename_entities(BOOKING, 1)
    names = {renaming(BOOKING, seed)["mia_li_3668"] for seed in range(20)}
    assert len(names) == 20
    assert renaming(replace(BOOKING, id="other"), 1) != renaming(BOOKING, 1)


def test_words_of_schemas_and_calls_are_never_renamed():
    schema = '{"name": "HAT023", "parameters": {"Mia": {"type": "string"}, "mia": {}, "60RX9E": {}}}'
    mapping = check(replace(BOOKING, tool_schemas=(schema,)), 0)
    assert not {"HAT023", "Mia", "MIA", "mia", "60RX9E"} & mapping.keys()
    assert mapping["mia_li_3668"].startswith("mia_")
    steps = (
        Step('{"name":"H9ZU1C","arguments":{"60RX9E":1}}', json.dumps(USER)),
        Step("IFOYYZ(HAT023=1)", json.dumps(FLIGHT)),
    )
    assert not {"HAT023", "IFOYYZ", "60RX9E", "H9ZU1C"} & check(replace(BOOKING, steps=steps), 0).keys()


@pytest.mark.parametrize(
    "observation",
    [
        '{"id": "2024", "number": "20240517", "zip": "10145", "price": 12345678}',
        '{"first_name": "Brown", "last_name": "young", "patient_name": "May Hill"}',
        '["SHA256", "#FF8F00", "V2", "page_1", "task_1", "STAGE2", "economy"]',
        '{"user_id": "user2", "session_token": "abc", "status_id": "open", "id": 9083642334}',
        "credit_card_7891819 and H9ZU1C without quotes, ana@example.com",
        "import numpy as np\nx1234 = func_2023(1234567)",
    ],
)
def test_what_is_no_safe_name_stays(observation):
    assert renaming(Trajectory("t", "e", "", "", (Step("look", observation),)), 0) == {}


@pytest.mark.parametrize(
    ("observation", "name"),
    [
        ('{"product_id": "9083642334"}', "9083642334"),
        ('["9083642334"]', "9083642334"),
        ('{"order": "#W2378156"}', "W2378156"),
        ('{"token": "a9s8d7f6g5"}', "a9s8d7f6g5"),
        ('{"text": "{\\"flightNumber\\": \\"HAT023\\"}"}', "HAT023"),
        ('{"doctor_name": "Dr. Johnson"}', "Johnson"),
        ("click[B09QQLDJ93]", "B09QQLDJ93"),
    ],
)
def test_ids_and_names_of_the_sources_are_found(observation, name):
    mapping = check(Trajectory("t", "e", "", "", (Step("look", observation),)), 0)
    assert mapping.keys() == {name}
    if name.startswith("B0"):
        assert mapping[name].startswith("B0")


def test_a_name_behind_a_backslash_stays_everywhere():
    steps = (Step("look", json.dumps(USER)), Step(r"cd C:\Mia", "H9ZU1C"))
    mapping = check(replace(BOOKING, steps=steps), 0)
    assert "Mia" not in mapping and "H9ZU1C" in mapping and mapping["mia_li_3668"].startswith("mia_")


def test_no_name_is_chosen_that_the_trajectory_has():
    """All names of three letters but one are taken: that one it must be, whatever the seed."""
    *others, last = (name for name in NAMES_BY_LENGTH[3] if name != "mia")
    taken = replace(BOOKING, initial_state=" ".join(name.capitalize() for name in others))
    assert {check(taken, seed)["Mia"] for seed in range(5)} == {last.capitalize()}
    assert "Mia" not in check(replace(taken, directives=(last,)), 0)


def test_the_names_are_words_of_their_length_and_nothing_else():
    for length, names in NAMES_BY_LENGTH.items():
        assert len(set(names)) == len(names)
        assert all(re.fullmatch(f"[a-z]{{{length}}}", name) for name in names)
        assert ALSO_WORDS.isdisjoint(names)


@pytest.mark.parametrize("run", ["\\", '\\"', "a", "_", ".", '"', "a1@", "[('", '"first_name": "', "\\u12"])
def test_long_runs_of_one_sign_are_renamed_and_back(run):
    """Half a megabyte takes far below a second; a pattern that tries every start of a run would take hours."""
    text = run * (500_000 // len(run))
    check(replace(BOOKING, steps=(Step("look", text), *BOOKING.steps)), 0)


words = st.sampled_from(
    ["Mia", "mia", "MIA", "Li", "li", "mia_li_3668", "H9ZU1C", "HAT023", "credit_card_7891819", "li3818", "60RX9E"]
    + ["\\", "\n", "\\n", '"', ".", "_", "@x.de ", "u00e9", "é", " ", "tom", "Tom", "u", "B09QQLDJ93", "Ω", "\\u", "0"]
)
jumbles = st.lists(words, max_size=12).map("".join)
records = st.fixed_dictionaries(
    {"user_id": st.sampled_from(["mia_li_3668", "tom_wu_12"]), "first_name": st.sampled_from(["Mia", "Tom", "Noé"])},
    optional={"id": jumbles, "text": jumbles, "codes": st.lists(st.sampled_from(["H9ZU1C", "60RX9E", "9083642334"]))},
)


@given(st.lists(st.tuples(jumbles, records, jumbles), min_size=1, max_size=3), jumbles, st.integers(0, 100))
@settings(max_examples=300)
def test_renaming_back_gives_the_same_bytes_whatever_stands_around_the_names(turns, context, seed):
    steps = tuple(Step("act " + action, json.dumps(seen) + rest) for action, seen, rest in turns)
    nested = tuple(Step("act", json.dumps({"text": json.dumps(seen)})) for _, seen, _ in turns)
    check(replace(BOOKING, steps=steps + nested, task_context=context), seed)


@given(st.lists(words, min_size=2, max_size=6), st.integers(0, 50))
def test_names_are_equal_after_if_and_only_if_they_were_before(chosen, seed):
    observations = tuple(
        Step("say", json.dumps({"user_id": "mia_li_3668", "first_name": "Mia", "note": w})) for w in chosen
    )
    found = rename_entities(replace(BOOKING, steps=observations), seed)
    after = [json.loads(step.observation)["note"] for step in found.steps]
    for one, new_one in zip(chosen, after, strict=True):
        for other, new_other in zip(chosen, after, strict=True):
            assert (one == other) == (new_one == new_other)


@pytest.mark.parametrize("trajectory", sample_trajectories(), ids=lambda t: t.id)
def test_real_trajectories_are_renamed_and_back(trajectory):
    for seed in (0, 1):
        check(trajectory, seed)
    found = rename_entities(trajectory, 0)
    assert trajectory_from_json(trajectory_to_json(found)) == found


@pytest.mark.parametrize("name", SOURCES_WITH_FILES)
def test_the_corpus_is_renamed_and_back(name):
    changed = sum(bool(check(trajectory, 3)) for trajectory in corpus_trajectories(name)[:120])
    assert changed == {"tau_bench": 88, "tau2_bench": 6, "toolathlon": 2, "webshop": 120}.get(name, 0)
