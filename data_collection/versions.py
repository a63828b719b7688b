"""What was installed where a dataset or a run was made."""

from __future__ import annotations

from importlib import metadata

_RECORDED = (
    "nac-drive", "torch", "numpy", "gymnasium", "box2d", "h5py", "stable-baselines3", "lightning-fabric"
)  # fmt: skip


def installed_versions() -> dict[str, str]:
    """The versions of the packages that decide what is recorded and learned; those that are missing are left out."""
    installed = {name: list(metadata.distributions(name=name)) for name in _RECORDED}
    return {name: found[0].version for name, found in installed.items() if found}
