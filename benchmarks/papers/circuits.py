"""Ordinary neural circuits and other small networks, trained by a search without gradients (thesis, Chapter 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from agents import CircuitAgent, make_agent
from contribution import contributions
from control_tasks import TASKS, rollouts
from random_search import mean_of_worst, random_search

from nac_drive.envs import SPLITS
from nac_drive.evaluation.metric import Count, Number
from nac_drive.experiments.paper import PaperExperiment, PaperTask, Place, ResultColumn, Row, Whole
from nac_drive.policies import CORES
from nac_drive.policies.wiring.tap_withdrawal import MOTOR, NEURONS, tap_withdrawal_circuit

_POINTS = 20
"""Points of a learning curve."""


@dataclass(frozen=True)
class Budget:
    """Size of a search in one task."""

    iterations: int
    rollouts: int
    """Episodes of an estimate, each with its own seed."""
    steps: int
    """Steps of such an episode at most."""
    episodes: int
    """Episodes that test the result, with seeds that the search does not use."""
    worst: int | None = None
    """An estimate is the mean of so many least returns; None: of all."""


@dataclass(frozen=True)
class Circuits(PaperExperiment):
    """Adaptive random search (Algorithm 5) for every agent. Fields are settings of a protocol."""

    budgets: dict[str, Budget]
    """PaperTask -> its budget."""
    runs: Whole = 5
    """Searches of every agent, with the seeds 0, 1, ... of parameters, noise and random circuits."""
    sigma: float = 0.3
    """Noise at first. The parameters of a circuit, but for linear layers, are fractions of their ranges."""
    alpha: float = 1.0003
    patience: Whole = 50

    def places(self) -> list[Place]:
        return [(("task", task), ("run", run)) for run in range(self.runs) for task in self.budgets]

    def measure(self, folder: Path, task: PaperTask) -> Row:
        """Return `return` (mean of the test), success, objective, curve, sparsity, parameters, and contributions."""
        place = dict(task.place)
        name, run = place["task"], place["run"]
        world, budget = TASKS[name], self.budgets[name]
        args = dict(task.core_args) | ({"seed": run} if "seed" in CORES[task.core].accepted else {})
        direct = name == "mountain-car"
        agent = make_agent(task.core, args, world.observations, len(world.low), direct=direct, seed=run)
        rng = np.random.default_rng(run)

        def objective(parameters: np.ndarray) -> float:
            agent.load(parameters)
            seeds = rng.choice(len(SPLITS["train"]), budget.rollouts, replace=False).tolist()
            return -mean_of_worst(rollouts(agent, name, seeds, budget.steps), budget.worst)

        found = random_search(
            objective, agent.start, rng, iterations=budget.iterations, sigma=self.sigma, alpha=self.alpha,
            patience=self.patience, bounds=agent.bounds,
        )  # fmt: skip
        agent.load(found.parameters)
        tested = float(rollouts(agent, name, SPLITS["test"][: budget.episodes], world.steps).mean())
        best = np.maximum.accumulate(-found.values)
        points = np.unique(np.linspace(0, budget.iterations, _POINTS + 1).astype(int)).tolist()
        row: Row = {
            "return": tested, "success": float(tested >= world.solved), "objective": float(best[-1]),
            "curve": [[point, float(best[point])] for point in points], "parameters": len(agent.start), "sparsity": 0.0,
        }  # fmt: skip
        if isinstance(agent, CircuitAgent):
            kinds = tap_withdrawal_circuit(**{key: args[key] for key in ("wiring", "seed") if key in args})
            row["sparsity"] = float((kinds == 0).mean())
            if args.get("wiring", "tap-withdrawal") == "tap-withdrawal":
                row["contributions"] = contributions(potentials(agent, name), NEURONS, NEURONS[MOTOR])
        return row

    def numbers(self, task: PaperTask) -> dict[str, Any]:
        numbers: dict[str, Any] = dict.fromkeys(("return", "success", "objective", "sparsity"), Number)
        return numbers | {
            "curve": list[tuple[Count, Number]], "parameters": Count, "contributions": dict[str, dict[str, str]] | None,
        }  # fmt: skip

    def columns(self) -> list[ResultColumn]:
        columns = []
        for task in self.budgets:
            where = {"task": task}
            columns += [
                ResultColumn(f"return_{task}", f"return, {task}", "return", where, 1),
                ResultColumn(f"success_{task}", f"solved, %, {task}", "success", where, 0, of=partial(_solved, task)),
            ]
        return [
            *columns,
            ResultColumn("sparsity", "sparsity, %", "sparsity", {}, 0, of=lambda rows: 100 * rows[0]["sparsity"]),
        ]

    def describe(self) -> str:
        sizes = "; ".join(
            f"{task}: {budget.iterations:,} iterations of {budget.rollouts} rollouts of {budget.steps} steps at most, "
            f"tested in {budget.episodes} others of {TASKS[task].steps}, solved from {TASKS[task].solved:g}"
            for task, budget in self.budgets.items()
        )
        return (
            f"Adaptive random search (Algorithm 5) with noise {self.sigma:g} unless it says otherwise, alpha "
            f"{self.alpha:g}, and a new estimate after {self.patience} rejections; runs of each: {self.runs}. {sizes}. "
            "Agents have 11 neurons: the tap-withdrawal circuit, random circuits (another one in every run), an LSTM, "
            "and a perceptron with one hidden layer, the last two with a linear readout. mountain-car is gymnasium's "
            "MountainCarContinuous-v0. car is CarRacing with six numbers in place of a frame: lateral offset, heading "
            "error, the turns of the road over 6 and 16 tiles ahead, speed and yaw rate. "
            "± is the standard deviation over runs."
        )

    def conclude(self, folder: Path, rows: Sequence[Row]) -> str:
        """Return how the neurons of the best tap-withdrawal circuit of each task contribute (Definition 6)."""
        lines = []
        for task in self.budgets:
            found = [row for row in rows if "contributions" in row and row["task"] == task]
            if not found:
                continue
            row = max(found, key=lambda row: row["return"])
            for motor, kinds in row["contributions"].items():
                groups = {kind: [name for name in kinds if kinds[name] == kind] for kind in sorted({*kinds.values()})}
                text = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in groups.items())
                lines.append(f"- {task}, return {row['return']:.1f}, {motor}: {text}")
        if not lines:
            return ""
        return "\n".join([
            "**Contributions** (Definition 6) of neurons to the motor neurons, in the first test episode of the "
            "best tap-withdrawal circuit of each task. *phases*: of either sign; *none*: never moved together.", "",
            *lines,
        ])  # fmt: skip


def _solved(task: str, rows: Sequence[Row]) -> float:
    """Return the percentage of runs that solved a task; NaN without any."""
    mine = [row["success"] for row in rows if row["task"] == task]
    return 100 * float(np.mean(mine)) if mine else float("nan")


def potentials(agent: CircuitAgent, task: str) -> np.ndarray:
    """Return the potentials (T, 11) of all neurons in the first test episode, in the order of NEURONS."""
    path: list[np.ndarray] = []

    def watch(x: np.ndarray, state: Any) -> None:
        path.append(np.concatenate((agent.sense(x)[0], state[0])))

    rollouts(agent, task, SPLITS["test"][:1], TASKS[task].steps, watch)
    return np.array(path)
