"""Drivers that come with the package, each in a folder with its model card (`README.md`)."""

from __future__ import annotations

from pathlib import Path

from policies.checkpoint import CONFIG, load_driver
from policies.driver import Driver

PRETRAINED: dict[str, Path] = {
    config.parent.name: config.parent for config in sorted((Path(__file__).parent / "shipped").glob(f"*/{CONFIG}"))
}
"""NAME-CONTROL, such as champion-discrete, -> driver folder."""


def is_pretrained(name: str) -> bool:
    """Whether the package ships a driver of this name, with or without its control."""
    return any(name in (known, known.rpartition("-")[0]) for known in PRETRAINED)


def pretrained_folder(name: str, control: str = "discrete") -> Path:
    """The folder of the shipped driver `name`, such as champion-continuous, or champion for the one of `control`.

    Raises ValueError for a driver that there is not.
    """
    folder = PRETRAINED.get(name) or PRETRAINED.get(f"{name}-{control}")
    if folder is None:
        raise ValueError(f"name: must be one of {', '.join(PRETRAINED)}, got {name!r} for {control} control.")
    return folder


def load_pretrained(name: str, control: str = "discrete") -> Driver:
    """The driver in `pretrained_folder(name, control)`, in evaluation mode."""
    return load_driver(pretrained_folder(name, control))
