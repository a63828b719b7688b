"""Liquid time-constant networks and Neural Circuit Policies.

Source: Hasani's thesis, Chapter 3 and Section 6.2.

The neurons and their solver are in `ops.liquid`. A Neural Circuit Policy is LTC neurons on the four-layer wiring of
C. elegans.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from nac_drive.policies.cores.base import RecurrentCore, State, StateSpec
from nac_drive.policies.ops.liquid import LiquidNetwork, Solver
from nac_drive.policies.ops.size_limit import count_mask
from nac_drive.policies.wiring.graphs import fully_connected_wiring, ncp_wiring
from nac_drive.policies.wiring.wiring import Groups, Wiring


class LiquidCore(RecurrentCore):
    """Base of cores of LTC neurons.

    State: (v,), (B, N), the potentials of the neurons.
    """

    continuous_time = True
    neuron_names = ("v",)
    synapse_weights = ("network.sensory.weight", "network.recurrent.weight")
    network: LiquidNetwork

    def state_shapes(self) -> StateSpec:
        return (((len(self.network.leak),), None),)

    def coupling_sensitivity(self, x: Tensor, state: State) -> Tensor:
        """Return tau_sys, with which neurons follow their inputs.

        See the thesis, Eq. 3.7 and 3.28.

            dv_i/dt = -v_i / tau_sys_i + ...,    tau_sys_i = C_i / (g_i + sum_j w_ij s_ij)

        It lies between C / (g + sum_j w) and C / g (Lemma 8). A small one means a fast reaction (section 6.4.6).

        Args:
            x: Inputs of one frame, (B, F).
            state: The state at that frame.

        Returns:
            Seconds, (B, N).
        """
        return self.network.coupling_sensitivity(x, state[0])


class LTC(LiquidCore):
    """Liquid time-constant neurons, fully connected.

    Every input and every neuron leads to every neuron.

    The output is their state. The hybrid solver (Eq. 3.72, Algorithm 2) takes `unfolds` steps of D = dt / unfolds per
    frame:

        v_i <- (C_i / D v_i + g_i leak_i + sum_j w_ij s_ij E_ij) / (C_i / D + g_i + sum_j w_ij s_ij)

    This is a weighted mean of v_i, leak_i and E_ij whatever dt: the state never leaves their range (Lemma 9). A
    neuron's time constant lies between C / (g + sum_j w_ij) and C / g (Lemma 8): at the start, with 64 inputs and 64
    neurons, between about 8 ms and (the median) 1 s, for frames of 20 ms. dt below 1 us counts as that.

    The affine maps that ncps puts before and after the cell are left out: gamma and mu shift and scale every synapse,
    and a dense layer reads the state. Polarities E start at +1 or -1 with equal chance (as in Algorithms 9-12).

    State: (v,), (B, d).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        unfolds: Solver steps per frame.
        solver: "hybrid", or the explicit "euler" or "rk4" (thesis, section 3.4) to compare with: they lack the bound of
            Lemma 9 and diverge over long gaps, so CORES has the hybrid one alone.

    Raises:
        ValueError: `unfolds` is less than 1, or `solver` is unknown.
    """

    has_cells = True

    def __init__(self, input_size: int, output_size: int, *, unfolds: int = 6, solver: Solver = "hybrid") -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        full = torch.ones(input_size + output_size, output_size, dtype=torch.bool)
        self.network = LiquidNetwork(full[:input_size], full[input_size:], unfolds, solver)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        y = self.network(x, dt, state[0])  # (B, T, N)
        return y, (y[:, -1],)


DRAWS = 1000
"""Largest number of random wirings drawn."""


def scattered_wiring(inputs: int, groups: Groups, *, sparsity: float, seed: int, **fans: int | None) -> Wiring:
    """Draw a random wiring of as many synapses as the NCP.

    Synapses from inputs are drawn among all pairs of an input and a neuron of the input group. The others are drawn
    among all pairs of neurons. The wiring is drawn again until `Wiring` accepts it.

    Raises:
        ValueError: `sparsity` is outside [0, 1), or so high that 1000 draws all fail.
    """
    model = ncp_wiring(inputs, groups, sparsity=sparsity, seed=seed, **fans)
    entry, rng, error = groups.slice(groups.input_group), np.random.default_rng(seed), None
    for _ in range(DRAWS):
        count_mask(*model.recurrent_mask.shape)
        masks = model.input_mask.copy(), model.recurrent_mask.copy()
        for block in (masks[0][:, entry], masks[1]):
            block[:] = rng.permutation(block.ravel()).reshape(block.shape)
        try:
            return Wiring(groups, *masks)
        except ValueError as invalid:
            error = invalid
    raise ValueError(f"sparsity: {DRAWS} wirings drawn at sparsity={sparsity} all failed ({error}); lower it.")


def _full(inputs: int, groups: Groups, **settings: float | None) -> Wiring:
    return fully_connected_wiring(inputs, groups)


DRAWN: dict[str, Callable[..., Wiring]] = {"ncp": ncp_wiring, "random": scattered_wiring, "full": _full}
"""The wirings of Table 6.1 by name; only sizes have an effect on "full"."""


class NCP(LiquidCore):
    """A Neural Circuit Policy: LTC neurons on a layered wiring.

    y = W v_motor + b.

    The inputs are the sensory layer; 12 inter neurons, 6 command neurons and the motor neurons are LTC neurons (see
    `LTC`: equations, solver, initial ranges). Signals leave through the motor neurons only.

    The circuit of the thesis has 19 neurons, one of them motor, because its car is only steered. CarRacing has three
    controls, so three motor neurons are the default, 21 in all; `motor=1` gives the 19. W maps them to output_size
    features.

    Wirings: "ncp" is drawn as in Algorithms 8-12 (`ncp_wiring`; one `sparsity` takes the place of the four densities
    k, and paths that are missing by chance are added); "random" and "full" are the baselines of Table 6.1: the same
    neurons with as many synapses at random places, or with all of them. Inputs reach inter neurons only, in all three.
    A synapse that is not there has no parameters.

    State: (v,), (B, neurons): inter, command, motor.

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        inter: Number of inter neurons.
        command: Number of command neurons.
        motor: Number of motor neurons.
        sparsity: Fraction of synapses left out, in [0, 1).
        seed: Seed of the wiring.
        unfolds: Solver steps per frame.
        wiring: "ncp", "random" or "full".
        sensory_fanout: See `ncp_wiring`, as for the next three. With 6, 4, 6 and 6, 19 neurons
            and 32 inputs, the circuit has the 1,065 parameters of the thesis (Table 6.6) if the six draws differ.
        inter_fanout: Synapses of each inter neuron.
        recurrent_command_synapses: Draws among the command neurons.
        motor_fanin: Synapses into each motor neuron.

    Raises:
        ValueError: A group is empty, `unfolds` is less than 1, `wiring` is unknown or `sparsity` outside [0, 1).
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        inter: int = 12,
        command: int = 6,
        motor: int = 3,
        sparsity: float = 0.5,
        seed: int = 0,
        unfolds: int = 6,
        wiring: str = "ncp",
        sensory_fanout: int | None = None,
        inter_fanout: int | None = None,
        recurrent_command_synapses: int | None = None,
        motor_fanin: int | None = None,
    ) -> None:
        super().__init__()
        if wiring not in DRAWN:
            raise ValueError(f"wiring: must be one of {sorted(DRAWN)}, got {wiring!r}.")
        groups = Groups(inter=inter, command=command, motor=motor, input_group="inter")
        self.input_size, self.output_size = input_size, output_size
        self.wiring = DRAWN[wiring](
            input_size, groups, sparsity=sparsity, seed=seed, sensory_fanout=sensory_fanout, inter_fanout=inter_fanout,
            recurrent_command_synapses=recurrent_command_synapses, motor_fanin=motor_fanin,
        )  # fmt: skip
        masks = self.wiring.input_mask, self.wiring.recurrent_mask
        sensory, recurrent = (torch.from_numpy(mask.copy()) for mask in masks)
        self.network = LiquidNetwork(sensory, recurrent, unfolds)
        self.readout = nn.Linear(motor, output_size)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        v = self.network(x, dt, state[0])  # (B, T, neurons)
        return self.readout(v[..., self.wiring.group("motor")]), (v[:, -1],)
