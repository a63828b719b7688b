"""Several drivers, one protocol: the same demonstrations, the same tracks, one leaderboard. Restartable."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from data_collection.dataset import Demonstrations
from data_collection.drivers import driver_hash, driver_name, resolve_driver
from data_collection.files import write_atomically
from data_collection.processes import each_in_a_process
from data_collection.run_folder import RunFolder
from envs import CrashMode, EnvConfig, RendererName
from nac_drive.cloning import CloneConfig, Splits, clone, load_splits
from nac_drive.evaluation import Evaluation, evaluate, save_evaluations
from nac_drive.metrics import EpisodeResult, summarise
from nac_drive.report import Contestant, draw_leaderboard, save_results
from nac_drive.training_config import core_settings
from policies import CORES, Driver

Report = Callable[[str, dict[str, Any]], None]

RIVAL = "lstm"
"""Whom the others are paired with, where it takes part; the expert elsewhere."""


@dataclass(frozen=True)
class Comparison:
    """What came of a comparison."""

    contestants: list[Contestant]
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
    config: CloneConfig | None
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
    dataset: Demonstrations,
    tracks: Sequence[int],
    folder: Path,
    *,
    config: CloneConfig,
    repeats: int = 1,
    frozen: bool = False,
    expert: str = "expert",
    crash: CrashMode = "ignore",
    renderer: RendererName = "gymnasium",
    device: str = "auto",
    resume: bool = False,
    workers: int = 1,
    report: Report = lambda name, row: None,
) -> Comparison:
    """Train drivers with each core on `dataset`, evaluate them and the expert on `tracks`, and rank them.

    cores: names in CORES, with settings of their own after a comma, such as `nac-exact,window=8`.  config: of every
    training, its core replaced in turn.  repeats: trainings of each core, seeds config.seed,
    config.seed + 1, ...  frozen: one vision head is trained with the core `cnn` on single frames, as many a batch as in
    the windows of `config`, augmented as it says, and shared by all, who learn on its clean features.  expert: advisor
    of all, see `resolve_driver`; it sees the status bar even where the drivers do not.  crash, renderer: of the
    evaluation, see `evaluate`.  workers: processes; every training and its evaluation is one, of one thread, and what
    kills it costs no other; the time of an `act` is measured after them, on the first track, one driver of each core at
    a time.  report: gets the name of every run that is done and its result, or {"failed": why}.

    The run of a core is `folder/CORE-SEED`. With `resume`, finished runs are kept, others go on, and cores or repeats
    may have been added. Writes table.md, results.json, rows.jsonl, summary.json and figure.png into `folder`.

    Raises ValueError for an unknown core or when the shared vision head or the expert fails, FileExistsError when
    `folder` holds anything and `resume` is off.
    """
    if not cores:
        raise ValueError(f"drivers must be names of {sorted(CORES)}, got none.")
    configs = {core: _with_core(config, core) for core in cores}
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}.")
    if frozen and config.frozen:
        raise ValueError(
            f"frozen: a vision head of {config.frozen!r} and one to be trained were asked for; choose one."
        )
    env = expert_env(dataset)
    resolve_driver(expert, env)  # a bad one fails here, before anything is trained
    protocol = {
        **asdict(replace(config, core="")), "frozen_vision": frozen, "expert": driver_name(expert),
        "expert_sha256": driver_hash(expert, env), "dataset_sha256": dataset.fingerprint(), "tracks": list(tracks),
        "crash": crash, "renderer": renderer,
    }  # fmt: skip
    if resume:
        RunFolder.open(folder).require_config(protocol)
    else:
        RunFolder.create(folder, protocol)

    def task(driver: str, name: str, config: CloneConfig | None, tracks: Sequence[int] = tracks) -> Task:
        return Task(driver, folder / name, dataset.path, config, expert, tuple(tracks), crash, renderer, device)

    if frozen:
        frames = config.window * config.batch_size
        seeing = replace(config, core="cnn", core_args={}, window=1, batch_size=frames, frozen="")
        ((_, why),) = _run([task("vision", "vision", seeing, ())], workers, report) or [("", "")]
        if why:
            raise ValueError(f"the shared vision head could not be trained: {why}")
        seen = {"frozen": str(folder / "vision"), "augment": ()}
        config, configs = replace(config, **seen), {core: replace(own, **seen) for core, own in configs.items()}
    runs = [
        (core, task(core, f"{core}-{seed}", replace(own, seed=seed)))
        for seed in range(config.seed, config.seed + repeats)
        for core, own in configs.items()
    ]
    if config.frozen and not all(run.done.exists() for _, run in runs):
        splits = load_splits(config, dataset, torch.device("cpu"))
        runs = [(core, replace(run, splits=splits)) for core, run in runs]
    baseline = task(driver_name(expert), "expert", None)
    failures = dict(_run([baseline, *(run for _, run in runs)], workers, report))
    if baseline.name in failures:
        raise ValueError(f"the expert {expert!r} could not be evaluated: {failures[baseline.name]}")
    finished = {core: [run for name, run in runs if name == core and run.done.exists()] for core in cores}
    for run in (baseline, *(found[0] for found in finished.values() if found)):
        _time_alone(run)
    results = {core: [_result(run) for run in found] for core, found in finished.items() if found}
    contestants = _ranked(results, _result(baseline))
    save_evaluations(folder, [contestant.evaluation for contestant in contestants])
    save_results(folder, contestants)
    draw_leaderboard(folder / "figure.png", contestants)
    return Comparison(contestants, failures)


def expert_env(dataset: Demonstrations) -> EnvConfig:
    """What the expert of a comparison sees."""
    return replace(dataset.meta.env, mask_bar=False)


def _with_core(config: CloneConfig, core: str) -> CloneConfig:
    name, *settings = core.split(",")
    if name not in CORES:
        raise ValueError(f"drivers must be names of {sorted(CORES)}, got {core!r}.")
    return replace(config, core=name, core_args={**config.core_args, **core_settings(settings)})


def _run(tasks: Sequence[Task], workers: int, report: Report) -> list[tuple[str, str]]:
    """Do what is not done yet; returns (name, why) of the failures."""
    failures = []
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
        failures.append((task.name, why))
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
        clone(task.config, dataset, task.run, device=task.device, resume=resume, splits=task.splits)
        driver = resolve_driver(str(task.run), expert_env(dataset))
        assert isinstance(driver, Driver)
        history = RunFolder.open(task.run).rows()
        result = {
            "parameters": sum(parameter.numel() for parameter in driver.parameters()),
            "core_parameters": sum(parameter.numel() for parameter in driver.core.parameters()),
            "training_seconds": sum(row["seconds"] for row in history),
            "held_out": max(history, key=lambda row: row.get("score", float("-inf"))).get("held_out"),
        }
    if task.tracks:
        result["rows"] = [asdict(row) for row in _drive(task, task.tracks, advised=task.config is not None).rows]
    return result


def _drive(task: Task, tracks: Sequence[int], advised: bool) -> Evaluation:
    env = expert_env(Demonstrations.open(task.dataset))
    expert = driver = resolve_driver(task.expert, env)
    if task.config is not None:
        driver = resolve_driver(str(task.run), env)
        assert isinstance(driver, Driver)
        env = replace(env, mask_bar=driver.env_config["mask_bar"])
    return evaluate(
        driver, tracks, name=task.driver, env=env, crash=task.crash, renderer=task.renderer,
        advisor=expert if advised else None,
    )  # fmt: skip


def _time_alone(task: Task) -> None:
    """A lap with no other driver at work: what ran in parallel was slowed by the others."""
    if not task.latency.exists():
        (row,) = _drive(task, task.tracks[:1], advised=False).rows
        write_atomically(task.latency, json.dumps({"latency_ms": row.latency_ms}).encode())


def _result(task: Task) -> dict[str, Any]:
    return json.loads(task.done.read_text()) | (json.loads(task.latency.read_text()) if task.latency.exists() else {})


def _ranked(results: dict[str, list[dict[str, Any]]], expert: dict[str, Any]) -> list[Contestant]:
    """The expert, then the cores, each with all its trainings, the best return first."""

    def laps(found: Sequence[dict[str, Any]]) -> list[EpisodeResult]:
        return [EpisodeResult(**row) for result in found for row in result["rows"]]

    def mean(values: Iterator[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    baseline = laps(results.get(RIVAL, [expert]))
    contestants = []
    for core, found in results.items():
        rows = laps(found)
        paired = None if core == RIVAL else baseline
        held_out = [result["held_out"] or {} for result in found]
        contestants.append(
            Contestant(
                _evaluation(rows, paired, found[0]),
                trainings=len(found),
                parameters=found[0]["parameters"],
                core_parameters=found[0]["core_parameters"],
                held_out_accuracy=mean(figures.get("accuracy") for figures in held_out),
                held_out_at_changes=mean(figures.get("at_changes") for figures in held_out),
                training_seconds=mean(result["training_seconds"] for result in found),
            )
        )
    contestants.sort(key=lambda contestant: -contestant.summary.return_mean)
    rows = laps([expert])
    return [Contestant(_evaluation(rows, baseline if RIVAL in results else None, expert)), *contestants]


def _evaluation(rows: list[EpisodeResult], baseline: list[EpisodeResult] | None, timed: dict[str, Any]) -> Evaluation:
    return Evaluation(rows, replace(summarise(rows, baseline), latency_ms=timed["latency_ms"]))
