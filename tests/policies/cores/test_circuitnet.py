"""The recurrent CircuitNet: its activation, its motifs, its ports."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import erfi
from torch import Tensor

from nac_drive.experiments.protocol import load
from nac_drive.policies import build_core
from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.circuitnet import AMPLITUDE, CircuitNet, clip_sin
from tests.contracts import CoreContract

MOTIFS: dict[str, dict[str, bool]] = {
    "l": {},
    "la": {"attention": True},
    "lp": {"product": True},
    "lap": {"attention": True, "product": True},
}


def build(motifs: str, **settings: Any) -> CircuitNet:
    torch.manual_seed(0)
    return CircuitNet(5, 8, units=3, neurons=4, **MOTIFS[motifs], **settings)


class TestL(CoreContract):
    def make_core(self) -> Core:
        return CircuitNet(5, 8, units=3, neurons=4)


class TestLA(CoreContract):
    def make_core(self) -> Core:
        return CircuitNet(5, 8, units=3, neurons=4, attention=True)


class TestLP(CoreContract):
    def make_core(self) -> Core:
        return CircuitNet(5, 8, units=3, neurons=4, product=True)


class TestLAP(CoreContract):
    def make_core(self) -> Core:
        return CircuitNet(5, 8, units=3, neurons=4, attention=True, product=True)


class TestSeveralIterations(CoreContract):
    def make_core(self) -> Core:
        return CircuitNet(5, 8, units=3, neurons=4, attention=True, iterations=2)


class TestClipSin:
    def test_has_the_values_of_equation_8(self) -> None:
        x = torch.tensor([-13.0, -3.0, -1.0, 0.0, 1.0, 2.0, 3.0, 5.0])
        expected = torch.tensor([-3.488235, -3.388235, -1.6941175, 0.0, 1.6941175, 2.9342976, 3.388235, 3.408235])
        torch.testing.assert_close(clip_sin(x), expected, atol=2e-6, rtol=0.0)

    def test_has_no_jump_and_its_slope_falls_to_zero_at_3_and_is_a_hundredth_beyond(self) -> None:
        x = torch.tensor([-3.0 - 1e-6, -3.0 + 1e-6, 0.0, 3.0 - 1e-6, 3.0 + 1e-6, 50.0], dtype=torch.float64)
        x.requires_grad_()
        y = clip_sin(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
        steepest = AMPLITUDE * math.pi / 6.0
        assert slope.tolist() == pytest.approx([0.01, 0.0, steepest, 0.0, 0.01, 0.01], abs=2e-6)
        assert y[0].item() == pytest.approx(y[1].item(), abs=1e-7)
        assert y[3].item() == pytest.approx(y[4].item(), abs=1e-7)

    def test_its_amplitude_is_the_closed_form_of_the_paper_which_makes_equation_28_two(self) -> None:
        """Over standard normal x and y, the mean of |A sin(omega y) A omega cos(omega x)| was to be 1."""
        closed = 2.0 * math.exp(math.pi**2 / 72.0) * math.sqrt(3.0 / (math.pi * erfi(math.pi / (6.0 * math.sqrt(2.0)))))
        assert closed == pytest.approx(AMPLITUDE, abs=1e-6)
        omega, x = math.pi / 6.0, np.linspace(-12.0, 12.0, 100_001)
        density = np.exp(-0.5 * x**2) / np.sqrt(2.0 * np.pi)
        sine, cosine = (np.sum(np.abs(f(omega * x)) * density) * (x[1] - x[0]) for f in (np.sin, np.cos))
        assert AMPLITUDE**2 * omega * sine * cosine == pytest.approx(2.0, abs=0.01)


def step_by_hand(core: CircuitNet, x: Tensor, neurons: Tensor) -> Tensor:
    """One iteration, neuron by neuron, from the equations: x (F,), neurons (units, M) -> (units, M)."""
    units, M, ports = core.units, core.unit_size, core.ports
    edges = {pair: k for k, pair in enumerate((i, j) for i in range(units) for j in range(units) if i != j)}
    after = torch.zeros(units, M)
    for u in range(units):
        X = neurons[u]
        for i in range(M):
            signal = sum(core.linear[u, i, j] * X[j] for j in range(M))  # Eq. 1
            if core.attention is not None:  # Eq. 2 and 3
                Q, K, V = core.attention[u, :M], core.attention[u, M : 2 * M], core.attention[u, 2 * M :]
                scores = [torch.exp(Q[i].dot(X) * K[j].dot(X)) for j in range(M)]
                signal = signal + sum(scores[j] / sum(scores) * V[j].dot(X) for j in range(M))
            if core.product is not None:  # Eq. 4
                signal = signal + sum(0.5 * core.product[u, i, j, k] * X[j] * X[k] for j in range(M) for k in range(M))
            if i < ports:  # Eq. 7
                for v in range(units):
                    if v != u:
                        weight = core.between[edges[u, v]]
                        signal = signal + sum(weight[i, p] * neurons[v, M - ports + p] for p in range(ports))
            row = u * M + i
            drive = clip_sin(core.input.weight[row].dot(x) + core.input.bias[row])  # Eq. 11
            after[u, i] = clip_sin(signal + core.bias[row] + drive)  # Eq. 9 and 10
    return after


@pytest.mark.parametrize("iterations", [1, 2])
@pytest.mark.parametrize("motifs", ["l", "la", "lp", "lap"])
def test_equals_the_equations_written_out_neuron_by_neuron(motifs: str, iterations: int) -> None:
    core = build(motifs, iterations=iterations)
    with torch.no_grad():
        core.bias.copy_(torch.randn(12))
        x, dt = 2.0 * torch.randn(1, 3, 5), torch.full((1, 3), 0.02)
        y, (last,) = core(x, dt, core.initial_state(1))
        neurons = torch.zeros(3, 4)
        for frame in range(3):
            for _ in range(iterations):
                neurons = step_by_hand(core, x[0, frame], neurons)
            torch.testing.assert_close(y[0, frame], core.output(neurons.flatten()), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(last[0], neurons.flatten(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("motifs", ["la", "lp", "lap"])
def test_with_its_further_motifs_at_zero_it_is_the_linear_one(motifs: str) -> None:
    core, linear = build(motifs), build("l")
    weights = core.state_dict()
    for motif in {"attention", "product"} & weights.keys():
        weights.pop(motif).zero_()
    linear.load_state_dict(weights)
    x, dt = torch.randn(2, 9, 5), torch.full((2, 9), 0.02)
    expected, _ = linear(x, dt, linear.initial_state(2))
    torch.testing.assert_close(core(x, dt, core.initial_state(2))[0], expected, atol=1e-6, rtol=1e-6)
    fresh = build(motifs)
    assert not torch.allclose(fresh(x, dt, fresh.initial_state(2))[0], expected, atol=1e-3)


def interaction(core: CircuitNet, neurons: Tensor) -> Tensor:
    """The signal of a first frame of zeros to each neuron, without the linear motif, which is cut: (B, N) -> (B, N)."""
    with torch.no_grad():
        for weight in (core.linear, core.between, core.input.weight, core.input.bias):
            weight.zero_()
    batch = len(neurons)
    _, (after,) = core(torch.zeros(batch, 1, 5), torch.full((batch, 1), 0.02), (neurons,))
    assert after.abs().max() < AMPLITUDE  # where ClipSin can be inverted
    return 6.0 / math.pi * torch.asin(after / AMPLITUDE)


def test_the_weights_of_attention_sum_to_one() -> None:
    """If all values of a CMU are equal, the weights of the attention do not matter, provided that they sum to one."""
    core, neurons = build("la"), 0.5 * torch.randn(2, 12)
    assert core.attention is not None
    with torch.no_grad():
        core.attention[:, :8].mul_(5.0)  # queries and keys
        core.attention[:, 8:] = core.attention[:, 8:9]  # values
    value = torch.einsum("uj,buj->bu", core.attention[:, 8], neurons.view(2, 3, 4))
    torch.testing.assert_close(
        interaction(core, neurons).view(2, 3, 4), value.unsqueeze(2).expand(2, 3, 4), atol=1e-5, rtol=1e-5
    )


def test_attention_without_queries_is_the_mean_of_the_values() -> None:
    core, neurons = build("la"), 0.5 * torch.randn(2, 12)
    assert core.attention is not None
    with torch.no_grad():
        core.attention[:, :4].zero_()
    mean = torch.einsum("uij,buj->bu", core.attention[:, 8:], neurons.view(2, 3, 4)) / 4.0
    torch.testing.assert_close(
        interaction(core, neurons).view(2, 3, 4), mean.unsqueeze(2).expand(2, 3, 4), atol=1e-5, rtol=1e-5
    )


def test_products_are_even_and_quadratic() -> None:
    core, neurons = build("lp"), 0.5 * torch.randn(2, 12)
    once = interaction(core, neurons)
    assert once.abs().max() > 0.05
    torch.testing.assert_close(interaction(core, -neurons), once, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(interaction(core, 2.0 * neurons), 4.0 * once, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("motifs", ["l", "la", "lp"])
def test_signals_travel_between_units_through_ports_alone(motifs: str) -> None:
    """A nudge of each neuron of unit 0 in turn: who has moved after one iteration, two and three?"""
    x, dt = torch.zeros(4, 1, 5), torch.full((4, 1), 0.02)
    start = 0.3 * torch.randn(1, 12, generator=torch.Generator().manual_seed(1)).expand(4, -1)
    nudged = start.clone()
    nudged[:, :4] += 0.2 * torch.eye(4)

    def moved(iterations: int) -> Tensor:
        core = build(motifs, iterations=iterations)
        assert core.ports == 3
        (before,), (after,) = core(x, dt, (start,))[1], core(x, dt, (nudged,))[1]
        return ((after - before).abs() > 1e-5).view(4, 3, 4)  # nudged neuron, unit, neuron

    once, twice, thrice = moved(1), moved(2), moved(3)
    assert once[:, 0].all()  # at home, all are connected
    assert not once[0, 1:].any()  # neuron 0 is no output port
    assert once[1:, 1:, :3].all()
    assert not once[:, 1:, 3].any()  # neuron 3 is no input port
    assert twice[0, 1:, :3].all()  # neuron 0 by way of its neighbours
    assert not twice[0, 1:, 3].any()
    assert thrice.all()


@pytest.mark.parametrize(
    ("motifs", "per_unit"), [("l", 4**2), ("la", 4 * 4**2), ("lp", 4**3 + 4**2), ("lap", 4**3 + 4 * 4**2)]
)
def test_parameters_within_a_unit_are_as_many_as_in_table_11(motifs: str, per_unit: int) -> None:
    core = build(motifs)
    within = [weight for weight in (core.linear, core.attention, core.product) if weight is not None]
    assert sum(weight.numel() for weight in within) == 3 * per_unit
    assert core.between.numel() == 3 * 2 * 3 * 3  # edges, ports, ports


@pytest.mark.parametrize("motifs", ["l", "la", "lp"])
def test_a_long_loud_stream_stays_bounded(motifs: str) -> None:
    core = build(motifs)
    with torch.no_grad():
        _, (neurons,) = core(100.0 * torch.randn(2, 300, 5), torch.full((2, 300), 0.02), core.initial_state(2))
    assert neurons.abs().max() < AMPLITUDE + 0.5


def test_one_unit_alone_has_no_edges() -> None:
    core = CircuitNet(5, 8, units=1, neurons=4)
    assert core.between.numel() == 0
    x, dt = torch.randn(1, 3, 5), torch.full((1, 3), 0.02)
    assert core(x, dt, core.initial_state(1))[0].isfinite().all()


@pytest.mark.parametrize("motifs", ["l", "la", "lp"])
def test_autocast_changes_the_precision_and_little_else(motifs: str) -> None:
    core = build(motifs)
    x, dt = torch.randn(2, 5, 5), torch.full((2, 5), 0.02)
    expected, _ = core(x, dt, core.initial_state(2))
    with torch.autocast("cpu", torch.bfloat16):
        y, state = core(x, dt, core.initial_state(2))
        y.float().square().sum().backward()
    torch.testing.assert_close(y.float(), expected, atol=0.1, rtol=0.1)
    assert [tensor.dtype for tensor in state] == [torch.float32]
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in core.parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"units": 0}, "units: must be at least 1, got 0"),
        ({"neurons": 1}, "neurons: must be at least 2, got 1"),
        ({"iterations": 0}, "iterations: must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CircuitNet(5, 8, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "neurons", "ports"), [("l", 64, 48), ("la", 40, 30), ("lp", 32, 24), ("lap", 24, 18)])
def test_the_full_protocol_has_the_sizes_of_table_8(name: str, neurons: int, ports: int) -> None:
    protocol = load("circuitnet-rl").at_full_size()
    (entry,) = (entry for entry in protocol.entries if entry.core == f"circuitnet-{name}")
    core: Any = build_core(entry.core, 128, 128, **protocol.core_args(entry))
    assert (core.units, core.unit_size, core.ports, core.iterations) == (4, neurons, ports, 2)
    assert (core.attention is not None, core.product is not None) == ("a" in name, "p" in name)
