"""One process at a time writes to a folder.

The folder is a dataset, a run, a comparison or an evaluation.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from nac_drive.storage.held import holding
from nac_drive.storage.links import require_own_files
from nac_drive.storage.write import writing

LOCK = ".lock"
"""Name of the lock file in a folder. It is empty, it stays, and it means nothing while no process holds it."""


class FolderInUseError(ValueError):
    """Another process writes to the folder. The message is one line with the fix."""


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Hold `folder` for the `with` block. The system lets go of it when the process ends, however it ends.

    The folder is made if needed. If nothing else was put into it, it is removed again at the end, with the parents
    that were made for it. If it is removed or replaced in the meantime, `writing` refuses to write to it.

    Args:
        folder: The folder to write to.

    Raises:
        FileError: If a file or folder in it is a link, see `require_own_files`.
        FileExistsError: If it is a link to nothing.
        FolderInUseError: If another process, or another thread of this one, holds it.
        WriteError: If it cannot be made or written to.
    """
    folder = Path(folder)
    require_own_files(folder)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    lock = FileLock(folder / LOCK, thread_local=False)
    with writing(folder):
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise FolderInUseError(
                f"{folder} is in use by another process; wait until it has ended, or choose another folder."
            ) from None
    try:
        with holding(folder / LOCK):
            yield
    finally:
        with suppress(OSError):  # the folder is gone, or something else has come to be in it
            if made and all(path.name == LOCK for path in folder.iterdir()):
                (folder / LOCK).unlink(missing_ok=True)
                for path in made:
                    path.rmdir()
        lock.release()
