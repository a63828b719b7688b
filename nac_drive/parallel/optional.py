"""Packages that are installed with an extra only."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def optional_module(name: str, extra: str) -> Any:
    """Import a module of a package that an extra installs.

    Args:
        name: The dotted name of the module.
        extra: The extra of nac-drive.

    Raises:
        ValueError: If the package is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise ValueError(f"{package} is not installed; run `pip install 'nac-drive[{extra}]'`.") from error
