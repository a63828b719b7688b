"""PDNA: five variants on one CfC, and the pulse as a part of its evolution."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.cfc import CfC
from nac_drive.policies.cores.pdna import PDNA, PDNAODE, NoisyCfC, Pulse, SelfAttend, hashed_noise
from tests.contracts import CoreContract

MODULES = {"a": (False, False), "c": (True, False), "d": (False, True), "e": (True, True)}


def build(
    variant: str, input_size: int = 5, output_size: int = 8, backbone_units: int = 16
) -> PDNA | PDNAODE | NoisyCfC:
    if variant == "b":
        return NoisyCfC(input_size, output_size, backbone_units=backbone_units)
    if variant == "ode":
        return PDNAODE(input_size, output_size, backbone_units=backbone_units)
    pulse, self_attend = MODULES[variant]
    return PDNA(input_size, output_size, pulse=pulse, self_attend=self_attend, backbone_units=backbone_units)


class TestA(CoreContract):
    def make_core(self) -> Core:
        return build("a")


class TestB(CoreContract):
    def make_core(self) -> Core:
        return build("b")


class TestC(CoreContract):
    def make_core(self) -> Core:
        return build("c")


class TestD(CoreContract):
    def make_core(self) -> Core:
        return build("d")


class TestE(CoreContract):
    def make_core(self) -> Core:
        return build("e")


class TestODE(CoreContract):
    def make_core(self) -> Core:
        return build("ode")


def frames(batch: int = 3, length: int = 9) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(batch, length, 5, generator=generator)
    return x, 0.01 + 0.1 * torch.rand(batch, length, generator=generator)


def loud_pulse(size: int) -> Pulse:
    """A pulse of gate 0.7 and amplitudes around 1, so that what it does can be seen."""
    pulse = Pulse(size)
    with torch.no_grad():
        pulse.gate.fill_(0.7)
        pulse.amplitude.copy_(torch.linspace(0.5, 1.5, size))
    return pulse


@pytest.mark.parametrize(
    ("variant", "parameters"), [("a", 87_434), ("b", 87_435), ("c", 104_203), ("d", 103_819), ("e", 120_588)]
)
def test_parameters_are_as_many_as_in_table_7(variant: str, parameters: int) -> None:
    core = build(variant, 28, 128, backbone_units=128)
    classifier = 128 * 10 + 10
    assert sum(p.numel() for p in core.parameters()) + classifier == parameters


@pytest.mark.parametrize("variant", ["a", "b", "c", "d", "e", "ode"])
def test_with_the_gates_shut_every_variant_is_the_cfc(variant: str) -> None:
    torch.manual_seed(0)
    core = build(variant)
    x, dt = frames()
    expected, (last,) = core.cfc(x, dt, core.cfc.initial_state(3))
    opened, _ = core(x, dt, core.initial_state(3))
    assert torch.equal(opened, expected) == (variant == "a")
    with torch.no_grad():
        for name, parameter in core.named_parameters():
            if name.endswith("gate"):
                parameter.zero_()
    y, state = core(x, dt, core.initial_state(3))
    tolerance = 1e-6 if variant == "ode" else 0.0  # it steps through the equations by itself
    torch.testing.assert_close(y, expected, atol=tolerance, rtol=0.0)
    torch.testing.assert_close(state[0], last, atol=tolerance, rtol=0.0)


def test_initially_the_gates_are_a_hundredth_and_the_frequencies_evenly_spaced_in_logarithm() -> None:
    pulse = Pulse(5)
    torch.testing.assert_close(pulse.omega.detach(), torch.tensor([0.1, 10**-0.5, 1.0, 10**0.5, 10.0]))
    for module in (pulse, SelfAttend(5), NoisyCfC(5, 8)):
        assert math.isclose(module.gate.item(), 0.01, rel_tol=1e-6)


def test_the_pulse_by_the_clock() -> None:
    """A of 2 on a gate of 0.5. Omega a quarter and a twelfth of a turn per frame; the phase of the second is h pi / 2.

    The first frame of an episode has a dt of 0; between 0.06 s and 0.14 s three frames are lost.
    """
    core = build("c", output_size=2)
    assert isinstance(core, PDNA)
    assert core.pulse is not None
    with torch.no_grad():
        core.cfc.heads.weight.zero_()
        core.cfc.heads.bias.zero_()
        core.cfc.heads.bias[:4] = torch.atanh(torch.tensor([0.0, 1.0 - 1e-6, 0.0, 1.0 - 1e-6]))  # h = (0, 1), always
        core.pulse.gate.fill_(0.5)
        core.pulse.amplitude.fill_(2.0)
        core.pulse.omega.copy_(torch.tensor([math.pi / 2.0, math.pi / 6.0]))
        core.pulse.phase.weight.copy_(torch.tensor([[0.0, 0.0], [0.0, math.pi / 2.0]]))
        core.pulse.phase.bias.zero_()
    dt = torch.tensor([[0.0, 0.02, 0.02, 0.02, 0.08]])
    y, (_, t) = core(torch.randn(1, 5, 5), dt, core.initial_state(1))
    expected = torch.tensor(
        [  # sin(omega t), 1 + cos(omega t)
            [0.0, 2.0],  # t = 0 frames
            [1.0, 1.0 + 3.0**0.5 / 2.0],  # 1
            [0.0, 1.5],  # 2
            [-1.0, 1.0],  # 3
            [-1.0, 1.0 - 3.0**0.5 / 2.0],  # 7
        ]
    )
    torch.testing.assert_close(y[0], expected, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(t, torch.tensor([7.0], dtype=torch.float64), atol=1e-5, rtol=0.0)


def test_self_attention_is_written_out_and_comes_after_the_pulse() -> None:
    torch.manual_seed(0)
    core = build("e")
    assert isinstance(core, PDNA)
    assert core.pulse is not None
    assert core.self_attend is not None
    core.pulse = loud_pulse(8)
    with torch.no_grad():
        core.self_attend.gate.fill_(0.3)
    x, dt = frames(1, 4)
    y, _ = core(x, dt, core.initial_state(1))
    h, _ = core.cfc(x, dt, core.cfc.initial_state(1))
    for step in range(4):
        t = 50.0 * dt[0, : step + 1].sum().item()
        phase = core.pulse.phase.weight @ h[0, step] + core.pulse.phase.bias
        pulsed = h[0, step] + 0.7 * core.pulse.amplitude * torch.sin(core.pulse.omega * t + phase)
        for i in range(8):
            attended = sum(core.self_attend.projection.weight[i, j] * torch.sigmoid(pulsed[j]) for j in range(8))
            torch.testing.assert_close(y[0, step, i], pulsed[i] + 0.3 * attended, atol=1e-5, rtol=1e-5)


def test_the_clock_keeps_its_precision_over_an_hour() -> None:
    core = build("c")
    state = (torch.zeros(1, 8), torch.tensor([180_000.0], dtype=torch.float64))
    x, dt = frames(1, 1)
    assert isinstance(core, PDNA)
    core.pulse = loud_pulse(8)
    y, _ = core(x, dt, state)
    (h,), t = core.cfc(x, dt, state[:1])[0][:, 0], 180_000.0 + 50.0 * dt.item()
    phase = core.pulse.phase(h).double()
    expected = h + 0.7 * core.pulse.amplitude * torch.sin(core.pulse.omega.double() * t + phase)
    torch.testing.assert_close(y[0, 0].double(), expected, atol=2e-6, rtol=0.0)


class TestNoise:
    def test_is_added_to_the_cfc_in_training_alone_as_strong_as_its_gate(self) -> None:
        torch.manual_seed(0)
        core = build("b")
        x, dt = frames(8, 64)
        plain, _ = core.cfc(x, dt, core.cfc.initial_state(8))
        noise = (core(x, dt, core.initial_state(8))[0] - plain).flatten().detach()
        assert math.isclose(noise.std().item(), 0.01, rel_tol=0.05)
        core.eval()
        y, (_, index) = core(x, dt, core.initial_state(8))
        assert torch.equal(y, plain)
        assert index.tolist() == [64] * 8

    def test_is_standard_normal_and_white(self) -> None:
        x = torch.randn(4, 500, 5, generator=torch.Generator().manual_seed(0))
        noise = hashed_noise(x, torch.arange(500).expand(4, -1), 8)  # 16 000 numbers, standard error 0.008
        assert abs(noise.mean()) < 0.03
        assert abs(noise.var() - 1.0) < 0.04
        assert abs(noise.pow(4).mean() - 3.0) < 0.3
        for one, other in (
            (noise[:, 1:], noise[:, :-1]),
            (noise[1:], noise[:-1]),
            (noise[..., 1:], noise[..., :-1]),
            (noise[..., :4], noise[..., 4:]),
        ):
            assert abs((one * other).mean()) < 0.04

    def test_depends_on_the_frame_and_its_index_and_on_nothing_else(self) -> None:
        x, index = torch.randn(2, 3, 5), torch.tensor([[0, 1, 2], [3, 4, 5]])
        noise = hashed_noise(x, index, 7)
        assert noise.shape == (2, 3, 7)
        assert torch.equal(hashed_noise(x[1:, 2:], index[1:, 2:], 7), noise[1:, 2:])
        for changed, place in ((x, index + 1), (x + 1e-6, index), (-x, index), (x.flip(2), index)):
            other = hashed_noise(changed, place, 7)
            assert ((other - noise).abs() > 1e-6).all()

    def test_of_frames_that_are_all_alike_still_differs_from_frame_to_frame(self) -> None:
        noise = hashed_noise(torch.zeros(1, 200, 5), torch.arange(200)[None], 8)
        assert abs(noise.var() - 1.0) < 0.15
        assert abs((noise[:, 1:] * noise[:, :-1]).mean()) < 0.1


class TestSpan:
    """The pulse between frames, without the CfC."""

    @staticmethod
    def _travelled(pulse: Pulse, h: Tensor, t: float, dt: float) -> Tensor:
        stamps = torch.tensor([[t]], dtype=torch.float64), torch.tensor([[dt]], dtype=torch.float64)
        middle, reach = pulse.span(*stamps)
        return pulse.travel(h, middle[:, 0], reach[:, 0])

    def test_is_the_integral_of_the_pulse(self) -> None:
        torch.manual_seed(0)
        pulse, h = loud_pulse(8).double(), torch.randn(1, 8, dtype=torch.float64)
        start, length, pieces = 31.7, 12.3, 4000
        moments = start + length * (torch.arange(pieces) + 0.5) / pieces  # the midpoint rule
        area = pulse(h.expand(1, pieces, 8), moments.double()[None])[0].sum(dim=0) * length / pieces
        travelled = self._travelled(pulse, h, start + length, length)
        assert (travelled - h).abs().min() > 1e-3
        torch.testing.assert_close(travelled[0] - h[0], area, atol=1e-4, rtol=0.0)

    def test_of_a_gap_in_two_parts_is_that_of_the_whole_while_the_phase_is_held(self) -> None:
        torch.manual_seed(0)
        pulse, h = loud_pulse(8), torch.randn(1, 8)
        with torch.no_grad():
            pulse.phase.weight.zero_()
        whole = self._travelled(pulse, h, 20.0, 13.0)
        parts = self._travelled(pulse, self._travelled(pulse, h, 11.0, 4.0), 20.0, 9.0)
        torch.testing.assert_close(parts, whole, atol=1e-5, rtol=0.0)

    def test_is_of_first_order_in_a_phase_that_moves(self) -> None:
        """Cut into n parts, each from the phase of its own start, the error falls as 1 / n."""
        torch.manual_seed(0)
        pulse, start = loud_pulse(8).double(), torch.randn(1, 8, dtype=torch.float64)

        def cut(parts: int) -> Tensor:
            h = start
            for part in range(parts):
                h = self._travelled(pulse, h, 2.0 * (part + 1) / parts, 2.0 / parts)
            return h

        exact = cut(4096)
        coarse, fine = ((cut(parts) - exact).norm().item() for parts in (32, 64))
        assert 1.8 < coarse / fine < 2.2

    def test_has_no_hole_at_a_frequency_of_zero(self) -> None:
        pulse, h = loud_pulse(3), torch.zeros(1, 3)
        with torch.no_grad():
            pulse.omega.zero_()
            pulse.phase.bias.fill_(math.pi / 6.0)
        travelled = self._travelled(pulse, h, 9.0, 4.0)
        torch.testing.assert_close(travelled[0], 0.7 * pulse.amplitude * 4.0 * 0.5)
        travelled.sum().backward()
        assert pulse.omega.grad is not None
        assert pulse.omega.grad.isfinite().all()


def test_in_a_gap_the_state_moves_on_though_the_cfc_would_not_know_of_it() -> None:
    """Blind to dt (t_a = 0), a CfC is the same after any gap; the pulse in its state keeps going."""
    torch.manual_seed(0)
    core = PDNAODE(5, 8, backbone_units=16)
    core.pulse = loud_pulse(8)
    with torch.no_grad():
        core.cfc.heads.weight[16:24].zero_()
        core.cfc.heads.bias[16:24].zero_()
    x = torch.randn(1, 6, 5).expand(3, -1, -1)
    dt = torch.full((3, 6), 0.02)
    dt[1, 4], dt[2, 4] = 0.1, 0.3
    blind, _ = core.cfc(x, dt, core.cfc.initial_state(3))
    torch.testing.assert_close(blind[0], blind[2])
    y, (_, t) = core(x, dt, core.initial_state(3))
    torch.testing.assert_close(y[0, :4], y[2, :4])
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert (y[one, 4] - y[other, 4]).abs().max() > 1e-2
        assert (y[one, 5] - y[other, 5]).abs().max() > 1e-2
    torch.testing.assert_close(t, torch.tensor([6.0, 10.0, 20.0], dtype=torch.float64), atol=1e-5, rtol=0.0)


def test_the_pulse_in_the_state_is_a_step_of_the_pulse_and_a_step_of_the_cfc() -> None:
    torch.manual_seed(0)
    core = PDNAODE(5, 8, backbone_units=16)
    core.pulse = pulse = loud_pulse(8)
    x, dt = frames(1, 7)
    y, _ = core(x, dt, core.initial_state(1))
    h, t = torch.zeros(1, 8), 0.0
    for step in range(7):
        before, t = t, t + 50.0 * dt[0, step].item()
        phase = pulse.phase(h)
        swing = torch.cos(pulse.omega * before + phase) - torch.cos(pulse.omega * t + phase)
        h = h + 0.7 * pulse.amplitude * swing / pulse.omega
        _, (h,) = core.cfc(x[:, step : step + 1], dt[:, step : step + 1], (h,))
        torch.testing.assert_close(y[:, step], h, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", ["a", "b", "c", "d", "e", "ode"])
def test_autocast_does_not_round_the_pulse_away(variant: str) -> None:
    torch.manual_seed(0)
    core = build(variant)
    x, dt = frames()
    x = x.bfloat16().float()
    expected, _ = core(x, dt, core.initial_state(3))
    with torch.autocast("cpu", torch.bfloat16):
        y, state = core(x.bfloat16(), dt, core.initial_state(3))
        y.square().sum().backward()
    assert torch.equal(y, expected)
    assert [tensor.dtype for tensor in state] == [tensor.dtype for tensor in core.initial_state(3)]
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in core.parameters())


@pytest.mark.parametrize("core", [NoisyCfC, PDNAODE])
def test_a_backbone_without_units_is_refused(core: type[NoisyCfC] | type[PDNAODE]) -> None:
    with pytest.raises(ValueError, match="backbone_units: must be at least 1, got 0"):
        core(5, 8, backbone_units=0)
    with pytest.raises(ValueError, match="backbone_units: must be at least 1, got 0"):
        PDNA(5, 8, pulse=True, self_attend=True, backbone_units=0)


def test_the_backbone_is_the_cfc_of_the_project() -> None:
    assert all(type(build(variant).cfc) is CfC for variant in "abcde")
