"""GRU-ODE with GRU updates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.gru_ode import GRUODE
from tests.contracts import CoreContract


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def exact(core: GRUODE, h: np.ndarray, span: np.ndarray) -> np.ndarray:
    """The GRU-ODE's state after `span` (d,) in units of tau, from h (d,), by SciPy's adaptive solver."""
    u, b = core.ode_gates.weight.detach().numpy(), core.ode_gates.bias.detach().numpy()
    v, c = core.ode_target.weight.detach().numpy(), core.ode_target.bias.detach().numpy()

    def field(_: float, h: np.ndarray) -> np.ndarray:
        r, z = np.split(sigmoid(u @ h + b), 2)
        return span * (1 - z) * (np.tanh(v @ (r * h) + c) - h)

    return solve_ivp(field, (0.0, 1.0), h, method="DOP853", rtol=1e-12, atol=1e-13).y[:, -1]


class TestGRUODE(CoreContract):
    def make_core(self) -> Core:
        return GRUODE(5, 8)

    def test_the_solver_is_of_second_order(self) -> None:
        torch.manual_seed(0)
        core = GRUODE(5, 8).double()
        with torch.no_grad():
            for layer in (core.ode_gates, core.ode_target):
                layer.weight.mul_(4.0)  # far from linear
            h, span = 2.0 * torch.rand(8, dtype=torch.float64) - 1.0, 0.5 + torch.rand(8, dtype=torch.float64)
            truth, errors = exact(core, h.numpy(), span.numpy()), []
            for core.unfolds in (8, 16, 32, 64):
                errors.append(np.abs(core.evolve(h[None], span[None])[0].numpy() - truth).max())
        np.testing.assert_allclose(np.log2(np.divide(errors[:-1], errors[1:])), 2.0, atol=0.1)

    def test_one_step_over_a_frame_is_accurate(self) -> None:
        torch.manual_seed(0)
        core = GRUODE(5, 8).double()
        with torch.no_grad():
            h, span = 2.0 * torch.rand(8, dtype=torch.float64) - 1.0, 0.02 / core.log_tau.exp()
            ours = core.evolve(h[None], span[None])[0].numpy()
        assert np.abs(ours - h.numpy()).max() > 0.05
        np.testing.assert_allclose(ours, exact(core, h.numpy(), span.numpy()), atol=1e-3, rtol=0.0)

    def test_a_step_is_the_differential_equation_then_torchs_gru(self) -> None:
        torch.manual_seed(0)
        core = GRUODE(5, 8, unfolds=200).double()
        cell = torch.nn.GRUCell(5, 8).double()
        x, dt = torch.randn(1, 3, 5, dtype=torch.float64), torch.rand(1, 3, dtype=torch.float64) * 0.2
        h = torch.zeros(8, dtype=torch.float64)
        with torch.no_grad():
            cell.weight_ih.copy_(core.input.weight)
            cell.bias_ih.copy_(core.input.bias)
            cell.weight_hh.copy_(core.recurrent.weight)
            cell.bias_hh.copy_(core.recurrent.bias)
            y, _ = core(x, dt, core.initial_state(1))
            for step in range(3):
                span = dt[0, step] / core.log_tau.exp()
                h = cell(x[0, step], torch.from_numpy(exact(core, h.numpy(), span.numpy())))
                torch.testing.assert_close(y[0, step], h, atol=1e-5, rtol=0.0)

    def test_without_time_it_is_torchs_gru(self) -> None:
        torch.manual_seed(0)
        core, gru = GRUODE(5, 8), torch.nn.GRU(5, 8, batch_first=True)
        with torch.no_grad():
            for name, layer in (("ih", core.input), ("hh", core.recurrent)):
                getattr(gru, f"weight_{name}_l0").copy_(layer.weight)
                getattr(gru, f"bias_{name}_l0").copy_(layer.bias)
            x = torch.randn(3, 9, 5)
            y, (h,) = core(x, torch.zeros(3, 9), core.initial_state(3))
            expected, last = gru(x)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(h, last[0])

    def test_the_state_stays_within_one_however_long_the_span(self) -> None:
        torch.manual_seed(0)
        core = GRUODE(5, 8, unfolds=1)
        with torch.no_grad():
            for layer in (core.ode_gates, core.ode_target):
                layer.weight.mul_(20.0)
            for seconds in (0.02, 1.0, 1e3):
                h = core.evolve(2.0 * torch.rand(50, 8) - 1.0, torch.full((50, 8), seconds / 0.03))
                assert h.abs().max() <= 1.0

    def test_bad_unfolds_are_named(self) -> None:
        with pytest.raises(ValueError, match="unfolds: must be at least 1 solver step per frame, got 0"):
            GRUODE(5, 8, unfolds=0)
