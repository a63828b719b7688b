"""ODE-RNN: an RNN with an ODE between frames (Rubanova et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nac_drive.policies.cores.base import RecurrentCore, State, StateSpec, scan
from nac_drive.policies.ops.ode import midpoint_path

LONGEST = 1.0
"""Seconds; a longer gap counts as this. The path moves without a bound, and a midpoint step does not follow it far."""


class ODERNN(RecurrentCore):
    """A GRU whose state evolves between frames.

        dz/dt = W_2 tanh(W_1 z + b_1) + b_2 between frames,    z <- GRU(x, z) at a frame,    y = z

    Source: Rubanova, Chen & Duvenaud 2019, "Latent ODEs for Irregularly-Sampled Time Series", Algorithm 1. The paper
    leaves the cell and the solver open; here they are torch's GRU cell and `ode_steps` equal midpoint steps over the
    gap before each frame, of second order. A gap of more than 1 s counts as 1 s.

    State: (z,), (B, d).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        ode_steps: Midpoint steps per frame.

    Raises:
        ValueError: `ode_steps` is less than 1.
    """

    continuous_time = True
    neuron_names = ("z",)
    has_cells = True

    def __init__(self, input_size: int, output_size: int, *, ode_steps: int = 1) -> None:
        super().__init__()
        if ode_steps < 1:
            raise ValueError(f"ode_steps: must be at least 1, got {ode_steps}.")
        self.input_size, self.output_size, self.ode_steps = input_size, output_size, ode_steps
        self.field_input = nn.Linear(output_size, output_size)
        self.field_output = nn.Linear(output_size, output_size)
        self.input = nn.Linear(input_size, 3 * output_size)
        self.recurrent = nn.Linear(output_size, 3 * output_size)

    def state_shapes(self) -> StateSpec:
        return (((self.output_size,), None),)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        def step(state: State, drive: Tensor, seconds: Tensor) -> tuple[Tensor, State]:
            z = self.update(drive, self.evolve(state[0], seconds)[-1])
            return z, (z,)

        return scan(step, state, self.input(x), dt.unsqueeze(2))

    def evolve(self, z: Tensor, seconds: Tensor) -> Tensor:
        """Return the path (ode_steps + 1, B, d) from z (B, d).

        It has the ends of the steps over `seconds` (B, 1).
        """
        seconds = seconds.clamp(max=LONGEST)
        return midpoint_path(lambda z: seconds * self.field(z), z, self.ode_steps)

    def field(self, z: Tensor) -> Tensor:
        """Return dz/dt (B, d) between frames at z (B, d)."""
        return self.field_output(self.field_input(z).tanh())

    def update(self, drive: Tensor, z: Tensor) -> Tensor:
        """Update z (B, d) by torch's GRU cell. Drive = W x + b (B, 3 d) for reset, update and new."""
        own = self.recurrent(z)
        d = self.output_size
        reset, update = torch.sigmoid(drive[:, : 2 * d] + own[:, : 2 * d]).chunk(2, dim=1)
        new = torch.tanh(drive[:, 2 * d :] + reset * own[:, 2 * d :])
        return new + update * (z - new)
