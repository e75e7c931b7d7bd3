"""How several steps become one line of metrics."""

import jax.numpy as jnp
import pytest

from maskworld.training.fingerprint import fingerprint
from maskworld.training.measures import Clock, Window, summarize


def test_means_are_weighted_by_the_tokens_they_stand_for():
    steps = [
        {"loss": 2.0, "cross_entropy": 1.0, "target_tokens": 10.0, "masked_tokens": 1.0, "grad_norm": 1.0},
        {"loss": 5.0, "cross_entropy": 4.0, "target_tokens": 30.0, "masked_tokens": 2.0, "grad_norm": 3.0},
    ]
    line = summarize(steps)
    assert line["loss"] == pytest.approx((2 * 10 + 5 * 30) / 40), "not the mean of means"
    assert line["cross_entropy"] == pytest.approx((1 + 8) / 3)
    assert (line["target_tokens"], line["masked_tokens"], line["grad_norm"]) == (40.0, 3.0, 2.0)


def test_a_window_without_targets_is_zero_and_not_nan():
    assert summarize([{"loss": 0.0, "target_tokens": 0.0}]) == {"loss": 0.0, "target_tokens": 0.0}


def ticks(*times):
    return iter(times).__next__


def test_a_window_gives_speed_and_counts_waiting_only_where_the_devices_idled():
    metrics = {"loss": jnp.float32(3.0), "target_tokens": jnp.float32(2.0)}
    metrics["loss"].block_until_ready()  # done before the next batch came: the devices had nothing to do
    window = Window(now=ticks(10.0, 14.0))
    for _ in range(2):
        window.add(metrics, tokens=100)
        window.settle(fetch_seconds=0.5)
    line = window.close()
    assert line["tokens_per_second"] == 50.0 and line["step_seconds"] == 2.0 and line["loss"] == 3.0
    assert line["data_wait"] == 0.25

    class Busy:
        def is_ready(self):
            return False

    hidden = Window(now=ticks(0.0))
    hidden.add({"loss": Busy()}, tokens=1)
    hidden.settle(fetch_seconds=0.5)
    assert hidden._data_seconds == 0.0


def test_the_clock_goes_on_where_the_run_was_stopped():
    clock = Clock(step=100, seconds_before=50.0, now=ticks(0.0, 10.0, 20.0))
    assert clock.total == 60.0
    pace = clock.pace(140, 200, {"loss": 1.0, "tokens_per_second": 5.0, "data_wait": 0.0})
    assert pace.seconds_left == pytest.approx(60 * 20 / 40)


def test_any_flipped_bit_and_any_swap_of_arrays_changes_the_fingerprint():
    tree = {"a": jnp.arange(8.0), "b": jnp.ones(8, jnp.bfloat16), "c": jnp.array([True, False]), "d": jnp.int32(3)}
    whole = fingerprint(tree)
    assert whole == fingerprint(dict(tree)) and 0 <= whole < 2**32
    assert fingerprint(tree | {"a": tree["a"].at[3].set(3.0000002)}) != whole
    assert fingerprint(tree | {"b": tree["b"].at[0].set(-1)}) != whole
    assert fingerprint(tree | {"d": jnp.int32(2)}) != whole
    assert fingerprint([jnp.ones(2), jnp.zeros(2)]) != fingerprint([jnp.zeros(2), jnp.ones(2)])
