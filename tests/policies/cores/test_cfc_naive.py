"""The naive CfC: equal to the fast one in outputs, states and gradients, and to numbers worked by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nac_drive.policies.cores.cfc import CfC
from nac_drive.policies.cores.cfc_naive import naive_cfc
from nac_drive.policies.ops.cfc_steps import FORMS

B, T, F, D = 3, 9, 5, 8


def make(mode: str) -> CfC:
    """A float64 core whose every parameter is away from its initial value; some rates w_tau are negative."""
    torch.manual_seed(0)
    core = CfC(F, D, backbone_units=16, mode=mode).double()
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
        if core.w_tau is not None:
            core.w_tau[::2].neg_()
    return core


def inputs(length: int = T) -> tuple[Tensor, Tensor, Tensor]:
    """x (B, T, F), dt (B, T) and a state h (B, d)."""
    x = torch.randn(B, length, F, dtype=torch.float64)
    dt = 3.0 * torch.rand(B, length, dtype=torch.float64)
    return x, dt, torch.randn(B, D, dtype=torch.float64)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("length", [1, T, 40])
@pytest.mark.parametrize("mode", FORMS)
def test_equals_the_fast_core(mode: str, length: int, recorded: bool) -> None:
    """With gradients recorded and without, where the fast core runs other code; some frames take no time."""
    core = make(mode)
    x, dt, h = inputs(length)
    dt[0, ::3] = 0.0
    with torch.set_grad_enabled(recorded):
        (y, (after,)), (expected, (last,)) = core(x, dt, (h,)), naive_cfc(core, x, dt, (h,))
    assert_close(y, expected)
    assert_close(after, last)


@pytest.mark.parametrize("mode", FORMS)
def test_gradients_equal_those_of_the_fast_core(mode: str) -> None:
    """Gradients of inputs, times, state and every parameter. The loss reads all outputs and the last state."""
    core = make(mode)
    x, dt, h = (tensor.requires_grad_() for tensor in inputs())
    wanted = {"x": x, "dt": dt, "h": h, **dict(core.named_parameters())}
    direction = torch.randn(B, T, D, dtype=torch.float64)

    def gradients(form: Callable[..., tuple[Tensor, tuple[Tensor, ...]]]) -> tuple[Tensor, ...]:
        y, (last,) = form(x, dt, (h,))
        return torch.autograd.grad((y * direction).sum() + last.square().sum(), list(wanted.values()))

    fast, naive = gradients(core), gradients(lambda *call: naive_cfc(core, *call))
    for name, one, other in zip(wanted, fast, naive, strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("mode", FORMS)
def test_a_stream_of_frames_equals_the_whole_sequence(mode: str) -> None:
    core = make(mode)
    x, dt, h = inputs()
    whole, (last,) = naive_cfc(core, x, dt, (h,))
    state, parts = (h,), []
    for t in range(T):
        y, state = naive_cfc(core, x[:, t : t + 1], dt[:, t : t + 1], state)
        parts.append(y)
    assert torch.equal(torch.cat(parts, dim=1), whole)
    assert torch.equal(state[0], last)


@pytest.mark.parametrize("mode", FORMS)
def test_one_neuron_and_one_input_by_hand(mode: str) -> None:
    """Two frames of 0.5 s and 2 s."""
    core = CfC(1, 1, backbone_units=1, mode=mode, time_unit=1.0).double()
    values = {"input.weight": [[0.8]], "input.bias": [0.1], "recurrent.weight": [[-0.6]]}
    if mode == "pure":
        values |= {"heads.weight": [[0.9]], "heads.bias": [0.2], "w_tau": [-0.7], "limit": [1.3]}
    else:
        values |= {"heads.weight": [[0.9], [-0.4], [0.3], [-0.5]], "heads.bias": [0.2, 0.05, -0.1, 0.6]}
    core.load_state_dict({name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()})
    h = 0.25
    for x, seconds in ((0.4, 0.5), (-1.1, 2.0)):
        g = 1.7159 * math.tanh(0.666 * (0.8 * x + 0.1 - 0.6 * h))
        z = 1.0 / (1.0 + math.exp(-((0.3 * g - 0.1) * seconds - 0.5 * g + 0.6)))
        f, f_2 = 0.9 * g + 0.2, -0.4 * g + 0.05
        h = {
            "gated": (1.0 - z) * math.tanh(f) + z * math.tanh(f_2),
            "no-gate": math.tanh(f) + z * math.tanh(f_2),
            "pure": 1.3 - 1.3 * math.exp(-(0.7 + abs(f)) * seconds) * f,
        }[mode]
    xs, dt, start = (torch.tensor(value, dtype=torch.float64) for value in ([[[0.4], [-1.1]]], [[0.5, 2.0]], [[0.25]]))
    _, (last,) = naive_cfc(core, xs, dt, (start,))
    assert last.item() == pytest.approx(h, abs=1e-14)
