"""Deep state space: the filter against a scan of matrices, Holt's smoothing and exact answers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.deepstate import DeepState
from tests.contracts import CoreContract


class TestDeepState(CoreContract):
    def make_core(self) -> Core:
        return DeepState(5, 8, rnn_size=6)


@pytest.fixture
def core() -> DeepState:
    torch.manual_seed(0)
    return DeepState(5, 8, rnn_size=6).double()


def random_stream(length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, length, 5, dtype=torch.float64, generator=generator)
    return x, torch.rand(3, length, dtype=torch.float64, generator=generator)


def matrix_scan(a: Tensor, b: Tensor) -> Tensor:
    """h_t = a_t h_{t-1} + b_t from 0, by doubling: log2(T) rounds over all steps at once. a (B, T, ..), b alike."""
    shift = 1
    while shift < a.shape[1]:
        joined = a[:, shift:] @ b[:, :-shift] + b[:, shift:]
        a, b = torch.cat((a[:, :shift], a[:, shift:] @ a[:, :-shift]), 1), torch.cat((b[:, :shift], joined), 1)
        shift *= 2
    return b


@pytest.mark.parametrize("length", [1, 2, 13])
def test_the_recurrence_equals_a_parallel_scan(core: DeepState, length: int) -> None:
    """With h = (l, w), F = [[1, 1 - rho], [0, rho]] and a = (1, 1 - rho): h <- (F - K a^T) h + K (z - o)."""
    x, dt = random_stream(length)
    start = tuple(torch.randn_like(part) for part in core.initial_state(3))
    y, (_, _, level, trend) = core(x, dt, start)
    outputs, _ = core.rnn(x, (start[0][None], start[1][None]))
    alpha, beta = core.gains(outputs).sigmoid().chunk(2, dim=2)
    rho = torch.exp(-dt.unsqueeze(2) * core.log_rate.exp())
    gain = torch.stack((alpha, alpha * beta), dim=3).unsqueeze(4)  # (B, T, d, 2, 1)
    one = torch.ones_like(rho)
    move = torch.stack((one, 1 - rho, 0 * one, rho), dim=3).unflatten(3, (2, 2))
    keep = move - gain @ torch.stack((one, 1 - rho), dim=3).unsqueeze(3)  # (B, T, d, 2, 2)
    force = gain * (core.observation(x) - core.offset(outputs))[..., None, None]
    force[:, 0] += keep[:, 0] @ torch.stack(start[2:], dim=2).unsqueeze(3)
    h = matrix_scan(keep, force).squeeze(4)  # (B, T, d, 2)
    torch.testing.assert_close(y, h[..., 0] + core.offset(outputs), atol=1e-10, rtol=1e-10)
    torch.testing.assert_close((level, trend), h[:, -1].unbind(2), atol=1e-10, rtol=1e-10)


def hold_gains(core: DeepState, alpha: float, beta: float) -> None:
    """Whatever the LSTM says, these gains and no offset."""
    with torch.no_grad():
        for layer in (core.gains, core.offset):
            layer.weight.zero_()
            layer.bias.zero_()
        core.gains.bias.copy_(torch.tensor([alpha, beta], dtype=torch.float64).logit().repeat_interleave(8))


def test_with_gains_held_it_is_the_smoothing_of_holt_with_a_damped_trend(core: DeepState) -> None:
    hold_gains(core, 0.3, 0.6)
    x, dt = random_stream(9)
    dt[:] = 0.2
    y, _ = core(x, dt, core.initial_state(3))
    z, damping = core.observation(x), torch.exp(-0.2 * core.log_rate.exp())
    smoothing = 0.6 * (1.0 - damping) / damping
    level = slope = torch.zeros(3, 8, dtype=torch.float64)
    for t in range(9):
        before = level
        level = 0.3 * z[:, t] + 0.7 * (before + damping * slope)
        slope = smoothing * (level - before) + (1.0 - smoothing) * damping * slope
        torch.testing.assert_close(y[:, t], level, atol=1e-10, rtol=1e-10)


def test_without_gains_the_level_follows_its_trend_whatever_the_steps(core: DeepState) -> None:
    """The transition solves dl/dt = r w, dw/dt = -r w: cutting a time span into steps changes nothing."""
    hold_gains(core, 0.0, 0.5)
    x, dt = random_stream(6)
    start = tuple(torch.ones_like(part) for part in core.initial_state(3))
    rate, time = core.log_rate.exp(), dt.cumsum(dim=1).unsqueeze(2)
    y, (_, _, _, trend) = core(x, dt, start)
    torch.testing.assert_close(y, 2.0 - torch.exp(-rate * time), atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(trend, torch.exp(-rate * time[:, -1]), atol=1e-10, rtol=1e-10)


def test_it_stays_bounded_whatever_the_gains_and_times(core: DeepState) -> None:
    """Sets gains anywhere in (0, 1) and steps of 1 ms to 1000 s, with targets of 0: the start is forgotten."""
    generator = torch.Generator().manual_seed(2)
    outputs = torch.randn(3, 500, 6, dtype=torch.float64, generator=generator)
    dt = 10.0 ** (6.0 * torch.rand(3, 500, dtype=torch.float64, generator=generator) - 3.0)
    with torch.no_grad():
        core.gains.weight.mul_(10.0)
    one = torch.ones(3, 8, dtype=torch.float64)
    levels, (level, trend) = core.follow(torch.zeros(3, 500, 8, dtype=torch.float64), outputs, dt, (one, one))
    assert levels.abs().max() < 4.0
    assert max(level.abs().max().item(), trend.abs().max().item()) < 1e-6


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="rnn_size: must be at least 1, got 0"):
        DeepState(5, 8, rnn_size=0)
