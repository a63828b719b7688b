"""The liquid time-constant network, solver step by step.

`LiquidNetwork` computes the same function fast. This form is for reading, and its tests compare the two.
Source: Hasani's thesis, Section 3.3 (Eq. 3.4, 3.5), Eq. 3.72 and Algorithm 2, where the solver is called hybrid; in
Hasani et al. 2021 (Liquid Time-constant Networks, Algorithm 1) it is called fused.

Shapes: B batch, T time, F inputs, N neurons, M = F + N sources of synapses.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nac_drive.policies.ops.liquid import LiquidNetwork


def naive_liquid_network(network: LiquidNetwork, x: Tensor, dt: Tensor, v: Tensor) -> Tensor:
    """Compute `network(x, dt, v)` from the weights of `network`.

    Args:
        network: The network whose weights and settings are used.
        x: Inputs, (B, T, F).
        dt: Seconds since the previous frame, (B, T). Less than 1 us counts as 1 us.
        v: Potential of each neuron before the first frame, (B, N).

    Returns:
        The potentials after each frame, (B, T, N).
    """
    w, E, gamma, mu = synapses(network)  # (N, M) each
    C, g, leak = F.softplus(network.capacitance), F.softplus(network.conductance), network.leak  # (N,) each
    gap = network.electrical.dense() if network.electrical else w.new_zeros(len(w), x.shape[2])  # (N, F)
    path = []
    for x_t, dt_t in zip(x.unbind(1), dt.unbind(1), strict=True):  # (B, F), (B,)
        delta = dt_t.clamp(min=1e-6).unsqueeze(1) / network.unfolds  # (B, 1) seconds per solver step
        for _ in range(network.unfolds):
            u = torch.cat((x_t, v), dim=1).unsqueeze(1)  # (B, 1, M): inputs and neurons send
            s = torch.sigmoid(gamma * (u - mu))  # (B, N, M): how far each synapse is open
            numerator = v * C / delta + g * leak + (w * s * E).sum(dim=2) + x_t @ gap.t()  # (B, N)
            denominator = C / delta + g + (w * s).sum(dim=2) + gap.sum(dim=1)  # (B, N)
            v = numerator / denominator  # Eq. 3.72
        path.append(v)
    return torch.stack(path, dim=1)


def synapses(network: LiquidNetwork) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return w, E, gamma and mu, (N, M) each.

    A row is a target, a column a source. Where there is no synapse, w = 0.
    """
    matrices = []
    for name in ("weight", "reversal", "gain", "center"):
        blocks = []
        for part in (network.sensory, network.recurrent):  # one number per True of the mask, row by row
            values = getattr(part, name)
            values = F.softplus(values) if name == "weight" else values
            blocks.append(values.new_zeros(part.mask.shape).masked_scatter(part.mask, values))
        matrices.append(torch.cat(blocks, dim=1))
    w, E, gamma, mu = matrices
    return w, E, gamma, mu
