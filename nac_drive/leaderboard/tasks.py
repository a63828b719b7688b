"""The runs of a comparison: each is trained and evaluated in its own process, and leaves a file when it is done."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.experts import resolve_driver
from nac_drive.data_collection.files import write_atomically
from nac_drive.data_collection.processes import each_in_a_process
from nac_drive.envs import CrashMode, EnvConfig, RendererName
from nac_drive.evaluation.evaluate import Evaluation, evaluate
from nac_drive.policies import Driver
from nac_drive.training.config import TrainConfig
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.train import Splits, train

Report = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class Task:
    """A run with its evaluation, in the folder `run`; without `config`, the evaluation of the expert alone."""

    driver: str
    """Name in the table."""
    run: Path
    dataset: Path
    config: TrainConfig | None
    expert: str
    tracks: tuple[int, ...]
    """Tracks of the evaluation; empty for none."""
    crash: CrashMode
    renderer: RendererName
    device: str
    splits: Splits | None = None
    """The data, where it is loaded already."""

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.run.name

    @property
    def done(self) -> Path:
        """The file of a finished task."""
        return self.run / "result.json"

    @property
    def latency(self) -> Path:
        """Time of one `act` with nothing else running, once that was measured."""
        return self.run / "latency.json"

    @property
    def failed(self) -> Path:
        """Traceback of the last attempt, if it failed."""
        return self.run / "failed.txt"


def expert_env(dataset: Demonstrations) -> EnvConfig:
    """The environment of the expert: with the status bar."""
    return replace(dataset.meta.env, mask_bar=False)


def run_tasks(tasks: Sequence[Task], workers: int, report: Report) -> dict[str, str]:
    """Run the tasks that are not finished.

    Args:
        tasks: The tasks.
        workers: Processes at a time.
        report: Called with the name of a task and {"started": True}, its result, or {"failed": message}.

    Returns:
        Name of a failed task -> message.
    """
    failures = {}
    waiting = []
    for task in tasks:
        if task.done.exists():
            report(task.name, result_of(task))
        else:
            waiting.append(task)

    def started() -> Iterator[Task]:
        for task in waiting:
            report(task.name, {"started": True})
            yield task

    for task, code in each_in_a_process(_work, started(), workers):
        if task.done.exists():
            report(task.name, result_of(task))
            continue
        message = task.failed.read_text().splitlines()[-1] if task.failed.exists() else f"its process died ({code})"
        failures[task.name] = message
        report(task.name, {"failed": message})
    return failures


def _work(task: Task) -> None:
    """Run one task; each has its own process."""
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
        result["rows"] = [row.to_dict() for row in _drive(task, task.tracks, with_expert=task.config is not None).rows]
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


def time_alone(task: Task) -> None:
    """Measure the time of one `act` in an episode with nothing else running, once; parallel work slows it."""
    if not task.latency.exists():
        (row,) = _drive(task, task.tracks[:1], with_expert=False).rows
        write_atomically(task.latency, json.dumps({"latency_ms": row.latency_ms}).encode())


def result_of(task: Task) -> dict[str, Any]:
    """The result of a finished task, with the time of one `act` where that was measured."""
    return json.loads(task.done.read_text()) | (json.loads(task.latency.read_text()) if task.latency.exists() else {})
