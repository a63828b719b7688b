"""The runs of a comparison: each is trained and evaluated in its own process, and leaves a file when it is done."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from socket import gethostname
from typing import Any

import msgspec

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.drivers import env_for, resolve_driver
from nac_drive.envs import CrashMode, EnvConfig
from nac_drive.evaluation.evaluate import Evaluation, evaluate
from nac_drive.evaluation.metrics import Count, NotNegative
from nac_drive.evaluation.results import row_type
from nac_drive.parallel.cluster import ClusterError, cluster_pool
from nac_drive.parallel.processes import each_in_a_process, number_of_workers
from nac_drive.policies import Driver
from nac_drive.storage.read import FileError, read_json
from nac_drive.storage.write import WriteError, remove_leftovers, write_atomically, writing
from nac_drive.training.config import TrainConfig
from nac_drive.training.offline import Accuracy
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.train import Splits, train

Report = Callable[[str, dict[str, Any]], None]

_FIX = "remove it and go on with --resume"
_LARGEST_RESULT = 2**28
"""Bytes of the largest result.json that is read: a row has 700."""


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
    device: str
    perturb: str | None = None
    """Perturbations of the evaluation."""
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


def expert_env(dataset: Demonstrations, perturb: str | None) -> EnvConfig:
    """Return the environment of the evaluation, with the status bar, under `perturb` or what the dataset has."""
    return replace(dataset.meta.env, mask_bar=False, perturb=perturb or dataset.meta.env.perturb)


def run_tasks(tasks: Sequence[Task], workers: int, report: Report, cluster: str | None = None) -> dict[str, str]:
    """Run the tasks that are not finished.

    Args:
        tasks: The tasks.
        workers: Processes at a time.
        report: Called with the name of a task and {"started": True}, its result, or {"failed": message}.
        cluster: Run them on a Ray cluster, see `compare`.

    Returns:
        Name of a failed task -> message.

    Raises:
        ClusterError: If the cluster cannot be used, or one of its machines does not see the folders.
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

    for task, code in _each(started(), workers, cluster):
        if task.done.exists():
            report(task.name, result_of(task))
            continue
        message = _failure(task) or _death(task, code)
        failures[task.name] = message
        report(task.name, {"failed": message})
    return failures


def _failure(task: Task) -> str:
    """Return the last line of the traceback; empty without one."""
    text = task.failed.read_text(errors="replace") if task.failed.exists() else ""
    return (text.splitlines() or [""])[-1]


def _death(task: Task, code: int) -> str:
    """Return the message of a process that left no traceback; see `_work` for positive exit codes."""
    if code > 1:
        return f"cannot write {task.failed}: {os.strerror(code)}; free some space or repair the disk"
    return f"its process died ({code})"


def _each(tasks: Iterable[Task], workers: int, cluster: str | None) -> Iterator[tuple[Task, int]]:
    """Yield (task, exit code) as tasks end."""
    if cluster is None:
        yield from each_in_a_process(_work, tasks, workers)
        return
    number_of_workers(workers)  # a bad number fails here
    waiting = iter(tasks)
    for first in islice(waiting, 1):  # the device is that of all tasks
        with cluster_pool(cluster, workers, gpus=int(first.device == "cuda")) as pool:
            yield from pool.each(partial(_work_on_cluster, os.getcwd()), chain([first], waiting))


def _work_on_cluster(folder: str, task: Task) -> None:
    """Run one task in a process of the cluster, in the working folder of the command."""
    try:
        os.chdir(folder)
        seen = task.run.parent.is_dir() and task.dataset.is_dir()
    except OSError:
        seen = False
    if not seen:
        raise ClusterError(
            f"machine {gethostname()} of the cluster does not see {task.run.parent.absolute()} or "
            f"{task.dataset.absolute()}; put both on storage that all machines share, and start the command there."
        )
    _work(replace(task, device="cpu") if task.device == "auto" else task)  # a GPU is for tasks that reserved it


def _work(task: Task) -> None:
    """Run one task; each has its own process.

    Raises:
        SystemExit: It failed, and the disk takes no traceback: the exit code is the number of the system's error.
    """
    try:
        with writing(task.run):
            task.run.mkdir(exist_ok=True)
            task.failed.unlink(missing_ok=True)
        for file in (task.done, task.failed, task.latency):
            remove_leftovers(file)
        result = {"run": task.name, **_train_and_evaluate(task)}
        write_atomically(task.done, json.dumps(result).encode())
    except Exception:
        try:
            write_atomically(task.failed, traceback.format_exc().encode())
        except WriteError as error:
            raise SystemExit(getattr(error.__cause__, "errno", None) or 1) from None


def _train_and_evaluate(task: Task) -> dict[str, Any]:
    dataset = Demonstrations.open(task.dataset)
    result: dict[str, Any] = {}
    if task.config is not None:
        resume = (task.run / "config.yaml").exists()
        train(task.config, dataset, task.run, device=task.device, resume=resume, splits=task.splits)
        driver = resolve_driver(str(task.run), expert_env(dataset, task.perturb))
        assert isinstance(driver, Driver)
        history = RunFolder.open(task.run).rows()
        result = {
            "parameters": sum(parameter.numel() for parameter in driver.parameters()),
            "core_parameters": sum(parameter.numel() for parameter in driver.core.parameters()),
            "neurons": driver.core.neurons,
            "synapses": driver.core.synapses,
            "training_seconds": sum(row["seconds"] for row in history),
            "validation": max(history, key=lambda row: row.get("score", float("-inf"))).get("validation"),
        }
    if task.tracks:
        result["rows"] = [row.to_dict() for row in _drive(task, task.tracks, with_expert=task.config is not None).rows]
    return result


def _drive(task: Task, tracks: Sequence[int], with_expert: bool) -> Evaluation:
    env = expert_env(Demonstrations.open(task.dataset), task.perturb)
    expert = driver = resolve_driver(task.expert, env)
    if task.config is not None:
        driver = resolve_driver(str(task.run), env)
    return evaluate(
        driver, tracks, name=task.driver, env=replace(env, mask_bar=env_for(driver).mask_bar), crash=task.crash,
        expert=expert if with_expert else None,
    )  # fmt: skip


def time_alone(task: Task) -> None:
    """Measure the time of one `act` in an episode with nothing else running, once; parallel work slows it."""
    if not task.latency.exists():
        (row,) = _drive(task, task.tracks[:1], with_expert=False).rows
        write_atomically(task.latency, json.dumps({"latency_ms": row.latency_ms}).encode())


def result_of(task: Task) -> dict[str, Any]:
    """Return the result of a finished task, with the time of one `act` where that was measured.

    Raises:
        FileError: If its file is damaged.
    """
    count: Any = Count
    trained = [
        ("parameters", count), ("core_parameters", count), ("training_seconds", NotNegative),
        ("validation", Accuracy | None),
        ("neurons", count | None, None), ("synapses", count | None, None),  # earlier results lack them
    ]  # fmt: skip
    kinds: list[Any] = [
        ("run", str, task.name),
        *(trained if task.config else []),
        *([("rows", list[row_type()])] if task.tracks else []),
    ]
    result = _read(task.done, kinds)
    rows = [(row["driver"], row["seed"], row["crash_mode"], row["perturbation"]) for row in result.get("rows", ())]
    expected = [(task.driver, track, task.crash, task.perturb or "") for track in task.tracks]
    if rows != expected or result["run"] != task.name:
        raise FileError(
            f"{task.done} is not the result of this run: it has other drivers, tracks or perturbations; {_FIX}."
        )
    return result | (_read(task.latency, [("latency_ms", NotNegative)]) if task.latency.exists() else {})


def _read(path: Path, kinds: list[Any]) -> dict[str, Any]:
    kind = msgspec.defstruct("Result", kinds, kw_only=True)
    return msgspec.to_builtins(read_json(path, kind, "the result of a run", _FIX, largest=_LARGEST_RESULT))
