import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_data import trajectory

from maskworld.config_rules import weights_of_sources
from maskworld.data.mixture import Mixture, copies, source_of
from maskworld.errors import ConfigError


def some(count: int, source: str = "shop"):
    return [trajectory(["a"], id=f"{source}-{index}", source=source) for index in range(count)]


def test_a_source_is_named_or_the_name_of_the_environment():
    assert source_of(trajectory(["a"], source="tau_bench", environment="retail")) == "tau_bench"
    assert source_of(trajectory(["a"], environment="tau2/retail")) == "tau2"
    assert source_of(trajectory(["a"], environment="alfworld")) == "alfworld"


@given(st.floats(0, 5), st.integers(0, 10**9))
def test_a_trajectory_is_taken_as_often_as_the_weight_rounded_down_or_up(weight, index):
    found = copies(trajectory(["a"], id=str(index), source="shop"), {"shop": weight})
    assert int(weight) <= found <= -(-weight // 1)


def test_a_share_of_the_trajectories_has_another_copy_and_a_higher_weight_keeps_it():
    counts = {weight: [copies(one, {"shop": weight}) for one in some(2000)] for weight in (0.25, 0.5, 1.5)}
    assert 400 < sum(counts[0.25]) < 600 and 900 < sum(counts[0.5]) < 1100
    assert counts[1.5] == [1 + count for count in counts[0.5]]
    assert all(few <= many for few, many in zip(counts[0.25], counts[0.5], strict=True))


def test_sources_draw_apart_and_the_choice_ignores_the_order():
    weights = {"shop": 0.5, "bank": 0.5}
    shops, banks = ({one.id.split("-")[1] for one in some(200, s) if copies(one, weights)} for s in weights)
    assert shops != banks
    mixed = [*some(200), *some(200, "bank")]
    forward, backward = (
        sorted(one.id for _, one in Mixture(weights).rounds(lambda _, order=order: iter(order)))
        for order in (mixed, mixed[::-1])
    )
    assert forward == backward


def test_copies_come_in_rounds_and_the_counts_tell_of_all():
    mixture = Mixture({"shop": 3, "bank": 0})
    rounds = []

    def read(number):
        rounds.append(number)
        return itertools.chain(some(4), some(2, "bank"), some(1, "other"))

    ids = [one.id for _, one in mixture.rounds(read)]
    shops = [f"shop-{index}" for index in range(4)]
    assert ids == [*shops, "other-0", *shops, *shops]
    assert rounds == [0, 1, 2]
    assert mixture.to_json() == {
        "bank": {"trajectories": 2, "rendered": 0},
        "other": {"trajectories": 1, "rendered": 1},
        "shop": {"trajectories": 4, "rendered": 12},
    }


def test_a_source_that_does_not_occur_is_refused_after_the_first_round():
    rounds = Mixture({"bnak": 2}).rounds(lambda _: iter([*some(1), *some(1, "bank")]))
    assert [next(rounds)[1].id, next(rounds)[1].id] == ["shop-0", "bank-0"]
    with pytest.raises(ConfigError, match="no trajectory has the source bnak; did you mean bank"):
        next(rounds)
    with pytest.raises(ConfigError, match="source webshop; there are bank, x"):
        list(Mixture({"webshop": 2}).rounds(lambda _: iter([*some(1, "x"), *some(1, "bank")])))


@pytest.mark.parametrize(
    "entry", ["shop", "shop=", "=2", "shop=two", "shop=-1", "shop=nan", "shop=inf", "shop=101", "", "a=b=2"]
)
def test_entries_that_are_no_weight_are_refused_with_the_field(entry):
    with pytest.raises(ConfigError, match="data.source_weights: .* is no weight of a source"):
        weights_of_sources(["bank=1", entry])


def test_weights_are_read_and_no_source_has_two():
    assert weights_of_sources(["shop=0.5", " bank = 2 ", "x=0"]) == {"shop": 0.5, "bank": 2, "x": 0}
    with pytest.raises(ConfigError, match="names shop twice"):
        weights_of_sources(["shop=0.5", "shop=1"])
