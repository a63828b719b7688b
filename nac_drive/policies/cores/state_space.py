"""The common part of S4 and S4D.

Linear systems of complex modes stand between two affine maps.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nac_drive.policies.cores.base import Core, State, StateSpec


class StateSpaceCore(Core):
    """Base of state space models with a system per channel.

    Each of the d channels of u = W_i x + b_i drives its own linear system.

        ds/dt = r (A s + B u),    y = 2 Re(C s) + D u,    output = GLU(W_o GELU(y) + b_o)

    A is real in another basis, so its modes come in conjugate pairs: s holds one of each, N / 2 in all. r > 0 is a rate
    per channel; the step size Delta of the papers is r dt. At first C is standard complex normal, D normal, and r
    spread log-uniformly over 0.2..5 per second. (In the papers Delta starts in 0.001..0.1; r = 5 at dt = 0.02 s is that
    upper end.) One layer, without norm, dropout and residual path, and N is half of the usual; the input map is ours,
    since S4 layers have as many inputs as outputs.

    State: two real tensors, real and imaginary part, each (B, d, N / 2).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        state_size: Number of real state variables per channel, N.

    Raises:
        ValueError: `state_size` is odd or less than 2.
    """

    continuous_time = True
    neuron_names = ("real part", "imaginary part")

    def __init__(self, input_size: int, output_size: int, *, state_size: int = 32) -> None:
        super().__init__()
        if state_size < 2 or state_size % 2:
            raise ValueError(f"state_size: must be even and at least 2 (conjugate pairs), got {state_size}.")
        self.input_size, self.output_size, self.modes = input_size, output_size, state_size // 2
        self.input = nn.Linear(input_size, output_size)
        low, high = math.log(0.2), math.log(5.0)
        self.log_rate = nn.Parameter(low + (high - low) * torch.rand(output_size, 1))
        for name, value in self.initial_system().items():
            self.register_parameter(name, nn.Parameter(value))
        self.readout = nn.Parameter(0.5**0.5 * torch.randn(2, output_size, self.modes))
        self.skip = nn.Parameter(torch.randn(output_size))
        self.output = nn.Linear(output_size, 2 * output_size)

    @abstractmethod
    def initial_system(self) -> dict[str, Tensor]:
        """Return the first parameters of A and B, by name."""

    @abstractmethod
    def respond(self, u: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        """Run the linear systems.

        Args:
            u: Their inputs, (B, T, d).
            dt: Seconds since the previous observation, (B, T).
            state: As `state_shapes` describes it.

        Returns:
            2 Re(C s), (B, T, d), and the new state.
        """

    def state_shapes(self) -> StateSpec:
        return (((self.output_size, self.modes), None),) * 2

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        u = self.input(x).to(self.skip.dtype)  # (B, T, d)
        y, state = self.respond(u, dt, state)
        return F.glu(self.output(F.gelu(y + self.skip * u)), dim=2), state
