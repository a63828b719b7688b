"""Roads of plug-ins.

Two are toys. The third is the racetrack of highway-env at a fraction of its cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gymnasium.envs.registration import registry

from nac_drive.plugins import load_plugin
from tests.own_parts import forgotten

PLUGIN = str(Path(__file__).with_name("toy_roads.py"))
LANE, GREY, RACETRACK = "toy/lane-v0", "toy/grey-v0", "racetrack-v0"
SMALL = ("--set", "driver.d_model=8", "driver.dense=8")
"""Options of a small driver."""
TINY = ("--core", "lstm", "--sequence-length", "16", "--batch-size", "2", "--validation-tracks", "7", *SMALL)
"""Options of a small training."""


@contextmanager
def roads_of_plugins() -> Iterator[None]:
    """Load the plug-ins of the roads for a `with` block.

    An episode of the racetrack has some 16 frames at most.
    """
    with forgotten(), pytest.MonkeyPatch.context() as patch:
        quick_racetrack(patch, duration=3.2)
        load_plugin(PLUGIN)
        load_plugin("highway_env")
        try:
            yield
        finally:
            for name in (LANE, GREY):
                del registry[name]  # the plug-in adds them again


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
