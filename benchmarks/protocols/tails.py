"""Rare failures of drivers, and recoveries after mishaps.

The tracks are 1,000 that nothing was chosen on, and 200 with a mishap.

    python benchmarks/protocols/tails.py --out tails                    # every shipped driver, two tables
    python benchmarks/protocols/tails.py --out tails --drivers champion runs/mine

A mean over 100 tracks hides what happens once in 100 tracks. The first table is the undisturbed world on holdout-1000:
mean, standard deviation, 1st percentile, minimum, and how often a return lies under 900 and under 800. The second one
is `mishaps:1` on `holdout-200`: once in the episode the car is turned round, thrown beside the road or set spinning,
the same for every driver. Recovered means a whole second on the road in its direction. Finished evaluations are kept in
--out as JSON, one file for each driver and world, and the same command goes on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tyro
from scipy.stats import binomtest

import nac_drive as nd
from nac_drive.data_collection.trained_env import env_for
from nac_drive.envs import Control
from nac_drive.envs.perturbations.mishaps import KINDS, draw_mishaps
from nac_drive.envs.perturbations.stream import Stream
from nac_drive.evaluation.formulas import CAR_RACING
from nac_drive.evaluation.intervals import bootstrap
from nac_drive.evaluation.results import EpisodeResult
from nac_drive.parallel.processes import default_workers, worker_pool
from nac_drive.storage.write import write_atomically

LOST = 800.0
MISHAP = "mishaps:1"
WORST = 5


@dataclass(frozen=True)
class Tails:
    """Settings."""

    out: Path
    drivers: list[str] = field(default_factory=lambda: ["controller", "champion", "expert", "ppo-expert"])
    """Names, with the control of --controls, and folders, with their own."""
    controls: list[Control] = field(default_factory=lambda: ["continuous", "discrete"])
    tracks: str = "holdout-1000"
    recovery_tracks: str = "holdout-200"


def entries(settings: Tails) -> list[tuple[str, str, nd.EnvConfig | None]]:
    """Label, driver, and environment of every row."""
    named = [name for name in settings.drivers if not Path(name).is_dir()]
    rows: list[tuple[str, str, nd.EnvConfig | None]] = [
        (f"{name} {control}", name, env_for(nd.resolve_driver(name, nd.EnvConfig(control)), control))
        for control in settings.controls
        for name in named
    ]
    return rows + [(name, name, None) for name in settings.drivers if Path(name).is_dir()]


def rows_of(settings: Tails, label: str, driver: str, env: nd.EnvConfig | None, world: str) -> list[EpisodeResult]:
    """Drive the tracks of a world, unless they were driven."""
    file = settings.out / f"{label.replace(' ', '-').replace('/', '-')}-{world.split(':')[0] or 'undisturbed'}.json"
    if not file.exists():
        tracks = settings.recovery_tracks if world else settings.tracks
        with worker_pool(default_workers()) as pool:
            evaluation = nd.evaluate(driver, tracks, env=env, perturbation=world, pool=pool)
        write_atomically(file, json.dumps([row.to_dict() for row in evaluation.rows]).encode())
    return [EpisodeResult.from_dict(row) for row in json.loads(file.read_text())]


def kind_of(row: EpisodeResult) -> str:
    """Return the kind of the mishap of a row."""
    return draw_mishaps(Stream("mishaps").restart(row.seed))[0].kind


def mean_text(values: np.ndarray, digits: int = 1) -> str:
    return bootstrap(values[None]).text(f".{digits}f")


def share_text(hits: np.ndarray) -> str:
    """A percentage with Wilson's 95 % interval.

    Empty for no episodes.
    """
    if not len(hits):
        return ""
    interval = binomtest(int(hits.sum()), len(hits)).proportion_ci(method="wilson")
    return f"{100 * hits.mean():.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def main(settings: Tails) -> None:
    settings.out.mkdir(parents=True, exist_ok=True)
    print(f"{settings.tracks}, undisturbed:\n")
    print("| driver | return | sd | 1st percentile | minimum | under 900, % | under 800, % | "
          "crashes in 1,000 episodes | tracks lost the wrong way round |")  # fmt: skip
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    worst, unfinished = {}, {}
    for label, driver, env in entries(settings):
        rows = rows_of(settings, label, driver, env, "")
        returns = np.array([row.episode_return for row in rows])
        crashes, wrong = (np.array([getattr(row, name) for row in rows]) for name in ("crashes", "wrong_way"))
        print(
            f"| {label} | {mean_text(returns)} | {returns.std(ddof=1):.1f} | {np.percentile(returns, 1):.0f} | "
            f"{returns.min():.0f} | {share_text(returns < CAR_RACING.solved_return)} | {share_text(returns < LOST)} | "
            f"{1000 * crashes.mean():.0f} | {int((wrong > 2).sum())} |",
            flush=True,
        )
        broken = [row for row in rows if row.completion is not None and row.completion < 1]
        off_road = sum((row.off_road_events or 0) > 0 for row in broken)
        unfinished[label] = f"{len(broken)} episodes without all tiles, {off_road} of them after leaving the road"
        worst[label] = [(rows[i].seed, round(float(returns[i]))) for i in returns.argsort()[:WORST]]
    print(f"\n{settings.recovery_tracks}, {MISHAP}, recovered in % of all episodes and of each kind:\n")
    headings = ["driver", "all", *KINDS, "seconds the wrong way round", "return"]
    print(f"| {' | '.join(headings)} |\n|---|{(len(headings) - 1) * '---:|'}")
    for label, driver, env in entries(settings):
        rows = rows_of(settings, label, driver, env, MISHAP)
        recovered = {kind: np.array([row.recovered == 1 for row in rows if kind_of(row) == kind]) for kind in KINDS}
        wrong, returns = (np.array([getattr(row, name) for row in rows]) for name in ("wrong_way", "episode_return"))
        shares = [share_text(each) for each in (np.concatenate(list(recovered.values())), *recovered.values())]
        print(f"| {label} | {' | '.join(shares)} | {mean_text(wrong)} | {mean_text(returns)} |", flush=True)
    print("\nThe worst tracks:\n")
    for label, tracks in worst.items():
        print(f"- {label}: " + ", ".join(f"{seed} ({value})" for seed, value in tracks) + f"; {unfinished[label]}")


if __name__ == "__main__":
    main(tyro.cli(Tails))
