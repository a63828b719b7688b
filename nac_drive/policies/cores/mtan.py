"""Multi-time attention (Shukla & Marlin 2021).

Frames are weighed by their times alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nac_drive.policies.cores.window import WindowCore, check_heads, pairs


class MTAN(WindowCore):
    """The mTAND module over the frames of a window.

    t is the time of each query, s the times of the window's frames.

        y_t = U [sum_s p_ts x_s of every head] + b,  p_ts = softmax over s of (W_q phi(0) + b_q).W_k phi(-age) / sqrt(D)

    Source: Shukla & Marlin 2021, "Multi-Time Attention Networks for Irregularly Sampled Time Series", sec. 3.1. The
    time embedding phi(t) has E = `time_size` learned components: w_0 t + a_0, and sin(w_i t + a_i) for i > 0. The
    weights depend on nothing but the ages of the frames, so y is linear in x: learned filters over irregular times. In
    the source time counts from the start of a series; here from the query, because a stream has no end.

    At first the periods 2 pi / w_i are spread geometrically over 0.04 s (two frames) to 10 s, and w_0 = 1 per second.
    Not here: masks of missing features, which frames do not have; the source's reference times, encoder and decoder
    around the module; the bias of W_k, which has no effect on a softmax.

    State: the inputs of the last frames, see WindowCore.

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        num_heads: Number of heads.
        window: Number of frames that a query sees, its own included.
        time_size: Number of components of the time embedding, E, a multiple of `num_heads`.

    Raises:
        ValueError: `num_heads` does not divide `time_size`, or `window` is less than 1.
    """

    def __init__(
        self, input_size: int, output_size: int, *, num_heads: int = 4, window: int = 32, time_size: int = 64
    ) -> None:
        super().__init__(input_size, output_size, window)
        check_heads("time_size", time_size, num_heads)
        self.continuous_time = window > 1
        self.num_heads = num_heads
        periods = torch.logspace(math.log10(0.04), 1.0, time_size - 1)
        self.frequency = nn.Parameter(torch.cat((torch.ones(1), 2.0 * math.pi / periods)))
        self.phase = nn.Parameter(2.0 * math.pi * torch.rand(time_size))
        self.query = nn.Linear(time_size, time_size)
        self.key = nn.Linear(time_size, time_size, bias=False)
        self.output = nn.Linear(num_heads * input_size, output_size)

    def embed(self, time: Tensor) -> Tensor:
        """phi: seconds (...) -> (..., E)."""
        angle = time.unsqueeze(-1) * self.frequency + self.phase
        return torch.cat((angle[..., :1], angle[..., 1:].sin()), dim=-1)

    def attend(self, x: Tensor, age: Tensor, allowed: Tensor) -> Tensor:
        x, age, allowed = pairs(x, age, allowed)  # (B, T, W, F), (B, T, W) twice
        q = self.query(self.embed(age.new_zeros(()))).view(self.num_heads, -1, 1)  # (H, D, 1), the same for all queries
        keys = self.key.weight.view(self.num_heads, -1, self.key.in_features)  # (H, D, E)
        direction = (q * keys).sum(dim=1) / math.sqrt(q.shape[1])  # (H, E): W_k fused into the query
        scores = (self.embed(-age) @ direction.t()).transpose(2, 3)  # (B, T, H, W)
        p = scores.masked_fill(~allowed.unsqueeze(2), -torch.inf).softmax(dim=3)
        return self.output((p @ x).flatten(2))  # (B, T, H F)
