"""Behaviour cloning: a driver learns the expert's actions from windows of frames with their true time steps."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from data_collection.dataset import Demonstrations
from data_collection.drivers import driver_hash
from data_collection.frames import Frames
from data_collection.processes import Pool
from envs import EnvConfig
from nac_drive.accuracy import offline_accuracy
from nac_drive.training import Report, Trainer, frozen_vision
from nac_drive.training_config import TrainingConfig
from nac_drive.training_data import TrainingData, features, masked


@dataclass(frozen=True)
class CloneConfig(TrainingConfig):
    """Settings of `clone`."""

    epochs: int = 100
    """Passes over the demonstrations."""
    validation_share: float = 0.1
    """Share of the recorded tracks held out to measure accuracy."""
    validate_every: int = 10
    """Epochs between two closed-loop validations; the last epoch is always validated."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(epochs=1, validate_every=1)


@dataclass(frozen=True)
class Splits:
    """What a training learns from and what it is measured on. With a frozen vision head both hold features in place of
    frames, a hundred times less: they can be handed to other processes."""

    train: TrainingData
    held_out: Frames | None
    """Of the tracks held out, if any; without its frames where there are features."""
    features: Tensor | None
    """(N, d) what a frozen vision head makes of the frames held out."""

    def to(self, device: torch.device) -> Splits:
        """On another device."""
        features = None if self.features is None else self.features.to(device)
        return Splits(self.train.to(device), self.held_out, features)


def load_splits(config: CloneConfig, dataset: Demonstrations, device: torch.device) -> Splits:
    """`dataset` as trainings with `config` take it; they may differ in core and seed.

    Raises ValueError for a window that no episode fills, and where `config.frozen` is no cloned driver.
    """
    env = _env(config, dataset)
    vision = frozen_vision(config, env, device)
    train_seeds, held_out_seeds = dataset.split(config.validation_share)
    train = TrainingData(config, env, device, vision)
    train.add(dataset.load(train_seeds))
    held_out = dataset.load(held_out_seeds) if held_out_seeds else None
    if held_out is None or vision is None:
        return Splits(train, held_out, None)
    seen = features(vision, torch.from_numpy(masked(held_out.frames, env)).to(device))
    return Splits(train, replace(held_out, frames=held_out.frames[:0]), seen)


def clone(
    config: CloneConfig,
    dataset: Demonstrations,
    folder: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    pool: Pool | None = None,
    splits: Splits | None = None,
    report: Report = lambda row: None,
) -> Path:
    """Train a driver on `dataset` in the run folder `folder`; returns the folder of its best checkpoint.

    A row of metrics.jsonl per epoch: training loss and accuracy, accuracy on held-out tracks, and in some epochs the
    closed-loop returns. A checkpoint per epoch; `resume` goes on from the last one, on a CPU bit for bit as if never
    interrupted. device: `auto`, `cpu`, `cuda`.  pool: for the closed-loop validation, see `worker_pool`.
    splits: those of `load_splits`, where they are loaded already.  report: gets each row, and while an epoch runs dicts
    with the keys epoch, batch, batches and loss.

    Raises FileExistsError for an existing run without `resume`; ValueError for a device that is not there, a window
    that no episode fills, a frozen vision head of another make, or other settings than the run was started with.
    """
    env = _env(config, dataset)
    trainer = Trainer(config, env, device)
    resolved = {**asdict(config), "dataset": str(dataset.path), "dataset_sha256": dataset.fingerprint()}
    if config.frozen:
        resolved["frozen_sha256"] = driver_hash(config.frozen, env)
    splits = splits or load_splits(config, dataset, trainer.fabric.device)
    splits = splits.to(trainer.fabric.device)
    done = trainer.open(folder, resolved, resume=resume, moved=["dataset", "frozen"])  # what moved is still the same
    for epoch in range((done or 0) + 1, config.epochs + 1):
        started = time.perf_counter()
        row = {"step": epoch, **trainer.epoch(splits.train, epoch, report)}
        row["seconds"] = time.perf_counter() - started
        trainer.driver.eval()
        if splits.held_out and not splits.held_out.zooming.all():
            row["held_out"] = asdict(offline_accuracy(trainer.driver, splits.held_out, env, splits.features))
        if epoch % config.validate_every == 0 or epoch == config.epochs:
            row |= trainer.validate(pool)
        trainer.finish(row, epoch=epoch)
        report(row)
    return trainer.best


def _env(config: CloneConfig, dataset: Demonstrations) -> EnvConfig:
    """What the driver sees."""
    return replace(dataset.meta.env, mask_bar=dataset.meta.env.mask_bar or config.mask_bar)
