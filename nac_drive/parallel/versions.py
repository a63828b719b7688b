"""Versions of the packages behind a dataset or a run."""

from __future__ import annotations

from importlib import metadata

SIMULATOR = ("nac-drive", "numpy", "gymnasium", "box2d", "pygame", "pygame-ce", "opencv-python-headless")
"""Packages that decide the outcome of a track and its executed actions; pygame-ce is pygame's successor."""

_RECORDED = (*SIMULATOR, "torch", "h5py", "stable-baselines3", "lightning-fabric")


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that decide results."""
    installed = {name: list(metadata.distributions(name=name)) for name in _RECORDED}
    return {name: found[0].version for name, found in installed.items() if found}
