"""Neuron-level recording against the equations and against what the fast path computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nac_drive.policies import NAC, NAC_VARIANTS, CircuitRecord, backbone_wiring
from nac_drive.policies.nac import layer as nac
from nac_drive.policies.nac.logits import OMEGA_FLOOR

T = 9


def record(name: str = "nac-exact", **settings: object) -> tuple[NAC, torch.Tensor, torch.Tensor, CircuitRecord]:
    torch.manual_seed(0)
    layer = NAC(8, 2, **{**NAC_VARIANTS[name], **settings}).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    x = torch.randn(2, T, 8, dtype=torch.float64)
    y, circuit = layer(x, causal=True, return_circuit=True)
    return layer, x, y, circuit


@pytest.mark.parametrize("settle_steps", [3, 5])
@pytest.mark.parametrize("name", ["nac-exact", "nac-pw", "nac-fc", "nac-09s"])
def test_phi_and_omega_are_made_of_the_last_motor_state(name: str, settle_steps: int) -> None:
    layer, _, _, circuit = record(name, settle_steps=settle_steps)
    cell = layer.backbone
    motor = circuit.neurons["motor"][-1]  # (B, H, Tq, K, 2)
    scale, shift = (p[:, None] for p in (cell.out_scale, cell.out_shift))  # (H, 1, 1, 2)
    phi, omega = (motor * scale + shift).unbind(4)
    torch.testing.assert_close(torch.sigmoid(phi), circuit.attention.phi, atol=1e-12, rtol=0.0)
    torch.testing.assert_close(
        torch.nn.functional.softplus(omega) + OMEGA_FLOOR, circuit.attention.omega, atol=1e-12, rtol=0.0
    )


def test_the_groups_have_the_sizes_of_the_wiring_and_light_up_layer_by_layer() -> None:
    _, _, _, circuit = record(settle_steps=4)
    groups = backbone_wiring(8, 8, 0.5, 0).groups
    assert {name: states.shape for name, states in circuit.neurons.items()} == {
        name: (4, 2, 2, T, 8, groups.size(name)) for name in groups.active
    }
    spread = {
        name: states.flatten(1, 4).std(dim=1).amax(dim=1) > 0.02  # over pairs
        for name, states in circuit.neurons.items()
    }
    per_head = circuit.neurons["motor"][1].std(dim=(0, 2, 3))
    assert per_head.max() < 1e-12  # two steps: the motors have not heard of the pair yet
    assert spread["inter"].tolist() == [True] * 4
    assert all(states.abs().max() <= 1.0 for states in circuit.neurons.values())
    assert circuit.neurons["motor"][2].std(dim=(0, 2, 3)).min() > 1e-3


def test_recording_changes_nothing_and_agrees_with_the_attention() -> None:
    layer, x, y, circuit = record()
    assert torch.equal(layer(x, causal=True), y)
    again, attention = layer(x, causal=True, return_attention=True)
    assert torch.equal(again, y)
    for name in ("index", "alpha", "phi", "omega", "t", "a"):
        assert torch.equal(getattr(attention, name), getattr(circuit.attention, name)), name


def test_the_output_can_be_rebuilt_from_the_recording() -> None:
    layer, _, y, circuit = record("nac-pw")
    attention = circuit.attention
    a = attention.phi / attention.omega * (1.0 - torch.exp(-attention.omega * attention.t))
    torch.testing.assert_close(attention.a, a)
    heads = (attention.alpha * attention.t) @ circuit.v  # pairwise: every key, in order
    torch.testing.assert_close(layer.out(heads.transpose(1, 2).flatten(2)), y)
    assert circuit.q.shape == circuit.k.shape == circuit.v.shape == (2, 2, T, 4)


def test_chunks_do_not_show_in_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, whole = record()
    monkeypatch.setattr(nac, "PAIRS_PER_CHUNK", 2 * 2 * 8 * 2)  # two queries at a time
    *_, parts = record()
    for name, states in whole.neurons.items():
        np.testing.assert_allclose(parts.neurons[name].detach(), states.detach(), atol=1e-14)
