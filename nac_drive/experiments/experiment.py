"""One way to measure: tasks that processes share, and rows that are kept as they come."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any, ClassVar

from nac_drive.events import Event, Progress, message, silent
from nac_drive.experiments.journal import Journal, Row, open_journal
from nac_drive.parallel.cluster import ClusterError, cluster_pool
from nac_drive.parallel.outcome import TaskOutcome
from nac_drive.parallel.processes import Pool, each_in_a_process, pool_size
from nac_drive.policies.ops.threads import one_thread
from nac_drive.storage.write import WriteError, remove_leftovers, write_atomically, writing

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""`map`, perhaps over processes."""


@dataclass(frozen=True)
class Task:
    """One measurement of one entry."""

    entry: str
    """Name of the entry, or of its run where there are several."""
    coordinates: Mapping[str, Any]
    """What tells its row from all others of the experiment. The row has the same keys and values."""

    @property
    def key(self) -> str:
        """Return the key by which the finished row is recognised."""
        return self.key_of(self.coordinates)

    def key_of(self, row: Mapping[str, Any]) -> str:
        """Return the key of a row of the same experiment."""
        return json.dumps({name: row.get(name) for name in self.coordinates}, sort_keys=True)


class Experiment(ABC):
    """A grid of measurements: a frozen dataclass whose fields are its settings."""

    kind: str
    """Noun for messages, such as "a stress test"."""
    grows: ClassVar[tuple[str, ...]] = ()
    """Keys of `conditions` whose lists may have grown when an experiment goes on."""
    alone: ClassVar[bool] = False
    """Whether nothing else may run beside a measurement."""
    isolated: ClassVar[bool] = False
    """Whether every part has a process of its own, so that one that fails or dies costs no other."""
    gpus: ClassVar[int] = 0
    """GPUs that each part of an isolated experiment has to itself on a cluster."""

    @abstractmethod
    def conditions(self) -> dict[str, Any]:
        """Return everything that the rows depend on, as JSON: the content of conditions.json."""

    @abstractmethod
    def tasks(self) -> list[Task]:
        """Return all tasks, in the order of the rows."""

    @abstractmethod
    def measure(self, folder: Path | None, tasks: Sequence[Task]) -> Iterator[Row]:
        """Yield the rows of the tasks of one part, in any order and any process."""

    @abstractmethod
    def check(self, task: Task, row: Row) -> None:
        """Check that a row is a result of a task.

        Raises:
            ValueError: It is none. The message says why.
        """

    def parts(self, tasks: Sequence[Task], processes: int) -> list[list[Task]]:
        """Return the tasks in parts, each of which one process measures at a time."""
        return [[task] for task in tasks]

    def for_part(self, tasks: Sequence[Task]) -> Experiment:
        """Return an experiment that can measure a part, and is cheap to send to another process."""
        return self

    def prepare(self, folder: Path | None, each: Map) -> Iterator[str]:
        """Make in `folder` what all tasks need, unless it is there. Yields what is ready."""
        return iter(())

    def note(self, rows: Sequence[Row]) -> str:
        """Return what progress says of new rows."""
        return ""


def open_experiment(
    experiment: Experiment, folder: str | os.PathLike[str] | None, *, files: Sequence[str] = (), resume: bool = False
) -> AbstractContextManager[Journal]:
    """Hold the folder of an experiment for a `with` block, see `open_journal`."""
    return open_journal(
        folder, experiment.kind, experiment.conditions(), experiment.tasks(), experiment.check,
        grows=experiment.grows, files=files, resume=resume,
    )  # fmt: skip


@dataclass(frozen=True)
class Results:
    """Rows of an experiment."""

    rows: list[Row]
    """In the order of the tasks."""
    failures: dict[str, str] = field(default_factory=dict)
    """Entry of a part that failed -> message. No row of it is in `rows`."""


def run(
    experiment: Experiment,
    journal: Journal,
    *,
    pool: Pool | None = None,
    workers: int = 1,
    cluster: str | None = None,
    only: Callable[[Task], bool] = lambda task: True,
    job: str = "",
    progress: Progress = silent,
) -> Results:
    """Measure what is missing.

    Args:
        experiment: The experiment.
        journal: Has the finished rows, and gets every new one.
        pool: Processes that share the parts; None: this process. No result depends on it, measured times aside.
        workers: Processes of an isolated experiment, 0 for one per core.
        cluster: Ray cluster of an isolated experiment, see `cluster_pool`.
        only: Chooses tasks; rows of the others stay in the journal.
        job: Name of the job in events.
        progress: Called with an event for every row, or for every part of an isolated experiment.

    Returns:
        The rows of the chosen tasks, and what failed.

    Raises:
        ValueError: A row is no result, such as one that is not finite.
        WriteError: The journal cannot be written.
    """
    tasks = experiment.tasks()
    chosen = [task for task in tasks if only(task)]
    missing = [task for task in chosen if task.key not in journal.rows]
    done, failures = len(chosen) - len(missing), {}

    def keep(rows: Sequence[Row]) -> None:
        nonlocal done
        for row in rows:
            done += 1
            journal.append(row)
        progress(Event(job, done, len(chosen), experiment.note(rows)))

    if missing:
        each: Map = pool.imap_unordered if pool and not experiment.alone else map
        for ready in experiment.prepare(journal.folder, each):
            progress(message(job, f"{ready} ready"))
        if not experiment.isolated:  # these announce every start
            progress(Event(job, done, len(chosen)))
        parts = experiment.parts(missing, pool_size(pool) if pool else 1)
        if experiment.isolated:
            for part, outcome in _isolated(experiment, journal.folder, parts, workers, cluster, job, progress):
                if outcome.error:
                    failures[part[0].entry] = outcome.error
                    _keep_traceback(journal, part[0].entry, outcome.traceback)
                    progress(message(job, f"{part[0].entry} failed: {outcome.error}"))
                else:
                    keep(outcome.value)
        elif pool and not experiment.alone:
            work = partial(_all_rows, journal.folder)
            for rows in pool.imap_unordered(work, [(experiment.for_part(part), part) for part in parts]):
                keep(rows)
        else:
            with nullcontext() if experiment.alone else one_thread():
                for part in parts:
                    for row in _checked(experiment, part, experiment.measure(journal.folder, part)):
                        keep([row])
    journal.finish([task.key for task in tasks])
    finished = [task for task in chosen if task.key in journal.rows and task.entry not in failures]
    return Results([journal.rows[task.key] for task in finished], failures)


def _checked(experiment: Experiment, part: Sequence[Task], rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows as JSON holds them.

    Raises:
        ValueError: A row is no result.
    """
    tasks = {task.key: task for task in part}
    for row in rows:
        row = json.loads(json.dumps(row))
        task = tasks[part[0].key_of(row)]
        try:
            experiment.check(task, row)
        except ValueError as error:
            numbers = [f"{name} {value}" for name, value in task.coordinates.items() if isinstance(value, int)]
            where = ", ".join([task.entry, *numbers])
            raise ValueError(
                f"{where}: the measurement cannot be kept: {error}; if its training diverged, choose other settings, "
                "or leave the entry out."
            ) from None
        yield row


def _all_rows(folder: Path | None, work: tuple[Experiment, Sequence[Task]]) -> list[Row]:
    """Measure a part in one of several processes."""
    experiment, part = work
    with nullcontext() if experiment.alone else one_thread():
        return list(_checked(experiment, part, experiment.measure(folder, part)))


def _isolated(
    experiment: Experiment,
    folder: Path | None,
    parts: Sequence[list[Task]],
    workers: int,
    cluster: str | None,
    job: str,
    progress: Progress,
) -> Iterator[tuple[Sequence[Task], TaskOutcome]]:
    """Yield every part with its outcome."""

    def started() -> Iterator[tuple[Experiment, Sequence[Task]]]:
        for part in parts:
            progress(message(job, f"{part[0].entry} started"))
            yield experiment.for_part(part), part

    work = partial(_all_rows, folder)
    ended = in_own_processes(work, started(), folder, workers=workers, cluster=cluster, gpus=experiment.gpus)
    for (_, part), outcome in ended:
        yield part, outcome


def in_own_processes(
    function: Callable[[Any], Any],
    items: Iterable[Any],
    folder: Path | None,
    *,
    workers: int = 1,
    cluster: str | None = None,
    gpus: int = 0,
) -> Iterator[tuple[Any, TaskOutcome]]:
    """Call `function(item)` in a process for each item, here or on a cluster.

    Args:
        function: Must be importable by name, as its items are pickled.
        items: The next one is taken when a process is free.
        folder: The folder that all machines of a cluster must see.
        workers: Processes at a time, 0 for one per core.
        cluster: A Ray cluster, see `cluster_pool`.
        gpus: GPUs that each process has to itself on a cluster.

    Yields:
        (item, outcome) as processes end: one that fails or dies costs no other.

    Raises:
        ClusterError: If the cluster cannot be used, or one of its machines does not see `folder`.
    """
    if cluster is None:
        yield from each_in_a_process(function, items, workers)
        return
    assert folder is not None
    with cluster_pool(cluster, workers, gpus=gpus) as pool:
        yield from pool.each(partial(_on_cluster, os.getcwd(), folder, function), items)


def _on_cluster(working: str, folder: Path, function: Callable[[Any], Any], item: Any) -> Any:
    """Call `function(item)` in a process of the cluster, in the working folder of the command."""
    try:
        os.chdir(working)
        seen = folder.is_dir()
    except OSError:
        seen = False
    if not seen:
        raise ClusterError(
            f"machine {gethostname()} of the cluster does not see {folder.absolute()}; put it on storage that all "
            "machines share, and start the command there."
        )
    return function(item)


def _keep_traceback(journal: Journal, entry: str, text: str) -> None:
    """Write RUN/failed.txt, where there is a traceback and room for it."""
    if journal.folder is None or not text:
        return
    path = journal.folder / entry / "failed.txt"
    with suppress(WriteError), writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path)
        write_atomically(path, text.encode())
