"""Trajectory lengths of random networks: the weights that are drawn, and the page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import trajectory
from trajectory import Trajectory, redraw
from trajectory_length import circle

from nac_drive.experiments.paper import PaperTask
from nac_drive.policies import build_core
from nac_drive.policies.cores.ltc import LTC


@pytest.mark.parametrize("name", ["ct-rnn", "ode-rnn"])
def test_weights_and_biases_have_the_variances_that_are_asked_for(name: str) -> None:
    torch.manual_seed(0)
    core = build_core(name, 2, 100)
    before = {key: value.clone() for key, value in core.state_dict().items()}
    redraw(core, 0.3, 2.0)
    weights, biases = [], []
    for key, value in core.named_parameters():
        if key == "log_tau":
            assert torch.equal(value, before[key])
        else:
            (biases if "bias" in key else weights).append(value.detach().flatten())
    for values, deviation in ((torch.cat(weights), 0.3), (torch.cat(biases), 2.0)):
        assert values.std().item() == pytest.approx(deviation, rel=0.2)
        assert abs(values.mean().item()) < 0.3 * deviation


def test_conductances_of_ltc_are_the_absolute_values_of_a_normal_draw() -> None:
    torch.manual_seed(0)
    core = LTC(2, 100)
    before = {key: value.clone() for key, value in core.state_dict().items()}
    redraw(core, 0.3, 2.0)
    conductance = F.softplus(core.network.recurrent.weight).detach()
    assert conductance.min() > 0
    assert conductance.square().mean().sqrt().item() == pytest.approx(0.3, rel=0.05)
    assert conductance.mean().item() == pytest.approx(0.3 * (2 / torch.pi) ** 0.5, rel=0.05)
    assert core.network.leak.std().item() == pytest.approx(2.0, rel=0.2)
    changed = {key for key, value in core.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {"network.leak", "network.sensory.weight", "network.recurrent.weight"}


def test_lengths_come_from_the_seed_and_the_longest_is_named() -> None:
    experiment = Trajectory(widths=[4, 6], variances=[2.0, 8.0], networks=2, frames=20)
    places = experiment.places()
    cells = [(4, 2.0), (6, 2.0), (6, 8.0)]
    assert [tuple(dict(place).values()) for place in places] == [(*cell, n) for cell in cells for n in (0, 1)]
    rows = []
    for entry, core in (("A", "ltc"), ("B", "ct-rnn")):
        for place in places:
            task = PaperTask(entry, core, {}, place)
            first, second = (experiment.measure(Path(), task)["length"] for _ in range(2))
            assert first == second > 0
            rows.append({"entry": entry, **dict(place), "length": first})
    assert len({row["length"] for row in rows}) == len(rows)
    known = [row | {"length": 1.0 + (row["entry"] == "A") * (row["width"] - 5.0)} for row in rows]
    assert experiment.conclude(Path(), known) == "**Longest on average:** A in 2 of 3 columns, B in 1 of 3 columns."
    assert experiment.conclude(Path(), []) == ""


def test_weights_have_the_variance_of_their_place_and_the_circle_takes_two_pi_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(trajectory, "redraw", lambda core, weight, bias: seen.append((core.output_size, weight, bias)))
    monkeypatch.setattr(trajectory, "trajectory_length", lambda core, inputs, dt: seen.append((inputs, dt)) or 3.5)
    experiment = Trajectory(frames=20, bias_variance=9.0)
    place = (("width", 25), ("variance", 4.0), ("network", 1))
    assert experiment.measure(Path(), PaperTask("x", "ct-rnn", {}, place)) == {"length": 3.5}
    drawn, (inputs, dt) = seen
    assert drawn == (25, pytest.approx(0.4), 3.0)
    assert dt == pytest.approx(2 * math.pi / 20)
    torch.testing.assert_close(inputs, circle(20))
