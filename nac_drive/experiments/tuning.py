"""Tuning: every core has the same small budget of trials.

The trials come before the runs of a comparison, in rounds of successive halving.

Four learning rates are tried in a quarter of the epochs. The two best go on to half of the epochs. Beside them start
two trials at the best rate: each changes one documented setting of the core, or, in a core without any, the rate by a
third. The two best of these four go on to all epochs. The best one has the settings of the core's runs. A score is the
mean less half a standard deviation of the returns on the validation tracks. A few tracks do not tell neighbours apart,
so a trial is ranked by the mean of its scores so far.

A trial is a run of `train` with one seed. Its rows stand in the journal of the comparison.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import msgspec

from nac_drive.envs import track_seeds
from nac_drive.evaluation.metric import EMPTY, TableColumn
from nac_drive.events import Progress
from nac_drive.experiments.driving import Driving, Training, folder_name
from nac_drive.experiments.entrants import Entrants
from nac_drive.experiments.experiment import Row, Task, run
from nac_drive.experiments.journal import Journal
from nac_drive.experiments.table import Table
from nac_drive.markdown import number_text
from nac_drive.policies import CORES, build_core
from nac_drive.training.config import MOST, TrainConfig
from nac_drive.training.finite import DivergedError
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.train import Splits

RATES = (1e-3, 2e-3, 5e-3, 1e-2)
"""Learning rates that every core tries."""
NEARBY = (0.7, 1.4)
"""Factors of the best rate, for cores with fewer settings than trials."""
ALTERNATIVES: dict[str, tuple[Any, ...]] = {
    "num_heads": (4, 8), "window": (16, 4), "backbone_units": (64, 256), "unfolds": (3, 12), "num_scales": (5, 9),
    "ode_steps": (2, 8), "state_size": (32, 128), "rnn_size": (32, 128), "inter": (24, 6), "sparsity": (0.25, 0.75),
}  # fmt: skip
"""Setting of a core -> values to try. A core tries its first two settings, or both values of a single one."""
_KEPT = 2
"""Trials that go on from each rung."""


@dataclass(frozen=True)
class Trial:
    """Settings that are tried for a core."""

    core: str
    """The core as the user wrote it."""
    rate: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the core that differ from the user's."""

    @property
    def name(self) -> str:
        """The settings as words."""
        return ",".join([f"learning_rate={self.rate:g}", *(f"{name}={value}" for name, value in self.settings.items())])

    @property
    def label(self) -> str:
        """The folder of its run."""
        return f"tuning/{folder_name(f'{self.core},{self.name}')}"

    def of(self, config: TrainConfig) -> TrainConfig:
        """Return the settings of a run, changed by the trial."""
        driver = replace(config.driver, core_args={**config.driver.core_args, **self.settings})
        return replace(config, driver=driver, optim=replace(config.optim, learning_rate=self.rate))


def first_trials(core: str) -> list[Trial]:
    """Return the trials of the first rung."""
    return [Trial(core, rate) for rate in RATES]


def later_trials(core: str, config: TrainConfig, rate: float) -> list[Trial]:
    """Return the two trials that start in the second rung.

    Args:
        core: The core as the user wrote it.
        config: The settings of its runs.
        rate: The best rate of the first rung.
    """
    factory = CORES.require(config.driver.core)
    ordinary = factory.ordinary
    changes = [
        [{name: value} for value in values if value != ordinary.get(name) and _is_possible(config, {name: value})]
        for name, values in ALTERNATIVES.items()
        if name in factory.accepted and name not in config.driver.core_args
    ]
    changes = [settings for settings in changes if settings]
    chosen = changes[0] if len(changes) == 1 else [values[0] for values in changes]
    rates = [Trial(core, float(f"{factor * rate:.2g}")) for factor in NEARBY]
    return [*(Trial(core, rate, settings) for settings in chosen), *rates][:_KEPT]


def _is_possible(config: TrainConfig, settings: Mapping[str, Any]) -> bool:
    """Return whether the core can be built with these settings.

    A module of the user refuses a window if it keeps a state.
    """
    driver = config.driver
    words = json.dumps({**driver.core_args, **settings})
    return _is_built(driver.core, driver.encoder_features, driver.d_model, words)


@cache
def _is_built(core: str, input_size: int, output_size: int, settings: str) -> bool:
    try:
        build_core(core, input_size, output_size, **json.loads(settings))
    except ValueError:
        return False
    return True


class _TrialRow(msgspec.Struct):
    """The measured part of a trial's row."""

    returns: list[Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]]
    """On the validation tracks; none if the training diverged."""
    score: float | None
    seconds: Annotated[float, msgspec.Meta(ge=0)]


_COORDINATES = dict.fromkeys(("driver", "run", "perturbation", "seed", "trial", "epochs"))


@dataclass(frozen=True)
class TunedDriving(Driving):
    """A comparison whose cores are tuned first."""

    trainings: Mapping[str, Training] = field(default_factory=dict)
    """Core -> the settings of its runs, with the seed of its trials."""

    @property
    def rungs(self) -> tuple[int, ...]:
        """Epochs of the trials, rung by rung."""
        epochs = next(iter(self.trainings.values())).config.epochs
        return -(-epochs // 4), -(-epochs // 2), epochs

    def trials(self, core: str) -> list[Trial]:
        """Return all trials that a core may have."""
        first, config = first_trials(core), self.trainings[core].config
        later = [trial for each in first for trial in later_trials(core, config, each.rate)]
        return list({trial.name: trial for trial in (*first, *later)}.values())

    def trial_tasks(self, trials: Sequence[Trial], epochs: int) -> list[Task]:
        """Return the tasks of one rung."""
        return [
            Task(trial.label, {**_COORDINATES, "driver": trial.core, "trial": trial.name, "epochs": epochs})
            for trial in trials
        ]

    def conditions(self) -> dict[str, Any]:
        config = next(iter(self.trainings.values())).config
        tracks = track_seeds(config.validation.tracks)
        return super().conditions() | {"tuning": {"rates": RATES, "epochs": self.rungs, "tracks": tracks}}

    def tasks(self) -> list[Task]:
        tried = [
            task
            for core in self.trainings
            for trial in self.trials(core)
            for epochs in dict.fromkeys(self.rungs)
            for task in self.trial_tasks([trial], epochs)
        ]
        driven = [replace(task, coordinates={**_COORDINATES, **task.coordinates}) for task in super().tasks()]
        return tried + driven

    def for_part(self, tasks: Sequence[Task]) -> Driving:
        if tasks[0].coordinates["trial"] is None:
            alone = super().for_part(tasks)
            return Driving(**{each.name: getattr(alone, each.name) for each in fields(Driving)})
        core = tasks[0].coordinates["driver"]
        return replace(self, entries=(), trainings={core: self.trainings[core]})

    def trained_as(self, configs: Mapping[str, TrainConfig], splits: Splits | None) -> TunedDriving:
        trainings = {
            core: replace(training, config=configs[core], splits=splits) for core, training in self.trainings.items()
        }
        return replace(self, entries=super().trained_as(configs, splits).entries, trainings=trainings)

    def with_chosen(self, tuned: Sequence[Tuned]) -> TunedDriving:
        """Return the experiment whose runs have the settings that the trials chose."""
        splits = next(iter(self.trainings.values())).splits
        configs = {core.name: core.of(self.trainings[core.name].config) for core in tuned}
        return replace(self, entries=super().trained_as(configs, splits).entries)

    def measure(self, folder: Path | None, tasks: Sequence[Task]) -> Iterator[Row]:
        assert folder is not None
        for task in tasks:
            core, epochs = task.coordinates["driver"], task.coordinates["epochs"]
            (trial,) = (each for each in self.trials(core) if each.name == task.coordinates["trial"])
            yield {**task.coordinates, **_tried(self.trainings[core], trial, epochs, folder / trial.label)}

    def check(self, task: Task, row: Row) -> None:
        if task.coordinates["trial"] is None:
            super().check(task, row)
            return
        try:
            measured = msgspec.convert(row, _TrialRow)
        except msgspec.ValidationError as error:
            raise ValueError(f"a trial: {error}") from None
        tracks = len(track_seeds(self.trainings[task.coordinates["driver"]].config.validation.tracks))
        if len(measured.returns) != (0 if measured.score is None else tracks):
            raise ValueError(f"a trial must have {tracks} returns, got {len(measured.returns)}")

    def note(self, rows: Sequence[Row]) -> str:
        row = rows[-1]
        if row.get("trial") is None:
            return super().note(rows)
        score = "diverged" if row["score"] is None else f"score {number_text(row['score'], '.0f')}"
        return f"{row['driver']}, {row['trial']}, {row['epochs']} epochs: {score}"


def _tried(training: Training, trial: Trial, epochs: int, run_folder: Path) -> dict[str, Any]:
    """Train up to an epoch; return what a row has beside its coordinates."""
    (run_folder / "failed.txt").unlink(missing_ok=True)
    run_folder.parent.mkdir(exist_ok=True)
    config = replace(trial.of(training.config), epochs=epochs, validate_every=MOST)
    try:
        replace(training, config=config).driver(run_folder)
    except DivergedError:
        return {"returns": [], "score": None, "seconds": sum(row["seconds"] for row in RunFolder(run_folder).rows())}
    rows = [row for row in RunFolder(run_folder).rows() if row["step"] <= epochs]
    seconds = sum(row["seconds"] for row in rows)
    return {"returns": rows[-1]["returns"], "score": rows[-1]["score"], "seconds": round(seconds, 1)}


def is_driven(task: Task) -> bool:
    """Return whether a task is an episode, not a trial."""
    return task.coordinates.get("trial") is None


def tuned_driving(driving: Driving, entrants: Entrants, device: str) -> TunedDriving:
    """Return a comparison whose cores are tuned first.

    Raises:
        ValueError: There is no core, a rate is chosen already, or the trials would see tracks of the results.
    """
    config = entrants.config
    if not entrants.configs:
        raise ValueError("tune needs a core to train, got drivers alone; name one, or leave tune out.")
    if config.optim.learning_rate is not None:
        raise ValueError(
            f"tune chooses the learning rate, got learning_rate {config.optim.learning_rate:g}; leave out one of both."
        )
    for name, value in config.optim.of_epochs().items():
        raise ValueError(
            f"tune goes on with short trials up to all epochs, which {name} = {value!r} does not allow; "
            "leave out one of both."
        )
    if shared := sorted({*track_seeds(config.validation.tracks)} & {*driving.tracks}):
        raise ValueError(
            f"tune must not see the tracks of the results, but track {shared[0]} is a validation track, too; "
            "choose other tracks or validation_tracks."
        )
    trainings = {
        core: Training(replace(own, seed=config.seed), entrants.dataset.path, device)
        for core, own in entrants.configs.items()
    }
    common = {each.name: getattr(driving, each.name) for each in fields(Driving)}
    return TunedDriving(**common, trainings=trainings)


@dataclass(frozen=True)
class Tuned:
    """The trials of a core, and the settings that they chose."""

    name: str
    """The core as the user wrote it."""
    rows: tuple[Row, ...]
    """Rung by rung, each from the best score to the worst."""
    chosen: Trial | None
    """None if no trial was finished."""

    def of(self, config: TrainConfig) -> TrainConfig:
        """Return the settings of the core's runs."""
        return self.chosen.of(config) if self.chosen else config


def tune_cores(
    experiment: TunedDriving, journal: Journal, *, workers: int = 1, cluster: str | None = None, progress: Progress
) -> list[Tuned]:
    """Measure the missing trials, rung by rung, and choose.

    Args:
        experiment: The comparison.
        journal: Has the finished trials, and gets every new one.
        workers: See `experiment.run`.
        cluster: See `experiment.run`.
        progress: Called with an event for every trial.
    """
    going = {core: first_trials(core) for core in experiment.trainings}
    ranked: dict[str, list[Row]] = {}
    seen: dict[str, list[Row]] = {core: [] for core in going}
    for number, epochs in enumerate(experiment.rungs):
        tasks = {core: experiment.trial_tasks(trials, epochs) for core, trials in going.items()}
        wanted = {task.key for of_core in tasks.values() for task in of_core}
        run(
            experiment, journal, workers=workers, cluster=cluster, only=lambda task, wanted=wanted: task.key in wanted,
            job="tuning", progress=progress,
        )  # fmt: skip
        for core, of_core in tasks.items():
            rows = [journal.rows[task.key] for task in of_core if task.key in journal.rows]
            seen[core] += [row for row in sorted(rows, key=_score, reverse=True) if row not in seen[core]]
            ranked[core] = sorted(rows, key=partial(_mean_score, seen[core]), reverse=True)
            best = [trial for row in ranked[core][:_KEPT] for trial in going[core] if trial.name == row["trial"]]
            if number == 0 and best:
                best += later_trials(core, experiment.trainings[core].config, best[0].rate)
            going[core] = best
    return [Tuned(core, tuple(seen[core]), next(iter(trials), None)) for core, trials in going.items()]


def _score(row: Row) -> float:
    return float("-inf") if row["score"] is None else row["score"]


def _mean_score(rows: Sequence[Row], row: Row) -> float:
    """Return the mean score of a row's trial over all rungs."""
    return fmean(_score(each) for each in rows if each["trial"] == row["trial"])


def tuning_table(tuned: Sequence[Tuned]) -> Table:
    """Return the trials of all cores as a table."""
    items = [(core, row) for core in tuned for row in core.rows]
    chosen = {
        id(row) for core in tuned for row in core.rows
        if core.chosen and (row["trial"], row["epochs"]) == (core.chosen.name, core.rows[-1]["epochs"])
    }  # fmt: skip
    columns: list[Any] = [
        TableColumn("core", lambda item: item[1]["driver"], "The core."),
        TableColumn("settings", lambda item: item[1]["trial"], "What the trial changed."),
        TableColumn("epochs", lambda item: str(item[1]["epochs"]), "Epochs of the trial so far."),
        TableColumn("score", lambda item: _number(item[1]["score"]), "Mean less half a standard deviation of returns."),
        TableColumn("returns", lambda item: _returns(item[1]), "Returns on the validation tracks."),
        TableColumn(
            "chosen", lambda item: "yes" if id(item[1]) in chosen else EMPTY, "The settings of the core's runs."
        ),
    ]
    return Table.of(columns, items, "Score: mean less half a standard deviation on the validation tracks.", names=2)


def _number(value: float | None) -> str:
    return "diverged" if value is None else number_text(value, ".0f")


def _returns(row: Row) -> str:
    return " ".join(number_text(value, ".0f") for value in row["returns"]) or EMPTY
