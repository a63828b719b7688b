"""ODEFormer: its Euler steps approach the solution of the equation, its attention is torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchdiffeq import odeint

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.odeformer import DEPTH, ODEFormer
from tests.contracts import CoreContract
from tests.policies.streams import run


class TestODEFormer(CoreContract):
    def make_core(self) -> Core:
        return ODEFormer(5, 8, num_heads=2, window=4)


def make(euler_steps: int = 3, window: int = 4) -> ODEFormer:
    torch.manual_seed(0)
    return ODEFormer(5, 8, num_heads=2, window=window, euler_steps=euler_steps).double()


def random_stream(length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, length, 5, dtype=torch.float64, generator=generator)
    return x, torch.rand(3, length, dtype=torch.float64, generator=generator)


def change(core: ODEFormer, y: Tensor, dt: Tensor) -> Tensor:
    """dy/du of a sequence from its start (B, T, d), by torch's own layers on copied weights."""
    block, length = core.block, y.shape[1]
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).double()
    attention.load_state_dict(
        {
            "in_proj_weight": torch.cat([block.query.weight, block.kv.weight]),
            "in_proj_bias": torch.cat([block.query.bias, block.kv.bias]),
            "out_proj.weight": block.output.weight,
            "out_proj.bias": block.output.bias,
        }
    )
    times = dt.cumsum(dim=1)
    age = times.unsqueeze(2) - times.unsqueeze(1)  # (B, T, T)
    behind = torch.arange(length)[:, None] - torch.arange(length)
    bias = -block.slope.detach()[:, None, None] * age.unsqueeze(1)  # (B, H, T, T)
    bias = bias.masked_fill((behind < 0) | (behind >= block.window), -torch.inf)
    mixed, _ = attention(y, y, y, attn_mask=bias.flatten(0, 1))
    m = block.norm_1(y + mixed)
    return block.norm_2(m + block.feed_forward(m))


def test_each_step_is_a_transformer_block_of_torch() -> None:
    core, (x, dt) = make(), random_stream(9)
    y = core.input(x)
    for _ in range(3):
        y = y + 0.25 * change(core, y, dt)
    torch.testing.assert_close(run(core, x, dt), y, atol=1e-10, rtol=1e-10)


def test_more_steps_approach_the_solution_at_first_order() -> None:
    core, (x, dt) = make(window=9), random_stream(9)
    with torch.no_grad():
        depths = torch.tensor([0.0, DEPTH], dtype=torch.float64)
        solution: Any = odeint(lambda _, y: change(core, y, dt), core.input(x), depths, rtol=1e-5, atol=1e-7)
        errors = [(run(make(n, window=9), x, dt) - solution[1]).abs().max().item() for n in (16, 32)]
    assert errors[0] > 1e-4
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=0.1)


def test_a_frame_reaches_one_window_per_step() -> None:
    core, (x, dt) = make(), random_stream(14)
    changed = x.clone()
    changed[:, 2] += 1.0
    moved = (run(core, changed, dt) - run(core, x, dt)).abs().amax(dim=(0, 2)) > 1e-9
    assert moved.tolist() == [2 <= t <= 2 + 3 * (4 - 1) for t in range(14)]


def test_a_window_of_one_frame_knows_no_time() -> None:
    core, (x, dt) = make(window=1), random_stream(5)
    assert not core.continuous_time
    assert torch.equal(run(core, x, 2.0 * dt), run(core, x, dt))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_heads": 3}, "num_heads: must be at least 1 and divide output_size=8, got 3"),
        ({"window": 0}, "window: must be at least 1 frame, got 0"),
        ({"euler_steps": 0}, "euler_steps: must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_named(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ODEFormer(5, 8, **settings)
