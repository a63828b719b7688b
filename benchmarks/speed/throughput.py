"""Speed of simulation and recording, in frames/s. Drivers.py has the speed of drivers.

python benchmarks/speed/throughput.py
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import gymnasium
import numpy as np

from nac_drive import EnvConfig, collect, make_env

STEPS = 300


def simulation() -> None:
    """Frames/s of one process with full throttle: gymnasium's CarRacing-v3, ours, and ours without drawing."""
    print("simulation, one process, frames/s")
    blind = make_env()
    blind.unwrapped.observe = False  # type: ignore[attr-defined]
    reference = gymnasium.make("CarRacing-v3", continuous=False)
    for name, env in (("gymnasium", reference), ("nac-drive", make_env()), ("nac-drive, observe=False", blind)):
        env.reset(seed=0)
        started = time.perf_counter()
        for _ in range(STEPS):
            env.step(np.int64(3))
        print(f"  {name:26} {STEPS / (time.perf_counter() - started):8.0f}")


def collection() -> None:
    """Frames/s of recording with the shipped expert, start of the processes included."""
    workers = os.cpu_count() or 1
    print(f"collection with the expert, {workers} processes, frames/s")
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        dataset = collect(
            Path(folder) / "episodes", "expert", env=EnvConfig(), seeds=list(range(4 * workers)), workers=workers
        )
        seconds = time.perf_counter() - started
    frames = sum(row["length"] for row in dataset.rows)
    print(f"  {len(dataset)} episodes, {frames} frames {frames / seconds:8.0f}")


if __name__ == "__main__":
    simulation()
    collection()
