"""Many futures of one moment: worlds that share a saved state."""

from __future__ import annotations

import numpy as np

from nac_drive.envs.native.check import compiled
from nac_drive.envs.native.library import CAR
from nac_drive.envs.saved_state import CarState
from nac_drive.envs.world import World
from nac_drive.plain import whole


def branch(state: CarState, count: int) -> World:
    """Make `count` worlds that go on from a saved state.

    Write actions (steer, gas, brake) to `world.actions`, call `world.step()`, and read `world.rewards`,
    `world.terminated` and `world.cars`. An episode that has ended goes on. `go_back` returns all worlds to the state.

    Args:
        state: The result of `CarRacing.save_state`.
        count: Number of worlds, at least 1.

    Returns:
        The worlds. They draw nothing unless `world.draw()` is called.

    Raises:
        NotImplementedError: Where gymnasium's own simulator drives (see `nac_drive.envs.native.check`).
        ValueError: If `count` is less than 1, or `state` was saved by another version.
    """
    library = compiled()
    if library is None:
        raise NotImplementedError("gymnasium's own simulator, which drives on this platform, saves no states.")
    world = World(whole("count", count, 1), library)
    world.build(0, state.random_numbers, state.color_numbers, state.lap_complete_percent)
    world.roads["grip"][0] = state.grip
    world.roads[1:] = world.roads[0]
    go_back(world, state)
    return world


def go_back(world: World, state: CarState) -> None:
    """Return all worlds of a `branch` to a saved state.

    The state must belong to the same track.

    Args:
        world: The result of `branch`.
        state: A state on the track of `world`.
    """
    world.cars[:] = np.frombuffer(state.car, CAR)
