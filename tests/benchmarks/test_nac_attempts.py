"""The attempts at a better NAC are cores."""

from __future__ import annotations

import pytest
import torch
from nac_attempts import (
    Aged,
    Block,
    Carried,
    Dot,
    Forget,
    Gated,
    Neurons,
    Recalled,
    Seen,
    Selected,
    Stack,
    TransformerStack,
    Window,
    black,
)

import nac_drive as nd
from nac_drive.policies.cores.base import NOMINAL_DT
from nac_drive.policies.cores.nac import NACCore
from nac_drive.policies.cores.registry import build_core
from nac_drive.policies.nac.variants import NAC_VARIANTS
from tests.own_parts import forgotten

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "attempt", [Aged, Block, Carried, Dot, Forget, Gated, Neurons, Recalled, Seen, Selected, Stack, TransformerStack]
)
def test_a_core_is_causal_and_the_same_frame_by_frame(attempt):
    with forgotten():
        assert nd.register_core("attempt", attempt).parameters > 0


@pytest.mark.parametrize(
    ("attempt", "remembers"),
    [
        (Window, False),
        (Aged, False),
        (Block, False),
        (Dot, False),
        (Gated, False),
        (Stack, True),
        (Seen, True),
        (Selected, True),
        (Carried, True),
        (Neurons, True),
        (Forget, True),
        (Recalled, True),
    ],
)
def test_a_longer_past_reaches_over_a_blackout(attempt, remembers):
    torch.manual_seed(0)
    size = len(black())
    core, seen = attempt(size, size), torch.randn(1, 2, size, requires_grad=True)
    x = torch.cat((seen, black().expand(1, Window.window, -1)), dim=1)
    y, _ = core(x, torch.full(x.shape[:2], 0.02), core.initial_state(1))
    (gradient,) = torch.autograd.grad(y[0, -1].square().sum(), seen, allow_unused=True)
    assert bool(gradient is not None and gradient.ne(0).any()) == remembers


def test_a_window_of_all_frames_is_that_of_nac_sharp():
    torch.manual_seed(0)
    x, dt = torch.randn(2, 12, 16), torch.rand(2, 12) * 0.1
    window = Window(16, 16)
    core = NACCore(16, 16, num_heads=4, window=Window.window, **NAC_VARIANTS["nac-sharp"])
    core.nac.load_state_dict(window.nac.state_dict())
    torch.testing.assert_close(window(x, dt, window.initial_state(2))[0], core(x, dt, core.initial_state(2))[0])


def test_eight_keys_are_selected_by_the_weights_that_they_have():
    torch.manual_seed(0)
    x, dt = torch.randn(2, 40, 16), torch.rand(2, 40) * 0.1
    window, selected = Window(16, 16), Selected(16, 16)
    selected.nac.load_state_dict(window.nac.state_dict())
    few, many = (core(x, dt, core.initial_state(2))[0] for core in (window, selected))
    torch.testing.assert_close(many[:, :8], few[:, :8])  # eight frames are all keys
    assert (many[:, 8:] - few[:, 8:]).abs().amax(dim=2).gt(1e-5).any()
    logits, blocked = torch.randn(1, 4, 3, 32), torch.arange(32) < 28
    chosen = selected.chosen(logits.masked_fill(blocked, torch.finfo(logits.dtype).min), blocked)
    assert torch.equal(chosen.sum(dim=3), torch.full((1, 4, 3), 4))
    chosen = selected.chosen(logits, torch.zeros(32, dtype=torch.bool))
    assert torch.equal(chosen.sum(dim=3), torch.full((1, 4, 3), 8))
    assert logits[chosen].view(1, 4, 3, 8).amin(dim=3).ge(logits.masked_fill(chosen, -9).amax(dim=3)).all()


def test_slopes_that_count_time_are_slopes_that_count_frames_at_the_nominal_step():
    torch.manual_seed(0)
    x, even, uneven = torch.randn(2, 20, 16), torch.full((2, 20), NOMINAL_DT), torch.rand(2, 20) * 0.1
    aged, block = Aged(16, 16), build_core("transformer", 16, 16)
    aged.load_state_dict(block.state_dict())
    for dt, same in ((even, True), (uneven, False)):
        of_time, of_frames = (core(x, dt, core.initial_state(2))[0] for core in (aged, block))
        assert torch.allclose(of_time, of_frames, atol=1e-5) == same


def test_a_dot_product_of_zero_leaves_the_average_by_age():
    torch.manual_seed(0)
    x, dt, dot = torch.randn(1, 3, 4), torch.tensor([[0.02, 0.1, 0.04]]), Dot(4, 4)
    with torch.no_grad():
        dot.query.weight.zero_()
        dot.query.bias.zero_()
        y, _ = dot(x, dt, dot.initial_state(1))
        ages = torch.tensor([7.0, 2.0, 0.0])  # steps of 0.02 s
        heads = [torch.softmax(-slope * ages, dim=0) @ x[0] for slope in (2.0, 0.5, 0.125, 0.03125)]
        torch.testing.assert_close(y[0, -1], dot.out(torch.cat(heads)))


def test_a_nac_that_says_nothing_leaves_its_lstm():
    torch.manual_seed(0)
    x, dt, recalled = torch.randn(2, 12, 16), torch.rand(2, 12) * 0.1, Recalled(16, 16)
    with torch.no_grad():
        for name, parameter in recalled.nac.named_parameters():
            if name.startswith("nac.out"):
                parameter.zero_()
        y, _ = recalled(x, dt, recalled.initial_state(2))
        lstm, _ = recalled.past(x, dt, recalled.past.initial_state(2))
    torch.testing.assert_close(y, lstm)
