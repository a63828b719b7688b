"""Neurons and synapses of cores, counted by hand and by the weights that are not zero."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nac_drive.policies import CORES, Core, NACCore, build_core
from nac_drive.policies.cores.base import State, StateSpec

F, D = 3, 4
"""Inputs and outputs: 12 weights from inputs to units, 16 between units."""

BY_HAND = {
    "rnn": (D, 12 + 16),
    "rin": (D, 12 + 16),
    "gru": (D, 3 * (12 + 16)),
    "lstm": (D, 4 * (12 + 16)),
    "phased-lstm": (D, 4 * (12 + 16)),
    "mmrnn": (D, 4 * (12 + 16) + 16),  # an LSTM, and the field between frames
    "ct-rnn": (D, 12 + 16),
    "ct-gru": (D, 3 * (12 + 16)),  # retrieval, storage and event of every unit; its 7 traces are one neuron
    "gru-ode": (D, 3 * (12 + 16) + 3 * 16),
    "ode-rnn": (D, None),
    "ltc": (D, 12 + 16),
    "lrc": (D, 12 + 16),
    "tap-withdrawal": (7, 28),  # the four sensory neurons are set by the inputs
    "ncp-full": (21, F * 12 + 21 * 21),
    "lds": (D, 12 + 16),
    "circuitnet-l": (4 * 32, F * 128 + 4 * 32 * 32 + 4 * 3 * 24 * 24),
    "circuitnet-la": (4 * 28, None),
    "circuitnet-lp": (4 * 16, None),
    "circuitnet-lap": (4 * 16, None),
    "cfc": (D, None),
    "cfc-no-gate": (D, None),
    "cfc-pure": (D, None),
    **dict.fromkeys(("pdna-b", "pdna-c", "pdna-d", "pdna-e", "pdna-ode"), (D, None)),
}
NONE = """
cnn cnn-bojarski tdnn narx attention mha transformer nac-transformer relu-attention linear-attention performer mtan cta
odeformer contiformer deepstate s4 s4d
"""


@pytest.mark.parametrize("name", BY_HAND)
def test_counts_by_hand(name: str) -> None:
    core = build_core(name, F, D)
    assert core.neurons == BY_HAND[name][0]
    assert core.synapses == BY_HAND[name][1]


def test_every_core_is_counted_or_has_no_neurons() -> None:
    cores = {name: build_core(name, 16, 16) for name in CORES}
    assert {name for name, core in cores.items() if core.neurons is None} == {*NONE.split()}
    for core in cores.values():
        count = core.synapses
        assert count is None or count <= sum(each.numel() for each in core.parameters())
        assert count is None or core.neurons is not None


def test_the_circuit_of_table_6_6() -> None:
    """Each of 32 inputs reaches 6 of 12 inter neurons, each of these 3 of 6 command neurons, these the motor neuron."""
    sizes = {"inter": 12, "command": 6, "motor": 1}
    core: Any = build_core("ncp", 32, 64, **sizes)
    within = int(core.wiring.recurrent_mask[12:18, 12:18].sum())
    assert 1 <= within <= 6  # 6 draws among the command neurons, with repetition
    assert core.neurons == 12 + 6 + 1
    assert core.synapses == 32 * 6 + 12 * 3 + within + 6
    assert build_core("ncp-random", 32, 64, **sizes).synapses == core.synapses


def test_weights_that_are_fixed_at_zero_are_no_synapses() -> None:
    torch.manual_seed(0)
    for name, gates in (("lstm-sparse", 4), ("ct-rnn-sparse", 1)):
        core: Any = build_core(name, 32, 64)
        found = int((core.input() != 0).sum()) + int((core.recurrent() != 0).sum())
        assert (core.neurons, core.synapses) == (64, found)
        assert found < 0.06 * gates * 64 * (32 + 64)
    core = build_core("cfc-ncp", 32, 8)
    weights = [part for layer in core.layers for part in (layer.weight, layer.recurrent)]
    found = sum(int((weight != 0).sum()) for weight in weights)
    assert (core.neurons, core.synapses) == (16, found)
    assert found < sum(weight.numel() for weight in weights)


@pytest.mark.parametrize("name", ["nac-exact", "nac-09s", "nac-fc", "nac-sharp"])
def test_nac_has_the_neurons_and_synapses_of_its_circuits(name: str) -> None:
    """For d = 64, a backbone has 22 inter, 45 command and 2 motor neurons (NAC paper, section 4)."""
    torch.manual_seed(0)
    core = build_core(name, 32, 64)
    assert isinstance(core, NACCore)
    nac, gates = core.nac, 2 if name == "nac-sharp" else 3
    assert core.neurons == gates * 64 + nac.num_heads * (22 + 45 + 2)
    weights = [nac.query_gate.weight, nac.context_gate.weight, nac.backbone.in_weight, *nac.backbone.weight.values()]
    assert core.synapses == sum(int((weight != 0).sum()) for weight in weights)
    if name == "nac-fc":
        assert core.synapses == 3 * 32 * 64 + 16 * (8 * 22 + 22 * 45 + 45 * 2)


def test_a_core_of_another_author_has_no_counts() -> None:
    class Sum(Core):
        input_size = output_size = F
        continuous_time = False

        def state_shapes(self) -> StateSpec:
            return (((F,), None),)

        def forward(self, x: torch.Tensor, dt: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
            return x + state[0][:, None], state

    assert Sum().neurons is None
    assert Sum().synapses is None
