"""The continuous-time GRU (Mozer, Kazakov and Lindsey 2017)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nac_drive.policies.cores.base import RecurrentCore, State, StateSpec, scan

SHORTEST = 0.02
"""Seconds: the first time scale, a frame. Each next one is longer by a factor of sqrt(10)."""


class CTGRU(RecurrentCore):
    """Units with a trace at M = `num_scales` time scales.

    The scales tau_i are fixed, spaced by half a decade.

    The gates choose scales instead of amounts ("Discrete Event, Continuous Time RNNs"). At a frame, after the traces
    have decayed, h_i <- h_i exp(-dt / tau_i), and with h = sum_i h_i:

        r_i = softmax_i(-(ln tau_R - ln tau_i)^2),  ln tau_R = W_R x + U_R h + b_R     retrieval
        s_i = softmax_i(-(ln tau_S - ln tau_i)^2),  ln tau_S = W_S x + U_S h + b_S     storage
        q   = tanh(W_Q x + U_Q (sum_i r_i h_i) + b_Q)                                  event signal
        h_i <- (1 - s_i) h_i + s_i q

    The paper lets the traces decay at the end, over the time until the next event. Here they decay when the next frame
    arrives with its dt, so the output sum_i h_i belongs to the frame's own time. The scales start at 0.02 s; seven of
    them reach 20 s. b_R and b_S start spread over the scales. The output is within [-M, M].

    State: (traces,), (B, M, d).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        num_scales: Number of time scales, M.

    Raises:
        ValueError: `num_scales` is less than 2.
    """

    continuous_time = True
    neuron_names = ("traces",)
    synapse_weights = ("input.weight", "scales.weight", "event.weight")
    has_cells = True
    log_scales: Tensor

    def __init__(self, input_size: int, output_size: int, *, num_scales: int = 7) -> None:
        super().__init__()
        if num_scales < 2:
            raise ValueError(f"num_scales: must be at least 2 time scales to choose from, got {num_scales}.")
        self.input_size, self.output_size, self.num_scales = input_size, output_size, num_scales
        log_scales = math.log(SHORTEST) + 0.5 * math.log(10.0) * torch.arange(num_scales)
        self.register_buffer("log_scales", log_scales.unsqueeze(1))  # (M, 1)
        self.input = nn.Linear(input_size, 3 * output_size)  # ln tau_R, ln tau_S, q
        self.scales = nn.Linear(output_size, 2 * output_size, bias=False)  # ln tau_R, ln tau_S
        self.event = nn.Linear(output_size, output_size, bias=False)
        with torch.no_grad():
            spread = torch.linspace(float(log_scales[0]), float(log_scales[-1]), output_size)
            self.input.bias[: 2 * output_size] = spread.repeat(2)

    def state_shapes(self) -> StateSpec:
        return (((self.num_scales, self.output_size), None),)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        d = self.output_size
        log_taus, signals = self.input(x).split((2 * d, d), dim=2)  # (B, T, 2 d), (B, T, d): all steps at once
        decay = torch.exp(dt[:, :, None, None] * -torch.exp(-self.log_scales))  # (B, T, M, 1)
        scales, event = self.scales.weight.t(), self.event.weight.t()
        slope, offset = 2.0 * self.log_scales, -self.log_scales.square()  # (M, 1)

        def step(state: State, log_tau: Tensor, signal: Tensor, decay: Tensor) -> tuple[Tensor, State]:
            traces = state[0] * decay  # (B, M, d)
            log_tau = torch.addmm(log_tau, traces.sum(dim=1), scales)  # (B, 2 d)
            logits = torch.addcmul(offset, slope, log_tau.unsqueeze(1))  # the softmax cancels -(ln tau)^2
            retrieval, storage = logits.softmax(dim=1).split(d, dim=2)  # (B, M, d) each
            q = torch.addmm(signal, (retrieval * traces).sum(dim=1), event).tanh()  # (B, d)
            traces = torch.lerp(traces, q.unsqueeze(1).to(traces.dtype), storage)
            return traces.sum(dim=1), (traces,)

        return scan(step, state, log_taus, signals, decay)
