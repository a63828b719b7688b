"""Safe writing: whole or not at all, and durable."""

from __future__ import annotations

import errno
import glob
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from nac_drive.storage.held import lost_folder


class WriteError(ValueError):
    """A file cannot be written. The message is one line: where, the cause, and the fix."""


def require_new(path: str | os.PathLike[str], fix: str = "choose another file") -> None:
    """Check that a new file or folder is new.

    Raises:
        FileExistsError: Something has. The error advises `fix`.
    """
    if os.path.lexists(path):
        raise FileExistsError(f"{os.fspath(path)} already exists; {fix}.")


def write_atomically(path: Path, content: bytes, *, new: bool = False) -> None:
    """Write a file whole, whenever the process may crash.

    A crash leaves the old content or the new one.

    What killed processes left beside it is removed.

    Args:
        path: The file.
        content: Its bytes.
        new: It replaces no file, also none that another process has written in the meantime.

    Raises:
        FileExistsError: If it is `new`, and is there.
        WriteError: If it cannot be written; `path` stays as it was and nothing is left beside it.
    """
    temporary = temporary_path(path)
    with writing(path):
        remove_leftovers(path)  # also a link instead of the temporary file
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if new:
                require_new(path)
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def temporary_path(path: Path) -> Path:
    """Return the file that stands in for `path` meanwhile.

    It is renamed when all of it is written.

    The process id keeps a worker that outlived its killed parent away from the files of the next run.
    """
    return path.with_name(f"{path.name}.{os.getpid()}.tmp")


def remove_leftovers(path: Path) -> None:
    """Remove the `temporary_path` of processes that were killed.

    They were writing `path`.

    One of this process' own number is removed too: in a container every start has the same number.
    """
    for file in path.parent.glob(f"{glob.escape(path.name)}.*.tmp"):
        process = file.name.removeprefix(f"{path.name}.").removesuffix(".tmp")
        if process.isdecimal() and (process == str(os.getpid()) or not process_runs(int(process))):
            file.unlink(missing_ok=True)


def process_runs(process: int) -> bool:
    """Return whether there may be a process of this number."""
    if os.name == "nt":  # a signal 0 would end it there
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def require_writable(path: Path) -> None:
    """Check that a file or folder can be made.

    Nothing is left behind.

    Raises:
        WriteError: If it cannot.
    """
    with writing(path):
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        for name in temporary_path(path.absolute()).relative_to(folder).parts:
            with suppress(FileNotFoundError):
                os.lstat(folder / name)  # a name that is too long is an error
        with tempfile.TemporaryFile(dir=folder):
            pass


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the disk into a WriteError.

    It is one line about the write to `path`. FileExistsError stays as it is.

    Raises:
        WriteError: Also if `path` is in a folder that this process held and that was removed or replaced.
    """
    if folder := lost_folder(path):
        raise WriteError(
            f"cannot write {path}: {folder} was removed or replaced while this process wrote to it; start again."
        )
    try:
        yield
    except FileExistsError:
        raise
    except (OSError, SafetensorError) as error:
        number = error.errno if isinstance(error, OSError) else _number(error)
        if number in (errno.ENOSPC, errno.EDQUOT):
            fix = f"free some space on the disk at {_mount_point(path)}"
        elif number in (errno.EACCES, errno.EPERM, errno.EROFS):
            fix = "make the folder writable or choose another"
        elif number == errno.ENAMETOOLONG:
            fix = "choose a shorter name"
        elif missing := _missing_inside(error, path):
            raise WriteError(
                f"cannot write {path}: {missing} is missing; if nothing removed it, report this with the traceback "
                "that NAC_DRIVE_TRACEBACK=1 shows."
            ) from error
        elif number in (errno.ENOTDIR, errno.ENOENT, errno.EISDIR):
            fix = "choose another folder"
        else:
            fix = "choose another folder or repair the disk"
        cause = os.strerror(number) if number else error
        raise WriteError(f"cannot write {path}: {cause}; {fix}.") from error


def _missing_inside(error: Exception, path: Path) -> str | None:
    """Return another file that an error names as missing.

    None if it is `path`, or if the folder of `path` is missing too.
    """
    if not isinstance(error, FileNotFoundError) or not path.parent.is_dir():
        return None
    name = os.fsdecode(error.filename or "a file")
    return None if Path(name).absolute() == path.absolute() else name


def _mount_point(path: Path) -> Path:
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if os.path.ismount(folder))


def _number(error: SafetensorError) -> int | None:
    """Return the number of the system's error, which safetensors gives in its message only: `... (os error 28)`."""
    found = re.search(r"os error (\d+)", str(error))
    return int(found[1]) if found else None


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable. Where folders cannot be opened (Windows) there is nothing to do."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Make a folder and all in it durable."""
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("r+b") as file:  # Windows flushes no file that is open for reading alone
                os.fsync(file.fileno())
    sync_folder(folder)


def flatten(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one dict. Keys are joined by dots."""
    flat = {}
    for key, value in nested.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
