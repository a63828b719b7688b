"""The vanilla RNN."""

from __future__ import annotations

import torch

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.rnn import RNN
from tests.contracts import CoreContract


class TestRNN(CoreContract):
    def make_core(self) -> Core:
        return RNN(5, 8)

    def test_is_the_recurrence_of_the_docstring(self) -> None:
        torch.manual_seed(0)
        core = RNN(5, 8)
        w, u, b, c = (parameter.detach() for parameter in core.cell.parameters())
        x, h = torch.randn(2, 9, 5), torch.randn(2, 8)
        y, (last,) = core(x, torch.zeros(2, 9), (h,))
        for step in range(9):
            h = torch.tanh(x[:, step] @ w.T + b + h @ u.T + c)
            torch.testing.assert_close(y[:, step], h)
        torch.testing.assert_close(last, h)
