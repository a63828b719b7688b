"""Behaviour cloning: a driver learns the expert's actions from sequences of frames with their true time steps."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.frames import Frames
from nac_drive.envs import EnvConfig
from nac_drive.events import Progress, one_of, silent
from nac_drive.parallel.processes import Pool
from nac_drive.storage.lock import locked
from nac_drive.training.config import TrainConfig, for_env
from nac_drive.training.data.features import frozen_features
from nac_drive.training.data.memory import read_episodes
from nac_drive.training.data.sequences import TrainingData
from nac_drive.training.distributed import build_fabric, choose_device
from nac_drive.training.main_process import is_main_process
from nac_drive.training.offline import counted, offline_accuracy
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.trainer import (
    MOVED,
    Trainer,
    build_learner,
    frozen_encoder,
    source_hashes,
)


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

    Frames stay in their files if all of them together exceed `frame_memory`, or if a frozen encoder turns them into
    features. The features are kept beside the dataset, see `frozen_features`.

    Args:
        config: The settings of the runs; core, seed and optimizer may differ between them.
        dataset: The demonstrations.
        device: Where the data go.

    Raises:
        ValueError: If no episode fills a sequence, or `freeze_encoder_from` names no cloned driver.
    """
    env = driver_env(config, dataset)
    encoder = frozen_encoder(config, env, device)
    train_seeds, validation_seeds = dataset.split(config.validation_fraction)
    train = TrainingData(config.data, env, device, encoder, dataset.path)
    train.add(read_episodes(dataset, train_seeds, device, stream=encoder is not None))
    if not validation_seeds:
        return Splits(train, None, None)
    validation = read_episodes(dataset, validation_seeds, device, stream=encoder is not None)
    if encoder is None:
        return Splits(train, validation, None)
    (seen,) = frozen_features(encoder, validation, env, device, dataset=dataset.path)
    return Splits(train, replace(validation, frames=validation.frames[:0]), seen)


def train(
    config: TrainConfig,
    dataset: Demonstrations | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    device: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    resume: bool = False,
    pool: Pool | None = None,
    splits: Splits | None = None,
    progress: Progress = silent,
) -> Path:
    """Train a driver on recorded episodes by behaviour cloning.

    A row of metrics.jsonl per epoch: training loss and accuracy, accuracy on the validation tracks, and in some epochs
    the closed-loop returns. A checkpoint per epoch. Where the environment cannot be driven (`EnvSpec.make` is None),
    the steering error on the validation tracks picks the best.

    Args:
        config: Settings. Control and frame shape are those of the dataset.
        dataset: The demonstrations, or their folder.
        folder: The folder of the run.
        device: `auto`, `cpu` or `cuda`.
        devices: Processes on this machine that share every batch, each with its own GPU or cores. They run the script
            or command of this process from its start. All but the first neither validate nor write nor report.
        nodes: Machines that do so; start the same command on each, see docs/scale.md.
        resume: Go on from the last checkpoint, on a CPU bit for bit as if never interrupted. `epochs` may have grown.
        pool: Processes for the closed-loop validation, see `worker_pool`.
        splits: The result of `load_splits`, to load a dataset once for several runs.
        progress: Called after every batch and validation episode, and with a message after every epoch.

    Returns:
        The folder of the best checkpoint.

    Raises:
        FileExistsError: If the run exists and `resume` is off.
        FileNotFoundError: If there is no run to resume.
        ValueError: If the device is not there, no episode fills a sequence, a frozen encoder or initial weights do not
            fit the driver, or the run was started with other settings or by an older version.
        DivergedError: If the loss or a weight becomes NaN or infinite; the last checkpoint is kept.
        FolderInUseError: If another process writes to the folder.
    """
    config.check()
    folder = Path(folder)
    if is_main_process():
        RunFolder.require(folder, resume)
    else:
        progress = silent
    if not isinstance(dataset, Demonstrations):
        dataset = Demonstrations.open(dataset)
    env = driver_env(config, dataset)
    if env.spec.make is None and config.validation_fraction == 0:
        raise ValueError(
            f"validation_fraction must be above 0 for {env.environment}, got {config.validation_fraction}: it cannot "
            "be driven here, so the error on some episodes picks the best checkpoint."
        )
    config = replace(config, driver=for_env(config.driver, env))
    resolved: dict[str, Any] = {
        **asdict(config), "dataset": str(dataset.path), "dataset_sha256": dataset.fingerprint(),
        **source_hashes(config.optim, env),
    }  # fmt: skip
    torch_device = choose_device(device)
    config = config.perturbed()
    learner = build_learner(config, env)  # a bad setting fails here, before the dataset is loaded
    splits = splits or load_splits(config, dataset, torch_device)
    splits = splits.to(torch_device)
    fabric = build_fabric(device, config.optim.precision, devices, nodes, config.data.batch_size)
    job = f"train ({config.driver.core})"
    with locked(folder) if is_main_process() else nullcontext():
        if resume:
            moved = ("dataset", *MOVED)
            trainer = Trainer.resume(learner, config, env, fabric, folder, resolved, moved=moved, grown=("epochs",))
        else:
            trainer = Trainer.create(learner, config, env, fabric, folder, resolved)

        def one_epoch(epoch: int) -> dict[str, Any]:
            started = time.perf_counter()
            row: dict[str, Any] = trainer.epoch(splits.train, epoch, one_of(progress, job, epoch - 1, config.epochs))
            row["seconds"] = time.perf_counter() - started
            if not trainer.is_main:
                return row
            trainer.driver.eval()
            if splits.validation and counted(splits.validation).any():
                row["validation"] = asdict(offline_accuracy(trainer.driver, splits.validation, env, splits.features))
            if env.spec.make is None:
                row["score"] = -row["validation"]["steering_mse"]
            elif epoch % config.validate_every == 0 or epoch == config.epochs:
                row |= trainer.validate(pool, progress)
            return row

        return trainer.fit(range(1, config.epochs + 1), one_epoch, "epoch", progress)


def driver_env(config: TrainConfig, dataset: Demonstrations) -> EnvConfig:
    """Return the environment that a driver is trained for.

    Raises:
        ValueError: If the dataset was recorded under perturbations and `config` names others.
    """
    env = dataset.meta.env
    if config.perturb is not None and env.perturb is not None:
        raise ValueError(
            f"perturb: dataset {dataset.path} was recorded under {env.perturb!r}, which counts; "
            f"leave out {config.perturb!r} or take a dataset without perturbations."
        )
    return replace(env, mask_bar=env.mask_bar or config.data.mask_bar, perturb=config.perturb or env.perturb)
