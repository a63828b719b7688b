"""Rows of reproductions: each counts once, for the settings that it was measured with, or is refused in one line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flow import Flow

from nac_drive.events import Event
from nac_drive.experiments import reproduce as run
from nac_drive.experiments.journal import CONDITIONS, ROWS
from nac_drive.experiments.learning import Learning
from nac_drive.experiments.paper import PaperTask, Row
from nac_drive.experiments.paper_page import save_page
from nac_drive.experiments.protocol import PaperEntry, Protocol
from nac_drive.storage.read import FileError
from nac_drive.storage.write import WriteError
from tests.data_collection.recordings import contents
from tests.killing import Fuse, Killed
from tests.nac_drive.forged import forged

TABLE = Protocol(
    "Title", "A paper, Table 0", "flow", "All.",
    [PaperEntry(name, "tap-withdrawal", {"wiring": name.lower()}, printed={"FWD": 1.0}) for name in ("A", "B")],
    settings={"graphs": 2, "runs": 3},
)  # fmt: skip
LINES = len(TABLE.entries) * 3
OTHERS: list[Row] = [
    {"entry": "C"}, {"core": "lstm"}, {"args": {"wiring": "c"}}, {"settings": {"rho": 0.4}}, {"run": 3}, {"run": -1},
    {"run": 0.0}, {"run": "0"}, {"run": None}, {"flow_FWD": "many"}, {"flow_FWD": True}, {"cut_off_REV": None},
]  # fmt: skip


reproduce = partial(run.reproduce, experiments={"flow": Flow})
"""The engine with a kind of experiment that is handed in."""


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "load", lambda *_: TABLE)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished reproduction; read only."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "load", lambda *_: TABLE)
        reproduce("tiny", folder, workers=1)
    return folder


def resumed(folder: Path, **keywords: Any) -> Path:
    return reproduce("tiny", folder, resume=True, **{"workers": 1, **keywords})


def copied(whole: Path, folder: Path, lines: Iterable[str]) -> Path:
    """A folder with the settings of `whole` and some lines."""
    folder.mkdir(parents=True)
    (folder / CONDITIONS).write_bytes((whole / CONDITIONS).read_bytes())
    (folder / ROWS).write_text("".join(lines))
    return folder


def test_damaged_rows_give_the_same_results_or_are_refused_in_one_line(whole: Path, tmp_path: Path):
    good = (whole / ROWS).read_text().splitlines(keepends=True)
    outcomes = {True: 0, False: 0}
    for seed in range(100):
        folder = copied(whole, tmp_path / str(seed) / "out", forged(seed, good, OTHERS))
        before = contents(folder)
        try:
            page = resumed(folder)
        except FileError as error:
            message = str(error)
            assert message.startswith(f"{folder / ROWS}, line ")
            assert message.endswith("; remove the line and go on with --resume.")
            assert message.isprintable(), message
            assert contents(folder) == before
            outcomes[False] += 1
        else:
            assert (folder / ROWS).read_bytes() == (whole / ROWS).read_bytes(), seed
            assert page.read_text() == (whole / page.name).read_text()
            outcomes[True] += 1
    assert min(outcomes.values()) > 20


@pytest.mark.parametrize(
    "changed",
    [
        {"core": "lstm"}, {"args": {"wiring": "c"}}, {"args": {"wiring": "a", "seed": 1}}, {"settings": {"rho": 0.3}},
    ],
    ids=str,
)  # fmt: skip
def test_a_row_counts_for_the_settings_that_it_was_measured_with(
    changed: dict[str, Any], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = copied(whole, tmp_path / "out", (whole / ROWS).read_text())
    before = contents(folder)
    monkeypatch.setattr(
        run, "load", lambda *_: replace(TABLE, entries=[replace(TABLE.entries[0], **changed), TABLE.entries[1]])
    )
    measured: list[PaperTask] = []

    def measure(self: Flow, path: Path, task: PaperTask) -> Row:
        measured.append(task)
        return {f"{name}_{motor}": 1.0 for name in ("ratio", "flow", "animal", "cut_off") for motor in ("FWD", "REV")}

    monkeypatch.setattr(Flow, "measure", measure)
    with pytest.raises(FileError, match=r'line 1 is no result .*, or was measured with other settings .*"entry": "A"'):
        resumed(folder)
    assert contents(folder) == before
    lines = before[ROWS].decode().splitlines(keepends=True)
    (folder / ROWS).write_text("".join(lines[3:]))
    resumed(folder)
    assert [(task.entry, dict(task.place)) for task in measured] == [("A", {"run": number}) for number in range(3)]
    assert (folder / ROWS).read_text().splitlines(keepends=True)[3:] == lines[3:]


def test_rows_have_the_order_of_the_table_however_they_end(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Backwards:
        def imap_unordered(self, function: Callable[[Any], Any], tasks: list[Any]) -> Iterator[Any]:
            return map(function, reversed(tasks))

    @contextmanager
    def pool(workers: int) -> Iterator[Backwards]:
        yield Backwards()

    monkeypatch.setattr(run, "worker_pool", pool)
    events: list[Event] = []
    page = reproduce("tiny", tmp_path / "out", progress=events.append)
    assert [event.note for event in events] == ["", *["B"] * 3, *["A"] * 3]
    for name in (ROWS, page.name):
        assert (tmp_path / "out" / name).read_bytes() == (whole / name).read_bytes()


def test_other_lines_of_the_table_are_kept(whole: Path, tmp_path: Path):
    reproduce("tiny", tmp_path / "out", only=["B"], workers=1)
    resumed(tmp_path / "out", only=["A"])
    assert (tmp_path / "out" / ROWS).read_bytes() == (whole / ROWS).read_bytes()


def test_files_of_killed_processes_are_removed(whole: Path, tmp_path: Path):
    folder = copied(whole, tmp_path / "out", "")
    for name in (CONDITIONS, ROWS, "tiny.md"):
        (folder / f"{name}.4194304.tmp").write_text("a part")
    resumed(folder)
    assert {path.name for path in folder.iterdir()} == {CONDITIONS, ROWS, "tiny.md", ".lock"}


def test_killed_at_any_operation_it_goes_on_to_the_same_files(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fuse, real = Fuse(), {name: getattr(os, name) for name in ("replace", "fsync")}
    for moment in range(100):
        folder, fuse.left = tmp_path / str(moment) / "out", moment
        with monkeypatch.context() as patch:
            for name, call in real.items():
                patch.setattr(os, name, fuse.deadly(call))
            try:
                reproduce("tiny", folder, workers=1)
                break
            except Killed:
                pass
        resumed(folder)
        assert contents(folder) == contents(whole), f"killed at operation {moment}"
    assert moment > 8


def test_a_number_that_is_not_finite_ends_in_one_line_and_what_was_measured_stays(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    measure = Flow.measure

    def diverged(self: Flow, folder: Path, task: PaperTask) -> Row:
        row = measure(self, folder, task)
        return row if task.entry == "A" else row | {"flow_FWD": float("nan")}

    with monkeypatch.context() as patch:
        patch.setattr(Flow, "measure", diverged)
        with pytest.raises(
            ValueError, match=r"^B, run 0: the measurement cannot be kept: .*flow_FWD.*, or leave the entry out\.$"
        ):
            reproduce("tiny", tmp_path / "out", workers=1)
    rows = (whole / ROWS).read_text().splitlines(keepends=True)
    assert (tmp_path / "out" / ROWS).read_text() == "".join(rows[:3])
    resumed(tmp_path / "out")
    assert (tmp_path / "out" / ROWS).read_text() == "".join(rows)


def test_a_full_disk_ends_in_one_line_and_the_reproduction_goes_on(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(event: Event) -> None:
        if event.done == 2:
            monkeypatch.setattr(Path, "open", no_space)

    def no_space(self: Path, *arguments: Any, **keywords: Any) -> Any:
        raise OSError(28, "No space left on device")

    with pytest.raises(WriteError, match=rf"cannot write {tmp_path / 'out' / ROWS}: No space left on device; free"):
        reproduce("tiny", tmp_path / "out", workers=1, progress=full)
    monkeypatch.undo()
    monkeypatch.setattr(run, "load", lambda *_: TABLE)
    resumed(tmp_path / "out")
    assert contents(tmp_path / "out") == contents(whole)


def test_a_mean_over_some_of_the_runs_says_of_how_many(tmp_path: Path):
    firsts = {"A": [1e6, None, 2e6], "B": [None], "C": [3e6]}
    rows = [
        {
            "entry": entry,
            "run": number,
            "parameters": 7,
            "last": 1.0,
            "best": 1.0,
            "first": first,
            "curve": [[0, [1.0]]],
        }
        for entry, values in firsts.items()
        for number, first in enumerate(values)
    ]
    table = replace(TABLE, entries=[PaperEntry(name, "cnn") for name in (*firsts, "D")])
    text = save_page(tmp_path / "page.md", table, Learning(runs=3), rows, "command").read_text()
    last = {line.split(" | ")[0]: line.split(" | ")[-1] for line in text.splitlines() if line.startswith("| ")}
    assert last == {
        "| printed as": "million frames to 800 |", "| A": "1.50 ± 0.71 (2 of 3 runs) |", "| B": "- |", "| C": "3.00 |",
        "| D": " |",
    }  # fmt: skip


def test_a_start_that_ended_before_the_first_row_is_no_obstacle(whole: Path, tmp_path: Path):
    """A file of that name that no experiment wrote is."""
    path = tmp_path / "out" / CONDITIONS
    path.parent.mkdir()
    path.write_text((whole / CONDITIONS).read_text().replace("lower", "upper").replace('"runs": 3', '"runs": 2'))
    reproduce("tiny", path.parent)
    assert contents(path.parent) == contents(whole)
    for name, text in (("theirs", '{"rate": 1}'), ("damaged", "{")):
        path = tmp_path / name / CONDITIONS
        path.parent.mkdir()
        path.write_text(text)
        with pytest.raises(FileExistsError, match="already exists; choose another folder, or go on with --resume"):
            reproduce("tiny", path.parent)
        assert path.read_text() == text
