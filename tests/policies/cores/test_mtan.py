"""Multi-time attention, against loops over the equations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.mtan import MTAN
from tests.contracts import CoreContract
from tests.policies.streams import run


class TestMTAN(CoreContract):
    def make_core(self) -> Core:
        return MTAN(5, 8, num_heads=2, window=6, time_size=10)


@pytest.fixture
def core() -> MTAN:
    torch.manual_seed(0)
    return MTAN(5, 8, num_heads=2, window=4, time_size=10).double()


def random_stream(batch: int, length: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, length, 5, dtype=torch.float64), torch.rand(batch, length, dtype=torch.float64)


def test_it_equals_loops_over_the_equations(core: MTAN) -> None:
    x, dt = random_stream(1, 7)
    times = dt[0].cumsum(dim=0) + 100.0
    y = run(core, x, dt)[0]

    def phi(time: float) -> Tensor:
        return torch.stack(
            [
                w * time + a if i == 0 else torch.sin(w * time + a)
                for i, (w, a) in enumerate(zip(core.frequency, core.phase, strict=True))
            ]
        )

    for t in range(7):
        seen = range(max(0, t - 3), t + 1)
        q = (core.query.weight @ phi(0.0) + core.query.bias).split(5)
        mixed = []
        for head in range(2):
            keys = [(core.key.weight @ phi(float(times[s] - times[t]))).split(5)[head] for s in seen]
            p = torch.softmax(torch.stack([q[head] @ key for key in keys]) / math.sqrt(5), dim=0)
            mixed.append(sum(weight * x[0, s] for weight, s in zip(p, seen, strict=True)))
        expected = core.output.weight @ torch.cat(mixed) + core.output.bias
        torch.testing.assert_close(y[t], expected, atol=1e-8, rtol=1e-8)


def test_the_weights_sum_to_one_whatever_the_times(core: MTAN) -> None:
    frame, (_, dt) = torch.randn(5, dtype=torch.float64), random_stream(3, 9)
    y = run(core, frame.expand(3, 9, 5), dt)
    torch.testing.assert_close(y, core.output(frame.repeat(2)).expand_as(y), atol=1e-10, rtol=1e-10)


def test_the_weights_depend_on_times_alone(core: MTAN) -> None:
    (x, dt), (other, _) = random_stream(3, 9), random_stream(3, 9)
    mix = run(core, 0.3 * x + 0.7 * other, dt)
    torch.testing.assert_close(mix, 0.3 * run(core, x, dt) + 0.7 * run(core, other, dt), atol=1e-10, rtol=1e-10)


def test_two_frames_of_one_time_are_interchangeable(core: MTAN) -> None:
    x, dt = random_stream(1, 4)
    dt[:, 2] = 0.0
    swapped = x[:, [0, 2, 1, 3]]
    torch.testing.assert_close(run(core, swapped, dt)[:, 3], run(core, x, dt)[:, 3], atol=1e-10, rtol=1e-10)
    dt[:, 2] = 0.1
    assert (run(core, swapped, dt) - run(core, x, dt))[:, 3].abs().max() > 1e-3


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="num_heads: must be at least 1 and divide time_size=10, got 4"):
        MTAN(5, 8, num_heads=4, time_size=10)
