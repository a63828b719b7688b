"""The continuous-time RNN (Funahashi and Nakamura 1993).

It is dense or sparse, and runs over the true time between frames.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nac_drive.policies.cores.base import RecurrentCore, State, StateSpec, scan
from nac_drive.policies.ops.ode import initial_log_tau
from nac_drive.policies.ops.sparse import SparseMatrix


class CTRNN(RecurrentCore):
    """A continuous-time RNN with a learned tau of each unit.

    tau > 0 is a time constant.

        tau dh/dt = -h + tanh(W x + U h + b)

    This is Eq. 2.21 of Hasani's thesis (2020), dh/dt = f(h, x) - h, with a time constant per unit as in its Eq. 2.15
    and 2.16. Those do not divide the second term by tau, which their weights can compensate, and have the weights
    outside of the sigmoids. Here h stays within [-1, 1], so that the clipping of the state to [-5, 5], which the thesis
    applies against wind-up (Section 6.2), has no effect.

    The input is held over the dt seconds before its frame, which are cut into `unfolds` equal steps of exponential
    Euler: the tanh is taken at the start of the step and the equation, then linear, solved exactly. That is of first
    order and stable for every dt. dt = 0 leaves the state as it is. The output is h. tau starts between 0.03 and 3 s,
    evenly in its logarithm.

    State: (h,), (B, d).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        unfolds: Solver steps per frame.
        sparsity: Fraction of the weights W and U that are fixed at zero, in [0, 1), see `SparseMatrix`; 0.95 for the
            sparse CT-RNN of Table 6.1.
        seed: Seed of the draw of these weights.

    Raises:
        ValueError: `unfolds` is less than 1, or `sparsity` is outside [0, 1).
    """

    continuous_time = True
    neuron_names = ("h",)
    synapse_weights = ("input.values", "recurrent.values")
    has_cells = True

    def __init__(
        self, input_size: int, output_size: int, *, unfolds: int = 6, sparsity: float = 0.0, seed: int = 0
    ) -> None:
        super().__init__()
        if unfolds < 1:
            raise ValueError(f"unfolds: must be at least 1 solver step per frame, got {unfolds}.")
        self.input_size, self.output_size, self.unfolds = input_size, output_size, unfolds
        rng = np.random.default_rng(seed)
        self.input = SparseMatrix(output_size, input_size, sparsity, rng)
        self.recurrent = SparseMatrix(output_size, output_size, sparsity, rng)
        self.bias = nn.Parameter(torch.zeros(output_size))
        self.log_tau = nn.Parameter(initial_log_tau(output_size))

    def state_shapes(self) -> StateSpec:
        return (((self.output_size,), None),)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        drive = F.linear(x, self.input(), self.bias)  # (B, T, d): all steps at once
        decay = torch.exp(dt.unsqueeze(2) / -self.unfolds * torch.exp(-self.log_tau))  # (B, T, d)
        weight = self.recurrent().t()

        def step(state: State, drive: Tensor, decay: Tensor) -> tuple[Tensor, State]:
            h = state[0]
            for _ in range(self.unfolds):
                target = torch.addmm(drive, h, weight).tanh()  # (B, d)
                h = torch.lerp(target.to(h.dtype), h, decay)
            return h, (h,)

        return scan(step, state, drive, decay)
