"""Any torch module as a core.

Three forms of `forward` are recognised: (x) -> y for whole sequences, (x, state) -> (y, state) as torch.nn.LSTM has it,
and (x, state, timespans) -> (y, state) as ncps has it. x and y are (B, T, features).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nac_drive.policies.cores.base import NOMINAL_DT, Core, CoreFactory, State, StateSpec
from nac_drive.storage.read import one_line

WINDOW = 64
"""Frames that a module without state sees."""
_SHORTEST = 1e-3
"""Shortest timespan of a module, in frames."""
_TIMES = ("timespans", "timespan", "dt", "delta_t", "elapsed_time")
"""Names of an argument that takes the time since the previous frame."""

ModuleMaker = Callable[..., nn.Module]


def factory_of_module(name: str, module: ModuleMaker) -> CoreFactory:
    """Return the factory of a user's class or function.

    Args:
        name: The name of the core.
        module: `module(input_size, output_size, **settings)` makes a module of one of the three forms, or a `Core`. One
            without `output_size` may leave it out, if both are equal.

    Raises:
        ValueError: It is no class or function.
    """
    if isinstance(module, CoreFactory):
        return module
    if isinstance(module, nn.Module) or not callable(module):
        raise ValueError(
            f"core {name!r}: must be a class of modules or a function that makes one, got {type(module).__name__}; "
            "pass the class itself."
        )
    about = (inspect.getdoc(module) or f"{module.__module__}.{module.__qualname__}").split("\n")[0]
    arguments = [argument for argument in _signature(module).parameters.values() if argument.kind not in _REST]
    one_size = len(arguments) == 1 or (len(arguments) > 1 and _is_setting(arguments[1]))
    sizes = 1 if one_size else 2
    settings = [argument.replace(kind=argument.KEYWORD_ONLY) for argument in arguments[sizes:]]
    if isinstance(module, type) and issubclass(module, Core):
        return CoreFactory(module, about, tuple(argument.name for argument in settings))
    window = inspect.Parameter("window", inspect.Parameter.KEYWORD_ONLY, default=None)
    settings = [*(argument for argument in settings if argument.name != "batch_first"), window]
    make = partial(adapt, module, sizes)
    make.__signature__ = inspect.Signature(settings)  # type: ignore[attr-defined]
    return CoreFactory(make, about, tuple(argument.name for argument in settings))


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _signature(module: ModuleMaker) -> inspect.Signature:
    """Return the arguments of a class or function.

    torch's own recurrent layers hide theirs.
    """
    called = module.func if isinstance(module, partial) else module
    if isinstance(called, type) and issubclass(called, nn.RNNBase):
        hidden = inspect.signature(nn.RNNBase.__init__).parameters.values()
        return inspect.Signature([parameter for parameter in hidden if parameter.name not in ("self", "mode")])
    return inspect.signature(module)


def _is_setting(argument: inspect.Parameter) -> bool:
    """Return whether an argument is a setting with a default."""
    return argument.kind is argument.KEYWORD_ONLY or argument.default is not argument.empty


def adapt(
    module: ModuleMaker, sizes: int, input_size: int, output_size: int, /, *, window: int | None = None, **settings: Any
) -> Core:
    """Make a module and return it as a core.

    Args:
        module: See `factory_of_module`.
        sizes: How many of the two sizes it takes.
        input_size: Number of input features.
        output_size: Number of output features.
        window: Frames that a module without state sees, the present one included; WINDOW by default.
        settings: Further arguments of the module.

    Raises:
        ValueError: Its form is not one of the three, or a size does not fit.
    """
    if sizes == 1 and input_size != output_size:
        raise ValueError(
            f"core: {_name(module)} takes one size, here are {input_size} inputs and {output_size} outputs; leave "
            "features alone, or give it a second argument."
        )
    if "batch_first" in _signature(module).parameters:
        settings["batch_first"] = True
    made = module(*(input_size, output_size)[:sizes], **settings)
    if isinstance(made, Core):
        return made
    if not isinstance(made, nn.Module):
        raise ValueError(f"core: {_name(module)} must make a torch.nn.Module, got {type(made).__name__}.")
    form = form_of(made, input_size, output_size)
    if form.state is None and not forgets(made, form):
        return WindowedModule(made, form, WINDOW if window is None else window)
    if window is not None:
        raise ValueError(
            f"core_args: window is for modules that keep no state and look back, got {window}; leave it out."
        )
    return WindowedModule(made, form, 1) if form.state is None else RecurrentModule(made, form)


def _name(module: Any) -> str:
    return getattr(module, "__qualname__", type(module).__name__)


class RecurrentModule(Core):
    """A module with a state: (x, state) -> (y, state).

    The state has a fixed size. The module may take timespans.

    State: the tensors of the module's state in their order, batch first.

    Args:
        module: The module.
        form: Its form.
    """

    def __init__(self, module: nn.Module, form: CallForm) -> None:
        super().__init__()
        self.input_size, self.output_size = form.input_size, form.output_size
        self.module, self.form = module, form
        self.continuous_time, self.has_cells = form.times is not None, form.has_cells

    @property
    def neurons(self) -> int | None:
        return self.output_size if self.has_cells else None

    def state_shapes(self) -> StateSpec:
        return self.form.state_shapes

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        y, after = self.form.call(self.module, x, dt, state)
        return y, tuple(new.to(old.dtype) for new, old in zip(after, state, strict=True))


class WindowedModule(Core):
    """A causal module without state over the last inputs.

    The output of frame t is the module's last output for the inputs of the frames t - window + 1 to t, or of all since
    the start of the episode. The module is causal, so one call serves all frames of a short sequence.

    State: the last window - 1 inputs, the oldest first, with zeros after the newest, (B, window - 1, F), and their
    number (B,) int64.

    Args:
        module: The module.
        form: Its form.
        window: Frames that it sees.
    """

    def __init__(self, module: nn.Module, form: CallForm, window: int) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"window: must be at least 1 frame, got {window}.")
        self.input_size, self.output_size, self.window = form.input_size, form.output_size, window
        self.module, self.form = module, form
        self.continuous_time = form.times is not None

    def state_shapes(self) -> StateSpec:
        if self.window == 1:
            return ()
        return ((self.window - 1, self.input_size + self.continuous_time), None), ((), torch.int64)

    def forward(self, x: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        inputs = torch.cat((x, dt.unsqueeze(2).to(x.dtype)), dim=2) if self.continuous_time else x
        if not state:
            return self._outputs(inputs.flatten(0, 1).unsqueeze(1)).view(*x.shape[:2], -1), ()
        past, count = state
        length, slots = x.shape[1], self.window - 1
        step = torch.arange(length, device=x.device)
        index = count.unsqueeze(1) + step  # (B, T) place of each new frame
        frames = torch.cat((past.to(inputs.dtype), torch.zeros_like(inputs)), dim=1)
        frames = frames.scatter(1, _wide(index, inputs), inputs)  # (B, M + T, F)
        if length > 1 and int(index.max()) < self.window:
            y = self._outputs(frames[:, : int(index.max()) + 1])
            y = y.gather(1, _wide(index, y))
        else:
            first = (index - slots).clamp(min=0)  # (B, T) oldest frame of each window
            within = first.unsqueeze(2) + torch.arange(self.window, device=x.device)  # (B, T, W)
            windows = frames.gather(1, _wide(within.flatten(1), frames))
            y = self._outputs(windows.view(-1, self.window, frames.shape[2]))
            y = y.gather(1, _wide((index - first).view(-1, 1), y)).view(*x.shape[:2], -1)
        kept = (count + length).clamp(max=slots)
        slot = torch.arange(slots, device=x.device)
        newest = frames.gather(1, _wide((count + length - kept).unsqueeze(1) + slot, frames))
        past = newest.masked_fill((slot >= kept.unsqueeze(1)).unsqueeze(2), 0.0).to(past.dtype)
        return y, (past, kept)

    def _outputs(self, inputs: Tensor) -> Tensor:
        """Return the module's outputs, (B, T, d).

        The last feature of the inputs is dt, if the module takes it.
        """
        if not self.continuous_time:
            return self.form.call(self.module, inputs, inputs[..., 0], None)[0]
        return self.form.call(self.module, inputs[..., :-1], inputs[..., -1], None)[0]


def _wide(index: Tensor, like: Tensor) -> Tensor:
    """Return an index (B, T) as gather takes it for (B, S, F)."""
    return index.unsqueeze(2).expand(-1, -1, like.shape[2])


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
            moved = (leaf.movedim(0, axis).contiguous() for leaf, axis in leaves)
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
    parameters = [p for p in inspect.signature(module.forward).parameters.values() if p.kind not in _REST]
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
        except (RuntimeError, TypeError, IndexError, AttributeError) as error:
            errors.append(error)
    if not errors:
        raise ValueError(f"{name} gives a row of a batch other outputs than the row alone; rows must be independent.")
    if isinstance(errors[0], ValueError):
        raise errors[0]
    raise ValueError(
        f"{name} cannot be called with x {_EXAMPLE} of {form.input_size} features: {one_line(errors[0])}"
    ) from errors[0]


_EXAMPLE = (3, 4)
"""Batch and frames of the calls."""


def _with_state(name: str, module: nn.Module, state: str | None, form: CallForm) -> CallForm:
    """Return the form with the state that the module returns."""
    batch, length = _EXAMPLE
    x, dt = _noise(batch, length, form.input_size)
    parameter = None if state is None else inspect.signature(module.forward).parameters[state]
    start: dict[str, Any] = (
        {parameter.name: None} if parameter is not None and parameter.default is parameter.empty else {}
    )

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
