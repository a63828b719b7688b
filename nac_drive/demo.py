"""The main job from end to end: an expert of PPO, a NAC driver that DAgger trains, LSTM and CfC on the same episodes.

All of them drive the same test tracks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nac_drive.analysis.page import save_episode_page
from nac_drive.analysis.recording import record
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.drivers import driver_name, env_for, resolve_driver
from nac_drive.envs import EnvConfig, Policy, make_env, track_seeds
from nac_drive.evaluation.evaluate import Evaluation, evaluate, save_evaluations
from nac_drive.evaluation.statistics import summarise
from nac_drive.evaluation.video import record_video, side_by_side
from nac_drive.leaderboard.compare import compare, folder_name
from nac_drive.leaderboard.figures import draw_figure
from nac_drive.leaderboard.page import conditions, save_report
from nac_drive.leaderboard.tables import Entry, legend, markdown_table, save_results
from nac_drive.parallel.processes import Pool, number_of_workers
from nac_drive.policies import DriverConfig
from nac_drive.storage.figure import try_to_draw
from nac_drive.storage.lock import LOCK, locked
from nac_drive.storage.names import markdown, shell_path
from nac_drive.storage.write import remove_leftovers, write_atomically
from nac_drive.training.config import DaggerConfig, OptimConfig, TrainConfig
from nac_drive.training.dagger import dagger
from nac_drive.training.distributed import choose_device
from nac_drive.training.ppo.config import PPOConfig
from nac_drive.training.ppo.run import ppo
from nac_drive.training.run_folder import RunFolder

Report = Callable[[str, dict[str, Any]], None]

TITLE = "Demo report"
EPISODE = "episode.html"
CAPTION = "Left: returns on the test tracks, mean and 95 % interval. Right: validation after every round of DAgger."
_EXPERT, _BASELINES = "ppo-expert", "baselines"
"""Folders of the run of `ppo`, under the name of the shipped expert, and of the comparison of the baselines."""


def _training() -> DaggerConfig:
    shipped = PPOConfig().driver
    return DaggerConfig(
        driver=DriverConfig(
            core_args={"num_heads": 4}, encoder=shipped.encoder, d_model=shipped.d_model, control="continuous"
        ),
        optim=OptimConfig(freeze_encoder_from=_EXPERT), initial_episodes=16, rounds=4, episodes=10, initial_epochs=12,
        epochs=4,
    )  # fmt: skip


@dataclass(frozen=True)
class DemoConfig:
    """Settings of the demo. The defaults fit into 12 minutes on two CPU cores."""

    expert: str = _EXPERT
    """Driver of the first episodes, which labels all of them, see `resolve_driver`."""
    training: DaggerConfig = field(default_factory=_training)
    """Training of the learner."""
    baselines: tuple[str, ...] = ("lstm", "cfc")
    """Cores that are trained on the episodes of the learner, with its encoder and its data settings; at least one."""
    baseline_epochs: int = 15
    """Epochs of the baselines: about as many frames as in all rounds of the learner."""
    tracks: str = "test-10"
    """Tracks of the evaluation, which the training does not use."""
    ppo: PPOConfig | None = None
    """Settings of an expert that PPO trains first, in place of `expert`; its encoder is frozen in all learners."""

    def check(self) -> None:
        """Check the settings.

        Raises:
            FileNotFoundError: There is no such expert.
            ValueError: The settings cannot be trained with.
        """
        self.training.check()
        if self.ppo is None:
            resolve_driver(self.expert, self.training.env)
        else:
            self.ppo.check()
        track_seeds(self.tracks)
        names = [_EXPERT if self.ppo else driver_name(self.expert), self.training.driver.core, *self.baselines]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"expert, learner and baselines must have different names, got {twice[0]!r} twice; rename the expert's "
                "folder, or choose other baselines."
            )

    def with_seed(self, seed: int) -> DemoConfig:
        """The same demo with another seed of all its trainings."""
        expert = self.ppo and replace(self.ppo, seed=seed)
        return replace(self, training=replace(self.training, seed=seed), ppo=expert)

    def baseline_training(self) -> TrainConfig:
        """Settings of the baselines; the core is replaced by each of them."""
        learner = self.training
        return TrainConfig(
            driver=replace(learner.driver, core_args={}), data=learner.data, optim=learner.optim,
            validation=learner.validation, seed=learner.seed, epochs=self.baseline_epochs, validation_fraction=0,
        )  # fmt: skip


def from_scratch() -> DemoConfig:
    """The demo whose expert PPO trains first, from random weights: about an hour on one core."""
    driver = replace(PPOConfig().driver, control="continuous")
    return DemoConfig(ppo=PPOConfig(driver=driver, total_timesteps=6_000_000, validate_every=250_000))


def demo(
    config: DemoConfig,
    folder: str | os.PathLike[str],
    *,
    device: str,
    pool: Pool | None,
    workers: int = 1,
    report: Report = lambda job, row: None,
) -> Path:
    """Train a driver by DAgger and others on its episodes, evaluate all on the same tracks, and write a report.

    Args:
        config: The settings.
        folder: The folder of the results; an interrupted demo is resumed.
        device: `auto`, `cpu` or `cuda`.
        pool: Processes, see `worker_pool`; None for none.
        workers: Processes of the baselines, each of which trains and drives in one; 0 for one per core.
        report: Called with the name of the present job and its rows: `ppo`, `dagger` and `compare` with the rows of
            these functions (those of `compare` with the key `run`), the name of the learner with finished episodes (key
            `episode`), and `video` with name, frame and frames.

    Returns:
        The report, report.md; report.html beside it is the same as a page.

    Raises:
        FileExistsError: If `folder` holds anything but a demo.
        ValueError: For a bad setting, if another process holds `folder`, and if a baseline fails.
    """
    folder = Path(folder)
    config.check()
    choose_device(device)
    number_of_workers(workers)
    _require_ours(folder, (_EXPERT, config.training.driver.core, _BASELINES))
    with locked(folder):
        return _demo(config, folder, device, pool, workers, report)


def _require_ours(folder: Path, runs: Sequence[str]) -> None:
    """Raise FileExistsError if `folder` holds anything but a demo."""
    if not folder.is_dir() or any((folder / run / "config.yaml").exists() for run in runs):
        return
    if others := sorted({path.name for path in folder.iterdir()} - {LOCK, *runs}):
        raise FileExistsError(f"{folder} holds {others[0]} and no demo; choose another folder.")


def _demo(config: DemoConfig, folder: Path, device: str, pool: Pool | None, workers: int, report: Report) -> Path:
    started = time.monotonic()
    for file in ("rows.jsonl", "summary.json", "table.md", "results.json", "report.html", "report.md", EPISODE):
        remove_leftovers(folder / file)
    if config.ppo is not None:
        config = _train_expert(config, folder / _EXPERT, report)
    name, expert_name = config.training.driver.core, driver_name(config.expert)
    run = folder / name
    best = dagger(
        config.training, run, expert=config.expert, device=device, resume=_begun(run), pool=pool,
        progress=lambda event: report("dagger", {"event": event}),
    )  # fmt: skip
    expert, *others = _train_baselines(config, folder, run / "dataset", device, workers, report)
    baseline = _against(None, expert.evaluation)
    env, tracks = config.training.env, track_seeds(config.tracks)
    folders = {expert_name: config.expert, name: best}
    folders |= {each.summary.driver: _baseline_run(config, folder, each.summary.driver) for each in others}
    drivers: dict[str, Any] = {driver: resolve_driver(path, env) for driver, path in folders.items()}
    learner = evaluate(
        drivers[name], tracks, name=name, env=env, expert=drivers[expert_name], baseline=baseline, pool=pool,
        on_episode=lambda row: report(name, {"episode": row, "tracks": len(tracks)}),
    )  # fmt: skip
    history = RunFolder.open(run).rows()
    entries = [
        Entry(baseline),
        Entry(
            learner,
            runs=1,
            parameters=_count(drivers[name]),
            core_parameters=_count(drivers[name].core),
            neurons=drivers[name].core.neurons,
            synapses=drivers[name].core.synapses,
            training_seconds=sum(row["seconds"] for row in history),
            history=tuple(history),
        ),
        *(replace(each, evaluation=_against(baseline, each.evaluation)) for each in others),
    ]
    save_evaluations(folder, [entry.evaluation for entry in entries])
    save_results(folder, entries)
    figure = "figure.png" if try_to_draw(draw_figure, folder / "figure.png", entries) else None
    _videos(folder, drivers, tracks[0], env, report)
    _episode_page(folder / EPISODE, {name: drivers[name], expert_name: drivers[expert_name]}, tracks[0], env, report)
    minutes = (time.monotonic() - started) / 60
    protocol = _protocol(config, Demonstrations.open(run / "dataset").info(), minutes)
    other = _baseline_run(config, folder, config.baselines[0])
    commands, caption = _commands(run, other, tracks[0]), _video_caption(list(drivers), tracks[0])
    seen = f"{name} and {expert_name} on track {tracks[0]}."
    save_report(
        folder, entries, title=TITLE, protocol=protocol, figure=figure, caption=CAPTION, video="side_by_side.mp4",
        video_caption=caption, episode=EPISODE, episode_caption=seen,
        commands=commands,
    )  # fmt: skip
    write_atomically(folder / "report.md", _markdown(entries, protocol, figure, caption, seen, commands).encode())
    return folder / "report.md"


def _count(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _begun(run: Path) -> bool:
    return (run / "config.yaml").exists()


def _train_expert(config: DemoConfig, run: Path, report: Report) -> DemoConfig:
    """Train the expert by PPO; return the config with it as the expert and its encoder in the learners."""
    assert config.ppo is not None
    ppo(config.ppo, run, resume=_begun(run), progress=lambda event: report("ppo", {"event": event}))
    optim = replace(config.training.optim, freeze_encoder_from=str(run))
    return replace(config, expert=str(run), training=replace(config.training, optim=optim))


def _train_baselines(
    config: DemoConfig, folder: Path, dataset: Path, device: str, workers: int, report: Report
) -> list[Entry]:
    """Train the baselines on the learner's episodes; evaluate the expert and them, in this order."""
    comparison = compare(
        config.baselines, dataset, config.tracks, folder / _BASELINES, config=config.baseline_training(),
        expert=config.expert, device=device, resume=_begun(folder / _BASELINES), workers=workers,
        report=lambda name, row: report("compare", {"run": name, **row}),
    )  # fmt: skip
    if comparison.failures:
        name, reason = next(iter(comparison.failures.items()))
        raise ValueError(f"baseline {name} failed: {reason}; run the demo again to go on.")
    return comparison.entries


def _baseline_run(config: DemoConfig, folder: Path, core: str) -> Path:
    return folder / _BASELINES / f"{folder_name(core)}-{config.training.seed}"


def _against(baseline: Evaluation | None, evaluation: Evaluation) -> Evaluation:
    """The same rows, with their differences from `baseline`, or with none."""
    summary = summarise(evaluation.rows, baseline.rows if baseline else None)
    return replace(evaluation, summary=summary.with_metrics(latency_ms=evaluation.summary.latency_ms))


def _videos(folder: Path, drivers: Mapping[str, Policy], track: int, env: EnvConfig, report: Report) -> None:
    """Write NAME.mp4 of every driver, and all of them in side_by_side.mp4."""
    videos = [folder / f"{name}.mp4" for name in drivers]
    for path, driver in zip(videos, drivers.values(), strict=True):
        if not path.exists():
            row = {"name": path.stem, "frames": env.max_steps}
            record_video(
                path, driver, track, name=path.stem, env=replace(env, mask_bar=env_for(driver).mask_bar),
                on_step=lambda step, row=row: report("video", {**row, "frame": step.index + 1}),
            )  # fmt: skip
    report("video", {"name": "side by side", "frames": 1, "frame": 0})
    side_by_side(folder / "side_by_side.mp4", videos, columns=2)
    report("video", {"name": "side by side", "frames": 1, "frame": 1})


def _episode_page(path: Path, drivers: Mapping[str, Policy], track: int, env: EnvConfig, report: Report) -> None:
    """Write the page of an episode of each driver with everything recorded."""
    if path.exists():
        return
    recordings = []
    for name, driver in drivers.items():
        row = {"name": f"{name}, everything recorded", "frames": env.max_steps}
        with closing(make_env(replace(env, mask_bar=env_for(driver).mask_bar))) as simulator:
            recordings.append(
                record(
                    simulator, driver, track, name=name, perturbation=env.perturb or "", spec=env.spec,
                    on_step=lambda step, row=row: report("video", {**row, "frame": step.index + 1}),
                )
            )  # fmt: skip
    save_episode_page(path, recordings, f"{' and '.join(drivers)} on track {track}")


def _protocol(config: DemoConfig, dataset: dict[str, Any], minutes: float) -> str:
    training, expert, learner = config.training, driver_name(config.expert), config.training.driver.core
    measured = conditions("ignore", max_steps=training.max_steps)
    began = ""
    if config.ppo is not None:
        began = f"PPO trained the expert from random weights in {config.ppo.total_timesteps:,} frames. "
    encoder = ""
    if source := training.optim.freeze_encoder_from:
        encoder = f"The encoder is that of {driver_name(source)}, frozen; the rest began with random weights. "
    return (
        f"{began}The expert ({expert}) drove {training.initial_episodes} episodes with action noise. In "
        f"{training.rounds} rounds of {training.episodes} episodes, a mixture policy of the expert and the learner "
        f"({learner}) drove. The expert labelled every frame, and the learner was trained on all episodes so far "
        f"(DAgger, {dataset['frames']:,} frames). Then {' and '.join(config.baselines)} were trained on the same "
        f"episodes by behaviour cloning, in {config.baseline_epochs} epochs; {learner} drove most of them, which is to "
        f"its advantage. {encoder}All of them then drove the tracks {config.tracks}, which no training had used. One "
        f"run of each. {measured} The demo took {minutes:.1f} minutes."
    )


def _video_caption(drivers: Sequence[str], track: int) -> str:
    return f"Track {track}, line by line: {', '.join(drivers)}."


def _commands(run: Path, baseline: Path, track: int) -> str:
    return (
        f"nac-drive watch --driver {shell_path(run)} --track {track} --video episode.mp4\n"
        f"nac-drive inspect --compare {shell_path(run)} {shell_path(baseline)} --track {track} --out seen\n"
        f"nac-drive stress --drivers {shell_path(run)} {shell_path(baseline)} --perturb frame-drop:zero --out stress"
    )


def _markdown(
    entries: Sequence[Entry], protocol: str, figure: str | None, video_caption: str, episode_caption: str, commands: str
) -> str:
    indented = commands.replace("\n", "\n    ")
    image = f"\n![{CAPTION}]({figure})\n" if figure else ""
    return f"""# {TITLE}

{markdown(protocol)}

{markdown_table(entries)}
{markdown(legend(entries))} docs/metrics.md explains the columns.
{image}
Video: [side_by_side.mp4](side_by_side.mp4). {markdown(video_caption)}

Frame by frame: [{EPISODE}]({EPISODE}). {markdown(episode_caption)}

Next steps:

    {indented}
"""
