"""The Core contract: explicit state and data-driven time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from nac_drive.suggest import did_you_mean

NOMINAL_DT = 1.0 / 50.0
"""Seconds between two frames of CarRacing."""

State = tuple[Tensor, ...]
"""A flat tuple of tensors, batch first; empty for a core without memory. All zeros is the start of an episode."""

StateSpec = tuple[tuple[tuple[int, ...], torch.dtype | None], ...]
"""Shape without the batch axis and dtype of each tensor of a state; a dtype of None is the dtype of the weights."""


class Core(nn.Module, ABC):
    """A sequence model with explicit state.

    A sequence gives the same outputs whole, in chunks or step by step, if the state is carried on. Rows of the batch do
    not influence each other. The caller holds the state; the module has none.
    """

    input_size: int
    """Number of input features, F."""
    output_size: int
    """Number of output features."""
    continuous_time: bool
    """True if `dt` has an effect."""
    neuron_names: tuple[str, ...] = ()
    """Names of the first tensors of the state: those that hold activities of neurons, (B, ...)."""
    has_cells: bool = False
    """True if every output is a cell: all tensors of the state have the outputs on their last axis, and the first one,
    summed over the axes between batch and outputs, is the output."""

    @abstractmethod
    def state_shapes(self) -> StateSpec:
        """Return the shape and the dtype of each tensor of the state."""

    @abstractmethod
    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        """Run over T observations. Callers use `core(x, dt, state)`, which checks the arguments first.

        Args:
            x: Inputs, (B, T, F), B and T at least 1, in the dtype of the weights; any floating dtype under autocast.
            dt: Seconds since the previous observation, (B, T), in the dtype of the weights. Outputs and state are
                finite for every dt from 0 to 1e9 s.
            state: The state before the first observation.

        Returns:
            Outputs (B, T, output_size), and the state after the last observation.
        """

    def __call__(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        """Check the arguments of `forward` and run it.

        Raises:
            ValueError: A shape, dtype or device does not fit.
        """
        check_arguments(self, x, dt, state)
        try:
            return super().__call__(x, dt, state)
        except (RuntimeError, ValueError):
            check_weights(self, dt)  # only now: every frame of a drive would pay for it
            raise

    @property
    def neurons(self) -> int | None:
        """Number of neurons, as Hasani's thesis counts (Table 6.6).

        A neuron is a unit of the recurrent state. It counts once, however many numbers it remembers: an LSTM's h and c
        belong to one neuron. Sensory neurons that hold an input count as inputs, as in the 19 neurons of the thesis'
        NCP. None for cores without neurons in this sense: cores without memory, with a window of past frames, with
        attention, and state space models.
        """
        return None

    @property
    def synapses(self) -> int | None:
        """Number of synapses, which are trained weights.

        They lead from an input or a neuron to a neuron, or to one of its gates.

        Weights that are fixed at zero do not count, nor do biases, time constants, the other numbers of an LTC synapse,
        and readouts. None if `neurons` is None, or if no weight belongs to a pair of neurons.
        """
        return None

    def penalty(self) -> Tensor | float:
        """Return a term of the training loss.

        It is a loss of stability, for example, and 0 for most cores.
        """
        return 0.0

    def after_step(self) -> None:
        """Correct the weights after a step of the optimizer.

        It keeps a core stable, for example, and does nothing for most cores.

        Training calls it after every step.
        """

    def initial_state(
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """Return the state before any observation: zeros.

        Args:
            batch: Number of rows, B.
            device: Device of the tensors; None for the weights' device.
            dtype: Dtype of the tensors without a fixed one; None for the weights' dtype.
        """
        weight = next(self.parameters())
        device = weight.device if device is None else device
        dtype = weight.dtype if dtype is None else dtype
        return tuple(
            torch.zeros(batch, *shape, device=device, dtype=dtype if fixed is None else fixed)
            for shape, fixed in self.state_shapes()
        )


class RecurrentCore(Core):
    """A core of neurons, the first state tensor's last axis."""

    synapse_weights: tuple[str, ...] = ()
    """Names of the parameters in which every number is a synapse; () if a hidden layer lies between the neurons."""

    @property
    def neurons(self) -> int | None:
        return self.state_shapes()[0][0][-1]

    @property
    def synapses(self) -> int | None:
        if not self.synapse_weights:
            return None
        return sum(self.get_parameter(name).numel() for name in self.synapse_weights)


def check_arguments(core: Core, x: Tensor, dt: Tensor, state: State) -> None:
    """Check shape, dtype and device of a core's arguments.

    Values are not read.

    Raises:
        ValueError: An argument does not fit.
    """
    shape, dtype, device = x.shape, dt.dtype, dt.device
    if len(shape) != 3 or shape[2] != core.input_size or 0 in shape:
        raise ValueError(
            f"x: shape must be (B >= 1, T >= 1, {core.input_size}), got {tuple(shape)}; the last axis is input_size."
        )
    if dt.shape != shape[:2]:
        raise ValueError(f"dt: shape must be (B, T) = {tuple(shape[:2])}, as in x, got {tuple(dt.shape)}.")
    if dtype not in _DTYPES:
        raise ValueError(f"dt: dtype must be float32 or float64, got {dtype}; autocast is the way to less precision.")
    if x.dtype != dtype and not (x.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
        raise ValueError(f"x: dtype must be that of dt, {dtype}, got {x.dtype}; autocast is the way to mix precision.")
    if x.device != device:
        raise ValueError(f"x: must be on the device of dt, {device}, got {x.device}.")
    shapes = core.state_shapes()
    if len(state) != len(shapes):
        raise ValueError(f"state: must hold {len(shapes)} tensors, got {len(state)}; start with core.initial_state(B).")
    for part, (expected, fixed) in zip(state, shapes, strict=True):
        if part.shape != (shape[0], *expected) or part.dtype != (fixed or dtype) or part.device != device:
            raise ValueError(
                f"state: each tensor must fit x and dt, here {(shape[0], *expected)} {fixed or dtype} on {device}, "
                f"got {tuple(part.shape)} {part.dtype} on {part.device}; start with core.initial_state(B)."
            )


_DTYPES = (torch.float32, torch.float64)


def check_weights(core: Core, dt: Tensor) -> None:
    """Check a core's dtype and device against its arguments'.

    Raises:
        ValueError: It does not.
    """
    weight = next(core.parameters())
    if (weight.dtype, weight.device) != (dt.dtype, dt.device):
        raise ValueError(
            f"core: weights must have the dtype and device of x and dt, {dt.dtype} on {dt.device}, got {weight.dtype} "
            f"on {weight.device}; convert one of them by .to()."
        )


def check_time_unit(time_unit: float) -> float:
    """Return the seconds of a unit of time, which must be positive and finite.

    Raises:
        ValueError: It is not.
    """
    if not 0.0 < time_unit < math.inf:
        raise ValueError(f"time_unit: must be a positive number of seconds, got {time_unit}; 0.02 is one frame.")
    return time_unit


def map_state(function: Callable[[Tensor], Tensor], state: State) -> State:
    """Apply `function` to every tensor, e.g. `map_state(Tensor.detach, state)`."""
    return tuple(function(tensor) for tensor in state)


def reset_rows(state: State, rows: Tensor) -> State:
    """Reset the batch rows where `rows` (B,) is True.

    They start an episode; the others stay.
    """
    return map_state(lambda x: x.masked_fill(rows.view(-1, *[1] * (x.dim() - 1)), 0), state)


CellStep = Callable[..., tuple[Tensor, State]]


def scan(step: CellStep, state: State, *inputs: Tensor) -> tuple[Tensor, State]:
    """Run a recurrence over time.

    Args:
        step: `step(state, *rows) -> (output (B, d), state)` for each row of `inputs`.
        state: The state before the first row.
        *inputs: (B, T, ...) each.

    Returns:
        The outputs (B, T, d) and the last state.
    """
    outputs = []
    for rows in zip(*(tensor.unbind(1) for tensor in inputs), strict=True):
        y, state = step(state, *rows)
        outputs.append(y)
    return torch.stack(outputs, dim=1), state


class CoreFactory:
    """Makes cores of one class by a name in CORES.

    The name fixes some of the settings.

    Args:
        core: The class: `core(input_size, output_size, **settings)`.
        about: One line for docs/drivers.md: the model, its source, and the main departure from it.
        accepted: Settings that a caller may choose.
        defaults: Values of accepted settings that differ from the defaults of the class.
        needs: Setting -> another setting, and its values with which the first one has an effect.
        fixed: Settings that the name fixes.
    """

    def __init__(
        self,
        core: Callable[..., Core],
        about: str,
        accepted: tuple[str, ...] = (),
        defaults: dict[str, Any] | None = None,
        needs: Mapping[str, tuple[str, tuple[str, ...]]] | None = None,
        **fixed: Any,
    ) -> None:
        self.core, self.about, self.accepted, self.fixed = core, about, accepted, fixed
        self.defaults, self.needs = defaults or {}, needs or {}

    def __call__(self, input_size: int, output_size: int, /, **settings: Any) -> Core:
        """Make a core.

        Args:
            input_size: Number of input features.
            output_size: Number of output features.
            settings: Settings of the core by name.

        Raises:
            ValueError: A size is less than 1, or the core does not have a setting, or the name fixes it.
        """
        for name, size in (("input_size", input_size), ("output_size", output_size)):
            if size < 1:
                raise ValueError(f"{name}: must be at least 1, got {size}.")
        unknown = sorted(set(settings) - set(self.accepted))
        if unknown:
            hint = did_you_mean(unknown[0], self.accepted)
            raise ValueError(f"core_args: unknown {unknown}; accepted here are {sorted(self.accepted)}.{hint}")
        return self.core(input_size, output_size, **{**self.defaults, **settings}, **self.fixed)

    def check_effects(self, settings: Mapping[str, Any]) -> None:
        """Check that chosen settings have an effect.

        It is for new trainings. Drivers that were saved with such a setting still load.

        Raises:
            ValueError: A setting has no effect.
        """
        for name, (other, values) in self.needs.items():
            if name in settings and settings.get(other, self.fixed.get(other)) not in values:
                fix = f"leave it out, or set {other}" if other in self.accepted else "leave it out"
                raise ValueError(
                    f"core_args: {name} has no effect unless {other} is {' or '.join(values)}, got {name}="
                    f"{settings[name]}; {fix}."
                )

    @property
    def ordinary(self) -> dict[str, Any]:
        """Settings by name with their values where a caller chooses none."""
        defaults = {name: parameter.default for name, parameter in signature(self.core).parameters.items()}
        return defaults | self.defaults

    def differences(self, settings: dict[str, Any], others: dict[str, Any]) -> list[str]:
        """Return the names of settings in which two cores differ. One that is left out has its default."""
        defaults = self.ordinary
        return [
            name
            for name in sorted({*settings, *others})
            if settings.get(name, defaults.get(name)) != others.get(name, defaults.get(name))
        ]
