"""Several drivers, one protocol: the same demonstrations, the same tracks, one leaderboard. Restartable."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.experts import driver_hash, driver_name, resolve_driver
from nac_drive.data_collection.files import write_atomically
from nac_drive.data_collection.processes import each_in_a_process
from nac_drive.envs import CrashMode, EnvConfig, RendererName, track_seeds
from nac_drive.evaluation.evaluate import Evaluation, evaluate, save_evaluations
from nac_drive.evaluation.metrics import EpisodeResult
from nac_drive.evaluation.statistics import summarise
from nac_drive.leaderboard.figures import draw_leaderboard
from nac_drive.leaderboard.tables import Entry, save_results
from nac_drive.policies import CORES, Driver
from nac_drive.suggest import did_you_mean
from nac_drive.training.config import TrainConfig, core_settings
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.train import Splits, load_splits, train

Report = Callable[[str, dict[str, Any]], None]

BASELINE = "lstm"
"""Whom the others are paired with, where it takes part; the expert elsewhere."""


@dataclass(frozen=True)
class Comparison:
    """What came of a comparison."""

    entries: list[Entry]
    """The expert, then the drivers, the best return first."""
    failures: dict[str, str]
    """Name of the run -> what went wrong; the leaderboard does without it."""


@dataclass(frozen=True)
class Task:
    """A training with its evaluation, in the folder `run`; without `config` the expert's evaluation alone."""

    driver: str
    """What it is called in the table."""
    run: Path
    dataset: Path
    config: TrainConfig | None
    expert: str
    tracks: tuple[int, ...]
    """Empty: nothing is evaluated."""
    crash: CrashMode
    renderer: RendererName
    device: str
    splits: Splits | None = None
    """What all learn from, where it is loaded already."""

    @property
    def name(self) -> str:
        """That of its folder."""
        return self.run.name

    @property
    def done(self) -> Path:
        """The file that a finished task leaves, and no other does."""
        return self.run / "result.json"

    @property
    def latency(self) -> Path:
        """How long its `act` takes with nothing else running, once that was measured."""
        return self.run / "latency.json"

    @property
    def failed(self) -> Path:
        """Why the last attempt failed."""
        return self.run / "failed.txt"


def compare(
    cores: Sequence[str],
    dataset: Demonstrations | str | os.PathLike[str],
    tracks: str | Sequence[int],
    folder: str | os.PathLike[str],
    *,
    config: TrainConfig | None = None,
    num_seeds: int = 1,
    shared_encoder: bool = False,
    expert: str = "expert",
    crash: CrashMode = "ignore",
    renderer: RendererName = "gymnasium",
    device: str = "auto",
    resume: bool = False,
    workers: int = 1,
    report: Report = lambda name, row: None,
) -> Comparison:
    """Train drivers with several cores on one dataset, evaluate them and the expert on the same tracks, and rank them.

    The run of a core is `folder/CORE-SEED`. Writes table.md, results.json, rows.jsonl, summary.json and figure.png into
    `folder`.

    Args:
        cores: Names in CORES, with settings of their own after a comma, such as `nac-exact,window=8`.
        dataset: The demonstrations, or their folder.
        tracks: Named tracks such as "test-10", or their seeds.
        folder: The folder of the comparison.
        config: Of every training, its core replaced in turn.
        num_seeds: Runs of each core, with the seeds config.seed, config.seed + 1, ...
        shared_encoder: Train one encoder with the core `cnn` on single frames, as many a batch as in the sequences of
            `config`, augmented as it says; all cores learn on its clean features.
        expert: Queried at every frame of every evaluation, see `resolve_driver`; it sees the status bar even where the
            drivers do not.
        crash: Of the evaluation, see `evaluate`.
        renderer: Of the evaluation, see `evaluate`.
        device: Where to train.
        resume: Keep finished runs and go on with the others; cores or seeds may have been added.
        workers: Processes; every training and its evaluation is one, of one thread, and a process that dies costs no
            other run. The time of an `act` is measured after them, one driver of each core at a time.
        report: Called with the name of every run that is finished and its result, or {"failed": why}.

    Returns:
        The ranking, and the runs that failed.

    Raises:
        ValueError: For an unknown core, or when the shared encoder or the expert fails.
        FileExistsError: If `folder` holds anything and `resume` is off.
    """
    config = config or TrainConfig()
    dataset = dataset if isinstance(dataset, Demonstrations) else Demonstrations.open(dataset)
    plan = _Plan(
        dataset, Path(folder), track_seeds(tracks) if isinstance(tracks, str) else list(tracks), expert, crash,
        renderer, device,
    )  # fmt: skip
    configs = _configs(cores, config, num_seeds, shared_encoder)
    resolve_driver(expert, plan.env)  # a bad one fails here, before anything is trained
    _open_folder(plan, config, shared_encoder, resume)
    if shared_encoder:
        configs = _train_encoder(plan, config, configs, workers, report)
    runs = plan.runs(configs, num_seeds)
    failures = _run([plan.expert_task, *(run for found in runs.values() for run in found)], workers, report)
    if plan.expert_task.name in failures:
        raise ValueError(f"the expert {expert!r} could not be evaluated: {failures[plan.expert_task.name]}")
    finished = {core: done for core, found in runs.items() if (done := [run for run in found if run.done.exists()])}
    for task in (plan.expert_task, *(found[0] for found in finished.values())):
        _time_alone(task)
    entries = _rank({core: [_result(run) for run in found] for core, found in finished.items()}, plan.expert_task)
    _save(plan.folder, entries)
    return Comparison(entries, failures)


@dataclass(frozen=True)
class _Plan:
    """What all tasks of a comparison share."""

    dataset: Demonstrations
    folder: Path
    tracks: Sequence[int]
    expert: str
    crash: CrashMode
    renderer: RendererName
    device: str

    @property
    def env(self) -> EnvConfig:
        return expert_env(self.dataset)

    @property
    def expert_task(self) -> Task:
        return self.task(driver_name(self.expert), "expert", None)

    def task(self, driver: str, name: str, config: TrainConfig | None, **changed: Any) -> Task:
        settings: dict[str, Any] = {
            "dataset": self.dataset.path, "expert": self.expert, "tracks": tuple(self.tracks), "crash": self.crash,
            "renderer": self.renderer, "device": self.device,
        }  # fmt: skip
        return Task(driver, self.folder / name, config=config, **{**settings, **changed})

    def runs(self, configs: dict[str, TrainConfig], num_seeds: int) -> dict[str, list[Task]]:
        """The runs of every core, seed by seed; with a frozen encoder its features are computed once for all."""
        runs = {
            core: [
                self.task(core, f"{core}-{seed}", replace(config, seed=seed))
                for seed in range(config.seed, config.seed + num_seeds)
            ]
            for core, config in configs.items()
        }
        config = next(iter(configs.values()))
        if config.optim.freeze_encoder_from and not all(run.done.exists() for found in runs.values() for run in found):
            splits = load_splits(config, self.dataset, torch.device("cpu"))
            runs = {core: [replace(run, splits=splits) for run in found] for core, found in runs.items()}
        return runs


def _configs(cores: Sequence[str], config: TrainConfig, num_seeds: int, shared_encoder: bool) -> dict[str, TrainConfig]:
    """The config of every core; ValueError for settings that cannot be compared with."""
    if not cores:
        raise ValueError("drivers must be names of CORES, got none; such as nac-exact lstm cfc.")
    if num_seeds < 1:
        raise ValueError(f"num_seeds must be at least 1, got {num_seeds}.")
    if shared_encoder and config.optim.freeze_encoder_from:
        raise ValueError(
            f"shared_encoder trains an encoder, freeze_encoder_from takes that of {config.optim.freeze_encoder_from!r}; "
            "choose one."
        )
    configs = {core: _with_core(config, core) for core in cores}
    for each in configs.values():
        each.check()
    return configs


def _open_folder(plan: _Plan, config: TrainConfig, shared_encoder: bool, resume: bool) -> None:
    protocol = {
        **asdict(_with(config, core="", core_args={})), "shared_encoder": shared_encoder,
        "expert": driver_name(plan.expert), "expert_sha256": driver_hash(plan.expert, plan.env),
        "dataset_sha256": plan.dataset.fingerprint(), "tracks": list(plan.tracks), "crash": plan.crash,
        "renderer": plan.renderer,
    }  # fmt: skip
    if resume:
        RunFolder.open(plan.folder).require_config(protocol)
    else:
        RunFolder.create(plan.folder, protocol)


def _train_encoder(
    plan: _Plan, config: TrainConfig, configs: dict[str, TrainConfig], workers: int, report: Report
) -> dict[str, TrainConfig]:
    """Train the shared encoder; returns the configs that freeze it."""
    frames = config.data.sequence_length * config.data.batch_size
    single = replace(config.data, sequence_length=1, batch_size=frames)
    task = plan.task("encoder", "encoder", replace(_with(config, core="cnn", core_args={}), data=single), tracks=())
    if failures := _run([task], workers, report):
        raise ValueError(f"the shared encoder could not be trained: {failures[task.name]}")
    return {
        core: replace(
            own,
            data=replace(own.data, augment=()),
            optim=replace(own.optim, freeze_encoder_from=str(plan.folder / "encoder")),
        )
        for core, own in configs.items()
    }


def _save(folder: Path, entries: list[Entry]) -> None:
    save_evaluations(folder, [entry.evaluation for entry in entries])
    save_results(folder, entries)
    draw_leaderboard(folder / "figure.png", entries)


def expert_env(dataset: Demonstrations) -> EnvConfig:
    """What the expert of a comparison sees."""
    return replace(dataset.meta.env, mask_bar=False)


def _with_core(config: TrainConfig, core: str) -> TrainConfig:
    name, *settings = core.split(",")
    if name not in CORES:
        raise ValueError(f"drivers must be names of CORES (docs/drivers.md), got {core!r}.{did_you_mean(name, CORES)}")
    return _with(config, core=name, core_args={**config.driver.core_args, **core_settings(settings)})


def _with(config: TrainConfig, **changed: Any) -> TrainConfig:
    return replace(config, driver=replace(config.driver, **changed))


def _run(tasks: Sequence[Task], workers: int, report: Report) -> dict[str, str]:
    """Do what is not done yet; returns the names of the tasks that failed, and why."""
    failures = {}
    waiting = []
    for task in tasks:
        if task.done.exists():
            report(task.name, _result(task))
        else:
            waiting.append(task)
    for task, code in each_in_a_process(_work, waiting, workers):
        if task.done.exists():
            report(task.name, _result(task))
            continue
        why = task.failed.read_text().splitlines()[-1] if task.failed.exists() else f"its process died ({code})"
        failures[task.name] = why
        report(task.name, {"failed": why})
    return failures


def _work(task: Task) -> None:
    """In a process of its own."""
    task.run.mkdir(exist_ok=True)
    task.failed.unlink(missing_ok=True)
    try:
        result = _train_and_evaluate(task)
    except Exception:
        task.failed.write_text(traceback.format_exc())
        raise SystemExit(1) from None
    write_atomically(task.done, json.dumps(result).encode())


def _train_and_evaluate(task: Task) -> dict[str, Any]:
    dataset = Demonstrations.open(task.dataset)
    result: dict[str, Any] = {}
    if task.config is not None:
        resume = (task.run / "config.yaml").exists()
        train(task.config, dataset, task.run, device=task.device, resume=resume, splits=task.splits)
        driver = resolve_driver(str(task.run), expert_env(dataset))
        assert isinstance(driver, Driver)
        history = RunFolder.open(task.run).rows()
        result = {
            "parameters": sum(parameter.numel() for parameter in driver.parameters()),
            "core_parameters": sum(parameter.numel() for parameter in driver.core.parameters()),
            "training_seconds": sum(row["seconds"] for row in history),
            "validation": max(history, key=lambda row: row.get("score", float("-inf"))).get("validation"),
        }
    if task.tracks:
        result["rows"] = [asdict(row) for row in _drive(task, task.tracks, with_expert=task.config is not None).rows]
    return result


def _drive(task: Task, tracks: Sequence[int], with_expert: bool) -> Evaluation:
    env = expert_env(Demonstrations.open(task.dataset))
    expert = driver = resolve_driver(task.expert, env)
    if task.config is not None:
        driver = resolve_driver(str(task.run), env)
        assert isinstance(driver, Driver)
        env = replace(env, mask_bar=driver.env_config["mask_bar"])
    return evaluate(
        driver, tracks, name=task.driver, env=env, crash=task.crash, renderer=task.renderer,
        expert=expert if with_expert else None,
    )  # fmt: skip


def _time_alone(task: Task) -> None:
    """A episode with no other driver at work: what ran in parallel was slowed by the others."""
    if not task.latency.exists():
        (row,) = _drive(task, task.tracks[:1], with_expert=False).rows
        write_atomically(task.latency, json.dumps({"latency_ms": row.latency_ms}).encode())


def _result(task: Task) -> dict[str, Any]:
    return json.loads(task.done.read_text()) | (json.loads(task.latency.read_text()) if task.latency.exists() else {})


def _rank(results: dict[str, list[dict[str, Any]]], expert_task: Task) -> list[Entry]:
    """The expert, then the cores, each with all its runs, the best return first."""

    def episodes(runs: Sequence[dict[str, Any]]) -> list[EpisodeResult]:
        return [EpisodeResult(**row) for run in runs for row in run["rows"]]

    def mean(values: Iterator[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    expert = _result(expert_task)
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
                validation_accuracy=mean(accuracy.get("accuracy") for accuracy in accuracies),
                validation_at_changes=mean(accuracy.get("at_changes") for accuracy in accuracies),
                training_seconds=mean(run["training_seconds"] for run in runs),
            )
        )
    entries.sort(key=lambda entry: -entry.summary.return_mean)
    rows = episodes([expert])
    return [Entry(_evaluation(rows, baseline if BASELINE in results else None, expert)), *entries]


def _evaluation(rows: list[EpisodeResult], baseline: list[EpisodeResult] | None, timed: dict[str, Any]) -> Evaluation:
    return Evaluation(rows, replace(summarise(rows, baseline), latency_ms=timed["latency_ms"]))
