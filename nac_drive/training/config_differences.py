"""Differences between the settings of a run and new ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from nac_drive.storage.write import flatten


def as_read(config: dict[str, Any]) -> dict[str, Any]:
    """Return settings as a YAML file gives them back.

    A tuple is a list there.
    """
    return yaml.safe_load(yaml.safe_dump(config))


def config_differences(
    saved: dict[str, Any], config: dict[str, Any], moved: Sequence[str] = (), grown: Sequence[str] = ()
) -> str:
    """Return the settings that differ, in words.

    Args:
        saved: The settings of the run, as read.
        config: The settings to go on with.
        moved: Keys that may differ; keys of nested settings are joined by dots.
        grown: Keys whose number may be larger than in the run.

    Returns:
        The first twenty differences; "" without any.
    """
    before, now = flatten(saved), flatten(as_read(config))
    changed = [
        key for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
        and key not in moved
        and not (key in grown and _is_larger(now.get(key), before.get(key)))
    ]  # fmt: skip
    return "; ".join(
        f"{key[:100]}: run has {_shown(before.get(key))}, got {_shown(now.get(key))}"
        + ", but it may only grow" * (key in grown)
        for key in changed[:20]
    )


def _shown(value: Any) -> str:
    """Return a setting in a message, shortened if long."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]} ..."


def _is_larger(value: Any, than: Any) -> bool:
    return isinstance(value, int) and isinstance(than, int) and value > than
