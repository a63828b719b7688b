"""Contracts: tests that every implementation inherits.

A test class for a core:

    class TestLSTM(CoreContract):
        def make_core(self):
            return LSTM(input_size=5, output_size=8)
"""

from __future__ import annotations

import copy
import pickle
from abc import ABC, abstractmethod

import pytest
import torch

from nac_drive.policies.cores.base import Core, State, map_state, reset_rows

BATCH, LENGTH = 3, 11
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
GAPS = (0.0, 1e-9, 0.02, 1.0, 10.0, 1e3, 1e6, 1e9)
"""Seconds between frames that no core may fail on."""


class CoreContract(ABC):
    """The promises of nac_drive.policies.cores.base.Core, on the CPU and on the GPU if there is one.

    `make_core` may be called several times in a test.
    """

    @abstractmethod
    def make_core(self) -> Core:
        """A small core, freshly initialised from torch's global generator."""

    @pytest.fixture(params=DEVICES)
    def core(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Core:
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # the tolerances fit float32
        torch.manual_seed(0)
        return self.make_core().to(request.param)

    @staticmethod
    def _inputs(core: Core) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(BATCH, LENGTH, core.input_size, generator=generator)
        dt = 0.01 + 0.5 * torch.rand(BATCH, LENGTH, generator=generator)
        return x.to(_device(core)), dt.to(_device(core))

    @staticmethod
    def _stream(core: Core, x: torch.Tensor, dt: torch.Tensor, sizes: list[int]) -> tuple[torch.Tensor, State]:
        state, outputs = core.initial_state(len(x)), []
        for x_part, dt_part in zip(x.split(sizes, dim=1), dt.split(sizes, dim=1), strict=True):
            y, state = core(x_part, dt_part, state)
            outputs.append(y)
        return torch.cat(outputs, dim=1), state

    def test_output_and_state_have_the_promised_shapes(self, core: Core) -> None:
        x, dt = self._inputs(core)
        start = core.initial_state(BATCH)
        y, state = core(x, dt, start)
        assert y.shape == (BATCH, LENGTH, core.output_size)
        assert [(s.shape, s.dtype) for s in state] == [(s.shape, s.dtype) for s in start]
        assert all(len(s) == BATCH and not s.any() for s in start)

    def test_whatever_the_chunks_the_outputs_are_the_same(self, core: Core) -> None:
        x, dt = self._inputs(core)
        whole, last = core(x, dt, core.initial_state(BATCH))
        for sizes in ([1] * LENGTH, [4, 1, LENGTH - 5], [LENGTH - 2, 2]):
            y, state = self._stream(core, x, dt, sizes)
            torch.testing.assert_close(y, whole, atol=1e-5, rtol=1e-5)
            for streamed, expected in zip(state, last, strict=True):
                torch.testing.assert_close(streamed, expected, atol=1e-5, rtol=1e-5)

    def test_repeated_frames_are_the_same_streamed_and_whole(self, core: Core) -> None:
        """Keys of equal frames tie: which of them a core keeps must not depend on the chunks."""
        x, _ = self._inputs(core)
        held = x[0].expand(3, -1, -1)[:, torch.arange(40, device=x.device) // 7].clone()  # (3, 40, F)
        held[1], held[2] = x[0, 0], 0.0  # seven frames of each, one for ever, and nothing
        dt = torch.full(held.shape[:2], 0.02, device=x.device)
        with torch.no_grad():
            whole, _ = core(held, dt, core.initial_state(3))
            for sizes in ([1] * 40, [1, 13, 26]):
                y, _ = self._stream(core, held, dt, sizes)
                torch.testing.assert_close(y, whole, atol=1e-5, rtol=1e-5)

    def test_outputs_and_state_are_finite_after_any_gap(self, core: Core) -> None:
        x, _ = self._inputs(core)
        generator = torch.Generator().manual_seed(2)
        rows = len(GAPS) + 1
        x = torch.randn(rows, 50, core.input_size, generator=generator).to(x.device)
        gaps = torch.tensor(GAPS, device=x.device)
        mixed = torch.randint(len(GAPS), (1, 50), generator=generator).to(x.device)
        dt = torch.cat((gaps.unsqueeze(1).expand(-1, 50), gaps[mixed]))
        y, state = core(x, dt, core.initial_state(rows))
        assert all(tensor.isfinite().all() for tensor in (y, *state))
        y.square().mean().backward()
        assert all(p.grad.isfinite().all() for p in core.parameters() if p.grad is not None)
        y, state = core(x, torch.full_like(dt, 0.02), map_state(torch.Tensor.detach, state))  # and life goes on
        assert all(tensor.isfinite().all() for tensor in (y, *state))

    def test_inputs_a_thousand_times_too_large_give_finite_numbers(self, core: Core) -> None:
        x, dt = self._inputs(core)
        y, state = core(1000.0 * x, dt, core.initial_state(BATCH))
        assert all(tensor.isfinite().all() for tensor in (y, *state))
        y.square().mean().backward()
        assert all(p.grad.isfinite().all() for p in core.parameters() if p.grad is not None)

    def test_arguments_that_do_not_fit_are_refused_in_one_line(self, core: Core) -> None:
        x, dt = self._inputs(core)
        state = core.initial_state(BATCH)
        cases: list[tuple[str, tuple]] = [
            ("x: shape", (x[:, :0], dt[:, :0], state)),
            ("x: shape", (x[:0], dt[:0], core.initial_state(0))),
            ("x: shape", (x[0], dt[0], state)),
            ("x: shape", (x[..., 1:], dt, state)),
            ("dt: shape", (x, dt[:, 1:], state)),
            ("dt: shape", (x, dt[:, :1], state)),
            ("dt: shape", (x, dt[0], state)),
            ("dt: shape", (x, dt.unsqueeze(2), state)),
            ("x: dtype", (x.half(), dt, state)),
            ("x: dtype", (x.bfloat16(), dt, state)),
            ("x: dtype", (x.double(), dt, state)),
            ("x: dtype", (x.long(), dt, state)),
            ("dt: dtype", (x, dt.half(), state)),
            ("dt: dtype", (x, dt.long(), state)),
            ("dt: dtype", (x.half(), dt.half(), map_state(torch.Tensor.half, state))),
            ("x: must be on the device", (x.to("meta"), dt, state)),
            ("x: must be on the device", (x, dt.to("meta"), state)),
            ("state: must hold", (x, dt, (*state, dt))),
        ]
        if state:
            cases += [
                ("state: must hold", (x, dt, ())),
                ("state: each tensor", (x, dt, core.initial_state(BATCH + 1))),
                ("state: each tensor", (x, dt, (state[0].unsqueeze(1), *state[1:]))),
                ("state: each tensor", (x, dt, map_state(torch.Tensor.half, state))),
                ("state: each tensor", (x, dt, map_state(lambda tensor: tensor.to("meta"), state))),
            ]
        for start, arguments in cases:
            self._assert_refused(core, arguments, start)

    def test_weights_of_another_dtype_are_refused_in_one_line(self, core: Core) -> None:
        x, dt = self._inputs(core)
        state = core.initial_state(BATCH)
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            self._assert_refused(copy.deepcopy(core).to(dtype), (x, dt, state), "core: weights must have the dtype")

    @staticmethod
    def _assert_refused(core: Core, arguments: tuple, start: str) -> None:
        with pytest.raises(ValueError, match=start) as error:
            core(*arguments)
        assert str(error.value).startswith(start)
        assert "\n" not in str(error.value)

    def test_rows_of_the_batch_are_independent(self, core: Core) -> None:
        x, dt = self._inputs(core)
        together, _ = core(x, dt, core.initial_state(BATCH))
        for row in range(BATCH):
            alone, _ = core(x[row : row + 1], dt[row : row + 1], core.initial_state(1))
            torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=1e-5)

    def test_a_reset_row_starts_afresh_and_the_others_go_on(self, core: Core) -> None:
        x, dt = self._inputs(core)
        whole, _ = core(x, dt, core.initial_state(BATCH))
        _, state = core(x[:, :6], dt[:, :6], core.initial_state(BATCH))
        y, _ = core(x[:, 6:], dt[:, 6:], reset_rows(state, torch.tensor([True, False, False], device=x.device)))
        fresh, _ = core(x[:1, 6:], dt[:1, 6:], core.initial_state(1))
        torch.testing.assert_close(y[:1], fresh, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(y[1:], whole[1:, 6:], atol=1e-5, rtol=1e-5)

    def test_no_output_sees_the_future(self, core: Core) -> None:
        x, dt = self._inputs(core)
        before, _ = core(x, dt, core.initial_state(BATCH))
        changed = x.clone()
        changed[:, 7:] += 1.0
        after, _ = core(changed, dt, core.initial_state(BATCH))
        torch.testing.assert_close(after[:, :7], before[:, :7], atol=1e-6, rtol=1e-6)
        assert (after[:, 7:] - before[:, 7:]).abs().max() > 1e-4

    def test_the_same_call_twice_gives_the_same_bits(self, core: Core) -> None:
        x, dt = self._inputs(core)
        first, _ = core(x, dt, core.initial_state(BATCH))
        second, _ = core(x, dt, core.initial_state(BATCH))
        assert torch.equal(first, second)

    def test_dt_matters_exactly_where_the_core_says_so(self, core: Core) -> None:
        x, dt = self._inputs(core)
        base, _ = core(x, dt, core.initial_state(BATCH))
        slower = dt.clone()
        slower[0, 5] *= 3.0
        other, _ = core(x, slower, core.initial_state(BATCH))
        moved = (other - base).abs()
        assert (moved[0].max() > 1e-5) == core.continuous_time
        assert moved[1:].max() == 0.0
        assert moved[0, :5].max() == 0.0

    def test_outputs_are_cells_exactly_where_the_core_says_so(self, core: Core) -> None:
        """The output of a cell is its own part of the first tensor of the state; all tensors belong to cells."""
        x, dt = self._inputs(core)
        y, state = core(x, dt, core.initial_state(BATCH))
        per_output = bool(state) and all(tensor.shape[-1:] == y.shape[-1:] for tensor in state)
        are_cells = per_output and torch.allclose(state[0].reshape(BATCH, -1, core.output_size).sum(dim=1), y[:, -1])
        assert are_cells == core.has_cells

    def test_synapses_are_weights_between_neurons(self, core: Core) -> None:
        neurons, synapses = core.neurons, core.synapses
        assert neurons is None or neurons >= 1
        if synapses is not None:
            assert neurons is not None
            assert neurons <= synapses <= sum(parameter.numel() for parameter in core.parameters())
        assert (neurons is not None) >= core.has_cells  # a cell is a neuron
        assert (copy.deepcopy(core).double().neurons, core.synapses) == (neurons, synapses)

    def test_every_parameter_gets_a_finite_gradient(self, core: Core) -> None:
        x, dt = self._inputs(core)
        x.requires_grad_()
        y, _ = core(x, dt, core.initial_state(BATCH))
        y.square().sum().backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()
        assert x.grad.any()
        for name, parameter in core.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name

    def test_gradients_flow_through_a_carried_state_unless_detached(self, core: Core) -> None:
        x, dt = self._inputs(core)
        x.requires_grad_()
        _, state = core(x[:, :6], dt[:, :6], core.initial_state(BATCH))
        detached = map_state(torch.Tensor.detach, state)
        core(x.detach()[:, 6:], dt[:, 6:], detached)[0].sum().backward()
        assert x.grad is None
        if state:
            core(x.detach()[:, 6:], dt[:, 6:], state)[0].sum().backward()
            assert x.grad is not None
            assert x.grad[:, :6].any()

    def test_a_state_dict_carries_everything(self, core: Core) -> None:
        x, dt = self._inputs(core)
        expected, _ = core(x, dt, core.initial_state(BATCH))
        torch.manual_seed(99)
        other = self.make_core().to(x.device)
        if any(True for _ in other.parameters()):
            assert not torch.equal(other(x, dt, other.initial_state(BATCH))[0], expected)
        other.load_state_dict(copy.deepcopy(core.state_dict()))
        assert torch.equal(other(x, dt, other.initial_state(BATCH))[0], expected)

    def test_a_pickled_copy_is_the_same(self, core: Core) -> None:
        x, dt = self._inputs(core)
        expected, _ = core(x, dt, core.initial_state(BATCH))
        twin = pickle.loads(pickle.dumps(core))  # as on the way to another process
        assert torch.equal(twin(x, dt, twin.initial_state(BATCH))[0], expected)

    def test_double_precision_works(self, core: Core) -> None:
        x, dt = self._inputs(core)
        single, _ = core(x, dt, core.initial_state(BATCH))
        core = core.double()
        double, _ = core(x.double(), dt.double(), core.initial_state(BATCH))
        assert double.dtype == torch.float64
        torch.testing.assert_close(double.float(), single, atol=1e-4, rtol=1e-4)

    def test_mixed_precision_keeps_the_dtype_of_the_state_and_trains(self, core: Core) -> None:
        x, dt = self._inputs(core)
        expected, _ = core(x, dt, core.initial_state(BATCH))
        start = core.initial_state(BATCH)
        with torch.autocast(x.device.type, torch.bfloat16):
            first, state = core(x[:, :6], dt[:, :6], start)
            second, state = core(x[:, 6:], dt[:, 6:], state)
        y = torch.cat((first, second), dim=1).float()
        assert [s.dtype for s in state] == [s.dtype for s in start]
        torch.testing.assert_close(y, expected, atol=0.2, rtol=0.05)
        y.square().sum().backward()
        for name, parameter in core.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name


def _device(core: Core) -> torch.device:
    return next(core.parameters()).device


def unmoved_by_autocast(core: Core) -> bool:
    """Return whether output, state and gradients of a core of one state are the same under autocast, bit for bit."""
    x, dt = torch.randn(2, 7, core.input_size), torch.full((2, 7), 0.02)
    results = []
    for enabled in (False, True):
        core.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            y, (state,) = core(x, dt, core.initial_state(2))
        (y.square().sum() + state.sum()).backward()
        results.append((y, state, *(parameter.grad for parameter in core.parameters())))
    core.zero_grad()  # the next gradients are not added to these
    with torch.autocast("cpu", torch.bfloat16):  # the backward pass too: not with_expert, but it must run
        core(x, dt, core.initial_state(2))[0].square().sum().backward()
    return all(plain.dtype == cast.dtype and torch.equal(plain, cast) for plain, cast in zip(*results, strict=True))
