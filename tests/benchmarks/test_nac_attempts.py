"""The attempts at a better NAC drive as cores do, and remember what the page says."""

from __future__ import annotations

import pytest
import torch
from nac_attempts import WINDOW, Block, Carried, Forget, Gated, Seen, Stack, TransformerStack, Window, black

import nac_drive as nd
from nac_drive.policies.cores.nac import NACCore
from nac_drive.policies.nac.variants import NAC_VARIANTS
from tests.own_parts import forgotten


@pytest.mark.parametrize("attempt", [Block, Carried, Forget, Gated, Seen, Stack, TransformerStack])
def test_a_core_is_causal_and_the_same_frame_by_frame(attempt):
    with forgotten():
        assert nd.register_core("attempt", attempt).parameters > 0


@pytest.mark.parametrize(
    ("attempt", "remembers"),
    [(Window, False), (Block, False), (Gated, False), (Stack, True), (Seen, True), (Carried, True), (Forget, True)],
)
def test_a_longer_past_reaches_over_a_blackout(attempt, remembers):
    torch.manual_seed(0)
    size = len(black())
    core, seen = attempt(size, size), torch.randn(1, 2, size, requires_grad=True)
    x = torch.cat((seen, black().expand(1, WINDOW, -1)), dim=1)
    y, _ = core(x, torch.full(x.shape[:2], 0.02), core.initial_state(1))
    (gradient,) = torch.autograd.grad(y[0, -1].square().sum(), seen, allow_unused=True)
    assert bool(gradient is not None and gradient.ne(0).any()) == remembers


def test_a_window_of_all_frames_is_that_of_nac_sharp():
    torch.manual_seed(0)
    x, dt = torch.randn(2, 12, 16), torch.rand(2, 12) * 0.1
    window = Window(16, 16)
    core = NACCore(16, 16, num_heads=4, window=WINDOW, **NAC_VARIANTS["nac-sharp"])
    core.nac.load_state_dict(window.nac.state_dict())
    torch.testing.assert_close(window(x, dt, window.initial_state(2))[0], core(x, dt, core.initial_state(2))[0])
