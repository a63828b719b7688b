"""Measure a table of a paper again."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec
import yaml

from nac_drive.arguments import checks_shared_arguments
from nac_drive.events import Progress
from nac_drive.experiments.cloning import Cloning
from nac_drive.experiments.cost import Cost
from nac_drive.experiments.experiment import Experiment, Map, Row, Task, open_experiment, run
from nac_drive.experiments.learning import Learning
from nac_drive.experiments.offline import Offline
from nac_drive.experiments.paper import PaperExperiment, PaperTask, require_numbers
from nac_drive.experiments.paper_page import save_page
from nac_drive.experiments.protocol import PROTOCOLS, Protocol, chosen, load
from nac_drive.experiments.size import Sizes
from nac_drive.notebook import automatic
from nac_drive.parallel.processes import require_workers, worker_pool
from nac_drive.policies.device import choose_device
from nac_drive.registry import Registry
from nac_drive.storage.names import shell_path
from nac_drive.storage.read import one_line
from nac_drive.suggest import did_you_mean

EXPERIMENTS: Registry[type[PaperExperiment]] = Registry(
    "experiment",
    {"cloning": Cloning, "cost": Cost, "learning": Learning, "offline": Offline, "size": Sizes},
)
"""Name of an experiment of a protocol -> its settings and its work."""


_SETTING = re.compile(r",(?=\w+=)")
"""The comma before a setting; others belong to a list."""


@dataclass(frozen=True)
class PaperTable(Experiment):
    """The measurements of a table."""

    name: str
    settings: Mapping[str, Any]
    """Settings of the experiment, as JSON."""
    drivers: Mapping[str, str]
    """Drivers that the measurements read: name and control -> `driver_hash`."""
    measurements: Mapping[str, tuple[PaperExperiment, PaperTask]]
    """Key of every task -> the experiment with the settings of its entry, and the task; in the order of the table."""
    experiment: PaperExperiment
    """The experiment with the settings of the table."""
    kind: str = "a reproduction"

    @classmethod
    def of(cls, name: str, protocol: Protocol, settings: Mapping[str, Any], experiment: PaperExperiment) -> PaperTable:
        """Return the table of a protocol."""
        measurements = {}
        for entry in protocol.entries:
            variant = msgspec.convert({**settings, **entry.settings}, type(experiment))
            for place in experiment.places():
                task = PaperTask(entry.name, entry.core, protocol.core_args(entry), place, entry.settings)
                measurements[_task(task).key] = variant, task
        drivers = {
            driver: sha256 for variant, _ in measurements.values() for driver, sha256 in variant.drivers().items()
        }  # fmt: skip
        return cls(name, settings, drivers, measurements, experiment)

    @property
    def alone(self) -> bool:  # type: ignore[override]
        """Nothing else may run during a measurement."""
        return self.experiment.alone

    def conditions(self) -> dict[str, Any]:
        return {"name": self.name, "settings": dict(self.settings), "drivers": dict(self.drivers)}

    def tasks(self) -> list[Task]:
        return [_task(task) for _, task in self.measurements.values()]

    def for_part(self, tasks: Sequence[Task]) -> PaperTable:
        return replace(self, measurements={task.key: self.measurements[task.key] for task in tasks})

    def prepare(self, folder: Path | None, each: Map) -> Iterator[str]:
        assert folder is not None
        return self.experiment.prepare(folder, each)

    def measure(self, folder: Path | None, tasks: Sequence[Task]) -> Iterator[Row]:
        assert folder is not None
        for task in tasks:
            experiment, measurement = self.measurements[task.key]
            yield {**task.coordinates, **experiment.measure(folder, measurement)}

    def check(self, task: Task, row: Row) -> None:
        require_numbers(row, *self.measurements[task.key])

    def note(self, rows: Sequence[Row]) -> str:
        return rows[-1]["entry"]


def _task(task: PaperTask) -> Task:
    return Task(task.entry, task.coordinates)


@checks_shared_arguments
def reproduce(
    name: str,
    folder: str | os.PathLike[str],
    *,
    full: bool = False,
    only: Sequence[str] = (),
    workers: int = 1,
    device: str = "auto",
    resume: bool = False,
    experiments: Mapping[str, type[PaperExperiment]] = EXPERIMENTS,
    protocols: Path = PROTOCOLS,
    command: str = "nac-drive reproduce",
    progress: Progress = automatic,
) -> Path:
    """Measure a table of a paper again, and write it beside the printed figures.

    Every finished measurement is kept in `folder/rows.jsonl`, in the end in the order of the table.

    Args:
        name: The table, one of `REPRODUCTIONS`, or of the names of `protocols`. Settings of the measurement may follow,
            such as nac-table1,tested_folds=5, in place of the protocol's. A line with a setting of its own keeps it.
        folder: The folder of the results.
        full: Measure at the paper's size, in place of what two cores do in about an hour.
        only: Lines of the table, by the paper's name or our core; all of them for none.
        workers: Processes, 0 for one per core. There is one where run times are measured, or networks learn on a GPU.
        device: Where networks learn, `auto`, `cpu` or `cuda`. Run times are measured there and on the CPU.
        resume: Go on with an interrupted reproduction, or with other lines of it.
        experiments: Name of an experiment -> its class, which worker processes must be able to import.
        protocols: Folder of the protocols, `NAME.yaml` each.
        command: The start of the command line that the page shows.
        progress: Called with an event for every measurement.

    Returns:
        The page, `folder/NAME.md`.

    Raises:
        FileExistsError: If `folder` exists and `resume` is off.
        FileError: If `folder` holds a reproduction with other settings or drivers, or rows of other measurements.
        FolderInUseError: If another process writes to `folder`.
        ValueError: For an unknown name or line, a device that is not there, or a measurement that is not finite.
        WriteError: If `folder` cannot be written.
    """
    (table_name, _, words), folder, device = name.partition(","), Path(folder), choose_device(device).type
    require_workers(workers)
    protocol = load(table_name, protocols)
    protocol = protocol.at_full_size() if full else protocol
    names = {entry.name for entry in chosen(protocol, only)}
    on_gpu = device != "cpu"
    kind = experiments[protocol.experiment]
    settings = protocol.settings | _settings_of(_SETTING.split(words) if words else [], kind)
    settings |= {"device": device} if on_gpu else {}
    try:
        experiment = msgspec.convert(settings, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"name: the settings of {table_name} must fit their types, got {name!r}: {error}.") from None
    experiment.check()
    table = PaperTable.of(table_name, protocol, settings, experiment)
    with open_experiment(table, folder, files=(f"{table_name}.md",), resume=resume) as journal:
        journal.begin()  # before anything is prepared
        with worker_pool(1 if experiment.alone or on_gpu else workers) as pool:
            run(table, journal, pool=pool, only=lambda task: task.entry in names, job="reproduce", progress=progress)
        rows = [journal.rows[task.key] for task in table.tasks() if task.key in journal.rows]
        options = [*(["--full"] if full else []), *(["--device", device] if on_gpu else [])]
        line = " ".join([command, name, *options, "--out", shell_path(folder.name)])
        return save_page(folder / f"{table_name}.md", protocol, experiment, rows, line)


def _settings_of(words: Sequence[str], kind: type[PaperExperiment]) -> dict[str, Any]:
    """Read the settings that follow the name of a table.

    Raises:
        ValueError: A word is not KEY=VALUE, or names no setting of the measurement.
    """
    settings, keys = {}, {field.name for field in fields(kind)} - {"device"}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in keys:
            raise ValueError(
                f"name: settings of a table must be KEY=VALUE with KEY among {', '.join(sorted(keys))}, got {word!r}."
                f"{did_you_mean(key, keys)}"
            )
        try:
            settings[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            reason = one_line(error)[:200]
            raise ValueError(f"name: {key} must be YAML, such as [[tracks, 16]], got {value!r}: {reason}.") from None
    return settings
