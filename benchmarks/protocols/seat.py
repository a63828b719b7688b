"""Train cores from the driver's seat, and drive them.

The method is DAgger.

    python benchmarks/protocols/seat.py --out runs/seat
    python benchmarks/protocols/seat.py --out runs/seat --cores ncp cfc --seeds 0 1
    python benchmarks/protocols/seat.py --out rehearsal --quick --cores nac-exact --seeds 0

The expert labels from the true state, the drivers see the view from the seat. LSTM and cnn learn end to end. All other
cores learn on the frozen encoder of the LSTM with the same seed, which is trained first. Every run drives --tracks
undisturbed and --recovery-tracks under `mishaps:1` (docs/tails.md). Two tables have one row a run, and one row a core
with 95 % intervals over runs and tracks.

Finished runs and finished evaluations are kept under --out, and the same command goes on where it was interrupted.
Several processes may share the folder if each has its own seeds, or its own cores once the LSTMs are trained.
--end-to-end with all cores trains every encoder anew. --quick shortens every training and every list of tracks: it
checks that the command works, and its numbers mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import tyro
from harness import Cell, Harness, Options  # the files beside this one
from run_plans import Protocol, Run
from tails import MISHAP, kind_of, share_text

import nac_drive as nd
from nac_drive.envs.perturbations.mishaps import KINDS
from nac_drive.evaluation.formulas import CAR_RACING
from nac_drive.evaluation.intervals import bootstrap
from nac_drive.evaluation.results import EpisodeResult
from nac_drive.markdown import markdown_table
from nac_drive.parallel.processes import default_workers

ENCODER = "lstm"
"""The core that trains the encoder of the others; differences are taken against it."""
LOST = 850.0
UNDISTURBED = None
Rows = dict[Run, list[EpisodeResult]]


@dataclass(frozen=True)
class Seat:
    """Settings."""

    out: Path
    cores: list[str] = field(
        default_factory=lambda: [
            "lstm", "cnn", "nac-exact", "nac-steady", "nac-sharp", "gru", "cfc", "ltc", "ncp", "mtan", "mha",
        ]
    )  # fmt: skip
    """Cores to train, such as nac-sharp or nac-sharp,window=32; mha is softmax attention with 4 heads."""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    end_to_end: list[str] = field(default_factory=lambda: ["lstm", "cnn"])
    """Cores with an encoder of their own; all others have the frozen encoder of the LSTM."""
    expert: str = "steady-controller"
    tracks: str = "test-40"
    recovery_tracks: str = "holdout-200"
    workers: int = default_workers()
    """Processes for episodes."""
    quick: bool = False


def protocol(settings: Seat, core: str, seed: int) -> Protocol:
    """Return the training of one core.

    It is the pilot's: 40 episodes under action noise, then three rounds of 12.
    """
    frozen = None if core in settings.end_to_end else str(settings.out / Run(ENCODER, "dagger", seed).name)
    training = nd.DaggerConfig(
        nd.DriverConfig(control="continuous"),
        optim=nd.OptimConfig(freeze_encoder_from=frozen),
        view="seat", initial_episodes=40, rounds=3, episodes=12,
    )  # fmt: skip
    whole = Protocol({core: {}}, {seed: 1000 * (seed + 1)}, settings.expert, training)
    return whole.quick() if settings.quick else whole


def driven(settings: Seat) -> tuple[Rows, Rows]:
    """Train and drive; return every run's episodes in both worlds."""
    undisturbed, mishaps = Rows(), Rows()
    needed = [ENCODER] * any(core not in settings.end_to_end for core in settings.cores)
    options = Options(settings.tracks, settings.out, settings.workers)
    with Harness.open(options) as harness:
        recovery = replace(harness, options=replace(options, tracks=settings.recovery_tracks))
        for seed in settings.seeds:
            for core in dict.fromkeys((*needed, *settings.cores)):
                plan = protocol(settings, core, seed)
                (run,) = plan.plan()
                folder = str(harness.train(plan, run))
                if core not in settings.cores:
                    continue
                cell = Cell(run.name, folder, plan.training.env)
                undisturbed[run] = harness.drive(cell).rows
                mishaps[run] = recovery.drive(replace(cell, perturb=MISHAP)).rows
                print(f"{run.name}: {_returns(undisturbed[run]).mean():.1f}", flush=True)
    return undisturbed, mishaps


def _returns(rows: list[EpisodeResult]) -> np.ndarray:
    return np.array([row.episode_return for row in rows])


def _labelled(rows: Rows) -> list[tuple[str, list[Run]]]:
    """Return the label of every row, and its runs.

    A core has one row a seed, and one of all if it has several.
    """
    labelled = []
    for core in dict.fromkeys(run.core for run in rows):
        runs = [run for run in rows if run.core == core]
        labelled += [(str(run.seed), [run]) for run in runs]
        labelled += [("all", runs)] * (len(runs) > 1)
    return labelled


def _grid(rows: Rows, runs: list[Run]) -> np.ndarray:
    """Return the returns of runs, (runs, tracks)."""
    return np.array([_returns(rows[run]) for run in runs])


def undisturbed_table(rows: Rows) -> str:
    """Return the returns of every run and core."""
    headings = ("core", "seed", "return", "sd", "minimum", f"under {LOST:.0f}, %", "under 900, %", "from lstm")
    lines = []
    for label, runs in _labelled(rows):
        grid = _grid(rows, runs)
        baseline = _grid(rows, [run for run in rows if run.core == ENCODER and run.seed in {own.seed for own in runs}])
        paired = runs[0].core != ENCODER and baseline.shape == grid.shape
        lines.append((
            runs[0].core, label, bootstrap(grid).text(".1f"), f"{grid.std(ddof=1):.1f}", f"{grid.min():.0f}",
            share_text(grid.ravel() < LOST), share_text(grid.ravel() < CAR_RACING.solved_return),
            bootstrap(grid, baseline).text("+.1f") if paired else "",
        ))  # fmt: skip
    return markdown_table(headings, lines, "ll")


def recovery_table(rows: Rows) -> str:
    """Return how often every run and core recovers."""
    lines = []
    for label, runs in _labelled(rows):
        episodes = [row for run in runs for row in rows[run]]
        recovered = {kind: np.array([row.recovered == 1 for row in episodes if kind_of(row) == kind]) for kind in KINDS}
        every = np.concatenate([*recovered.values()])
        shares = [share_text(hits) for hits in (every, *recovered.values())]
        lines.append((runs[0].core, label, *shares, bootstrap(_grid(rows, runs)).text(".1f")))
    return markdown_table(("core", "seed", "all", *KINDS, "return"), lines, "ll")


def main(settings: Seat) -> None:
    """Train, drive and print both tables."""
    if settings.quick:
        settings = replace(settings, tracks="test-2", recovery_tracks="holdout-3")
    undisturbed, mishaps = driven(settings)
    print(f"\n{settings.tracks}, undisturbed:\n\n{undisturbed_table(undisturbed)}")
    print(f"\n{settings.recovery_tracks}, {MISHAP}, recovered in %:\n\n{recovery_table(mishaps)}")


if __name__ == "__main__":
    main(tyro.cli(Seat))
