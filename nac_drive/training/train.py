"""Behaviour cloning: a driver learns the expert's actions.

It learns from sequences of frames with their true time steps.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nac_drive.arguments import checks_shared_arguments, path_of
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.frames import Frames
from nac_drive.events import Progress, message, one_of
from nac_drive.notebook import automatic
from nac_drive.parallel.processes import Pool
from nac_drive.policies.ops.generators import own_generators
from nac_drive.training.config import TrainConfig, require_config
from nac_drive.training.data.features import frozen_features
from nac_drive.training.data.memory import read_episodes
from nac_drive.training.data.sequences import TrainingData
from nac_drive.training.distributed import build_fabric, deaths_in_one_line
from nac_drive.training.machines import meet_machines
from nac_drive.training.offline import counted, offline_accuracy
from nac_drive.training.plan import TrainingPlan, open_run
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.trainer import (
    Trainer,
    build_learner,
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


def train_plan(config: TrainConfig, dataset: Demonstrations, device: str = "auto") -> TrainingPlan[TrainConfig]:
    """Resolve a training of `train`.

    Args:
        config: Settings that were checked. The dataset decides control and frames of the driver.
        dataset: The demonstrations.
        device: `auto`, `cpu` or `cuda`.

    Returns:
        The plan, whose settings have `perturb` among the perturbations that augment the sequences.

    Raises:
        ValueError: If the dataset was recorded under perturbations and `config` names others, and as
            `TrainingPlan.resolve` does.
    """
    env = dataset.meta.env
    if config.perturb is not None and env.perturb is not None:
        raise ValueError(
            f"perturb: dataset {dataset.path} was recorded under {env.perturb!r}, which counts; "
            f"leave out {config.perturb!r} or take a dataset without perturbations."
        )
    if env.spec.make is None and config.validation_fraction == 0:
        raise ValueError(
            f"validation_fraction must be above 0 for {env.environment}, got {config.validation_fraction}: it cannot "
            "be driven here, so the error on some episodes picks the best checkpoint."
        )
    env = replace(env, mask_bar=env.mask_bar or config.data.mask_bar, perturb=config.perturb or env.perturb)
    facts = {"dataset": str(dataset.path), "dataset_sha256": dataset.fingerprint()}
    plan = TrainingPlan.resolve(config, env, device=device, facts=facts, moved=("dataset",), grown=("epochs",))
    return replace(plan, config=plan.config.perturbed())


def load_splits(plan: TrainingPlan[TrainConfig], dataset: Demonstrations) -> Splits:
    """Load a dataset for runs of `train`.

    Frames stay in their files if all of them together exceed `frame_memory`, or if a frozen encoder turns them into
    features. The features are kept beside the dataset, see `frozen_features`.

    Args:
        plan: The plan of the runs; core, seed and optimizer may differ between them.
        dataset: The demonstrations.

    Raises:
        ValueError: If no episode fills a sequence.
    """
    config, env, device, encoder = plan.config, plan.env, plan.device, plan.encoder
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


@own_generators()
@checks_shared_arguments
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
    progress: Progress = automatic,
) -> Path:
    """Train a driver on recorded episodes by behaviour cloning.

    A row of metrics.jsonl per epoch: training loss and accuracy, accuracy on the validation tracks, and in some epochs
    the closed-loop returns. A checkpoint per epoch. With `optim.patience`, and where the environment cannot be driven
    (`EnvSpec.make` is None), the validation tracks pick the best, frame by frame.

    Args:
        config: Settings. The dataset decides control and frame shape.
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
        ValueError: For an argument of another type, if the device is not there, no episode fills a sequence, no
            validation frame has a label that `optim.patience` needs, a frozen encoder or initial weights do not fit the
            driver, or the run was started with other settings or by an older version.
        DivergedError: If the loss or a weight becomes NaN or infinite; the last checkpoint is kept.
        FolderInUseError: If another process writes to the folder.
    """
    require_config(config, TrainConfig)
    config.check()
    folder = path_of("folder", folder)
    RunFolder.require(folder, resume)
    if not isinstance(dataset, Demonstrations):
        dataset = Demonstrations.open(dataset)
    plan = train_plan(config, dataset, device)
    learner = build_learner(plan)  # a bad setting fails here, before the dataset is loaded
    splits = (splits or load_splits(plan, dataset)).to(plan.device)
    if config.optim.patience is not None and not (splits.validation and counted(splits.validation).any()):
        raise ValueError(
            "patience: no frame of the validation tracks has a label; leave it out, or record other tracks."
        )
    fabric = build_fabric(device, config.optim.precision, devices, nodes, config.data.batch_size)
    meet_machines(nodes, progress)
    with open_run(folder, plan, resume=resume) as run, deaths_in_one_line(fabric):
        trainer = Trainer(plan, run, learner, fabric, pool=pool, progress=progress)
        for epoch in trainer.unfinished(range(1, config.epochs + 1)):
            if trainer.fabric.broadcast(trainer.is_main and stalled(run, config.optim.patience)):
                trainer.progress(message("train", f"no progress for {config.optim.patience} epochs: the run stops"))
                break
            trainer.finish("epoch", epoch, _epoch(trainer, splits, epoch))
        return trainer.best()


def _epoch(trainer: Trainer, splits: Splits, epoch: int) -> dict[str, Any]:
    """Train for an epoch, validate, and return the row."""
    config, env, started = trainer.plan.config, trainer.plan.env, time.perf_counter()
    progress = one_of(trainer.progress, f"train ({config.driver.core})", epoch - 1, config.epochs)
    optim, scheduled = config.optim, config.optim.schedule != "constant" or config.optim.warmup_epochs > 0
    row: dict[str, Any] = trainer.epoch(splits.train, epoch, progress, config.rate if scheduled else None)
    row["seconds"] = time.perf_counter() - started
    if not trainer.is_main:
        return row
    trainer.driver.eval()
    if splits.validation and counted(splits.validation).any():
        row["validation"] = asdict(offline_accuracy(trainer.driver, splits.validation, env, splits.features))
    drivable = env.spec.make is not None
    if not drivable or optim.patience is not None:
        row["score"] = _offline_score(row["validation"])
    last = epoch == config.epochs or stalled(trainer.run, optim.patience, row)
    if drivable and (epoch % config.validate_every == 0 or last):
        row |= trainer.validate() | row  # a score by the validation tracks stands
    return row


def _offline_score(validation: dict[str, Any]) -> float:
    """Return the number of an `Accuracy` that compares epochs."""
    error = validation["steering_mse"]
    return validation["accuracy"] if error is None else -error


def stalled(run: RunFolder, patience: int | None, *newest: dict[str, Any]) -> bool:
    """Return whether the best epoch is `patience` epochs old.

    Args:
        run: The run, whose rows count.
        patience: See `OptimConfig`; None: no epoch is old.
        *newest: Newer rows, which count too.
    """
    if patience is None:
        return False
    scores = [row["score"] for row in (*run.rows(), *newest)]
    return bool(scores) and len(scores) - 1 - scores.index(max(scores)) >= patience
