"""The recurrent CircuitNet (Wang et al. 2023).

Groups of densely connected neurons are sparsely connected by ports.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nac_drive.policies.cores.base import RecurrentCore, State, StateSpec, scan

AMPLITUDE, SLOPE = 3.388235, 0.01
"""A and epsilon of ClipSin as the paper has them. A is Eq. 29, derived to make a gradient's mean factor through
products 1 for standard normal signals (Eq. 28); integrated numerically, that mean is 2."""


def clip_sin(x: Tensor) -> Tensor:
    """Return A sin(pi x / 6) in [-3, 3]. Outside it goes on with slope epsilon (Eq. 8). It is odd and monotonic."""
    inside = x.clamp(-3.0, 3.0)
    return torch.add(AMPLITUDE * torch.sin(math.pi / 6.0 * inside), x - inside, alpha=SLOPE)


class CircuitNet(RecurrentCore):
    """R-CircuitNet (Section 3.3): `units` circuit motif units of M neurons.

    The units are called CMUs, X_i.

        X_i' = s(g_i(X_i) + sum over j != i of h_ij(X_j) + b_i + s(W_in,i x + b_in,i))      (Eq. 9 to 11)
        y = W_out X' + b_out

    s is ClipSin. Within a CMU, X being its M neurons, g is the sum of

        W X                                             always                              (Eq. 1)
        softmax over j of (Q_i X)(K_j X), times V X     if `attention`, neuron-wise         (Eq. 2 and 3)
        1/2 sum over j, k of W_ijk x_j x_k              if `product`                        (Eq. 4, 5 and 21)

    Between CMUs, h_ij = P_in (W_ij (P_out X_j)) reaches only the input ports of i and comes only from the output ports
    of j (Eq. 7). As in all of the paper's tables, 3/4 of the neurons are ports of each kind. The paper does not name
    them: here the first are input ports and the last are output ports, so that half of the neurons are both. Every CMU
    is connected to every other, as in Appendix B.4. A frame is one iteration of signal transmission, as in the paper,
    or `iterations` of them, with the same weights and the input held. dt has no effect.

    Differs from the paper's forecaster: ClipSin, which it has for images and control, not tanh. Without its weight
    normalization for images: linear weights start so that a small signal neither grows nor dies, products smaller.

    State: the neurons (X,), (B, units M).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        attention: Add the neuron-wise attention to every CMU.
        product: Add the products of pairs of neurons to every CMU.
        units: Number of CMUs.
        neurons: Number of neurons of a CMU, M. None is 32, or 28 with attention, or 16 with products: about 30 000
            parameters from 64 to 64 features. For control the paper has 64, 40 and 32, and two iterations (Table 8).
        iterations: Iterations of signal transmission per frame.

    Raises:
        ValueError: `units` or `iterations` is less than 1, or `neurons` less than 2.
    """

    continuous_time = False
    neuron_names = ("X",)

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        attention: bool = False,
        product: bool = False,
        units: int = 4,
        neurons: int | None = None,
        iterations: int = 1,
    ) -> None:
        super().__init__()
        if neurons is None:
            neurons = 16 if product else 28 if attention else 32
        for name, value, least in (("units", units, 1), ("neurons", neurons, 2), ("iterations", iterations, 1)):
            if value < least:
                raise ValueError(f"{name}: must be at least {least}, got {value}.")
        self.input_size, self.output_size = input_size, output_size
        self.units, self.unit_size, self.ports, self.iterations = units, neurons, 3 * neurons // 4, iterations
        total = units * neurons
        self.input = nn.Linear(input_size, total)
        self.output = nn.Linear(total, output_size)
        self.bias = nn.Parameter(torch.zeros(total))
        spread = _GAIN / math.sqrt(neurons + (units - 1) * self.ports)
        self.linear = nn.Parameter(spread * torch.randn(units, neurons, neurons))
        self.between = nn.Parameter(spread * torch.randn(units * (units - 1), self.ports, self.ports))
        share = 1 / math.sqrt(max(1, attention + product))  # of the further motifs: with both in full, signals grow
        scores = share * _GAIN / math.sqrt(neurons)
        qkv = (units, 3 * neurons, neurons)  # Q, K, V below each other
        self.attention = nn.Parameter(scores * torch.randn(qkv)) if attention else None
        halved = share * 0.5 * _GAIN / neurons
        self.product = nn.Parameter(halved * torch.randn(units, neurons, neurons, neurons)) if product else None
        self.places: Tensor
        self.register_buffer("places", self._places(), persistent=False)
        if self.attention is None and self.product is None:  # otherwise no weight belongs to a pair of neurons
            self.synapse_weights = ("input.weight", "linear", "between")

    def state_shapes(self) -> StateSpec:
        return (((self.units * self.unit_size,), None),)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        drive = clip_sin(self.input(x)) + self.bias  # (B, T, N), N = units M
        weight = self._wiring().t()

        def step(state: State, drive: Tensor) -> tuple[Tensor, State]:
            (neurons,) = state
            for _ in range(self.iterations):
                signal = torch.addmm(drive, neurons, weight)  # (B, N)
                if self.attention is not None or self.product is not None:
                    signal = signal + self._interactions(neurons)
                neurons = clip_sin(signal)
            return neurons, (neurons,)

        neurons, last = scan(step, state, drive)  # (B, T, N)
        return self.output(neurons), (last[0].to(state[0].dtype),)

    def _interactions(self, neurons: Tensor) -> Tensor:
        """Compute attention and products within each CMU: neurons (B, N) -> (B, N)."""
        groups = neurons.unflatten(1, (self.units, self.unit_size)).transpose(0, 1)  # (units, B, M)
        signals = []
        if self.attention is not None:
            query, key, value = torch.bmm(groups, self.attention.transpose(1, 2)).chunk(3, dim=2)  # (units, B, M) each
            weights = torch.softmax(query.unsqueeze(3) * key.unsqueeze(2), dim=3)  # (units, B, M, M)
            signals.append((weights * value.unsqueeze(2)).sum(dim=3))  # (units, B, M): faster than matmul here
        if self.product is not None:
            pairs = (groups.unsqueeze(3) * groups.unsqueeze(2)).flatten(2)  # (units, B, M M)
            signals.append(0.5 * torch.bmm(pairs, self.product.flatten(2).transpose(1, 2)))  # (units, B, M)
        return sum(signals[1:], signals[0]).transpose(0, 1).flatten(1)

    def _wiring(self) -> Tensor:
        """Return all linear connections as one matrix (N, N).

        Columns are sources, within and between CMUs.
        """
        weights = torch.cat((self.linear.flatten(), self.between.flatten()))
        total = self.units * self.unit_size
        return weights.new_zeros(total * total).index_copy(0, self.places, weights).view(total, total)

    def _places(self) -> Tensor:
        """Return the positions of `linear` and `between` in the matrix.

        The matrix (N, N) is flattened.
        """
        index = torch.arange((self.units * self.unit_size) ** 2).view(
            self.units, self.unit_size, self.units, self.unit_size
        )
        within = [index[i, :, i] for i in range(self.units)]
        others = [(i, j) for i in range(self.units) for j in range(self.units) if i != j]
        between = [index[i, : self.ports, j, -self.ports :] for i, j in others]
        return torch.cat([block.flatten() for block in within + between])


_GAIN = 6.0 / (math.pi * AMPLITUDE)
"""Initial gain of linear connections: the inverse of ClipSin's slope at 0."""
