"""Liquid-resistance liquid-capacitance networks (Farsang, Neubauer and Grosu 2024, arXiv 2403.08791)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nac_drive.policies.cores.base import NOMINAL_DT, RecurrentCore, State, StateSpec, check_time_unit, scan
from nac_drive.policies.ops.liquid import positive


class LRC(RecurrentCore):
    """LTC neurons with saturated currents and a liquid capacitance.

    The input sets the capacitance. Every input and every neuron leads to every neuron. With u the inputs and the
    potentials v:

        s_ij = sigmoid(gamma_ij (u_j - mu_ij))                        synapses, as in `LTC`
        f_i  = g_i + sum_j w_ij s_ij                                  what forgets: the liquid resistance
        z_i  = g_i + sum_j k_ij s_ij                                  what is taken in
        e_i  = sigmoid(a_i + b_i) - sigmoid(a_i - b_i),  a = W u + c   elastance: one over the liquid capacitance
        dv_i/dt = e_i (leak_i tanh(z_i) - sigmoid(f_i) v_i)

    w, g and b are positive (softplus). The authors take one explicit Euler step a frame. Here it is the implicit step
    of the same code ("hybrid"), which no gap between frames makes unstable:

        v_i <- (v_i + D e_i leak_i tanh(z_i)) / (1 + D e_i sigmoid(f_i)),    D = dt / time_unit

    dt = 0 leaves the state as it is. The authors' affine maps before and after the cell are left out, as in `LTC`. The
    output is v.

    State: (v,), (B, d).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        time_unit: Seconds of one unit of dt: a frame by default.

    Raises:
        ValueError: `time_unit` is not positive.
    """

    continuous_time = True
    neuron_names = ("v",)
    synapse_weights = ("sensory.weight", "recurrent.weight")
    has_cells = True

    def __init__(self, input_size: int, output_size: int, *, time_unit: float = NOMINAL_DT) -> None:
        super().__init__()
        self.input_size, self.output_size, self.time_unit = input_size, output_size, check_time_unit(time_unit)
        self.sensory, self.recurrent = (LiquidSynapses(sources, output_size) for sources in (input_size, output_size))
        self.conductance = nn.Parameter(positive(0.001, 1.0, output_size))
        self.leak = nn.Parameter(torch.empty(output_size).uniform_(-0.2, 0.2))
        self.input = nn.Linear(input_size, output_size)  # a
        self.feedback = nn.Linear(output_size, output_size, bias=False)
        self.width = nn.Parameter(positive(1.0, 1.0, output_size))  # b

    def state_shapes(self) -> StateSpec:
        return (((self.output_size,), None),)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(state[0].dtype)
            conductance, width, leak = F.softplus(self.conductance), F.softplus(self.width), self.leak
            drive = self.sensory(x) + conductance.unsqueeze(1)  # (B, T, d, 2): f and z of the inputs
            clock = (dt / self.time_unit).unsqueeze(2)  # (B, T, 1)

            def step(state: State, drive: Tensor, steepness: Tensor, clock: Tensor) -> tuple[Tensor, State]:
                v = state[0]
                forget, update = (drive + self.recurrent(v)).unbind(2)  # (B, d) each
                a = steepness + self.feedback(v)
                elastance = clock * (torch.sigmoid(a + width) - torch.sigmoid(a - width))
                v = (v + elastance * leak * update.tanh()) / (1.0 + elastance * forget.sigmoid())
                return v, (v,)

            return scan(step, state, drive, self.input(x), clock)


class LiquidSynapses(nn.Module):
    """Synapses from every source to every neuron.

    Args:
        sources: Number of sources, M.
        neurons: Number of neurons, d.
    """

    def __init__(self, sources: int, neurons: int) -> None:
        super().__init__()
        shape = neurons, sources
        self.weight = nn.Parameter(positive(0.001, 1.0, *shape))  # w
        self.update = nn.Parameter(nn.init.orthogonal_(torch.empty(shape)))  # k
        self.gain = nn.Parameter(torch.empty(shape).uniform_(3.0, 8.0))  # gamma
        self.center = nn.Parameter(torch.empty(shape).uniform_(0.3, 0.8))  # mu

    def forward(self, u: Tensor) -> Tensor:
        """Sum over the sources u (..., M).

        Returns:
            The sums of w s and of k s, (..., d, 2).
        """
        s = torch.sigmoid(self.gain * (u.unsqueeze(-2) - self.center))  # (..., d, M)
        both = torch.stack((F.softplus(self.weight), self.update), dim=2)  # (d, M, 2)
        return torch.einsum("...dm,dmk->...dk", s, both)
