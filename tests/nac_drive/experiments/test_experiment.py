"""The one engine: killed anywhere and resumed, an experiment is the one without a kill; nothing else is let in."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nac_drive.events import Event
from nac_drive.experiments import experiment as module
from nac_drive.experiments.experiment import Experiment, Results, Row, Task, open_experiment, run
from nac_drive.experiments.journal import CONDITIONS, ROWS
from nac_drive.parallel.processes import worker_pool
from nac_drive.storage.lock import FolderInUseError, locked
from nac_drive.storage.read import FileError
from tests.data_collection.recordings import contents
from tests.killing import Fuse, Killed
from tests.nac_drive.forged import require_the_same_or_a_refusal


@dataclass(frozen=True)
class Powers(Experiment):
    """Powers of numbers, by entries; a bad base fails or kills its process."""

    entries: tuple[str, ...] = ("two", "three")
    exponents: tuple[int, ...] = (1, 2, 3)
    setting: int = 0
    together: int = 1
    isolated: bool = False  # type: ignore[misc]
    kind: str = "a table of powers"

    grows = ("entries", "exponents")

    def conditions(self) -> dict[str, Any]:
        entries = [{"name": name, "base": _BASES[name]} for name in self.entries]
        return {"setting": {"number": self.setting}, "entries": entries, "exponents": list(self.exponents)}

    def tasks(self) -> list[Task]:
        return [Task(name, {"entry": name, "exponent": e}) for name in self.entries for e in self.exponents]

    def parts(self, tasks: Sequence[Task], processes: int) -> list[list[Task]]:
        return [list(tasks[start : start + self.together]) for start in range(0, len(tasks), self.together)]

    def measure(self, folder: Path | None, tasks: Sequence[Task]) -> Iterator[Row]:
        for task in tasks:
            if task.entry == "deadly":
                os.kill(os.getpid(), signal.SIGKILL)
            yield {**task.coordinates, "power": _BASES[task.entry] ** task.coordinates["exponent"]}

    def check(self, task: Task, row: Row) -> None:
        if not isinstance(row.get("power"), int) or len(row) != 3:
            raise ValueError(f"power must be a whole number, got {row.get('power')!r}")

    def note(self, rows: Sequence[Row]) -> str:
        return str([row["power"] for row in rows])


_BASES: dict[str, Any] = {"two": 2, "three": 3, "five": 5, "half": 0.5, "deadly": 1}


def measured(experiment: Experiment, folder: Path | None, *, resume: bool = False, **keywords: Any) -> Results:
    with open_experiment(experiment, folder, resume=resume) as journal:
        return run(experiment, journal, **keywords)


@pytest.fixture
def finished(tmp_path) -> Path:
    measured(Powers(), tmp_path / "whole")
    return tmp_path / "whole"


def test_rows_have_the_order_of_the_tasks_and_the_folder_holds_nothing_else(finished):
    results = measured(Powers(), finished, resume=True)
    assert [row["power"] for row in results.rows] == [2, 4, 8, 3, 9, 27]
    assert {path.name for path in finished.iterdir()} == {CONDITIONS, ROWS, ".lock"}
    assert [json.loads(line) for line in (finished / ROWS).read_text().splitlines()] == results.rows
    assert measured(Powers(), None) == results


def test_processes_and_parts_change_no_row(finished, tmp_path):
    events: list[Event] = []
    with worker_pool(2) as pool:
        measured(Powers(), tmp_path / "pool", pool=pool, job="powers", progress=events.append)
        measured(Powers(together=4), tmp_path / "parts", pool=pool)
    assert contents(tmp_path / "parts") == contents(finished)
    assert contents(tmp_path / "pool") == contents(finished)
    assert (events[-1].job, events[-1].done, events[-1].total) == ("powers", 6, 6)


def test_killed_at_every_operation_and_resumed_the_files_are_those_without_a_kill(finished, tmp_path, monkeypatch):
    whole = contents(finished)
    monkeypatch.setattr("nac_drive.storage.write.process_runs", lambda process: False)  # the killed process is this one
    fuse = Fuse()
    real = {name: getattr(os, name) for name in ("replace", "fsync")}
    for moment in range(100):
        path, fuse.left = tmp_path / f"killed {moment}", moment
        with monkeypatch.context() as patch:
            for name, call in real.items():
                patch.setattr(os, name, fuse.deadly(call))
            try:
                measured(Powers(), path)
                break
            except Killed:
                pass
        new: list[Event] = []
        measured(Powers(), path, resume=path.exists(), progress=new.append)
        assert contents(path) == whole, f"killed at operation {moment}"
    assert moment > 12


def test_finished_rows_are_not_measured_again(finished, monkeypatch):
    rows = finished / ROWS
    rows.write_bytes(rows.read_bytes()[:-5])  # the last one is cut off
    measured_again: list[str] = []
    real = Powers.measure

    def measure(self: Powers, folder: Path | None, tasks: Sequence[Task]) -> Iterator[Row]:
        measured_again.extend(f"{task.entry} {task.coordinates['exponent']}" for task in tasks)
        return real(self, folder, tasks)

    monkeypatch.setattr(Powers, "measure", measure)
    assert len(measured(Powers(), finished, resume=True).rows) == 6
    assert measured_again == ["three 3"]


def test_lists_may_grow_and_only_they(finished, tmp_path):
    before = contents(finished)
    grown = Powers(("five", "two", "three"), (1, 2, 3, 4))
    measured(grown, finished, resume=True)
    measured(grown, tmp_path / "at once")
    assert contents(finished) == contents(tmp_path / "at once")
    shutil.rmtree(finished)
    measured(Powers(), finished)
    assert contents(finished) == before


def test_tasks_that_are_not_chosen_keep_their_rows(finished):
    only = measured(Powers(), finished, resume=True, only=lambda task: task.entry == "three")
    assert [row["power"] for row in only.rows] == [3, 9, 27]
    assert len((finished / ROWS).read_text().splitlines()) == 6


CHANGED: dict[str, tuple[Powers, dict[str, Any]]] = {
    r"\(setting.number: it has 0, got 1\)": (Powers(setting=1), {}),
    r"\(entries: 'two' of it is missing here\)": (Powers(("three",)), {}),
    r"\(exponents: 3 of it is missing here\)": (Powers(exponents=(1, 2)), {}),
    r"\(two base: it has 2, got 7\)": (Powers(), {"two": 7}),
    r"is the folder of 'a table of powers', not of an evaluation": (Powers(kind="an evaluation"), {}),
}


@pytest.mark.parametrize("message", CHANGED)
def test_other_conditions_are_named_and_nothing_is_touched(message, finished, monkeypatch):
    changed, bases = CHANGED[message]
    for name, base in bases.items():
        monkeypatch.setitem(_BASES, name, base)
    before = contents(finished)
    with pytest.raises(FileError, match=message):
        measured(changed, finished, resume=True)
    with pytest.raises(FileExistsError, match="already exists; choose another folder, or go on with --resume"):
        measured(Powers(), finished)
    assert contents(finished) == before


def test_only_a_folder_of_the_same_experiment_is_resumed(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing to resume"):
        measured(Powers(), tmp_path / "no", resume=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ROWS).write_text("mine")
    with pytest.raises(FileError, match=r"is not the folder of a table of powers: conditions\.json is missing"):
        measured(Powers(), tmp_path / "mine", resume=True)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == [ROWS]
    with pytest.raises(ValueError, match="resume needs the folder"):
        measured(Powers(), None, resume=True)


def test_a_start_without_a_row_leaves_nothing_and_one_process_writes_at_a_time(tmp_path):
    with pytest.raises(RuntimeError), open_experiment(Powers(), tmp_path / "a" / "b"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    killed = tmp_path / "killed"
    killed.mkdir()
    (killed / ".lock").touch()
    (killed / "conditions.json.123.tmp").touch()
    with open_experiment(Powers(), killed) as journal:
        journal.append({"entry": "two", "exponent": 1, "power": 2})
        with pytest.raises(FolderInUseError), locked(killed):
            pass
    with open_experiment(Powers(), killed, resume=True) as journal:
        assert [row["power"] for row in journal.rows.values()] == [2]


def test_damaged_conditions_are_refused_in_one_line(finished):
    file = finished / CONDITIONS
    document = json.loads(file.read_text())
    for content in ("", "[]", "{}", '"x"', "[" * 100_000, json.dumps({**document, "entries": 3})):
        file.write_text(content)
        with pytest.raises(FileError, match=r"conditions\.json is not the conditions of a table of powers") as caught:
            measured(Powers(), finished, resume=True)
        assert str(caught.value).isprintable()
    del document["experiment"]
    file.write_text(json.dumps(document))
    with pytest.raises(FileError, match=r"or an earlier version wrote it; choose another folder\.$"):
        measured(Powers(), finished, resume=True)


OTHERS: list[dict[str, Any]] = [
    {"entry": "other"}, {"entry": None}, {"entry": "two"}, {"exponent": 9}, {"exponent": "1"}, {"power": "8"},
    {"power": None}, {"more": 1},
]  # fmt: skip


def test_damaged_rows_give_the_same_files_or_are_refused_in_one_line(finished, tmp_path):
    require_the_same_or_a_refusal(
        finished, tmp_path, OTHERS, lambda folder: measured(Powers(), folder, resume=True), seeds=60, least=5
    )


def test_a_row_that_is_no_result_stops_the_experiment_and_keeps_the_others(tmp_path):
    with pytest.raises(ValueError, match=r"^half, exponent 1: the measurement cannot be kept: power must be"):
        measured(Powers(("two", "half")), tmp_path / "e")
    assert len((tmp_path / "e" / ROWS).read_text().splitlines()) == 3


def test_a_part_that_fails_or_dies_alone_costs_no_other_and_is_tried_again(finished, tmp_path, monkeypatch):
    experiment = Powers(("two", "half", "deadly"), together=3, isolated=True)
    results = measured(experiment, tmp_path / "e", workers=2)
    of_two = (finished / ROWS).read_text().splitlines(keepends=True)[:3]  # measured in this process
    assert (tmp_path / "e" / ROWS).read_text() == "".join(of_two)
    assert [row["power"] for row in results.rows] == [2, 4, 8]
    assert results.failures["deadly"] == "its process died (-9)"
    assert results.failures["half"].startswith("ValueError: half, exponent 1: the measurement cannot be kept")
    assert "Traceback" in (tmp_path / "e" / "half" / "failed.txt").read_text()
    assert not (tmp_path / "e" / "deadly").exists()

    def mended(function: Any, tasks: Any, workers: int) -> Iterator[tuple[Any, Any]]:
        for experiment, part in tasks:
            rows = [{**task.coordinates, "power": 1} for task in part]
            yield (experiment, part), module.TaskOutcome(rows)

    monkeypatch.setattr(module, "each_in_a_process", mended)
    again = measured(experiment, tmp_path / "e", resume=True)
    assert again.failures == {}
    assert [row["power"] for row in again.rows] == [2, 4, 8, 1, 1, 1, 1, 1, 1]
