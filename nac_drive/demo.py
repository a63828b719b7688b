"""The main job from end to end: a NAC driver learns from its teacher by DAgger, races it, and leaves a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_collection.dataset import Demonstrations
from data_collection.drivers import driver_name, resolve_driver
from data_collection.files import write_atomically
from data_collection.processes import Pool
from data_collection.run_folder import RunFolder
from envs import EnvConfig, track_seeds
from nac_drive.dagger import DaggerConfig, dagger
from nac_drive.evaluation import evaluate, save_evaluations
from nac_drive.report import Contestant, draw_figure, markdown_table, save_results
from nac_drive.video import record_video, side_by_side

Report = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class DemoConfig:
    """Settings of the demo. The defaults fit into 12 minutes on two CPU cores."""

    teacher: str = "controller"
    """Whose laps are collected and who labels those of the student."""
    training: DaggerConfig = field(
        default_factory=lambda: DaggerConfig(
            core="nac-exact", core_args={"num_heads": 4}, control="continuous", first_laps=16, rounds=5, laps=10,
            validation_tracks="val-6",
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
    name, teacher_name = config.training.core, driver_name(config.teacher)
    run = folder / name
    best = dagger(
        config.training, run, teacher=config.teacher, device=device, resume=(run / "config.yaml").exists(), pool=pool,
        report=lambda row: report("dagger", row),
    )  # fmt: skip
    env, seeds = (
        EnvConfig(control=config.training.control, mask_bar=config.training.mask_bar),
        track_seeds(config.tracks),
    )
    teacher, driver = resolve_driver(config.teacher, env), resolve_driver(str(best), env)
    baseline = evaluate(
        teacher, seeds, name=teacher_name, env=env, pool=pool,
        on_episode=lambda row: report(teacher_name, {"episode": row, "tracks": len(seeds)}),
    )  # fmt: skip
    evaluation = evaluate(
        driver, seeds, name=name, env=env, advisor=teacher, baseline=baseline, pool=pool,
        on_episode=lambda row: report(name, {"episode": row, "tracks": len(seeds)}),
    )  # fmt: skip
    history = RunFolder.open(run).rows()
    contestants = [
        Contestant(baseline),
        Contestant(
            evaluation,
            trainings=1,
            parameters=sum(parameter.numel() for parameter in driver.parameters()),  # type: ignore[attr-defined]
            training_seconds=sum(row["seconds"] for row in history),
            history=tuple(history),
        ),
    ]
    save_evaluations(folder, [baseline, evaluation])
    save_results(folder, contestants)
    draw_figure(folder / "figure.png", contestants)
    videos = []
    for contestant, path in ((teacher, folder / f"{teacher_name}.mp4"), (driver, folder / f"{name}.mp4")):
        if not path.exists():
            report("video", {"name": path.stem, "track": seeds[0]})
            record_video(path, contestant, seeds[0], name=path.stem, env=env)
        videos.append(path)
    side_by_side(folder / "side_by_side.mp4", videos)
    minutes = (time.monotonic() - started) / 60
    info = Demonstrations.open(run / "dataset").info()
    text = _report_text(config, folder, contestants, info, minutes)
    write_atomically(folder / "report.md", text.encode())
    return folder / "report.md"


def _report_text(
    config: DemoConfig, folder: Path, contestants: Sequence[Contestant], info: dict[str, Any], minutes: float
) -> str:
    training, teacher = config.training, driver_name(config.teacher)
    return f"""# Demo report

The teacher, `{teacher}`, drove {training.first_laps} laps with disturbances. Then it and a `{training.core}` driver
took turns at the wheel for {training.rounds} rounds of {training.laps} laps; the teacher said at every frame what to
do, and the driver learned from all laps so far (DAgger, {info["frames"]:,} frames). Both then drove the tracks
`{config.tracks}`, which the driver had not seen: unmodified CarRacing-v3, native reward, deterministic, 1000 frames at
most.

{markdown_table(contestants)}
Baseline: {teacher}, on the same tracks. The columns are explained in docs/metrics.md.

![Returns on every track, and validation after each round](figure.png)

Video of the first track: [side_by_side.mp4](side_by_side.mp4), {teacher} left, {training.core} right.

This took {minutes:.1f} minutes. Drive on:

    nac-drive watch --driver {folder}/{training.core} --track 900007 --video lap.mp4
    nac-drive evaluate --driver {folder}/{training.core} --tracks test-20
"""
