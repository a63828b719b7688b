"""The state of a race as messages to a page.

A text is sent when something is set up, bytes for every frame.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from nac_drive.live.race import Car, Race


def setup(race: Race, drivers: list[str], *, paused: bool, speed: float, saliency: bool, recording: str) -> str:
    """Return what changes seldom, as JSON.

    Args:
        race: The race.
        drivers: Names that may be chosen.
        paused: Whether the clock stands still.
        speed: Times real time.
        saliency: Whether saliency maps are computed.
        recording: Where episodes of a person are recorded; empty for nowhere.
    """
    road = race.cars[0].env.unwrapped.centre_line.points  # type: ignore[attr-defined]
    return json.dumps(
        {
            "type": "setup",
            "track": race.track,
            "marked": race.marked,
            "road": np.round(road, 1).flatten().tolist(),
            "drivers": drivers,
            "levels": race.levels,
            "paused": paused,
            "speed": speed,
            "saliency": saliency,
            "recording": recording,
            "cars": [_described(car) for car in race.cars],
        }
    )


def _described(car: Car) -> dict[str, Any]:
    probe = car.probe
    return {
        "driver": car.name,
        "control": car.env_config.control,
        "human": car.human is not None,
        "network": probe is not None,
        "blind": car.env.blind,
        "clock": probe is None or probe.clock,
        "uniform": probe is not None and probe.uniform,
        "heads": sorted(probe.zeroed_heads) if probe else [],
        "zeroed": sorted(probe.zeroed) if probe else [],
    }


def frame(race: Race, *, saliency: bool) -> bytes:
    """Return the present frame of all cars.

    Four bytes hold the length of a JSON header, little-endian; the header, padded with spaces to a multiple of four,
    and the arrays follow. For every car, the header names the arrays in their order: [name, type, shape].

    Args:
        race: The race.
        saliency: Compute saliency maps.
    """
    cars, arrays = [], []
    for car in race.cars:
        named: dict[str, np.ndarray] = {"frame": car.observation}
        if saliency and (heat := car.saliency()) is not None:
            named["saliency"] = heat
        if car.probe:
            named |= {f"neurons {group}": values for group, values in car.probe.neurons.items()}
            if car.probe.attention is not None:
                named["attention"] = car.probe.attention
        arrays += named.values()
        hull = car.env.unwrapped.car.hull  # type: ignore[attr-defined]
        outcome = car.outcome
        cars.append(
            {
                "arrays": [[name, str(values.dtype), values.shape] for name, values in named.items()],
                "position": [round(hull.position.x, 2), round(hull.position.y, 2)],
                "command": car.command,
                "decisions": car.decisions,
                "seconds": round(car.seconds, 2),
                "return": round(car.episode_return, 2),
                "speed": round(outcome["speed"], 2),
                "completion": round(outcome["completion"], 4),
                "crashes": outcome["crashes"],
                "ended": car.result is not None,
            }
        )
    header = json.dumps({"frame": race.frame, "over": race.over, "cars": cars}).encode()
    header += b" " * (-len(header) % 4)
    return b"".join(
        [len(header).to_bytes(4, "little"), header, *(np.ascontiguousarray(each).tobytes() for each in arrays)]
    )
