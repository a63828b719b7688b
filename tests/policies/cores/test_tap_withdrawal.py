"""Ordinary neural circuits: the sensory neurons of Eq. 4.1 and 4.2, electrical synapses, and the naive solver."""

from __future__ import annotations

import math

import pytest
import torch

from nac_drive.policies import build_core
from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.tap_withdrawal import TapWithdrawal
from nac_drive.policies.ops.liquid import LiquidNetwork
from nac_drive.policies.ops.liquid_naive import naive_liquid_network
from nac_drive.policies.wiring.tap_withdrawal import EXCITATORY, NEURONS, tap_withdrawal_circuit
from tests.contracts import CoreContract


class TestTapWithdrawal(CoreContract):
    def make_core(self) -> Core:
        return TapWithdrawal(5, 8)


class TestRandomCircuit(CoreContract):
    def make_core(self) -> Core:
        return TapWithdrawal(5, 8, wiring="d", seed=3)


def plain(core: TapWithdrawal) -> TapWithdrawal:
    """The same core, whose two inputs are the two variables themselves."""
    with torch.no_grad():
        core.encode.weight.copy_(torch.eye(2))
        core.encode.bias.zero_()
    return core


def test_each_variable_drives_a_pair_of_sensory_neurons() -> None:
    core = plain(TapWithdrawal(2, 1))
    x = torch.tensor([[0.3, 0.0], [-0.4, 0.0], [0.0, 0.7], [0.0, -1.5], [2.0, -0.1], [0.0, 0.0]])
    expected = {"PVD": [0, 0, 0, 1, 0.1, 0], "PLM": [0.3, 0, 0, 0, 1, 0], "AVM": [0, 0.4, 0, 0, 0, 0]}
    expected["ALM"] = [0, 0, 0.7, 0, 0, 0]
    torch.testing.assert_close(core.sense(x), torch.tensor([expected[name] for name in NEURONS[:4]]).float().T)


@pytest.mark.parametrize(("wiring", "synapses"), [("tap-withdrawal", 28), ("d", 28), ("a", None)])
def test_the_network_has_the_synapses_of_the_circuit(wiring: str, synapses: int | None) -> None:
    core = TapWithdrawal(3, 2, wiring=wiring, seed=5)
    network, kinds = core.network, torch.from_numpy(tap_withdrawal_circuit(wiring, 5))[:, 4:]
    assert network.electrical is not None
    masks = torch.cat((network.sensory.mask | network.electrical.mask, network.recurrent.mask), dim=1).T  # (11, 7)
    assert torch.equal(masks, kinds != 0)
    assert not (network.sensory.mask & network.electrical.mask).any()
    if synapses is not None:
        assert sum(part.weight.numel() for part in (network.sensory, network.electrical, network.recurrent)) == synapses
    for part, own in ((network.sensory, kinds[:4]), (network.recurrent, kinds[4:])):
        assert torch.equal(part.reversal > 0.5, own.T[part.mask] == EXCITATORY)


@pytest.mark.parametrize("recorded", [True, False])
def test_equals_the_naive_solver_with_electrical_synapses(recorded: bool) -> None:
    torch.manual_seed(0)
    core = TapWithdrawal(2, 3).double()
    x, dt, v = torch.randn(3, 9, 2).double(), 0.002 + 0.2 * torch.rand(3, 9).double(), torch.randn(3, 7).double()
    with torch.set_grad_enabled(recorded):
        y, (after,) = core(x, dt, (v,))
        path = naive_liquid_network(core.network, core.sense(x), dt, v)
        torch.testing.assert_close(y, core.readout(path[..., -2:]), atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(after, path[:, -1], atol=1e-12, rtol=1e-12)


def test_an_electrical_synapse_draws_a_neuron_towards_its_input() -> None:
    """One neuron with a leak and one electrical synapse: C dv/dt = g (leak - v) + w (x - v), solved exactly."""
    none = torch.zeros(1, 1, dtype=torch.bool)
    network = LiquidNetwork(none, none, 2000, electrical_mask=~none).double()
    x, seconds, v = 0.9, 0.7, 0.2
    capacitance, conductance = (part.item() for part in torch.nn.functional.softplus(
        torch.cat((network.capacitance, network.conductance))
    ))  # fmt: skip
    assert network.electrical is not None
    weight = network.electrical.dense().item()
    rest = (conductance * network.leak.item() + weight * x) / (conductance + weight)
    expected = rest + (v - rest) * math.exp(-seconds * (conductance + weight) / capacitance)
    arguments = (torch.tensor([[[x]]]), torch.tensor([[seconds]]), torch.tensor([[v]]))
    found = network(*(tensor.double() for tensor in arguments))
    assert found.item() == pytest.approx(expected, abs=1e-3)


def test_it_runs_in_the_precision_of_its_weights() -> None:
    torch.manual_seed(0)
    network = TapWithdrawal(2, 2).network
    sensory = torch.rand(2, 7, 4)
    plain_path = network(sensory, torch.full((2, 7), 0.02), torch.zeros(2, 7))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(network(sensory, torch.full((2, 7), 0.02), torch.zeros(2, 7)), plain_path)


def test_unknown_settings_are_named() -> None:
    with pytest.raises(ValueError, match="wiring: must be one of tap-withdrawal, a, b, c, d, got 'ncp'"):
        build_core("tap-withdrawal", 5, 8, wiring="ncp")
    with pytest.raises(ValueError, match="unfolds: must be at least 1"):
        build_core("tap-withdrawal", 5, 8, unfolds=0)
