"""The two uses of the NCP cell, where the layer's reference test does not reach."""

from __future__ import annotations

import pytest
import torch

from nac_drive.policies import (
    Backbone,
    Groups,
    SensoryGate,
    backbone_wiring,
    fully_connected_wiring,
    sensory_gate_wiring,
)


def test_one_or_two_steps_never_reach_the_motors() -> None:
    wiring = backbone_wiring(8, 64, 0.5, 0)
    for steps in (1, 2):
        with pytest.raises(
            ValueError, match=f"steps: .*got {steps}, so the outputs would be constants; use at least 3"
        ):
            Backbone(wiring, 16, steps)
    Backbone(wiring, 16, 3)


def test_only_what_the_motors_depend_on_is_computed() -> None:
    plan = Backbone(backbone_wiring(8, 64, 0.5, 0), 2, 4).plan
    assert plan == [("inter", "command"), ("inter", "command"), ("command",), ("motor",)]


def test_more_steps_change_the_answer_until_it_settles() -> None:
    torch.manual_seed(0)
    wiring = backbone_wiring(8, 16, 0.5, 0)
    cells = {steps: Backbone(wiring, 2, steps).double() for steps in (3, 4, 60, 61)}
    u = torch.randn(1, 2, 50, 8, dtype=torch.float64)
    outputs = {}
    for steps, cell in cells.items():
        cell.load_state_dict(cells[3].state_dict())
        for name, weight in cell.weight.items():
            if name == "command_command":
                weight.data *= 0.3  # a contraction, so that there is something to settle to
        weight, bias = cell.input_map()
        outputs[steps] = cell(u @ weight + bias)
    assert (outputs[4] - outputs[3]).abs().max() > 1e-4
    torch.testing.assert_close(outputs[61], outputs[60], atol=1e-9, rtol=0.0)


def test_a_gate_with_synapses_among_sensory_neurons_is_refused() -> None:
    wiring = fully_connected_wiring(3, Groups(sensory=4, output_group="sensory"))
    with pytest.raises(ValueError, match="no synapses between sensory neurons"):
        SensoryGate([wiring])
    with pytest.raises(ValueError, match="needs input_group = output_group = 'sensory'"):
        SensoryGate([backbone_wiring(3, 8, 0.5, 0)])


def test_a_gate_has_no_memory() -> None:
    torch.manual_seed(0)
    gate = SensoryGate([sensory_gate_wiring(5, 8, 0.5, seed) for seed in range(3)])
    x = torch.randn(2, 6, 5)
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    torch.testing.assert_close(gate(x[:, order]), gate(x)[:, order], atol=1e-6, rtol=0.0)
