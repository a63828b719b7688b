"""The phased LSTM."""

from __future__ import annotations

import math

import pytest
import torch

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.phased_lstm import PhasedLSTM
from tests.contracts import CoreContract


class TestPhasedLSTM(CoreContract):
    def make_core(self) -> Core:
        return PhasedLSTM(5, 8, open_ratio=0.5)  # at 0.1 the contract's 11 frames would meet too few open gates

    def test_the_gate_opens_and_closes_on_time(self) -> None:
        core = PhasedLSTM(5, 2, open_ratio=0.2, leak=0.01).double()
        with torch.no_grad():
            core.log_period.copy_(torch.tensor([1.0, 2.0]).log())
            core.shift.copy_(torch.tensor([0.0, 0.5]))
            rows = [  # seconds, a unit of period 1, a unit of period 2 shifted by 0.5
                (0.00, 0.0, 0.01 * 0.75),
                (0.05, 0.5, 0.01 * 0.775),
                (0.10, 1.0, 0.01 * 0.80),
                (0.15, 0.5, 0.01 * 0.825),
                (0.25, 0.01 * 0.25, 0.01 * 0.875),
                (0.60, 0.01 * 0.60, 0.5),
                (0.70, 0.01 * 0.70, 1.0),
                (0.85, 0.01 * 0.85, 0.25),
                (0.95, 0.01 * 0.95, 0.01 * 0.225),
                (1.05, 0.5, 0.01 * 0.275),
                (2.70, 0.01 * 0.70, 1.0),
            ]
            times, *expected = torch.tensor(rows, dtype=torch.float64).unbind(dim=1)
            gates = core.time_gate(times.unsqueeze(1))
        torch.testing.assert_close(gates, torch.stack(expected, dim=1))

    def test_forward_counts_the_seconds(self) -> None:
        """Frames at 0.05, 0.10, 0.25 and 1.10 s. The LSTM always proposes 1 for the cell and tanh(1) for h."""
        core = PhasedLSTM(1, 1, open_ratio=0.2, leak=0.0).double()
        with torch.no_grad():
            for parameter in core.parameters():
                parameter.zero_()  # a period of exp(0) = 1 s
            core.input.bias.copy_(torch.tensor([50.0, -50.0, 50.0, 50.0]))  # i, f, g, o
            dt = torch.tensor([[0.05, 0.05, 0.15, 0.85]], dtype=torch.float64)
            y, (_, c, time) = core(torch.zeros(1, 4, 1, dtype=torch.float64), dt, core.initial_state(1))
        full = math.tanh(1.0)
        torch.testing.assert_close(y.flatten(), torch.tensor([0.5, 1.0, 1.0, 1.0], dtype=torch.float64) * full)
        torch.testing.assert_close(c, torch.ones(1, 1, dtype=torch.float64))
        torch.testing.assert_close(time, torch.full((1, 1), 0.1, dtype=torch.float64))

    def test_behind_an_open_gate_it_is_torchs_lstm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch.manual_seed(0)
        core, lstm = PhasedLSTM(5, 8), torch.nn.LSTM(5, 8, batch_first=True)
        monkeypatch.setattr(core, "time_gate", torch.ones_like)
        weights = (core.input.weight, core.recurrent.weight, core.input.bias, torch.zeros(32))
        with torch.no_grad():
            for theirs, ours in zip(lstm.parameters(), weights, strict=True):
                theirs.copy_(ours)
            x = torch.randn(3, 9, 5)
            y, (h, c, _) = core(x, torch.rand(3, 9), core.initial_state(3))
            expected, (last_h, last_c) = lstm(x)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close((h, c), (last_h[0], last_c[0]))

    def test_behind_a_closed_gate_without_leak_nothing_changes(self) -> None:
        torch.manual_seed(0)
        core = PhasedLSTM(5, 8, open_ratio=0.1, leak=0.0)
        with torch.no_grad():
            core.log_period.fill_(math.log(10.0))
            core.shift.zero_()
            state = (torch.randn(2, 8), torch.randn(2, 8), torch.full((2, 8), 1.5))
            y, (h, c, _) = core(torch.randn(2, 20, 5), torch.full((2, 20), 0.02), state)
        assert torch.equal(h, state[0])
        assert torch.equal(c, state[1])
        assert torch.equal(y, state[0].unsqueeze(1).expand(2, 20, 8))

    def test_the_clock_keeps_its_precision_over_a_long_stream(self) -> None:
        torch.manual_seed(0)
        core, double = PhasedLSTM(5, 32), PhasedLSTM(5, 32).double()
        double.load_state_dict(core.state_dict())
        dt, state, absolute = torch.full((1, 250), 0.02), core.initial_state(1), torch.zeros(())
        with torch.no_grad():
            for _ in range(20):  # 5000 frames, 100 s
                _, state = core(torch.zeros(1, 250, 5), dt, state)
                for seconds in dt[0]:
                    absolute = absolute + seconds
            expected = double.time_gate((20 * dt.double().sum()).expand(1, 32))
            wrapped, naive = core.time_gate(state[2]), core.time_gate(absolute.expand(1, 32))
        assert (wrapped - expected).abs().max() < 0.02
        assert (naive - expected).abs().max() > 0.2
        assert (state[2] < core.log_period.exp()).all()

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"open_ratio": 0.0}, r"open_ratio: must be in \(0, 1\], got 0.0"),
            ({"leak": -0.1}, r"leak: must be in \[0, 1\], got -0.1"),
        ],
    )
    def test_bad_settings_are_named(self, settings: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            PhasedLSTM(5, 8, **settings)
