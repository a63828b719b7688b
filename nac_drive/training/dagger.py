"""DAgger: a driver learns on the states that it reaches itself, labelled by the expert.

Ross, Gordon and Bagnell, AISTATS 2011, arXiv 1011.0686. Round 0 is the expert's episodes under action noise; in every
later round a mixture policy of learner and expert drives new tracks (`data_collection.mixture`), the expert labels
every frame, and the learner goes on learning from all episodes so far. A person as the expert corrects the learner
instead, and labels only the corrected frames (`data_collection.corrections`).
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nac_drive.data_collection.collect import (
    EpisodeJob,
    append_episodes,
    collect_corrected_episode,
    collect_episode,
    collect_mixture_episode,
    open_recording,
)
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.episode_file import EncodedEpisode
from nac_drive.data_collection.dataset.frames import Frames
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.data_collection.dataset.rows import row_note
from nac_drive.data_collection.drivers import driver_hash, driver_name, require_environment, resolve_driver
from nac_drive.data_collection.human import Human
from nac_drive.evaluation.formulas import agrees
from nac_drive.events import Progress, counting, one_of, silent
from nac_drive.parallel.processes import Pool
from nac_drive.policies import Driver
from nac_drive.storage.lock import locked
from nac_drive.training.config import DaggerConfig
from nac_drive.training.data.memory import read_episodes
from nac_drive.training.data.sequences import TrainingData
from nac_drive.training.distributed import build_fabric, choose_device
from nac_drive.training.main_process import is_main_process
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.trainer import MOVED, Trainer, build_learner, frozen_encoder, source_hashes
from nac_drive.training.validation import on_cpu


def dagger(
    config: DaggerConfig,
    folder: str | os.PathLike[str],
    *,
    expert: str | os.PathLike[str] = "expert",
    device: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    resume: bool = False,
    pool: Pool | None = None,
    progress: Progress = silent,
) -> Path:
    """Train a driver on its own episodes.

    The episodes are the dataset `folder/dataset`, their rows with the key `round`. Decoded frames take 27 KiB each, or
    a hundredth of it as features where the encoder is frozen. Rounds that no longer fit into memory (`frame_memory`)
    are read from their files in every epoch.

    Args:
        config: Settings.
        folder: The folder of the run.
        expert: The driver that gives the labels, see `resolve_driver`. It sees the status bar as in its training,
            whether or not the learner sees it. `human` drives round 0 at the keys of a window and corrects the learner
            in later rounds: `beta` and `switch_interval` have no effect then.
        device: `auto`, `cpu` or `cuda`.
        devices: Processes on this machine that share every batch, see `train`.
        nodes: Machines that do so. All must see `folder`: the first one collects there.
        resume: Go on from the last round and keep finished episodes, on a CPU bit for bit as if never interrupted.
            `rounds` may have grown; the learning rate of the added rounds follows from the new number.
        pool: Processes for episodes and validations, see `worker_pool`; no result depends on it.
        progress: Called after every episode, batch and validation episode, and with a message after every round.

    Returns:
        The folder of the best checkpoint.

    Raises:
        FileExistsError: If the run exists and `resume` is off.
        FileNotFoundError: If there is no run to resume.
        ValueError: If the device is not there, the expert has another control or environment, a frozen encoder or
            initial weights do not fit the driver, or the run was started with other settings or by an older version.
        DatasetError: If episodes cannot be written, or those of a finished round are damaged.
        DivergedError: If the loss or a weight becomes NaN or infinite; the last checkpoint is kept.
        FolderInUseError: If another process writes to the folder.
    """
    config.check()
    folder, expert, env = Path(folder), os.fspath(expert), config.env
    if is_main_process():
        RunFolder.require(folder, resume)
    else:
        progress = silent
    labels = resolve_driver(expert, env)
    require_environment(f"expert {expert!r}", labels, env)
    by_person = isinstance(labels, Human)
    resolved: dict[str, Any] = {
        **asdict(config), "expert": driver_name(expert), "expert_sha256": driver_hash(expert, env),
        **source_hashes(config.optim, env),
    }  # fmt: skip
    torch_device = choose_device(device)
    learner = build_learner(config, env)
    encoder = frozen_encoder(config, env, torch_device)
    path = folder / "dataset"
    data = TrainingData(config.data, env, torch_device, encoder, path)
    meta = Meta(env, resolved["expert"], resolved["expert_sha256"], config.noise_config, config.seed)
    fabric = build_fabric(device, config.optim.precision, devices, nodes, config.data.batch_size)
    with locked(folder) if is_main_process() else nullcontext():
        if resume:
            trainer = Trainer.resume(learner, config, env, fabric, folder, resolved, moved=MOVED, grown=("rounds",))
        else:
            trainer = Trainer.create(learner, config, env, fabric, folder, resolved)
        pickled = pickle.dumps(labels)
        if trainer.done == config.rounds:
            return trainer.best
        tracks = [track for number in range(config.rounds + 1) for _, track in config.tasks(number)]
        with open_recording(path, meta, tracks, resume=resume) if trainer.is_main else nullcontext() as dataset:
            for number in range(0 if trainer.done is None else trainer.done + 1):  # the rounds that are finished
                if dataset is not None:
                    _collect(
                        config, dataset, number, EpisodeJob(pickled, meta, number), None, pool, progress, by_person
                    )
                fabric.barrier()
                _load(config, Demonstrations.open(path) if dataset is None else dataset, number, data)

            def one_round(number: int) -> dict[str, Any]:
                job = EpisodeJob(pickled, meta, number)
                started = time.perf_counter()
                row = {}
                if dataset is not None:
                    row = _collect(config, dataset, number, job, trainer.driver, pool, progress, by_person)
                fabric.barrier()
                row |= _load(config, Demonstrations.open(path) if dataset is None else dataset, number, data)
                row["collect_seconds"] = time.perf_counter() - started
                row |= _train(config, trainer, data, number, progress) | {"frames": len(data)}
                if not trainer.is_main:
                    return row
                started = time.perf_counter()
                row |= trainer.validate(pool, progress)
                return row | {"validation_seconds": time.perf_counter() - started}

            return trainer.fit(range(config.rounds + 1), one_round, "round", progress)


def _collect(
    config: DaggerConfig,
    dataset: Demonstrations,
    number: int,
    job: EpisodeJob,
    learner: Driver | None,
    pool: Pool | None,
    progress: Progress,
    by_person: bool,
) -> dict[str, Any]:
    """Drive the missing episodes of a round; returns the metrics of all its episodes.

    Without a `learner` (None) no episode may be missing.
    """
    tasks = config.tasks(number)
    there = {row["index"] for row in dataset.rows}
    missing = [task for task in tasks if task[0] not in there]
    if missing and learner is None:
        raise DatasetError(
            f"dataset {dataset.path} has lost episode {missing[0][0]} of round {number}, "
            "whose learner is not kept; start a new run."
        )
    drive: Callable[[tuple[int, int]], EncodedEpisode]
    if number == 0:
        drive = partial(collect_episode, job)
    elif by_person:
        drive = partial(collect_corrected_episode, job, pickle.dumps(learner and on_cpu(learner)))
    else:
        drive = partial(collect_mixture_episode, job, config.mixture, pickle.dumps(learner and on_cpu(learner)))
    episodes = pool.imap(drive, missing) if pool and not by_person else map(drive, missing)
    if missing:
        finished = counting(progress, f"round {number}: episodes", len(tasks), len(tasks) - len(missing))
        for row in append_episodes(dataset, episodes):
            finished(row_note(row))
    returns = [row["return"] for row in dataset.rows if row["round"] == number]
    return {"episodes": len(returns), "episodes_return_mean": float(np.mean(returns))}


def _load(config: DaggerConfig, dataset: Demonstrations, number: int, data: TrainingData) -> dict[str, float]:
    """Add the episodes of a round to `data`; returns how far the expert agreed."""
    tracks = [track for _, track in config.tasks(number)]
    frames = read_episodes(dataset, tracks, data.device, stream=data.frozen)
    data.add(frames)
    return _agreement(config, number, frames)


def _agreement(config: DaggerConfig, number: int, frames: Frames) -> dict[str, float]:
    """Fraction of the frames driven by the learner after the zoom where its action is the expert's.

    Of a person it is the fraction that the person corrected.
    """
    if number == 0:
        return {}
    if frames.labelled is not None:
        return {"corrected": float(frames.labelled.mean())}
    agreed = [
        agrees(frames.actions[first + i], frames.labels[first + i])
        for first, end, track in zip(frames.offsets[:-1], frames.offsets[1:], frames.seeds, strict=True)
        for i in np.flatnonzero(
            config.mixture.learner_frames(end - first, (config.seed, track)) & ~frames.zooming[first:end]
        )
    ]
    return {"agreement": float(np.mean(agreed))} if agreed else {}


def _train(
    config: DaggerConfig, trainer: Trainer, data: TrainingData, number: int, progress: Progress
) -> dict[str, float]:
    """The epochs of a round; returns the metrics of the last."""
    started = time.perf_counter()
    trainer.set_rate(config.rate(number))
    epochs, metrics = config.round_epochs(number), {}
    for done, epoch in enumerate(epochs):
        job = f"round {number}: training"
        metrics = trainer.epoch(data, epoch, one_of(progress, job, done, len(epochs)))
    return {**metrics, "seconds": time.perf_counter() - started}
