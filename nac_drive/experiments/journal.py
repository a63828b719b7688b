"""The folder of an experiment: finished rows are on disk, and `--resume` goes on with the missing ones.

FOLDER/conditions.json  rows.jsonl (one finished row a line)
"""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from nac_drive.storage.lock import LOCK, locked
from nac_drive.storage.read import FileError, read_json, read_json_lines
from nac_drive.storage.write import flatten, remove_leftovers, sync_folder, write_atomically, writing

CONDITIONS, ROWS = "conditions.json", "rows.jsonl"
_FIX = "choose another folder"
Row = dict[str, Any]
"""A result: the coordinates of its task, and numbers."""


class Keyed(Protocol):
    """A task, as its rows are recognised."""

    @property
    def key(self) -> str:
        """Key of the finished row."""
        ...

    def key_of(self, row: Mapping[str, Any]) -> str:
        """Key of any row."""
        ...


class Journal:
    """Finished rows of an experiment, in memory and, where there is a folder, on disk."""

    def __init__(
        self, folder: Path | None, conditions: Mapping[str, Any], rows: dict[str, Row], tasks: Sequence[Keyed]
    ):
        self.folder = folder
        self.rows = rows
        """Key of a task -> its row."""
        self._conditions, self._key_of = conditions, tasks[0].key_of
        self._begun = False

    def append(self, row: Row) -> None:
        """Add a finished row; it is on disk when the call returns.

        Raises:
            WriteError: If it cannot be written.
        """
        self.rows[self._key_of(row)] = row
        if self.folder is None:
            return
        path = self.folder / ROWS
        with writing(path):
            self.begin()
            with path.open("ab") as file:
                file.write(_line(row))
                file.flush()
                os.fsync(file.fileno())
            sync_folder(self.folder)

    def begin(self) -> None:
        """Write conditions.json, before the first row or file: a start that fails earlier leaves nothing.

        Raises:
            WriteError: If it cannot be written.
        """
        if self.folder is not None and not self._begun:
            content = (json.dumps(self._conditions, indent=2) + "\n").encode()
            path = self.folder / CONDITIONS
            if not path.exists() or path.read_bytes() != content:
                write_atomically(path, content)
            self._begun = True

    def finish(self, keys: Sequence[str]) -> None:
        """Write rows.jsonl in the order of the keys.

        Raises:
            WriteError: If it cannot be written.
        """
        if self.folder is not None and self.rows:
            with writing(self.folder / ROWS):
                self.begin()
                write_rows(self.folder, [self.rows[key] for key in keys if key in self.rows])


@contextmanager
def open_journal(
    folder: str | os.PathLike[str] | None,
    kind: str,
    conditions: Mapping[str, Any],
    tasks: Sequence[Keyed],
    check: Callable[[Any, Row], None],
    *,
    grows: Sequence[str] = (),
    files: Sequence[str] = (),
    resume: bool = False,
) -> Iterator[Journal]:
    """Hold the folder of an experiment for a `with` block.

    Args:
        folder: The folder; None keeps rows in memory alone.
        kind: Noun of the experiment, such as "a stress test".
        conditions: Everything that the rows depend on.
        tasks: All tasks of the experiment.
        check: check(task, row) raises ValueError unless the row is a result of the task.
        grows: Keys of `conditions` whose lists may have grown since.
        files: Names of further files that are written whole; what a killed process left of them is removed.
        resume: Go on with the missing rows of an interrupted experiment under the same conditions.

    Yields:
        The journal with the rows of before.

    Raises:
        FileExistsError: If `folder` holds anything and `resume` is off.
        FileNotFoundError: If there is nothing to resume.
        FileError: If the folder holds something else, its files are damaged, or it has other conditions.
        FolderInUseError: If another process holds it.
        WriteError: If it cannot be written.
    """
    conditions = json.loads(json.dumps({"experiment": kind, **conditions}))
    if folder is None:
        if resume:
            raise ValueError(f"resume needs the folder (--out) of {kind} that was interrupted.")
        yield Journal(None, conditions, {}, tasks)
        return
    folder = Path(folder)
    _require_own(folder, kind, resume)
    with locked(folder):
        _require_own(folder, kind, resume)  # another process may have been quicker
        for name in (CONDITIONS, ROWS, *files):
            remove_leftovers(folder / name)
        rows: dict[str, Row] = {}
        if resume and (folder / CONDITIONS).exists():
            _require_same(folder, kind, conditions, grows)
            rows = _finished(folder, tasks, check)
        yield Journal(folder, conditions, rows, tasks)


def _require_own(folder: Path, kind: str, resume: bool) -> None:
    """Check that a folder may be written to, before it is touched."""
    if not folder.exists():
        if resume:
            raise FileNotFoundError(f"nothing to resume at {folder}: there is no such folder; start without --resume.")
        return
    names = [file.name for file in folder.iterdir()] if folder.is_dir() else [folder.name]
    leftovers = [name for name in names if name.startswith(f"{CONDITIONS}.") and name.endswith(".tmp")]
    others = [name for name in names if name not in (LOCK, *leftovers)]
    if not others or (others == [CONDITIONS] and _is_of_an_experiment(folder / CONDITIONS)):
        return  # it ended before the first row
    if not resume:
        raise FileExistsError(f"{folder} already exists; choose another folder, or go on with --resume.")
    if CONDITIONS not in names:
        raise FileError(f"{folder} is not the folder of {kind}: {CONDITIONS} is missing; {_FIX}.")


def _is_of_an_experiment(path: Path) -> bool:
    """Return whether an experiment wrote a file."""
    with suppress(FileError):
        return isinstance(read_json(path, dict[str, Any], "conditions", _FIX).get("experiment"), str)
    return False


def _require_same(folder: Path, kind: str, conditions: Mapping[str, Any], grows: Sequence[str]) -> None:
    """Check that rows of before were measured under these conditions.

    Raises:
        FileError: They were not.
    """
    what = f"the conditions of {kind}"
    saved = read_json(folder / CONDITIONS, dict[str, Any], what, _FIX)
    if not isinstance(saved.get("experiment"), str) or any(not isinstance(saved.get(name), list) for name in grows):
        raise FileError(f"{folder / CONDITIONS} is not {what}, or an earlier version wrote it; {_FIX}.")
    if saved["experiment"] != kind:
        raise FileError(f"{folder} is the folder of {reprlib.repr(saved['experiment'])}, not of {kind}; {_FIX}.")
    fixed, now = ({key: value for key, value in each.items() if key not in grows} for each in (saved, conditions))
    differences = _differences(fixed, now)
    for name in grows:
        for value in (value for value in saved[name] if value not in conditions[name]):
            label = value.get("name") if isinstance(value, dict) else value
            same = [other for other in conditions[name] if isinstance(other, dict) and other.get("name") == label]
            if same:
                differences += [f"{label} {text}" for text in _differences(value, same[0])]
            else:
                differences.append(f"{name}: {reprlib.repr(label)} of it is missing here")
    if differences:
        raise FileError(
            f"cannot resume {folder} under other conditions ({'; '.join(differences)}); keep them, or {_FIX}."
        )


def _differences(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return a text for every setting that differs."""
    before, after = flatten(saved), flatten(now)
    return [
        f"{key[:100]}: it has {reprlib.repr(before.get(key))}, got {reprlib.repr(after.get(key))}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _finished(folder: Path, tasks: Sequence[Keyed], check: Callable[[Any, Row], None]) -> dict[str, Row]:
    """Return the rows of before by the keys of their tasks; a row that was cut off is removed.

    Raises:
        FileError: A row is damaged, comes twice, or is of no task.
    """
    path = folder / ROWS
    if not path.exists():
        return {}
    fix = "remove the line and go on with --resume"
    lines, cut_off = read_json_lines(path, Row, "a row of results", fix)
    known, rows = {task.key: task for task in tasks}, {}
    for number, row in enumerate(lines, 1):
        where, key = f"{path}, line {number}", tasks[0].key_of(row)
        if key not in known:
            raise FileError(
                f"{where} is no result of this experiment, or was measured with other settings ({key[:200]}); {fix}."
            )
        if key in rows:
            raise FileError(f"{where} holds a result that another line holds already; {fix}.")
        try:
            check(known[key], row)
        except ValueError as error:
            raise FileError(f"{where} is not a result: {error}; {fix}.") from None
        rows[key] = row
    if cut_off:
        with writing(path):
            write_rows(folder, list(rows.values()))
    return rows


def write_rows(folder: Path, rows: Sequence[Row]) -> None:
    """Write rows.jsonl."""
    write_atomically(folder / ROWS, b"".join(map(_line, rows)))


def _line(row: Row) -> bytes:
    return (json.dumps(row) + "\n").encode()
