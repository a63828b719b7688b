"""Drivers from the Hugging Face hub."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from nac_drive.arguments import path_of
from nac_drive.policies.checkpoint import CARD, CONFIG, WEIGHTS, load_driver
from nac_drive.policies.driver import Driver

FILES = (CONFIG, WEIGHTS, CARD)
"""The files of a driver in a repository of the hub."""


def from_pretrained(source: str | os.PathLike[str], revision: str | None = None) -> Driver:
    """Load a driver by name, folder, or repository.

    Repositories lie on the Hugging Face hub.

    A name or a folder never touches the network, nor does a repository in the hub's cache.

    Args:
        source: A driver that comes with the package, such as `champion-continuous`; the folder of a driver or of a run;
            or a repository of the hub, OWNER/NAME.
        revision: A branch, tag or commit of that repository; the main branch by default.

    Returns:
        The driver, in evaluation mode.

    Raises:
        FileNotFoundError: There is no such name, folder or repository.
        CheckpointError: A file cannot be read or does not fit the other.
        ValueError: A repository is named and huggingface_hub is not installed, or `source` is neither text nor a path.
    """
    path, name = path_of("source", source), os.fspath(source)
    if path.exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return load_driver(source)
    return load_driver(download(name, revision))


def download(repo_id: str, revision: str | None = None) -> Path:
    """Return the folder of a repository of the hub.

    It lies in the cache, or is downloaded.

    Args:
        repo_id: OWNER/NAME.
        revision: A branch, tag or commit; the main branch by default.

    Raises:
        FileNotFoundError: It is not in the cache, and cannot be downloaded.
        ValueError: huggingface_hub is not installed.
    """
    try:
        import huggingface_hub
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError as error:
        raise ValueError(
            f"driver: there is no folder {repo_id}, and {error.name} is not installed to look for it on the Hugging "
            "Face hub; run `pip install 'nac-drive[hub]'`."
        ) from error
    wanted: dict[str, Any] = {"repo_id": repo_id, "revision": revision, "allow_patterns": list(FILES)}
    try:
        folder = Path(huggingface_hub.snapshot_download(**wanted, local_files_only=True))
        if (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file():
            return folder
    except LocalEntryNotFoundError:
        pass
    try:
        return Path(huggingface_hub.snapshot_download(**wanted))
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"driver: there is no folder {repo_id}, and the Hugging Face hub has not given a repository of that name "
            f"({type(error).__name__}); check the name and the network."
        ) from error
