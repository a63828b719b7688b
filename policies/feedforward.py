"""No memory at all: what a driver can do from the present frame alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from policies.core import Core, State


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
