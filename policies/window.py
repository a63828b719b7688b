"""Attention over a stream: what cores that look back over a causal window of frames have in common."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from policies.core import Core, State


class WindowCore(Core):
    """Each frame looks at itself and the `window - 1` frames before it.

    The state holds the inputs of the last M = window - 1 frames (B, M, F), their ages in seconds relative to the newest
    of them (B, M), so that float32 keeps its precision however long the episode, and whether a slot is filled (B, M).

    Raises ValueError if `window` is less than 1.
    """

    def __init__(self, input_size: int, output_size: int, window: int) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"window: must be at least 1 frame, got {window}.")
        self.input_size, self.output_size, self.window = input_size, output_size, window

    @abstractmethod
    def attend(self, x: Tensor, age: Tensor, allowed: Tensor) -> Tensor:
        """Look back from the last T of the S = M + T frames x (B, S, F).

        age (B, T, S): seconds from frame s to the query t, negative for the future.  allowed (B, T, S) bool: frame s is
        in the window of the query t, which sees at least itself.  Returns y (B, T, output_size).
        """

    def state_shapes(self) -> tuple[tuple[tuple[int, ...], torch.dtype | None], ...]:
        slots = self.window - 1
        return ((slots, self.input_size), None), ((slots,), None), ((slots,), torch.bool)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        past, age, filled = state
        length = x.shape[1]
        frames = torch.cat((past, x), dim=1)  # (B, M + T, F)
        filled = torch.cat((filled, filled.new_ones(x.shape[0], length)), dim=1)  # (B, M + T)
        now = dt.cumsum(dim=1)  # (B, T) seconds since the newest frame of the state
        seen = torch.cat((-age, now), dim=1)  # (B, M + T)
        query = torch.arange(length, device=x.device).unsqueeze(1) + self.window - 1
        behind = query - torch.arange(frames.shape[1], device=x.device)  # (T, M + T) frames
        allowed = filled.unsqueeze(1) & (behind >= 0) & (behind < self.window)  # (B, T, M + T)
        y = self.attend(frames, now.unsqueeze(2) - seen.unsqueeze(1), allowed)
        age = now[:, -1:] - seen[:, length:]  # (B, M)
        return y, (frames[:, length:], age, filled[:, length:])
