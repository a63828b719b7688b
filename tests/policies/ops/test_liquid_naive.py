"""The naive LTC: equal to the fast one in outputs, states and gradients, and to numbers worked by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nac_drive.policies.cores.base import State
from nac_drive.policies.cores.ltc import LTC, NCP
from nac_drive.policies.ops.liquid import ROWS, LiquidNetwork
from nac_drive.policies.ops.liquid_naive import naive_liquid_network

B, T, F, N = 3, 9, 5, 8


def randomised(module: nn.Module) -> nn.Module:
    """A float64 module with every parameter away from its initial value."""
    module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return module


def inputs(length: int = T, neurons: int = N) -> tuple[Tensor, Tensor, Tensor]:
    """x (B, T, F), dt (B, T) and a state v (B, N)."""
    x = torch.randn(B, length, F, dtype=torch.float64)
    dt = 0.002 + 0.2 * torch.rand(B, length, dtype=torch.float64)
    return x, dt, 0.5 * torch.randn(B, neurons, dtype=torch.float64)


def naive_ltc(core: LTC, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
    y = naive_liquid_network(core.network, x, dt, state[0])
    return y, (y[:, -1],)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("unfolds", [1, 6])
@pytest.mark.parametrize("length", [1, T, 2 * ROWS])
def test_equals_the_fast_core(length: int, unfolds: int, recorded: bool) -> None:
    """With gradients recorded and without, where the fast core runs other code."""
    torch.manual_seed(0)
    core = LTC(F, N, unfolds=unfolds)
    randomised(core)
    x, dt, v = inputs(length)
    with torch.set_grad_enabled(recorded):
        (y, (after,)), (expected, (last,)) = core(x, dt, (v,)), naive_ltc(core, x, dt, (v,))
    assert_close(y, expected)
    assert_close(after, last)


@pytest.mark.parametrize("density", [0.0, 0.4])
def test_missing_synapses_equal_the_fast_network(density: float) -> None:
    torch.manual_seed(0)
    network = LiquidNetwork(torch.rand(F, N) < density, torch.rand(N, N) < density, unfolds=6)
    randomised(network)
    x, dt, v = inputs()
    assert_close(network(x, dt, v), naive_liquid_network(network, x, dt, v))


@pytest.mark.parametrize("wiring", ["ncp", "random", "full"])
def test_the_neurons_of_an_ncp_equal_the_naive_network(wiring: str) -> None:
    torch.manual_seed(0)
    core = NCP(F, 4, wiring=wiring, sparsity=0.3)
    randomised(core)
    x, dt, v = inputs(neurons=core.wiring.units)
    y, (after,) = core(x, dt, (v,))
    path = naive_liquid_network(core.network, x, dt, v)
    assert_close(y, core.readout(path[..., core.wiring.group("motor")]))
    assert_close(after, path[:, -1])


def test_gradients_equal_those_of_the_fast_core() -> None:
    """Gradients of inputs, times, state and every parameter. The loss reads all outputs and the last state."""
    torch.manual_seed(0)
    core = LTC(F, N)
    randomised(core)
    x, dt, v = (tensor.requires_grad_() for tensor in inputs())
    wanted = {"x": x, "dt": dt, "v": v, **dict(core.named_parameters())}
    direction = torch.randn(B, T, N, dtype=torch.float64)

    def gradients(form: Callable[..., tuple[Tensor, tuple[Tensor, ...]]]) -> tuple[Tensor, ...]:
        y, (last,) = form(x, dt, (v,))
        return torch.autograd.grad((y * direction).sum() + last.square().sum(), list(wanted.values()))

    fast, naive = gradients(core), gradients(lambda *call: naive_ltc(core, *call))
    for name, one, other in zip(wanted, fast, naive, strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("shortest", [0.0, 5e-7, 5e-6])
def test_frames_of_almost_no_time_equal_the_fast_core(shortest: float) -> None:
    torch.manual_seed(0)
    core = LTC(F, N)
    randomised(core)
    x, dt, v = inputs()
    dt[:, ::2] = shortest
    assert_close(core(x, dt, (v,))[0], naive_ltc(core, x, dt, (v,))[0])


def test_a_stream_of_frames_equals_the_whole_sequence() -> None:
    torch.manual_seed(0)
    core = LTC(F, N)
    randomised(core)
    x, dt, v = inputs()
    whole, (last,) = naive_ltc(core, x, dt, (v,))
    state, parts = (v,), []
    for t in range(T):
        y, state = naive_ltc(core, x[:, t : t + 1], dt[:, t : t + 1], state)
        parts.append(y)
    assert torch.equal(torch.cat(parts, dim=1), whole)
    assert torch.equal(state[0], last)


def test_one_neuron_and_one_input_by_hand() -> None:
    """Equation 3.72, twice: two solver steps of 0.05 s, with a synapse from the input and one from the neuron."""
    core = LTC(1, 1, unfolds=2).double()
    network = core.network

    def before_softplus(value: float) -> float:
        return math.log(math.expm1(value))

    with torch.no_grad():
        network.capacitance.fill_(before_softplus(0.5))
        network.conductance.fill_(before_softplus(0.2))
        network.leak.fill_(-0.1)
        for part, values in ((network.sensory, (0.7, 1.0, 3.0, 0.4)), (network.recurrent, (0.3, -1.0, 5.0, 0.6))):
            for name, value in zip(("weight", "reversal", "gain", "center"), values, strict=True):
                getattr(part, name).fill_(before_softplus(value) if name == "weight" else value)
    v = 0.25
    for _ in range(2):
        s_x = 1.0 / (1.0 + math.exp(-3.0 * (0.9 - 0.4)))
        s_v = 1.0 / (1.0 + math.exp(-5.0 * (v - 0.6)))
        up = v * 0.5 / 0.05 + 0.2 * -0.1 + 0.7 * s_x * 1.0 + 0.3 * s_v * -1.0
        v = up / (0.5 / 0.05 + 0.2 + 0.7 * s_x + 0.3 * s_v)
    x, dt, start = (torch.tensor(value, dtype=torch.float64) for value in ([[[0.9]]], [[0.1]], [[0.25]]))
    y, _ = naive_ltc(core, x, dt, (start,))
    assert y.item() == pytest.approx(v, abs=1e-14)
