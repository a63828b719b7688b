"""The Core contract: a sequence model with explicit state and data-driven time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

State = tuple[Tensor, ...]
"""A flat tuple of tensors, batch first; empty for a core without memory. All zeros is the start of an episode."""


class Core(nn.Module, ABC):
    """What every sequence model of the project is.

    Feeding a sequence whole, in chunks or step by step, carrying the state, gives the same outputs. Rows of the batch
    never influence each other. The state lives in the caller's hands, never in the module.
    """

    input_size: int
    output_size: int
    continuous_time: bool
    """Whether `dt` has an effect."""

    @abstractmethod
    def state_shapes(self) -> tuple[tuple[tuple[int, ...], torch.dtype | None], ...]:
        """For each tensor of the state: its shape without the batch axis, and its dtype (None: that of the weights)."""

    @abstractmethod
    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        """x (B, T, F), dt (B, T) seconds since the previous observation -> y (B, T, output_size), new state."""

    def penalty(self) -> Tensor | float:
        """What a training adds to its loss, such as a loss of stability; nothing for most cores."""
        return 0.0

    def initial_state(
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """The state before any observation: zeros, on the weights' device and in their dtype unless told otherwise."""
        weight = next(self.parameters())
        device = weight.device if device is None else device
        dtype = weight.dtype if dtype is None else dtype
        return tuple(
            torch.zeros(batch, *shape, device=device, dtype=dtype if fixed is None else fixed)
            for shape, fixed in self.state_shapes()
        )


def map_state(function: Callable[[Tensor], Tensor], state: State) -> State:
    """Apply `function` to every tensor, e.g. `map_state(Tensor.detach, state)`."""
    return tuple(function(tensor) for tensor in state)


def reset_rows(state: State, rows: Tensor) -> State:
    """Put the batch rows where `rows` (B,) bool is True back to the start of an episode."""
    return map_state(lambda x: x.masked_fill(rows.view(-1, *[1] * (x.dim() - 1)), 0), state)


Step = Callable[..., tuple[Tensor, State]]


def scan(step: Step, state: State, *inputs: Tensor) -> tuple[Tensor, State]:
    """Run a recurrence over time: `step(state, *rows) -> (output (B, d), state)` for each row of `inputs` (B, T, ...).

    Returns the outputs (B, T, d) and the last state.
    """
    outputs = []
    for rows in zip(*(tensor.unbind(1) for tensor in inputs), strict=True):
        y, state = step(state, *rows)
        outputs.append(y)
    return torch.stack(outputs, dim=1), state


class CoreFactory:
    """Makes cores of one class with some settings fixed by name.

    Calling it with a setting the core does not have, or that the name fixes, raises ValueError with those it accepts.
    """

    def __init__(self, core: Callable[..., Core], accepted: tuple[str, ...], **fixed: Any) -> None:
        self.core, self.accepted, self.fixed = core, accepted, fixed

    def __call__(self, input_size: int, output_size: int, **settings: Any) -> Core:
        for name, size in (("input_size", input_size), ("output_size", output_size)):
            if size < 1:
                raise ValueError(f"{name}: must be at least 1, got {size}.")
        unknown = sorted(set(settings) - set(self.accepted))
        if unknown:
            raise ValueError(f"core_args: unknown {unknown}; accepted here are {sorted(self.accepted)}.")
        return self.core(input_size, output_size, **self.fixed, **settings)
