"""Exported drivers beside torch: predictions, size and latency of every core.

    python benchmarks/speed/export.py                  # every core, discrete, about eight minutes
    python benchmarks/speed/export.py lstm cfc         # some cores
    python benchmarks/speed/export.py --control continuous
    python benchmarks/speed/export.py --episodes       # whole episodes of the shipped drivers

Protocol: fresh weights, the compact encoder, 64 features. `difference`: the largest difference of a prediction in 20
frames of noise at irregular times, from torch to onnxruntime. `ms`: the median of 1000 steps on one frame at a time, in
processor time of one thread, once windows are full. torch is `Driver.act`; .pt2 is the program that `torch.export.load`
returns. Of an episode, `difference` compares actions on the same frames, in the episode that torch drives; `same
actions` counts the equal ones of two episodes, driven by torch and by onnxruntime, which are equal bit for bit.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import nac_drive as nd
from nac_drive.policies import CORES, PRETRAINED, OnnxDriver, load_onnx
from nac_drive.policies.config import CONTROLS

FRAMES, STEPS, FULL = 20, 1000, 64
GAPS = (0.02, 0.02, 0.04, 0.1, 0.5)
"""Seconds between two frames."""


def largest_difference(driver: nd.Driver, exported: OnnxDriver) -> float:
    """The largest difference of a prediction in FRAMES frames of noise at irregular times."""
    rng, state, ours, worst = np.random.default_rng(0), exported.begin(), driver.begin(), 0.0
    for index in range(FRAMES):
        frame = rng.integers(0, 256, driver.config.frame_shape, np.uint8)
        dt = float(rng.choice(GAPS)) if index else 0.0
        prediction, _, state = exported.step(frame, state, dt)
        with torch.no_grad():
            expected, ours = driver(torch.from_numpy(frame)[None, None], torch.tensor([[dt]]), ours)
        worst = max(worst, float(np.abs(prediction - expected[0, 0].numpy()).max()))
    return worst


def milliseconds(act: Callable[[np.ndarray, Any], tuple[Any, Any]], state: Any, shape: tuple[int, ...]) -> float:
    """The median time of a step."""
    rng, times = np.random.default_rng(1), []
    frames = rng.integers(0, 256, (FULL, *shape), np.uint8)
    for index in range(FULL + STEPS):
        started = time.thread_time()
        _, state = act(frames[index % FULL], state)
        times.append(time.thread_time() - started)
    return 1e3 * float(np.median(times[FULL:]))


def pt2_step(path: Path) -> Callable[[np.ndarray, Any], tuple[Any, Any]]:
    program, dt = torch.export.load(path).module(), torch.tensor([0.02])

    def act(frame: np.ndarray, state: Any) -> tuple[Any, Any]:
        with torch.no_grad():
            _, action, *after = program(torch.from_numpy(frame)[None], dt, *state)
        return action, after

    return act


def row(driver: nd.Driver, name: str, folder: Path) -> list[str]:
    onnx = nd.export(driver, folder / f"{name}.onnx")
    pt2 = nd.export(driver, folder / f"{name}.pt2")
    exported, shape = load_onnx(onnx), driver.config.frame_shape
    times = [
        milliseconds(lambda frame, state: driver.act(frame, state, 0.02), driver.begin(), shape),
        milliseconds(lambda frame, state: exported.act(frame, state, 0.02), exported.begin(), shape),
        milliseconds(pt2_step(pt2), driver.begin(), shape),
    ]
    sizes = [f"{path.stat().st_size / 1024:.0f}" for path in (onnx, pt2)]
    return [f"`{name}`", f"{largest_difference(driver, exported):.0e}", *sizes, *(f"{ms:.2f}" for ms in times)]


def episode(name: str, folder: Path, track: int) -> list[str]:
    """Drive one episode with torch and one with onnxruntime, which also sees every frame of the first."""
    driver = nd.load_driver(name)
    exported = load_onnx(nd.export(driver, folder / "driver.onnx"))
    env = nd.make_env(nd.EnvConfig(**driver.env_config))
    state, differences, actions = exported.begin(), [], ([], [])

    def compare(step: nd.Step) -> None:
        nonlocal state
        action, state = exported.act(step.observation, state, step.dt)
        differences.append(np.abs(np.subtract(action, step.action, dtype=float)).max())

    record = [lambda step, to=to: to.append(step.action) for to in actions]
    ours = nd.rollout(env, driver, track, subscribers=[compare, record[0]])
    theirs = nd.rollout(env, exported, track, subscribers=[record[1]])
    env.close()
    same = sum(np.array_equal(ours, theirs) for ours, theirs in zip(*actions, strict=False))
    returns = [f"{result.episode_return:.1f}" for result in (ours, theirs)]
    return [f"`{name}`", str(track), str(ours.length), f"{max(differences):.0e}", str(same), *returns]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cores", nargs="*", default=list(CORES), help="names in policies.CORES")
    parser.add_argument("--control", choices=CONTROLS, default=CONTROLS[0])
    parser.add_argument("--episodes", action="store_true", help="compare the actions of whole episodes")
    options = parser.parse_args()
    if unknown := set(options.cores) - set(CORES):
        parser.error(f"cores: must be of {sorted(CORES)}, got {sorted(unknown)}.")
    torch.set_num_threads(1)
    print(
        f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, one CPU thread, {options.control} control; "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        if options.episodes:
            print("| driver | track | frames | difference | same actions | return, torch | return, onnxruntime |")
            print("|---|---:|---:|---:|---:|---:|---:|")
            for name in PRETRAINED:
                for track in nd.track_seeds("val-3"):
                    print(
                        "| " + " | ".join(episode(name, Path(tempfile.mkdtemp(dir=folder)), track)) + " |", flush=True
                    )
            return
        print("| core | difference | KB .onnx | KB .pt2 | ms torch | ms onnxruntime | ms .pt2 |")
        print("|---|---:|---:|---:|---:|---:|---:|")
        for name in options.cores:
            torch.manual_seed(0)
            driver = nd.Driver(nd.DriverConfig(core=name, control=options.control)).eval()
            print("| " + " | ".join(row(driver, name, Path(folder))) + " |", flush=True)


if __name__ == "__main__":
    main()
