"""The state of a race as messages to a page.

A text is sent when something is set up, bytes for every frame.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from nac_drive.envs import PERTURBATIONS
from nac_drive.envs.views import Size, other_frame
from nac_drive.live.messages import SHOWN, Shown
from nac_drive.live.race import Car, Race

SEAT: Size = (192, 192)
"""Size of a frame from the seat of a driver that sees another view."""


def setup(
    race: Race, drivers: list[str], *, paused: bool, speed: float, saliency: bool, shown: Shown, recording: str
) -> str:
    """Return what changes seldom, as JSON.

    Args:
        race: The race.
        drivers: Names that may be chosen.
        paused: Whether the clock stands still.
        speed: Times real time.
        saliency: Whether saliency maps are computed.
        shown: What the frames show.
        recording: Where episodes of a person are recorded; empty for nowhere.
    """
    car, spec = race.cars[0], race.cars[0].env_config.spec
    kinds = {(each.env_config.environment, each.env_config.view): each for each in race.cars}.values()
    has_map = spec.road is not None and spec.pose is not None
    road = np.asarray(spec.road(car.env.unwrapped), float) if has_map else np.zeros((0, 2))  # type: ignore[misc]
    return json.dumps(
        {
            "type": "setup",
            "track": race.track,
            "marked": race.marked,
            "road": np.round(road, 1).flatten().tolist(),
            "drivers": drivers,
            "left_out": [name for name in PERTURBATIONS if not all(_has(each, name) for each in kinds)],
            "levels": race.levels,
            "paused": paused,
            "speed": speed,
            "saliency": saliency,
            "views": SHOWN if spec.views else [],
            "shown": shown,
            "recording": recording,
            "cars": [_described(car) for car in race.cars],
        }
    )


def _has(car: Car, perturbation: str) -> bool:
    """Return whether a car's environment and view have a perturbation."""
    try:
        car.env.under(f"{perturbation}:1")
    except ValueError:
        return False
    return True


def _described(car: Car) -> dict[str, Any]:
    probe = car.probe
    return {
        "driver": car.name,
        "control": car.env_config.control,
        "view": car.env_config.view,
        "actions": car.command_names,
        "human": car.human is not None,
        "network": probe is not None,
        "blind": car.env.blind,
        "clock": probe is None or probe.clock,
        "uniform": probe is not None and probe.uniform,
        "heads": sorted(probe.zeroed_heads) if probe else [],
        "zeroed": sorted(probe.zeroed) if probe else [],
    }


def frame(race: Race, *, saliency: bool, shown: Shown) -> bytes:
    """Return the present frame of all cars.

    Four bytes hold the length of a JSON header, little-endian; the header and the arrays follow, each padded to a
    multiple of four. For every car, the header names the arrays in their order: [name, type, shape]. `frame` is what
    the driver sees, `world` the undisturbed world in the other view.

    Args:
        race: The race.
        saliency: Compute saliency maps.
        shown: What the frames show.
    """
    cars, arrays = [], []
    for car in race.cars:
        named = images(car, saliency=saliency, shown=shown)
        if car.probe:
            named |= {f"neurons {group}": values for group, values in car.probe.neurons.items()}
            named |= {f"cells {group}": values for group, values in car.probe.cells.items()}
            if car.probe.attention is not None:
                named["attention"] = car.probe.attention
        arrays += named.values()
        pose, outcome = car.env_config.spec.pose, car.outcome
        x, y, _ = pose(car.env.unwrapped) if pose else (0.0, 0.0, 0.0)
        cars.append(
            {
                "arrays": [[name, str(values.dtype), values.shape] for name, values in named.items()],
                "position": [round(float(x), 2), round(float(y), 2)],
                "command": car.command,
                "decisions": car.decisions,
                "seconds": round(car.seconds, 2),
                "return": round(car.episode_return, 2),
                "speed": _rounded(outcome.get("speed"), 2),
                "completion": _rounded(outcome.get("completion"), 4),
                "crashes": outcome.get("crashes"),
                "ended": car.result is not None,
            }
        )
    header = json.dumps({"frame": race.frame, "over": race.over, "cars": cars}).encode()
    header += b" " * (-len(header) % 4)
    contents = (np.ascontiguousarray(each).tobytes() for each in arrays)
    padded = (content + bytes(-len(content) % 4) for content in contents)
    return b"".join([len(header).to_bytes(4, "little"), header, *padded])


def images(car: Car, *, saliency: bool, shown: Shown) -> dict[str, np.ndarray]:
    """Return the shown frames of a car, and its saliency map."""
    named: dict[str, np.ndarray] = {}
    other = None if shown in ("driver", car.env_config.view) else other_frame(car.env.unwrapped, SEAT)
    if other is None or shown == "both":
        named["frame"] = car.observation
        if saliency and (heat := car.saliency()) is not None:
            named["saliency"] = heat
    if other is not None:
        _, named["world"] = other
    return named


def _rounded(value: float | None, digits: int) -> float | None:
    """Return a number as it is shown. None if the environment does not report it."""
    return None if value is None else round(float(value), digits)
