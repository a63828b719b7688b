"""Trajectory lengths of random cores whose input goes round a circle."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from trajectory_length import circle, trajectory_length

from nac_drive.evaluation.metric import Number
from nac_drive.experiments.paper import PaperExperiment, PaperTask, Place, ResultColumn, Row, Whole
from nac_drive.policies import Core, build_core
from nac_drive.policies.ops.liquid import LiquidNetwork, Synapses
from nac_drive.policies.ops.sparse import SparseMatrix


@dataclass(frozen=True)
class Trajectory(PaperExperiment):
    """Lengths without any training. Fields are settings of a protocol.

    Widths are compared at the first variance, variances at the last width.
    """

    widths: list[Whole] = field(default_factory=lambda: [10, 25, 50, 100])
    """Neurons, N."""
    variances: list[float] = field(default_factory=lambda: [2.0, 1.0, 4.0, 8.0])
    """N times the variance of weights."""
    bias_variance: float = 1.0
    networks: Whole = 20
    """Networks that are drawn for every width and variance."""
    frames: Whole = 200
    """Frames of the circle, which takes 2 pi seconds."""

    repeats: ClassVar[str] = "networks"

    def _cells(self) -> list[tuple[int, float]]:
        return list(dict.fromkeys(
            [(width, self.variances[0]) for width in self.widths]
            + [(self.widths[-1], variance) for variance in self.variances]
        ))  # fmt: skip

    def places(self) -> list[Place]:
        return [
            (("width", width), ("variance", variance), ("network", network))
            for width, variance in self._cells()
            for network in range(self.networks)
        ]

    def measure(self, folder: Path, task: PaperTask) -> Row:
        """Return the length."""
        place = dict(task.place)
        torch.manual_seed(place["network"])
        core = build_core(task.core, 2, place["width"], **task.core_args)
        redraw(core, (place["variance"] / place["width"]) ** 0.5, self.bias_variance**0.5)
        return {"length": trajectory_length(core, circle(self.frames), 2.0 * math.pi / self.frames)}

    def numbers(self, task: PaperTask) -> dict[str, Any]:
        return {"length": Number}

    def columns(self) -> list[ResultColumn]:
        return [
            ResultColumn(
                f"length_{width}_{variance:g}", f"N = {width}, σ² = {variance:g}", "length",
                {"width": width, "variance": variance},
            )
            for width, variance in self._cells()
        ]  # fmt: skip

    def describe(self) -> str:
        return (
            "Length of the path of the N outputs, along their first two principal components, while the input goes "
            f"once round the unit circle in 2π seconds, {self.frames} frames; the circle itself has the length 2π. "
            "Weights are drawn from a normal distribution of variance σ² / N, biases from one of variance "
            f"{self.bias_variance:g}. Mean ± standard deviation over {self.networks} networks."
        )

    def conclude(self, folder: Path, rows: Sequence[Row]) -> str:
        entries = dict.fromkeys(row["entry"] for row in rows)
        longest: Counter[str] = Counter()
        for column in self.columns():
            lengths = {name: column.values([row for row in rows if row["entry"] == name]) for name in entries}
            if lengths and all(map(len, lengths.values())):
                longest[max(lengths, key=lambda name: lengths[name].mean())] += 1
        parts = [f"{name} in {count} of {longest.total()} columns" for name, count in longest.most_common()]
        return f"**Longest on average:** {', '.join(parts)}." if parts else ""


def redraw(core: Core, weight: float, bias: float) -> None:
    """Draw the weights of a core, normal with standard deviations `weight` and `bias`; time constants stay.

    A synapse of LTC neurons conducts |w|, because Lemma 8 and 9 need positive conductances; its sign is its
    reversal potential's, +-1, which stays, as its sigmoid does. Leak potentials are biases.
    """
    for module in core.modules():
        if isinstance(module, nn.Linear):
            _normal(module.weight, weight)
        elif isinstance(module, SparseMatrix):
            _normal(module.values, weight)
        elif isinstance(module, Synapses):
            with torch.no_grad():
                conductance = (weight * torch.randn_like(module.weight)).abs().clamp(min=1e-6)
                module.weight.copy_(conductance.expm1().log())  # softplus of it conducts
        elif isinstance(module, LiquidNetwork):
            _normal(module.leak, bias)
        if isinstance(vector := getattr(module, "bias", None), nn.Parameter):
            _normal(vector, bias)


def _normal(parameter: Tensor, deviation: float) -> None:
    nn.init.normal_(parameter, std=deviation)
