"""Folders that this process holds, checked for replacement."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HELD: dict[Path, int] = {}
"""Lock file of a held folder -> its open descriptor. While it is open, no new file can have its inode number."""


@contextmanager
def holding(lock: Path) -> Iterator[None]:
    """Remember a held folder's lock file for the `with` block.

    Args:
        lock: The lock file, which exists.
    """
    lock = lock.absolute()
    descriptor = os.open(lock, os.O_RDONLY)
    _HELD[lock] = descriptor
    try:
        yield
    finally:
        del _HELD[lock]
        os.close(descriptor)


def lost_folder(path: Path) -> Path | None:
    """Return the held folder around `path` that is gone.

    It was removed or replaced. None if there is no such folder.

    A writer that went on would put half of its results into a folder that somebody else has made.
    """
    path = path.absolute()
    for lock, descriptor in list(_HELD.items()):
        if lock.parent in (path, *path.parents) and not _is_same(lock, descriptor):
            return lock.parent
    return None


def _is_same(lock: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(lock.stat(), os.fstat(descriptor))
    except OSError:
        return False
