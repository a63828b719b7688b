"""Behaviour cloning: a driver learns the expert's actions from sequences of frames with their true time steps."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.frames import Frames
from nac_drive.data_collection.processes import Pool
from nac_drive.envs import EnvConfig
from nac_drive.training.config import TrainConfig
from nac_drive.training.data import TrainingData, features, masked
from nac_drive.training.offline import offline_accuracy
from nac_drive.training.trainer import (
    MOVED,
    Trainer,
    build_learner,
    choose_device,
    for_env,
    frozen_encoder,
    source_hashes,
)
from nac_drive.training.validation import Report


@dataclass(frozen=True)
class Splits:
    """Training data and validation episodes.

    With a frozen encoder both hold features in place of frames, a hundredth of the memory, so that other processes can
    take them over.
    """

    train: TrainingData
    validation: Frames | None
    """Episodes on the validation tracks, if any; without frames where there are features."""
    features: Tensor | None
    """(N, d) features of the validation frames by a frozen encoder."""

    def to(self, device: torch.device) -> Splits:
        """On another device."""
        features = None if self.features is None else self.features.to(device)
        return Splits(self.train.to(device), self.validation, features)


def load_splits(config: TrainConfig, dataset: Demonstrations, device: torch.device) -> Splits:
    """Load a dataset for runs of `train`.

    Args:
        config: The settings of the runs; core, seed and optimizer may differ between them.
        dataset: The demonstrations.
        device: Where the data go.

    Raises:
        ValueError: If no episode fills a sequence, or `freeze_encoder_from` names no cloned driver.
    """
    env = _env(config, dataset)
    encoder = frozen_encoder(config.optim, env, device)
    train_seeds, validation_seeds = dataset.split(config.validation_fraction)
    train = TrainingData(config.data, env, device, encoder)
    train.add(dataset.load(train_seeds))
    validation = dataset.load(validation_seeds) if validation_seeds else None
    if validation is None or encoder is None:
        return Splits(train, validation, None)
    seen = features(encoder, torch.from_numpy(masked(validation.frames, env)).to(device))
    return Splits(train, replace(validation, frames=validation.frames[:0]), seen)


def train(
    config: TrainConfig,
    dataset: Demonstrations | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    device: str = "auto",
    resume: bool = False,
    pool: Pool | None = None,
    splits: Splits | None = None,
    report: Report = lambda row: None,
) -> Path:
    """Train a driver on recorded episodes by behaviour cloning.

    A row of metrics.jsonl per epoch: training loss and accuracy, accuracy on the validation tracks, and in some epochs
    the closed-loop returns. A checkpoint per epoch.

    Args:
        config: Settings. Control and frame shape are those of the dataset.
        dataset: The demonstrations, or their folder.
        folder: The folder of the run.
        device: `auto`, `cpu` or `cuda`.
        resume: Go on from the last checkpoint, on a CPU bit for bit as if never interrupted. `epochs` may have grown.
        pool: Processes for the closed-loop validation, see `worker_pool`.
        splits: The result of `load_splits`, to load a dataset once for several runs.
        report: Called with each row; before it, with a dict per batch (epoch, batch, batches, loss) and per validation
            episode (validation_episode, validation_episodes, return).

    Returns:
        The folder of the best checkpoint.

    Raises:
        FileExistsError: If the run exists and `resume` is off.
        FileNotFoundError: If there is no run to resume.
        ValueError: If the device is not there, no episode fills a sequence, a frozen encoder or initial weights do not
            fit the driver, or the run was started with other settings or by version 0.1.
    """
    config.check()
    folder = Path(folder)
    if not isinstance(dataset, Demonstrations):
        dataset = Demonstrations.open(dataset)
    env = _env(config, dataset)
    config = replace(config, driver=for_env(config.driver, env))
    resolved: dict[str, Any] = {
        **asdict(config), "dataset": str(dataset.path), "dataset_sha256": dataset.fingerprint(),
        **source_hashes(config.optim, env),
    }  # fmt: skip
    torch_device = choose_device(device)
    learner = build_learner(config, env)  # a bad setting fails here, before the dataset is loaded
    splits = splits or load_splits(config, dataset, torch_device)
    splits = splits.to(torch_device)
    if resume:
        moved = ("dataset", *MOVED)
        trainer = Trainer.resume(learner, config, env, device, folder, resolved, moved=moved, grown=("epochs",))
    else:
        trainer = Trainer.create(learner, config, env, device, folder, resolved)

    def one_epoch(epoch: int) -> dict[str, Any]:
        started = time.perf_counter()
        row: dict[str, Any] = trainer.epoch(splits.train, epoch, report)
        row["seconds"] = time.perf_counter() - started
        trainer.driver.eval()
        if splits.validation and not splits.validation.zooming.all():
            row["validation"] = asdict(offline_accuracy(trainer.driver, splits.validation, env, splits.features))
        if epoch % config.validate_every == 0 or epoch == config.epochs:
            row |= trainer.validate(pool, report)
        return row

    return trainer.fit(range(1, config.epochs + 1), one_epoch, "epoch", report)


def _env(config: TrainConfig, dataset: Demonstrations) -> EnvConfig:
    """The environment of the driver."""
    return replace(dataset.meta.env, mask_bar=dataset.meta.env.mask_bar or config.data.mask_bar)
