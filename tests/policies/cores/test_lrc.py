"""The liquid-resistance liquid-capacitance network."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.lrc import LRC
from tests.contracts import CoreContract


def sigmoid(x: np.ndarray | float) -> np.ndarray:
    return 1 / (1 + np.exp(-np.asarray(x)))


def softplus(x: np.ndarray | float) -> np.ndarray:
    return np.log1p(np.exp(x))


def slope(core: LRC, u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The paper's equations neuron by neuron.

    Returns dv/dt per frame, and the rate e sigmoid(f). u (F,), v (d,).
    """
    p = {name: parameter.detach().numpy() for name, parameter in core.named_parameters()}
    slopes, rates = np.zeros_like(v), np.zeros_like(v)
    for i in range(len(v)):
        forget = update = softplus(p["conductance"][i])
        for side, sources in (("sensory", u), ("recurrent", v)):
            for j, source in enumerate(sources):
                s = sigmoid(p[f"{side}.gain"][i, j] * (source - p[f"{side}.center"][i, j]))
                forget = forget + softplus(p[f"{side}.weight"][i, j]) * s
                update = update + p[f"{side}.update"][i, j] * s
        a = p["input.weight"][i] @ u + p["input.bias"][i] + p["feedback.weight"][i] @ v
        elastance = sigmoid(a + softplus(p["width"][i])) - sigmoid(a - softplus(p["width"][i]))
        slopes[i] = elastance * (p["leak"][i] * np.tanh(update) - sigmoid(forget) * v[i])
        rates[i] = elastance * sigmoid(forget)
    return slopes, rates


class TestLRC(CoreContract):
    def make_core(self) -> Core:
        return LRC(5, 8)

    @pytest.mark.parametrize("seconds", [0.0, 0.02, 0.3])
    def test_a_step_is_the_implicit_one_of_the_papers_equation(self, seconds: float) -> None:
        torch.manual_seed(0)
        core = LRC(5, 8).double()
        x, v = torch.randn(1, 1, 5, dtype=torch.float64), torch.randn(1, 8, dtype=torch.float64)
        with torch.no_grad():
            _, (after,) = core(x, torch.full((1, 1), seconds, dtype=torch.float64), (v,))
        slopes, rates = slope(core, x[0, 0].numpy(), v[0].numpy())
        expected = v[0].numpy() + seconds / 0.02 * slopes / (1 + seconds / 0.02 * rates)  # v' = v + D dv/dt(v')
        np.testing.assert_allclose(after[0].numpy(), expected, atol=1e-9)

    def test_small_steps_follow_the_differential_equation(self) -> None:
        torch.manual_seed(0)
        core = LRC(5, 8).double()
        x, parts = torch.randn(1, 1, 5, dtype=torch.float64), 2000
        with torch.no_grad():
            y, _ = core(
                x.expand(1, parts, 5), torch.full((1, parts), 0.2 / parts, dtype=torch.float64), core.initial_state(1)
            )
        v = np.zeros(8)
        for _ in range(parts):  # explicit Euler, as the paper's
            v = v + 10.0 / parts * slope(core, x[0, 0].numpy(), v)[0]
        np.testing.assert_allclose(y[0, -1].numpy(), v, atol=1e-4)
        assert np.abs(v).max() > 0.01

    def test_a_potential_stays_between_itself_and_its_target(self) -> None:
        torch.manual_seed(0)
        core = LRC(5, 8)
        x = torch.randn(64, 20, 5)
        y, _ = core(x, torch.rand(64, 20), (torch.zeros(64, 8),))
        assert (y.abs() <= 2 * core.leak.abs()).all()  # sigmoid(f) is above a half, as f is positive

    def test_a_bad_time_unit_is_named(self) -> None:
        with pytest.raises(ValueError, match="time_unit: must be a positive number of seconds, got 0"):
            LRC(5, 8, time_unit=0.0)
