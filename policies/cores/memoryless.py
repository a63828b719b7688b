"""No memory at all: what a driver can do from the present frame alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nac_drive.policies.cores.base import Core, State


class Feedforward(Core):
    """y = relu(W x + b) at each step; the state is an empty tuple and dt has no effect."""

    continuous_time = False

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.linear = nn.Linear(input_size, output_size)

    def state_shapes(self) -> tuple[tuple[tuple[int, ...], torch.dtype | None], ...]:
        return ()

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        return self.linear(x).relu(), ()  # (B, T, d)


class Bojarski(Core):
    """y = W_3 relu(W_2 relu(W_1 x + b_1) + b_2) + b_3 at each step, with 1000, 100 and output_size units: layers 8, 10
    and 12 of the table, whose convolutions belong to the encoder and whose last layer has one unit, the curvature.

    The dropout before each layer (0.5, 0.5 and 0.3) is left out: a core answers the same input alike. The encoder
    has the first of the three. The state is an empty tuple and dt has no effect.
    """

    continuous_time = False

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.layers = nn.Sequential(
            nn.Linear(input_size, 1000), nn.ReLU(), nn.Linear(1000, 100), nn.ReLU(), nn.Linear(100, output_size)
        )

    def state_shapes(self) -> tuple[tuple[tuple[int, ...], torch.dtype | None], ...]:
        return ()

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        return self.layers(x), ()  # (B, T, output_size)
