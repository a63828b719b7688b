"""How to call a module that somebody else has written.

It is found by calls on short sequences.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nac_drive.plugins import place_of
from nac_drive.policies.cores.base import NOMINAL_DT, State, StateSpec
from nac_drive.storage.read import one_line

_SHORTEST = 1e-3
"""Shortest timespan of a module, in frames."""
_TIMES = ("timespans", "timespan", "dt", "delta_t", "elapsed_time")
"""Names of an argument that takes the time since the previous frame."""
NOT_NAMED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""Kinds of arguments that have no name of their own: *args and **kwargs."""


@dataclass(frozen=True)
class CallForm:
    """How to call a module."""

    input_size: int
    output_size: int
    state: str | None
    """Name of the argument that takes the state; None for a module without one."""
    times: str | None
    """Name of the argument that takes timespans; None without one."""
    time_features: int | None
    """Last axis of the timespans (B, T, features); None for (B, T)."""
    example: Any
    """A state of the module, for its nesting."""
    batch_axes: tuple[int, ...]
    """Axis of the batch in each tensor of the state."""
    state_shapes: StateSpec
    has_cells: bool = False
    """See `Core`."""

    def timespans(self, dt: Tensor) -> dict[str, Any]:
        """Return the argument of the timespans, in frames.

        The nominal one is 1, as the default of ncps. The first frame of an episode has a dt of 0, by which modules such
        as ncps' LTC would divide: it becomes a thousandth of a frame.
        """
        if self.times is None:
            return {}
        spans = (dt / NOMINAL_DT).clamp(min=_SHORTEST)
        if self.time_features is not None:
            spans = spans.unsqueeze(2).expand(-1, -1, self.time_features)
        return {self.times: spans}

    def call(self, module: nn.Module, x: Tensor, dt: Tensor, state: State | None) -> tuple[Tensor, list[Tensor]]:
        """Call the module.

        Args:
            module: The module.
            x: Inputs, (B, T, F).
            dt: Seconds since the previous frame, (B, T).
            state: The tensors of the state, batch first; None for the module's own start.

        Returns:
            Outputs (B, T, output_size), and the tensors of the new state, batch first.
        """
        named = self.timespans(dt)
        if self.state is not None and state is not None:
            leaves = zip(state, self.batch_axes, strict=True)
            copied = torch.contiguous_format  # the module may change its state in place
            moved = (leaf.movedim(0, axis).clone(memory_format=copied) for leaf, axis in leaves)
            named[self.state] = _nested(self.example, moved)
        result = module(x, **named)
        if self.state is None:
            return result, []
        y, after = result
        return y, [leaf.movedim(axis, 0) for leaf, axis in zip(_leaves(after), self.batch_axes, strict=True)]


def form_of(module: nn.Module, input_size: int, output_size: int) -> CallForm:
    """Find out how to call a module.

    It is called on short sequences.

    Args:
        module: The module, on the CPU.
        input_size: Number of input features.
        output_size: Number of output features.

    Raises:
        ValueError: Its form is not one of the three, or its output or state has another shape than a core's.
    """
    name = f"core: {type(module).__qualname__}.forward"
    parameters = [p for p in inspect.signature(module.forward).parameters.values() if p.kind not in NOT_NAMED]
    times = next((p.name for p in parameters if p.name in _TIMES), None)
    others = [p for p in parameters if p.name != times]
    required = [p.name for p in others[2:] if p.default is p.empty]
    if not others or required:
        words = ", ".join(p.name for p in parameters)
        raise ValueError(
            f"{name} must take (x), (x, state) or (x, state, timespans), got ({words}); name the times timespans, and "
            "give every other argument a default."
        )
    if next(module.parameters(), None) is None:
        raise ValueError(f"{name} belongs to a module without weights; a core needs some.")
    stateless = CallForm(input_size, output_size, None, times, None, None, (), ())
    with _probing(module):
        return _with_times(name, module, others[1].name if len(others) > 1 else None, stateless)


def _with_times(name: str, module: nn.Module, state: str | None, form: CallForm) -> CallForm:
    """Return the form with timespans that work.

    The shapes are (B, T), (B, T, 1) and (B, T, features).
    """
    shapes = (None,) if form.times is None else (None, 1, form.output_size)
    errors: list[Exception] = []
    for time_features in shapes:
        try:
            found = _with_state(name, module, state, replace(form, time_features=time_features))
            if form.times is None or _rows_agree(module, found):
                return found
        except (RuntimeError, TypeError, IndexError, AttributeError, AssertionError) as error:
            errors.append(error)
    if not errors:
        raise ValueError(f"{name} gives a row of a batch other outputs than the row alone; rows must be independent.")
    if isinstance(errors[0], ValueError):
        raise errors[0]
    first = f" and {state}=None, as at the start of an episode" if _is_required(module, state) else ""
    fix = f"; begin with zeros where {state} is None" if first else ""
    raise ValueError(
        f"{name} cannot be called with x {_EXAMPLE} of {form.input_size} features{first}: {one_line(errors[0])}{fix}"
    ) from errors[0]


_EXAMPLE = (3, 4)
"""Batch and frames of the calls."""


def _with_state(name: str, module: nn.Module, state: str | None, form: CallForm) -> CallForm:
    """Return the form with the state that the module returns."""
    batch, length = _EXAMPLE
    x, dt = _noise(batch, length, form.input_size)
    start: dict[str, Any] = {str(state): None} if _is_required(module, state) else {}

    def results(rows: int, frames: int) -> Any:
        return module(x[:rows, :frames], **form.timespans(dt[:rows, :frames]), **start)

    result = results(batch, length)
    if isinstance(result, Tensor):
        _require_output(name, result, form)
        return form
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Tensor) or state is None:
        raise ValueError(f"{name} must return y or (y, state), got {_described(result)}.")
    _require_output(name, result[0], form)
    leaves, fewer, shorter = (_leaves(results(*size)[1], name) for size in ((3, 4), (2, 4), (3, 1)))
    axes = []
    for leaf, other, short in zip(leaves, fewer, shorter, strict=True):
        if leaf.shape == other.shape and leaf.shape != short.shape:
            raise ValueError(
                f"{name} takes (frames, batch, features), as its state of {tuple(leaf.shape)} for four frames of three "
                "rows says; give its layers batch_first=True."
            )
        if leaf.shape != short.shape:
            raise ValueError(
                f"{name} returns a state of {tuple(short.shape)} after one frame, {tuple(leaf.shape)} after four; a "
                "state must keep its size, or return y alone: then the last inputs are kept."
            )
        differing = [axis for axis, (a, b) in enumerate(zip(leaf.shape, other.shape, strict=True)) if a != b]
        if len(differing) != 1:
            raise ValueError(f"{name} returns a state without a batch axis, {tuple(leaf.shape)}; give it one.")
        axes += differing
    weight = next(module.parameters()).dtype
    moved = [leaf.movedim(axis, 0) for leaf, axis in zip(leaves, axes, strict=True)]
    shapes = tuple((tuple(leaf.shape[1:]), None if leaf.dtype == weight else leaf.dtype) for leaf in moved)
    found = replace(form, state=state, example=result[1], batch_axes=tuple(axes), state_shapes=shapes)
    zeros = tuple(torch.zeros_like(leaf) for leaf in moved)
    if not torch.allclose(found.call(module, x, dt, zeros)[0], result[0], atol=1e-5):
        raise ValueError(f"{name} starts from a state that is not zero; a core's state is zero at the start.")
    return replace(found, has_cells=_are_cells(result[0][:, -1], moved))


def _is_required(module: nn.Module, argument: str | None) -> bool:
    if argument is None:
        return False
    parameter = inspect.signature(module.forward).parameters[argument]
    return parameter.default is parameter.empty


def _are_cells(last: Tensor, state: list[Tensor]) -> bool:
    """Return whether outputs are cells, see `Core.has_cells`."""
    if any(tensor.shape[-1:] != last.shape[-1:] for tensor in state):
        return False
    return torch.allclose(state[0].reshape(len(last), -1, last.shape[1]).sum(dim=1), last)


def _rows_agree(module: nn.Module, form: CallForm) -> bool:
    """Return whether the rows of a batch are independent."""
    x, dt = _noise(*_EXAMPLE, form.input_size)
    together = form.call(module, x, dt, None)[0]
    alone = torch.cat([form.call(module, x[row : row + 1], dt[row : row + 1], None)[0] for row in range(len(x))])
    return torch.allclose(together, alone, atol=1e-5)


def forgets(module: nn.Module, form: CallForm) -> bool:
    """Return whether outputs depend on no earlier frame."""
    with _probing(module):
        x, dt = _noise(*_EXAMPLE, form.input_size)
        changed = torch.cat((x[:, :1] + 1.0, x[:, 1:]), dim=1)
        before, after = (form.call(module, inputs, dt, None)[0][:, 1:] for inputs in (x, changed))
        return torch.equal(before, after)


def require_length(module: nn.Module, form: CallForm, frames: int) -> None:
    """Check that a module takes so many frames.

    Raises:
        ValueError: It fails.
    """
    with _probing(module):
        x, dt = _noise(1, frames, form.input_size)
        try:
            form.call(module, x, dt, None)
        except Exception as error:  # whatever a module of others raises
            raise ValueError(
                f"core: {type(module).__qualname__}.forward fails on the {frames} frames of its window: "
                f"{place_of(error)}{type(error).__name__}: {one_line(error)}; set a window that it takes, such as "
                "window=32."
            ) from error


@contextmanager
def _probing(module: nn.Module) -> Iterator[None]:
    """Evaluate a module, without gradients and without a trace."""
    training = module.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module.eval()
            yield
    finally:
        module.train(training)


def _noise(batch: int, length: int, features: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(batch, length, features, generator=generator),
        NOMINAL_DT * (0.5 + torch.rand(batch, length, generator=generator)),
    )


def _require_output(name: str, y: Tensor, form: CallForm) -> None:
    expected = (*_EXAMPLE, form.output_size)
    if tuple(y.shape) != expected:
        raise ValueError(
            f"{name} must map x {(*_EXAMPLE, form.input_size)} to y {expected}, batch first, got {tuple(y.shape)}; "
            "batch_first, return_sequences or a last linear layer may be missing."
        )


def _leaves(state: Any, name: str = "core") -> list[Tensor]:
    """Return the tensors of a nested state in their order."""
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, tuple | list):
        return [leaf for part in state for leaf in _leaves(part, name)]
    raise ValueError(f"{name}: the state must be a tensor, or a tuple or list of tensors, got {type(state).__name__}.")


def _nested(example: Any, leaves: Iterator[Tensor]) -> Any:
    """Return the tensors in the nesting of an example."""
    if isinstance(example, Tensor):
        return next(leaves)
    parts = [_nested(part, leaves) for part in example]
    return type(example)(*parts) if hasattr(example, "_fields") else type(example)(parts)


def _described(result: Any) -> str:
    if isinstance(result, tuple | list):
        return f"{type(result).__name__} of {len(result)}"
    return type(result).__name__
