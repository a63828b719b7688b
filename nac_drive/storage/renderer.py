"""The setting `renderer` in files of earlier versions.

Earlier versions drew the frames of CarRacing in one of two ways: `gymnasium` drew gymnasium's own frames, and `fast`
drew frames that were nearly the same. The simulator now draws gymnasium's frames alone, and the setting is gone. One
rule holds for every file that has it: readers leave it out. The frames of `fast` cannot be drawn again. Recordings,
runs and results with such frames are read as before, but nothing replays them and nothing is added to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEY, _APPROXIMATE = "renderer", "fast"

WHY_NOT = "an approximate renderer of earlier versions drew its frames (renderer: fast), and they cannot be drawn again"
"""The reason in errors."""


def without_renderer(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return saved settings without the renderer."""
    return {name: value for name, value in settings.items() if name != _KEY}


def with_approximate_renderer(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that name the approximate renderer, for the file of a recording whose frames it drew."""
    return {**settings, _KEY: _APPROXIMATE}


def is_approximate(settings: Mapping[str, Any]) -> bool:
    """Return whether saved settings name the approximate renderer."""
    return settings.get(_KEY) == _APPROXIMATE
