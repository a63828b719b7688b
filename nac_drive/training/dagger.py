"""DAgger: a driver learns on its own states.

The expert labels them.

Ross, Gordon and Bagnell, AISTATS 2011, arXiv 1011.0686. Round 0 is the expert's episodes under action noise; in every
later round a mixture policy of learner and expert drives new tracks (`data_collection.mixture`), the expert labels
every frame, and the learner goes on learning from all episodes so far. A person as the expert corrects the learner
instead, and labels only the corrected frames (`data_collection.corrections`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from nac_drive.arguments import checks_shared_arguments, path_of
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
from nac_drive.data_collection.drivers import AnyDriver, accepted, driver_hash, driver_name, resolve_driver, sendable
from nac_drive.data_collection.human import Human
from nac_drive.data_collection.trained_env import require_environment
from nac_drive.envs import EnvSpec
from nac_drive.evaluation.formulas import agrees
from nac_drive.events import Progress, counting, one_of
from nac_drive.notebook import automatic
from nac_drive.parallel.processes import Pool
from nac_drive.policies import Driver
from nac_drive.policies.ops.generators import own_generators
from nac_drive.training.config import require_config
from nac_drive.training.dagger_config import DaggerConfig
from nac_drive.training.data.memory import read_episodes
from nac_drive.training.data.sequences import TrainingData
from nac_drive.training.distributed import build_fabric, deaths_in_one_line
from nac_drive.training.machines import meet_machines
from nac_drive.training.plan import TrainingPlan, open_run
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.trainer import Trainer, build_learner
from nac_drive.training.validation import on_cpu


@own_generators()
@checks_shared_arguments
def dagger(
    config: DaggerConfig,
    folder: str | os.PathLike[str],
    *,
    expert: AnyDriver = "expert",
    device: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    resume: bool = False,
    pool: Pool | None = None,
    progress: Progress = automatic,
) -> Path:
    """Train a driver on its own episodes.

    The episodes are the dataset `folder/dataset`, their rows with the key `round`. Decoded frames take 27 KiB each, or
    a hundredth of it as features where the encoder is frozen. Rounds that no longer fit into memory (`frame_memory`)
    are read from their files in every epoch.

    Args:
        config: Settings.
        folder: The folder of the run.
        expert: The driver that gives the labels, its name or its folder, see `resolve_driver`. It sees the status bar
            as in its training, whether or not the learner sees it. `human` drives round 0 at the keys of a window and
            corrects the learner in later rounds: `beta` and `switch_interval` have no effect then.
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
        ValueError: For an argument of another type, if the device is not there, the expert has another control or
            environment, a frozen encoder or initial weights do not fit the driver, or the run was started with other
            settings or by an older version.
        DatasetError: If episodes cannot be written, or episodes of a finished round are damaged.
        DivergedError: If the loss or a weight becomes NaN or infinite; the last checkpoint is kept.
        FolderInUseError: If another process writes to the folder.
    """
    require_config(config, DaggerConfig)
    config.check()
    folder, expert, env = path_of("folder", folder), accepted(expert), config.env
    RunFolder.require(folder, resume)
    labels = resolve_driver(expert, env)
    require_environment(f"expert {driver_name(expert)!r}", labels, env)
    meta = Meta(env, driver_name(expert), driver_hash(expert, env), config.noise_config, config.seed)
    name = os.fspath(expert) if isinstance(expert, str | os.PathLike) else meta.driver
    facts = {"expert": name, "expert_sha256": meta.driver_sha256}
    plan = TrainingPlan.resolve(config, env, device=device, facts=facts, moved=("expert",), grown=("rounds",))
    learner = build_learner(plan)
    rounds = _Rounds(plan, labels, meta, folder / "dataset")
    fabric = build_fabric(device, config.optim.precision, devices, nodes, config.data.batch_size)
    meet_machines(nodes, progress)
    with open_run(folder, plan, resume=resume) as run, deaths_in_one_line(fabric):
        trainer = Trainer(plan, run, learner, fabric, pool=pool, progress=progress)
        left = [*trainer.unfinished(range(config.rounds + 1))]
        if left:
            with rounds.recording(resume) if trainer.is_main else nullcontext():
                for number in range(left[0]):
                    rounds.collect(number, trainer, None)
                for number in left:
                    trainer.finish("round", number, _round(rounds, trainer, number))
        return trainer.best()


def _round(rounds: _Rounds, trainer: Trainer, number: int) -> dict[str, Any]:
    """Drive a round, learn, validate, and return the row."""
    started = time.perf_counter()
    row = rounds.collect(number, trainer, trainer.driver)
    row["collect_seconds"] = time.perf_counter() - started
    row |= _train(trainer, rounds.data, number) | {"frames": len(rounds.data)}
    if not trainer.is_main:
        return row
    started = time.perf_counter()
    row |= trainer.validate()
    return row | {"validation_seconds": time.perf_counter() - started}


def _train(trainer: Trainer, data: TrainingData, number: int) -> dict[str, float]:
    """Train for the epochs of a round; return the last metrics."""
    started, config = time.perf_counter(), trainer.plan.config
    trainer.set_rate(config.rate(number))
    epochs, metrics = config.round_epochs(number), {}
    for done, epoch in enumerate(epochs):
        metrics = trainer.epoch(data, epoch, one_of(trainer.progress, f"round {number}: training", done, len(epochs)))
    return {**metrics, "seconds": time.perf_counter() - started}


class _Rounds:
    """The episodes of all rounds.

    They are driven, kept as a dataset, and loaded as training data.

    Args:
        plan: The training.
        labels: The driver that gives the labels.
        meta: Settings of the dataset.
        path: Folder of the dataset.
    """

    def __init__(self, plan: TrainingPlan[DaggerConfig], labels: Any, meta: Meta, path: Path):
        self._config, self._meta, self._path = plan.config, meta, path
        self._expert, self._by_person, self._labels = cloudpickle.dumps(labels), isinstance(labels, Human), labels
        self.data = TrainingData(plan.config.data, plan.env, plan.device, plan.encoder, path)
        """The frames of the rounds so far."""

    @contextmanager
    def recording(self, resume: bool) -> Iterator[None]:
        """Hold the dataset for the main process, which drives."""
        config = self._config
        tracks = [track for number in range(config.rounds + 1) for _, track in config.tasks(number)]
        with open_recording(self._path, self._meta, tracks, resume=resume) as self._dataset:
            yield

    def collect(self, number: int, trainer: Trainer, learner: Driver | None) -> dict[str, Any]:
        """Drive the missing episodes of a round, and load all.

        The main process drives.

        Args:
            number: The round.
            trainer: Names the processes that wait for the episodes.
            learner: The driver that learns; None where no episode may be missing.

        Returns:
            Metrics of the episodes of the round.
        """
        row = self._drive(number, trainer, learner) if trainer.is_main else {}
        trainer.fabric.barrier()
        dataset = self._dataset if trainer.is_main else Demonstrations.open(self._path)
        tracks = [track for _, track in self._config.tasks(number)]
        frames = read_episodes(dataset, tracks, self.data.device, stream=self.data.frozen)
        self.data.add(frames)
        return row | agreement(self._config, number, frames, self._meta.env.spec)

    def _drive(self, number: int, trainer: Trainer, learner: Driver | None) -> dict[str, Any]:
        tasks, dataset = self._config.tasks(number), self._dataset
        there = {row["index"] for row in dataset.rows}
        missing = [task for task in tasks if task[0] not in there]
        if missing and learner is None:
            raise DatasetError(
                f"dataset {dataset.path} has lost episode {missing[0][0]} of round {number}, "
                "whose learner is not kept; start a new run."
            )
        if missing:
            pool = trainer.pool
            if self._by_person or not sendable(self._labels, bool(pool)):
                pool = None
            episodes = (pool.imap if pool else map)(self._driver(number, learner), missing)
            finished = counting(trainer.progress, f"round {number}: episodes", len(tasks), len(tasks) - len(missing))
            for row in append_episodes(dataset, episodes):
                finished(row_note(row))
        returns = [row["return"] for row in dataset.rows if row["round"] == number]
        return {"episodes": len(returns), "episodes_return_mean": float(np.mean(returns))}

    def _driver(self, number: int, learner: Driver | None) -> Callable[[tuple[int, int]], EncodedEpisode]:
        """Return the function that drives an episode of a round."""
        job = EpisodeJob(self._expert, self._meta, number)
        if number == 0:
            return partial(collect_episode, job)
        pickled = cloudpickle.dumps(learner and on_cpu(learner))
        if self._by_person:
            return partial(collect_corrected_episode, job, pickled)
        return partial(collect_mixture_episode, job, self._config.mixture, pickled)


def agreement(config: DaggerConfig, number: int, frames: Frames, spec: EnvSpec) -> dict[str, float]:
    """Fraction of frames on which learner and expert agree.

    They are driven by the learner, after the zoom.

    Of a person it is the fraction that the person corrected.
    """
    if number == 0:
        return {}
    if frames.labelled is not None:
        return {"corrected": float(frames.labelled.mean())}
    agreed = [
        agrees(frames.actions[first + i], frames.labels[first + i], spec)
        for first, end, track in zip(frames.offsets[:-1], frames.offsets[1:], frames.seeds, strict=True)
        for i in np.flatnonzero(
            config.mixture.learner_frames(end - first, (config.seed, track)) & ~frames.zooming[first:end]
        )
    ]
    return {"agreement": float(np.mean(agreed))} if agreed else {}
