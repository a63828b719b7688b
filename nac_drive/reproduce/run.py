"""Measure a table of a paper again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from nac_drive.data_collection.processes import worker_pool
from nac_drive.policies.ops.threads import one_thread
from nac_drive.reproduce.circuits import Circuits
from nac_drive.reproduce.cost import Cost
from nac_drive.reproduce.driving import Driving
from nac_drive.reproduce.experiment import Each, Experiment, Place, Row, Task, key_of
from nac_drive.reproduce.flow import Flow
from nac_drive.reproduce.learning import Learning
from nac_drive.reproduce.page import save_page
from nac_drive.reproduce.passive import Passive
from nac_drive.reproduce.protocol import Entry, Reproduction, chosen, load
from nac_drive.reproduce.responses import Responses
from nac_drive.reproduce.size import Size
from nac_drive.reproduce.trajectory import Trajectory
from nac_drive.storage.lock import locked
from nac_drive.storage.read import read_json, read_json_lines
from nac_drive.storage.write import write_atomically

EXPERIMENTS: dict[str, type[Experiment]] = {
    "circuits": Circuits,
    "cost": Cost,
    "driving": Driving,
    "flow": Flow,
    "learning": Learning,
    "passive": Passive,
    "responses": Responses,
    "size": Size,
    "trajectory": Trajectory,
}
"""Name of an experiment -> its settings and its work."""
SETTINGS, RESULTS = "settings.json", "results.jsonl"


def reproduce(
    name: str,
    folder: str | os.PathLike[str],
    *,
    full: bool = False,
    only: Sequence[str] = (),
    workers: int = 0,
    resume: bool = False,
    report: Callable[[dict[str, Any]], None] = lambda row: None,
) -> Path:
    """Measure a table of a paper again, and write it beside the printed figures.

    Every finished measurement is kept in `folder/results.jsonl`.

    Args:
        name: The table, one of `REPRODUCTIONS`.
        folder: The folder of the results.
        full: Measure at the paper's size, in place of what two cores do in about an hour.
        only: Lines of the table, by the paper's name or our core; all of them for none.
        workers: Processes, 0 for one per core. Run times are measured in one process at a time.
        resume: Go on with an interrupted reproduction, or with other lines of it.
        report: Called with `done` and `total` measurements and the row of each as it is finished; before them with
            `ready`, what was prepared.

    Returns:
        The page, `folder/NAME.md`.

    Raises:
        FileExistsError: If `folder` exists and `resume` is off.
        FolderInUseError: If another process writes to `folder`.
        ValueError: For an unknown name or line, or if `folder` holds a reproduction with other settings.
    """
    folder = Path(folder)
    reproduction = load(name)
    entries = chosen(reproduction, only)
    settings = reproduction.settings | (reproduction.full if full else {})
    kind = EXPERIMENTS[reproduction.experiment]
    experiment = msgspec.convert(settings, kind)
    if folder.exists() and not resume:
        raise FileExistsError(f"{folder} already exists; pass --resume to go on, or choose another folder.")
    with locked(folder):
        _require_same(folder / SETTINGS, {"name": name, "settings": settings})
        rows = _finished(folder / RESULTS)
        tasks = [
            (msgspec.convert(settings | entry.settings, kind), _task(reproduction, entry, place))
            for entry in entries
            for place in experiment.places()
        ]
        known = {key_of(row, tasks[0][1]) for row in rows}
        missing = [(own, task) for own, task in tasks if task.key not in known]
        with worker_pool(1 if experiment.alone else workers) as pool:
            each: Each = pool.imap_unordered if pool else map
            if missing:
                for ready in experiment.prepare(folder, each):
                    report({"ready": ready, "total": len(tasks)})
            with (folder / RESULTS).open("a") as file:
                measured = each(partial(_measured, folder), missing)
                for done, row in enumerate(measured, len(tasks) - len(missing) + 1):
                    rows.append(row)
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                    report({"done": done, "total": len(tasks), **row})
        command = f"nac-drive reproduce {name}{' --full' if full else ''} --out {folder.name}"
        return save_page(folder / f"{name}.md", reproduction, experiment, rows, command)


def _task(reproduction: Reproduction, entry: Entry, place: Place) -> Task:
    return Task(entry.name, entry.core, reproduction.core_args(entry), place)


def _measured(folder: Path, measurement: tuple[Experiment, Task]) -> Row:
    experiment, task = measurement
    with nullcontext() if experiment.alone else one_thread():
        return {"entry": task.entry, "core": task.core, **dict(task.place), **experiment.measure(folder, task)}


def _require_same(path: Path, settings: dict[str, Any]) -> None:
    """Write the settings, or check that they are those of the results that are there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_atomically(path, json.dumps(settings, indent=2).encode())
        return
    there = read_json(path, dict[str, Any], "settings of a reproduction", "choose another folder")
    if there != json.loads(json.dumps(settings)):
        raise ValueError(f"{path.parent} holds a reproduction with other settings; choose another folder.")


def _finished(path: Path) -> list[Row]:
    """Return the rows that are there; a line that was cut off by a kill is removed."""
    if not path.exists():
        return []
    rows, cut_off = read_json_lines(path, Row, "a result", "delete the line and go on with --resume")
    if cut_off:
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return rows
