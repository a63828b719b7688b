"""The main job from end to end: a NAC driver learns from its expert by DAgger, and both drive the same test tracks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.experts import driver_name, resolve_driver
from nac_drive.data_collection.processes import Pool
from nac_drive.envs import Driver, EnvConfig, track_seeds
from nac_drive.evaluation.evaluate import evaluate, save_evaluations
from nac_drive.evaluation.video import record_video, side_by_side
from nac_drive.leaderboard.figures import draw_figure
from nac_drive.leaderboard.page import conditions, save_report
from nac_drive.leaderboard.tables import Entry, legend, markdown_table, save_results
from nac_drive.policies import DriverConfig
from nac_drive.storage.lock import LOCK, locked
from nac_drive.storage.write import remove_leftovers, write_atomically
from nac_drive.training.config import DaggerConfig, EvalConfig, OptimConfig
from nac_drive.training.dagger import dagger
from nac_drive.training.distributed import choose_device
from nac_drive.training.run_folder import RunFolder

Report = Callable[[str, dict[str, Any]], None]

TITLE = "Demo report"
CAPTION = "Left: returns on the test tracks, mean and 95 % interval. Right: validation after every round of DAgger."


@dataclass(frozen=True)
class DemoConfig:
    """Settings of the demo. The defaults fit into 12 minutes on two CPU cores."""

    expert: str = "expert"
    """Driver of the first episodes, which labels all of them, see `resolve_driver`."""
    training: DaggerConfig = field(
        default_factory=lambda: DaggerConfig(
            driver=DriverConfig(core_args={"num_heads": 4}, control="continuous"),
            optim=OptimConfig(freeze_encoder_from="expert"), validation=EvalConfig(validation_tracks="val-6"),
            initial_episodes=16, rounds=4, episodes=10, initial_epochs=12, epochs=4,
        )
    )  # fmt: skip
    """Training of the learner."""
    tracks: str = "test-10"
    """Tracks of the evaluation, which the training does not use."""


def demo(
    config: DemoConfig,
    folder: str | os.PathLike[str],
    *,
    device: str,
    pool: Pool | None,
    report: Report = lambda job, row: None,
) -> Path:
    """Train a driver by DAgger, evaluate it and its expert on the same tracks, and write a report.

    Args:
        config: The settings.
        folder: The folder of the results; an interrupted demo is resumed.
        device: `auto`, `cpu` or `cuda`.
        pool: Processes, see `worker_pool`; None for none.
        report: Called with the name of the present job and its rows: `dagger` with the rows of `dagger`, the name of
            each driver with finished episodes (key `episode`), and `video` with name, frame and frames.

    Returns:
        The report, report.md; report.html beside it is the same as a page.

    Raises:
        FileExistsError: If `folder` holds anything but a demo.
        ValueError: For a bad setting, and if another process holds `folder`.
    """
    folder = Path(folder)
    config.training.check()
    choose_device(device)
    resolve_driver(config.expert, config.training.env)
    track_seeds(config.tracks)
    _require_ours(folder, config.training.driver.core)
    with locked(folder):
        return _demo(config, folder, device, pool, report)


def _require_ours(folder: Path, run: str) -> None:
    """Raise FileExistsError if `folder` holds anything but a demo."""
    if not folder.is_dir() or (folder / run / "config.yaml").exists():
        return
    if others := sorted({path.name for path in folder.iterdir()} - {LOCK, run}):
        raise FileExistsError(f"{folder} holds {others[0]} and no demo; choose another folder.")


def _demo(config: DemoConfig, folder: Path, device: str, pool: Pool | None, report: Report) -> Path:
    started = time.monotonic()
    for file in ("rows.jsonl", "summary.json", "table.md", "results.json", "report.html", "report.md"):
        remove_leftovers(folder / file)
    name, expert_name = config.training.driver.core, driver_name(config.expert)
    run = folder / name
    best = dagger(
        config.training, run, expert=config.expert, device=device, resume=(run / "config.yaml").exists(), pool=pool,
        report=lambda row: report("dagger", row),
    )  # fmt: skip
    env, seeds = replace(config.training.env, renderer="gymnasium"), track_seeds(config.tracks)
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
    _videos(folder, {expert_name: expert, name: driver}, seeds[0], env, report)
    minutes = (time.monotonic() - started) / 60
    protocol = _protocol(config, Demonstrations.open(run / "dataset").info(), minutes)
    commands = _commands(folder / name, seeds[0])
    save_report(
        folder, entries, title=TITLE, protocol=protocol, caption=CAPTION, video="side_by_side.mp4",
        video_caption=_video_caption(expert_name, name, seeds[0]), commands=commands,
    )  # fmt: skip
    write_atomically(folder / "report.md", _markdown(entries, protocol, seeds[0], commands).encode())
    return folder / "report.md"


def _videos(folder: Path, drivers: Mapping[str, Driver], track: int, env: EnvConfig, report: Report) -> None:
    """Write NAME.mp4 of every driver, and all of them in side_by_side.mp4."""
    videos = [folder / f"{name}.mp4" for name in drivers]
    for path, driver in zip(videos, drivers.values(), strict=True):
        if not path.exists():
            row = {"name": path.stem, "frames": env.max_steps}
            record_video(
                path, driver, track, name=path.stem, env=env,
                on_step=lambda step, row=row: report("video", {**row, "frame": step.index + 1}),
            )  # fmt: skip
    report("video", {"name": "side by side", "frames": 1, "frame": 0})
    side_by_side(folder / "side_by_side.mp4", videos)
    report("video", {"name": "side by side", "frames": 1, "frame": 1})


def _protocol(config: DemoConfig, dataset: dict[str, Any], minutes: float) -> str:
    training, expert, learner = config.training, driver_name(config.expert), config.training.driver.core
    measured = conditions("ignore", "gymnasium", max_steps=training.max_steps)
    encoder = ""
    if source := training.optim.freeze_encoder_from:
        encoder = f"The encoder is that of the shipped driver ({source}), frozen; the rest began with random weights. "
    return (
        f"The expert ({expert}) drove {training.initial_episodes} episodes with action noise. In {training.rounds} "
        f"rounds of {training.episodes} episodes, a mixture policy of the expert and the learner ({learner}) drove. "
        "The expert labelled every frame, and the learner was trained on all episodes so far (DAgger, "
        f"{dataset['frames']:,} frames). {encoder}Expert and learner then drove the tracks {config.tracks}, which the "
        f"training had not used. {measured} The demo took {minutes:.1f} minutes."
    )


def _video_caption(expert: str, learner: str, track: int) -> str:
    return f"Track {track}: {expert} left, {learner} right."


def _commands(run: Path, track: int) -> str:
    return (
        f"nac-drive watch --driver {run} --track {track} --video episode.mp4\n"
        f"nac-drive evaluate --driver {run} --tracks test-20"
    )


def _markdown(entries: Sequence[Entry], protocol: str, track: int, commands: str) -> str:
    expert, learner = (entry.summary.driver for entry in entries)
    indented = commands.replace("\n", "\n    ")
    return f"""# {TITLE}

{protocol}

{markdown_table(entries)}
{legend(entries)} docs/metrics.md explains the columns.

![{CAPTION}](figure.png)

Video: [side_by_side.mp4](side_by_side.mp4). {_video_caption(expert, learner, track)}

Next steps:

    {indented}
"""
