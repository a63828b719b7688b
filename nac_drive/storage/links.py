"""Links and pipes inside of a folder are refused.

So no command reads or writes outside of its folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from nac_drive.storage.read import FileError


def require_own_files(folder: Path) -> None:
    """Check that a folder holds only files and folders, at any depth.

    The folder itself may be a link, which is its user's choice. It need not exist.

    Raises:
        FileError: It holds a link, a pipe or a device.
        FileExistsError: It is a link to nothing.
    """
    require_link_to_something(folder)
    waiting = [folder]
    while waiting:
        try:
            entries = sorted(os.scandir(waiting.pop()), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):  # there is no such folder, or another process removed it
            continue
        except OSError as error:
            raise FileError(f"{error.filename} cannot be read: {error.strerror}; choose another folder.") from error
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
            elif not entry.is_file(follow_symlinks=False):
                require_own_file(Path(entry.path))


def require_link_to_something(folder: Path) -> None:
    """Check that a folder to write to is not a link to nothing.

    Raises:
        FileExistsError: It is one.
    """
    if folder.is_symlink() and not folder.exists():
        raise FileExistsError(f"{folder} is a link to nothing; remove it or choose another folder.")


def require_own_file(path: Path) -> None:
    """Check that there is no link, pipe or device at a path inside of a folder. Nothing need be there.

    Raises:
        FileError: There is one.
    """
    if path.is_symlink():
        raise FileError(f"{path} is a link, which may lead out of its folder; replace it by a copy.")
    if path.exists() and not path.is_file() and not path.is_dir():
        raise FileError(f"{path} is no plain file; remove it.")
