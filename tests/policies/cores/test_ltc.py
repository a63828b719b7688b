"""LTC: the lemmas of the thesis, and the same numbers by other routes. NCP: its wirings and their baselines."""

from __future__ import annotations

from typing import Any

import ncps.wirings
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ncps.torch import LTCCell
from torch import Tensor
from torch.func import functional_call
from torchdiffeq import odeint

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.ltc import LTC, NCP, scattered_wiring
from nac_drive.policies.ops.liquid import LiquidNetwork
from nac_drive.policies.wiring.graphs import ncp_wiring
from nac_drive.policies.wiring.wiring import Groups
from tests.contracts import CoreContract, unmoved_by_autocast


class TestLTC(CoreContract):
    def make_core(self) -> Core:
        return LTC(5, 8)


def ncps_cell(network: LiquidNetwork) -> LTCCell:
    """ncps' cell with the wiring and the weights of `network`."""
    units, inputs = network.recurrent.mask.shape[0], network.sensory.mask.shape[1]
    wiring = ncps.wirings.Wiring(units)
    wiring.set_input_dim(inputs)
    wiring.set_output_dim(units)
    wiring.adjacency_matrix = network.recurrent.mask.T.int().numpy()
    wiring.sensory_adjacency_matrix = network.sensory.mask.T.int().numpy()
    cell = LTCCell(
        wiring,
        input_mapping="none",
        output_mapping="none",
        ode_unfolds=network.unfolds,
        implicit_param_constraints=True,
    )
    with torch.no_grad():
        for prefix, synapses in (("", network.recurrent), ("sensory_", network.sensory)):
            pairs = ("w", "weight"), ("erev", "reversal"), ("sigma", "gain"), ("mu", "center")
            for theirs, ours in pairs:
                cell._params[prefix + theirs].T[synapses.mask] = getattr(synapses, ours)
        for theirs, ours in (("gleak", "conductance"), ("vleak", "leak"), ("cm", "capacitance")):
            cell._params[theirs].copy_(getattr(network, ours))
    return cell


@pytest.mark.parametrize("density", [1.0, 0.4])
def test_equals_ncps_on_copied_weights(density: float) -> None:
    torch.manual_seed(0)
    network = LiquidNetwork(torch.rand(5, 8) < density, torch.rand(8, 8) < density, unfolds=6)
    cell = ncps_cell(network)
    x, dt, start = torch.randn(3, 9, 5), 0.002 + 0.2 * torch.rand(3, 9), 0.5 * torch.randn(3, 8)
    together = network(x, dt, start)
    for row in range(3):  # ncps takes one dt for all rows
        v = start[row : row + 1]
        for step in range(9):
            _, v = cell(x[row : row + 1, step], v, dt[row, step])
            torch.testing.assert_close(together[row : row + 1, step], v, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", ["euler", "rk4"])
def test_explicit_solvers_equal_those_of_torchdiffeq(method: Any) -> None:
    torch.manual_seed(0)
    core = LTC(5, 8, unfolds=16, solver=method).double()
    x, dt, start = torch.randn(2, 3, 5).double(), 0.01 + 0.03 * torch.rand(2, 3).double(), torch.randn(2, 8).double()
    y, _ = core(x, dt, (start,))
    network, sigmoid = core.network, torch.sigmoid
    for row in range(2):
        v = start[row]
        for step in range(3):

            def slope(t: Tensor, v: Tensor, inputs: Tensor = x[row, step]) -> Tensor:
                change = F.softplus(network.conductance) * (network.leak - v)
                for part, source in ((network.sensory, inputs), (network.recurrent, v)):
                    weight, reversal, gain, center = (
                        value.view(8, -1) for value in (part.weight, part.reversal, part.gain, part.center)
                    )
                    s = sigmoid(gain * (source - center))  # (8, M)
                    change = change + (F.softplus(weight) * s * (reversal - v[:, None])).sum(dim=1)
                return change / F.softplus(network.capacitance)

            times = torch.linspace(0, float(dt[row, step]), 17, dtype=torch.float64)
            # the classical rule; theirs named rk4 is the 3/8 rule, of the same order
            v = odeint(slope, v, times, method=method)[-1]  # type: ignore[index]
            tolerance = 1e-12 if method == "euler" else 1e-9
            torch.testing.assert_close(y[row, step], v, atol=tolerance, rtol=0)


def test_all_solvers_converge_to_one_path() -> None:
    paths = []
    for solver in ("hybrid", "euler", "rk4"):
        torch.manual_seed(0)
        core = LTC(5, 8, unfolds=400 if solver != "rk4" else 40, solver=solver).double()
        torch.manual_seed(1)
        x, dt = torch.randn(2, 6, 5).double(), 0.02 + 0.05 * torch.rand(2, 6).double()
        paths.append(core(x, dt, (torch.zeros(2, 8).double(),))[0])
    for path in paths[:2]:
        torch.testing.assert_close(path, paths[2], atol=2e-3, rtol=0)


def test_an_unknown_solver_is_refused() -> None:
    with pytest.raises(ValueError, match="solver: must be one of hybrid, euler, rk4, got 'rk5'"):
        LTC(5, 8, solver="rk5")  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_the_state_stays_between_its_potentials(scale: float) -> None:
    """Lemma 9, from the state 0, with weights, inputs and time spans however large."""
    torch.manual_seed(0)
    core = LTC(5, 8)
    synapses = core.network.sensory, core.network.recurrent
    with torch.no_grad():
        for part in synapses:
            part.weight.add_(scale)
            part.reversal.normal_()
        y, _ = core(scale * torch.randn(4, 30, 5), scale * torch.rand(4, 30), core.initial_state(4))
    potentials = [part.reversal.detach().view(8, -1) for part in synapses]
    potentials = torch.cat((*potentials, core.network.leak.detach()[:, None], torch.zeros(8, 1)), dim=1)  # (8, 15)
    assert (y >= potentials.amin(dim=1)).all()
    assert (y <= potentials.amax(dim=1)).all()
    assert (y.amax(dim=(0, 1)) - y.amin(dim=(0, 1)) > 0.05).all()  # and it does move


def test_a_neuron_driven_by_one_strong_synapse_settles_at_its_potential() -> None:
    core = LTC(1, 1)
    with torch.no_grad():
        core.network.recurrent.weight.fill_(-30.0)
        core.network.sensory.weight.fill_(1e4)
        core.network.sensory.reversal.fill_(0.7)
        y, _ = core(torch.full((1, 1, 1), 9.0), torch.full((1, 1), 1.0), core.initial_state(1))
    assert y.item() == pytest.approx(0.7, abs=1e-3)


def test_coupling_sensitivities_are_bounded() -> None:
    """Lemma 8. One solver step gives dv'/dleak = g / (C / dt + g + sum w s), hence tau = C / (g + sum w s)."""
    torch.manual_seed(0)
    core, seconds = LTC(5, 8, unfolds=1), 0.02
    network = core.network
    capacitance, conductance = F.softplus(network.capacitance), F.softplus(network.conductance)
    weights = [F.softplus(part.weight).view(8, -1).sum(dim=1) for part in (network.sensory, network.recurrent)]
    slowest = capacitance / conductance
    fastest = capacitance / (conductance + sum(weights))
    taus = []
    for size in (0.0, 1.0, 100.0):
        x, start = torch.full((1, 1, 5), size), torch.rand(1, 8)
        y, _ = core(x, torch.full((1, 1), seconds), (start,))
        (slope,) = torch.autograd.grad(y.sum(), network.leak)
        tau = capacitance / (conductance / slope - capacitance / seconds)
        torch.testing.assert_close(core.coupling_sensitivity(x[:, 0], (start,))[0], tau, rtol=1e-3, atol=0)
        assert ((tau > fastest * 0.999) & (tau < slowest * 1.001)).all()
        taus.append(tau)
    assert (taus[0] > 1.1 * taus[2]).all()  # liquid: inputs make it faster
    assert 0.02 < fastest.median() < 0.2 < slowest.median() < 20.0  # 13 synapses per neuron, at the start


@pytest.mark.parametrize("name", ["ltc", "ncp"])
def test_the_coupling_sensitivity_is_the_linear_response(name: str) -> None:
    """tau = -1 / (d/dv dv/dt), from a small displacement of every neuron, without synapses to itself."""
    torch.manual_seed(0)
    core = LTC(5, 8, unfolds=1, solver="euler") if name == "ltc" else NCP(5, 8)
    core, step, seconds = core.double().requires_grad_(False), 1e-5, 1e-5
    network, (units,) = core.network, core.state_shapes()[0][0]
    rows, columns = network.recurrent.mask.nonzero(as_tuple=True)
    network.recurrent.weight[rows == columns] = -40.0
    x, v = torch.randn(3, 1, 5, dtype=torch.float64), torch.randn(3, units, dtype=torch.float64)
    dt, found = torch.full((3, 1), seconds, dtype=torch.float64), torch.empty(3, units, dtype=torch.float64)
    for i in range(units):
        ends = []
        for side in (-step, step):
            displaced = v.clone()
            displaced[:, i] += side
            _, (after,) = core(x, dt, (displaced,))
            ends.append((after - displaced)[:, i] / seconds)  # dv/dt
        found[:, i] = -2.0 * step / (ends[1] - ends[0])
    expected = core.coupling_sensitivity(x[:, 0], (v,))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)
    assert expected.std(dim=0).min() > 0  # it varies with the input and the state


def test_the_coupling_sensitivity_is_a_sum_over_synapses() -> None:
    torch.manual_seed(0)
    network = LiquidNetwork(torch.rand(3, 4) > 0.3, torch.rand(4, 4) > 0.3, 2).double().requires_grad_(False)
    x, v = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    found = network.coupling_sensitivity(x, v)
    for b in range(2):
        for i in range(4):
            total = F.softplus(network.conductance[i])
            for part, source in ((network.sensory, x[b]), (network.recurrent, v[b])):
                rows, columns = part.mask.nonzero(as_tuple=True)
                for n in (rows == i).nonzero()[:, 0]:
                    s = torch.sigmoid(part.gain[n] * (source[columns[n]] - part.center[n]))
                    total = total + F.softplus(part.weight[n]) * s
            assert found[b, i].item() == pytest.approx((F.softplus(network.capacitance[i]) / total).item())


def test_more_unfolds_converge_to_the_differential_equation() -> None:
    """The hybrid solver is of first order: twice the steps, half the error. The reference is Runge-Kutta on Eq. 3.4."""
    torch.manual_seed(0)
    core = LTC(3, 4).double()
    net = core.network
    x, v = torch.randn(3, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)

    def slope(v: Tensor) -> Tensor:
        current = F.softplus(net.conductance) * (net.leak - v)
        for part, source in ((net.sensory, x), (net.recurrent, v)):
            w, e, gamma, mu = (p.view(4, -1) for p in (F.softplus(part.weight), part.reversal, part.gain, part.center))
            current = current + (w * torch.sigmoid(gamma * (source - mu)) * (e - v[:, None])).sum(dim=1)
        return current / F.softplus(net.capacitance)

    h = 0.2 / 200
    with torch.no_grad():
        for _ in range(200):
            k_1 = slope(v)
            k_2 = slope(v + h / 2 * k_1)
            k_3 = slope(v + h / 2 * k_2)
            v = v + h / 6 * (k_1 + 2 * k_2 + 2 * k_3 + slope(v + h * k_3))
        errors = []
        for net.unfolds in (6, 12, 24, 48):
            y, _ = core(x.view(1, 1, 3), torch.full((1, 1), 0.2, dtype=torch.float64), core.initial_state(1))
            errors.append((y - v).abs().max().item())
    assert errors[0] < 0.1
    ratios = np.divide(errors[:-1], errors[1:])
    assert (ratios > 1.8).all(), ratios
    assert (ratios < 2.3).all(), ratios


@pytest.mark.parametrize("density", [1.0, 0.5])
def test_the_written_out_gradient_is_the_gradient(density: float) -> None:
    """40 solver steps of two rows: more than are taken together on the way back."""
    torch.manual_seed(0)
    network = LiquidNetwork(torch.rand(3, 4) < density, torch.rand(4, 4) < density, unfolds=4).double()
    names, parameters = zip(*network.named_parameters(), strict=True)
    x, v = torch.randn(2, 10, 3, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    dt = 0.02 + 0.1 * torch.rand(2, 10, dtype=torch.float64)
    inputs = [tensor.detach().requires_grad_() for tensor in (x, dt, v, *parameters)]

    def run(x: Tensor, dt: Tensor, v: Tensor, *parameters: Tensor) -> Tensor:
        return functional_call(network, dict(zip(names, parameters, strict=True)), (x, dt, v))

    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize("unfolds", [1, 6])
def test_a_gradient_that_is_not_recorded_changes_nothing(unfolds: int) -> None:
    torch.manual_seed(0)
    core = LTC(5, 8, unfolds=unfolds)
    x, dt = torch.randn(3, 7, 5), torch.rand(3, 7)
    recorded, _ = core(x, dt, core.initial_state(3))
    with torch.no_grad():
        y, _ = core(x, dt, core.initial_state(3))
    assert torch.equal(y, recorded)


def test_no_time_no_change() -> None:
    torch.manual_seed(0)
    core, start = LTC(5, 8), torch.rand(2, 8)
    y, _ = core(torch.randn(2, 1, 5), torch.zeros(2, 1), (start,))
    torch.testing.assert_close(y[:, 0], start, atol=1e-4, rtol=0.0)


def test_streaming_notices_new_weights() -> None:
    torch.manual_seed(0)
    core = LTC(5, 8)
    x, dt = torch.randn(1, 1, 5), torch.full((1, 1), 0.02)
    for parameter in core.parameters():
        with torch.no_grad():
            before, _ = core(x, dt, core.initial_state(1))
            parameter.add_(0.1)
            after, _ = core(x, dt, core.initial_state(1))
        recorded, _ = core(x, dt, core.initial_state(1))
        assert torch.equal(after, recorded)
        assert not torch.equal(after, before)


def test_autocast_changes_nothing() -> None:
    torch.manual_seed(0)
    assert unmoved_by_autocast(LTC(5, 8))


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="unfolds: must be at least 1 solver step per frame, got 0"):
        LTC(5, 8, unfolds=0)


# --- Neural Circuit Policies -----------------------------------------------------------------------------------------


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
    """Number of synapses from inputs, and among neurons."""
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
def test_the_random_baseline_has_as_many_synapses_elsewhere(seed: int) -> None:
    ncp, baseline = NCP(64, 64, seed=seed), NCP(64, 64, seed=seed, wiring="random")
    assert synapses(baseline) == synapses(ncp)
    into = baseline.wiring.recurrent_mask
    layered = ncp.wiring.recurrent_mask
    assert (into & layered).sum() < 0.5 * layered.sum()
    assert into[:12, :12].any() or into[12:, :12].any()  # back into the inter neurons: no layers
    count = sum(parameter.numel() for parameter in baseline.parameters())
    assert count == sum(parameter.numel() for parameter in ncp.parameters())


def test_the_full_baseline_has_all_synapses() -> None:
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
def test_bad_settings_of_an_ncp_are_named(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NCP(5, 8, **settings)
