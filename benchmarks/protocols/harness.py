"""Cores x methods x seeds in closed loop.

These are the protocols behind the tables of docs/results.md and docs/champions.md.

    python benchmarks/protocols/harness.py champion --control continuous
    python benchmarks/protocols/harness.py baselines --precision bf16-mixed
    python benchmarks/protocols/harness.py cloning-methods --method bc dart dagger

A protocol is data: runs to train, and entries to drive on named tracks. Finished runs and finished evaluations are kept
under --out, and the same command goes on where it was interrupted. --max-steps shortens every episode, and --quick
shortens every training: both check that a command works, and their numbers mean nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import tyro
from run_plans import Method, Protocol, Run, baselines_protocol, cloning_protocol  # the file beside this one
from torch import Tensor, nn

import nac_drive as nd
from nac_drive.data_collection.drivers import driver_hash
from nac_drive.envs import Control
from nac_drive.evaluation.statistics import Summary
from nac_drive.experiments.driving import Driving, episodes_of
from nac_drive.experiments.driving import Entry as DrivingEntry
from nac_drive.experiments.experiment import open_experiment
from nac_drive.experiments.experiment import run as measure
from nac_drive.experiments.leaderboard import RankedDriver, leaderboard
from nac_drive.markdown import markdown_table
from nac_drive.parallel.processes import Pool, default_workers
from nac_drive.storage.write import write_atomically
from nac_drive.training.offline import offline_accuracy
from nac_drive.training.run_folder import RunFolder

Row = Literal["controller", "expert", "champion", "masked", "zeroed"]


# --- running: what is finished is kept -------------------------------------------------------------------------------


class ZeroedCore(nn.Module):
    """A core whose output is multiplied by zero, so that the action head gets nothing from it."""

    def __init__(self, core: nn.Module):
        super().__init__()
        self.core = core

    def forward(self, x: Tensor, dt: Tensor, state: tuple) -> tuple[Tensor, tuple]:
        y, after = self.core(x, dt, state)
        return y * 0.0, after

    def initial_state(self, batch: int) -> tuple:
        return self.core.initial_state(batch)  # type: ignore[operator]


@dataclass(frozen=True)
class Cell:
    """One driver under one condition."""

    name: str
    driver: str
    """A name or a folder, see `nd.resolve_driver`."""
    env: nd.EnvConfig
    expert: str | None = None
    """Driver that is queried at every frame."""
    zero_core: bool = False
    perturb: str | None = None
    """Perturbations, see `envs.perturb`."""


@dataclass(frozen=True)
class Options:
    """Settings of every command."""

    tracks: str
    """Tracks of the evaluation."""
    out: Path
    """Folder of finished runs and evaluations."""
    workers: int = default_workers()
    """Parallel processes."""
    max_steps: int = 1000
    """Frames before an episode is truncated; fewer check that a command works."""


@dataclass(frozen=True)
class Harness:
    """Trains runs and drives cells in `options.out`. Both are kept there."""

    options: Options
    pool: Pool | None

    @classmethod
    @contextmanager
    def open(cls, options: Options) -> Iterator[Harness]:
        """Yield the runner with its processes, which end with the block."""
        with nd.worker_pool(options.workers) as pool:
            yield cls(options, pool)

    def drive(self, cell: Cell) -> nd.Evaluation:
        """The evaluation of a cell; episodes that the same drivers drove on the same tracks before are kept."""
        env = replace(cell.env, max_steps=self.options.max_steps)
        driver = nd.resolve_driver(cell.driver, env)
        weights = [driver_hash(spec, env) for spec in (cell.driver, cell.expert) if spec]
        if cell.zero_core:
            driver.core = ZeroedCore(driver.core)  # type: ignore[attr-defined]
        expert = nd.resolve_driver(cell.expert, env) if cell.expert else None
        key = json.dumps([asdict(replace(cell, env=env)), self.options.tracks, weights], sort_keys=True)
        sha256 = hashlib.sha256(key.encode()).hexdigest()
        tracks = tuple(nd.track_seeds(self.options.tracks))
        experiment = Driving((DrivingEntry(cell.name, sha256, env, driver, expert),), tracks, (cell.perturb,))
        folder = self.options.out / "evaluations" / f"{cell.name}-{sha256[:12]}"
        with open_experiment(experiment, folder, resume=folder.exists()) as journal:
            ((_, rows),) = episodes_of(measure(experiment, journal, pool=self.pool)).items()
        return nd.Evaluation(rows, nd.summarise(rows))

    def train(self, protocol: Protocol, run: Run, dataset: nd.Demonstrations | None = None) -> Path:
        """The folder of a run, new or resumed."""
        folder = self.options.out / run.name
        resume = (folder / "config.yaml").exists()
        if run.method == "dagger":
            config = replace(protocol.dagger_config(run), max_steps=self.options.max_steps)
            nd.dagger(config, folder, expert=protocol.expert, resume=resume, pool=self.pool)
        else:
            assert dataset is not None
            nd.train(protocol.train_config(run), dataset, folder, resume=resume, pool=self.pool)
        return folder

    def collect(self, name: str, expert: str, seeds: Sequence[int], noise: nd.NoiseConfig | None) -> nd.Demonstrations:
        """Episodes of the expert, new or resumed."""
        folder, env = self.options.out / name, nd.EnvConfig(max_steps=self.options.max_steps)
        return nd.collect(
            folder, expert, env=env, seeds=seeds, noise=noise, workers=self.options.workers, resume=folder.exists()
        )

    def demonstrations(self, method: Method, expert: str, frames: int) -> nd.Demonstrations:
        """Episodes for behaviour cloning or DART, of at least about `frames` frames in all."""
        noise, episodes = nd.NoiseConfig(0.15, 4.0) if method == "dart" else None, 8
        while True:
            dataset = self.collect(method, expert, range(episodes), noise)
            there = count_frames(dataset)
            if there >= frames:
                return dataset
            episodes += max(1, round((frames - there) * episodes / there))


def count_frames(dataset: nd.Demonstrations) -> int:
    return sum(row["length"] for row in dataset.rows)


Shared = Annotated[Options, tyro.conf.arg(name="")]


# --- commands --------------------------------------------------------------------------------------------------------


def _mean_and_sd(summary: Summary) -> str:
    mean = f"{summary.return_mean:.1f}"
    return mean if summary.return_sd is None else f"{mean} ± {summary.return_sd:.1f}"


def champion(
    control: Control = "discrete",
    driver: str = "champion",
    rows: tuple[Row, ...] = get_args(Row),
    options: Shared = Options("test-100", Path("runs/champion")),
) -> None:
    """The shipped drivers, and the champion without a part.

    Args:
        control: discrete or continuous.
        driver: The champion, or another driver in its place.
        rows: masked: the driver sees a black status bar. zeroed: the output of its core is zero.
    """
    env = nd.EnvConfig(control)
    conditions = {
        "controller": Cell("controller", "controller", env),
        "expert": Cell("expert", "expert", env),
        "champion": Cell("champion", driver, env),
        "masked": Cell("masked", driver, replace(env, mask_bar=True)),
        "zeroed": Cell("zeroed", driver, env, zero_core=True),
    }
    with Harness.open(options) as harness:
        print(leaderboard([RankedDriver(harness.drive(conditions[row])) for row in rows]).markdown())


def baselines(
    control: Control = "continuous",
    init_from: str = "expert",
    precision: str = "auto",
    options: Shared = Options("test-30", Path("runs/baselines")),
    quick: bool = False,
) -> None:
    """NAC, LSTM and CfC trained alike by DAgger, three seeds each.

    Args:
        control: discrete or continuous.
        init_from: The driver that gives encoder and action head.
        precision: Of the training, such as bf16-mixed.
        quick: Train one seed for one round.
    """
    protocol = baselines_protocol(control, init_from, precision)
    protocol = protocol.quick() if quick else protocol
    env = nd.EnvConfig(control)
    print("| core | parameters | seed | return | minimum | crashes/episode | ms/act |")
    print("|---|---:|---|---:|---:|---:|---:|")
    with Harness.open(options) as harness:
        for core in protocol.cores:
            summaries = []
            for run in (run for run in protocol.plan() if run.core == core):
                folder = harness.train(protocol, run)
                summary = harness.drive(Cell(run.name, str(folder), env)).summary
                summaries.append(summary)
                parameters = sum(p.numel() for p in nd.load_driver(folder).parameters())
                print(
                    f"| {core} | {parameters:,} | {run.seed} | {_mean_and_sd(summary)} "
                    f"| {summary.return_min:.0f} | {summary.crashes_per_episode:.2f} | {summary.latency_ms:.2f} |",
                    flush=True,
                )
            means = [summary.return_mean for summary in summaries]
            spread = f", seeds ± {np.std(means, ddof=1):.1f}" if len(means) > 1 else ""
            lowest = min(summary.return_min for summary in summaries)
            print(f"| {core} | | all | {np.mean(means):.1f}{spread} | {lowest:.0f} | | |", flush=True)


def cloning_methods(
    method: tuple[Method, ...] = get_args(Method),
    expert: str = "expert",
    frames: int = 0,
    precision: str = "auto",
    options: Shared = Options("test-30", Path("runs/cloning_methods")),
    quick: bool = False,
) -> None:
    """Behaviour cloning, DART and DAgger on the same budget of labelled frames and updates.

    Behaviour cloning learns from the expert's own episodes; DART (Laskey et al., arXiv 1703.09327) from episodes under
    action noise; DAgger (Ross et al., arXiv 1011.0686) from episodes of a mixture policy. Every driver's accuracy is
    measured offline, on episodes of the expert on other tracks, and in closed loop, where the expert is queried at
    every frame. The difference is the covariate-shift gap (docs/metrics.md). Discrete control. Writes
    table.md and results.json, which benchmarks/figures/cloning_methods.py draws.

    Args:
        method: Methods to compare.
        expert: Drives and labels.
        frames: Labelled frames of bc and dart; 0: as many as DAgger collected, which trains first.
        precision: Of the training, such as bf16-mixed.
        quick: Train for one round.
    """
    protocol = cloning_protocol(method, expert, precision)
    protocol = protocol.quick() if quick else protocol
    env = nd.EnvConfig()
    results = []
    with Harness.open(options) as harness:
        validation = harness.collect("validation", expert, nd.track_seeds("val-10"), None)
        budgets = [
            RunFolder.open(harness.train(protocol, run)).rows()[-1]["frames"]
            for run in replace(protocol, methods=("dagger",)).plan()
            if not frames
        ]
        budget = frames or round(np.mean(budgets))
        for run in protocol.plan():
            dataset = None if run.method == "dagger" else harness.demonstrations(run.method, expert, budget)
            folder = harness.train(protocol, run, dataset)
            evaluation = harness.drive(Cell(run.name, str(folder), env, expert=expert))
            seen = count_frames(dataset) if dataset else RunFolder.open(folder).rows()[-1]["frames"]
            results.append({
                "core": run.core, "method": run.method, "frames": seen,
                "returns": [row.episode_return for row in evaluation.rows],
                "crashes_per_episode": evaluation.summary.crashes_per_episode,
                "offline": offline_accuracy(nd.load_driver(folder), validation.load(), env).accuracy,
                "on_policy": evaluation.summary.agreement,
            })  # fmt: skip
            print(cloning_table(results[-1:]).splitlines()[-1], flush=True)
    write_atomically(options.out / "results.json", (json.dumps(results, indent=2) + "\n").encode())
    write_atomically(options.out / "table.md", cloning_table(results).encode())
    print(f"\n{cloning_table(results)}")


def cloning_table(results: Sequence[dict[str, Any]]) -> str:
    """Accuracies in percent; the gap is their difference."""
    headings = (
        "core", "method", "frames", "return", "minimum", "crashes/episode", "offline %", "on-policy %", "gap"
    )  # fmt: skip
    rows = []
    for row in results:
        returns, offline, on_policy = row["returns"], 100 * row["offline"], 100 * row["on_policy"]
        spread = np.std(returns, ddof=1) if len(returns) > 1 else 0.0
        rows.append((
            row["core"], row["method"], f"{row['frames']:,}", f"{np.mean(returns):.0f} ± {spread:.0f}",
            f"{min(returns):.0f}", f"{row['crashes_per_episode']:.2f}", f"{offline:.1f}", f"{on_policy:.1f}",
            f"{offline - on_policy:+.1f}",
        ))  # fmt: skip
    return markdown_table(headings, rows, "ll") + "\n"


if __name__ == "__main__":
    commands = {"champion": champion, "baselines": baselines, "cloning-methods": cloning_methods}
    tyro.extras.subcommand_cli_from_dict(commands, description=__doc__, config=(tyro.conf.OmitArgPrefixes,))
