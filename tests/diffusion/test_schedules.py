"""Mask schedules: end points, derivatives and the integral that makes every schedule the same objective."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maskworld.diffusion.schedules import SCHEDULES, loss_weight, mask_rate

T = np.linspace(0, 1, 1001, dtype=np.float32)
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)


@each_schedule
def test_the_keep_rate_falls_from_one_to_zero(schedule):
    alpha = np.asarray(schedule.alpha(T))
    np.testing.assert_allclose(alpha[[0, -1]], [1, 0], atol=1e-6)
    assert (np.diff(alpha) < 0).all()


@each_schedule
def test_the_derivative_is_that_of_the_keep_rate(schedule):
    got = np.asarray(schedule.alpha_derivative(T))
    np.testing.assert_allclose(got, jax.jit(jax.vmap(jax.grad(schedule.alpha)))(T), atol=1e-5)
    differences = np.diff(np.asarray(schedule.alpha(T), np.float64)) * (len(T) - 1)
    np.testing.assert_allclose((got[1:] + got[:-1]) / 2, differences, atol=1e-3)


@each_schedule
@pytest.mark.parametrize("minimum", [1e-5, 1e-3, 0.2])
def test_the_mask_rate_rises_from_the_minimum_to_one_and_bounds_the_weight(schedule, minimum):
    rate, weight = mask_rate(schedule, T, minimum), loss_weight(schedule, T, minimum)
    np.testing.assert_allclose(rate[jnp.array([0, -1])], [minimum, 1], atol=1e-6)
    assert (np.diff(rate) > 0).all()
    assert np.isfinite(weight).all()
    assert (weight >= -1e-6).all() and (weight <= 1.001 * np.pi / 2 / minimum).all()


@each_schedule
def test_the_weight_is_the_derivative_of_the_log_mask_rate(schedule):
    slope = jax.jit(jax.vmap(jax.grad(lambda t: jnp.log(mask_rate(schedule, t, 1e-2)))))
    np.testing.assert_allclose(loss_weight(schedule, T, 1e-2), slope(T), rtol=1e-4, atol=1e-5)


@each_schedule
@pytest.mark.parametrize("power", [0, 1, 3])
def test_the_expected_loss_does_not_depend_on_the_schedule(schedule, power):
    """A toy whose cross-entropy is p^n at mask rate p: E_t[w p p^n] is the integral of p^n from the minimum to 1."""
    minimum = 0.05
    t = (np.arange(20_000, dtype=np.float32) + 0.5) / 20_000
    rate = np.asarray(mask_rate(schedule, t, minimum), np.float64)
    got = (np.asarray(loss_weight(schedule, t, minimum), np.float64) * rate ** (power + 1)).mean()
    np.testing.assert_allclose(got, (1 - minimum ** (power + 1)) / (power + 1), rtol=1e-4)
