"""The sparse LSTM of Hasani's thesis (2020), Table 6.1."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from policies.core import Core, State
from policies.sparse_matrix import SparseMatrix


class SparseLSTM(Core):
    """torch.nn.LSTM with most weights zero for good: the input and the recurrent matrix (4 d, ...), gates i, f, g, o,
    are each a `SparseMatrix`.

        i, f, o = sigmoid(W x + U h + b), g = tanh(W x + U h + b), c' = f c + i g, h' = o tanh(c')

    The thesis enforces its 95 % by projected gradient descent without saying onto what; here the set of live weights is
    drawn once from `seed`. It also clips the state to [-5, 5], which is left out here, as in torch.nn.LSTM.
    The output is h'; the state is (h, c), each (B, d). dt has no effect.
    Raises ValueError if `sparsity` is outside [0, 1).
    """

    continuous_time = False

    def __init__(self, input_size: int, output_size: int, *, sparsity: float = 0.95, seed: int = 0) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        rng = np.random.default_rng(seed)
        self.input = SparseMatrix(4 * output_size, input_size, sparsity, rng)
        self.recurrent = SparseMatrix(4 * output_size, output_size, sparsity, rng)
        self.bias = nn.Parameter(torch.zeros(4 * output_size))

    def state_shapes(self) -> tuple[tuple[tuple[int, ...], torch.dtype | None], ...]:
        return ((self.output_size,), None), ((self.output_size,), None)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        weights = [self.input(), self.recurrent(), self.bias, torch.zeros_like(self.bias)]
        start = [tensor[None] for tensor in state]
        y, h, c = torch.lstm(x, start, weights, True, 1, 0.0, self.training, False, True)  # (B, T, d)
        return y, (h[0].to(state[0].dtype), c[0].to(state[1].dtype))
