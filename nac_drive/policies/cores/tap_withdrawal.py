"""Ordinary neural circuits: LTC neurons wired as C. elegans.

The circuit is the tap-withdrawal reflex (Hasani's thesis, Chapter 4).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nac_drive.policies.cores.base import RecurrentCore, State, StateSpec
from nac_drive.policies.ops.liquid import LiquidNetwork
from nac_drive.policies.wiring.tap_withdrawal import (
    ELECTRICAL,
    EXCITATORY,
    INHIBITORY,
    MOTOR,
    NEURONS,
    SENSORY,
    tap_withdrawal_circuit,
)

EXCITATORY_POTENTIAL, INHIBITORY_POTENTIAL = 1.4, -0.4
"""Reversal potentials at first, 0 and -90 mV (Lechner et al. 2018, Table S2), in units of 50 mV above -70 mV."""
VARIABLES, SIGNS = [1, 0, 0, 1], [-1.0, 1.0, -1.0, 1.0]
"""Of PVD, PLM, AVM and ALM: the variable, and the sign of it that they respond to (Lechner et al. 2018, Table 1)."""


class TapWithdrawal(RecurrentCore):
    """The tap-withdrawal circuit of 11 neurons and 28 synapses.

    4 neurons are sensory, 7 are LTC neurons (see `LTC`).

    A linear layer maps the inputs to two variables (section 4.5.2). Each drives a pair of sensory neurons, one by its
    positive and one by its negative part (Eq. 4.1 and 4.2, here with potentials from 0 for -70 mV to 1 for -20 mV):

        S_p = min(max(x, 0), 1),    S_n = min(max(-x, 0), 1)

    PLM and AVM respond to the first variable, ALM and PVD to the second. Inter, command and motor neurons follow the
    hybrid solver. A linear layer maps the two motor neurons to the outputs; y = FWD - REV is Eq. 4.3 and 4.4 within
    their range. An electrical synapse lets w (v_sensory - v) flow into its target; the inputs set sensory neurons.
    Polarities and centers of the synapses may be trained here; the thesis keeps them.

    State: (v,), (B, 7): AVD, PVC, DVA, AVA, AVB, FWD, REV.

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        wiring: "tap-withdrawal", or a random circuit of its size: "a", "b", "c" or "d" (`tap_withdrawal_circuit`).
        seed: Seed of a random circuit.
        unfolds: Solver steps per frame.

    Raises:
        ValueError: `unfolds` is less than 1, or `wiring` is unknown.
    """

    continuous_time = True
    neuron_names = ("v",)
    synapse_weights = ("network.sensory.weight", "network.electrical.weight", "network.recurrent.weight")
    _signs: Tensor

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        wiring: str = "tap-withdrawal",
        seed: int = 0,
        unfolds: int = 6,
    ) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        kinds = torch.from_numpy(tap_withdrawal_circuit(wiring, seed))[:, SENSORY.stop :]  # (11, 7)
        chemical = (kinds == EXCITATORY) | (kinds == INHIBITORY)
        entering, inner = chemical[SENSORY], chemical[SENSORY.stop :]
        self.network = LiquidNetwork(entering, inner, unfolds, electrical_mask=kinds[SENSORY] == ELECTRICAL)
        with torch.no_grad():
            halves = (self.network.sensory, kinds[SENSORY]), (self.network.recurrent, kinds[SENSORY.stop :])
            for synapses, kind in halves:
                excitatory = kind.T[synapses.mask] == EXCITATORY
                synapses.reversal.copy_(torch.where(excitatory, EXCITATORY_POTENTIAL, INHIBITORY_POTENTIAL))
        self.encode = nn.Linear(input_size, 2)
        self.readout = nn.Linear(2, output_size)
        self.register_buffer("_signs", torch.tensor(SIGNS), persistent=False)

    def state_shapes(self) -> StateSpec:
        return (((len(NEURONS) - SENSORY.stop,), None),)

    def sense(self, x: Tensor) -> Tensor:
        """Return the sensory neurons' potentials (..., 4) of inputs.

        Inputs are (..., F); the order is NEURONS'.
        """
        return (self._signs * self.encode(x)[..., VARIABLES]).clamp(0.0, 1.0)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        v = self.network(self.sense(x), dt, state[0])  # (B, T, 7)
        return self.readout(v[..., MOTOR.start - SENSORY.stop :]), (v[:, -1],)
