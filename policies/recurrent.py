"""LSTM, GRU and plain RNN (torch's own) behind the Core contract. They take no notice of dt."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from policies.core import Core, State


class LSTM(Core):
    """One layer of torch.nn.LSTM; state (h, c), each (B, d)."""

    continuous_time = False

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.cell = nn.LSTM(input_size, output_size, batch_first=True)

    def state_shapes(self) -> tuple[tuple[tuple[int, ...], torch.dtype | None], ...]:
        return ((self.output_size,), None), ((self.output_size,), None)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        h, c = state
        y, after = self.cell(x, (h[None], c[None]))  # (B, T, d)
        return y, tuple(new[0].to(h.dtype) for new in after)  # of mixed precision nothing stays in the state


class RNN(Core):
    """One layer of torch.nn.RNN, h' = tanh(W x + U h + b): the "Vanilla RNN" of Hasani's thesis, Table 6.1.

    The output is h'; the state is (h,), (B, d). dt has no effect.
    """

    continuous_time = False
    layer: type[nn.RNN] | type[nn.GRU] = nn.RNN

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.cell = self.layer(input_size, output_size, batch_first=True)

    def state_shapes(self) -> tuple[tuple[tuple[int, ...], torch.dtype | None], ...]:
        return (((self.output_size,), None),)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        y, h = self.cell(x, state[0][None])  # (B, T, d)
        return y, (h[0].to(state[0].dtype),)


class GRU(RNN):
    """One layer of torch.nn.GRU; state (h,), (B, d)."""

    layer = nn.GRU
