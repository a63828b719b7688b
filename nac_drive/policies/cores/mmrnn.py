"""The mixed-memory RNN, or ODE-LSTM (Lechner and Hasani 2020)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nac_drive.policies.cores.base import RecurrentCore, State, StateSpec, scan
from nac_drive.policies.ops.ode import initial_log_tau


class MMRNN(RecurrentCore):
    """A memory c in discrete time, a state h in continuous time.

    Source: "Learning Long-Term Dependencies in Irregularly-Sampled Time Series", Algorithm 1. At each frame

        (c', u) = LSTM(x, (c, h)),  then h' = s(dt), where  tau ds/dt = -s + tanh(V s + b),  s(0) = u

    so that time moves the state h, and through it the gates, while the gradient does not vanish along the path of the
    cell. As in the paper the span after the LSTM's update is the one before the frame. The output is h'.

    The authors' PyTorch code has a network of two layers without a leak for the vector field and solves it by explicit
    methods in 3 steps; their TensorFlow code has a CT-RNN. Here it is the CT-RNN with a learned tau of each unit (0.03
    to 3 s at the start), solved by `unfolds` steps of exponential Euler, which is stable for every dt and keeps h
    within [-1, 1]. dt = 0 makes it an LSTM.

    State: (h, c), each (B, d).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        unfolds: Solver steps per frame.

    Raises:
        ValueError: `unfolds` is less than 1.
    """

    continuous_time = True
    neuron_names = ("h", "c")
    synapse_weights = ("input.weight", "recurrent.weight", "field.weight")
    has_cells = True

    def __init__(self, input_size: int, output_size: int, *, unfolds: int = 3) -> None:
        super().__init__()
        if unfolds < 1:
            raise ValueError(f"unfolds: must be at least 1 solver step per frame, got {unfolds}.")
        self.input_size, self.output_size, self.unfolds = input_size, output_size, unfolds
        self.input = nn.Linear(input_size, 4 * output_size)  # i, f, g, o
        self.recurrent = nn.Linear(output_size, 4 * output_size, bias=False)
        self.field = nn.Linear(output_size, output_size)
        self.log_tau = nn.Parameter(initial_log_tau(output_size))

    def state_shapes(self) -> StateSpec:
        return ((self.output_size,), None), ((self.output_size,), None)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        drive = self.input(x)  # (B, T, 4 d): all steps at once
        decay = torch.exp(dt.unsqueeze(2) / -self.unfolds * torch.exp(-self.log_tau))  # (B, T, d)
        weight, bias, field = self.recurrent.weight.t(), self.field.bias, self.field.weight.t()

        def step(state: State, drive: Tensor, decay: Tensor) -> tuple[Tensor, State]:
            h, c = state
            i, f, g, o = torch.addmm(drive, h, weight).chunk(4, dim=1)  # (B, d) each
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            for _ in range(self.unfolds):
                target = torch.addmm(bias, h, field).tanh()  # (B, d)
                h = torch.lerp(target.to(h.dtype), h, decay)
            return h, (h, c)

        return scan(step, state, drive, decay)
