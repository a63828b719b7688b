"""Deep state space model (Rangapuram et al. 2018).

A recurrent network sets the gains of a level and its trend.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nac_drive.policies.cores.base import Core, State, StateSpec, scan
from nac_drive.policies.ops.lstm import run_lstm


class DeepState(Core):
    """A linear model of level and trend of each feature.

    The d features are z = W_z x + b_z. An LSTM sets the gains.

    The LSTM runs over the frames (output h) and sets the parameters at every step:

        alpha, beta = sigmoid(W_g h + b_g),  o = W_o h + b_o,  rho = exp(-r dt)
        m = l + (1 - rho) w,  e = z - o - m,  l <- m + alpha e,  w <- rho w + alpha beta e,  y = l + o

    w is how far the trend will still take the level: the level moves by r w per second, and w decays at the rate r,
    which is learned per feature and at first spread log-uniformly over 0.5..5 per second. m is the level expected now,
    e the innovation, o the offset of the emission, y the filtered mean of z. This is the level-trend model of
    Rangapuram et al. 2018, "Deep State Space Models for Time Series Forecasting", sec. 3 and 4, as a filter.

    Simplified: the source is generative, for forecasts. It draws l and z with Gaussian noise, whose scales its LSTM
    sets too, learns by the likelihood of z, and infers l by a Kalman filter. Here one noise moves level, trend and z
    (innovations form, Hyndman et al. 2008), so that z determines it, and from a known start the filtered means are the
    above. The LSTM sets the gains, which are ratios of those scales. The start is 0, and seasons are left out. z is
    affine in the frame, not a given series. The source's steps have unit length and its trend does not decay; here
    steps last dt seconds and the trend decays, because it would diverge over a long dt.

    State: the LSTM's (h, c), each (B, n), then l and w, each (B, d).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        rnn_size: Number of units of the LSTM, n.

    Raises:
        ValueError: `rnn_size` is less than 1.
    """

    continuous_time = True
    neuron_names = ("LSTM h", "LSTM c", "level", "trend")

    def __init__(self, input_size: int, output_size: int, *, rnn_size: int = 40) -> None:
        super().__init__()
        if rnn_size < 1:
            raise ValueError(f"rnn_size: must be at least 1, got {rnn_size}.")
        self.input_size, self.output_size, self.rnn_size = input_size, output_size, rnn_size
        self.rnn = nn.LSTM(input_size, rnn_size, batch_first=True)
        self.observation = nn.Linear(input_size, output_size)
        self.gains = nn.Linear(rnn_size, 2 * output_size)
        self.offset = nn.Linear(rnn_size, output_size)
        self.log_rate = nn.Parameter(math.log(0.5) + math.log(10.0) * torch.rand(output_size))

    def state_shapes(self) -> StateSpec:
        return (((self.rnn_size,), None),) * 2 + (((self.output_size,), None),) * 2

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        h, c, level, trend = state
        outputs, last = run_lstm(lambda x, *start: self.rnn(x, start), x, h[None], c[None])  # (B, T, n)
        h, c = (part[0].to(level.dtype) for part in last)
        offset = self.offset(outputs)  # (B, T, d)
        levels, (level, trend) = self.follow(self.observation(x) - offset, outputs, dt, (level, trend))
        return levels + offset, (h, c, level, trend)

    def follow(self, target: Tensor, outputs: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        """Follow the target with the level.

        Args:
            target: z - o, (B, T, d).
            outputs: Outputs of the LSTM, (B, T, n).
            dt: Seconds since the previous observation, (B, T).
            state: (l, w), each (B, d).

        Returns:
            l after each frame, (B, T, d), and the new state.
        """
        alpha, beta = self.gains(outputs).sigmoid().to(dt.dtype).chunk(2, dim=2)  # (B, T, d) each
        keep = torch.exp(-dt.unsqueeze(2) * self.log_rate.exp())

        def step(state: State, z: Tensor, alpha: Tensor, gain: Tensor, keep: Tensor) -> tuple[Tensor, State]:
            level, trend = state
            left = keep * trend
            expected = level + trend - left  # (B, d)
            innovation = z - expected
            level = expected + alpha * innovation
            return level, (level, left + gain * innovation)

        return scan(step, state, target, alpha, alpha * beta, keep)
