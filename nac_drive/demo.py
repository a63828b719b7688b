"""The main job from end to end: collect with the shipped expert, clone two drivers, race them, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_collection.drivers import resolve_driver
from data_collection.files import write_atomically
from data_collection.noise import NoiseConfig
from data_collection.processes import Pool
from data_collection.record import record
from envs import SPLITS, EnvConfig, track_seeds
from nac_drive.cloning import CloneConfig
from nac_drive.compare import compare
from nac_drive.report import Contestant, markdown_table
from nac_drive.video import record_video, side_by_side

Report = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class DemoConfig:
    """Settings of the demo. The defaults fit into 12 minutes on two CPU cores."""

    laps: int = 26
    """Laps that the expert demonstrates."""
    drivers: tuple[str, ...] = ("nac-exact", "lstm")
    """Cores of the drivers that are cloned."""
    tracks: str = "test-5"
    """Tracks of the race, unseen by the expert's training and by the cloning."""
    noise: float = 0.1
    """Share of demonstrated frames with a random executed action (the label stays the expert's)."""
    noise_hold: float = 4.0
    """Mean number of frames that one random action is held."""
    epochs: int = 18
    """Passes over the demonstrations."""
    learning_rate: float = 1e-3
    """Ten times the paper's: the demo trains for minutes, not for 100 epochs."""


def demo(
    config: DemoConfig, folder: Path, *, seed: int, device: str, workers: int, pool: Pool | None, report: Report
) -> Path:
    """Do the whole job in `folder`, or go on where it was interrupted; returns the report.

    `report` is called with the name of the present job and its rows, as in `compare`; jobs are `collect`, the drivers'
    names and `video`.
    """
    started = time.monotonic()
    expert = resolve_driver("expert", EnvConfig())  # fails early, before minutes are spent
    dataset = record(
        folder / "demonstrations",
        "expert",
        env=EnvConfig(),
        seeds=list(SPLITS["train"][-config.laps :]),
        noise=NoiseConfig(config.noise, config.noise_hold),
        seed=seed,
        workers=workers,
        resume=(folder / "demonstrations").exists(),
        on_episode=lambda row: report("collect", {"laps": config.laps, **row}),
    )
    seeds = track_seeds(config.tracks)
    contestants = compare(
        config.drivers,
        dataset,
        seeds,
        folder / "comparison",
        config=CloneConfig(
            epochs=config.epochs, learning_rate=config.learning_rate, mirror=True, validate_every=6,
            validation_tracks="val-6", seed=seed,
        ),
        device=device,
        resume=True,
        pool=pool,
        report=report,
    )  # fmt: skip
    videos = []
    track = seeds[0]
    for name in ("expert", *config.drivers):
        path = folder / f"{name}.mp4"
        if not path.exists():
            report("video", {"name": name, "track": track})
            driver = expert if name == "expert" else resolve_driver(str(folder / "comparison" / name), EnvConfig())
            record_video(path, driver, track, name=name)
        videos.append(path)
    side_by_side(folder / "side_by_side.mp4", videos)
    minutes = (time.monotonic() - started) / 60
    text = _report_text(config, folder, contestants, dataset.info(), track, minutes)
    write_atomically(folder / "report.md", text.encode())
    return folder / "report.md"


def _report_text(
    config: DemoConfig,
    folder: Path,
    contestants: Sequence[Contestant],
    info: dict[str, Any],
    track: int,
    minutes: float,
) -> str:
    return f"""# Demo report

The shipped PPO expert drove {info["episodes"]} laps ({info["frames"]:,} frames, {100 * info["disturbed"]:.0f} % of them
with a disturbed action, mean return {info["mean_return"]:.0f}). {" and ".join(config.drivers)} learned its actions from
them in {config.epochs} epochs and then drove the tracks `{config.tracks}`, which neither they nor the expert had seen:
unmodified CarRacing-v3, native reward, deterministic, 1000-frame limit.

{markdown_table(contestants)}
Baseline: expert, on the same tracks. The columns are explained in docs/metrics.md.

![Returns and learning curves](comparison/figure.png)

Video of track {track}: [side_by_side.mp4](side_by_side.mp4), from left to right expert, {", ".join(config.drivers)}.

This took {minutes:.1f} minutes. Drive on:

    nac-drive watch --driver {folder}/comparison/{config.drivers[0]} --track 900007 --video lap.mp4
    nac-drive evaluate --driver {folder}/comparison/{config.drivers[0]} --tracks test-20
"""
