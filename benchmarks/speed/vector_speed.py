"""Frames per second of N environments together: one batch, and several processes.

python benchmarks/speed/vector_speed.py           # five rounds, about a minute
python benchmarks/speed/vector_speed.py 9         # more rounds
python benchmarks/speed/vector_speed.py memory    # memory of the processes of sixteen environments (Linux)

Rows: whether the frames are drawn, and N. Columns: `make_vec_env`, which is a batch of compiled code; the same
environments stepped in turn; in as many processes as there are cores (N at most); gymnasium's AsyncVectorEnv; then
stable-baselines3's two, and our batch as it is given to stable-baselines3. AsyncVectorEnv and SubprocVecEnv have one
process per environment. All get the same random actions, more than half of them gas, after the zoom-in. Every round
steps every vector environment of a row once; a number is the median over the rounds.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from nac_drive.envs import EnvConfig, ProcessVectorEnv, make_env, make_vec_env

CORES = len(os.sched_getaffinity(0))
SIZES = (1, 4, 8, 16)
ROWS: dict[str, tuple[bool, int]] = {"drawn": (True, 1600), "not drawn (`observe = False`)": (False, 9600)}
"""Whether the frames are drawn, and frames per round over all environments."""


class AfterTheZoom(gym.Wrapper):
    """Starts where the zoom-in ends. Draws only where `observe` is on."""

    def __init__(self, env: gym.Env, observe: bool):
        super().__init__(env)
        self.observe = observe

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        car_racing: Any = self.env.unwrapped
        car_racing.observe = False
        _, info = self.env.reset(seed=seed, options=options)
        while info["zooming"]:
            info = self.env.step(0)[4]
        car_racing.observe = self.observe
        return car_racing.look(), info


def make(observe: bool) -> gym.Env:
    return AfterTheZoom(make_env(EnvConfig(max_steps=100_000)), observe)


def batch(observe: bool, size: int) -> Any:
    """The batch, after the zoom-in when it is reset."""
    envs = make_vec_env(EnvConfig(max_steps=100_000), size)
    envs.set_attr("observe", observe)
    return AfterTheZoomTogether(envs)


class AfterTheZoomTogether(gym.vector.VectorWrapper):
    """Starts where the zoom-in ends."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None):
        _, infos = self.env.reset(seed=seed, options=options)
        observations = None
        while infos["zooming"].any():
            observations, _, _, _, infos = self.env.step(np.zeros(self.num_envs, int))
        return observations, infos


def entries(observe: bool, size: int) -> dict[str, Any]:
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv  # here: spawned processes need no torch

    from nac_drive.training.sb3_vec_env import SB3VecEnv

    env_fns = [partial(make, observe)] * size
    return {
        "make_vec_env": batch(observe, size),
        "in turn": SyncVectorEnv(env_fns),
        "processes": ProcessVectorEnv(env_fns, min(size, CORES)),
        "AsyncVectorEnv": AsyncVectorEnv(env_fns, context="forkserver"),
        "DummyVecEnv": DummyVecEnv([*env_fns]),
        "SubprocVecEnv": SubprocVecEnv([*env_fns]),
        "SB3VecEnv(make_vec_env)": SB3VecEnv(batch(observe, size)),
    }


def medians(row: str, size: int, rounds: int) -> dict[str, float]:
    """Frames/s of all entries."""
    observe, frames = ROWS[row]
    envs = entries(observe, size)
    rates: dict[str, list[float]] = {name: [] for name in envs}
    rng = np.random.default_rng(0)
    for env in envs.values():
        env.reset()
    for turn in range(rounds + 1):
        actions = rng.choice(5, p=[0.1, 0.1, 0.1, 0.6, 0.1], size=(frames // size, size))
        for name, env in envs.items():
            started = time.perf_counter()
            for action in actions:
                env.step(action)
            if turn:  # the first one warms up
                rates[name].append(actions.size / (time.perf_counter() - started))
    for env in envs.values():
        env.close()
    return {name: statistics.median(values) for name, values in rates.items()}


def memory() -> None:
    """Memory of the processes of sixteen environments after a reset. Pages in common are counted once."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    env_fns = [partial(make_env, EnvConfig())] * 16
    starts: dict[str, Callable[[], Any]] = {
        "ProcessVectorEnv": lambda: ProcessVectorEnv(env_fns, CORES),
        "AsyncVectorEnv": lambda: AsyncVectorEnv(env_fns, context="spawn"),
        "SubprocVecEnv": lambda: SubprocVecEnv([*env_fns], start_method="spawn"),
    }
    for name, start in starts.items():
        envs = start()
        envs.reset()
        processes = multiprocessing.active_children()
        sizes = [Path(f"/proc/{process.pid}/smaps_rollup").read_text() for process in processes]
        megabytes = sum(int(line.split()[1]) for line in "".join(sizes).splitlines() if line.startswith("Pss:")) / 1024
        print(f"{name}: {len(processes)} processes, {megabytes:,.0f} MB", flush=True)
        envs.close()


def speed(rounds: int) -> None:
    cv2.setNumThreads(1)
    multiprocessing.set_forkserver_preload(
        ["stable_baselines3", "nac_drive.envs"]
    )  # gymnasium's and theirs start sooner
    print(f"{CORES} cores; frames/s")
    for row in ROWS:
        for size in SIZES:
            table = medians(row, size, rounds)
            if row == next(iter(ROWS)) and size == SIZES[0]:
                print(f"| frames | N | {' | '.join(table)} |")
            print(f"| {row} | {size} | {' | '.join(f'{rate:,.0f}' for rate in table.values())} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["memory"]:
        memory()
    else:
        speed(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
