"""ODE-RNN, against torch's GRU and the solvers of torchdiffeq."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchdiffeq import odeint

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.ode_rnn import LONGEST, ODERNN
from tests.contracts import CoreContract
from tests.policies.streams import random_stream, run


class TestODERNN(CoreContract):
    def make_core(self) -> Core:
        return ODERNN(5, 8)


def make(ode_steps: int = 1) -> ODERNN:
    torch.manual_seed(0)
    core = ODERNN(5, 8, ode_steps=ode_steps).double()
    with torch.no_grad():
        core.field_output.weight.mul_(10.0)  # faster, so that a solver has something to do
    return core


def torchs_cell(core: ODERNN) -> torch.nn.GRUCell:
    cell = torch.nn.GRUCell(5, 8).double()
    with torch.no_grad():
        for name, layer in (("ih", core.input), ("hh", core.recurrent)):
            cell.get_parameter(f"weight_{name}").copy_(layer.weight)
            cell.get_parameter(f"bias_{name}").copy_(layer.bias)
    return cell


def solved(core: ODERNN, x: torch.Tensor, dt: torch.Tensor, steps: int | None, **solver: Any) -> torch.Tensor:
    """Outputs (T, 8) of one row: torchdiffeq between frames, torch's GRU cell at frames."""
    cell, z, path = torchs_cell(core), torch.zeros(8, dtype=torch.float64), []
    for frame, seconds in zip(x, dt.tolist(), strict=True):
        if seconds:
            times = torch.linspace(0.0, seconds, 2 if steps is None else steps + 1, dtype=torch.float64)
            solution: Any = odeint(lambda t, z: core.field(z), z, times, **solver)
            z = solution[-1]
        z = cell(frame, z)
        path.append(z)
    return torch.stack(path)


def test_where_nothing_moves_it_is_torchs_gru() -> None:
    core, (x, dt) = make(), random_stream()
    with torch.no_grad():
        core.field_output.weight.zero_()
        core.field_output.bias.zero_()
        expected = solved(core, x[0], torch.zeros(9), None)
    torch.testing.assert_close(run(core, x, dt)[0], expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("ode_steps", [1, 3])
def test_it_equals_the_midpoint_solver_of_torchdiffeq(ode_steps: int) -> None:
    core, (x, dt) = make(ode_steps), random_stream()
    dt[0, 3] = 0.0
    with torch.no_grad():
        expected = solved(core, x[0], dt[0], ode_steps, method="midpoint")
        moved = solved(core, x[0], torch.zeros(9), None)
    torch.testing.assert_close(run(core, x, dt)[0], expected, atol=1e-12, rtol=1e-12)
    assert (expected - moved).abs().max() > 0.1  # the network between the frames has a part in it


def test_it_converges_to_an_adaptive_solution_at_second_order() -> None:
    x, dt = random_stream()
    with torch.no_grad():
        exact = solved(make(), x[0], dt[0], None, method="dopri5", rtol=1e-10, atol=1e-12)
        errors = [(run(make(steps), x, dt)[0] - exact).abs().max().item() for steps in (16, 32)]
    assert errors[0] > 1e-5
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.1)


def test_a_long_gap_counts_as_the_longest() -> None:
    core, (x, dt) = make(), random_stream()
    torch.testing.assert_close(run(core, x, dt + 50.0), run(core, x, torch.full_like(dt, LONGEST)), atol=0, rtol=0)


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="ode_steps: must be at least 1, got 0"):
        ODERNN(5, 8, ode_steps=0)
