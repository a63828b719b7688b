"""The check of the compiled simulator by its first user.

It drives a short episode and compares a stored digest. Where the digest is another one, because the platform's sine
rounds otherwise, gymnasium's own simulator drives the episode too, which takes a second. If the numbers differ from
those, the package says so in one line and drives gymnasium's simulator from then on.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from ctypes import CDLL
from functools import cache

import numpy as np

from nac_drive.envs.gymnasium_world import GymnasiumWorld
from nac_drive.envs.native.build import LIBRARY
from nac_drive.envs.native.library import RANDOM_NUMBERS, load
from nac_drive.envs.world import World

STORED = "e0cae1ef9d55aec4"
"""Digest of the episode on Linux, where gymnasium's simulator has the same."""
_FRAMES, _DRAWN_EVERY = 160, 40


@cache
def compiled() -> CDLL | None:
    """Return the compiled library; None if gymnasium's simulator must do.

    Warns:
        RuntimeWarning: Once, in one line, if there is no library or its numbers are not gymnasium's.
    """
    try:
        library = load(LIBRARY)
    except OSError as error:
        return _none(f"it cannot be loaded ({error})")
    digest = digest_of_drive(World(1, library))
    if digest != STORED and digest != (expected := digest_of_drive(GymnasiumWorld())):
        return _none(f"its numbers differ on this platform (check {digest}, gymnasium's {expected}); please report it")
    return library


def _none(reason: str) -> None:
    warnings.warn(
        f"nac_drive drives gymnasium's own simulator, about 40 times slower than its compiled one: {reason}.",
        RuntimeWarning,
        stacklevel=4,
    )


def digest_of_drive(world: World | GymnasiumWorld) -> str:
    """Return the digest of a short episode and its frames."""
    rng = np.random.default_rng(0)
    while not world.build(0, rng.random(RANDOM_NUMBERS)):
        pass
    world.begin(0)
    digest = hashlib.sha256(world.roads["line"][0].tobytes())
    for frame in range(_FRAMES):
        steer = round(0.4 * math.sin(frame / 11), 3) if frame > 60 else 0.0
        world.actions[0] = (steer, float(frame % 50 < 30), 0.7 * (frame % 50 > 44))
        world.step()
        for name in ("body", "wheel", "reward", "lateral_offset", "heading_error"):
            digest.update(world.cars[name][0].tobytes())
        if frame % _DRAWN_EVERY == _DRAWN_EVERY - 1:
            digest.update(world.draw().tobytes())
    return digest.hexdigest()[:16]
