"""How fast is each part? Frames/s of simulation and collection, milliseconds per `act`, training frames/s.

python benchmarks/throughput.py            # all cores, about three minutes
python benchmarks/throughput.py lstm cfc   # only these
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch

from nac_drive import CORES, Driver, DriverConfig, EnvConfig, make_env, record

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
        dataset = record(
            Path(folder) / "laps", "expert", env=EnvConfig(), seeds=list(range(4 * workers)), workers=workers
        )
        seconds = time.perf_counter() - started
    frames = sum(row["length"] for row in dataset.rows)
    print(f"  {len(dataset)} laps, {frames} frames {frames / seconds:8.0f}")


def drivers(names: list[str]) -> None:
    """Per core: parameters, median ms of one `act` on one thread, and frames/s of training (16 windows of 32)."""
    threads = torch.get_num_threads()
    print(f"drivers: parameters, ms per act (one thread), training frames/s ({threads} threads)")
    frame = np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8)
    for name in names:
        driver = Driver(DriverConfig(core=name)).eval()
        torch.set_num_threads(1)
        state, times = driver.begin(), []
        for _ in range(300):
            started = time.perf_counter()
            _, state = driver.act(frame, state, 0.02)
            times.append(time.perf_counter() - started)
        torch.set_num_threads(threads)
        parameters = sum(parameter.numel() for parameter in driver.parameters())
        print(f"  {name:12} {parameters:8,} {1000 * statistics.median(times[50:]):8.2f} {training(driver):8.0f}")


def training(driver: Driver) -> float:
    """Frames/s of forward, backward and Adam."""
    frames = torch.randint(0, 256, (16, 32, 96, 96, 3), dtype=torch.uint8)
    labels, dt = torch.randint(0, 5, (16, 32)), torch.full((16, 32), 0.02)
    optimizer = torch.optim.Adam(driver.train().parameters())
    times = []
    for _ in range(6):
        started = time.perf_counter()
        loss = driver.head.loss(driver(frames, dt)[0], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - started)
    return labels.numel() / statistics.median(times[1:])


if __name__ == "__main__":
    simulation()
    collection()
    drivers(sys.argv[1:] or list(CORES))
