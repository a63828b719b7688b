"""Several drivers, one protocol: the same demonstrations, the same tracks, one leaderboard. It can be resumed.

FOLDER/conditions.json  rows.jsonl (one row per finished episode)  latencies.json  CORE-SEED/ (a run of `train` each)
summary.json  table.md  results.json  report.html  figure.png  learning_curves.png
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.drivers import (
    AnyDriver,
    accepted,
    driver_hash,
    driver_name,
    driver_names,
    env_seen_by,
    known_there,
    names_plugin_driver,
    require_environment,
    resolve_driver,
    sendable,
)
from nac_drive.envs import CrashMode, EnvConfig, track_seeds
from nac_drive.evaluation.evaluate import Evaluation, evaluate, with_holm
from nac_drive.evaluation.metrics import NotNegative
from nac_drive.evaluation.results import EpisodeResult
from nac_drive.evaluation.verdict import Verdict
from nac_drive.events import Event, Progress, message, silent
from nac_drive.experiments.driving import EXPERT, Driving, Entry, Episodes, Training, episodes_of
from nac_drive.experiments.evaluation import SUMMARY, save_summaries
from nac_drive.experiments.experiment import in_own_processes, open_experiment, run
from nac_drive.experiments.figures import (
    LEADERBOARD_CAPTION,
    LEARNING_CAPTION,
    draw_leaderboard,
    draw_learning_curves,
)
from nac_drive.experiments.headline import headline
from nac_drive.experiments.leaderboard import SHORT, RankedDriver, leaderboard, save_results, verdicts
from nac_drive.experiments.page import Page, PageFigure, conditions, inspect_command, track_names
from nac_drive.notebook import automatic, paragraph
from nac_drive.parallel.processes import number_of_workers, worker_pool
from nac_drive.plain import whole
from nac_drive.policies import CORES, load_driver
from nac_drive.storage.figure import try_to_draw
from nac_drive.storage.read import read_json
from nac_drive.storage.write import write_atomically
from nac_drive.suggest import did_you_mean
from nac_drive.training.config import TrainConfig, core_settings
from nac_drive.training.distributed import choose_device
from nac_drive.training.plan import source_hashes
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.train import load_splits, train_plan
from nac_drive.training.trainer import build_learner

BASELINE = "lstm"
"""The core that differences are taken against where nothing else is chosen; the expert, if it takes no part."""
_LATENCIES, _CURVES, _FIGURE, _ENCODER = "latencies.json", "learning_curves.png", "figure.png", "encoder"
_FILES = (SUMMARY, "table.md", "results.json", "report.html", _LATENCIES)
"""Files beside conditions.json and rows.jsonl that are written whole."""


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison."""

    drivers: list[RankedDriver]
    """The expert, the other drivers that were not trained here, then the trained ones, the best return first."""
    failures: dict[str, str]
    """Name of a failed run -> message; the leaderboard leaves it out."""

    def __repr__(self) -> str:
        return f"Comparison({len(self.drivers)} drivers: {self.headline})"

    def _repr_html_(self) -> str:
        """The headline, the table and the verdicts."""
        failures = [f"{name} failed: {reason}" for name, reason in self.failures.items()]
        sentences = [verdict.sentence for verdict in self.verdicts]
        sentences = sentences if len(sentences) > 1 else []
        below = "".join(map(paragraph, [*sentences, *failures]))
        return paragraph(self.headline, strong=True) + leaderboard(self.drivers, SHORT).html() + below

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        return headline(self.drivers)

    @property
    def verdicts(self) -> list[Verdict]:
        """Every driver against the baseline, in the order of `drivers`."""
        return [driver.evaluation.verdict for driver in self.drivers if driver.evaluation.verdict]


def compare(
    drivers: Sequence[str | AnyDriver],
    dataset: Demonstrations | str | os.PathLike[str],
    tracks: str | Sequence[int],
    folder: str | os.PathLike[str],
    *,
    config: TrainConfig | None = None,
    num_seeds: int = 1,
    shared_encoder: bool = False,
    expert: AnyDriver = "expert",
    baseline: str | None = None,
    crash: CrashMode = "ignore",
    device: str = "auto",
    resume: bool = False,
    workers: int = 1,
    cluster: str | None = None,
    progress: Progress = automatic,
) -> Comparison:
    """Train drivers with several cores on one dataset, evaluate all on the same tracks, and rank them.

    The run of a core is `folder/CORE-SEED`. `folder` gets report.html, table.md, results.json, rows.jsonl,
    summary.json, figure.png and learning_curves.png.

    Args:
        drivers: Names in CORES, with settings of their own after a comma, such as `nac-exact,window=8`: each is
            trained. Other names, folders, files and objects are drivers, see `resolve_driver`: each is evaluated as it
            is.
        dataset: The demonstrations, or their folder.
        tracks: Named tracks such as "test-10", or their seeds.
        folder: The folder of the comparison.
        config: Settings of every run; its core is replaced by each one of `drivers`.
        num_seeds: Number of runs of each core, with the seeds config.seed, config.seed + 1, ...
        shared_encoder: Train one encoder with the core `cnn` on single frames, as many a batch as in the sequences of
            `config`, augmented as it says; all cores learn on its clean features.
        expert: Evaluated on the same tracks, and queried at every frame of every evaluation, see `resolve_driver`. It
            sees the status bar as in its training, whether or not the drivers see it. The shipped expert takes part in
            CarRacing alone.
        baseline: What differences are taken against: one of `drivers`, or the expert's name. None for the core `lstm`
            where it takes part, else for the expert.
        crash: The effect of a crash in the evaluation, see `evaluate`.
        device: `auto`, `cpu` or `cuda`.
        resume: Keep finished runs and go on with the others; drivers, seeds or tracks may have been added.
        workers: Number of processes, 0 for one per core; on a GPU the runs take turns. Every run and its evaluation has
            a process of one thread; a process that dies costs no other run. The time of one `act` is measured
            afterwards, for one driver of each core in turn.
        cluster: Train and evaluate on a Ray cluster, see `worker_pool`. All its machines must see `dataset`, `folder`
            and the working folder. Each run has one CPU, with the device cuda also one GPU; auto is the CPU there.
        progress: Called with an event when a run starts, ends, fails, and when its `act` is timed.

    Returns:
        The ranking, and the failed runs.

    Raises:
        ValueError: For a bad argument, before anything is created, when the shared encoder, the expert or every run
            fails, and if another process holds `folder`.
        FileExistsError: If `folder` holds anything and `resume` is off.
        FileNotFoundError: If `folder` is no comparison and `resume` is on.
    """
    config = config or TrainConfig()
    dataset = dataset if isinstance(dataset, Demonstrations) else Demonstrations.open(dataset)
    cores = [driver for driver in drivers if isinstance(driver, str) and is_core(driver)]
    given = tuple(accepted(driver) for driver in drivers if not (isinstance(driver, str) and is_core(driver)))
    known = known_there(expert, dataset.meta.env)
    protocol = _Protocol(
        dataset, Path(folder), tracks, None if known is None else accepted(known), given, crash, config, num_seeds,
        shared_encoder,
    )  # fmt: skip
    number_of_workers(workers)
    configs = _configs(cores, config, num_seeds, shared_encoder) if cores or not given else {}
    names = [*configs, *protocol.given_names(configs), *([EXPERT] if protocol.expert is not None else [])]
    if len(set(names)) < len(names):
        raise ValueError(f"drivers and expert must be different, each with a name of its own, got {', '.join(names)}.")
    baseline = _baseline(baseline, names)
    protocol.require_runnable(configs, "cpu" if cluster else device)
    device = "cpu" if cluster and device == "auto" else device  # a GPU is for runs that reserved it
    if configs and not cluster and choose_device(device).type == "cuda":
        workers = 1  # each further process would hold a copy of the data on the one GPU
    experiment = protocol.experiment(configs, device)
    with open_experiment(experiment, folder, files=_FILES, resume=resume) as journal:
        journal.begin()  # before any run is trained
        assert journal.folder is not None
        if shared_encoder and configs:
            encoder = _trained_encoder(protocol, device, cluster, progress)
            configs = {core: on_features(own, str(encoder)) for core, own in configs.items()}
        experiment = protocol.with_features(experiment, configs, journal.rows, progress)
        with nullcontext() if experiment.isolated else worker_pool(workers, cluster) as pool:
            results = run(
                experiment, journal, pool=pool, workers=workers, cluster=cluster, job="runs", progress=progress
            )
        if EXPERT in results.failures:
            raise ValueError(
                f"the expert {driver_name(protocol.expert or EXPERT)!r} could not be evaluated: "
                f"{results.failures[EXPERT]}"
            )
        entries = ranked(experiment, episodes_of(results), journal.folder, progress, baseline=baseline)
        _require_one(entries, results.failures)
        _save(protocol, entries, experiment, [*results.failures])
        return Comparison(entries, results.failures)


@dataclass(frozen=True)
class _Protocol:
    """Settings of all entries of a comparison."""

    dataset: Demonstrations
    folder: Path
    tracks: str | Sequence[int]
    expert: AnyDriver | None
    """None for no expert: in an environment that the shipped one was not trained for."""
    given: tuple[AnyDriver, ...]
    """Drivers that are evaluated as they are."""
    crash: CrashMode
    config: TrainConfig
    num_seeds: int
    shared_encoder: bool

    @property
    def env(self) -> EnvConfig:
        """The environment of the evaluation, with the status bar, under the perturbation of the training."""
        env = self.dataset.meta.env
        return replace(env, mask_bar=False, perturb=self.config.perturb or env.perturb)

    def given_names(self, cores: Iterable[str]) -> list[str]:
        """Return the names of the drivers that are evaluated as they are."""
        return driver_names(self.given, [EXPERT, *cores])

    def require_runnable(self, configs: Mapping[str, TrainConfig], device: str) -> None:
        """Check that the runs can start, before anything is created.

        Raises:
            FileNotFoundError: If there is no such driver.
            ValueError: If the expert, a core, its settings, the device or the dataset cannot be used.
        """
        if self.env.spec.make is None:
            raise ValueError(
                f"dataset: environment {self.env.environment!r} is not simulated here, and a comparison drives; train "
                "each core, and measure the runs with `nac-drive evaluate --dataset`."
            )
        experts = [] if self.expert is None else [("expert", self.expert)]
        for role, spec in (*experts, *(("driver", spec) for spec in self.given)):
            driver = resolve_driver(spec, self.env)
            require_environment(f"{role} {driver_name(spec)!r}", driver, self.env)
            if not sendable(driver, wanted=False):
                raise ValueError(
                    f"{role} {driver_name(spec)!r} cannot be sent to the processes of a comparison; pass an object "
                    "that can be pickled."
                )
        for config in configs.values():
            build_learner(train_plan(config, self.dataset, device))
            self.dataset.split(config.validation_fraction)

    def experiment(self, configs: Mapping[str, TrainConfig], device: str) -> Driving:
        """Return the grid: the expert, the drivers as they are, then every run of every core."""
        env = self.env
        bare, expert, entries = replace(env, perturb=None), None, []
        if self.expert is not None:
            expert = resolve_driver(self.expert, env)
            entries = [Entry(EXPERT, driver_hash(self.expert, env), env_seen_by(expert, bare), expert)]
        for name, spec in zip(self.given_names(configs), self.given, strict=True):
            driver = resolve_driver(spec, env)
            entries.append(Entry(name, driver_hash(spec, env), env_seen_by(driver, bare), driver, expert))
        for core, config in configs.items():
            sees = replace(bare, mask_bar=self.dataset.meta.env.mask_bar or config.data.mask_bar)
            settings = json.dumps([config.driver.core, config.driver.core_args], sort_keys=True)
            sha256 = hashlib.sha256(settings.encode()).hexdigest()
            entries += [
                Entry(
                    core, sha256, sees, expert=expert, run=seed,
                    training=Training(replace(config, seed=seed), self.dataset.path, device),
                )
                for seed in range(config.seed, config.seed + self.num_seeds)
            ]  # fmt: skip
        settings = {
            "config": asdict(_what_counts(_with(self.config, core="", core_args={}))),
            "shared_encoder": self.shared_encoder,
            "dataset_sha256": self.dataset.fingerprint(), **source_hashes(self.config, env),
        }  # fmt: skip
        tracks = tuple(track_seeds(self.tracks))
        return Driving(tuple(entries), tracks, (env.perturb,), self.crash, "a comparison", settings)

    def with_features(
        self, experiment: Driving, configs: Mapping[str, TrainConfig], rows: Mapping[str, Any], progress: Progress
    ) -> Driving:
        """Return the grid with final configs; the features of a frozen encoder are computed once for all runs."""
        splits = None
        config = next(iter(configs.values()), self.config)
        if configs and config.optim.freeze_encoder_from and any(task.key not in rows for task in experiment.tasks()):
            progress(message("features", "computed once for all runs"))
            splits = load_splits(train_plan(config, self.dataset, "cpu"), self.dataset)
        entries = [
            entry if entry.training is None
            else replace(
                entry,
                training=replace(
                    entry.training, config=replace(configs[entry.name], seed=entry.run or 0), splits=splits
                ),
            )
            for entry in experiment.entries
        ]  # fmt: skip
        return replace(experiment, entries=tuple(entries))

    def text(self, entries: Sequence[Entry], failed: Sequence[str], trained: bool) -> str:
        """Return the comparison in a few sentences.

        Args:
            entries: All entries.
            failed: Names of runs that failed.
            trained: Whether there are others.
        """
        frozen, beside = self.config.optim.freeze_encoder_from, ""
        if self.expert is not None:
            expert = driver_name(self.expert)
            subject = "The expert" if expert == EXPERT else f"The expert ({expert})"
            beside = f" {subject} drove the same tracks and was queried at every frame."
        measured = conditions(self.crash, self.env.perturb, self.env.max_steps)
        learned = "end to end"
        if self.shared_encoder:
            learned = "on the features of one encoder that they share"
        elif frozen:
            learned = f"on the features of the encoder of {driver_name(frozen)}"
        residual = " The action head also saw the core's input (residual)." if self.config.driver.residual else ""
        left_out = f"Runs that failed are left out: {', '.join(failed)}. " if failed else ""
        training = (
            f"Every core was trained {learned} on {self.dataset.path.name} ({len(self.dataset)} episodes). Epochs: "
            f"{self.config.epochs}. Seeds: {self.num_seeds}.{residual} " if trained else ""
        )  # fmt: skip
        names = ", ".join(driver_names(self.given, [EXPERT]))
        given = f"Evaluated as they are: {names}. " if names else ""
        saw = {entry.env.view for entry in entries}
        views = "Every driver saw the view of its training, from above or from the seat. " if len(saw) > 1 else ""
        views = "All drivers saw the world from the seat. " if saw == {"seat"} else views
        return f"{training}{left_out}{given}{views}The tracks: {track_names(self.tracks)}. {measured}{beside}"


def _configs(cores: Sequence[str], config: TrainConfig, num_seeds: int, shared_encoder: bool) -> dict[str, TrainConfig]:
    """Return the config of every core.

    Raises:
        ValueError: A setting is outside its range.
    """
    if not cores:
        raise ValueError("drivers must be names of CORES or drivers, got none; such as nac-exact lstm cfc.")
    whole("num_seeds", num_seeds, 1)
    if shared_encoder and config.optim.freeze_encoder_from:
        raise ValueError(
            "shared_encoder trains an encoder, freeze_encoder_from takes one from "
            f"{config.optim.freeze_encoder_from!r}; choose one."
        )
    configs = {core: with_core(config, core) for core in cores}
    for own in configs.values():
        own.check()
        if shared_encoder:
            on_features(own, _ENCODER).check()
    return configs


def _baseline(name: str | None, names: Sequence[str]) -> str:
    """Return the baseline.

    The last of `names` is the expert, if there is one.

    Raises:
        ValueError: There is no such entry.
    """
    if name is None:
        return BASELINE if BASELINE in names else names[-1]
    if name not in names:
        raise ValueError(
            f"baseline must be one of the drivers or the expert, {', '.join(names)}, got {name!r}."
            f"{did_you_mean(name, names)}"
        )
    return name


def is_core(name: str) -> bool:
    """Return whether a name is a core.

    One that is no driver either counts as a core, so that its error says so.
    """
    name = name.split(",")[0]
    if names_plugin_driver(name):
        return False
    try:
        return name in CORES or not resolve_driver(name)
    except FileNotFoundError:
        return True


def with_core(config: TrainConfig, core: str) -> TrainConfig:
    """Return the config of a core with its settings, such as `nac-exact,window=8`.

    Raises:
        ValueError: There is no such core.
    """
    name, *settings = core.split(",")
    if name not in CORES:
        raise ValueError(f"drivers must be names of CORES (docs/drivers.md), got {core!r}.{did_you_mean(name, CORES)}")
    return _with(config, core=name, core_args={**config.driver.core_args, **core_settings(settings)})


def _with(config: TrainConfig, **changed: Any) -> TrainConfig:
    return replace(config, driver=replace(config.driver, **changed))


def _what_counts(config: TrainConfig) -> TrainConfig:
    """Return the config without what may change: trackers, and the folders of drivers, which have hashes."""
    return replace(config, optim=replace(config.optim, init_from=None, freeze_encoder_from=None), track=())


def on_features(config: TrainConfig, encoder: str) -> TrainConfig:
    """Return the config of a core that learns on the clean features of an encoder."""
    data, optim = replace(config.data, augment=()), replace(config.optim, freeze_encoder_from=encoder)
    return replace(config, data=data, optim=optim)


def _trained_encoder(protocol: _Protocol, device: str, cluster: str | None, progress: Progress) -> Path:
    """Return the run of the shared encoder, trained in a process of its own."""
    config, run_folder = protocol.config, protocol.folder / _ENCODER
    frames = config.data.sequence_length * config.data.batch_size
    single = replace(config.data, sequence_length=1, batch_size=frames)
    config = replace(_with(config, core="cnn", core_args={}), data=single)
    progress(message(_ENCODER, "started"))
    training = Training(config, protocol.dataset.path, device)
    work, gpus = [(training, run_folder)], int(device == "cuda")
    for _, outcome in in_own_processes(_train, work, protocol.folder, cluster=cluster, gpus=gpus):
        if outcome.error:
            raise ValueError(f"the shared encoder could not be trained: {outcome.error}")
    return run_folder


def _train(work: tuple[Training, Path]) -> None:
    training, folder = work
    folder.parent.mkdir(parents=True, exist_ok=True)
    training.driver(folder)


def ranked(
    experiment: Driving, episodes: Episodes, folder: Path, progress: Progress, *, baseline: str
) -> list[RankedDriver]:
    """Return drivers without a training as they stand, then the trained ones, the best return first.

    Args:
        experiment: The grid, whose runs are folders in `folder`.
        episodes: Its episodes under one perturbation.
        folder: Gets the times of one `act`.
        progress: Called with every time that is measured.
        baseline: The entry that differences are taken against; the first one where it has no episode.
    """
    by_name = {name: rows for (name, _), rows in episodes.items()}
    baseline = baseline if baseline in by_name else next(iter(by_name))
    runs = {
        name: [
            folder / entry.label
            for entry in experiment.entries
            if entry.name == name and entry.training and entry.run in {row.run for row in rows}
        ]
        for name, rows in by_name.items()
    }
    latencies = measured_latencies(experiment, runs, folder, progress)
    evaluations = with_holm(
        [
            Evaluation.of(
                rows, None if name == baseline else by_name[baseline], experiment.entries[0].env.spec.solved_return
            )
            for name, rows in by_name.items()
        ]
    )
    drivers = []
    for name, measured in zip(by_name, evaluations, strict=True):
        evaluation = replace(measured, summary=measured.summary.with_metrics(latency_ms=latencies[name]))
        drivers.append(trained_driver(evaluation, runs[name]) if runs[name] else RankedDriver(evaluation))
    given = [driver for driver in drivers if driver.runs is None]
    trained = [driver for driver in drivers if driver.runs is not None]
    return [*given, *sorted(trained, key=lambda driver: -driver.summary.return_mean)]


def trained_driver(evaluation: Evaluation, runs: Sequence[Path]) -> RankedDriver:
    """Return a driver with the facts of its runs' folders."""
    driver = load_driver(runs[0])
    histories = [RunFolder(path).rows() for path in runs]
    bests = [max(rows, key=lambda row: row.get("score", float("-inf")), default={}) for rows in histories]
    accuracies = [best.get("validation") or {} for best in bests]

    def mean(values: Sequence[float | None]) -> float | None:
        measured = [value for value in values if value is not None]
        return sum(measured) / len(measured) if measured else None

    return RankedDriver(
        evaluation,
        runs=len(runs),
        parameters=sum(parameter.numel() for parameter in driver.parameters()),
        core_parameters=sum(parameter.numel() for parameter in driver.core.parameters()),
        neurons=driver.core.neurons,
        synapses=driver.core.synapses,
        has_memory=bool(driver.core.state_shapes()),
        validation_accuracy=mean([accuracy.get("accuracy") for accuracy in accuracies]),
        validation_at_changes=mean([accuracy.get("at_changes") for accuracy in accuracies]),
        training_seconds=mean([sum(row["seconds"] for row in rows) if rows else None for rows in histories]),
        histories=tuple(map(tuple, histories)),
    )


def measured_latencies(
    experiment: Driving, runs: Mapping[str, Sequence[Path]], folder: Path, progress: Progress
) -> dict[str, float]:
    """Return the time of one `act` with nothing else running, once measured in an episode of each name.

    Args:
        experiment: The grid.
        runs: Name -> folders of its finished runs; none for a driver that was there already.
        folder: The folder of the comparison.
        progress: Called with every measurement.
    """
    path = folder / _LATENCIES
    measured: dict[str, float] = {}
    if path.exists():
        fix = "remove it and go on with --resume"
        measured = read_json(path, dict[str, NotNegative], "the latencies of a comparison", fix)
    for number, name in enumerate(runs, 1):
        if name not in measured:
            entry = next(entry for entry in experiment.entries if entry.name == name)
            driver = entry.driver or load_driver(runs[name][0])
            env = replace(entry.env, perturb=experiment.perturbations[0])
            (row,) = evaluate(
                driver, experiment.tracks[:1], name=name, env=env, crash=experiment.crash, progress=silent
            ).rows
            measured[name] = row.latency_ms
            write_atomically(path, (json.dumps(measured, indent=2) + "\n").encode())
        progress(Event("time of one act", number, len(runs), name))
    return {name: measured[name] for name in runs}


def _require_one(drivers: Sequence[RankedDriver], failures: Mapping[str, str]) -> None:
    """Check that an entry besides the expert has a result to rank.

    Raises:
        ValueError: If every run failed.
    """
    if all(driver.summary.driver == EXPERT for driver in drivers):
        name, text = next(iter(failures.items()))
        raise ValueError(
            f"all {len(failures)} run(s) failed, {name} with: {text.rstrip('.')}; failed.txt in the folder of a run "
            "has its traceback, and --resume tries again."
        )


def save_tables(folder: Path, drivers: Sequence[RankedDriver]) -> None:
    """Write summary.json, table.md and results.json."""
    save_summaries(folder, [driver.evaluation for driver in drivers])
    save_results(folder, drivers)


def _save(protocol: _Protocol, drivers: Sequence[RankedDriver], experiment: Driving, failed: Sequence[str]) -> None:
    """Write all files of the folder."""
    folder = protocol.folder
    save_tables(folder, drivers)
    figures = []
    if try_to_draw(draw_leaderboard, folder / _FIGURE, drivers):
        figures.append(PageFigure(_FIGURE, "Figure", LEADERBOARD_CAPTION))
    trained = [driver for driver in drivers if driver.runs]
    if trained and try_to_draw(draw_learning_curves, folder / _CURVES, trained):
        figures.append(PageFigure(_CURVES, "Learning curves", LEARNING_CAPTION))
    labels = {(entry.name, entry.run): entry.label for entry in experiment.entries}

    def path_of(episode: EpisodeResult) -> str:
        return str(folder / labels[episode.driver, episode.run])

    commands = ""
    if trained:
        best, *others = trained[:2]
        worst = min(best.evaluation.rows, key=lambda row: row.episode_return)
        names = [path_of(worst), *(path_of(other.evaluation.rows[0]) for other in others)]
        commands = inspect_command(names, worst)
    text = protocol.text(experiment.entries, failed, bool(trained))
    Page(
        "Comparison of drivers", text, leaderboard(drivers), figures,
        headline=headline(drivers), verdicts=verdicts(drivers), commands=commands,
    ).save_html(folder)  # fmt: skip
