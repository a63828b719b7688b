"""Frames a second that a page of the arena gets, with one to four drivers.

    python benchmarks/speed/arena.py
    python benchmarks/speed/arena.py --drivers champion ppo-expert --speed 4 --seconds 20

The server runs in its own process, on all cores that it may use. A client takes every frame as it comes and throws
it away; a browser draws besides. At speed 1 the clock gives 50 frames a second at most; a higher speed shows what is
left. When all cars have ended their episodes, the next track begins.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from dataclasses import dataclass
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table
from websockets.sync.client import connect

import nac_drive as nd


@dataclass
class Options:
    """What is measured."""

    drivers: tuple[str, ...] = ("champion", "expert", "ppo-expert", "robust-champion")
    """The first driver alone, then the first two, and so on."""
    seconds: float = 10.0
    """Duration of a measurement, after two seconds of warming up."""
    speed: float = 10.0
    """Speed of the clock; 1 is real time."""


def serve(drivers: tuple[str, ...], ready: Any) -> None:
    """Serve the arena until the process ends."""
    nd.arena(drivers, port=0, control="continuous", on_ready=ready.put)


def frames_per_second(drivers: tuple[str, ...], speed: float, seconds: float, saliency: bool) -> float:
    """Return the frames that a client gets in a second."""
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    process = context.Process(target=serve, args=(drivers, ready), daemon=True)
    process.start()
    address = ready.get(timeout=120)
    try:
        with connect(f"ws{address.removeprefix('http')}/race", origin=address, max_size=None) as link:
            link.send(json.dumps({"type": "speed", "value": speed}))
            link.send(json.dumps({"type": "saliency", "on": saliency}))
            _frames(link, 2.0)
            return _frames(link, seconds) / seconds
    finally:
        process.terminate()
        process.join()


def _frames(link: Any, seconds: float) -> int:
    """Take frames for some seconds; return their number."""
    count, track, end = 0, 900_000, time.perf_counter() + seconds
    while (left := end - time.perf_counter()) > 0:
        try:
            count += isinstance(link.recv(timeout=min(left, 0.5)), bytes)
        except TimeoutError:
            if left > 0.5:
                track += 1
                link.send(json.dumps({"type": "restart", "track": track}))
    return count


def main(options: Options) -> None:
    """Print the table."""
    table = Table("drivers", f"frames/s at speed {options.speed:g}", "without saliency")
    for count in range(1, len(options.drivers) + 1):
        chosen = options.drivers[:count]
        rates = [frames_per_second(chosen, options.speed, options.seconds, saliency) for saliency in (True, False)]
        table.add_row(", ".join(chosen), *(f"{rate:.0f}" for rate in rates))
    Console().print(table)


if __name__ == "__main__":
    main(tyro.cli(Options))
