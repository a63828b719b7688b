"""The main job from end to end: a NAC driver learns from its expert by DAgger, races it, and leaves a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.experts import driver_name, resolve_driver
from nac_drive.data_collection.files import write_atomically
from nac_drive.data_collection.processes import Pool
from nac_drive.envs import track_seeds
from nac_drive.evaluation.evaluate import evaluate, save_evaluations
from nac_drive.evaluation.video import record_video, side_by_side
from nac_drive.leaderboard.figures import draw_figure
from nac_drive.leaderboard.tables import Entry, markdown_table, save_results
from nac_drive.policies import DriverConfig
from nac_drive.training.config import DaggerConfig, EvalConfig
from nac_drive.training.dagger import dagger
from nac_drive.training.run_folder import RunFolder

Report = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class DemoConfig:
    """Settings of the demo. The defaults fit into 12 minutes on two CPU cores."""

    expert: str = "controller"
    """Whose episodes are collected and who labels those of the student."""
    training: DaggerConfig = field(
        default_factory=lambda: DaggerConfig(
            driver=DriverConfig(core_args={"num_heads": 4}, residual=True, control="continuous"),
            validation=EvalConfig(validation_tracks="val-6"), initial_episodes=16, rounds=5, episodes=10,
        )
    )  # fmt: skip
    """Of the student."""
    tracks: str = "test-10"
    """Tracks of the race, unseen in training."""


def demo(
    config: DemoConfig, folder: Path, *, device: str, pool: Pool | None, report: Report = lambda job, row: None
) -> Path:
    """Do the whole job in `folder`, or go on where it was interrupted; returns the report.

    `report` is called with the name of the present job and its rows; jobs are `dagger` with the rows of `dagger`, the
    drivers' names with finished episodes (key `episode`), and `video`.
    """
    started = time.monotonic()
    name, expert_name = config.training.driver.core, driver_name(config.expert)
    run = folder / name
    best = dagger(
        config.training, run, expert=config.expert, device=device, resume=(run / "config.yaml").exists(), pool=pool,
        report=lambda row: report("dagger", row),
    )  # fmt: skip
    env, seeds = (
        replace(config.training.env, renderer="gymnasium"),
        track_seeds(config.tracks),
    )
    expert, driver = resolve_driver(config.expert, env), resolve_driver(str(best), env)
    baseline = evaluate(
        expert, seeds, name=expert_name, env=env, pool=pool,
        on_episode=lambda row: report(expert_name, {"episode": row, "tracks": len(seeds)}),
    )  # fmt: skip
    evaluation = evaluate(
        driver, seeds, name=name, env=env, expert=expert, baseline=baseline, pool=pool,
        on_episode=lambda row: report(name, {"episode": row, "tracks": len(seeds)}),
    )  # fmt: skip
    history = RunFolder.open(run).rows()
    entries = [
        Entry(baseline),
        Entry(
            evaluation,
            runs=1,
            parameters=sum(parameter.numel() for parameter in driver.parameters()),  # type: ignore[attr-defined]
            training_seconds=sum(row["seconds"] for row in history),
            history=tuple(history),
        ),
    ]
    save_evaluations(folder, [baseline, evaluation])
    save_results(folder, entries)
    draw_figure(folder / "figure.png", entries)
    videos = []
    for entry, path in ((expert, folder / f"{expert_name}.mp4"), (driver, folder / f"{name}.mp4")):
        if not path.exists():
            report("video", {"name": path.stem, "track": seeds[0]})
            record_video(path, entry, seeds[0], name=path.stem, env=env)
        videos.append(path)
    side_by_side(folder / "side_by_side.mp4", videos)
    minutes = (time.monotonic() - started) / 60
    info = Demonstrations.open(run / "dataset").info()
    text = _report_text(config, folder, entries, info, minutes)
    write_atomically(folder / "report.md", text.encode())
    return folder / "report.md"


def _report_text(
    config: DemoConfig, folder: Path, entries: Sequence[Entry], info: dict[str, Any], minutes: float
) -> str:
    training, expert = config.training, driver_name(config.expert)
    return f"""# Demo report

The expert, `{expert}`, drove {training.initial_episodes} episodes with disturbances. Then it and a `{training.driver.core}` driver
took turns at the wheel for {training.rounds} rounds of {training.episodes} episodes; the expert said at every frame what to
do, and the driver learned from all episodes so far (DAgger, {info["frames"]:,} frames). Both then drove the tracks
`{config.tracks}`, which the driver had not seen: unmodified CarRacing-v3, native reward, deterministic, 1000 frames at
most.

{markdown_table(entries)}
Baseline: {expert}, on the same tracks. The columns are explained in docs/metrics.md.

![Returns on every track, and validation after each round](figure.png)

Video of the first track: [side_by_side.mp4](side_by_side.mp4), {expert} left, {training.driver.core} right.

This took {minutes:.1f} minutes. Drive on:

    nac-drive watch --driver {folder}/{training.driver.core} --track 900007 --video episode.mp4
    nac-drive evaluate --driver {folder}/{training.driver.core} --tracks test-20
"""
