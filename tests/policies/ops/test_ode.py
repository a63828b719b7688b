"""The midpoint solver: order two, and the bits of torchdiffeq."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torchdiffeq import odeint

from nac_drive.policies.ops.ode import FASTEST, SLOWEST, initial_log_tau, midpoint_path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_the_midpoint_path_has_the_bits_of_torchdiffeq(steps: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, start = torch.randn(5, 5, dtype=dtype), torch.randn(3, 5, dtype=dtype)
    theirs: Any = odeint(
        lambda _, z: torch.tanh(z @ weight), start, torch.linspace(0.0, 1.0, steps + 1, dtype=dtype), method="midpoint"
    )
    assert torch.equal(midpoint_path(lambda z: torch.tanh(z @ weight), start, steps), theirs)


def test_its_gradients_are_those_of_torchdiffeq() -> None:
    """Up to rounding: the backward passes add the same terms in another order."""
    torch.manual_seed(0)
    weight = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    start = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    nodes = torch.linspace(0.0, 1.0, 4, dtype=torch.float64)
    ours = midpoint_path(lambda z: torch.tanh(z @ weight), start, 3)
    theirs: Any = odeint(lambda _, z: torch.tanh(z @ weight), start, nodes, method="midpoint")
    wanted = [torch.autograd.grad(path.square().sum(), (weight, start)) for path in (ours, theirs)]
    for one, other in zip(*wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-13, rtol=1e-13)


def test_the_midpoint_rule_is_of_second_order() -> None:
    start = torch.ones(1, dtype=torch.float64)
    errors = [abs(float(midpoint_path(lambda z: -z, start, n)[-1, 0]) - math.exp(-1.0)) for n in (8, 16, 32, 64)]
    np.testing.assert_allclose(np.log2(np.array(errors[:-1]) / errors[1:]), 2.0, atol=0.1)


def test_initial_time_constants_span_a_frame_to_a_bend() -> None:
    taus = initial_log_tau(9).exp()
    assert taus[0].item() == pytest.approx(FASTEST)
    assert taus[-1].item() == pytest.approx(SLOWEST)
    torch.testing.assert_close(taus[1:] / taus[:-1], (taus[1] / taus[0]).expand(8))
