"""ContiFormer, against plain attention and a fine solution of its equations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torchdiffeq import odeint

from nac_drive.policies.cores.attention import SoftmaxAttention
from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.contiformer import ContiFormer
from tests.contracts import CoreContract
from tests.policies.streams import random_stream, run


class TestContiFormer(CoreContract):
    def make_core(self) -> Core:
        return ContiFormer(5, 8, num_heads=2, window=6)


def make(ode_steps: int = 2) -> ContiFormer:
    torch.manual_seed(0)
    return ContiFormer(5, 8, num_heads=2, window=4, ode_steps=ode_steps).double()


def plain_attention(core: ContiFormer) -> SoftmaxAttention:
    """The same weights without time: scaled dot-product attention without positions."""
    plain = SoftmaxAttention(5, 8, num_heads=2, window=4).double()
    with torch.no_grad():
        plain.slope.zero_()
    for name in ("query", "kv", "output"):
        getattr(plain, name).load_state_dict(getattr(core, name).state_dict())
    return plain


def test_without_a_vector_field_it_is_plain_attention() -> None:
    core, (x, dt) = make(), random_stream()
    plain = plain_attention(core)
    assert (run(core, x, dt) - run(plain, x, dt)).abs().max() > 1e-3
    with torch.no_grad():
        core.field_weight.zero_()
        core.field_bias.zero_()
    torch.testing.assert_close(run(core, x, dt), run(plain, x, dt), atol=1e-12, rtol=1e-12)


def test_it_approaches_plain_attention_as_time_shrinks() -> None:
    core, (x, dt) = make(), random_stream()
    plain = run(plain_attention(core), x, dt)
    far, near, none = ((run(core, x, scale * dt) - plain).abs().max().item() for scale in (1e-2, 1e-3, 0.0))
    assert near == pytest.approx(far / 10.0, rel=0.1)  # first order in dt
    assert none < 1e-12


def test_it_equals_an_adaptive_solution_in_real_time() -> None:
    """An independent route: every frame's key and value, and their integrals, by dopri5 from its own time on."""
    core, (x, dt) = make(ode_steps=200), random_stream()
    y, times = run(core, x, dt)[0], dt[0].cumsum(dim=0) + 50.0
    starts = core.kv(x[0]).detach()  # (T, 16)

    def field(_: Tensor, z: Tensor) -> Tensor:
        """z: key, value, the integrals of both."""
        k, v = (z[i * 8 : i * 8 + 8] @ core.field_weight[i] + core.field_bias[i, 0] for i in (0, 1))
        return torch.cat((k.tanh(), v.tanh(), z[:16]))

    means = torch.zeros(9, 9, 16, dtype=torch.float64)
    with torch.no_grad():
        for s in range(9):
            means[s, s] = starts[s]
            if s < 8:
                start = torch.cat((starts[s], torch.zeros(16, dtype=torch.float64)))
                solution: Any = odeint(field, start, times[s:], rtol=1e-8, atol=1e-10)
                means[s + 1 :, s] = solution[1:, 16:] / (times[s + 1 :] - times[s]).unsqueeze(1)
    for t in range(9):
        q = core.query(x[0, t])
        k, v = means[t, max(0, t - 3) : t + 1].split(8, dim=1)  # (W, 8) each
        heads = [
            torch.softmax(k[:, rows] @ q[rows] / math.sqrt(4), dim=0) @ v[:, rows] for rows in (slice(4), slice(4, 8))
        ]
        torch.testing.assert_close(y[t], core.output(torch.cat(heads)), atol=1e-5, rtol=1e-5)


def test_doubling_the_steps_quarters_the_error() -> None:
    x, dt = random_stream()
    fine = run(make(ode_steps=128), x, dt)
    coarse, finer = ((run(make(ode_steps=steps), x, dt) - fine).abs().max().item() for steps in (4, 8))
    assert coarse > 1e-5
    assert coarse / finer == pytest.approx(4.0, rel=0.2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_heads": 3}, "num_heads: must be at least 1 and divide output_size=8, got 3"),
        ({"ode_steps": 0}, "ode_steps: must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_named(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ContiFormer(5, 8, **settings)
