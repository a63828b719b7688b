"""Maximum flow from the sensory neurons to a motor neuron: the tap-withdrawal circuit and random circuits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from nac_drive.evaluation.metric import Number
from nac_drive.experiments.paper import PaperExperiment, PaperTask, Place, ResultColumn, Row, Whole
from nac_drive.policies.wiring.tap_withdrawal import MOTOR, NEURONS, SENSORY, tap_withdrawal_circuit

_SYNAPSES = 28
MOTORS = NEURONS[MOTOR]


@dataclass(frozen=True)
class Flow(PaperExperiment):
    """Graphs with random capacities (thesis, Algorithm 4). Fields are settings of a protocol."""

    graphs: Whole = 1000
    """Random circuits of a run, and as many sets of capacities of the tap-withdrawal circuit."""
    runs: Whole = 10
    rho: float = 0.5
    """Probability of the binomial distribution of the capacities; the thesis does not name it."""

    def places(self) -> list[Place]:
        return [(("run", run),) for run in range(self.runs)]

    def measure(self, folder: Path, task: PaperTask) -> Row:
        """Return for each motor neuron the ratio of the mean flows, the mean flows, and the part of graphs without."""
        run, wiring = dict(task.place)["run"], str(task.core_args["wiring"])
        seeds = range(run * self.graphs, (run + 1) * self.graphs)
        animal = self._flows(np.random.default_rng((run, 0)), repeat(tap_withdrawal_circuit(), self.graphs))
        drawn = self._flows(np.random.default_rng((run, 1)), (tap_withdrawal_circuit(wiring, seed) for seed in seeds))
        row: Row = {}
        for motor, ours, theirs in zip(MOTORS, animal.T, drawn.T, strict=True):
            row |= {
                f"ratio_{motor}": float(ours.mean() / theirs.mean()) if theirs.any() else None,
                f"flow_{motor}": float(theirs.mean()), f"animal_{motor}": float(ours.mean()),
                f"cut_off_{motor}": float((theirs == 0).mean()),
            }  # fmt: skip
        return row

    def _flows(self, rng: np.random.Generator, circuits: Iterable[np.ndarray]) -> np.ndarray:
        """Return the maximum flows to FWD and REV (graphs, 2). Every circuit draws capacities of its own."""
        flows = []
        for kinds in circuits:
            capacities = rng.binomial(_SYNAPSES, self.rho, kinds.shape) * (kinds != 0)
            flows.append([flow_to(capacities, NEURONS.index(motor)) for motor in MOTORS])
        return np.array(flows, dtype=float)

    def numbers(self, task: PaperTask) -> dict[str, Any]:
        flows = {f"{name}_{motor}": Number for name in ("flow", "animal", "cut_off") for motor in MOTORS}
        return flows | {f"ratio_{motor}": Number | None for motor in MOTORS}

    def columns(self) -> list[ResultColumn]:
        ratios = [ResultColumn(motor, f"ratio, {motor}", f"ratio_{motor}", {}, 3) for motor in MOTORS]
        flows = [ResultColumn(f"flow_{motor}", f"flow to {motor}", f"flow_{motor}", {}, 2) for motor in MOTORS]
        cut_off = [
            ResultColumn(f"cut_off_{motor}", f"{motor} cut off, %", f"cut_off_{motor}", {}, 1, 100) for motor in MOTORS
        ]
        return [*ratios, *flows, *cut_off]

    def describe(self) -> str:
        return (
            f"{self.runs} runs of {self.graphs:,} random circuits a line, each with capacities from Binomial"
            f"({_SYNAPSES}, {self.rho:g}), beside as many sets of capacities of the tap-withdrawal circuit. A source "
            "without limit feeds the four sensory neurons. The ratio is the mean maximum flow of the tap-withdrawal "
            "circuit over that of the random circuits; a circuit whose motor neuron is cut off counts as a flow of 0. "
            "One synapse alone reaches a motor neuron, so that no flow exceeds its capacity, "
            f"{_SYNAPSES * self.rho:g} in the mean. ± is the standard deviation over runs."
        )


def flow_to(capacities: np.ndarray, sink: int) -> int:
    """Return the maximum flow from all sensory neurons together to one neuron.

    Args:
        capacities: (N, N) whole numbers, row = source, column = target; the first four neurons are sensory.
        sink: Index of the neuron.
    """
    size = len(capacities) + 1
    graph = np.zeros((size, size), dtype=np.int32)
    graph[1:, 1:] = capacities
    graph[0, 1:][SENSORY] = capacities.sum()  # never a limit
    return int(maximum_flow(csr_array(graph), 0, sink + 1).flow_value)
