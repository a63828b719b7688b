"""The phased LSTM (Neil, Pfeiffer and Liu 2016).

Its units open in turn, by the clock.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nac_drive.policies.cores.base import RecurrentCore, State, StateSpec, scan

SHORTEST_PERIOD, LONGEST_PERIOD = 0.05, 3.0
"""Seconds: e^1 to e^5 steps, where the authors' code starts, at 20 ms per step."""


class PhasedLSTM(RecurrentCore):
    """An LSTM behind a time gate k ("Phased LSTM", Section 2).

    A unit with period p, phase shift s and open ratio r has, t seconds after the episode's start, the phase
    phi = ((t - s) mod p) / p and the gate

        k = 2 phi / r  for phi < r / 2,   2 - 2 phi / r  for r / 2 <= phi < r,   leak phi  otherwise

    With (c~, h~) = LSTM(x, (c, h)):  c' = k c~ + (1 - k) c,  h' = k h~ + (1 - k) h. The output is h'.

    p and s are learned; p starts between 0.05 and 3 s, evenly in its logarithm and in random order, s anywhere in the
    period. r and the leak are settings (the paper has r = 0.05 and leak = 0.001; the notes to the authors' code
    recommend 0.1 where r is fixed). The leak stays on in evaluation, as in their code. The optional peephole
    connections are left out.

    State: (h, c, time), each (B, d). Time is counted in the unit's present period, so that float32 keeps its precision
    however long the episode.

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        open_ratio: Fraction of the period in which the gate is open, r, in (0, 1].
        leak: Slope of the closed gate, in [0, 1].

    Raises:
        ValueError: `open_ratio` is not within (0, 1] or `leak` is not within [0, 1].
    """

    continuous_time = True
    neuron_names = ("h", "c")
    synapse_weights = ("input.weight", "recurrent.weight")
    has_cells = True

    def __init__(self, input_size: int, output_size: int, *, open_ratio: float = 0.1, leak: float = 0.001) -> None:
        super().__init__()
        if not 0.0 < open_ratio <= 1.0:
            raise ValueError(f"open_ratio: must be in (0, 1], got {open_ratio}.")
        if not 0.0 <= leak <= 1.0:
            raise ValueError(f"leak: must be in [0, 1], got {leak}.")
        self.input_size, self.output_size = input_size, output_size
        self.open_ratio, self.leak = open_ratio, leak
        self.input = nn.Linear(input_size, 4 * output_size)  # i, f, g, o
        self.recurrent = nn.Linear(output_size, 4 * output_size, bias=False)
        periods = torch.linspace(math.log(SHORTEST_PERIOD), math.log(LONGEST_PERIOD), output_size)
        self.log_period = nn.Parameter(periods[torch.randperm(output_size)])
        self.shift = nn.Parameter(torch.rand(output_size) * self.log_period.detach().exp())

    def state_shapes(self) -> StateSpec:
        return tuple(((self.output_size,), None) for _ in range(3))

    def time_gate(self, time: Tensor) -> Tensor:
        """Return k (..., d) at `time` (..., d) seconds.

        `time` counts from the start, or from any whole number of periods later.
        """
        period, r = self.log_period.exp(), self.open_ratio
        phase = torch.remainder(time - self.shift, period) / period  # (..., d)
        opening, closing = phase * (2.0 / r), 2.0 - phase * (2.0 / r)
        return torch.where(phase < r, torch.minimum(opening, closing), self.leak * phase)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        h, c, time = state
        drive = self.input(x)  # (B, T, 4 d): all steps at once
        weight, period = self.recurrent.weight.t(), self.log_period.exp()

        def tick(state: State, seconds: Tensor) -> tuple[Tensor, State]:
            time = torch.remainder(state[0] + seconds, period)  # (B, d)
            return time, (time,)

        def step(state: State, drive: Tensor, k: Tensor) -> tuple[Tensor, State]:
            h, c = state
            i, f, g, o = torch.addmm(drive, h, weight).chunk(4, dim=1)  # (B, d) each
            update = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = torch.lerp(h, o.sigmoid() * update.tanh(), k)
            return h, (h, torch.lerp(c, update, k))

        times, (time,) = scan(tick, (time,), dt.unsqueeze(2))  # frame by frame: the gate magnifies rounding errors
        y, (h, c) = scan(step, (h, c), drive, self.time_gate(times))
        return y, (h, c, time)
