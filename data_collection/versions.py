"""What was installed where a dataset or a run was made."""

from __future__ import annotations

from importlib import metadata

SIMULATOR = ("nac-drive", "numpy", "gymnasium", "box2d", "pygame", "pygame-ce", "opencv-python-headless")
"""The packages that decide what becomes of a track and its executed actions; pygame-ce is pygame's successor."""

_RECORDED = (*SIMULATOR, "torch", "h5py", "stable-baselines3", "lightning-fabric")


def installed_versions() -> dict[str, str]:
    """The versions of the packages that decide what is recorded and learned; those that are missing are left out."""
    installed = {name: list(metadata.distributions(name=name)) for name in _RECORDED}
    return {name: found[0].version for name, found in installed.items() if found}
