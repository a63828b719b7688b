"""highway-env's racetrack at a fraction of its cost."""

from __future__ import annotations

from typing import Any

import pytest


def quick_racetrack(patch: pytest.MonkeyPatch, **changed: Any) -> None:
    """Make the steps of every racetrack cheap.

    The simulation takes one step a frame, where it takes and draws three, and draws small images.

    Args:
        patch: Undoes the change.
        changed: Further settings of highway-env's configuration.
    """
    from highway_env.envs.racetrack_env import RacetrackEnv

    usual = RacetrackEnv.default_config
    quick = {"simulation_frequency": 5, "screen_width": 200, "screen_height": 200, **changed}
    patch.setattr(RacetrackEnv, "default_config", staticmethod(lambda: {**usual(), **quick}))
