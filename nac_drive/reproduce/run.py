"""Measure a table of a paper again."""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from nac_drive.parallel.processes import worker_pool
from nac_drive.policies.ops.threads import one_thread
from nac_drive.reproduce.cost import Cost
from nac_drive.reproduce.driving import Driving
from nac_drive.reproduce.experiment import Each, Experiment, Row, Task, require_numbers
from nac_drive.reproduce.learning import Learning
from nac_drive.reproduce.page import save_page
from nac_drive.reproduce.passive import Passive
from nac_drive.reproduce.protocol import PROTOCOLS, Reproduction, chosen, load
from nac_drive.reproduce.size import Size
from nac_drive.storage.lock import locked
from nac_drive.storage.names import shell_path
from nac_drive.storage.read import FileError, read_json, read_json_lines
from nac_drive.storage.write import flatten, remove_leftovers, write_atomically, writing

EXPERIMENTS: dict[str, type[Experiment]] = {
    "cost": Cost,
    "driving": Driving,
    "learning": Learning,
    "passive": Passive,
    "size": Size,
}
"""Name of an experiment that the package holds -> its settings and its work."""
SETTINGS, RESULTS = "settings.json", "results.jsonl"

Measurements = dict[str, tuple[Experiment, Task]]
"""Key of every task of a table -> the settings of its entry, and the task; in the order of the table."""


def reproduce(
    name: str,
    folder: str | os.PathLike[str],
    *,
    full: bool = False,
    only: Sequence[str] = (),
    workers: int = 0,
    resume: bool = False,
    experiments: Mapping[str, type[Experiment]] = EXPERIMENTS,
    protocols: Path = PROTOCOLS,
    command: str = "nac-drive reproduce",
    report: Callable[[dict[str, Any]], None] = lambda row: None,
) -> Path:
    """Measure a table of a paper again, and write it beside the printed figures.

    Every finished measurement is kept in `folder/results.jsonl`, in the end in the order of the table.

    Args:
        name: The table, one of `REPRODUCTIONS`, or of the names of `protocols`.
        folder: The folder of the results.
        full: Measure at the paper's size, in place of what two cores do in about an hour.
        only: Lines of the table, by the paper's name or our core; all of them for none.
        workers: Processes, 0 for one per core. Run times are measured in one process at a time.
        resume: Go on with an interrupted reproduction, or with other lines of it.
        experiments: Name of an experiment -> its class, which worker processes must be able to import.
        protocols: Folder of the protocols, `NAME.yaml` each.
        command: The start of the command line that the page shows.
        report: Called with `done` and `total` measurements and the row of each as it is finished; before them with
            `ready`, what was prepared.

    Returns:
        The page, `folder/NAME.md`.

    Raises:
        FileExistsError: If `folder` exists and `resume` is off.
        FileError: If `folder` holds a reproduction with other settings or drivers, or rows of other measurements.
        FolderInUseError: If another process writes to `folder`.
        ValueError: For an unknown name or line, or a measurement that is not finite.
        WriteError: If `folder` cannot be written.
    """
    folder = Path(folder)
    reproduction = load(name, protocols)
    entries = chosen(reproduction, only)
    settings = reproduction.settings | (reproduction.full if full else {})
    experiment = msgspec.convert(settings, experiments[reproduction.experiment])
    table = _measurements(reproduction, settings, experiment)
    names = {entry.name for entry in entries}
    tasks = {key: measurement for key, measurement in table.items() if measurement[1].entry in names}
    if folder.exists() and not resume:
        raise FileExistsError(f"{folder} already exists; pass --resume to go on, or choose another folder.")
    with locked(folder):
        for file in (SETTINGS, RESULTS, f"{name}.md"):
            remove_leftovers(folder / file)
        drivers = {driver: sha256 for own, _ in table.values() for driver, sha256 in own.drivers().items()}
        _require_same(folder / SETTINGS, {"name": name, "settings": settings, "drivers": drivers})
        rows = _finished(folder / RESULTS, table)
        missing = [tasks[key] for key in tasks if key not in rows]
        with worker_pool(1 if experiment.alone else workers) as pool:
            each: Each = pool.imap_unordered if pool else map
            if missing:
                for ready in experiment.prepare(folder, each):
                    report({"ready": ready, "total": len(tasks)})
            measured = each(partial(_measured, folder), missing)
            for done, (key, row) in enumerate(measured, len(tasks) - len(missing) + 1):
                rows[key] = row
                with writing(folder / RESULTS), (folder / RESULTS).open("a") as file:
                    file.write(json.dumps(row) + "\n")
                report({"done": done, "total": len(tasks), **row})
        ordered = [rows[key] for key in table if key in rows]
        _write_rows(folder / RESULTS, ordered)
        line = f"{command} {name}{' --full' if full else ''} --out {shell_path(folder.name)}"
        return save_page(folder / f"{name}.md", reproduction, experiment, ordered, line)


def _measurements(reproduction: Reproduction, settings: dict[str, Any], experiment: Experiment) -> Measurements:
    measurements = {}
    for entry in reproduction.entries:
        own = msgspec.convert(settings | entry.settings, type(experiment))
        for place in experiment.places():
            task = Task(entry.name, entry.core, reproduction.core_args(entry), place, entry.settings)
            measurements[task.key] = own, task
    return measurements


def _measured(folder: Path, measurement: tuple[Experiment, Task]) -> tuple[str, Row]:
    """Return the key of a task, and its row.

    Raises:
        ValueError: A number of the row is not finite.
    """
    experiment, task = measurement
    with nullcontext() if experiment.alone else one_thread():
        row = json.loads(json.dumps({**task.conditions, **experiment.measure(folder, task)}))
    try:
        require_numbers(row, experiment, task)
    except msgspec.ValidationError as error:
        where = "".join(f", {name} {value}" for name, value in task.place)
        raise ValueError(
            f"{task.entry}{where}: the measurement cannot be kept: {error}; if its training diverged, choose other "
            "settings, or leave the line out with --only."
        ) from None
    return task.key, row


def _require_same(path: Path, settings: dict[str, Any]) -> None:
    """Write the settings, or check that they are those of the results that are there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_atomically(path, json.dumps(settings, indent=2).encode())
        return
    saved = read_json(path, dict[str, Any], "settings of a reproduction", "choose another folder")
    before, now = flatten(saved), flatten(json.loads(json.dumps(settings)))
    if differing := sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key)):
        differences = "; ".join(
            f"{key[:100]}: it has {reprlib.repr(before.get(key))}, got {reprlib.repr(now.get(key))}"
            for key in differing
        )
        raise FileError(
            f"{path.parent} holds a reproduction with other settings ({differences}); choose another folder."
        )


def _finished(path: Path, table: Measurements) -> dict[str, Row]:
    """Return the rows that are there, by the keys of their tasks; a line that was cut off by a kill is removed.

    Raises:
        FileError: A row is damaged, comes twice, or is of no task of the table.
    """
    if not path.exists():
        return {}
    fix = "remove the line and go on with --resume"
    lines, cut_off = read_json_lines(path, Row, "a result", fix)
    rows: dict[str, Row] = {}
    _, task = next(iter(table.values()))
    for number, row in enumerate(lines, 1):
        where, key = f"{path}, line {number}", task.key_of(row)
        if key not in table:
            raise FileError(
                f"{where} was measured with other settings than this table has, or is no result of it "
                f"(entry {reprlib.repr(row.get('entry'))}, core {reprlib.repr(row.get('core'))}); {fix}."
            )
        if key in rows:
            raise FileError(f"{where} holds a measurement that another line holds already; {fix}.")
        try:
            require_numbers(row, *table[key])
        except msgspec.ValidationError as error:
            raise FileError(f"{where} is not a result: {error}; {fix}.") from None
        rows[key] = row
    if cut_off:
        _write_rows(path, list(rows.values()))
    return rows


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
