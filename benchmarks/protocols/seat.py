"""Train cores from the driver's seat, and drive them.

The method is DAgger.

    python benchmarks/protocols/seat.py --out runs/seat
    python benchmarks/protocols/seat.py --out runs/seat --cores ncp cfc --seeds 0 1
    python benchmarks/protocols/seat.py --out rehearsal --quick --cores nac-exact --seeds 0

The expert labels from the true state, the drivers see the view from the seat. LSTM and cnn learn end to end. All other
cores learn on the frozen encoder of the LSTM with the same seed, which is trained first. Every run drives --tracks
undisturbed and --recovery-tracks under `mishaps:1` (docs/tails.md). The tables of docs/seat_results.md have one row a
core, with 95 % intervals over runs and tracks.

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
from nac_drive.policies.cores.rates import USUAL_RATE

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
    learning_rate: float = USUAL_RATE
    """Adam's rate of cores and action heads; encoders learn at 0.001."""
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
    encoder = None if frozen or settings.learning_rate == USUAL_RATE else USUAL_RATE
    training = nd.DaggerConfig(
        nd.DriverConfig(control="continuous"),
        optim=nd.OptimConfig(settings.learning_rate, encoder, freeze_encoder_from=frozen),
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


def _by_core(rows: Rows) -> dict[str, list[Run]]:
    """Return the runs of every core, the best core first."""
    runs = {core: [run for run in rows if run.core == core] for core in dict.fromkeys(run.core for run in rows)}
    return dict(sorted(runs.items(), key=lambda item: -_grid(rows, item[1]).mean()))


def _grid(rows: Rows, runs: list[Run]) -> np.ndarray:
    """Return the returns of runs, (runs, tracks)."""
    return np.array([_returns(rows[run]) for run in runs])


def _recovered(mishaps: Rows, runs: list[Run]) -> np.ndarray:
    """Return whether runs recovered, (runs, tracks)."""
    return np.array([[row.recovered == 1 for row in mishaps[run]] for run in runs])


def _percentage(hits: np.ndarray) -> str:
    """Return a percentage of (runs, tracks) with its interval over both.

    It is Wilson's where there is one run, or nothing to resample: every episode hits, or none.
    """
    if len(hits) == 1 or hits.all() or not hits.any():
        return share_text(hits[0])
    return bootstrap(100.0 * hits).text(".1f")


def ranking(undisturbed: Rows, mishaps: Rows) -> str:
    """Return a table of cores, undisturbed and after mishaps."""
    headings = (
        "core", "return", "of each seed", "minimum", f"under {LOST:.0f}, %", "under 900, %", f"from {ENCODER}",
        "recovered, %", "return after a mishap",
    )  # fmt: skip
    lines = []
    for core, runs in _by_core(undisturbed).items():
        grid = _grid(undisturbed, runs)
        seeds = {run.seed for run in runs}
        baseline = _grid(undisturbed, [run for run in undisturbed if run.core == ENCODER and run.seed in seeds])
        paired = core != ENCODER and baseline.shape == grid.shape
        lines.append((
            core, bootstrap(grid).text(".1f"), ", ".join(f"{mean:.0f}" for mean in grid.mean(1)), f"{grid.min():.0f}",
            _percentage(grid < LOST), _percentage(grid < CAR_RACING.solved_return),
            bootstrap(grid, baseline).text("+.1f") if paired else "",
            _percentage(_recovered(mishaps, runs)), bootstrap(_grid(mishaps, runs)).text(".1f"),
        ))  # fmt: skip
    return markdown_table(headings, lines, "l")


def recovery_table(mishaps: Rows) -> str:
    """Return how often cores recover from each mishap."""
    lines = []
    for core, runs in _by_core(mishaps).items():
        recovered = _recovered(mishaps, runs)
        kinds = np.array([kind_of(row) for row in mishaps[runs[0]]])  # of a track, whoever drives
        lines.append((core, *(_percentage(recovered[:, kinds == kind]) for kind in KINDS)))
    return markdown_table(("core", *KINDS), lines, "l")


def main(settings: Seat) -> None:
    """Train, drive and print both tables."""
    if settings.quick:
        settings = replace(settings, tracks="test-2", recovery_tracks="holdout-3")
    undisturbed, mishaps = driven(settings)
    print(f"\n{settings.tracks} undisturbed, {settings.recovery_tracks} under {MISHAP}:")
    print(f"\n{ranking(undisturbed, mishaps)}")
    print(f"\nRecovered from each kind of mishap, %:\n\n{recovery_table(mishaps)}")


if __name__ == "__main__":
    main(tyro.cli(Seat))
