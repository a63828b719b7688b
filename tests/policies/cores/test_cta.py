"""Continuous-time attention, against torch's GRU, sums over durations and a fine solution of its equations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchdiffeq import odeint

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.cta import CTA
from tests.contracts import CoreContract
from tests.policies.streams import random_stream, run


class TestCTA(CoreContract):
    def make_core(self) -> Core:
        return CTA(5, 8)


def make(ode_steps: int = 1) -> CTA:
    torch.manual_seed(0)
    core = CTA(5, 8, ode_steps=ode_steps).double()
    with torch.no_grad():
        core.field_output.weight.mul_(10.0)  # faster, so that a solver has something to do
    return core


def test_where_nothing_moves_it_is_a_gru_and_a_sum_over_durations() -> None:
    core, (x, dt) = make(), random_stream()
    gru = torch.nn.GRU(5, 8, batch_first=True).double()
    with torch.no_grad():
        core.field_output.weight.zero_()
        core.field_output.bias.zero_()
    gru.load_state_dict(
        {
            "weight_ih_l0": core.input.weight,
            "bias_ih_l0": core.input.bias,
            "weight_hh_l0": core.recurrent.weight,
            "bias_hh_l0": core.recurrent.bias,
        }
    )
    z, _ = gru(x)
    before = torch.cat((torch.zeros_like(z[:, :1]), z[:, :-1]), dim=1)
    k, v = core.kv(before).chunk(2, dim=2)
    score = torch.exp(core.query(z)) @ torch.exp(k).transpose(1, 2)  # (B, T, T)
    weights = torch.tril(score * dt.unsqueeze(1))
    context = (weights @ v) / weights.sum(dim=2, keepdim=True)
    torch.testing.assert_close(run(core, x, dt), context.tanh() + z, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(run(core, x, torch.zeros_like(dt)), z, atol=1e-12, rtol=1e-12)


def test_it_equals_an_adaptive_solution_of_path_and_integrals() -> None:
    core, (x, dt) = make(ode_steps=40), random_stream()
    x, dt = x[:1, :5], dt[:1, :5]
    y = run(core, x, dt)[0]

    def field(_: Tensor, joint: Tensor) -> Tensor:
        """joint: z, the integral of e(k), the integral of v e(k)^T."""
        z = joint[:8]
        k, v = core.kv(z).split(8)
        return torch.cat((core.field(z), k.exp(), torch.outer(v, k.exp()).flatten()))

    joint = torch.zeros(8 + 8 + 64, dtype=torch.float64)
    with torch.no_grad():
        for t in range(5):
            solution: Any = odeint(field, joint, torch.stack((torch.zeros(()), dt[0, t])), rtol=1e-9, atol=1e-11)
            z = core.update(core.input(x[:, t]), solution[1][None, :8])[0]
            joint = torch.cat((z, solution[1][8:]))
            e_q = core.query(z).exp()
            context = joint[16:].view(8, 8) @ e_q / (joint[8:16] @ e_q)
            torch.testing.assert_close(y[t], context.tanh() + z, atol=1e-3, rtol=1e-3)


def test_doubling_the_steps_quarters_the_error() -> None:
    x, dt = random_stream()
    fine = run(make(ode_steps=64), x, dt)
    coarse, finer = ((run(make(ode_steps=steps), x, dt) - fine).abs().max().item() for steps in (4, 8))
    assert coarse > 1e-5
    assert coarse / finer == pytest.approx(4.0, rel=0.2)


def test_the_weights_sum_to_one_whatever_the_times() -> None:
    core, (x, dt) = make(), random_stream()
    with torch.no_grad():
        core.kv.weight[8:].zero_()
    z = run(core, x, dt) - core.kv.bias[8:].tanh()
    values = core.kv.bias[8:].detach().clone()
    with torch.no_grad():
        core.kv.bias[8:].zero_()
    torch.testing.assert_close(run(core, x, dt), z, atol=1e-6, rtol=1e-6)
    assert values.abs().max() > 0.05


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="ode_steps: must be at least 1, got 0"):
        CTA(5, 8, ode_steps=0)
