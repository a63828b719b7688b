"""The common part of cores with a causal window.

They are attention over a stream of frames.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from nac_drive.policies.cores.base import Core, State, StateSpec


class WindowBase(Core):
    """Base of cores that look at the last `window` frames.

    Each frame is among its own.

    State: the slots of the last M = window - 1 frames; their ages (B, M) in seconds, relative to the newest of them, so
    that float32 keeps its precision in episodes of any length; and whether each slot is filled (B, M).

    Args:
        input_size: Number of input features, F.
        output_size: Number of output features, d.
        window: Number of frames that a query sees, its own included.

    Raises:
        ValueError: `window` is less than 1.
    """

    def __init__(self, input_size: int, output_size: int, window: int) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"window: must be at least 1 frame, got {window}.")
        self.input_size, self.output_size, self.window = input_size, output_size, window

    @abstractmethod
    def slot_shapes(self, slots: int) -> tuple[int, ...]:
        """Return the shape of `slots` frames in the state.

        The batch axis is left out.
        """

    def state_shapes(self) -> StateSpec:
        slots = self.window - 1
        return (self.slot_shapes(slots), None), ((slots,), None), ((slots,), torch.bool)

    @staticmethod
    def clock(dt: Tensor, age: Tensor, filled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Update the ages of all frames as T new ones arrive.

        Args:
            dt: Seconds since the previous frame, (B, T).
            age: Ages of the slots of the state, (B, M).
            filled: Whether each slot of the state is filled, (B, M).

        Returns:
            Seconds from each of the M + T frames to each new one (B, T, M + T), whether each of the M + T is filled
            (B, M + T), and the ages of the next state (B, M).
        """
        length = dt.shape[1]
        filled = torch.cat((filled, filled.new_ones(dt.shape)), dim=1)  # (B, M + T)
        now = dt.double().cumsum(dim=1)  # (B, T) seconds since the newest frame of the state
        seen = torch.cat((-age.double(), now), dim=1)  # (B, M + T)
        between, ages = now.unsqueeze(2) - seen.unsqueeze(1), now[:, -1:] - seen[:, length:]
        return between.to(dt.dtype), filled, ages.to(age.dtype)


class WindowCore(WindowBase):
    """A window that keeps the inputs of its frames: (B, M, F)."""

    @abstractmethod
    def attend(self, x: Tensor, age: Tensor, allowed: Tensor) -> Tensor:
        """Look back from the last T of S = M + T frames.

        Args:
            x: Inputs, (B, S, F).
            age: Seconds from frame s to the query t, (B, T, S), negative for the future.
            allowed: (B, T, S) bool, whether frame s is in the window of the query t. A query sees at least itself.

        Returns:
            y (B, T, output_size).
        """

    def slot_shapes(self, slots: int) -> tuple[int, ...]:
        return (slots, self.input_size)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        past, age, filled = state
        length = x.shape[1]
        frames = torch.cat((past, x), dim=1)  # (B, M + T, F)
        since, filled, age = self.clock(dt, age, filled)
        query = torch.arange(length, device=x.device).unsqueeze(1) + self.window - 1
        behind = query - torch.arange(frames.shape[1], device=x.device)  # (T, M + T) frames
        allowed = filled.unsqueeze(1) & (behind >= 0) & (behind < self.window)  # (B, T, M + T)
        y = self.attend(frames, since, allowed)
        return y, (frames[:, length:], age, filled[:, length:])


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Split x (B, T, H D) into heads (B, H, T, D)."""
    return x.unflatten(2, (num_heads, -1)).transpose(1, 2)


def mix_heads(scores: Tensor, allowed: Tensor, v: Tensor) -> Tensor:
    """Mix v by the softmax of the allowed scores.

    v (B, H, S, D), scores (B, H, T, S), allowed (B, T, S) -> (B, T, H D).
    """
    p = scores.masked_fill(~allowed.unsqueeze(1), -torch.inf).softmax(dim=3)
    return (p @ v).transpose(1, 2).flatten(2)


def check_heads(name: str, size: int, num_heads: int) -> None:
    """Check that `num_heads` divides the size of that name.

    Raises:
        ValueError: It does not.
    """
    if not 1 <= num_heads <= size or size % num_heads:
        raise ValueError(f"num_heads: must be at least 1 and divide {name}={size}, got {num_heads}.")


def pairs(x: Tensor, age: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rearrange arguments of `WindowCore.attend` by query.

    Each query gets the W frames of its window, the oldest first.

    x (B, M + T, F), age and allowed (B, T, M + T) -> x (B, T, W, F), age and allowed (B, T, W), W = M + 1.
    """
    batch, length, frames = age.shape
    window = frames - length + 1
    at = torch.arange(length, device=x.device)[:, None] + torch.arange(window, device=x.device)  # (T, W)
    at = at.expand(batch, length, window)
    return x.unfold(1, window, 1).transpose(2, 3), age.gather(2, at), allowed.gather(2, at)
