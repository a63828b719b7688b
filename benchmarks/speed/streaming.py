"""Training on frames in their files against frames in memory: speed and memory.

python benchmarks/speed/streaming.py                     # 100,000 frames, nac-exact and lstm, about half an hour
python benchmarks/speed/streaming.py --frames 20000 --cores lstm --batches 50
python benchmarks/speed/streaming.py --data demos-100k   # keep the frames for the next time

Speed: `train` with its default settings, in slices of --batches updates that alternate between memory and files. The
medians of frames/s, and of the time of all threads per frame, which other work on the machine changes less.
Memory: one whole epoch and its offline accuracy from the files, in its own process that the system refuses more
than --limit MB of private memory (RLIMIT_DATA: heap and writable mappings, on Linux; libraries in files do not count
there), and its peak resident memory, which counts the libraries too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import h5py
import numpy as np
import torch

import nac_drive as nd
from nac_drive.data_collection.dataset.episode_file import file_sha256
from nac_drive.data_collection.dataset.rows import episode_file, episode_row
from nac_drive.events import silent
from nac_drive.training.data.sequences import TrainingData
from nac_drive.training.distributed import build_fabric
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.train import train_plan
from nac_drive.training.trainer import Trainer, build_learner

EPISODES = 10
"""Episodes that are recorded; the others are copies of them on tracks of other numbers."""


class Slice(TrainingData):
    """The first sequences of every epoch only."""

    sequences_per_epoch = 0

    def starts(self, rng: np.random.Generator) -> np.ndarray:
        return super().starts(rng)[: self.sequences_per_epoch]


def make_dataset(path: Path, frames: int) -> nd.Demonstrations:
    """Record some episodes of the controller, and copy their files until there are enough frames."""
    if path.exists():
        return nd.Demonstrations.open(path)
    env = nd.EnvConfig()
    dataset = nd.collect(
        path, "controller", env=env, seeds=list(range(EPISODES)), noise=nd.NoiseConfig(0.15), workers=2
    )
    recorded, total = dataset.rows, sum(row["length"] for row in dataset.rows)
    while total < frames:
        index = len(dataset)
        source = recorded[index % EPISODES]
        copy = Path(shutil.copy(path / source["file"], path / episode_file(index)))
        with h5py.File(copy, "r+") as file:
            file.attrs.modify("seed", index)
        summary = {name: source[name] for name in source if name not in ("index", "file", "sha256")}
        dataset.append(episode_row(index, {**summary, "seed": index}, file_sha256(copy)))
        total += source["length"]
    return dataset


def config(core: str) -> nd.TrainConfig:
    settings = nd.TrainConfig(validation=nd.EvalConfig("val-1"), epochs=1)
    return replace(settings, driver=replace(settings.driver, core=core))


def speed(dataset: nd.Demonstrations, core: str, batches: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Frames/s, and milliseconds of all threads per frame, of each slice; memory and files take turns."""
    settings, env = config(core), dataset.meta.env
    seeds, _ = dataset.split(settings.validation_fraction)
    found: dict[str, list[tuple[float, float]]] = {"memory": [], "files": []}
    with tempfile.TemporaryDirectory() as folder:
        fabric = build_fabric("cpu", "auto", 1, 1, settings.data.batch_size)
        plan = train_plan(settings, dataset, "cpu")
        run = RunFolder.create(Path(folder) / "run", plan.resolved)
        trainer = Trainer(plan, run, build_learner(plan), fabric)
        sources = {}
        for name, frames in (("memory", dataset.load(seeds)), ("files", dataset.stream(seeds))):
            sources[name] = Slice(settings.data, env, torch.device("cpu"))
            sources[name].add(frames)
            sources[name].sequences_per_epoch = batches * settings.data.batch_size
        for number in range(rounds + 1):  # the first one fetches memory and libraries
            for name, data in sources.items():
                started = time.process_time()
                row = trainer.epoch(data, number, silent)
                used = 1e3 * (time.process_time() - started) / row["frames"]
                if number:
                    found[name].append((row["samples_per_second"], round(used, 4)))
    return found


def memory(dataset: nd.Demonstrations, core: str, limit: int) -> dict[str, Any]:
    """Row of one epoch of `train`, frames in their files, under a limit of the system."""
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (limit * 10**6, limit * 10**6))
    with tempfile.TemporaryDirectory() as folder:
        settings = replace(config(core), validate_every=1)
        nd.train(settings, dataset, Path(folder) / "run", device="cpu")
        return RunFolder.open(Path(folder) / "run").rows()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--cores", nargs="+", default=["nac-exact", "lstm"])
    parser.add_argument("--batches", type=int, default=200, help="updates of a slice")
    parser.add_argument("--rounds", type=int, default=3, help="slices of each kind")
    parser.add_argument("--limit", type=int, default=1000, help="MB of private memory for the epoch from the files")
    parser.add_argument("--data", type=Path, help="folder of the dataset; made if it does not exist")
    parser.add_argument("--only-memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_memory:
        print(json.dumps(memory(nd.Demonstrations.open(options.data), options.cores[0], options.limit)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        path = options.data or Path(temporary) / "dataset"
        dataset = make_dataset(path, options.frames)
        print(
            f"{sum(row['length'] for row in dataset.rows)} frames in {len(dataset)} episodes, torch {torch.__version__}"
        )
        for core in options.cores:
            words = ["--only-memory", "--data", str(path), "--cores", core, "--limit", str(options.limit)]
            one_heap = os.environ | {"MALLOC_ARENA_MAX": "1"}  # a heap of glibc for each thread counts in full
            done = subprocess.run(
                [sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True, env=one_heap
            )
            row = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{core}, one epoch from the files: peak resident memory {row['memory_mb']:.0f} MB, private memory "
                f"under {options.limit} MB, loss {row['loss']:.3f}, "
                f"validation {100 * row['validation']['accuracy']:.1f} %",
                flush=True,
            )
            found = speed(dataset, core, options.batches, options.rounds)
            for unit, number in (("frames/s", 0), ("ms of all threads per frame", 1)):
                values = {name: [each[number] for each in slices] for name, slices in found.items()}
                memory_median, files_median = (median(each) for each in values.values())
                ratio = files_median / memory_median if number == 0 else memory_median / files_median
                print(
                    f"{core}, {unit}: {values}, medians {memory_median:g} and {files_median:g}: {100 * ratio:.0f} %",
                    flush=True,
                )


if __name__ == "__main__":
    main()
