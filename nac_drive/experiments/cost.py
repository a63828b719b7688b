"""Run time and memory of cores, each in a process of its own, on the CPU and on the GPU where there is one."""

from __future__ import annotations

import multiprocessing
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nac_drive.evaluation.metric import Count, NotNegative, sample_sd
from nac_drive.experiments.paper import PaperExperiment, PaperTask, Place, ResultColumn, Row, Whole
from nac_drive.policies import CORES, build_core
from nac_drive.policies.cores.window import WindowBase
from nac_drive.policies.ops.generators import own_generators

_MIB = 2**20


@dataclass(frozen=True)
class Cost(PaperExperiment):
    """Forward passes over one sequence, without gradients. Fields are settings of a protocol."""

    lengths: list[Whole] = field(default_factory=lambda: [1024])
    """Frames of the sequence; with several, the exponent of the run time is fitted."""
    d_model: Whole = 64
    passes: Whole = 10
    """Passes that are timed, after a first one."""
    whole_sequence: bool = True
    """Whether cores with a window see the whole sequence."""

    alone = True

    def places(self) -> list[Place]:
        return [(("length", length), ("device", device)) for device in self._devices() for length in self.lengths]

    def _devices(self) -> list[str]:
        return list(dict.fromkeys(("cpu", self.device)))

    def measure(self, folder: Path, task: PaperTask) -> Row:
        """Return seconds, seconds_sd, throughput, megabytes, and parameters; in a fresh process."""
        context = multiprocessing.get_context("spawn")  # peak memory belongs to a process
        with context.Pool(1) as pool:
            return pool.apply(_measure, (self, task))

    def numbers(self, task: PaperTask) -> dict[str, Any]:
        count: Any = Count
        return {
            "seconds": NotNegative, "seconds_sd": NotNegative | None, "throughput": NotNegative,
            "megabytes": NotNegative | None, "parameters": count, "window": count | None,
        }  # fmt: skip

    def columns(self) -> list[ResultColumn]:
        return [column for device in self._devices() for column in self._columns(device)]

    def _columns(self, device: str) -> list[ResultColumn]:
        key, name = ("", "") if device == "cpu" else (f"_{device}", ", GPU")
        if len(self.lengths) > 1:
            times = [
                ResultColumn(f"ms_{length}{key}", f"ms, T = {length}{name}", "seconds", _on(device, length), 1, 1e3)
                for length in self.lengths
            ]
            fitted = partial(_exponent_on, device)
            return [*times, ResultColumn(f"exponent{key}", f"exponent of T{name}", "", {}, 2, of=fitted)]
        where = _on(device, self.lengths[0])
        columns = [
            ResultColumn(f"seconds{key}", f"run time, s{name}", "seconds", where, 4),
            ResultColumn(f"seconds_sd{key}", f"sd of passes{name}", "seconds_sd", where, 4),
            ResultColumn(f"throughput{key}", f"sequences/s{name}", "throughput", where, 2),
            ResultColumn(f"megabytes{key}", f"peak memory, MB{name}", "megabytes", where, 1),
        ]
        return columns if key else [*columns, ResultColumn("parameters", "parameters", "parameters", where, 0)]

    def describe(self) -> str:
        sees = "sees the whole sequence" if self.whole_sequence else "has its own window"
        places = "one CPU thread"
        if self.device != "cpu":
            places += f" and on a GPU ({torch.cuda.get_device_name()})"
        return (
            f"A forward pass over one sequence of {', '.join(map(str, self.lengths))} steps with {self.d_model} "
            f"features, without gradients: mean of {self.passes} passes after a first one, on {places}, and what the "
            f"peak of memory rises by in the first. Attention {sees}. torch {torch.__version__}, Python "
            f"{platform.python_version()}."
        )


def _on(device: str, length: int) -> dict[str, Any]:
    return {"device": device, "length": length}


def _exponent_on(device: str, rows: Sequence[Row]) -> float:
    return exponent([row for row in rows if row["device"] == device])


def exponent(rows: Sequence[Row]) -> float:
    """Return the exponent of the length in the run time: the slope of a line through the logarithms."""
    lengths, seconds = ([row[name] for row in rows] for name in ("length", "seconds"))
    return float(np.polyfit(np.log(lengths), np.log(seconds), 1)[0]) if len(rows) > 1 else float("nan")


@own_generators()
def _measure(config: Cost, task: PaperTask) -> Row:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    place = dict(task.place)
    length, device = place["length"], place["device"]
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
        after = _peak(device, reset=False)
        seconds = [_timed(lambda: core(x, dt, state), device) for _ in range(config.passes)]
    mean = float(np.mean(seconds))
    window = next((part.window for part in core.modules() if isinstance(part, WindowBase)), None)
    return {
        "seconds": mean, "seconds_sd": sample_sd(seconds), "throughput": 1 / mean,
        "megabytes": None if before is None or after is None else after - before,
        "parameters": sum(parameter.numel() for parameter in core.parameters()), "window": window,
    }  # fmt: skip


def _timed(call: Any, device: str) -> float:
    _synchronise(device)
    started = time.perf_counter()
    call()
    _synchronise(device)
    return time.perf_counter() - started


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _peak(device: str, *, reset: bool) -> float | None:
    """Return the high-water mark of memory in MB (2^20 bytes); None where the system does not say."""
    if device == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated() / _MIB
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux
        return None
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
