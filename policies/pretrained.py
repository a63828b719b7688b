"""Drivers that come with the package, each in a folder with its model card (`README.md`)."""

from __future__ import annotations

from pathlib import Path

from policies.checkpoint import CONFIG, load_driver
from policies.driver import Driver

PRETRAINED: dict[str, Path] = {
    config.parent.name: config.parent for config in sorted((Path(__file__).parent / "shipped").glob(f"*/{CONFIG}"))
}
"""Name -> driver folder."""


def load_pretrained(name: str) -> Driver:
    """The driver that the package ships under `name`, in evaluation mode. ValueError for a name that there is not."""
    if name not in PRETRAINED:
        raise ValueError(f"name: must be one of {', '.join(PRETRAINED)}, got {name!r}.")
    return load_driver(PRETRAINED[name])
