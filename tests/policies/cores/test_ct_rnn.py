"""The continuous-time RNN, dense and sparse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.ct_rnn import CTRNN
from tests.contracts import CoreContract


def exact(core: CTRNN, x: np.ndarray, dt: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Solution of the differential equation from h (d,), by SciPy's adaptive solver: x (T, F), dt (T,) -> (d,)."""
    with torch.no_grad():
        w, u, b, tau = (t.numpy() for t in (core.input(), core.recurrent(), core.bias, core.log_tau.exp()))
    for frame, seconds in zip(x, dt, strict=True):
        solution = solve_ivp(
            lambda _, h, frame=frame: (np.tanh(w @ frame + u @ h + b) - h) / tau,
            (0.0, seconds),
            h,
            method="DOP853",
            rtol=1e-11,
            atol=1e-12,
        )
        h = solution.y[:, -1]
    return h


class TestCTRNN(CoreContract):
    def make_core(self) -> Core:
        return CTRNN(5, 8)

    def test_converges_to_the_differential_equation_at_first_order(self) -> None:
        torch.manual_seed(0)
        core, x = CTRNN(5, 8).double(), torch.randn(1, 4, 5, dtype=torch.float64)
        dt = 0.05 + 0.2 * torch.rand(1, 4, dtype=torch.float64)
        truth, errors = exact(core, x[0].numpy(), dt[0].numpy(), np.zeros(8)), []
        for core.unfolds in (16, 32, 64, 128):
            with torch.no_grad():
                _, (h,) = core(x, dt, core.initial_state(1))
            errors.append(np.abs(h[0].numpy() - truth).max())
        orders = np.log2(np.divide(errors[:-1], errors[1:]))
        np.testing.assert_allclose(orders, 1.0, atol=0.1)

    def test_without_recurrence_it_is_an_exact_low_pass_filter(self) -> None:
        torch.manual_seed(0)
        core = CTRNN(5, 8, unfolds=3).double()
        with torch.no_grad():
            core.recurrent.values.zero_()
            x, dt = torch.randn(1, 1, 5, dtype=torch.float64), torch.tensor([[0.4]], dtype=torch.float64)
            h = torch.rand(1, 8, dtype=torch.float64)
            y, _ = core(x, dt, (h,))
            target = torch.tanh(x[0] @ core.input().T + core.bias)
            torch.testing.assert_close(y[0], target + (h - target) * torch.exp(-0.4 / core.log_tau.exp()))

    @pytest.mark.parametrize("seconds", [0.0, 1e3])
    def test_stays_put_for_no_time_and_within_one_for_very_long(self, seconds: float) -> None:
        torch.manual_seed(0)
        core = CTRNN(5, 8)
        with torch.no_grad():
            core.recurrent.values.mul_(100.0)
            h = 2.0 * torch.rand(3, 8) - 1.0
            y, _ = core(torch.randn(3, 4, 5), torch.full((3, 4), seconds), (h,))
        assert y.abs().max() <= 1.0
        if seconds == 0.0:
            assert torch.equal(y, h.unsqueeze(1).expand(3, 4, 8))

    def test_time_constants_start_between_tens_of_milliseconds_and_seconds(self) -> None:
        tau = CTRNN(5, 64).log_tau.detach().exp()
        assert tau.min() == pytest.approx(0.03, rel=1e-5)
        assert tau.max() == pytest.approx(3.0, rel=1e-5)

    def test_bad_unfolds_are_named(self) -> None:
        with pytest.raises(ValueError, match="unfolds: must be at least 1 solver step per frame, got 0"):
            CTRNN(5, 8, unfolds=0)


class TestSparseCTRNN(CoreContract):
    def make_core(self) -> Core:
        return CTRNN(5, 8, sparsity=0.95)

    def test_is_the_dense_one_with_most_weights_zero(self) -> None:
        torch.manual_seed(0)
        sparse, dense = CTRNN(64, 64, sparsity=0.95, seed=3), CTRNN(64, 64)
        with torch.no_grad():
            for name in ("input", "recurrent"):
                matrix = getattr(sparse, name)()
                assert (matrix == 0).float().mean() == pytest.approx(0.95, abs=0.01)
                getattr(dense, name).values.copy_(matrix.flatten())
            x, dt = torch.randn(2, 9, 64), torch.rand(2, 9)
            expected, _ = dense(x, dt, dense.initial_state(2))
            y, _ = sparse(x, dt, sparse.initial_state(2))
        torch.testing.assert_close(y, expected)

    def test_input_and_recurrent_masks_differ_and_another_seed_draws_others(self) -> None:
        first, again, other = (CTRNN(64, 64, sparsity=0.95, seed=seed) for seed in (0, 0, 1))
        assert torch.equal(first.input.positions, again.input.positions)
        assert torch.equal(first.recurrent.positions, again.recurrent.positions)
        assert not torch.equal(first.input.positions, first.recurrent.positions)
        assert not torch.equal(first.input.positions, other.input.positions)
