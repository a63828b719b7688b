"""Drivers and devices as they are typed."""

from __future__ import annotations

import os
from typing import Literal

from nac_drive.cli.plugins import named_core

Device = Literal["auto", "cpu", "cuda"]


def typed(driver: str) -> str:
    """Return the name of a typed driver.

    FILE.py:NAME is loaded as a plug-in.

    Args:
        driver: A name, a path, a reference such as `mine.py:drive`, or a core with its settings.

    Raises:
        FileNotFoundError, ValueError: See `named_object`.
    """
    return driver if os.path.exists(driver) else named_core(driver)
