"""Theorem 3: freezing phi and omega at their initial values errs by O(t^2), within a bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from theory import REGIMES, Coefficient, Shape, fast, frozen_error, oscillatory, slow, step


def reals(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers whose squares do not underflow."""
    return st.floats(low, high).map(lambda value: round(value, 6))


SHAPES = st.one_of(
    st.just(slow()),
    st.floats(0.5, 8.0).map(fast),
    st.builds(step, st.floats(0.1, 0.9), st.floats(0.01, 0.2)),
    st.floats(0.25, 4.0).map(oscillatory),
)
PHIS = st.builds(Coefficient, reals(-3.0, 3.0), reals(-2.0, 2.0), SHAPES)
OMEGAS = st.builds(Coefficient, reals(0.01, 8.0), reals(-0.9, 0.9), SHAPES)
SLACK = 1e-11  # what the integration may err


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(PHIS, OMEGAS)
def test_theorem_3_holds_on_the_unit_interval(phi: Coefficient, omega: Coefficient) -> None:
    result = frozen_error(phi, omega, np.linspace(0.0, 1.0, 101))
    assert (result.error <= result.bound + SLACK).all()


@settings(max_examples=40, deadline=None)
@given(PHIS, OMEGAS, st.floats(0.1, 10.0))
def test_half_the_bound_without_the_exponential_holds_on_any_interval(
    phi: Coefficient, omega: Coefficient, horizon: float
) -> None:
    phi, omega = (Coefficient(c.base, c.amplitude, c.shape, horizon) for c in (phi, omega))
    result = frozen_error(phi, omega, np.linspace(0.0, horizon, 101))
    assert (result.error <= result.sharp_bound + SLACK).all()
    assert (2.0 * result.sharp_bound <= result.bound * (1.0 + 1e-9)).all()


def test_no_constant_below_one_half_would_do() -> None:
    """A target that drifts past a circuit without leak: the error is L_phi t^2 / 2 and the bound is met."""
    phi, omega = Coefficient(1.0, 1.0, slow()), Coefficient(1e-9, 0.0, slow())
    result = frozen_error(phi, omega, np.linspace(0.0, 1.0, 11))
    np.testing.assert_allclose(result.error, result.sharp_bound, rtol=1e-6, atol=SLACK)


@settings(max_examples=20, deadline=None)
@given(reals(-3.0, 3.0), reals(0.01, 8.0), SHAPES)
def test_freezing_what_does_not_move_is_exact(phi: float, omega: float, shape: Shape) -> None:
    result = frozen_error(Coefficient(phi, 0.0, shape), Coefficient(omega, 0.0, shape), np.linspace(0.0, 1.0, 21))
    assert result.error.max() < SLACK
    assert result.bound.max() == 0.0


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([slow(), fast(), oscillatory(0.5)]),
    st.floats(0.2, 2.0),
    st.floats(0.3, 3.0),
    st.floats(0.1, 0.9),
    st.floats(-0.9, 0.9),
)
def test_the_error_shrinks_with_the_square_of_time(
    shape: Shape, phi: float, omega: float, phi_amplitude: float, omega_amplitude: float
) -> None:
    t = np.array([0.00025, 0.0005, 0.001])
    moving = frozen_error(
        Coefficient(phi, phi_amplitude, shape), Coefficient(omega, omega_amplitude, shape), np.r_[0.0, t]
    )
    orders = np.diff(np.log2(moving.error[1:]))
    np.testing.assert_allclose(orders, 2.0, atol=0.03)


@pytest.mark.parametrize("name", REGIMES)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_regime_has_the_variation_and_the_slope_it_claims(name: str, sign: int) -> None:
    coefficient = Coefficient.of_variation(3.51, 0.5, REGIMES[name](), 5.0, sign)
    assert coefficient.variation == pytest.approx(3.51, rel=1e-9)
    t = np.linspace(0.0, 5.0, 100_001)
    values = coefficient(t)
    assert (values[-1] - values[len(values) // 10]) * sign > 0 or name == "oscillatory"
    steepest = np.abs(np.diff(values) / np.diff(t)).max()
    assert steepest <= coefficient.lipschitz * (1.0 + 1e-9)
    assert steepest == pytest.approx(coefficient.lipschitz, rel=1e-3)


@settings(max_examples=30, deadline=None)
@given(
    st.builds(Coefficient, reals(0.1, 3.0), reals(-0.4, 0.4), SHAPES),
    st.builds(Coefficient, reals(0.1, 8.0), reals(-0.4, 0.4), SHAPES),
)
def test_the_relative_error_is_no_more_than_both_coefficients_have_moved(phi: Coefficient, omega: Coefficient) -> None:
    t = np.linspace(0.0, 1.0, 201)
    result = frozen_error(phi, omega, t)
    moved = [np.abs(c(np.linspace(0.0, 1.0, 20_001)) / c(np.zeros(1)) - 1.0).max() for c in (phi, omega)]
    assert result.percent.max() <= 100.0 * ((1.0 + moved[1]) / (1.0 - moved[0]) - 1.0) + 1e-6
