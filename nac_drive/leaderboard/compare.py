"""Several drivers, one protocol: the same demonstrations, the same tracks, one leaderboard. It can be resumed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.drivers import driver_hash, driver_name, require_environment, resolve_driver
from nac_drive.envs import CrashMode, EnvConfig, track_seeds
from nac_drive.evaluation.evaluate import Evaluation, save_evaluations
from nac_drive.evaluation.results import EpisodeResult
from nac_drive.evaluation.statistics import summarise
from nac_drive.leaderboard.figures import LEADERBOARD_CAPTION, LEARNING_CAPTION, draw_leaderboard, draw_learning_curves
from nac_drive.leaderboard.page import conditions, inspect_command, save_report, track_names
from nac_drive.leaderboard.tables import Entry, save_results
from nac_drive.leaderboard.tasks import Report, Task, expert_env, result_of, run_tasks, time_alone
from nac_drive.parallel.processes import number_of_workers
from nac_drive.plain import whole
from nac_drive.policies import CORES, DriverConfig
from nac_drive.storage.figure import try_to_draw
from nac_drive.storage.lock import locked
from nac_drive.storage.write import remove_leftovers
from nac_drive.suggest import did_you_mean
from nac_drive.training.config import TrainConfig, core_settings
from nac_drive.training.plan import source_hashes
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.train import load_splits, train_plan
from nac_drive.training.trainer import build_learner

_FILES = (
    "config.yaml",
    "command.txt",
    "env.json",
    "rows.jsonl",
    "summary.json",
    "table.md",
    "results.json",
    "report.html",
)
"""Files that are written whole."""

_CURVES = "learning_curves.png"

_LONGEST_NAME = 100
"""Characters of the longest `folder_name` without a hash; a file system takes 255 bytes."""

BASELINE = "lstm"
"""The core that differences are taken against where it takes part; elsewhere the expert is the baseline."""


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison."""

    entries: list[Entry]
    """The expert, then the drivers, the best return first."""
    failures: dict[str, str]
    """Name of a failed run -> message; the leaderboard leaves it out."""


def compare(
    cores: Sequence[str],
    dataset: Demonstrations | str | os.PathLike[str],
    tracks: str | Sequence[int],
    folder: str | os.PathLike[str],
    *,
    config: TrainConfig | None = None,
    num_seeds: int = 1,
    shared_encoder: bool = False,
    expert: str | os.PathLike[str] = "expert",
    crash: CrashMode = "ignore",
    device: str = "auto",
    resume: bool = False,
    workers: int = 1,
    cluster: str | None = None,
    report: Report = lambda name, row: None,
) -> Comparison:
    """Train drivers with several cores on one dataset, evaluate them and the expert on the same tracks, and rank them.

    The run of a core is `folder/CORE-SEED`. `folder` gets report.html, table.md, results.json, rows.jsonl,
    summary.json, figure.png and learning_curves.png.

    Args:
        cores: Names in CORES, with settings of their own after a comma, such as `nac-exact,window=8`.
        dataset: The demonstrations, or their folder.
        tracks: Named tracks such as "test-10", or their seeds.
        folder: The folder of the comparison.
        config: Settings of every run; its core is replaced by each of `cores`.
        num_seeds: Number of runs of each core, with the seeds config.seed, config.seed + 1, ...
        shared_encoder: Train one encoder with the core `cnn` on single frames, as many a batch as in the sequences of
            `config`, augmented as it says; all cores learn on its clean features.
        expert: Evaluated on the same tracks, and queried at every frame of every evaluation, see `resolve_driver`. It
            sees the status bar as in its training, whether or not the drivers see it.
        crash: The effect of a crash in the evaluation, see `evaluate`.
        device: `auto`, `cpu` or `cuda`.
        resume: Keep finished runs and go on with the others; cores or seeds may have been added.
        workers: Number of processes, 0 for one per core. Every run and its evaluation has a process of one thread; a
            process that dies costs no other run. The time of one `act` is measured afterwards, for one driver of each
            core in turn.
        cluster: Train and evaluate on a Ray cluster, see `worker_pool`. All its machines must see `dataset`, `folder`
            and the working folder. Each run has one CPU, with the device cuda also one GPU; auto is the CPU there.
        report: Called with the name of a run and {"started": True} when it starts, and with its result, or
            {"failed": message}, when it ends; with "features" and {"started": True} before the features of a frozen
            encoder are computed; and with the name of a run and {"timed": number, "of": runs} when its `act` is timed.

    Returns:
        The ranking, and the failed runs.

    Raises:
        ValueError: For a bad argument, before anything is created, when the shared encoder, the expert or every run
            fails, and if another process holds `folder`.
        FileExistsError: If `folder` holds anything and `resume` is off.
        FileNotFoundError: If `folder` is no comparison and `resume` is on.
    """
    config = config or TrainConfig(driver=DriverConfig())  # no path past the cores that are compared
    dataset = dataset if isinstance(dataset, Demonstrations) else Demonstrations.open(dataset)
    plan = _Plan(dataset, Path(folder), track_seeds(tracks), os.fspath(expert), crash, device, config.perturb)
    number_of_workers(workers)
    configs = _configs(cores, config, num_seeds, shared_encoder)
    _require_runnable(plan, configs, cluster)
    RunFolder.require(plan.folder, resume)
    with locked(plan.folder):
        for name in _FILES:
            remove_leftovers(plan.folder / name)
        _open_folder(plan, config, shared_encoder, resume)
        if shared_encoder:
            configs = _train_encoder(plan, config, configs, workers, report, cluster)
        runs = plan.runs(configs, num_seeds, report)
        tasks = [plan.expert_task, *(run for found in runs.values() for run in found)]
        failures = run_tasks(tasks, workers, report, cluster)
        if plan.expert_task.name in failures:
            raise ValueError(f"the expert {plan.expert!r} could not be evaluated: {failures[plan.expert_task.name]}")
        finished = {core: done for core, found in runs.items() if (done := [run for run in found if run.done.exists()])}
        _require_one(finished, failures)
        timed = [plan.expert_task, *(found[0] for found in finished.values())]
        for number, task in enumerate(timed, 1):
            time_alone(task)
            report(task.name, {"timed": number, "of": len(timed)})
        entries = _rank({core: [result_of(run) for run in found] for core, found in finished.items()}, plan.expert_task)
        histories = {core: [RunFolder(run.run).rows() for run in found] for core, found in finished.items()}
        protocol = _protocol(plan, config, tracks, num_seeds, shared_encoder, [*failures])
        _save(plan, protocol, entries, histories, finished)
        return Comparison(entries, failures)


@dataclass(frozen=True)
class _Plan:
    """Settings of all tasks of a comparison."""

    dataset: Demonstrations
    folder: Path
    tracks: Sequence[int]
    expert: str
    crash: CrashMode
    device: str
    perturb: str | None

    @property
    def env(self) -> EnvConfig:
        return expert_env(self.dataset, self.perturb)

    @property
    def expert_task(self) -> Task:
        return self.task(driver_name(self.expert), "expert", None)

    def task(self, driver: str, name: str, config: TrainConfig | None, **changed: Any) -> Task:
        settings: dict[str, Any] = {
            "dataset": self.dataset.path, "expert": self.expert, "tracks": tuple(self.tracks), "crash": self.crash,
            "device": self.device, "perturb": self.env.perturb,
        }  # fmt: skip
        return Task(driver, self.folder / name, config=config, **{**settings, **changed})

    def runs(self, configs: dict[str, TrainConfig], num_seeds: int, report: Report) -> dict[str, list[Task]]:
        """The runs of every core, seed by seed; with a frozen encoder its features are computed once for all."""
        runs = {
            core: [
                self.task(core, f"{folder_name(core)}-{seed}", replace(config, seed=seed))
                for seed in range(config.seed, config.seed + num_seeds)
            ]
            for core, config in configs.items()
        }
        config = next(iter(configs.values()))
        if config.optim.freeze_encoder_from and not all(run.done.exists() for found in runs.values() for run in found):
            report("features", {"started": True})
            splits = load_splits(train_plan(config, self.dataset, "cpu"), self.dataset)
            runs = {core: [replace(run, splits=splits) for run in found] for core, found in runs.items()}
        return runs


def _configs(cores: Sequence[str], config: TrainConfig, num_seeds: int, shared_encoder: bool) -> dict[str, TrainConfig]:
    """Return the config of every core.

    Raises:
        ValueError: A setting is outside its range.
    """
    if not cores:
        raise ValueError("drivers must be names of CORES, got none; such as nac-exact lstm cfc.")
    num_seeds = whole("num_seeds", num_seeds, 1)
    if shared_encoder and config.optim.freeze_encoder_from:
        raise ValueError(
            "shared_encoder trains an encoder, freeze_encoder_from takes that of "
            f"{config.optim.freeze_encoder_from!r}; choose one."
        )
    configs = {core: _with_core(config, core) for core in cores}
    for each in configs.values():
        each.check()
        if shared_encoder:
            _on_features(each, "encoder").check()
    return configs


def folder_name(core: str) -> str:
    """Return the name of the folder of a core's runs, without the seed.

    It is the core with its settings as they are written, such as `nac-exact,window=8`. Where they have characters other
    than letters, digits and `._=,-`, or are long, a hash keeps the names of different settings different.
    """
    name = re.sub(r"[^A-Za-z0-9._=,-]", "_", core)[:_LONGEST_NAME]
    if name == core:
        return name
    return f"{name}-{hashlib.sha256(os.fsencode(core)).hexdigest()[:12]}"


def _require_runnable(plan: _Plan, configs: dict[str, TrainConfig], cluster: str | None) -> None:
    """Check that the runs can start, before anything is created.

    Raises:
        FileNotFoundError: If there is no such driver.
        ValueError: If an expert, a core, its settings, the device or the dataset cannot be used.
    """
    require_environment(f"expert {plan.expert!r}", resolve_driver(plan.expert, plan.env), plan.env)
    for config in configs.values():
        build_learner(train_plan(config, plan.dataset, "cpu" if cluster else plan.device))
        plan.dataset.split(config.validation_fraction)


def _require_one(finished: dict[str, list[Task]], failures: dict[str, str]) -> None:
    """Check that a run has a result to rank.

    Raises:
        ValueError: If every run failed.
    """
    if not finished:
        name, message = next(iter(failures.items()))
        raise ValueError(
            f"all {len(failures)} run(s) failed, {name} with: {message.rstrip('.')}; failed.txt in the folder of a run "
            "has its traceback, and --resume tries again."
        )


def _open_folder(plan: _Plan, config: TrainConfig, shared_encoder: bool, resume: bool) -> None:
    protocol = {
        **asdict(_with(config, core="", core_args={})), "shared_encoder": shared_encoder,
        "expert": driver_name(plan.expert), "expert_sha256": driver_hash(plan.expert, plan.env),
        "dataset_sha256": plan.dataset.fingerprint(), "tracks": list(plan.tracks), "crash": plan.crash,
        **source_hashes(config, plan.env),
    }  # fmt: skip
    if resume:
        run = RunFolder.open(plan.folder)
        run.require_config(protocol)
        run.complete(checkpoints=False)
    else:
        RunFolder.create(plan.folder, protocol, checkpoints=False)


def _train_encoder(
    plan: _Plan,
    config: TrainConfig,
    configs: dict[str, TrainConfig],
    workers: int,
    report: Report,
    cluster: str | None,
) -> dict[str, TrainConfig]:
    """Train the shared encoder; return the configs of the cores, which freeze it."""
    frames = config.data.sequence_length * config.data.batch_size
    single = replace(config.data, sequence_length=1, batch_size=frames)
    task = plan.task("encoder", "encoder", replace(_with(config, core="cnn", core_args={}), data=single), tracks=())
    if failures := run_tasks([task], workers, report, cluster):
        raise ValueError(f"the shared encoder could not be trained: {failures[task.name]}")
    return {core: _on_features(own, str(plan.folder / "encoder")) for core, own in configs.items()}


def _on_features(config: TrainConfig, encoder: str) -> TrainConfig:
    """Return the config of a core that learns on the clean features of an encoder."""
    data, optim = replace(config.data, augment=()), replace(config.optim, freeze_encoder_from=encoder)
    return replace(config, data=data, optim=optim)


def _save(
    plan: _Plan,
    protocol: str,
    entries: list[Entry],
    histories: dict[str, list[list[dict[str, Any]]]],
    finished: dict[str, list[Task]],
) -> None:
    """Write all files of the folder; `histories` are the rows of metrics.jsonl of every finished run of a core."""
    save_evaluations(plan.folder, [entry.evaluation for entry in entries])
    save_results(plan.folder, entries)
    drawn = try_to_draw(draw_leaderboard, plan.folder / "figure.png", entries)
    ranked = {entry.summary.driver: histories[entry.summary.driver] for entry in entries[1:]}
    learned = try_to_draw(draw_learning_curves, plan.folder / _CURVES, ranked)
    best = entries[1:3]  # after the expert
    number, worst = min(enumerate(best[0].evaluation.rows), key=lambda row: row[1].episode_return)
    runs = [finished[entry.summary.driver] for entry in best]
    names = [str(runs[0][number // len(plan.tracks)].run), *(str(other[0].run) for other in runs[1:])]
    save_report(
        plan.folder, entries, title="Comparison of drivers", protocol=protocol,
        figure="figure.png" if drawn else None, caption=LEADERBOARD_CAPTION,
        curves=_CURVES if learned else None, curves_caption=LEARNING_CAPTION,
        commands=inspect_command(names, worst),
    )  # fmt: skip


def _protocol(
    plan: _Plan,
    config: TrainConfig,
    tracks: str | Sequence[int],
    num_seeds: int,
    shared_encoder: bool,
    failed: Sequence[str],
) -> str:
    """The comparison in a few sentences."""
    expert, frozen = driver_name(plan.expert), config.optim.freeze_encoder_from
    subject = "The expert" if expert == "expert" else f"The expert, {expert},"
    measured = conditions(plan.crash, plan.env.perturb or "", plan.env.max_steps)
    learned = "end to end"
    if shared_encoder:
        learned = "on the features of one encoder that they share"
    elif frozen:
        learned = f"on the features of the encoder of {driver_name(frozen)}"
    left_out = f" Runs that failed are left out: {', '.join(failed)}." if failed else ""
    return (
        f"Every core was trained {learned} on {plan.dataset.path.name} ({len(plan.dataset)} episodes). Epochs: "
        f"{config.epochs}. Seeds: {num_seeds}.{left_out} It then drove the tracks {track_names(tracks)}. "
        f"{measured} {subject} drove the same tracks and was queried at every frame."
    )


def _with_core(config: TrainConfig, core: str) -> TrainConfig:
    name, *settings = core.split(",")
    if name not in CORES:
        raise ValueError(f"drivers must be names of CORES (docs/drivers.md), got {core!r}.{did_you_mean(name, CORES)}")
    return _with(config, core=name, core_args={**config.driver.core_args, **core_settings(settings)})


def _with(config: TrainConfig, **changed: Any) -> TrainConfig:
    return replace(config, driver=replace(config.driver, **changed))


def _rank(results: dict[str, list[dict[str, Any]]], expert_task: Task) -> list[Entry]:
    """The expert, then the cores, each with all its runs, the best return first."""

    def episodes(runs: Sequence[dict[str, Any]]) -> list[EpisodeResult]:
        return [EpisodeResult.from_dict(row) for run in runs for row in run["rows"]]

    def mean(values: Iterator[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    expert = result_of(expert_task)
    baseline = episodes(results.get(BASELINE, [expert]))
    entries = []
    for core, runs in results.items():
        rows = episodes(runs)
        paired = None if core == BASELINE else baseline
        accuracies = [run["validation"] or {} for run in runs]
        entries.append(
            Entry(
                _evaluation(rows, paired, runs[0]),
                runs=len(runs),
                parameters=runs[0]["parameters"],
                core_parameters=runs[0]["core_parameters"],
                neurons=runs[0]["neurons"],
                synapses=runs[0]["synapses"],
                validation_accuracy=mean(accuracy.get("accuracy") for accuracy in accuracies),
                validation_at_changes=mean(accuracy.get("at_changes") for accuracy in accuracies),
                training_seconds=mean(run["training_seconds"] for run in runs),
            )
        )
    entries.sort(key=lambda entry: -entry.summary.return_mean)
    rows = episodes([expert])
    return [Entry(_evaluation(rows, baseline if BASELINE in results else None, expert)), *entries]


def _evaluation(rows: list[EpisodeResult], baseline: list[EpisodeResult] | None, timed: dict[str, Any]) -> Evaluation:
    return Evaluation(rows, summarise(rows, baseline).with_metrics(latency_ms=timed["latency_ms"]))
