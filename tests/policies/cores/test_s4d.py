"""S4D: its two routes agree, and both solve the differential equation."""

from __future__ import annotations

import pytest
import torch

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.s4d import S4D
from tests.contracts import CoreContract


class TestS4D(CoreContract):
    def make_core(self) -> Core:
        return S4D(5, 8, state_size=6)


@pytest.fixture
def core() -> S4D:
    torch.manual_seed(0)
    return S4D(5, 8, state_size=6).double()


def random_state(core: S4D, batch: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn_like(part) for part in core.initial_state(batch))


@pytest.mark.parametrize("length", [2, 3, 20])
def test_convolution_and_recurrence_agree(core: S4D, length: int) -> None:
    u, dt = torch.randn(3, length, 8, dtype=torch.float64), torch.full((3, length), 0.3, dtype=torch.float64)
    dt[:, 0] = torch.tensor([0.0, 0.3, 1.7])
    state = random_state(core, 3)
    outcomes, gradients = [], []
    for route in (core.recur, core.convolve):
        y, (real, imaginary) = route(u, dt, state)
        core.zero_grad()
        (y.square().sum() + real.sum() + imaginary.square().sum()).backward()
        outcomes.append((y, real, imaginary))
        gradients.append([p.grad.clone() for p in core.parameters() if p.grad is not None])
    assert len(gradients[0]) == 4  # rate, decay, frequency, readout
    torch.testing.assert_close(outcomes[1], outcomes[0], atol=1e-10, rtol=1e-8)
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-10, rtol=1e-8)


def test_the_call_takes_the_convolution_where_dt_allows_it(core: S4D, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    for name in ("recur", "convolve"):
        route = getattr(core, name)
        monkeypatch.setattr(core, name, lambda *args, name=name, route=route: (taken.append(name), route(*args))[1])
    x = torch.randn(2, 4, 5, dtype=torch.float64)
    even = torch.full((2, 4), 0.02, dtype=torch.float64)
    start, lost = even.clone(), even.clone()
    start[1, 0], lost[1, 2] = 0.0, 0.06
    state = core.initial_state(2)
    for frames, dt in ((x, even), (x, start), (x, lost), (x[:, :1], even[:, :1])):
        core(frames, dt, state)
    assert taken == ["convolve", "convolve", "recur", "recur"]


def test_the_modes_solve_their_differential_equation(core: S4D) -> None:
    """An independent route: ds/dt = r (A s + u) with u held, as the exponential of [[r A, r], [0, 0]] dt."""
    a = torch.complex(-core.log_decay.exp(), core.frequency)
    u, dt = torch.randn(2, 7, 8, dtype=torch.float64), torch.rand(2, 7, dtype=torch.float64)
    y, (real, imaginary) = core.recur(u, dt, core.initial_state(2))
    s = torch.zeros(2, 8, 3, dtype=torch.complex128)
    for t in range(7):
        generator = torch.zeros(2, 8, 3, 2, 2, dtype=torch.complex128)
        generator[..., 0, 0] = core.log_rate.exp() * a * dt[:, t, None, None]
        generator[..., 0, 1] = core.log_rate.exp() * dt[:, t, None, None]
        flow = torch.linalg.matrix_exp(generator)
        s = flow[..., 0, 0] * s + flow[..., 0, 1] * u[:, t, :, None]
        expected = 2.0 * (torch.complex(*core.readout) * s).sum(dim=2).real
        torch.testing.assert_close(y[:, t], expected, atol=1e-10, rtol=1e-8)
    torch.testing.assert_close(torch.complex(real, imaginary), a * s, atol=1e-10, rtol=1e-8)


def test_two_halves_of_a_step_make_the_whole(core: S4D) -> None:
    x, state = torch.randn(3, 1, 5, dtype=torch.float64), random_state(core, 3)
    dt = torch.rand(3, 1, dtype=torch.float64)
    whole, last = core(x, dt, state)
    halves, middle = core(x.repeat(1, 2, 1), torch.cat((0.3 * dt, 0.7 * dt), dim=1), state)
    torch.testing.assert_close(halves[:, 1:], whole, atol=1e-10, rtol=1e-8)
    torch.testing.assert_close(middle, last, atol=1e-10, rtol=1e-8)


def test_no_time_no_change_of_state(core: S4D) -> None:
    state = random_state(core, 2)
    zero = torch.zeros(2, 3, dtype=torch.float64)
    _, after = core(torch.randn(2, 3, 5, dtype=torch.float64), zero, state)
    torch.testing.assert_close(after, state, atol=1e-12, rtol=0.0)


def test_the_convolution_trains_in_mixed_precision(core: S4D) -> None:
    core = core.float()
    x, dt = torch.randn(2, 7, 5), torch.full((2, 7), 0.02)
    expected, _ = core(x, dt, core.initial_state(2))
    with torch.autocast("cpu", torch.bfloat16):
        y, state = core(x, dt, core.initial_state(2))
    y.float().square().sum().backward()
    assert [part.dtype for part in state] == [torch.float32] * 2
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in core.parameters())
    torch.testing.assert_close(y.float(), expected, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("state_size", [0, 5])
def test_bad_settings_are_named(state_size: int) -> None:
    with pytest.raises(ValueError, match=f"state_size: must be even and at least 2 .*got {state_size}"):
        S4D(5, 8, state_size=state_size)
