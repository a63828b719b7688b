"""The command line. A command is a dataclass of its options with a `run` that calls the library and shows progress."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
import yaml
from rich.console import Console

from envs import SPLITS, Control, CrashMode, EnvConfig, track_seeds
from nac_drive.demo import DemoConfig
from nac_drive.jobs import Jobs, count_episodes, episode_note, show_training
from nac_drive.progress import progress

Positional = tyro.conf.Positional


@dataclass(frozen=True)
class Collect:
    """Record laps of a driver: frames, actions, rewards and telemetry, one file per lap."""

    out: Path
    """Folder of the new dataset."""
    driver: str = "expert"
    """Who drives: expert, controller, or the folder of a driver or run."""
    laps: int = 20
    """Laps, each on another training track."""
    first_track: int = 0
    """Seed of the first track."""
    noise: float = 0.0
    """Share of frames whose executed action is random while the label stays the driver's (DART)."""
    noise_hold: float = 4.0
    """Mean number of frames that one random action is held."""
    control: Control = "discrete"
    """Five actions, or continuous steer, gas and brake."""
    mask_bar: bool = False
    """Hide the status bar in the recorded frames (the driver then sees it masked, too)."""
    workers: int = 0
    """Parallel processes; 0: one per core."""
    seed: int = 0
    """Seed of the noise."""
    resume: bool = False
    """Go on with an interrupted recording."""

    def run(self, console: Console) -> None:
        from data_collection.noise import NoiseConfig
        from data_collection.record import record

        if self.laps < 1 or not 0 <= self.first_track <= len(SPLITS["train"]) - self.laps:
            raise ValueError(
                f"laps and first-track must name tracks 0 to {len(SPLITS['train']) - 1}, "
                f"got {self.laps} from {self.first_track}."
            )
        with progress(console, f"collect ({self.driver})", self.laps) as meter:
            dataset = record(
                self.out,
                self.driver,
                env=EnvConfig(control=self.control, mask_bar=self.mask_bar),
                seeds=list(SPLITS["train"][self.first_track : self.first_track + self.laps]),
                noise=NoiseConfig(self.noise, self.noise_hold) if self.noise else None,
                seed=self.seed,
                workers=self.workers or _cores(),
                resume=self.resume,
                on_episode=count_episodes(meter, lambda row: f"track {row['seed']} return {row['return']:.0f}"),
            )
        _print_info(console, dataset.info())


@dataclass(frozen=True)
class Dataset:
    """Look at a dataset (info), or check every file of it (verify)."""

    action: Positional[Literal["info", "verify"]]
    """info: what is in it. verify: check hashes, shapes and values."""
    path: Positional[Path]
    """Folder of the dataset."""
    replay: bool = False
    """With verify: simulate every lap again and compare frames and rewards bit for bit."""
    workers: int = 0
    """Parallel processes; 0: one per core."""

    def run(self, console: Console) -> None:
        from data_collection.dataset import Demonstrations

        dataset = Demonstrations.open(self.path)
        if self.action == "info":
            _print_info(console, dataset.info())
            return
        problems = dataset.verify(replay=self.replay, workers=self.workers or _cores())
        for problem in problems:
            console.print(problem, highlight=False, soft_wrap=True)
        if problems:
            raise ValueError(f"{self.path} has {len(problems)} problem(s), listed above; record those laps again.")
        replayed = ", replayed frame by frame" if self.replay else ""
        console.print(f"{self.path}: {len(dataset)} laps, all sound{replayed}", highlight=False)


@dataclass(frozen=True)
class Training:
    """Options that train and compare share."""

    core_args: tuple[str, ...] = ()
    """Settings of the core as KEY=VALUE, such as top_k=4 window=64."""
    window: int = 32
    """Frames per training sequence, at least 16 (1 for cnn)."""
    batch_size: int = 16
    """Sequences per update."""
    epochs: int = 100
    """Passes over the demonstrations."""
    learning_rate: float = 1e-4
    """Adam's rate."""
    class_weights: bool = False
    """Weigh the five actions by their inverse frequency."""
    change_weight: float = 1.0
    """Weight of frames where the expert's action changes."""
    mirror: bool = False
    """Show every other sequence mirrored left to right."""
    mask_bar: bool = False
    """Hide the status bar from the driver."""
    validation_share: float = 0.1
    """Share of the recorded tracks held out to measure accuracy."""
    validate_every: int = 10
    """Epochs between two closed-loop validations."""
    validation_tracks: str = "val-5"
    """Tracks of the closed-loop validation, which picks the best checkpoint."""
    precision: str = "auto"
    """auto: bf16-mixed on a GPU, 32-true on a CPU."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard, too."""
    seed: int = 0
    """Seed of weights, order and dropout."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    workers: int = 0
    """Processes for the closed-loop validation; 0: one per core."""
    resume: bool = False
    """Go on from the last checkpoint."""

    def config(self, core: str) -> Any:
        from nac_drive.cloning import CloneConfig

        shared: dict[str, Any] = {
            name: getattr(self, name)
            for name in CloneConfig.__dataclass_fields__
            if name not in ("core", "core_args")
        }  # fmt: skip
        return CloneConfig(core=core, core_args=_settings(self.core_args), **shared)


@dataclass(frozen=True)
class Train:
    """Train a driver on a dataset by behaviour cloning."""

    dataset: Positional[Path]
    """Folder of the dataset."""
    out: Path
    """Folder of the new run."""
    core: str = "nac-exact"
    """Sequence model: nac-exact, nac-euler, nac-steady, nac-pw, lstm, gru, cfc or cnn."""
    training: Annotated[Training, tyro.conf.arg(name="")] = field(default_factory=Training)

    def run(self, console: Console) -> None:
        from data_collection.dataset import Demonstrations
        from data_collection.processes import worker_pool
        from nac_drive.cloning import clone

        config, options = self.training.config(self.core), self.training
        with worker_pool(options.workers or _cores()) as pool, progress(console, self.core, config.epochs) as meter:
            best = clone(
                config, Demonstrations.open(self.dataset), self.out, device=options.device, resume=options.resume,
                pool=pool, report=lambda row: show_training(meter, row),
            )  # fmt: skip
        console.print(f"best checkpoint: {best}", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Compare:
    """Train several drivers on the same dataset and evaluate them on the same tracks: one table, one figure."""

    dataset: Positional[Path]
    """Folder of the dataset."""
    out: Path
    """Folder of the comparison."""
    drivers: tuple[str, ...] = ("nac-exact", "lstm", "cfc")
    """Cores to compare."""
    tracks: str = "test-10"
    """Tracks of the evaluation: SPLIT-COUNT or a comma list of seeds."""
    expert: str = "expert"
    """Baseline on the same tracks, asked at every frame: expert, controller, or the folder of a driver or run."""
    crash: CrashMode = "ignore"
    """What a crash does: nothing, end the lap, or set the car back."""
    training: Annotated[Training, tyro.conf.arg(name="")] = field(default_factory=Training)

    def run(self, console: Console) -> None:
        from data_collection.dataset import Demonstrations
        from data_collection.processes import worker_pool
        from nac_drive.compare import compare
        from nac_drive.report import terminal_table

        options = self.training
        with worker_pool(options.workers or _cores()) as pool, Jobs(console) as jobs:
            contestants = compare(
                self.drivers, Demonstrations.open(self.dataset), track_seeds(self.tracks), self.out,
                config=options.config(self.drivers[0] if self.drivers else "nac-exact"), expert=self.expert,
                crash=self.crash, device=options.device, resume=options.resume, pool=pool,
                report=jobs.reporter(options.epochs, len(track_seeds(self.tracks))),
            )  # fmt: skip
        console.print(terminal_table(contestants, f"{self.tracks}, crash={self.crash}"))
        console.print(f"table, rows and figure: {self.out}", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Evaluate:
    """Drive named tracks in closed loop and report returns, completion, crashes and agreement with the expert."""

    driver: str = "expert"
    """Who drives: expert, controller, or the folder of a driver or run."""
    tracks: str = "test-10"
    """Tracks: SPLIT-COUNT (train, val, test) or a comma list of seeds."""
    crash: CrashMode = "ignore"
    """What a crash does: nothing, end the lap (terminate), or set the car back on the road (intervene)."""
    baseline: str | None = "expert"
    """Driver that is run on the same tracks, asked at every frame, and that paired differences are taken against."""
    control: Control | None = None
    """Control of expert and controller; a cloned driver knows its own."""
    mask_bar: bool | None = None
    """Show or hide the status bar other than in the driver's training."""
    out: Path | None = None
    """Folder for rows.jsonl and summary.json."""
    workers: int = 0
    """Parallel processes; 0: one per core. The result does not depend on it."""

    def run(self, console: Console) -> None:
        from dataclasses import replace

        from data_collection.processes import worker_pool
        from nac_drive.evaluation import evaluate, save_evaluations
        from nac_drive.report import Contestant, terminal_table

        seeds = track_seeds(self.tracks)
        if self.out and self.out.exists() and any(self.out.iterdir()):
            raise FileExistsError(f"{self.out} already exists; choose another folder.")
        driver, env = _driver_and_env(self.driver, self.control)
        if self.mask_bar is not None:
            env = replace(env, mask_bar=self.mask_bar)
        name = _name(self.driver)
        evaluations = []
        with worker_pool(self.workers or _cores()) as pool:
            baseline = advisor = None
            if self.baseline and self.baseline != self.driver:
                advisor, advisor_env = _driver_and_env(self.baseline, env.control)
                with progress(console, _name(self.baseline), len(seeds)) as meter:
                    baseline = evaluate(
                        advisor, seeds, name=_name(self.baseline), env=advisor_env, crash=self.crash, pool=pool,
                        on_episode=count_episodes(meter, episode_note),
                    )  # fmt: skip
                evaluations.append(baseline)
            with progress(console, name, len(seeds)) as meter:
                evaluation = evaluate(
                    driver, seeds, name=name, env=env, crash=self.crash, advisor=advisor, baseline=baseline, pool=pool,
                    on_episode=count_episodes(meter, episode_note),
                )  # fmt: skip
            evaluations.append(evaluation)
        console.print(terminal_table([Contestant(e) for e in evaluations], f"{self.tracks}, crash={self.crash}"))
        if self.out:
            save_evaluations(self.out, evaluations)


@dataclass(frozen=True)
class Watch:
    """Watch a driver: in a live window where there is a display, or in a video."""

    driver: str = "expert"
    """Who drives: expert, controller, or the folder of a driver or run."""
    track: int = SPLITS["test"][0]
    """Seed of the track."""
    video: Path | None = None
    """Write an mp4 (600x400) instead of opening a window."""
    crash: CrashMode = "ignore"
    """What a crash does."""
    control: Control | None = None
    """Control of expert and controller; a cloned driver knows its own."""

    def run(self, console: Console) -> None:
        from envs import make_env, rollout
        from nac_drive.video import record_video

        driver, env = _driver_and_env(self.driver, self.control)
        name = _name(self.driver)
        if self.video:
            episode = record_video(self.video, driver, self.track, name=name, env=env, crash=self.crash)
            console.print(f"video: {self.video}", highlight=False, soft_wrap=True)
        else:
            if not _has_display():
                raise ValueError("there is no display here to open a window on; pass --video lap.mp4 to get a video.")
            window = make_env(env, crash=self.crash, render_mode="human")
            try:
                episode = rollout(window, driver, self.track)
            finally:
                window.close()
        outcome = episode.outcome
        console.print(
            f"{name} on track {self.track}: return {episode.episode_return:.1f}, completion "
            f"{100 * outcome['completion']:.1f} %, {episode.length} frames, {outcome['crashes']} crash(es)",
            highlight=False,
        )


@dataclass(frozen=True)
class Expert:
    """Train the PPO expert: clone the controller's laps, then improve with PPO."""

    out: Path
    """Folder of the new run."""
    control: Control = "discrete"
    """Five actions, or continuous steer, gas and brake."""
    steps: int | None = None
    """Frames that PPO drives; the default is that of the shipped expert."""
    seed: int = 0
    """Seed of weights, tracks and noise."""
    device: Literal["auto", "cpu"] = "auto"
    """The expert's network is small: PPO waits for the simulation, not for the network, and trains on the CPU."""
    resume: bool = False
    """Go on from the last checkpoint."""

    def run(self, console: Console) -> None:
        from data_collection.ppo import ExpertConfig, train_expert

        changed: dict[str, Any] = {"steps": self.steps} if self.steps is not None else {}
        config = ExpertConfig(control=self.control, seed=self.seed, **changed)
        with Jobs(console) as jobs:
            best = train_expert(config, self.out, resume=self.resume, report=jobs.expert_reporter())
        console.print(f"best checkpoint: {best}", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Demo:
    """The main job in minutes: collect with the shipped expert, clone a NAC and an LSTM driver, race them, report."""

    out: Path = Path("runs/demo")
    """Folder of the results; an interrupted demo goes on where it stopped."""
    settings: Annotated[DemoConfig, tyro.conf.arg(name="")] = field(default_factory=DemoConfig)
    seed: int = 0
    """Seed of noise and trainings."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    workers: int = 0
    """Parallel processes; 0: one per core."""

    def run(self, console: Console) -> None:
        from data_collection.processes import worker_pool
        from nac_drive.demo import demo

        report = self.out / "report.md"
        if report.exists():
            raise FileExistsError(f"the demo is done: {report}; remove {self.out} or pass --out to run it again.")
        workers = self.workers or _cores()
        with worker_pool(workers) as pool, Jobs(console) as jobs:
            demo(
                self.settings, self.out, seed=self.seed, device=self.device, workers=workers, pool=pool,
                report=jobs.reporter(self.settings.epochs, len(track_seeds(self.settings.tracks))),
            )  # fmt: skip
        console.print(report.read_text(), highlight=False, soft_wrap=True, markup=False)
        console.print(f"report: {report}\nvideo: {self.out / 'side_by_side.mp4'}", highlight=False, soft_wrap=True)


_WIDTH_OF_LOGS = 160
"""Columns of tables that no terminal shows."""

COMMANDS = {
    "expert": Expert,
    "collect": Collect,
    "dataset": Dataset,
    "train": Train,
    "evaluate": Evaluate,
    "compare": Compare,
    "watch": Watch,
    "demo": Demo,
}


def _driver_and_env(spec: str, control: Control | None) -> tuple[Any, EnvConfig]:
    """The driver and the environment that it was trained in."""
    from data_collection.drivers import resolve_driver, trained_env

    driver = resolve_driver(spec, EnvConfig(control=control) if control else None)
    return driver, trained_env(driver) or EnvConfig(control=control or "discrete")


def _name(spec: str) -> str:
    return spec if spec in ("expert", "controller") else Path(spec).resolve().name


def _settings(pairs: Sequence[str]) -> dict[str, Any]:
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"core-args must be KEY=VALUE, got {pair!r}; such as --core-args top_k=4 window=64.")
        try:
            settings[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ValueError(f"core-args: the value of {pair!r} is neither a number nor a word.") from None
    return settings


def _print_info(console: Console, info: dict[str, Any]) -> None:
    for key, value in info.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in value.items())
        console.print(f"{key:>16}  {value:.2f}" if isinstance(value, float) else f"{key:>16}  {value}",
                      highlight=False, soft_wrap=True)  # fmt: skip


def _cores() -> int:
    from data_collection.processes import default_workers

    return default_workers()


def _has_display() -> bool:
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status: 0, or 2 after one line that names what was wrong and the fix."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    warnings.formatwarning = lambda message, *_: f"nac-drive: warning: {message}\n"
    command: Any = tyro.extras.subcommand_cli_from_dict(
        COMMANDS, args=arguments, prog="nac-drive", description=__doc_of_program__,
        config=(tyro.conf.OmitArgPrefixes,),
    )  # fmt: skip
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH_OF_LOGS)
    try:
        command.run(console)
    except KeyboardInterrupt:
        print("nac-drive: interrupted; what is finished is kept", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        if os.environ.get("NAC_DRIVE_TRACEBACK"):
            raise
        print(f"nac-drive: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


__doc_of_program__ = (
    "Collect laps of CarRacing, clone drivers from them (NAC, LSTM, CfC and others), and measure how they drive. "
    "Start with `nac-drive demo`."
)
