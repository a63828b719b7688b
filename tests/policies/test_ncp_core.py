"""LTC neurons on NCP wirings and their baselines."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nac_drive.policies.cores.ncp import NCP, scattered_wiring

from nac_drive.policies.cores.base import Core
from nac_drive.policies.wiring.graphs import ncp_wiring
from nac_drive.policies.wiring.wiring import Groups
from tests.contracts import CoreContract
from tests.policies.test_ltc import ncps_cell


class TestNCP(CoreContract):
    def make_core(self) -> Core:
        return NCP(5, 8)


class TestRandomNCP(CoreContract):
    def make_core(self) -> Core:
        return NCP(5, 8, wiring="random")


class TestFullNCP(CoreContract):
    def make_core(self) -> Core:
        return NCP(5, 8, wiring="full")


def synapses(core: NCP) -> tuple[int, int]:
    """How many there are from inputs, and among neurons."""
    return int(core.wiring.input_mask.sum()), int(core.wiring.recurrent_mask.sum())


def test_the_circuit_of_the_thesis_has_19_neurons_in_layers() -> None:
    core = NCP(64, 64, motor=1)
    assert core.wiring.units == 19
    into, inter, command, motor = core.wiring.recurrent_mask, slice(0, 12), slice(12, 18), slice(18, 19)
    assert into[inter, command].any(axis=1).all()
    assert into[command, motor].any(axis=0).all()
    into = into.copy()
    for source, target in ((inter, command), (command, command), (command, motor)):
        into[source, target] = False
    assert not into.any()
    assert not core.wiring.input_mask[:, 12:].any()
    assert NCP(64, 64).wiring.units == 21


@pytest.mark.parametrize("seed", range(5))
def test_the_random_rival_has_as_many_synapses_elsewhere(seed: int) -> None:
    ncp, baseline = NCP(64, 64, seed=seed), NCP(64, 64, seed=seed, wiring="random")
    assert synapses(baseline) == synapses(ncp)
    into = baseline.wiring.recurrent_mask
    layered = ncp.wiring.recurrent_mask
    assert (into & layered).sum() < 0.5 * layered.sum()
    assert into[:12, :12].any() or into[12:, :12].any()  # back into the inter neurons: no layers
    count = sum(parameter.numel() for parameter in baseline.parameters())
    assert count == sum(parameter.numel() for parameter in ncp.parameters())


def test_the_full_rival_has_all_synapses() -> None:
    assert synapses(NCP(64, 64, wiring="full")) == (64 * 12, 21 * 21)


@pytest.mark.parametrize("wiring", ["ncp", "random", "full"])
def test_only_synapses_that_exist_have_parameters(wiring: str) -> None:
    core = NCP(64, 64, wiring=wiring)
    expected = 4 * sum(synapses(core)) + 3 * 21 + 64 * (3 + 1)  # w, E, gamma, mu; C, g, leak; W, b
    assert sum(parameter.numel() for parameter in core.parameters()) == expected


@pytest.mark.parametrize("wiring", ["ncp", "random", "full"])
def test_equals_ncps_on_copied_weights_and_wiring(wiring: str) -> None:
    torch.manual_seed(0)
    core = NCP(5, 8, wiring=wiring)
    cell, v = ncps_cell(core.network), torch.zeros(1, 21)
    x, dt = torch.randn(1, 9, 5), 0.002 + 0.2 * torch.rand(1, 9)
    y, (last,) = core(x, dt, core.initial_state(1))
    for step in range(9):
        _, v = cell(x[:, step], v, dt[0, step])
        torch.testing.assert_close(y[:, step], core.readout(v[:, 18:]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(last, v, atol=1e-5, rtol=1e-5)


def test_signals_leave_through_the_motor_neurons_alone() -> None:
    """Every output lies on a plane of as many dimensions as there are motor neurons."""
    torch.manual_seed(0)
    core = NCP(5, 8, motor=2)
    y, _ = core(10.0 * torch.randn(4, 20, 5), torch.full((4, 20), 0.1), core.initial_state(4))
    spread = torch.linalg.svdvals((y - core.readout.bias).flatten(0, 1))
    assert spread[1] > 1e-3
    assert spread[2] < 1e-5


def test_an_input_takes_a_step_per_layer_to_the_motor_neurons() -> None:
    """With one solver step per frame, signals cross one synapse per frame: inter, command, motor."""
    torch.manual_seed(0)
    core = NCP(5, 8, unfolds=1)
    x, dt = torch.randn(1, 6, 5), torch.full((1, 6), 0.1)
    changed = x.clone()
    changed[:, 1] += 1.0
    base, _ = core(x, dt, core.initial_state(1))
    moved = (core(changed, dt, core.initial_state(1))[0] - base).abs().amax(dim=(0, 2)) > 0.0
    assert moved.tolist() == [False, False, False, True, True, True]


def test_a_scattered_wiring_comes_from_its_seed() -> None:
    groups = Groups(inter=12, command=6, motor=3, input_group="inter")
    first, second, other = (scattered_wiring(9, groups, sparsity=0.5, seed=seed) for seed in (1, 1, 2))
    assert first == second
    assert first != other
    assert np.count_nonzero(first.recurrent_mask) == np.count_nonzero(
        ncp_wiring(9, groups, sparsity=0.5, seed=1).recurrent_mask
    )


def test_autocast_keeps_the_state() -> None:
    torch.manual_seed(0)
    core = NCP(5, 8)
    x, dt = torch.randn(2, 7, 5), torch.full((2, 7), 0.02)
    with torch.autocast("cpu", torch.bfloat16):
        y, (state,) = core(x, dt, core.initial_state(2))
    y.float().square().sum().backward()
    plain, (expected,) = core(x, dt, core.initial_state(2))
    assert torch.equal(state, expected)
    torch.testing.assert_close(y.float(), plain, atol=1e-2, rtol=1e-2)
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in core.parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"wiring": "mlp"}, r"wiring: must be one of \['full', 'ncp', 'random'\], got 'mlp'"),
        ({"command": 0}, "command: an active group must hold at least one neuron, got 0"),
        ({"sparsity": 1.0}, r"sparsity: must be in \[0, 1\), got 1.0"),
        ({"unfolds": 0}, "unfolds: must be at least 1 solver step per frame, got 0"),
        ({"wiring": "random", "sparsity": 0.99}, "sparsity: 1000 wirings drawn at sparsity=0.99 all failed"),
    ],
)
def test_bad_settings_are_named(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NCP(5, 8, **settings)
