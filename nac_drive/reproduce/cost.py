"""Run time and memory of cores, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nac_drive.policies import CORES, build_core
from nac_drive.policies.cores.window import WindowBase
from nac_drive.reproduce.experiment import Column, Experiment, Place, Row, Task

_MIB = 2**20


@dataclass(frozen=True)
class Cost(Experiment):
    """Forward passes over one sequence, without gradients. Fields are settings of a protocol."""

    lengths: list[int] = field(default_factory=lambda: [1024])
    """Frames of the sequence; with several, the exponent of the run time is fitted."""
    d_model: int = 64
    passes: int = 10
    """Passes that are timed, after a first one."""
    whole_sequence: bool = True
    """Whether cores with a window see the whole sequence."""
    device: str = "cpu"

    alone = True

    def places(self) -> list[Place]:
        return [(("length", length),) for length in self.lengths]

    def measure(self, folder: Path, task: Task) -> Row:
        """Return seconds, seconds_sd, throughput, megabytes, and parameters; in a fresh process."""
        context = multiprocessing.get_context("spawn")  # peak memory is that of a process
        with context.Pool(1) as pool:
            return pool.apply(_measure, (self, task))

    def columns(self) -> list[Column]:
        if len(self.lengths) > 1:
            times = [
                Column(f"ms_{length}", f"ms, T = {length}", "seconds", {"length": length}, 1, 1e3)
                for length in self.lengths
            ]
            return [*times, Column("exponent", "exponent of T", "", {}, 2, of=exponent)]
        where = {"length": self.lengths[0]}
        return [
            Column("seconds", "run time, s", "seconds", where, 4),
            Column("seconds_sd", "sd of passes", "seconds_sd", where, 4),
            Column("throughput", "sequences/s", "throughput", where, 2),
            Column("megabytes", "peak memory, MB", "megabytes", where, 1),
            Column("parameters", "parameters", "parameters", where, 0),
        ]

    def describe(self) -> str:
        sees = "sees the whole sequence" if self.whole_sequence else "has its own window"
        return (
            f"A forward pass over one sequence of {', '.join(map(str, self.lengths))} steps with {self.d_model} "
            f"features, without gradients: mean of {self.passes} passes after a first one, on "
            f"{'one CPU thread' if self.device == 'cpu' else self.device}, and what the peak of memory rises by in "
            f"the first. Attention {sees}. torch {torch.__version__}, Python {platform.python_version()}."
        )


def exponent(rows: Sequence[Row]) -> float:
    """Return the exponent of the length in the run time: the slope of a line through the logarithms."""
    lengths, seconds = ([row[name] for row in rows] for name in ("length", "seconds"))
    return float(np.polyfit(np.log(lengths), np.log(seconds), 1)[0]) if len(rows) > 1 else float("nan")


def _measure(config: Cost, task: Task) -> Row:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    (_, length), device = task.place[0], config.device
    args = dict(task.core_args)
    if config.whole_sequence and "window" in CORES[task.core].accepted:
        args["window"] = length
    core = build_core(task.core, config.d_model, config.d_model, **args).to(device).eval()
    x = torch.randn(1, length, config.d_model, device=device)
    dt = torch.full((1, length), 0.02, device=device)
    state = core.initial_state(1)
    with torch.no_grad():
        core(x[:, :8], dt[:, :8], state)  # libraries are loaded
        before = _peak(device, reset=True)
        core(x, dt, state)
        memory = _peak(device, reset=False) - before
        seconds = [_timed(lambda: core(x, dt, state), device) for _ in range(config.passes)]
    mean = float(np.mean(seconds))
    window = next((part.window for part in core.modules() if isinstance(part, WindowBase)), None)
    return {
        "seconds": mean, "seconds_sd": float(np.std(seconds, ddof=1)), "throughput": 1 / mean, "megabytes": memory,
        "parameters": sum(parameter.numel() for parameter in core.parameters()), "window": window,
    }  # fmt: skip


def _timed(call: Any, device: str) -> float:
    started = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _peak(device: str, *, reset: bool) -> float:
    """Return the high-water mark of memory in MB (2^20 bytes); NaN where the system does not say."""
    if device == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated() / _MIB
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux
        return float("nan")
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
