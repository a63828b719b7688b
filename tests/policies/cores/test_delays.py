"""TDNN, NARX and the recurrent identity network: the formulas of their docstrings, step by step."""

from __future__ import annotations

import pytest
import torch

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.delays import NARX, TDNN
from nac_drive.policies.cores.rnn import RIN, RNN
from tests.contracts import CoreContract


class TestTDNN(CoreContract):
    def make_core(self) -> Core:
        return TDNN(5, 8, window=4)


class TestNARX(CoreContract):
    def make_core(self) -> Core:
        return NARX(5, 8, window=3, delays=2)


class TestRIN(CoreContract):
    def make_core(self) -> Core:
        return RIN(5, 8)


@pytest.mark.parametrize("feedback", [False, True])
def test_are_the_formulas_of_the_docstrings(feedback: bool) -> None:
    torch.manual_seed(0)
    core = (NARX(5, 8, window=3, delays=2) if feedback else TDNN(5, 8, window=3)).double()
    x = torch.randn(2, 6, 5, dtype=torch.float64)
    y, _ = core(x, torch.rand(2, 6).double(), core.initial_state(2))
    padded, past = torch.cat((torch.zeros(2, 2, 5).double(), x), dim=1), torch.zeros(2, 2, 8).double()
    for step in range(6):
        expected = padded[:, step : step + 3].flatten(1) @ core.linear.weight.T + core.linear.bias
        if isinstance(core, NARX):
            expected = expected + past.flatten(1) @ core.feedback.weight.T
        expected = expected.tanh()
        torch.testing.assert_close(y[:, step], expected)
        past = torch.stack((past[:, 1], expected), dim=1)


def test_an_identity_network_remembers_without_any_weights() -> None:
    torch.manual_seed(0)
    core = RIN(5, 8)
    torch.manual_seed(0)
    plain = RNN(5, 8)
    u = plain.cell.get_parameter("weight_hh_l0").detach()
    torch.testing.assert_close(core.cell.get_parameter("weight_hh_l0") - u, torch.eye(8))
    with torch.no_grad():
        core.cell.get_parameter("weight_hh_l0").sub_(u)  # U = 0
        for name in ("bias_ih_l0", "bias_hh_l0"):
            core.cell.get_parameter(name).zero_()
    start, nothing = (0.1 * torch.ones(1, 8),), torch.zeros(1, 5, 5)
    kept, _ = core(nothing, torch.zeros(1, 5), start)
    assert (kept[:, -1] > 0.09).all()


@pytest.mark.parametrize("settings", [{"window": 0}, {"delays": 0}])
def test_a_network_without_delays_is_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1 frame, got 0"):
        NARX(5, 8, **settings)
