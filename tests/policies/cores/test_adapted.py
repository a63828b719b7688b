"""Modules of others as cores."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import ncps.torch
import pytest
import torch
from torch import Tensor, nn

from nac_drive.policies.core_check import check_core, register_core, report_rows
from nac_drive.policies.cores.adapted import RecurrentModule, WindowedModule, factory_of_module
from nac_drive.policies.cores.base import NOMINAL_DT, Core, CoreFactory
from nac_drive.policies.cores.registry import CORES, build_core
from nac_drive.policies.cores.rnn import LSTM
from tests.contracts import CoreContract
from tests.own_parts import forgotten

FEATURES, OUTPUTS = 5, 8


class MinGRU(nn.Module):
    """(x) -> y with a memory (Feng et al. 2024)."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.gate, self.candidate = nn.Linear(input_size, output_size), nn.Linear(input_size, output_size)

    def forward(self, x: Tensor) -> Tensor:
        z, candidate = self.gate(x).sigmoid(), self.candidate(x)
        h, outputs = torch.zeros_like(z[:, 0]), []
        for t in range(x.shape[1]):
            h = (1 - z[:, t]) * h + z[:, t] * candidate[:, t]
            outputs.append(h)
        return torch.stack(outputs, dim=1)


class MambaLike(nn.Module):
    """A selective state space block."""

    def __init__(self, d_model: int, d_state: int = 4, d_conv: int = 3) -> None:
        super().__init__()
        self.inner, self.conv = nn.Linear(d_model, 2 * d_model), nn.Conv1d(d_model, d_model, d_conv, groups=d_model)
        self.select = nn.Linear(d_model, 2 * d_state + 1)
        self.log_a = nn.Parameter(torch.log(torch.arange(1.0, d_state + 1).repeat(d_model, 1)))
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.inner(x).chunk(2, dim=2)
        u = nn.functional.pad(u.transpose(1, 2), (self.conv.kernel_size[0] - 1, 0))
        u = nn.functional.silu(self.conv(u)).transpose(1, 2)
        states = self.log_a.shape[1]
        step, b, c = self.select(u).split((1, states, states), dim=2)
        decay = torch.exp(-nn.functional.softplus(step).unsqueeze(3) * self.log_a.exp())
        h, outputs = u.new_zeros(len(x), u.shape[2], states), []
        for t in range(x.shape[1]):
            h = decay[:, t] * h + u[:, t].unsqueeze(2) * b[:, t].unsqueeze(1)
            outputs.append((h * c[:, t].unsqueeze(1)).sum(2))
        return x + self.out(torch.stack(outputs, dim=1) * nn.functional.silu(gate))


class CausalTransformer(nn.Module):
    def __init__(self, d_model: int, causal: bool = True) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(d_model, 2, 16, dropout=0.1, batch_first=True)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        return self.layer(x, mask if self.causal else None)


def core_of(module: object, inputs: int = FEATURES, outputs: int = OUTPUTS, **settings: Any) -> Core:
    torch.manual_seed(0)
    return factory_of_module("mine", module)(inputs, outputs, **settings).eval()  # type: ignore[arg-type]


def noise(batch: int, length: int, features: int = FEATURES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    dt = 0.01 + 0.05 * torch.rand(batch, length, generator=generator)
    return torch.randn(batch, length, features, generator=generator), dt


@pytest.fixture
def own_names() -> Iterator[None]:
    """Forget registered cores."""
    with forgotten():
        yield


# The contract of every core


class TestRecurrentTorchModule(CoreContract):
    def make_core(self) -> Core:
        return factory_of_module("mine", nn.LSTM)(FEATURES, OUTPUTS, num_layers=2)


class TestWindowedModule(CoreContract):
    def make_core(self) -> Core:
        return factory_of_module("mine", MinGRU)(FEATURES, OUTPUTS, window=6)  # shorter than the contract's sequences


class TestModuleOfOneSize(CoreContract):
    def make_core(self) -> Core:
        return factory_of_module("mine", MambaLike)(8, 8, d_state=2)


class TestModuleWithTimespans(CoreContract):
    def make_core(self) -> Core:
        return factory_of_module("mine", ncps.torch.CfC)(FEATURES, OUTPUTS, backbone_units=16)


# Parity


def test_torchs_lstm_gives_the_outputs_of_ours() -> None:
    theirs = core_of(nn.LSTM)
    ours = LSTM(FEATURES, OUTPUTS)
    ours.cell.load_state_dict(theirs.module.state_dict())  # type: ignore[union-attr]
    x, dt = noise(3, 9)
    (y, (h, c)), (expected, state) = (core(x, dt, core.initial_state(3)) for core in (theirs, ours))
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close((h.squeeze(1), c.squeeze(1)), state)


@pytest.mark.parametrize("module", [ncps.torch.CfC, ncps.torch.LTC, partial(ncps.torch.CfC, mixed_memory=True)])
def test_modules_of_ncps_get_the_time_of_every_frame(module: type) -> None:
    """ncps squeezes its timespans: only a whole vector fits."""
    core = core_of(module)
    x, dt = noise(3, 7)
    y, _after = core(x, dt, core.initial_state(3))
    for row in range(3):
        state = None
        for t in range(7):
            span = (dt[row, t] / NOMINAL_DT).expand(1, 1, OUTPUTS)
            expected, state = core.module(x[row : row + 1, t : t + 1], state, span)  # type: ignore[operator]
            torch.testing.assert_close(y[row, t], expected[0, 0], atol=1e-5, rtol=1e-5)
    assert (core(x, 3 * dt, core.initial_state(3))[0] - y).abs().max() > 1e-3
    dt[:, 0] = 0.0  # the first frame of an episode, by which ncps' LTC would divide
    assert core(x, dt, core.initial_state(3))[0].isfinite().all()


@pytest.mark.parametrize("module", [MinGRU, MambaLike, CausalTransformer])
@pytest.mark.parametrize("chunks", [(13,), (1,) * 13, (2, 1, 3, 7)])
def test_a_module_without_state_sees_its_window(module: type, chunks: tuple[int, ...]) -> None:
    core = core_of(module, 8, 8, window=5)
    x, dt = noise(2, 13, 8)
    state, outputs = core.initial_state(2), []
    for part, gap in zip(x.split(chunks, 1), dt.split(chunks, 1), strict=True):  # type: ignore[arg-type]
        y, state = core(part, gap, state)
        outputs.append(y)
    y = torch.cat(outputs, dim=1)
    for t in range(13):
        expected = core.module(x[:, max(0, t - 4) : t + 1])[:, -1]  # type: ignore[operator]
        torch.testing.assert_close(y[:, t], expected, atol=1e-5, rtol=1e-5)
    assert int(state[1].min()) == 4


def test_rows_of_different_age_share_a_batch() -> None:
    core = core_of(MinGRU, window=5)
    x, dt = noise(2, 9)
    _, old = core(x[:1, :6], dt[:1, :6], core.initial_state(1))
    mixed = tuple(torch.cat(parts) for parts in zip(old, core.initial_state(1), strict=True))
    y, _ = core(torch.cat((x[:1, 6:], x[1:, 6:])), torch.cat((dt[:1, 6:], dt[1:, 6:])), mixed)
    torch.testing.assert_close(y[:1], core(x[:1], dt[:1], core.initial_state(1))[0][:, 6:])
    torch.testing.assert_close(y[1:], core(x[1:, 6:], dt[1:, 6:], core.initial_state(1))[0])


def test_a_module_of_single_frames_has_no_memory() -> None:
    core = core_of(lambda inputs, outputs: nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh()))
    assert core.state_shapes() == ()
    x, dt = noise(3, 4)
    torch.testing.assert_close(core(x, dt, ())[0], core.module(x))  # type: ignore[operator]


class Clocked(nn.Module):
    """(x, timespans) -> y: a decaying sum without state."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(input_size, output_size)

    def forward(self, x: Tensor, timespans: Tensor) -> Tensor:
        h, outputs = torch.zeros_like(self.layer(x[:, 0])), []
        for t in range(x.shape[1]):
            h = h * torch.exp(-timespans[:, t, None]) + self.layer(x[:, t])
            outputs.append(h)
        return torch.stack(outputs, dim=1)


def test_a_window_keeps_the_times_of_its_frames() -> None:
    core = core_of(Clocked, window=4)
    assert isinstance(core, WindowedModule)
    x, dt = noise(2, 7)
    y, _ = core(x, dt, core.initial_state(2))
    for t in range(7):
        seen = slice(max(0, t - 3), t + 1)
        expected = core.module(x[:, seen], dt[:, seen] / NOMINAL_DT)[:, -1]  # type: ignore[operator]
        torch.testing.assert_close(y[:, t], expected, atol=1e-5, rtol=1e-5)


# Settings


def test_arguments_of_a_class_are_settings() -> None:
    factory = factory_of_module("mine", MambaLike)
    assert set(factory.accepted) == {"d_state", "d_conv", "window"}
    assert factory.differences({}, {"d_state": 4}) == []
    assert factory.differences({"d_state": 2}, {}) == ["d_state"]
    assert {"num_layers", "dropout"} < set(factory_of_module("lstm2", nn.LSTM).accepted)
    with pytest.raises(ValueError, match=r"core_args: unknown \['d_sate'\].* Did you mean 'd_state'\?"):
        factory(8, 8, d_sate=3)
    own = CoreFactory(LSTM, "ours")
    assert factory_of_module("mine", own) is own
    assert isinstance(core_of(LSTM), LSTM)


# Refusals


class Growing(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        cache = x if cache is None else torch.cat((cache, x), dim=1)
        return self.layer(x), cache


class Started(nn.Module):
    """A learned start, which a state of zeros is not."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.cell, self.start = nn.GRU(inputs, outputs, batch_first=True), nn.Parameter(torch.ones(outputs))

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.cell(x, self.start.expand(1, len(x), -1).contiguous() if h is None else h)


class Strange(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, mask: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
        return self.layer(x)


class Mixing(MinGRU):
    """The rows of a batch influence each other."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(dim=0, keepdim=True))


class FramesFirst(nn.Module):
    """(frames, batch, features), as torch's layers have it by default."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.GRU(inputs, outputs)

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.layer(x, h)


class FramesFirstAlone(FramesFirst):
    """The state is not returned."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.layer(x)[0]


class Holding(nn.Module):
    """The module holds the state itself."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.cell, self.h, self.outputs = nn.GRUCell(inputs, outputs), None, outputs

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        if self.h is None or len(self.h) != len(x):
            self.h = x.new_zeros(len(x), self.outputs)
        for frame in x.unbind(dim=1):
            self.h = self.cell(frame, self.h)
            outputs.append(self.h)
        return torch.stack(outputs, dim=1)


class Noisy(MinGRU):
    """Noise outside of training."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 0.1 * torch.randn_like(x))


class InPlace(nn.Module):
    """A leaky sum that changes the state that it gets."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(input_size, output_size)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        total = x.new_zeros(len(x), self.layer.out_features) if state is None else state
        outputs = []
        for frame in x.unbind(1):
            total *= 0.9
            total += self.layer(frame)
            outputs.append(total.clone())
        return torch.stack(outputs, dim=1), total


class Demanding(InPlace):
    """The same, which takes no None."""

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x, state * 1.0)


def test_a_module_may_change_its_state_in_place() -> None:
    core = core_of(InPlace)
    x, dt = torch.randn(2, 3, 5), torch.full((2, 3), 0.02)
    _, state = core(x, dt, core.initial_state(2))
    before = [each.clone() for each in state]
    first, _ = core(x, dt, state)
    again, _ = core(x, dt, state)
    torch.testing.assert_close(list(state), before, rtol=0, atol=0)
    torch.testing.assert_close(first, again, rtol=0, atol=0)


REFUSED: dict[str, tuple[object, dict[str, Any], str]] = {
    "a module instead of its class": (MinGRU(5, 8), {}, "must be a class of modules.*pass the class itself"),
    "a function of something else": (lambda i, o: 3, {}, "must make a torch.nn.Module, got int"),
    "a bidirectional LSTM": (partial(nn.LSTM, bidirectional=True), {}, r"y \(3, 4, 8\), batch first, got \(3, 4, 16\)"),
    "a growing state": (Growing, {}, r"state of \(3, 1, 5\) after one frame, \(3, 4, 5\) after four"),
    "a state of the frames": (FramesFirst, {}, r"takes \(frames, batch, features\).*batch_first=True"),
    "a learned start": (Started, {}, "starts from a state that is not zero"),
    "arguments without a default": (Strange, {}, r"must take \(x\), .*got \(x, mask, bias, scale\)"),
    "no weights": (lambda i, o: nn.Identity(), {}, "without weights"),
    "one size for two": (MambaLike, {}, "takes one size, here are 5 inputs and 8 outputs"),
    "a window of a state": (nn.LSTM, {"window": 4}, "window is for modules that keep no state"),
    "a window of no frame": (MinGRU, {"window": 0}, "window: must be at least 1 frame, got 0"),
    "no start without a state": (Demanding, {}, "and state=None, as at the start.*begin with zeros where"),
    "an error of its own": (lambda i, o: nn.Linear(i + 1, o), {}, "cannot be called with x .*: mat1 and mat2"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_a_core_is_refused_with_the_reason(name: str) -> None:
    module, settings, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        core_of(module, **settings)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (partial(CausalTransformer, causal=False), "must not depend on later frames, but a changed future changes it"),
        (Mixing, "a row must give the same outputs alone and in a batch"),
        (FramesFirstAlone, "a row must give the same outputs alone and in a batch.*batch_first=True"),
        (Holding, r"the same frames must give the same outputs.*return \(y, state\)"),
        (Noisy, "the same frames must give the same outputs.*noise"),
        (lambda i, o: nn.utils.parametrizations.weight_norm(nn.Linear(i, o)), None),
    ],
)
def test_a_registered_core_is_checked(module: object, message: str | None, own_names: None) -> None:
    if message is None:
        assert register_core("mine", module, input_size=8, output_size=8).memory == "no memory"  # type: ignore[arg-type]
        return
    with pytest.raises(ValueError, match=message):
        register_core("mine", module, input_size=8, output_size=8)  # type: ignore[arg-type]
    assert "mine" not in CORES


def test_a_report_says_what_was_found(own_names: None) -> None:
    report = register_core("mine", MinGRU, input_size=FEATURES, output_size=OUTPUTS)
    assert str(report) == (
        f"core mine: (x) -> y, causal, a window of 64 frames, dt is not used, streaming equals the whole sequence "
        f"({report.difference()}), 96 parameters, exportable"
    )
    assert isinstance(build_core("mine", 3, 4), WindowedModule)
    timed = register_core("timed", ncps.torch.CfC, input_size=FEATURES, output_size=OUTPUTS)
    assert (timed.takes, timed.uses_dt) == ("(x, state, timespans) -> (y, state)", True)
    assert isinstance(build_core("timed", 3, 4), RecurrentModule)
    ours = check_core("lstm", FEATURES, OUTPUTS)
    rows = {name: cells for name, *cells in report_rows([report, timed, ours])}
    assert rows["neurons"] == ["-", "8", "8"]
    assert rows["dt has an effect"] == ["no", "yes", "no"]


@pytest.mark.parametrize("name", ["lstm", "a,b", "", "a=1", "../up", "a b"])
def test_names_that_commands_could_not_take_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name: "):
        register_core(name, MinGRU)


class Positions(nn.Module):
    """(x) -> y with learned places."""

    def __init__(self, input_size: int, output_size: int, heads: int = 4, block_size: int = 32) -> None:
        super().__init__()
        if output_size % heads:
            raise AssertionError("a size that heads do not divide")
        self.inner, self.places = nn.Linear(input_size, output_size), nn.Parameter(torch.zeros(block_size, output_size))
        self.block_size = block_size

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > self.block_size:
            raise AssertionError("cannot forward a sequence of this length")
        return (self.inner(x) + self.places[: x.shape[1]]).cumsum(1)


def test_a_module_of_few_frames_says_how_to_set_its_window() -> None:
    factory = factory_of_module("mine", Positions)
    with pytest.raises(
        ValueError,
        match=r"Positions\.forward fails on the 64 frames of its window: test_adapted\.py:"
        r"\d+: AssertionError: cannot forward a sequence of this length; set a window .* window=32",
    ):
        factory(FEATURES, OUTPUTS)
    core = factory(FEATURES, OUTPUTS, window=32)
    assert isinstance(core, WindowedModule)
    with pytest.raises(
        ValueError,
        match=r"Positions cannot be made for 5 inputs and 8 outputs with {'heads': 3}: "
        r"test_adapted\.py:\d+: AssertionError",
    ):
        factory(FEATURES, OUTPUTS, window=32, heads=3)
