"""Commands that train: expert, train, dagger, compare and demo."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from tyro.conf import Positional

from data_collection.dataset import Demonstrations
from data_collection.ppo import ExpertConfig, train_expert
from data_collection.processes import default_workers, worker_pool
from envs import CrashMode, RendererName, track_seeds
from nac_drive.cloning import CloneConfig, clone
from nac_drive.compare import compare
from nac_drive.dagger import DaggerConfig, dagger
from nac_drive.demo import DemoConfig, demo
from nac_drive.jobs import Jobs, show_training
from nac_drive.progress import progress
from nac_drive.report import SHORT, terminal_table
from nac_drive.training_config import core_settings
from policies import CORES

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class ExpertOptions(ExpertConfig):
    """Those of `ExpertConfig`, as words of the command line."""

    resume: bool = False
    """Go on from the last checkpoint."""

    def __post_init__(self) -> None:
        """Checked where the config is made: what is refused while tyro parses fills a box instead of one line."""

    def config(self) -> ExpertConfig:
        """Raises ValueError for a bad setting."""
        return ExpertConfig(**{option.name: getattr(self, option.name) for option in fields(ExpertConfig)})


@dataclass(frozen=True)
class Expert:
    """Train the PPO expert, from a driver that DAgger has cloned (--init) or from nothing."""

    out: Path
    """Folder of the new run."""
    training: Annotated[ExpertOptions, tyro.conf.arg(name="")] = field(default_factory=ExpertOptions)

    def run(self, console: Console) -> None:
        config = self.training.config()
        with Jobs(console) as jobs:
            best = train_expert(config, self.out, resume=self.training.resume, report=jobs.expert_reporter())
        console.print(f"best checkpoint: {best}", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Words:
    """What commands that train ask for besides the settings of the training, and settings that need other words."""

    core_args: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[KEY=VALUE ...]")] = ()
    """Settings of the core, such as top_k=4 window=64."""
    device: Device = "auto"
    """Where to train."""
    workers: int = 0
    """Processes for the driving; 0: one per core."""
    resume: bool = False
    """Go on from the last checkpoint."""

    def __post_init__(self) -> None:
        """Nothing is checked before there is a config: what is refused while tyro parses fills a box instead of one
        line."""

    def settings(self, config: type) -> dict[str, Any]:
        """The arguments of `config`. Raises ValueError for a bad setting of the core."""
        options = {option.name: getattr(self, option.name) for option in fields(config)}
        return {**options, "core_args": core_settings(self.core_args)}


@dataclass(frozen=True)
class Training(Words, CloneConfig):  # type: ignore[misc]
    """Options that train and compare share: those of `CloneConfig`, as words of the command line, and `Words`."""

    vision: str = CloneConfig.vision
    """Convolutions: paper (the NAC paper's) or compact (a third of the parameters, and it sees the whole frame).
    compare also takes frozen: compact, trained once and shared by all, who learn on its features, many times faster."""
    core: tyro.conf.Suppress[str] = CloneConfig.core
    """Each command has an option of its own for this."""

    def config(self, core: str) -> CloneConfig:
        """Raises ValueError for a bad setting."""
        return CloneConfig(**{**self.settings(CloneConfig), "core": core})


@dataclass(frozen=True)
class DaggerOptions(Words, DaggerConfig):  # type: ignore[misc]
    """Those of `DaggerConfig`, as words of the command line, and `Words`."""

    def config(self) -> DaggerConfig:
        """Raises ValueError for a bad setting."""
        return DaggerConfig(**self.settings(DaggerConfig))


@dataclass(frozen=True)
class Train:
    """Train a driver on a dataset by behaviour cloning."""

    dataset: Positional[Path]
    """Folder of the dataset."""
    out: Path
    """Folder of the new run."""
    core: str = CloneConfig.core
    """Sequence model: a name in CORES, see docs/drivers.md."""
    training: Annotated[Training, tyro.conf.arg(name="")] = field(default_factory=Training)

    def run(self, console: Console) -> None:
        config, options = self.training.config(self.core), self.training
        with (
            worker_pool(options.workers or default_workers()) as pool,
            progress(console, self.core, config.epochs) as meter,
        ):
            best = clone(
                config, Demonstrations.open(self.dataset), self.out, device=options.device, resume=options.resume,
                pool=pool, report=lambda row: show_training(meter, row),
            )  # fmt: skip
        console.print(f"best checkpoint: {best}", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Dagger:
    """Train a driver on its own laps (DAgger): student and teacher take turns, the teacher says what to do."""

    out: Path
    """Folder of the new run; its laps are the dataset OUT/dataset."""
    teacher: str = "expert"
    """Who gives the labels: expert, controller, or the folder of a driver or run."""
    training: Annotated[DaggerOptions, tyro.conf.arg(name="")] = field(default_factory=DaggerOptions)

    def run(self, console: Console) -> None:
        config, options = self.training.config(), self.training
        with worker_pool(options.workers or default_workers()) as pool, Jobs(console) as jobs:
            best = dagger(
                config, self.out, teacher=self.teacher, device=options.device, resume=options.resume, pool=pool,
                report=jobs.dagger_reporter(),
            )  # fmt: skip
        console.print(f"best checkpoint: {best}", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Compare:
    """Train several drivers on the same dataset and evaluate them on the same tracks: one leaderboard, one figure."""

    dataset: Positional[Path]
    """Folder of the dataset."""
    out: Path
    """Folder of the comparison."""
    drivers: tuple[str, ...] = ("nac-exact", "lstm", "cfc")
    """Cores to compare; `all` is every one. Settings of a core follow its name, as in nac-exact,window=8."""
    repeats: int = 1
    """Trainings of each core, with the seeds SEED, SEED + 1, ..."""
    tracks: str = "test-10"
    """Tracks of the evaluation: SPLIT-COUNT or a comma list of seeds."""
    expert: str = "expert"
    """On the same tracks, and asked at every frame: expert, controller, or the folder of a driver or run."""
    crash: CrashMode = "ignore"
    """What a crash does: nothing, end the lap, or set the car back."""
    renderer: RendererName = "gymnasium"
    """Who draws the frames of the evaluation."""
    training: Annotated[Training, tyro.conf.arg(name="")] = field(default_factory=Training)

    def run(self, console: Console) -> None:
        options = self.training
        cores = tuple(dict.fromkeys(core for name in self.drivers for core in (CORES if name == "all" else [name])))
        frozen = options.vision == "frozen"
        config = options.config(cores[0].split(",")[0] if cores else CloneConfig.core)
        config = replace(config, vision="compact") if frozen else config
        with Jobs(console) as jobs:
            comparison = compare(
                cores, Demonstrations.open(self.dataset), track_seeds(self.tracks), self.out,
                config=config, repeats=self.repeats, frozen=frozen, expert=self.expert, crash=self.crash,
                renderer=self.renderer, device=options.device, resume=options.resume,
                workers=options.workers or default_workers(),
                report=jobs.compare_reporter(frozen + 1 + len(cores) * self.repeats),
            )  # fmt: skip
        console.print(terminal_table(comparison.contestants, f"{self.tracks}, crash={self.crash}", SHORT))
        console.print(f"table, rows and figure: {self.out}", highlight=False, soft_wrap=True)
        if comparison.failures:
            told = "; ".join(f"{name}: {why}" for name, why in comparison.failures.items())
            raise ValueError(f"{len(comparison.failures)} run(s) failed ({told}); try them again with --resume.")


@dataclass(frozen=True)
class Demo:
    """The main job in minutes: a NAC driver learns to drive by DAgger, races its teacher, and leaves a report."""

    out: Path = Path("runs/demo")
    """Folder of the results; an interrupted demo goes on where it stopped."""
    seed: int = 0
    """Seed of the training."""
    device: Device = "auto"
    """Where to train."""
    workers: int = 0
    """Parallel processes; 0: one per core."""

    def run(self, console: Console) -> None:
        report = self.out / "report.md"
        if report.exists():
            raise FileExistsError(f"the demo is done: {report}; remove {self.out} or pass --out to run it again.")
        settings = DemoConfig()
        settings = replace(settings, training=replace(settings.training, seed=self.seed))
        with worker_pool(self.workers or default_workers()) as pool, Jobs(console) as jobs:
            demo(settings, self.out, device=self.device, pool=pool, report=jobs.demo_reporter())
        console.print(report.read_text(), highlight=False, soft_wrap=True, markup=False)
        console.print(f"report: {report}\nvideo: {self.out / 'side_by_side.mp4'}", highlight=False, soft_wrap=True)
