"""Checks of a core, on which a driver relies."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor

from nac_drive.policies.cores.adapted import ModuleMaker, RecurrentModule, WindowedModule, factory_of_module
from nac_drive.policies.cores.base import NOMINAL_DT, Core, State
from nac_drive.policies.cores.registry import CORES, SHIPPED, build_core
from nac_drive.policies.cores.window import WindowBase
from nac_drive.policies.ops.quiet import quiet_exporters
from nac_drive.policies.ops.threads import one_thread

SIZE = 64
"""Features in and out, as in a driver with the default settings."""
_BATCH, _LENGTH = 3, 24
_TOLERANCE = 1e-4
"""Largest difference of outputs that counts as equal, relative to the largest output."""
_STEPS_TIMED = 100


@dataclass(frozen=True)
class CoreReport:
    """The findings of `check_core`."""

    name: str
    takes: str
    """The form of the module, such as (x) -> y."""
    memory: str
    """What it keeps between two frames."""
    uses_dt: bool
    """Whether a change of dt changes an output."""
    streaming_difference: float
    """Largest difference between the outputs frame by frame and the whole sequence's, relative to the largest."""
    parameters: int
    neurons: int | None
    without_gradient: tuple[str, ...]
    """Parameters that the outputs do not depend on."""
    finite_after_gaps: bool
    """Whether outputs are finite after gaps up to 1e9 s."""
    export_error: str
    """Why torch.export refuses a step; empty if the core can be exported."""
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return (
            f"core {self.name}: {self.takes}, causal, {self.memory}, dt is {'used' if self.uses_dt else 'not used'}, "
            f"streaming equals the whole sequence ({self.difference()}), "
            f"{self.parameters:,} parameters{self._warnings()}, "
            f"{'not exportable' if self.export_error else 'exportable'}"
        )

    def difference(self) -> str:
        """Return the difference of streaming as text."""
        return f"to {self.streaming_difference:.0e}" if self.streaming_difference else "exactly"

    def _warnings(self) -> str:
        words = f" ({len(self.without_gradient)} without a gradient)" if self.without_gradient else ""
        return words if self.finite_after_gaps else f"{words}, not finite after long gaps"


def register_core(name: str, module: ModuleMaker, *, input_size: int = SIZE, output_size: int = SIZE) -> CoreReport:
    """Add a sequence model to `CORES`.

    The workers that this process starts later know it too.

    Args:
        name: Its name in commands, tables and folders: letters, digits, points, hyphens and underscores.
        module: A class of torch modules or a function: `module(input_size, output_size, **settings)`. Its forward is
            (x) -> y of whole sequences (B, T, features), or (x, state) -> (y, state) as in torch.nn.LSTM, or (x, state,
            timespans) -> (y, state) as in ncps. A class that inherits `Core` is taken as it is.
        input_size: Number of input features of the check.
        output_size: Number of output features of the check.

    Returns:
        The findings of `check_core`; printed, they are one line.

    Raises:
        ValueError: The name is taken or bad, or the module cannot be a core; the message names the reason.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(f"name: must be letters, digits and . _ -, got {name!r}; such as my-model.")
    if name in SHIPPED:
        raise ValueError(f"name: {name!r} is a core that comes with the package; choose another.")
    before = CORES.get(name)
    CORES[name] = factory_of_module(name, module)
    try:
        return check_core(name, input_size, output_size)
    except BaseException:
        if before is None:
            del CORES[name]
        else:
            CORES[name] = before
        raise


def check_core(name: str, input_size: int = SIZE, output_size: int = SIZE, /, **settings: Any) -> CoreReport:
    """Check that a core can drive.

    It must be causal, and give the same outputs frame by frame and for the whole sequence.

    Args:
        name: A name in CORES.
        input_size: Number of input features.
        output_size: Number of output features.
        settings: Settings of the core.

    Returns:
        The findings.

    Raises:
        ValueError: It cannot be a core: its outputs depend on later frames, other rows, earlier sequences, chance or
            the chunks of a sequence, or they are not finite.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        core = build_core(name, input_size, output_size, **settings).eval()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_BATCH, _LENGTH, input_size, generator=generator)
    dt = NOMINAL_DT * (0.5 + torch.rand(_BATCH, _LENGTH, generator=generator))
    dt[:, 0] = 0.0  # as after a reset
    with torch.no_grad(), one_thread():
        whole = _run(core, x, dt)
        if not whole.isfinite().all():
            raise ValueError(f"core {name}: outputs of noise must be finite, got nan or infinity.")
        scale = max(float(whole.abs().max()), 1e-6)

        def changed(outputs: Tensor) -> float:
            return float((outputs - whole).abs().max()) / scale

        if not (difference := changed(_run(core, x, dt))) <= _TOLERANCE:
            raise ValueError(
                f"core {name}: the same frames must give the same outputs, but again they differ by {difference:.1g} "
                "of the largest; take a state that the module holds as an argument and return (y, state), and add "
                "noise in training alone."
            )
        rows = torch.cat([_run(core, x[row : row + 1], dt[row : row + 1]) for row in range(_BATCH)])
        if not (difference := changed(rows)) <= _TOLERANCE:
            raise ValueError(
                f"core {name}: a row must give the same outputs alone and in a batch, but they differ by "
                f"{difference:.1g} of the largest; a layer that takes (frames, batch, features), as torch's do by "
                "default, needs batch_first=True."
            )
        _require_causal(name, core, x, dt, whole, scale)
        if not (difference := changed(_run(core, x, dt, 1))) <= _TOLERANCE:
            raise ValueError(
                f"core {name}: outputs frame by frame must equal the whole sequence's, got a difference of "
                f"{difference:.1g} of the largest output; does the state hold all that it remembers?"
            )
        uses_dt = not torch.allclose(_run(core, x, 3.0 * dt), whole, atol=_TOLERANCE * scale)
        gaps = torch.tensor([0.0, 1.0, 1e3, 1e6, 1e9]).repeat(_BATCH, _LENGTH)[:, :_LENGTH]
        finite = bool(_run(core, x, gaps).isfinite().all())
    return CoreReport(
        name=name,
        takes=_takes(core),
        memory=_memory(core),
        uses_dt=uses_dt,
        streaming_difference=difference,
        parameters=sum(parameter.numel() for parameter in core.parameters()),
        neurons=core.neurons,
        without_gradient=_without_gradient(core, x, dt),
        finite_after_gaps=finite,
        export_error=_export_error(core),
        settings=settings,
    )


def report_rows(reports: Sequence[CoreReport]) -> list[tuple[str, ...]]:
    """Return a row for each property of several cores.

    Milliseconds a step are the median of 100 steps of one car, on one thread of this machine.
    """
    return [
        ("takes", *(report.takes for report in reports)),
        ("keeps", *(report.memory for report in reports)),
        ("causal", *("yes" for _ in reports)),
        ("frame by frame as the whole", *(report.difference() for report in reports)),
        ("dt has an effect", *("yes" if report.uses_dt else "no" for report in reports)),
        ("finite after any gap", *("yes" if report.finite_after_gaps else "no" for report in reports)),
        ("parameters", *(f"{report.parameters:,}" for report in reports)),
        ("without a gradient", *(", ".join(report.without_gradient) or "none" for report in reports)),
        ("neurons", *("-" if report.neurons is None else str(report.neurons) for report in reports)),
        ("exportable", *(report.export_error or "yes" for report in reports)),
        ("milliseconds a step", *(f"{_milliseconds(report):.2f}" for report in reports)),
    ]


def _run(core: Core, x: Tensor, dt: Tensor, chunk: int | None = None) -> Tensor:
    """Return the outputs of a sequence, whole or in chunks."""
    state: State = core.initial_state(len(x))
    outputs = []
    length = chunk or x.shape[1]
    for x_part, dt_part in zip(x.split(length, dim=1), dt.split(length, dim=1), strict=True):
        y, state = core(x_part, dt_part, state)
        outputs.append(y)
    return torch.cat(outputs, dim=1)


def _require_causal(name: str, core: Core, x: Tensor, dt: Tensor, whole: Tensor, scale: float) -> None:
    """Raises ValueError if a changed future changes an output."""
    present = _LENGTH // 2
    changed = torch.cat((x[:, :present], x[:, present:] + 1.0), dim=1)
    later = torch.cat((dt[:, :present], 2.0 * dt[:, present:]), dim=1)
    difference = float((_run(core, changed, later)[:, :present] - whole[:, :present]).abs().max()) / scale
    if not difference <= _TOLERANCE:
        raise ValueError(
            f"core {name}: an output must not depend on later frames, but a changed future changes it by "
            f"{difference:.1g} of the largest; use a causal mask, or one direction."
        )


def _takes(core: Core) -> str:
    if not isinstance(core, RecurrentModule | WindowedModule):
        return "(x, dt, state) -> (y, state)"
    state, times = core.form.state, core.form.times
    words = ", ".join(filter(None, ("x", state and "state", times and "timespans")))
    return f"({words}) -> {'(y, state)' if state else 'y'}"


def _memory(core: Core) -> str:
    if isinstance(core, WindowBase | WindowedModule) and core.window > 1:
        return f"a window of {core.window} frames"
    numbers = sum(int(torch.tensor(shape).prod()) for shape, _ in core.state_shapes())
    return f"a state of {numbers:,} numbers" if numbers else "no memory"


def _without_gradient(core: Core, x: Tensor, dt: Tensor) -> tuple[str, ...]:
    core.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _run(core, x, dt).square().sum().backward()
    core.eval()
    without = [
        name
        for name, parameter in core.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
    ]
    core.zero_grad(set_to_none=True)
    return tuple(without)


def _export_error(core: Core) -> str:
    """Return why torch cannot export one step.

    Empty if it can.
    """
    step = (torch.zeros(1, 1, core.input_size), torch.full((1, 1), NOMINAL_DT), core.initial_state(1))
    try:
        with torch.no_grad(), quiet_exporters():
            torch.export.export(core, step, strict=False)
    except Exception as error:  # torch.export's errors have no common base
        return f"no: {type(error).__name__}"
    return ""


def _milliseconds(report: CoreReport) -> float:
    """Return the median time of a step of one car."""
    core = build_core(report.name, SIZE, SIZE, **report.settings).eval()
    x, dt, seconds = torch.randn(1, 1, SIZE), torch.full((1, 1), NOMINAL_DT), []
    with torch.no_grad(), one_thread():
        state = core.initial_state(1)
        for _ in range(_STEPS_TIMED):
            start = time.perf_counter()
            _, state = core(x, dt, state)
            seconds.append(time.perf_counter() - start)
    return 1000.0 * median(seconds)
