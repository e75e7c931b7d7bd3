import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskworld.data.sources.common.pairing import Call, Result, action_text, pair, parse_arguments

ids = st.sampled_from(["", "a", "b", "c"])
events = st.lists(st.booleans().flatmap(lambda call: st.tuples(st.just(call), ids)), max_size=20).map(
    lambda kinds: [Call(i, str(n), {}) if call else Result(i, str(n), n) for n, (call, i) in enumerate(kinds)]
)


@given(events)
def test_nothing_is_used_twice_or_lost_and_calls_keep_their_order(chat):
    found = pair(chat)
    calls = [e for e in chat if isinstance(e, Call)]
    results = [e for e in chat if isinstance(e, Result)]
    used_calls = [int(p.call.name) for p in found.pairs]
    used_results = [p.result.message for p in found.pairs]
    assert used_calls == sorted(set(used_calls))
    assert len(set(used_results)) == len(used_results)
    assert len(found.pairs) + found.unpaired_calls == len(calls)
    assert len(found.pairs) + found.orphan_results == len(results)
    assert all(int(p.call.name) < p.result.message for p in found.pairs)


@given(st.permutations(range(5)))
def test_parallel_results_in_any_order_find_their_calls(order):
    chat = [Call(f"id{n}", str(n), {}) for n in range(5)] + [Result(f"id{n}", str(n)) for n in order]
    assert [(p.call.name, p.result.text) for p in pair(chat).pairs] == [(str(n), str(n)) for n in range(5)]


@given(st.lists(ids, max_size=10))
def test_reused_and_missing_ids_pair_one_after_another(names):
    chat = [e for n, i in enumerate(names) for e in (Call(i, str(n), {}), Result(i, str(n)))]
    assert [(p.call.name, p.result.text) for p in pair(chat).pairs] == [(str(n), str(n)) for n in range(len(names))]


def test_an_unknown_id_falls_back_to_the_oldest_pending_call():
    found = pair(
        [Call("a", "first", {}), Call("b", "second", {}), Result("b", "2"), Result("z", "1"), Result("a", "3")]
    )
    assert [(p.call.name, p.result.text) for p in found.pairs] == [("first", "1"), ("second", "2")]
    assert found.orphan_results == 1


@pytest.mark.parametrize(
    ("given", "meant"),
    [(None, {}), ("", {}), ("{}", {}), ({"b": 1}, {"b": 1}), ('{"b": 1, "a": "{}"}', {"b": 1, "a": "{}"})]
    + [(raw, raw) for raw in ("{", "[1]", '{"a": NaN}', '{"a": 1e999}', '{"a": ' + "[" * 100_000, "9" * 5000)],
    ids=range(11),
)
def test_arguments_are_parsed_once_or_kept_raw(given, meant):
    assert parse_arguments(given) == meant


@pytest.mark.parametrize("value", [5, [], True])
def test_arguments_of_another_type_are_refused(value):
    with pytest.raises(ValueError, match="must be an object"):
        parse_arguments(value)


def test_the_action_keeps_the_order_of_the_keys_and_its_letters():
    assert action_text("f", {"b": "é", "a": [1]}) == '{"name":"f","arguments":{"b":"é","a":[1]}}'
    assert json.loads(action_text("f", "{cut"))["arguments"] == "{cut"
    with pytest.raises(ValueError, match="JSON"):
        action_text("f", {"a": float("nan")})


def test_arguments_nested_too_deeply_are_refused():
    deep: dict = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(ValueError, match="deeply"):
        action_text("f", deep)
