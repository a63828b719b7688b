"""Commands that train: train, dagger, ppo, compare and demo.

The work of a command is imported when it runs: help and errors in options come at once, without torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.text import Text
from tyro.conf import Positional

import nac_drive as nd
from nac_drive.cli.plugins import describe_core
from nac_drive.cli.progress import ProgressMode, print_sentences, show_progress
from nac_drive.cli.settings import Source, TrainingCommand, with_settings
from nac_drive.cli.typed import Device, typed
from nac_drive.envs import CrashMode, EnvConfig
from nac_drive.envs.views import View
from nac_drive.parallel.processes import worker_pool
from nac_drive.policies import DriverConfig
from nac_drive.storage.names import unescaped
from nac_drive.training.config import TrainConfig, paper_recipe
from nac_drive.training.dagger_config import DaggerConfig
from nac_drive.training.ppo.config import PPOConfig

_DRIVER = ("driver.core", "driver.core_args", "driver.encoder")
_CLONING = (
    *_DRIVER, "driver.residual", "data.sequence_length", "data.batch_size", "data.augment", "optim.learning_rate",
    "optim.init_from", "optim.freeze_encoder_from", "validation.tracks", "seed", "epochs", "validate_every", "perturb",
    "track",
)  # fmt: skip
"""Settings that are options of `train`."""
_VIEW = "the dataset (collect --view seat records one, dataset rebuild --view seat draws a recording anew)"
_OF_DATASET = {"driver.control": "the dataset", "view": _VIEW, "size": _VIEW}


@dataclass(frozen=True)
class TrainingOptions:
    """Device, number of processes, and resuming."""

    device: Device = "auto"
    """Device of the training: the GPU where there is one (auto), cpu or cuda."""
    workers: int = 0
    """Parallel processes; 0: one per core."""
    cluster: str | None = None
    """Ray cluster that does the work in place of this machine: auto (the one this machine belongs to) or HOST:PORT.
    train, dagger and ppo validate there, dagger also collects there, and compare trains there, from storage that all
    machines share, on a GPU for each run where the cluster has any."""
    resume: bool = False
    """Go on from the last checkpoint; epochs, rounds or timesteps may have grown, and a learning rate that falls
    then falls over the new number."""
    progress: ProgressMode = "auto"
    """auto: bars in a terminal, lines elsewhere; json: a line of JSON for every event, on stderr."""


@dataclass(frozen=True)
class _SharedOptions(TrainingOptions):
    """Devices, processes, and resuming."""

    devices: int = 1
    """Processes on this machine that share every batch: one for each of this many GPUs, or on the CPU."""
    nodes: int = 1
    """Machines that share every batch: start the same command on each (docs/scale.md)."""


@with_settings("train", *_CLONING, fixed=_OF_DATASET)
@dataclass(frozen=True, kw_only=True)
class Train(TrainingCommand):
    """Train a driver on a dataset by behaviour cloning."""

    dataset: Annotated[Positional[Path | None], tyro.conf.arg(metavar="[DATASET]")] = None
    """Folder of the dataset; with --config it may be left out."""
    out: Path
    """Folder of the new run."""
    recipe: Literal["default", "paper"] = "default"
    """paper: the settings of the NAC paper's Table 4, in place of the defaults; options given here still count."""
    source: Annotated[Source, tyro.conf.arg(name="")] = field(default_factory=Source)
    options: Annotated[_SharedOptions, tyro.conf.arg(name="")] = field(default_factory=_SharedOptions)

    def run(self, console: Console) -> None:
        config, dataset = self.settings(), _named(self.dataset)
        describe_core(config.driver, console)
        with (
            worker_pool(self.options.workers, self.options.cluster) as pool,
            show_progress(console, self.options.progress) as progress,
        ):
            best = nd.train(
                config, dataset, self.out, device=self.options.device, devices=self.options.devices,
                nodes=self.options.nodes, resume=self.options.resume,
                pool=pool, progress=progress,
            )  # fmt: skip
        console.print(f"best checkpoint: {best}", highlight=False, soft_wrap=True)

    def ordinary(self) -> TrainConfig:
        return paper_recipe() if self.recipe == "paper" else TrainConfig()

    def init_env(self, config: TrainConfig) -> EnvConfig:
        return nd.Demonstrations.open(_named(self.dataset)).meta.env


@with_settings(
    "dagger", "environment", "driver.control", "driver.core", "driver.core_args", "driver.residual",
    "data.sequence_length", "data.batch_size", "optim.learning_rate",
    "optim.init_from", "optim.freeze_encoder_from", "validation.tracks", "seed", "perturb", "rounds",
    "initial_episodes", "episodes", "initial_epochs", "epochs", "track",
)  # fmt: skip
@dataclass(frozen=True)
class Dagger(TrainingCommand):
    """Train a driver on its own episodes (DAgger): a mixture of learner and expert drives, the expert labels."""

    out: Path
    """Folder of the new run; its episodes are the dataset OUT/dataset."""
    expert: str = "expert"
    """Driver that gives the labels: expert, controller, human (a person at the keys of a window, who drives round 0 and
    corrects the learner in later rounds), the folder of a driver or run, an .onnx or .zip file, or your own as
    FILE.py:NAME."""
    source: Annotated[Source, tyro.conf.arg(name="")] = field(default_factory=Source)
    options: Annotated[_SharedOptions, tyro.conf.arg(name="")] = field(default_factory=_SharedOptions)

    def run(self, console: Console) -> None:
        config, options = self.settings(), self.options
        describe_core(config.driver, console)
        with (
            worker_pool(options.workers, options.cluster) as pool,
            show_progress(console, options.progress) as progress,
        ):
            best = nd.dagger(
                config, self.out, expert=typed(self.expert), device=options.device, devices=options.devices,
                nodes=options.nodes, resume=options.resume, pool=pool,
                progress=progress,
            )  # fmt: skip
        console.print(f"best checkpoint: {best}", highlight=False, soft_wrap=True)

    def init_env(self, config: DaggerConfig) -> EnvConfig:
        options: Any = self
        return replace(
            config, environment=options.environment, driver=replace(config.driver, control=options.control)
        ).env


@with_settings(
    "ppo", "environment", "driver.control", *_DRIVER, "optim.init_from", "optim.learning_rate", "total_timesteps",
    "validate_every",
    "validation.tracks", "seed", "rollout.n_envs", "rollout.n_steps", "rollout.action_repeat", "optim.batch_size",
    "optim.n_epochs", "optim.value_warmup_steps", "optim.clip_range", "optim.gamma", "perturb", "view", "track",
)  # fmt: skip
@dataclass(frozen=True)
class Ppo(TrainingCommand):
    """Train a driver by PPO, from random weights or from a cloned driver (--init-from)."""

    out: Path
    """Folder of the new run."""
    source: Annotated[Source, tyro.conf.arg(name="")] = field(default_factory=Source)
    options: Annotated[TrainingOptions, tyro.conf.arg(name="")] = field(default_factory=TrainingOptions)

    def run(self, console: Console) -> None:
        config, options = self.settings(), self.options
        describe_core(config.driver, console)
        with (
            worker_pool(options.workers, options.cluster) as pool,
            show_progress(console, options.progress) as progress,
        ):
            best = nd.ppo(
                config, self.out, device=options.device, resume=options.resume, pool=pool, progress=progress
            )  # fmt: skip
        console.print(f"best checkpoint: {best}", highlight=False, soft_wrap=True)

    def init_env(self, config: PPOConfig) -> EnvConfig:
        options: Any = self
        driver = replace(config.driver, control=options.control)
        return replace(config, environment=options.environment, view=options.view, driver=driver).env


@with_settings(
    "train", "driver.encoder", "data.sequence_length", "data.batch_size", "data.augment", "optim.learning_rate",
    "optim.freeze_encoder_from", "validation.tracks", "seed", "epochs", "validate_every", "perturb", "track",
    fixed={**_OF_DATASET, "view": "--view", "driver.core": "--drivers", "driver.core_args": "--drivers"},
)  # fmt: skip
@dataclass(frozen=True, kw_only=True)
class Compare(TrainingCommand):
    """Train several drivers on the same dataset and evaluate them on the same tracks: one leaderboard with figures."""

    dataset: Annotated[Positional[Path | None], tyro.conf.arg(metavar="[DATASET]")] = None
    """Folder of the dataset; with --config it may be left out."""
    out: Path
    """Folder of the comparison."""
    drivers: tuple[str, ...] = ("nac-exact", "lstm", "cfc")
    """Cores to train; `all` is every one. Settings of a core follow its name, as in nac-exact,window=8. Drivers among
    them (a name, a folder, an .onnx or .zip file, or your own as FILE.py:NAME) are evaluated as they are."""
    num_seeds: int = 1
    """Runs of each core, with the seeds SEED, SEED + 1, ..."""
    tracks: str = "test-10"
    """Tracks of the evaluation: SPLIT-COUNT or a comma list of seeds."""
    expert: str = "expert"
    """Driver that is evaluated on the same tracks and queried at every frame: expert, controller, the folder of a
    driver or run, or your own as FILE.py:NAME."""
    baseline: str | None = None
    """What differences are taken against: one of the drivers, or the expert; none: lstm where it takes part, else the
    expert."""
    shared_encoder: bool = False
    """Train one encoder for all cores: they learn on its features, many times faster."""
    tune: bool = False
    """Try four learning rates and two settings of every core on the validation tracks first: its runs have the best."""
    view: View | None = None
    """The world that cores learn and drive in: above, or seat, from the driver's seat. A dataset of another view is
    drawn anew first, as DATASET-VIEW; none: the dataset's."""
    crash: CrashMode = "ignore"
    """The effect of a crash: nothing (ignore), the end of the episode (terminate), or a restart on the road
    (intervene)."""
    source: Annotated[Source, tyro.conf.arg(name="")] = field(default_factory=Source)
    options: Annotated[TrainingOptions, tyro.conf.arg(name="")] = field(default_factory=TrainingOptions)

    def run(self, console: Console) -> None:
        from nac_drive.experiments.entrants import is_core, with_core
        from nac_drive.experiments.leaderboard import SHORT, leaderboard
        from nac_drive.experiments.tuning import tuning_table

        names = [core for name in self.drivers for core in (nd.CORES if name == "all" else [typed(name)])]
        drivers, options = tuple(dict.fromkeys(names)), self.options
        cores = [name for name in drivers if is_core(name)]
        first = cores[0].split(",")[0] if cores else DriverConfig.core
        config, dataset = self.settings({"driver.core": first, "driver.core_args": {}}), _named(self.dataset)
        for core in cores:
            describe_core(with_core(config, core).driver, console)
        with show_progress(console, options.progress) as progress:
            comparison = nd.compare(
                drivers, dataset, self.tracks, self.out, config=config, num_seeds=self.num_seeds,
                shared_encoder=self.shared_encoder, tune=self.tune, view=self.view, expert=typed(self.expert),
                baseline=self.baseline and typed(self.baseline), crash=self.crash, device=options.device,
                resume=options.resume, workers=options.workers, cluster=options.cluster,
                progress=progress,
            )  # fmt: skip
        if comparison.tuned:
            console.print(tuning_table(comparison.tuned).terminal(f"tuning, {config.validation.tracks}"))
        console.print(leaderboard(comparison.drivers, SHORT).terminal(f"{self.tracks}, crash={self.crash}"))
        verdicts = [verdict.sentence for verdict in comparison.verdicts]
        print_sentences(console, [comparison.headline, *verdicts] if len(verdicts) > 1 else verdicts)
        console.print(f"report: {self.out / 'report.html'}", highlight=False, soft_wrap=True)
        if comparison.failures:
            reasons = "; ".join(f"{name}: {why}" for name, why in comparison.failures.items())
            raise ValueError(f"{len(comparison.failures)} run(s) failed ({reasons}); try them again with --resume.")


def _named(dataset: Path | None) -> Path:
    """Return the folder of a dataset.

    Raises:
        ValueError: There is none.
    """
    if dataset is None:
        raise ValueError("dataset must be the folder of a dataset, got none; name it, or pass --config of a run.")
    return dataset


@dataclass(frozen=True)
class Repeat:
    """Run a finished training again and compare the results."""

    run_folder: Annotated[Positional[Path], tyro.conf.arg(name="run")]
    """Folder of a run of train, dagger or ppo."""
    out: Path
    """Folder of the new run."""
    dataset: Path | None = None
    """Folder of the dataset if it has moved; its content has to be the same."""
    device: Literal["cpu", "cuda"] | None = None
    """Device of the training; none: the device of the run."""
    workers: int = 0
    """Parallel processes; 0: one per core."""
    resume: bool = False
    """Go on with an interrupted repetition."""
    progress: ProgressMode = "auto"
    """auto: bars in a terminal, lines elsewhere; json: a line of JSON for every event, on stderr."""

    def run(self, console: Console) -> None:
        with worker_pool(self.workers) as pool, show_progress(console, self.progress) as progress:
            repetition = nd.repeat(
                self.run_folder, self.out, dataset=self.dataset, device=self.device, resume=self.resume, pool=pool,
                progress=progress,
            )  # fmt: skip
        for line in repetition.lines:
            console.print(line, highlight=False, soft_wrap=True)
        console.print("the result is equal" if repetition.equal else "the result is not equal", highlight=False)


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
        console.print(Text(unescaped(report.read_text())), soft_wrap=True)
        console.print(f"report: {report.with_suffix('.html')}", highlight=False, soft_wrap=True)
        console.print(f"video: {self.out / 'side_by_side.mp4'}", highlight=False, soft_wrap=True)
