"""LSTM, GRU and RNN of torch, and a sparse LSTM."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from nac_drive.policies.cores.base import RecurrentCore, State, StateSpec
from nac_drive.policies.ops.lstm import run_lstm
from nac_drive.policies.ops.sparse import SparseMatrix


class LSTM(RecurrentCore):
    """One layer of torch.nn.LSTM. dt has no effect.

    State: (h, c), each (B, d).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
    """

    continuous_time = False
    neuron_names = ("h", "c")
    synapse_weights = ("cell.weight_ih_l0", "cell.weight_hh_l0")
    has_cells = True

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.cell = nn.LSTM(input_size, output_size, batch_first=True)

    def state_shapes(self) -> StateSpec:
        return ((self.output_size,), None), ((self.output_size,), None)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        h, c = state
        y, after = run_lstm(lambda x, *start: self.cell(x, start), x, h[None], c[None])  # (B, T, d)
        return y, tuple(new[0].to(h.dtype) for new in after)  # the state keeps its dtype under mixed precision


class RNN(RecurrentCore):
    """One layer of torch.nn.RNN, the thesis' "Vanilla RNN".

    h' = tanh(W x + U h + b), Table 6.1.

    The output is h'. dt has no effect.

    State: (h,), (B, d).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
    """

    continuous_time = False
    neuron_names = ("h",)
    synapse_weights = ("cell.weight_ih_l0", "cell.weight_hh_l0")
    has_cells = True
    layer: type[nn.RNN] | type[nn.GRU] = nn.RNN

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.cell = self.layer(input_size, output_size, batch_first=True)

    def state_shapes(self) -> StateSpec:
        return (((self.output_size,), None),)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        y, h = self.cell(x, state[0][None])  # (B, T, d)
        return y, (h[0].to(state[0].dtype),)


class RIN(RNN):
    """Recurrent identity network (Hu et al. 2018; thesis, Eq. 2.7).

    h' = tanh(W x + (U + I) h + b).

    The identity is not trained; added to the initial U it gives the same function and the same gradients. dt has no
    effect.

    State: (h,), (B, d).
    """

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__(input_size, output_size)
        with torch.no_grad():
            self.cell.get_parameter("weight_hh_l0").add_(torch.eye(output_size))


class GRU(RNN):
    """One layer of torch.nn.GRU. dt has no effect.

    State: (h,), (B, d).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
    """

    layer = nn.GRU


class SparseLSTM(RecurrentCore):
    """torch.nn.LSTM with most weights fixed at zero.

    See Hasani's thesis, Table 6.1.

    The input and the recurrent matrix (4 d, ...), gates i, f, g, o, are each a `SparseMatrix`.

        i, f, o = sigmoid(W x + U h + b), g = tanh(W x + U h + b), c' = f c + i g, h' = o tanh(c')

    The thesis enforces its 95 % by projected gradient descent and does not name the set of the projection; here the set
    of free weights is drawn once from `seed`. It also clips the state to [-5, 5]; torch.nn.LSTM does not, nor does
    this. The output is h'. dt has no effect.

    State: (h, c), each (B, d).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        sparsity: Fraction of the weights that are fixed at zero, in [0, 1).
        seed: Seed of the draw of these weights.

    Raises:
        ValueError: `sparsity` is outside [0, 1).
    """

    continuous_time = False
    neuron_names = ("h", "c")
    synapse_weights = ("input.values", "recurrent.values")
    has_cells = True

    def __init__(self, input_size: int, output_size: int, *, sparsity: float = 0.95, seed: int = 0) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        rng = np.random.default_rng(seed)
        self.input = SparseMatrix(4 * output_size, input_size, sparsity, rng)
        self.recurrent = SparseMatrix(4 * output_size, output_size, sparsity, rng)
        self.bias = nn.Parameter(torch.zeros(4 * output_size))

    def state_shapes(self) -> StateSpec:
        return ((self.output_size,), None), ((self.output_size,), None)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        weights = [self.input(), self.recurrent(), self.bias, torch.zeros_like(self.bias)]

        def lstm(x: Tensor, *start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return torch.lstm(x, start, weights, True, 1, 0.0, self.training, False, True)

        y, h, c = run_lstm(lstm, x, *(tensor[None] for tensor in state))  # (B, T, d)
        return y, (h[0].to(state[0].dtype), c[0].to(state[1].dtype))
