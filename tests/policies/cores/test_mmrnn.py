"""The mixed-memory RNN."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.mmrnn import MMRNN
from tests.contracts import CoreContract


def as_lstm_cell(core: MMRNN) -> torch.nn.LSTMCell:
    """torch's cell with the weights of the core's LSTM."""
    cell = torch.nn.LSTMCell(core.input_size, core.output_size)
    with torch.no_grad():
        cell.weight_ih.copy_(core.input.weight)
        cell.weight_hh.copy_(core.recurrent.weight)
        cell.bias_ih.copy_(core.input.bias)
        cell.bias_hh.zero_()
    return cell.to(core.input.weight.dtype)


class TestMMRNN(CoreContract):
    def make_core(self) -> Core:
        return MMRNN(5, 8)

    def test_without_time_it_is_torchs_lstm(self) -> None:
        torch.manual_seed(0)
        core = MMRNN(5, 8)
        cell = as_lstm_cell(core)
        x = torch.randn(3, 9, 5)
        h = c = torch.zeros(3, 8)
        y, (last_h, last_c) = core(x, torch.zeros(3, 9), core.initial_state(3))
        for step in range(9):
            h, c = cell(x[:, step], (h, c))
            torch.testing.assert_close(y[:, step], h)
        torch.testing.assert_close((last_h, last_c), (h, c))

    def test_converges_to_an_lstm_and_its_differential_equation_at_first_order(self) -> None:
        torch.manual_seed(0)
        core = MMRNN(5, 8).double()
        cell, x = as_lstm_cell(core), torch.randn(1, 4, 5, dtype=torch.float64)
        dt = 0.1 + 0.4 * torch.rand(1, 4, dtype=torch.float64)
        v, b, tau = (t.detach().numpy() for t in (core.field.weight, core.field.bias, core.log_tau.exp()))
        h = c = torch.zeros(1, 8, dtype=torch.float64)
        with torch.no_grad():
            for step in range(4):
                h, c = cell(x[:, step], (h, c))
                solution = solve_ivp(
                    lambda _, s: (np.tanh(v @ s + b) - s) / tau,
                    (0.0, dt[0, step].item()),
                    h[0].numpy(),
                    method="DOP853",
                    rtol=1e-11,
                    atol=1e-12,
                )
                h = torch.from_numpy(solution.y[:, -1])[None]
            errors = []
            for core.unfolds in (16, 32, 64, 128):
                _, (ours, _) = core(x, dt, core.initial_state(1))
                errors.append((ours - h).abs().max().item())
        np.testing.assert_allclose(np.log2(np.divide(errors[:-1], errors[1:])), 1.0, atol=0.1)

    def test_without_coupling_the_hidden_state_relaxes_exactly(self) -> None:
        torch.manual_seed(0)
        core = MMRNN(5, 8).double()
        x, dt = torch.randn(1, 1, 5, dtype=torch.float64), torch.tensor([[0.4]], dtype=torch.float64)
        with torch.no_grad():
            core.field.weight.zero_()
            y, _ = core(x, dt, core.initial_state(1))
            h, _ = as_lstm_cell(core)(x[:, 0])
            target = torch.tanh(core.field.bias)
            torch.testing.assert_close(y[0], target + (h - target) * torch.exp(-0.4 / core.log_tau.exp()))

    def test_after_a_long_gap_the_cell_remembers_and_the_hidden_state_does_not(self) -> None:
        torch.manual_seed(0)
        core = MMRNN(5, 8)
        with torch.no_grad():
            core.field.weight.mul_(0.5)  # a contraction: the state has one fixed point
            x, gap = torch.randn(1, 1, 5).expand(2, 1, 5), torch.full((2, 1), 1e3)
            y, (_, c) = core(x, gap, (torch.randn(1, 8).expand(2, 8), torch.tensor([[-1.0], [1.0]]).expand(2, 8)))
            core.unfolds = 100
            y, _ = core(x, gap, (torch.randn(1, 8).expand(2, 8), c))
        torch.testing.assert_close(y[0], y[1])
        assert (c[0] - c[1]).abs().min() > 0.1

    def test_bad_unfolds_are_named(self) -> None:
        with pytest.raises(ValueError, match="unfolds: must be at least 1 solver step per frame, got 0"):
            MMRNN(5, 8, unfolds=0)
