"""ODEFormer, as the NAC papers' code has it.

A Transformer block is integrated as an ordinary differential equation.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nac_drive.policies.cores.base import Core, State, StateSpec
from nac_drive.policies.cores.window import WindowCore, check_heads, mix_heads, split_heads

DEPTH = 0.75
"""Span of the integration: three steps of 0.25, as in the NAC papers' code."""


class ODEFormer(Core):
    """Tokens y_t that evolve together over a depth u.

    At first they are affine in the frames. u goes from 0 to 0.75.

        dy/du = norm_2(m + W_2 relu(W_1 m + b_1) + b_2),    m = norm_1(y + attention(y))

    They take `euler_steps` equal Euler steps. The attention of token t has several heads, sees the `window` tokens up
    to t and forgets with time: head h scores a token of age a (seconds) by q.k / sqrt(D) - slope_h a. The slopes are
    learned and at first spread geometrically from 8 to 1/8 per second.

    Warning about the name: d'Ascoli et al. 2023, "ODEFormer: Symbolic Regression of Dynamical Systems with
    Transformers", which the NAC papers cite, is a sequence-to-sequence model that outputs formulas; it is no layer.
    Their published code runs the equation above under this name (CarRacing_exp/baseline_cells.py), without causality
    and without time: the ODE view of residual layers of Li et al. 2022, "ODE Transformer". So the window and the ages
    are ours, and u is depth, not time. Dropout is left out.

    Each Euler step has its own window tokens, so a frame's influence reaches `euler_steps` windows far.

    State: of each Euler step in turn, the state of WindowCore on its d features.

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d, a multiple of `num_heads`.
        num_heads: Number of heads.
        window: Number of frames that a query sees, its own included.
        euler_steps: Number of Euler steps.

    Raises:
        ValueError: `num_heads` does not divide `output_size`, or `window` or `euler_steps` is less than 1.
    """

    def __init__(
        self, input_size: int, output_size: int, *, num_heads: int = 4, window: int = 32, euler_steps: int = 3
    ) -> None:
        super().__init__()
        if euler_steps < 1:
            raise ValueError(f"euler_steps: must be at least 1, got {euler_steps}.")
        self.input_size, self.output_size, self.euler_steps = input_size, output_size, euler_steps
        self.input = nn.Linear(input_size, output_size)
        self.block = TransformerBlock(output_size, num_heads, window)
        self.continuous_time = window > 1

    def state_shapes(self) -> StateSpec:
        return self.block.state_shapes() * self.euler_steps

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        y, after = self.input(x).to(self.input.weight.dtype), ()  # (B, T, d)
        for start in range(0, len(state), 3):
            change, window = self.block(y, dt, state[start : start + 3])
            y, after = y + DEPTH / self.euler_steps * change, after + window
        return y, after


class TransformerBlock(WindowCore):
    """Return dy/du of ODEFormer.

    Windowed attention with forgetting, norm, a feed-forward part 4 times as wide, norm.
    """

    continuous_time = True

    def __init__(self, size: int, num_heads: int, window: int) -> None:
        super().__init__(size, size, window)
        check_heads("output_size", size, num_heads)
        self.num_heads = num_heads
        self.query = nn.Linear(size, size)
        self.kv = nn.Linear(size, 2 * size)  # key, value
        self.slope = nn.Parameter(torch.logspace(3.0, -3.0, num_heads, base=2.0))
        self.output = nn.Linear(size, size)
        self.norm_1 = nn.LayerNorm(size)
        self.feed_forward = nn.Sequential(nn.Linear(size, 4 * size), nn.ReLU(), nn.Linear(4 * size, size))
        self.norm_2 = nn.LayerNorm(size)

    def attend(self, x: Tensor, age: Tensor, allowed: Tensor) -> Tensor:
        y = x[:, x.shape[1] - age.shape[1] :]  # (B, T, d): the querying tokens
        q = split_heads(self.query(y), self.num_heads)  # (B, H, T, D)
        k, v = (split_heads(side, self.num_heads) for side in self.kv(x).chunk(2, dim=2))  # (B, H, S, D)
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) - self.slope[:, None, None] * age.unsqueeze(1)
        m = self.norm_1(y + self.output(mix_heads(scores, allowed, v)))  # (B, T, d)
        return self.norm_2(m + self.feed_forward(m))
