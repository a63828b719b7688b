"""Wirings: sizes, fan-outs, reachability, round trips."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nac_drive.policies import (
    Groups,
    Wiring,
    backbone_wiring,
    fully_connected_wiring,
    mlp_wiring,
    ncp_wiring,
    random_wiring,
    sensory_gate_wiring,
)
from nac_drive.policies.wiring.wiring import reached

SIZES = Groups(sensory=6, inter=10, command=8, motor=3)


def test_the_published_sizes_for_64() -> None:
    wiring = backbone_wiring(8, 64, 0.5, 0)
    assert wiring.groups == Groups(101, 22, 45, 2, input_group="inter")
    assert wiring.units == 64 + int(64 / 0.6) == 170
    gate = sensory_gate_wiring(64, 64, 0.5, 0)
    assert (gate.units, gate.groups.sensory) == (int(np.ceil(63.5 / 0.6)), 64)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 128), st.integers(1, 32), st.floats(0.0, 0.99), st.integers(0, 1000))
def test_every_size_and_sparsity_gives_a_valid_wiring(d_model: int, inputs: int, sparsity: float, seed: int) -> None:
    gate = sensory_gate_wiring(inputs, d_model, sparsity, seed)
    assert gate.units == int(np.ceil((d_model - 0.5) / 0.6))
    assert gate.groups.sensory == d_model
    backbone = backbone_wiring(2 * inputs, d_model, sparsity, seed)
    assert backbone.groups.motor == 2
    assert backbone.groups.inter >= 1
    assert backbone.groups.command >= 1
    if d_model >= 4:
        assert backbone.units == d_model + int(d_model / 0.6)


def test_synapses_follow_the_layers_and_the_fan_outs() -> None:
    wiring = ncp_wiring(5, SIZES, sparsity=0.5, seed=3)
    s, i, c, m = (wiring.group(name) for name in ("sensory", "inter", "command", "motor"))
    rec = wiring.recurrent_mask
    allowed = np.zeros_like(rec)
    for source, target in ((s, i), (i, c), (c, c), (c, m)):
        allowed[source, target] = True
    assert not (rec & ~allowed).any()
    assert (wiring.input_mask[:, s].sum(axis=1) >= 3).all()
    assert not wiring.input_mask[:, i].any()
    fan_out = np.concatenate([rec[s, i].sum(axis=1) - 5, rec[i, c].sum(axis=1) - 4, rec[c, m].T.sum(axis=1) - 4])
    assert (fan_out >= 0).all()  # neurons left out by chance may add a few
    assert fan_out.sum() <= 4
    assert 1 <= rec[c, c].sum() <= 8


def test_given_fans_are_those_of_algorithms_8_to_12() -> None:
    groups = Groups(inter=12, command=6, motor=1, input_group="inter")
    fans = {"sensory_fanout": 6, "inter_fanout": 4, "recurrent_command_synapses": 7, "motor_fanin": 6}
    wiring = ncp_wiring(32, groups, sparsity=0.5, seed=0, **fans)
    i, c, m = (wiring.group(name) for name in ("inter", "command", "motor"))
    assert (wiring.input_mask[:, i].sum(axis=1) == 6).all()
    assert (wiring.recurrent_mask[i, c].sum(axis=1) == 4).all()
    assert 1 <= wiring.recurrent_mask[c, c].sum() <= 7
    assert wiring.recurrent_mask[c, m].sum() == 6
    for name, most in (("sensory_fanout", 12), ("inter_fanout", 6), ("motor_fanin", 6)):
        with pytest.raises(ValueError, match=f"{name}: must lie in 1 to {most} in a circuit of this size, got 13"):
            ncp_wiring(32, groups, sparsity=0.5, seed=0, **{name: 13})


def test_sparsity_zero_keeps_every_feed_forward_synapse() -> None:
    wiring = ncp_wiring(5, SIZES, sparsity=0.0, seed=0)
    for source, target in (("sensory", "inter"), ("inter", "command"), ("command", "motor")):
        assert wiring.recurrent_mask[wiring.group(source), wiring.group(target)].all()
    assert wiring.input_mask[:, wiring.group("sensory")].all()


@pytest.mark.parametrize("build", [ncp_wiring, mlp_wiring, random_wiring])
def test_the_seed_decides(build: object) -> None:
    first, same, other = (build(5, SIZES, sparsity=0.5, seed=seed) for seed in (1, 1, 2))  # type: ignore[operator]
    assert first == same
    assert hash(first) == hash(same)
    assert first != other


@pytest.mark.parametrize(
    "wiring",
    [
        ncp_wiring(5, SIZES, sparsity=0.5, seed=0),
        random_wiring(5, replace(SIZES, input_group="inter"), sparsity=0.6, seed=0),
        fully_connected_wiring(5, replace(SIZES, input_group="command")),
        sensory_gate_wiring(5, 6, 0.5, 0),
        backbone_wiring(4, 8, 0.9, 0),
    ],
)
def test_config_round_trip_through_json(wiring: Wiring) -> None:
    restored = Wiring.from_config(json.loads(json.dumps(wiring.to_config())))
    assert restored == wiring
    assert np.array_equal(restored.recurrent_mask, wiring.recurrent_mask)


def test_an_mlp_has_layers_and_nothing_else_at_the_given_density() -> None:
    wiring = mlp_wiring(30, Groups(0, 60, 60, 2, input_group="inter"), sparsity=0.7, seed=0)
    i, c, m = (wiring.group(name) for name in ("inter", "command", "motor"))
    rest = wiring.recurrent_mask.copy()
    assert rest[i, c].mean() == pytest.approx(0.3, abs=0.03)
    assert wiring.input_mask[:, i].mean() == pytest.approx(0.3, abs=0.03)
    rest[i, c] = rest[c, m] = False
    assert not rest.any()
    dense = mlp_wiring(30, Groups(0, 6, 7, 2, input_group="inter"), sparsity=0.0, seed=0)
    assert dense.recurrent_mask.sum() == 6 * 7 + 7 * 2
    assert dense.input_mask.sum() == 30 * 6


def test_random_density_is_one_minus_sparsity() -> None:
    wiring = random_wiring(50, Groups(40, 40, 40, 40), sparsity=0.7, seed=0)
    assert wiring.recurrent_mask.mean() == pytest.approx(0.3, abs=0.01)
    assert wiring.input_mask[:, :40].mean() == pytest.approx(0.3, abs=0.03)


def test_a_wiring_cannot_be_changed() -> None:
    wiring = fully_connected_wiring(5, SIZES)
    with pytest.raises(ValueError, match="read-only"):
        wiring.input_mask[0, 0] = False
    with pytest.raises(AttributeError):
        wiring.groups = SIZES  # type: ignore[misc]


def own(input_mask: object, recurrent_mask: object, **changes: object) -> Wiring:
    """One neuron a layer from inter to motor: input -> 0 -> 1 -> 2."""
    sizes: dict[str, Any] = {"inter": 1, "command": 1, "motor": 1, "input_group": "inter"}
    return Wiring(Groups(**{**sizes, **changes}), input_mask, recurrent_mask)  # type: ignore[arg-type]


CHAIN = [[0, 1, 0], [0, 0, 1], [0, 0, 0]]


def test_masks_of_ones_own_are_accepted() -> None:
    wiring = own([[1, 0, 0], [1, 0, 0]], CHAIN)
    assert (wiring.inputs, wiring.units) == (2, 3)
    assert wiring.active_groups == ("inter", "command", "motor")


@pytest.mark.parametrize(
    ("input_mask", "recurrent_mask", "changes", "message"),
    [
        ([[1, 0, 0]], [[0, 0, 0], [0, 0, 1], [0, 0, 0]], {}, r"command neurons \[0\] are reached from no input"),
        ([[1, 0, 0], [0, 0, 0]], CHAIN, {}, r"inputs \[1\] do not reach the motor neurons"),
        ([[1, 0, 0]], [[0, 1], [0, 0]], {}, r"recurrent_mask: shape must be \(3, 3\), got \(2, 2\)"),
        ([[1, 0]], CHAIN, {}, r"input_mask: shape must be \(inputs >= 1, 3\), got \(1, 2\)"),
        ([[1, 1, 0]], CHAIN, {}, "inputs may only reach the input group 'inter'"),
        ([[1, 0, 0]], CHAIN, {"output_group": "command"}, "a disabled neuron"),
        ([[1, 0, 0]], CHAIN, {"input_group": "cortex"}, "input_group: must be one of .*, got 'cortex'"),
        ([[1, 0, 0]], CHAIN, {"output_group": "sensory"}, "output_group: must not come before"),
        ([[1, 0, 0]], CHAIN, {"command": 0, "motor": 2}, "command: an active group must hold at least one neuron"),
        ([[1, 0, 0]], CHAIN, {"motor": -1}, "motor: a group size must be at least 0, got -1"),
    ],
)
def test_what_cannot_work_is_refused(input_mask: object, recurrent_mask: object, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        own(input_mask, recurrent_mask, **changes)


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, float("nan")])
def test_sparsity_has_a_range(sparsity: float) -> None:
    with pytest.raises(ValueError, match=r"sparsity: must be in \[0, 1\)"):
        ncp_wiring(5, SIZES, sparsity=sparsity, seed=0)


def test_a_random_graph_too_sparse_to_connect_says_so() -> None:
    with pytest.raises(ValueError, match=r"100 graphs drawn at sparsity=0\.99 all failed.*lower the sparsity"):
        random_wiring(5, SIZES, sparsity=0.99, seed=0)


def test_a_foreign_config_is_refused() -> None:
    with pytest.raises(ValueError, match="wiring config: keys must be exactly"):
        Wiring.from_config({"units": 3})


def test_every_input_reaches_every_motor_neuron_in_one_step_a_layer_however_sparse() -> None:
    for seed in range(20):
        wiring = backbone_wiring(16, 24, 0.95, seed)
        assert reached(wiring, 3)[:, wiring.group("motor")].all()
        assert not reached(wiring, 2)[:, wiring.group("motor")].any()


@pytest.mark.parametrize("build", [ncp_wiring, mlp_wiring, random_wiring])
@pytest.mark.parametrize(("inputs", "changes"), [(0, {}), (5, {"command": 0}), (5, {"motor": -1})])
def test_drawing_with_impossible_sizes_is_refused(build: Any, inputs: int, changes: dict) -> None:
    with pytest.raises(ValueError, match=r"must be at least 1, got 0|command: an active group|motor: a group size"):
        build(inputs, replace(SIZES, **changes), sparsity=0.5, seed=0)
