import copy
import json

import pytest
from foreign_records import SAMPLES, check_broken, convert, corpus, load, one_member_replaced
from hypothesis import given, settings

from maskworld.data.schema import SchemaError, Trajectory
from maskworld.data.sources.common.base import Origin
from maskworld.data.sources.tau2_bench import NO_TRANSITION, SOURCE

PATHS = sorted((SAMPLES / "tau2_bench").glob("*.json"))


def agent_results(simulation):
    names = {c["id"]: c["name"] for m in simulation["messages"] for c in m.get("tool_calls") or []}
    told = [m for m in simulation["messages"] if m["role"] == "tool" and m["requestor"] == "assistant"]
    return [(names[m["id"]], m["content"]) for m in told if names[m["id"]] not in NO_TRANSITION]


def test_the_eight_calls_of_users_in_the_corpus_are_left_out():
    found = [t for path in corpus("tau2_bench", "results.json") for t in convert(SOURCE, load(path), path)]
    assert len(found) == len({t.id for t in found}) == 16
    assert sum(len(t.steps) for t in found) == 52
    assert sum(t.metadata.get("user_calls", 0) for t in found) == 8


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_steps_are_the_agents_calls(path):
    record = load(path)
    assert SOURCE.matches(record, path)
    (found,) = convert(SOURCE, record, path)
    actions = [json.loads(s.action) for s in found.steps]
    assert [(a["name"], s.observation) for a, s in zip(actions, found.steps, strict=True)] == agent_results(
        record["simulations"][0]
    )
    assert all(isinstance(a["arguments"], dict) for a in actions)
    assert found.steps[-1].reward == record["simulations"][0]["reward_info"]["reward"]
    assert found.domain_rules


def test_a_broken_simulation_is_named_and_costs_no_other():
    record = load(PATHS[0])
    broken = copy.deepcopy(record["simulations"][0])
    broken["messages"] = 5
    record["simulations"].insert(0, broken)
    error, found = SOURCE.trajectories(record, Origin(PATHS[0], 0))
    assert isinstance(error, SchemaError) and error.field == "simulations[0].messages"
    assert isinstance(found, Trajectory)


@given(one_member_replaced(load(PATHS[0])))
@settings(max_examples=25, deadline=None)
def test_one_broken_member_of_tau2_bench_is_refused_or_harmless(record):
    check_broken(SOURCE, record, PATHS[0])


def test_what_lies_in_the_folder_of_a_domain_accompanies_the_runs():
    folder = PATHS[0].parent / "domains" / "airline"
    assert all(SOURCE.accompanies(folder / name) for name in ("policy.md", "tasks.json", "db.toml"))
    assert not SOURCE.accompanies(PATHS[0])
