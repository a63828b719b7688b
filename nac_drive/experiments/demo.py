"""The main job from end to end: an expert of PPO, a NAC driver that DAgger trains, LSTM and CfC on the same episodes.

All of them drive the same test tracks. Then cores with and without memory race where memory may pay.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from nac_drive.analysis.page import save_episode_page
from nac_drive.analysis.recording import record
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.drivers import driver_hash, driver_name, resolve_driver
from nac_drive.data_collection.trained_env import env_seen_by
from nac_drive.envs import EnvConfig, Policy, make_env, track_seeds
from nac_drive.evaluation.video import record_video, side_by_side
from nac_drive.events import Event, Progress, silent
from nac_drive.experiments.demo_races import BEST_NAC, LOST_FRAMES, WITHOUT_MEMORY, DemoRace, FinishedRace, race
from nac_drive.experiments.driving import EXPERT, Driving, Entry, Training, episodes_of, folder_name
from nac_drive.experiments.experiment import open_experiment, run
from nac_drive.experiments.figures import EPISODES_CAPTION, draw_episodes, draw_races
from nac_drive.experiments.headline import headline
from nac_drive.experiments.journal import CONDITIONS
from nac_drive.experiments.leaderboard import RankedDriver, leaderboard, verdicts
from nac_drive.experiments.page import Page, PageFigure, PageLink, conditions
from nac_drive.experiments.ranking import ranked, save_tables, trained_driver
from nac_drive.parallel.processes import Pool, number_of_workers
from nac_drive.policies import DriverConfig
from nac_drive.policies.device import choose_device
from nac_drive.storage.figure import try_to_draw
from nac_drive.storage.lock import LOCK, locked
from nac_drive.storage.names import shell_path
from nac_drive.storage.write import remove_leftovers
from nac_drive.training.config import OptimConfig, TrainConfig
from nac_drive.training.dagger import dagger
from nac_drive.training.dagger_config import DaggerConfig
from nac_drive.training.ppo.config import PPOConfig
from nac_drive.training.ppo.run import ppo

TITLE = "Demo report"
EPISODE, VIDEO = "episode.html", "side_by_side.mp4"
CAPTION = "Left: returns on the test tracks, mean and 95 % interval. Right: validation after every round of DAgger."
_UNDISTURBED, _RACES = "From above", "races.png"
_EXPERT, _COMPARISON = "ppo-expert", "comparison"
"""Folders of the run of `ppo`, under the name of the shipped expert, and of the comparison of all drivers."""


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
    """Settings of the demo. The defaults fit into eight minutes on two CPU cores."""

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
    races: tuple[DemoRace, ...] = (LOST_FRAMES,)
    """Further races, each of the learner's core, the baselines, `BEST_NAC` and a core without memory."""
    race_tracks: str = "test-8"
    """Tracks of the further races; fewer than eight can tell no four drivers apart (`evaluation.intervals`)."""
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
        for tracks in (self.tracks, self.race_tracks):
            track_seeds(tracks)
        names = [EXPERT, self.training.driver.core, *self.baselines]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"expert, learner and baselines must have different names, got {twice[0]!r} twice; choose other "
                "baselines."
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

    def race_training(self) -> TrainConfig:
        """Settings of the runs of a further race; the core is replaced by each of them."""
        return replace(
            self.baseline_training(),
            data=replace(self.training.data, horizontal_flip=False),  # features of flipped frames cost as much again
        )  # fmt: skip

    @property
    def racing(self) -> tuple[str, ...]:
        """Cores of a further race."""
        driver = self.training.driver
        settings = [f"{name}={value}" for name, value in driver.core_args.items()]
        learner = ",".join([driver.core, *settings])
        return tuple(dict.fromkeys((learner, BEST_NAC, *self.baselines, WITHOUT_MEMORY)))


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
    progress: Progress = silent,
) -> Path:
    """Train a driver by DAgger and others on its episodes, evaluate all on the same tracks, and write a report.

    Args:
        config: The settings.
        folder: The folder of the results; an interrupted demo is resumed.
        device: `auto`, `cpu` or `cuda`.
        pool: Processes, see `worker_pool`; None for none.
        workers: Processes of the comparison, each of which trains and drives in one; 0 for one per core.
        progress: Called with the events of all jobs: `ppo`, `dagger`, the comparison, the videos.

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
    races = [world.name for world in config.races]
    _require_ours(folder, (_EXPERT, config.training.driver.core, _COMPARISON, *races))
    with locked(folder):
        return _demo(config, folder, device, pool, workers, progress)


def _require_ours(folder: Path, runs: Sequence[str]) -> None:
    """Raise FileExistsError if `folder` holds anything but a demo."""
    if not folder.is_dir() or any(
        (folder / run / name).exists() for run in runs for name in ("config.yaml", CONDITIONS)
    ):
        return
    if others := sorted({path.name for path in folder.iterdir()} - {LOCK, *runs}):
        raise FileExistsError(f"{folder} holds {others[0]} and no demo; choose another folder.")


def _demo(config: DemoConfig, folder: Path, device: str, pool: Pool | None, workers: int, progress: Progress) -> Path:
    started = time.monotonic()
    for file in ("report.html", "report.md", EPISODE):
        remove_leftovers(folder / file)
    if config.ppo is not None:
        config = _train_expert(config, folder / _EXPERT, device, pool, progress)
    learner = folder / config.training.driver.core
    best = dagger(
        config.training, learner, expert=config.expert, device=device, resume=_begun(learner), pool=pool,
        progress=progress,
    )  # fmt: skip
    drivers = _compare(config, folder, best, learner, device, workers, progress)
    races = [
        race(
            world, config.racing, Demonstrations.open(learner / "dataset"), config.race_training(), config.race_tracks,
            folder, expert=config.expert, device=device, workers=workers, progress=progress,
        )
        for world in config.races
    ]  # fmt: skip
    env, track = config.training.env, track_seeds(config.tracks)[0]
    others = {driver.summary.driver: _run_of(config, folder, driver.summary.driver) for driver in drivers[2:]}
    paths = {EXPERT: config.expert, learner.name: best, **others}
    loaded = {name: resolve_driver(path, env) for name, path in paths.items()}
    figures, returns = [], {_UNDISTURBED: drivers, **{raced.race.where: raced.comparison.drivers for raced in races}}
    if races and try_to_draw(draw_races, folder / _RACES, returns):
        figures.append(PageFigure(_RACES, "The races", EPISODES_CAPTION))
    if try_to_draw(draw_episodes, folder / "figure.png", drivers):
        figures.append(PageFigure("figure.png", "Figure", CAPTION))
    _videos(folder, loaded, track, env, progress)
    shown = dict(reversed(list(loaded.items())[:2]))
    _episode_page(folder / EPISODE, shown, track, env, progress)
    minutes = (time.monotonic() - started) / 60
    page = Page(
        TITLE, _protocol(config, Demonstrations.open(learner / "dataset").info(), minutes), leaderboard(drivers),
        figures, _headline(drivers, races), verdicts(drivers),
        PageLink(VIDEO, f"Track {track}, line by line: {', '.join(loaded)}."),
        PageLink(EPISODE, f"{' and '.join(shown)} on track {track}."),
        _commands(learner, _run_of(config, folder, config.baselines[0]), track),
        [raced.section(config.race_tracks) for raced in races],
    )  # fmt: skip
    page.save_html(folder)
    return page.save_markdown(folder, "report.md")


def _headline(drivers: Sequence[RankedDriver], races: Sequence[FinishedRace]) -> str:
    """Return what follows from all races."""
    if not races:
        return headline(drivers)
    return " ".join([f"{_UNDISTURBED}: {headline(drivers)}", *(raced.sentence for raced in races)])


def _begun(run: Path) -> bool:
    return (run / "config.yaml").exists()


def _train_expert(config: DemoConfig, run: Path, device: str, pool: Pool | None, progress: Progress) -> DemoConfig:
    """Train the expert by PPO; return the config with it as the expert and its encoder in the learners."""
    assert config.ppo is not None
    ppo(config.ppo, run, device=device, resume=_begun(run), pool=pool, progress=progress)
    optim = replace(config.training.optim, freeze_encoder_from=str(run))
    return replace(config, expert=str(run), training=replace(config.training, optim=optim))


def _compare(
    config: DemoConfig, folder: Path, best: Path, learner: Path, device: str, workers: int, progress: Progress
) -> list[RankedDriver]:
    """Train the baselines on the learner's episodes, and let all drivers drive: expert, learner, baselines."""
    env, training = config.training.env, config.baseline_training()
    dataset, expert = learner / "dataset", resolve_driver(config.expert, env)
    bare = replace(env, perturb=None)
    entries = [
        Entry(EXPERT, driver_hash(config.expert, env), env_seen_by(expert, bare), expert),
        Entry(learner.name, driver_hash(best, env), bare, resolve_driver(best, env), expert),
    ]
    for core in config.baselines:
        baseline = replace(training, driver=replace(training.driver, core=core))
        sha256 = hashlib.sha256(json.dumps(asdict(baseline.with_rates()), sort_keys=True).encode()).hexdigest()
        run_of_core = Training(baseline, dataset, device)
        entries.append(Entry(core, sha256, bare, expert=expert, training=run_of_core, run=training.seed))
    settings = {"dataset_sha256": Demonstrations.open(dataset).fingerprint()}
    experiment = Driving(
        tuple(entries), tuple(track_seeds(config.tracks)), (env.perturb,), kind="the comparison of a demo",
        settings=settings,
    )  # fmt: skip
    path = folder / _COMPARISON
    with open_experiment(experiment, path, resume=(path / CONDITIONS).exists()) as journal:
        journal.begin()  # before any run is trained
        results = run(experiment, journal, workers=workers, job="runs", progress=progress)
        if results.failures:
            name, reason = next(iter(results.failures.items()))
            raise ValueError(f"{name} failed: {reason}; run the demo again to go on.")
        drivers = ranked(experiment, episodes_of(results), path, progress, baseline=entries[0].name)
        drivers[1] = trained_driver(drivers[1].evaluation, [learner])
        save_tables(path, drivers)
    return drivers


def _run_of(config: DemoConfig, folder: Path, core: str) -> Path:
    """Return the run of a baseline."""
    return folder / _COMPARISON / f"{folder_name(core)}-{config.training.seed}"


def _videos(folder: Path, drivers: Mapping[str, Policy], track: int, env: EnvConfig, progress: Progress) -> None:
    """Write NAME.mp4 of every driver, and all of them in side_by_side.mp4."""
    videos = [folder / f"{name}.mp4" for name in drivers]
    for path, driver in zip(videos, drivers.values(), strict=True):
        if not path.exists():
            record_video(
                path, driver, track, name=path.stem, env=env_seen_by(driver, env),
                on_step=lambda step, job=f"video ({path.stem})": progress(Event(job, step.index + 1, env.max_steps)),
            )  # fmt: skip
            progress(Event(f"video ({path.stem})", env.max_steps, env.max_steps))
    side_by_side(folder / VIDEO, videos, columns=2)
    progress(Event("video (side by side)", 1, 1))


def _episode_page(path: Path, drivers: Mapping[str, Policy], track: int, env: EnvConfig, progress: Progress) -> None:
    """Write the page of an episode of each driver with everything recorded."""
    if path.exists():
        return
    recordings = []
    for name, driver in drivers.items():
        sees = env_seen_by(driver, env)
        with closing(make_env(sees)) as simulator:
            recordings.append(
                record(
                    simulator, driver, track, name=name, perturbation=env.perturb, spec=sees.spec,
                    on_step=lambda step, job=f"record ({name})": progress(Event(job, step.index + 1, env.max_steps)),
                )
            )  # fmt: skip
        progress(Event(f"record ({name})", env.max_steps, env.max_steps))
    save_episode_page(path, recordings, f"{' and '.join(drivers)} on track {track}")


def _protocol(config: DemoConfig, dataset: dict[str, Any], minutes: float) -> str:
    training, expert, learner = config.training, driver_name(config.expert), config.training.driver.core
    measured = conditions("ignore", max_steps=training.max_steps)
    began = ""
    if config.ppo is not None:
        began = f"PPO trained the expert from random weights in {config.ppo.total_timesteps:,} frames. "
    encoder = ""
    if source := training.optim.freeze_encoder_from:
        encoder = f"The encoder comes from {driver_name(source)} and was frozen; the rest began with random weights. "
    return (
        f"{began}The expert ({expert}) drove {training.initial_episodes} episodes with action noise. In "
        f"{training.rounds} rounds of {training.episodes} episodes, a mixture policy of the expert and the learner "
        f"({learner}) drove. The expert labelled every frame, and the learner was trained on all episodes so far "
        f"(DAgger, {dataset['frames']:,} frames). Then {' and '.join(config.baselines)} were trained on the same "
        f"episodes by behaviour cloning, in {config.baseline_epochs} epochs; {learner} drove most of them, which is to "
        f"its advantage. {encoder}All of them then drove the tracks {config.tracks}, which no training had used. One "
        f"run of each. {measured} The demo took {minutes:.1f} minutes."
    )


def _commands(run: Path, baseline: Path, track: int) -> str:
    return (
        f"nac-drive watch --driver {shell_path(run)} --track {track} --video episode.mp4\n"
        f"nac-drive inspect --compare {shell_path(run)} {shell_path(baseline)} --track {track} --out seen\n"
        f"nac-drive stress --drivers {shell_path(run)} {shell_path(baseline)} --perturb frame-drop:zero --out stress"
    )
