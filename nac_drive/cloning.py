"""Behaviour cloning: a driver learns the expert's actions from windows of frames with their true time steps."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from data_collection.dataset import Demonstrations
from data_collection.drivers import driver_hash
from data_collection.processes import Pool
from nac_drive.accuracy import offline_accuracy
from nac_drive.training import Report, Trainer, cloned_driver
from nac_drive.training_config import TrainingConfig
from nac_drive.training_data import TrainingData, masked


@dataclass(frozen=True)
class CloneConfig(TrainingConfig):
    """Settings of `clone`."""

    epochs: int = 100
    """Passes over the demonstrations."""
    validation_share: float = 0.1
    """Share of the recorded tracks held out to measure accuracy."""
    validate_every: int = 10
    """Epochs between two closed-loop validations; the last epoch is always validated."""
    frozen: str = ""
    """Driver whose vision head is taken over and learns no more, such as the folder of a run: the features of all
    frames are computed once, which makes training many times faster. Empty: the driver learns end to end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(epochs=1, validate_every=1)
        if self.frozen and self.augment:
            raise ValueError(
                f"augment changes pictures, which a frozen vision head sees once, got {self.augment}; "
                "train end to end, or augment when the vision head is trained."
            )


def clone(
    config: CloneConfig,
    dataset: Demonstrations,
    folder: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    pool: Pool | None = None,
    report: Report = lambda row: None,
) -> Path:
    """Train a driver on `dataset` in the run folder `folder`; returns the folder of its best checkpoint.

    A row of metrics.jsonl per epoch: training loss and accuracy, accuracy on held-out tracks, and in some epochs the
    closed-loop returns. A checkpoint per epoch; `resume` goes on from the last one, on a CPU bit for bit as if never
    interrupted. device: `auto`, `cpu`, `cuda`.  pool: for the closed-loop validation, see `worker_pool`.  report: gets
    each row, and while an epoch runs dicts with the keys epoch, batch, batches and loss.

    Raises FileExistsError for an existing run without `resume`; ValueError for a device that is not there, a window
    that no episode fills, a frozen vision head of another make, or other settings than the run was started with.
    """
    env = replace(dataset.meta.env, mask_bar=dataset.meta.env.mask_bar or config.mask_bar)
    trainer = Trainer(config, env, device)
    resolved = {**asdict(config), "dataset": str(dataset.path), "dataset_sha256": dataset.fingerprint()}
    train_seeds, held_out_seeds = dataset.split(config.validation_share, config.seed)
    see = None
    if config.frozen:
        see = trainer.freeze_vision(cloned_driver("frozen", config.frozen, env))
        resolved["frozen_sha256"] = driver_hash(config.frozen, env)
    data = TrainingData(config, env, trainer.fabric.device, see)
    data.add(dataset.load(train_seeds))
    held_out = dataset.load(held_out_seeds) if held_out_seeds else None
    seen = see(torch.from_numpy(masked(held_out.frames, env)).to(data.device)) if held_out and see else None
    done = trainer.open(folder, resolved, resume=resume, moved=["dataset", "frozen"])  # what moved is still the same
    for epoch in range((done or 0) + 1, config.epochs + 1):
        started = time.perf_counter()
        row = {"step": epoch, **trainer.epoch(data, epoch, report)}
        row["seconds"] = time.perf_counter() - started
        trainer.driver.eval()
        if held_out and not held_out.zooming.all():
            row["held_out"] = asdict(offline_accuracy(trainer.driver, held_out, env, seen))
        if epoch % config.validate_every == 0 or epoch == config.epochs:
            row |= trainer.validate(pool)
        trainer.finish(row, epoch=epoch)
        report(row)
    return trainer.best
