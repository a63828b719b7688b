"""Which numbers make the controller fast and safe? The search that found the shipped ones, and their figures.

python benchmarks/controller_search.py --control discrete          # the search
python benchmarks/controller_search.py --tracks test-100           # the figures of the shipped numbers

See docs/controller.md. The search prints the mean of each generation with its figures on that generation's training
tracks, and at the end the numbers found with theirs on val-25.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import tyro

from data_collection.controller import CONTINUOUS, DISCRETE, ControllerConfig
from data_collection.controller_search import Lap, SearchConfig, changed, drive, search
from data_collection.processes import Pool, default_workers, worker_pool
from envs import Control, track_seeds


def figures(laps: list[Lap]) -> str:
    returns = np.array([lap.episode_return for lap in laps])
    frames, grass, off = (
        np.mean([getattr(lap, name) for lap in laps]) for name in ("frames", "touching_grass", "off_road")
    )
    return (
        f"return {returns.mean():.1f} +- {returns.std():.1f}, minimum {returns.min():.1f}; a lap: {frames:.0f} frames, "
        f"{grass:.1f} with a wheel on the grass, {off:.2f} off-road"
    )


def drive_all(control: Control, config: ControllerConfig, tracks: str, pool: Pool | None) -> list[Lap]:
    return list((pool.imap if pool else map)(partial(drive, control, config), track_seeds(tracks)))


def report() -> Callable[[int, ControllerConfig, list[Lap]], None]:
    started = time.monotonic()

    def show(generation: int, mean: ControllerConfig, laps: list[Lap]) -> None:
        print(
            f"{generation:3d}  {time.monotonic() - started:5.0f} s  {figures(laps)}\n     {changed(mean)}", flush=True
        )

    return show


def main(settings: SearchConfig, tracks: str = "", workers: int = 0) -> None:
    """Search, or with `--tracks` only drive the shipped numbers, in both controls."""
    shipped: dict[Control, ControllerConfig] = {"discrete": DISCRETE, "continuous": CONTINUOUS}
    with worker_pool(workers or default_workers()) as pool:
        if tracks:
            for control, config in shipped.items():
                print(f"{control}, {tracks}: {figures(drive_all(control, config, tracks, pool))}", flush=True)
            return
        found = search(settings, pool=pool, report=report())
        print(f"found, on val-25: {figures(drive_all(settings.control, found, 'val-25', pool))}\n{changed(found)}")


if __name__ == "__main__":
    tyro.cli(main, config=(tyro.conf.OmitArgPrefixes,))
