"""Cores without memory: the present frame alone decides."""

from __future__ import annotations

from torch import Tensor, nn

from nac_drive.policies.cores.base import Core, State, StateSpec


class Feedforward(Core):
    """y = relu(W x + b) at each step. dt has no effect.

    State: an empty tuple.

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
    """

    continuous_time = False

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.linear = nn.Linear(input_size, output_size)

    def state_shapes(self) -> StateSpec:
        return ()

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        return self.linear(x).relu(), ()  # (B, T, d)


class Bojarski(Core):
    """The dense layers of Hasani's feed-forward network (Table 6.3).

        y = W_3 relu(W_2 relu(W_1 x + b_1) + b_2) + b_3 at each step, with 1000, 100 and output_size units

    These are layers 8, 10 and 12 of the table. Its convolutions belong to the encoder here; its last layer has one
    unit, the curvature. The dropout before each layer (0.5, 0.5 and 0.3) is left out, because a core gives the same
    output for the same input; the encoder has the first of the three. dt has no effect.

    State: an empty tuple.

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
    """

    continuous_time = False

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.layers = nn.Sequential(
            nn.Linear(input_size, 1000), nn.ReLU(), nn.Linear(1000, 100), nn.ReLU(), nn.Linear(100, output_size)
        )

    def state_shapes(self) -> StateSpec:
        return ()

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        return self.layers(x), ()  # (B, T, output_size)
