"""The three modes of the logit: theorems, limits, order of convergence, gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nac_drive.policies.nac import logits

phis = st.floats(-5.0, 5.0)
omegas = st.floats(1e-3, 50.0)
spans = st.floats(0.0, 20.0)


def logit(mode: str, phi: float, omega: float, t: float, steps: int = 6) -> float:
    pair = [torch.tensor(v, dtype=torch.float64) for v in (phi, omega, t)]
    return float(logits.MODES[mode](pair[0], pair[1], pair[2], steps))


@settings(deadline=None)
@given(phis, omegas, spans, st.sampled_from(["exact", "euler", "steady"]))
def test_theorem_1_logits_stay_between_zero_and_the_target(phi: float, omega: float, t: float, mode: str) -> None:
    a, target = logit(mode, phi, omega, t), phi / omega
    slack = 1e-12 * abs(target)
    assert min(0.0, target) - slack <= a <= max(0.0, target) + slack


@settings(deadline=None)
@given(phis, omegas, spans)
def test_corollary_1_the_distance_to_the_target_decays_exponentially(phi: float, omega: float, t: float) -> None:
    a, target = logit("exact", phi, omega, t), phi / omega
    assert abs(a - target) <= abs(target) * np.exp(-omega * t) + 1e-12 * abs(target)


@settings(deadline=None)
@given(phis, omegas, spans, st.floats(0.01, 20.0), st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=6))
def test_corollary_2_one_bound_holds_for_all_initial_logits(
    phi: float, omega: float, t: float, largest: float, parts: list[float]
) -> None:
    """Of all |a(0) - a*| <= M, the distance is at most M exp(-omega t), and equal to it where |a(0) - a*| = M.

    The layer starts at 0. A logit that starts at a(0) is a(0) + b, with db/dt = (phi - omega a(0)) - omega b, b(0) = 0.
    """
    target = phi / omega
    starts = [target + largest * part for part in (*parts, -1.0, 1.0)]
    errors = [abs(a + logit("exact", phi - omega * a, omega, t) - target) for a in starts]
    bound, slack = largest * np.exp(-omega * t), 1e-12 * (largest + abs(target))
    assert max(errors) <= bound + slack
    assert errors[-2:] == pytest.approx([bound, bound], abs=slack)


@settings(deadline=None)
@given(st.lists(st.tuples(phis, omegas), min_size=2, max_size=6), spans, st.sampled_from(["exact", "euler", "steady"]))
def test_theorem_1_of_several_connections(connections: list[tuple[float, float]], t: float, mode: str) -> None:
    """phi and omega are sums over connections: the logit stays between 0 and their extreme equilibria."""
    targets = [phi / omega for phi, omega in connections]
    phi, omega = (sum(values) for values in zip(*connections, strict=True))
    slack = 1e-12 * max(map(abs, targets))
    assert min(0.0, *targets) - slack <= logit(mode, phi, omega, t) <= max(0.0, *targets) + slack


@settings(deadline=None)
@given(st.floats(0.01, 5.0), omegas, st.floats(1e-6, 0.5))
def test_corollary_3_is_the_time_to_a_tolerance(phi: float, omega: float, fraction: float) -> None:
    """From a(0) = 0 the distance to a* is the tolerance at t = ln(a* / tolerance) / omega, and less from then on."""
    target, t = phi / omega, -np.log(fraction) / omega
    assert target - logit("exact", phi, omega, t) == pytest.approx(fraction * target, rel=1e-6, abs=1e-14 * target)
    assert target - logit("exact", phi, omega, 1.5 * t) < fraction * target


def test_exact_tends_to_steady() -> None:
    errors = [abs(logit("exact", 0.7, 1.3, t) - logit("steady", 0.7, 1.3, t)) for t in (1.0, 4.0, 16.0, 30.0)]
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 1e-15 / np.exp(-1.0)


def test_exact_keeps_its_precision_for_tiny_omega_t() -> None:
    values = torch.tensor([0.5]), torch.tensor([1e-3]), torch.tensor([1e-4])
    torch.testing.assert_close(logits.exact(*values, 6), torch.tensor([0.5 * 1e-4]), rtol=1e-6, atol=0.0)


def test_euler_is_the_recursion() -> None:
    phi, omega, t, steps = 0.7, 1.3, 2.0, 6
    a = 0.0
    for _ in range(steps):
        a += t / steps * (phi - omega * a)
    assert logit("euler", phi, omega, t, steps) == pytest.approx(a, rel=1e-14)


def test_euler_converges_with_order_one() -> None:
    errors = [abs(logit("euler", 0.7, 1.3, 2.0, n) - logit("exact", 0.7, 1.3, 2.0)) for n in (64, 128, 256, 512)]
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    np.testing.assert_allclose(orders, 1.0, atol=0.02)


def test_euler_takes_more_steps_rather_than_leave_the_stable_region() -> None:
    phi, omega, t = 1.0, 40.0, 1.0
    unstable = 0.0
    for _ in range(6):
        unstable += t / 6 * (phi - omega * unstable)
    assert abs(unstable) > 800.0  # what six plain steps give; the target is 0.025
    assert logit("euler", phi, omega, t, 6) == pytest.approx(phi / omega, rel=1e-6)


@pytest.mark.parametrize("mode", ["exact", "euler", "steady"])
def test_gradcheck_of_the_logits(mode: str) -> None:
    values = [torch.rand(5, dtype=torch.float64).add_(0.1).requires_grad_() for _ in range(3)]
    assert torch.autograd.gradcheck(lambda phi, omega, t: logits.MODES[mode](phi, omega, t, 6), values)


@settings(deadline=None)
@given(phis, st.floats(0.01, 20.0), spans)
def test_equations_56_and_57(phi_value: float, omega_value: float, t_value: float) -> None:
    phi, omega, t = (
        torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (phi_value, omega_value, t_value)
    )
    by_phi, by_omega = torch.autograd.grad(logits.exact(phi, omega, t, 0), (phi, omega))
    p, w, s = phi_value, omega_value, t_value
    expected_phi = (1.0 - np.exp(-w * s)) / w
    expected_omega = -p / w**2 * (1.0 - np.exp(-w * s)) - (0.0 - p / w) * s * np.exp(-w * s)
    assert float(by_phi) == pytest.approx(expected_phi, rel=1e-8, abs=1e-10)
    assert float(by_omega) == pytest.approx(expected_omega, rel=1e-8, abs=1e-8)
