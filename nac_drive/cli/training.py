"""Commands that train: train, dagger, ppo, compare and demo.

The work of a command is imported when it runs: help and errors in options come at once, without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.text import Text
from tyro.conf import Positional

import nac_drive as nd
from nac_drive.cli.progress import ProgressMode, show_progress
from nac_drive.envs import Control, CrashMode
from nac_drive.parallel.processes import worker_pool
from nac_drive.policies import DriverConfig
from nac_drive.training.config import DaggerConfig, EvalConfig, TrainConfig, core_settings, paper_recipe
from nac_drive.training.ppo.config import PPOConfig

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class _DriverOptions(DriverConfig):
    """Encoder, core and action head; the environment decides control and frame shape."""

    core_args: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[KEY=VALUE ...]")] = ()  # type: ignore[assignment]
    """Settings of the core, such as top_k=4 window=64."""
    control: tyro.conf.Suppress[str] = DriverConfig.control
    frame_shape: tyro.conf.Suppress[tuple[int, int, int]] = DriverConfig.frame_shape
    num_actions: tyro.conf.Suppress[int] = DriverConfig.num_actions


@dataclass(frozen=True)
class _DriverAndControl(_DriverOptions):
    """Encoder, core and action head; the environment decides the frame shape."""

    control: Control = "discrete"
    """discrete (nothing, right, left, gas, brake), continuous (steer, gas, brake), or pulsed (the same three numbers,
    carried out by the discrete actions)."""


@dataclass(frozen=True)
class _DriverOfEveryCore(_DriverOptions):
    """Encoder, core and action head; --drivers names the cores."""

    core: tyro.conf.Suppress[str] = DriverConfig.core


@dataclass(frozen=True)
class _ValidationOptions(EvalConfig):
    """The closed-loop validation, which picks the best checkpoint."""

    tracks: Annotated[str, tyro.conf.arg(name="validation-tracks")] = EvalConfig.tracks


@dataclass(frozen=True)
class _TrainOptions(TrainConfig):
    """Options of `train`."""

    driver: _DriverOptions = field(default_factory=_DriverOptions)
    validation: _ValidationOptions = field(default_factory=_ValidationOptions)


@dataclass(frozen=True)
class _CompareOptions(TrainConfig):
    """Options of `compare` for every run."""

    driver: _DriverOfEveryCore = field(default_factory=_DriverOfEveryCore)
    validation: _ValidationOptions = field(default_factory=_ValidationOptions)


@dataclass(frozen=True)
class _DaggerOptions(DaggerConfig):
    """Options of `dagger`."""

    driver: _DriverAndControl = field(default_factory=_DriverAndControl)
    validation: _ValidationOptions = field(default_factory=_ValidationOptions)
    environment: tyro.conf.Suppress[str] = DaggerConfig.environment


@dataclass(frozen=True)
class _DriverOfPpo(_DriverAndControl):
    """Encoder, core and action head of a driver from random weights; with --init-from only --control counts."""

    core: str = PPOConfig().driver.core
    """Sequence model: a name in CORES, see docs/drivers.md; cnn has no memory."""
    encoder: str = PPOConfig().driver.encoder
    """Convolutions: pooled (grey, half the size, and the status bar), compact (sees the whole frame), paper, thesis or
    bojarski."""
    d_model: int = PPOConfig().driver.d_model
    dropout: tyro.conf.Suppress[float] = DriverConfig.dropout


@dataclass(frozen=True)
class _PpoOptions(PPOConfig):
    """Options of `ppo`."""

    driver: _DriverOfPpo = field(default_factory=_DriverOfPpo)
    validation: _ValidationOptions = field(default_factory=_ValidationOptions)


def _plain(kind: type, options: Any) -> Any:
    """Return the config `kind` of options that were parsed.

    Raises:
        ValueError: A setting is bad.
    """
    core_args = core_settings(options.driver.core_args)
    driver: dict[str, Any] = {**_values(DriverConfig, options.driver), "core_args": core_args}
    parts = {"driver": DriverConfig(**driver), "validation": EvalConfig(options.validation.tracks)}
    config = kind(**(_values(kind, options) | parts))
    config.check()
    return config


def _values(kind: type, settings: Any) -> dict[str, Any]:
    """Return the settings that a config of `kind` has."""
    return {setting.name: getattr(settings, setting.name) for setting in fields(kind)}


@dataclass(frozen=True)
class TrainingOptions:
    """Device, number of processes, and resuming."""

    device: Device = "auto"
    """Device of the training: the GPU where there is one (auto), cpu or cuda."""
    workers: int = 0
    """Parallel processes; 0: one per core."""
    cluster: str | None = None
    """Ray cluster that does the work in place of this machine: auto (the one this machine belongs to) or HOST:PORT.
    train and dagger drive their episodes there, compare also trains there, from storage that all machines share."""
    resume: bool = False
    """Go on from the last checkpoint; epochs, rounds or timesteps may have grown."""
    progress: ProgressMode = "auto"
    """auto: bars in a terminal, lines elsewhere; json: a line of JSON for every event, on stderr."""


@dataclass(frozen=True)
class _SharedOptions(TrainingOptions):
    """Devices, processes, and resuming."""

    devices: int = 1
    """Processes on this machine that share every batch: one for each of this many GPUs, or on the CPU."""
    nodes: int = 1
    """Machines that share every batch: start the same command on each (docs/scale.md)."""


@dataclass(frozen=True)
class Ppo:
    """Train a driver by PPO, from random weights or from a cloned driver (--init-from)."""

    out: Path
    """Folder of the new run."""
    settings: Annotated[_PpoOptions, tyro.conf.arg(name="")] = field(default_factory=_PpoOptions)
    resume: bool = False
    """Go on from the last checkpoint; the timesteps may have grown."""
    progress: ProgressMode = "auto"
    """auto: bars in a terminal, lines elsewhere; json: a line of JSON for every event, on stderr."""

    def run(self, console: Console) -> None:
        config = _plain(PPOConfig, self.settings)
        with show_progress(console, self.progress) as progress:
            best = nd.ppo(config, self.out, resume=self.resume, progress=progress)
        console.print(f"best checkpoint: {best}", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Train:
    """Train a driver on a dataset by behaviour cloning."""

    dataset: Positional[Path]
    """Folder of the dataset."""
    out: Path
    """Folder of the new run."""
    recipe: Literal["default", "paper"] = "default"
    """paper: the settings of the NAC paper's Table 4, in place of the defaults; options given here still count."""
    settings: Annotated[_TrainOptions, tyro.conf.arg(name="")] = field(default_factory=_TrainOptions)
    options: Annotated[_SharedOptions, tyro.conf.arg(name="")] = field(default_factory=_SharedOptions)

    def run(self, console: Console) -> None:
        config = _plain(TrainConfig, self.settings)
        with (
            worker_pool(self.options.workers, self.options.cluster) as pool,
            show_progress(console, self.options.progress) as progress,
        ):
            best = nd.train(
                config, self.dataset, self.out, device=self.options.device, devices=self.options.devices,
                nodes=self.options.nodes, resume=self.options.resume,
                pool=pool, progress=progress,
            )  # fmt: skip
        console.print(f"best checkpoint: {best}", highlight=False, soft_wrap=True)

    @classmethod
    def defaults(cls, words: Sequence[str]) -> Train | None:
        """Return the command whose options are the defaults for `words`; None for the ordinary defaults."""
        recipe = next((following for word, following in pairwise((*words, "")) if word == "--recipe"), "")
        if recipe != "paper" and "--recipe=paper" not in words:
            return None
        config = paper_recipe()
        words_of_core = tuple(f"{key}={value}" for key, value in config.driver.core_args.items())
        driver: dict[str, Any] = {**_values(DriverConfig, config.driver), "core_args": words_of_core}
        parts: dict[str, Any] = {
            "driver": _DriverOptions(**driver),
            "validation": _ValidationOptions(config.validation.tracks),
        }
        settings = _TrainOptions(**{**_values(TrainConfig, config), **parts})
        return cls(tyro.MISSING, tyro.MISSING, "paper", settings)


@dataclass(frozen=True)
class Dagger:
    """Train a driver on its own episodes (DAgger): a mixture of learner and expert drives, the expert labels."""

    out: Path
    """Folder of the new run; its episodes are the dataset OUT/dataset."""
    expert: str = "expert"
    """Driver that gives the labels: expert, controller, human (a person at the keys of a window, who drives round 0 and
    corrects the learner in later rounds), or the folder of a driver or run."""
    settings: Annotated[_DaggerOptions, tyro.conf.arg(name="")] = field(default_factory=_DaggerOptions)
    options: Annotated[_SharedOptions, tyro.conf.arg(name="")] = field(default_factory=_SharedOptions)

    def run(self, console: Console) -> None:
        config, options = _plain(DaggerConfig, self.settings), self.options
        with (
            worker_pool(options.workers, options.cluster) as pool,
            show_progress(console, options.progress) as progress,
        ):
            best = nd.dagger(
                config, self.out, expert=self.expert, device=options.device, devices=options.devices,
                nodes=options.nodes, resume=options.resume, pool=pool,
                progress=progress,
            )  # fmt: skip
        console.print(f"best checkpoint: {best}", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Compare:
    """Train several drivers on the same dataset and evaluate them on the same tracks: one leaderboard with figures."""

    dataset: Positional[Path]
    """Folder of the dataset."""
    out: Path
    """Folder of the comparison."""
    drivers: tuple[str, ...] = ("nac-exact", "lstm", "cfc")
    """Cores to compare; `all` is every one. Settings of a core follow its name, as in nac-exact,window=8."""
    num_seeds: int = 1
    """Runs of each core, with the seeds SEED, SEED + 1, ..."""
    tracks: str = "test-10"
    """Tracks of the evaluation: SPLIT-COUNT or a comma list of seeds."""
    expert: str = "expert"
    """Driver that is evaluated on the same tracks and queried at every frame: expert, controller, or the folder of a
    driver or run."""
    shared_encoder: bool = False
    """Train one encoder for all cores: they learn on its features, many times faster."""
    crash: CrashMode = "ignore"
    """The effect of a crash: nothing (ignore), the end of the episode (terminate), or a restart on the road
    (intervene)."""
    settings: Annotated[_CompareOptions, tyro.conf.arg(name="")] = field(default_factory=_CompareOptions)
    options: Annotated[TrainingOptions, tyro.conf.arg(name="")] = field(default_factory=TrainingOptions)

    def run(self, console: Console) -> None:
        from nac_drive.experiments.leaderboard import SHORT, leaderboard

        names = [core for name in self.drivers for core in (nd.CORES if name == "all" else [name])]
        cores, options = tuple(dict.fromkeys(names)), self.options
        first = cores[0].split(",")[0] if cores else DriverConfig.core
        config = _plain(TrainConfig, replace(self.settings, driver=replace(self.settings.driver, core=first)))
        with show_progress(console, options.progress) as progress:
            comparison = nd.compare(
                cores, self.dataset, self.tracks, self.out, config=config, num_seeds=self.num_seeds,
                shared_encoder=self.shared_encoder, expert=self.expert, crash=self.crash, device=options.device,
                resume=options.resume, workers=options.workers, cluster=options.cluster,
                progress=progress,
            )  # fmt: skip
        console.print(leaderboard(comparison.drivers, SHORT).terminal(f"{self.tracks}, crash={self.crash}"))
        console.print(f"report: {self.out / 'report.html'}", highlight=False, soft_wrap=True)
        if comparison.failures:
            reasons = "; ".join(f"{name}: {why}" for name, why in comparison.failures.items())
            raise ValueError(f"{len(comparison.failures)} run(s) failed ({reasons}); try them again with --resume.")


@dataclass(frozen=True)
class Demo:
    """The main job in minutes: PPO's expert drives, NAC, LSTM and CfC learn from it, all race, and leave a report."""

    out: Path = Path("runs/demo")
    """Folder of the results; an interrupted demo goes on where it stopped."""
    from_scratch: bool = False
    """Train the expert too, by PPO from random weights: about an hour more. An interrupted run goes on."""
    seed: int = 0
    """Seed of the trainings."""
    device: Device = "auto"
    """Device of the training: the GPU where there is one (auto), cpu or cuda."""
    workers: int = 0
    """Parallel processes; 0: one per core."""

    def run(self, console: Console) -> None:
        from nac_drive.experiments.demo import DemoConfig, demo, from_scratch

        report = self.out / "report.md"
        if report.exists():
            raise FileExistsError(f"the demo is done: {report}; remove {self.out} or pass --out to run it again.")
        settings = from_scratch() if self.from_scratch else DemoConfig()
        settings = settings.with_seed(self.seed)
        with worker_pool(self.workers) as pool, show_progress(console) as progress:
            demo(settings, self.out, device=self.device, pool=pool, workers=self.workers, progress=progress)
        console.print(Text(report.read_text()), soft_wrap=True)
        console.print(f"report: {report.with_suffix('.html')}", highlight=False, soft_wrap=True)
        console.print(f"video: {self.out / 'side_by_side.mp4'}", highlight=False, soft_wrap=True)
