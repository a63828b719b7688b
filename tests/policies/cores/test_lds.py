"""The linear dynamical system and its stabilising loss."""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np
import pytest
import torch
from scipy.linalg import expm

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.lds import DESCENT, LDS
from tests.contracts import CoreContract


def largest_real_part(core: LDS) -> float:
    return torch.linalg.eigvals(core.state_matrix().detach().double()).real.max().item()


class TestLDS(CoreContract):
    def make_core(self) -> Core:
        return LDS(5, 8)

    def test_it_is_linear_in_inputs_and_state(self) -> None:
        torch.manual_seed(0)
        core, dt = LDS(5, 8).double(), torch.rand(1, 9, dtype=torch.float64)
        x, h = torch.randn(2, 1, 9, 5, dtype=torch.float64), torch.randn(2, 1, 8, dtype=torch.float64)
        with torch.no_grad():
            parts = [core(x[i], dt, (h[i],))[0] for i in range(2)]
            whole, _ = core(2.0 * x[0] - 3.0 * x[1], dt, (2.0 * h[0] - 3.0 * h[1],))
        torch.testing.assert_close(whole, 2.0 * parts[0] - 3.0 * parts[1])

    def test_converges_to_the_matrix_exponential_at_first_order(self) -> None:
        torch.manual_seed(0)
        core = LDS(5, 8).double()
        x, dt = torch.randn(1, 4, 5, dtype=torch.float64), 0.02 + 0.2 * torch.rand(1, 4, dtype=torch.float64)
        with torch.no_grad():
            core.dynamics.add_(0.1 * torch.randn(8, 8, dtype=torch.float64))
            core.dynamics[7, 7] = 0.5  # beyond the margin: solved with the rest
            a, b = core.state_matrix().numpy(), (core.drive.weight / core.tau).numpy()
            h = np.zeros(8)
            for frame, seconds in zip(x[0].numpy(), dt[0].tolist(), strict=True):
                joint = expm(np.block([[a, (b @ frame)[:, None]], [np.zeros((1, 9))]]) * seconds)
                h = joint[:8, :8] @ h + joint[:8, 8]
            errors = []
            for core.unfolds in (16, 32, 64, 128):
                y, _ = core(x, dt, core.initial_state(1))
                errors.append(np.abs(y[0, -1].numpy() - core.readout.weight.numpy() @ h).max())
        np.testing.assert_allclose(np.log2(np.divide(errors[:-1], errors[1:])), 1.0, atol=0.1)

    def test_a_diagonal_system_is_solved_exactly(self) -> None:
        torch.manual_seed(0)
        core = LDS(5, 8).double()
        x, h = torch.randn(1, 1, 5, dtype=torch.float64), torch.randn(1, 8, dtype=torch.float64)
        with torch.no_grad():
            core.dynamics.copy_(-torch.eye(8))
            _, (after,) = core(x, torch.tensor([[0.4]], dtype=torch.float64), (h,))
            rest = x[0] @ core.drive.weight.T  # where dh/dt = (rest - h) / tau is zero
            torch.testing.assert_close(after, rest + (h - rest) * torch.exp(-0.4 / core.tau[:, 0]))

    def test_the_loss_of_a_matrix_worked_out_by_hand(self) -> None:
        core = LDS(5, 3, margin=0.5).double()
        matrix = torch.tensor([[-3.0, 1.0, -1.0], [0.5, -1.0, 1.0], [0.0, 2.0, 1.0]], dtype=torch.float64)
        with torch.no_grad():
            core.dynamics.copy_(matrix * core.tau)
        # rows: -3 + 2 + 0.5 < 0, -1 + 1.5 + 0.5 = 1, 1 + 2 + 0.5 = 3.5
        assert core.gershgorin_loss().item() == pytest.approx(4.5)
        assert core.penalty() == core.gershgorin_loss()

    def test_minimising_the_loss_gives_eigenvalues_of_negative_real_part(self) -> None:
        torch.manual_seed(0)
        core = LDS(5, 8)
        torch.nn.init.normal_(core.dynamics)
        assert largest_real_part(core) > 1.0
        for _ in range(500):
            (gradient,) = torch.autograd.grad(core.gershgorin_loss(), core.dynamics)
            with torch.no_grad():
                core.dynamics.sub_(0.01 * gradient)
        assert core.gershgorin_loss().item() == 0.0
        assert largest_real_part(core) <= -core.margin

    def test_a_new_one_is_stable_and_has_no_loss(self) -> None:
        torch.manual_seed(0)
        core = LDS(5, 64)
        assert core.gershgorin_loss().item() == 0.0
        assert largest_real_part(core) < 0.0

    def test_descent_restores_stability_by_the_loss_alone(self) -> None:
        torch.manual_seed(0)
        core, corrected = LDS(5, 8, stability="descent"), 0
        optimizer = torch.optim.Adam(core.parameters(), 0.05)
        for _ in range(40):
            optimizer.zero_grad()
            (-core.state_matrix().diagonal().sum()).backward()  # away from stability
            optimizer.step()
            before, unstable = core.gershgorin_loss().item(), largest_real_part(core) > 1e-5
            kept = [core.drive.weight.clone(), core.readout.weight.clone()]
            core.after_step()
            assert largest_real_part(core) <= 1e-5
            if unstable:
                assert core.gershgorin_loss().item() < before
                corrected += 1
            assert all(map(torch.equal, kept, [core.drive.weight, core.readout.weight]))
        assert corrected > 5

    def test_a_step_of_descent_is_that_of_the_gradient(self) -> None:
        core = LDS(5, 3, margin=0.5, stability="descent").double()
        matrix = torch.tensor([[-3.0, 1.0, -1.0], [0.5, -1.0, 1.0], [0.0, 2.0, 0.2]], dtype=torch.float64)
        with torch.no_grad():
            core.dynamics.copy_(matrix * core.tau)
        steps = iter([True, False])
        core._unstable = lambda: next(steps)  # type: ignore[method-assign]
        core.after_step()
        # rows: no disc beyond the margin; towards 0 and a lesser diagonal; the same
        signs = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
        torch.testing.assert_close(core.dynamics.detach(), matrix * core.tau - DESCENT * signs)

    def test_a_stable_matrix_is_left_alone_whatever_its_loss(self) -> None:
        core = LDS(5, 2, stability="descent")
        with torch.no_grad():
            core.dynamics.copy_(torch.tensor([[-1.0, 5.0], [0.0, -1.0]]) * core.tau)
        before = core.dynamics.clone()
        core.after_step()
        assert core.gershgorin_loss() > 0.0
        assert torch.equal(core.dynamics, before)
        assert core.penalty() == 0.0

    @pytest.mark.parametrize("stability", ["penalty", "descent"])
    def test_what_is_not_to_be_corrected_is_not(self, stability: Literal["penalty", "descent"]) -> None:
        """An unstable matrix with the penalty, and one that has diverged: training reports that."""
        torch.manual_seed(0)
        core = LDS(5, 8, stability=stability)
        torch.nn.init.normal_(core.dynamics)
        if stability == "descent":
            core.dynamics.data[0, 0] = torch.nan
        before = core.dynamics.clone()
        core.after_step()
        torch.testing.assert_close(core.dynamics, before, atol=0, rtol=0, equal_nan=True)

    def test_the_setting_does_not_move_the_function(self) -> None:
        x, dt, outputs = torch.randn(2, 5, 5), torch.rand(2, 5), []
        for make in (LDS, partial(LDS, stability="penalty"), partial(LDS, stability="descent")):
            torch.manual_seed(0)
            core = make(5, 8)
            outputs.append(core(x, dt, core.initial_state(2))[0])
            assert core.penalty() == 0.0  # of a new one
        assert torch.equal(outputs[0], outputs[1])
        assert torch.equal(outputs[0], outputs[2])

    @pytest.mark.parametrize("seconds", [0.02, 0.5, 100.0])
    def test_without_loss_it_never_grows_and_explicit_euler_would(self, seconds: float) -> None:
        torch.manual_seed(0)
        core = LDS(5, 8, unfolds=1).double()
        h = 2.0 * torch.rand(4, 8, dtype=torch.float64) - 1.0
        with torch.no_grad():
            euler, largest = h, h.abs().amax(dim=1)
            for _ in range(20):
                _, (h,) = core(torch.zeros(4, 1, 5).double(), torch.full((4, 1), seconds).double(), (h,))
                assert (h.abs().amax(dim=1) <= largest).all()
                largest = h.abs().amax(dim=1)
                euler = euler + seconds * euler @ core.state_matrix().T
        assert (euler.abs().max() > 1e6) == (seconds > 0.1)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"unfolds": 0}, "unfolds: must be at least 1 solver step per frame, got 0"),
            ({"margin": 0.0}, "margin: must be positive, got 0.0"),
            ({"stability": "none"}, "stability: must be one of penalty, descent, got 'none'"),
        ],
    )
    def test_bad_settings_are_named(self, settings: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            LDS(5, 8, **settings)
