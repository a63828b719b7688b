"""Time of the NAC paper's training: 43,000 frames, 100 epochs, 64 features, 16 heads, sequences of 16 frames.

python benchmarks/speed/training.py               # on a GPU the whole training; on a CPU an estimate from some batches
python benchmarks/speed/training.py --batches 20  # an estimate on any device
python benchmarks/speed/training.py --cores nac-exact lstm cfc --batches 20   # frames/s of cores

The settings come from `train --recipe paper` (docs/cloning.md). Frames are noise: their content does not change the
time. On a GPU they are there as uint8, and the precision is bf16 (auto). The first batches, which fetch memory and
libraries, do not count. The goal on a GPU is 90 s.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from nac_drive.data_collection.dataset.frames import Frames
from nac_drive.envs import EnvConfig
from nac_drive.events import silent
from nac_drive.policies.device import choose_device
from nac_drive.training.config import paper_recipe
from nac_drive.training.data.sequences import TrainingData
from nac_drive.training.distributed import build_fabric
from nac_drive.training.plan import TrainingPlan
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.trainer import Trainer, build_learner

FRAMES, EPISODE = 43_000, 860
WARM_UP = 3
"""Batches before the first that counts."""


class Slice(TrainingData):
    """The first sequences of every epoch only."""

    sequences_per_epoch = FRAMES

    def starts(self, rng: np.random.Generator) -> np.ndarray:
        return super().starts(rng)[: self.sequences_per_epoch]


def noise(count: int) -> Frames:
    """Episodes of frames of noise."""
    rng = np.random.default_rng(0)
    return Frames(
        frames=rng.integers(256, size=(count, *EnvConfig().spec.frame_shape), dtype=np.uint8),
        labels=(labels := rng.integers(5, size=count)), actions=labels, rewards=np.zeros(count, np.float32),
        dt=np.full(count, 0.02, np.float32), zooming=np.zeros(count, bool), telemetry={},
        offsets=np.arange(0, count + 1, EPISODE), seeds=np.arange(count // EPISODE),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--batches", type=int, help="estimate from this many; on a CPU 30 by default, on a GPU all")
    parser.add_argument("--cores", nargs="+", default=["nac-exact"], help="cores that take its place")
    options = parser.parse_args()
    for core in options.cores:
        measure(core, options.device, options.batches)


def measure(core: str, device_name: str, batches: int | None) -> None:
    """Print the times of a core."""
    device, config, env = choose_device(device_name), paper_recipe(), EnvConfig()
    config = replace(config, driver=replace(config.driver, core=core))
    batches = batches or (30 if device.type == "cpu" else None)
    in_epoch = -(-FRAMES // config.data.sequence_length // config.data.batch_size)
    data = Slice(config.data, env, device)
    frames = FRAMES if batches is None else min(FRAMES, EPISODE * -(-batches * 512 // EPISODE) + EPISODE)
    data.add(noise(frames))
    with tempfile.TemporaryDirectory() as folder:
        fabric = build_fabric(device_name, "auto", 1, 1, config.data.batch_size)
        plan = TrainingPlan.resolve(config, env, device=device_name)
        trainer = Trainer(plan, RunFolder.create(Path(folder) / "run", plan.resolved), build_learner(plan), fabric)
        data.sequences_per_epoch = WARM_UP * config.data.batch_size
        trainer.epoch(data, 1, silent)
        data.sequences_per_epoch = FRAMES if batches is None else batches * config.data.batch_size
        epochs = range(config.epochs) if batches is None else range(1)
        seconds, row = 0.0, {}
        for epoch in epochs:
            row = trainer.epoch(data, epoch, silent)
            seconds += row["frames"] / row["samples_per_second"]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    whole = seconds if batches is None else seconds / batches * in_epoch * config.epochs
    print(
        f"{name}, torch {torch.__version__}, {core}, {config.data.batch_size} sequences of "
        f"{config.data.sequence_length}: {row['samples_per_second']:.0f} frames/s, peak memory {row['memory_mb']} MB, "
        f"{whole / config.epochs:.2f} s an epoch, {whole:.0f} s for {config.epochs} epochs "
        f"({'measured' if batches is None else f'estimated from {batches} batches'})",
        flush=True,
    )


if __name__ == "__main__":
    main()
