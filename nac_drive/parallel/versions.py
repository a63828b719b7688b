"""Versions of the packages behind a dataset or a run."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import metadata
from pathlib import Path

SIMULATOR = ("nac-drive", "numpy", "gymnasium", "box2d", "pygame", "pygame-ce", "opencv-python-headless")
"""Packages that decide the outcome of a track and its executed actions; pygame-ce is pygame's successor."""

_RECORDED = (*SIMULATOR, "torch", "h5py", "stable-baselines3", "lightning-fabric")


_PACKAGE = Path(__file__).parents[1]


def code_sha256() -> str:
    """Return the SHA-256 of the package's source files."""
    digest = hashlib.sha256()
    for path in sorted(path for suffix in ("py", "c", "h") for path in _PACKAGE.rglob(f"*.{suffix}")):
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@cache
def _installed_versions() -> dict[str, str]:
    installed = {name: list(metadata.distributions(name=name)) for name in _RECORDED}
    return {name: found[0].version for name, found in installed.items() if found}


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that decide results. They are read once."""
    return dict(_installed_versions())
