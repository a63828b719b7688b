"""Memory and speed over a long time: whether either of them drifts.

OMP_NUM_THREADS=1 python benchmarks/soak.py resets      # 10,000 tracks, minutes
OMP_NUM_THREADS=1 python benchmarks/soak.py vector      # 16 environments for an hour
OMP_NUM_THREADS=1 python benchmarks/soak.py nac         # 200,000 frames of the evaluator with a NAC driver
OMP_NUM_THREADS=1 python benchmarks/soak.py evaluator   # 2 million frames of the evaluator with the controller
python benchmarks/soak.py table                         # the table and the figure of docs/soak.md

Each part measures for itself, and replaces its own entry in docs/runs/soak.json when it ends. Linux only.

A sample has the memory of all processes of the part (Pss: pages in common count once) and the CPU time of a frame since
the last sample. CPU time hardly depends on the load of the machine, time by the clock does. The first tenth of the
samples is left out: caches fill there. A slope belongs to the line through the means of 20 equal blocks of the other
samples, with the 95 % interval of Student's t.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from nac_drive.data_collection.drivers import resolve_driver
from nac_drive.envs import SPLITS, EnvConfig, make_env, make_vec_env
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.storage.figure import write_figure
from nac_drive.storage.style import PALETTE, styled
from nac_drive.storage.write import write_atomically

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "docs/runs/soak.json"
FIGURE = ROOT / "docs/figures/soak.png"

ENV = EnvConfig()
FRAMES = {"evaluator": 2_000_000, "nac": 200_000}
DRIVERS = {"evaluator": "controller", "nac": "champion"}
TRACKS_PER_CALL = 10
NUM_ENVS, SECONDS, SECONDS_PER_SAMPLE = 16, 3600.0, 15.0
RESETS, RESETS_PER_SAMPLE = 10_000, 50
WARM_UP, BLOCKS = 0.1, 20

Sample = dict[str, float]


class Meter:
    """Takes the samples of one part."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.samples: list[Sample] = []
        self.frames = 0
        self._started = time.monotonic()
        self._cpu = _cpu_seconds()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def sample(self, frames: int, **further: float) -> None:
        """Take a sample after `frames` more frames."""
        cpu = _cpu_seconds()
        self.frames += frames
        self.samples.append(
            {
                "frames": self.frames,
                "seconds": round(self.seconds, 1),
                "megabytes": round(_megabytes(), 2),
                "cpu_ms": round(1e3 * (cpu - self._cpu) / frames, 5),
                "load": round(os.getloadavg()[0], 2),
                **{key: round(value, 5) for key, value in further.items()},
            }
        )
        self._cpu = _cpu_seconds()  # without the sample's own
        if len(self.samples) % 10 == 0:
            print(self.name, self.samples[-1], flush=True)


def _pids() -> list[int]:
    return [os.getpid(), *(process.pid for process in multiprocessing.active_children() if process.pid)]


def _megabytes() -> float:
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in _pids()]
    return sum(int(line.split()[1]) for line in "".join(texts).splitlines() if line.startswith("Pss:")) / 1024


def _cpu_seconds() -> float:
    """CPU time of this process and its children, to 10 ms."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in _pids()]
    return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")


def evaluator(name: str) -> dict[str, Any]:
    """Evaluate a driver on one training track after the other, in calls of ten."""
    driver, meter, tracks = resolve_driver(DRIVERS[name], ENV), Meter(name), iter(SPLITS["train"])
    while meter.frames < FRAMES[name]:
        seeds = [next(tracks) for _ in range(TRACKS_PER_CALL)]
        rows = evaluate(driver, seeds, name=name, env=ENV).rows
        assert all(np.isfinite(row.episode_return) for row in rows), rows
        meter.sample(sum(row.length for row in rows), act_ms=float(np.median([row.latency_ms for row in rows])))
    return {"driver": DRIVERS[name], "episodes": TRACKS_PER_CALL * len(meter.samples), "samples": meter.samples}


def vector() -> dict[str, Any]:
    """Step 16 environments in one worker process with random actions, more than half of them gas."""
    env = make_vec_env(ENV, NUM_ENVS, processes=1)
    env.reset(seed=0)
    meter, rng, episodes = Meter("vector"), np.random.default_rng(0), 0
    while meter.seconds < SECONDS:
        times: list[float] = []
        end = meter.seconds + SECONDS_PER_SAMPLE
        while meter.seconds < end:
            actions = rng.choice(5, p=[0.1, 0.1, 0.1, 0.6, 0.1], size=NUM_ENVS)
            started = time.perf_counter()
            _, rewards, terminated, truncated, _ = env.step(actions)
            times.append(time.perf_counter() - started)
            assert np.isfinite(rewards).all(), rewards
            episodes += int((terminated | truncated).sum())
        meter.sample(NUM_ENVS * len(times), step_ms=1e3 * float(np.median(times)))
    env.close()
    return {"environments": NUM_ENVS, "episodes": episodes, "samples": meter.samples}


def resets() -> dict[str, Any]:
    """Reset one environment on 10,000 tracks."""
    env, meter = make_env(ENV), Meter("resets")
    tiles, tracks, failed = [], set(), []
    for seed in range(RESETS):
        try:
            frame, info = env.reset(seed=seed)
            car_racing: Any = env.unwrapped
            assert frame.any(), "the frame is black"
            assert np.isfinite(car_racing.centre_line.points).all(), "the track is not finite"
            tiles.append(info["tiles_total"])
            tracks.add(hashlib.sha256(car_racing.centre_line.points.tobytes()).digest())
        except Exception as error:  # every kind is reported
            failed.append({"seed": seed, "error": repr(error)})
        if (seed + 1) % RESETS_PER_SAMPLE == 0:
            meter.sample(RESETS_PER_SAMPLE)
    env.close()
    return {
        "resets": RESETS, "failed": failed, "distinct_tracks": len(tracks), "fewest_tiles": min(tiles),
        "most_tiles": max(tiles), "samples": meter.samples,
    }  # fmt: skip


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "resets": resets,
    "vector": vector,
    "nac": lambda: evaluator("nac"),
    "evaluator": lambda: evaluator("evaluator"),
}


def slope(samples: list[Sample], value: str) -> tuple[float, float, float]:
    """Return the slope of a value per million frames, and the ends of its 95 % interval."""
    kept = samples[int(WARM_UP * len(samples)) :]
    blocks = np.array_split(np.array([[sample["frames"] / 1e6, sample[value]] for sample in kept]), BLOCKS)
    x, y = np.array([block.mean(axis=0) for block in blocks]).T
    line: Any = stats.linregress(x, y)
    half = float(stats.t.ppf(0.975, BLOCKS - 2) * line.stderr)
    return line.slope, line.slope - half, line.slope + half


def rows() -> Iterator[str]:
    """Yield the lines of the table: mean, first, last and slope of every value."""
    yield "| part | frames | value | first | last | slope per million frames (95 % interval) |"
    yield "|---|---:|---|---:|---:|---:|"
    for name, part in json.loads(RESULT.read_text()).items():
        samples = part["samples"]
        for value, title in (
            ("megabytes", "memory, MB"), ("cpu_ms", "CPU time, ms/frame"),
            ("act_ms", "`act`, ms"), ("step_ms", "`step` of 16, ms"), ("load", "load of the machine"),
        ):  # fmt: skip
            if value not in samples[0]:
                continue
            values = [sample[value] for sample in samples[int(WARM_UP * len(samples)) :]]
            tenth = max(1, len(values) // 10)
            first, last = np.mean(values[:tenth]), np.mean(values[-tenth:])
            line, low, high = slope(samples, value)
            yield (
                f"| {name} | {samples[-1]['frames']:,} | {title} | {first:.4g} | {last:.4g} | "
                f"{line:+.3g} ({low:+.3g} to {high:+.3g}) |"
            )


@styled()
def figure() -> None:
    """Draw memory and CPU time of every part over its frames."""
    parts = json.loads(RESULT.read_text())
    drawing = Figure(figsize=(2.6 * len(parts), 4.2), layout="constrained")
    axes = drawing.subplots(2, len(parts), sharex="col", squeeze=False)
    for column, (name, part) in zip(axes.T, parts.items(), strict=True):
        frames = [sample["frames"] / 1e3 for sample in part["samples"]]
        for axis, value in zip(column, ("megabytes", "cpu_ms"), strict=True):
            values = [sample[value] for sample in part["samples"]]
            axis.plot(frames, values, linewidth=1, color=PALETTE[0])
            axis.set_ylim(0, 1.1 * max(values))
        column[0].set_title(name)
        column[1].set_xlabel("tracks, thousands" if name == "resets" else "frames, thousands")
    for axis, label in zip(axes[:, 0], ("memory, MB", "CPU, ms/frame"), strict=True):
        axis.set_ylabel(label)
    write_figure(FIGURE, drawing)


def main(name: str) -> None:
    if name == "table":
        print("\n".join(rows()))
        figure()
        return
    cv2.setNumThreads(1)
    result = {"command": f"OMP_NUM_THREADS=1 python benchmarks/soak.py {name}", **PARTS[name]()}
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    results[name] = result
    ordered = {part: results[part] for part in PARTS if part in results}
    write_atomically(RESULT, (json.dumps(ordered) + "\n").encode())


if __name__ == "__main__":
    if sys.argv[1:] not in [[name] for name in (*PARTS, "table")]:
        sys.exit(f"pass one of {', '.join(PARTS)} and table; got {sys.argv[1:]}.")
    main(sys.argv[1])
