"""Any torch module as a core.

Three forms of `forward` are recognised: (x) -> y for whole sequences, (x, state) -> (y, state) as torch.nn.LSTM has it,
and (x, state, timespans) -> (y, state) as ncps has it. x and y are (B, T, features).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nac_drive.plugins import place_of
from nac_drive.policies.call_form import NOT_NAMED, CallForm, forgets, form_of, require_length
from nac_drive.policies.cores.base import Core, CoreFactory, State, StateSpec
from nac_drive.storage.read import one_line

WINDOW = 64
"""Frames that a module without state sees."""

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
    arguments = [argument for argument in _signature(module).parameters.values() if argument.kind not in NOT_NAMED]
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
    try:
        made = module(*(input_size, output_size)[:sizes], **settings)
    except AssertionError as error:  # how models of others check their sizes
        raise ValueError(
            f"core: {_name(module)} cannot be made for {input_size} inputs and {output_size} outputs with {settings}: "
            f"{place_of(error)}{type(error).__name__}: {one_line(error)}; choose other sizes."
        ) from error
    if isinstance(made, Core):
        return made
    if not isinstance(made, nn.Module):
        raise ValueError(f"core: {_name(module)} must make a torch.nn.Module, got {type(made).__name__}.")
    form = form_of(made, input_size, output_size)
    if form.state is None and not forgets(made, form):
        core = WindowedModule(made, form, WINDOW if window is None else window)
        require_length(made, form, core.window)
        return core
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
