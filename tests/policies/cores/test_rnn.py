"""The vanilla RNN, the LSTM, the GRU and the sparse LSTM."""

from __future__ import annotations

import pytest
import torch

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.rnn import GRU, LSTM, RNN, SparseLSTM
from tests.contracts import CoreContract


class TestLSTM(CoreContract):
    def make_core(self) -> Core:
        return LSTM(5, 8)


class TestGRU(CoreContract):
    def make_core(self) -> Core:
        return GRU(5, 8)


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


class TestSparseLSTM(CoreContract):
    def make_core(self) -> Core:
        return SparseLSTM(5, 8)

    def test_equals_torch_with_masked_weights(self) -> None:
        torch.manual_seed(0)
        ours, theirs = SparseLSTM(20, 32), torch.nn.LSTM(20, 32, batch_first=True)
        with torch.no_grad():
            w, u, b, c = theirs.parameters()
            for matrix, weight in ((ours.input, w), (ours.recurrent, u)):
                mask = torch.zeros(weight.numel()).index_fill(0, matrix.positions, 1.0).view_as(weight)
                assert mask.mean() < 0.07
                weight.mul_(mask)
                matrix.values.copy_(weight.flatten()[matrix.positions])
            ours.bias.copy_(b + c)
            x, state = torch.randn(3, 9, 20), (torch.randn(3, 32), torch.randn(3, 32))
            expected, (h, c) = theirs(x, tuple(s[None] for s in state))
            y, last = ours(x, torch.zeros(3, 9), state)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(last, (h[0], c[0]))

    def test_another_seed_draws_other_weights(self) -> None:
        first, again, other = (SparseLSTM(64, 64, seed=seed) for seed in (0, 0, 1))
        for name in ("input", "recurrent"):
            positions = [getattr(core, name).positions for core in (first, again, other)]
            assert torch.equal(positions[0], positions[1])
            assert not torch.equal(positions[0], positions[2])

    def test_only_live_weights_are_parameters(self) -> None:
        count = sum(parameter.numel() for parameter in SparseLSTM(64, 64).parameters())
        assert count == 2 * 256 * 3 + 256  # round(0.05 * 64) weights per row

    def test_bad_sparsity_is_named(self) -> None:
        with pytest.raises(ValueError, match=r"sparsity: must be in \[0, 1\), got 1.0"):
            SparseLSTM(5, 8, sparsity=1.0)
