"""DAgger: a driver learns on the states that it brings about itself, labelled by its teacher.

Ross, Gordon and Bagnell, AISTATS 2011, arXiv 1011.0686. Round 0 is the teacher's laps under noise; in every later
round student and teacher take turns at the wheel on new tracks (`data_collection.turns`), the teacher says what to do
at every frame, and the student goes on learning from all laps so far.
"""

from __future__ import annotations

import pickle
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_collection.dataset import Demonstrations, Meta
from data_collection.drivers import driver_hash, driver_name, resolve_driver, trained_env
from data_collection.episode_file import DatasetError
from data_collection.frames import Frames
from data_collection.noise import NoiseConfig
from data_collection.processes import Pool
from data_collection.record import LapJob, append_laps, open_recording, record_lap
from data_collection.turns import TurnsConfig, turns_lap
from envs import SPLITS, Control, EnvConfig, RendererName
from nac_drive.metrics import agrees
from nac_drive.training import Report, Trainer, cloned_driver, frozen_vision, on_cpu
from nac_drive.training_config import TrainingConfig
from nac_drive.training_data import TrainingData
from policies import Driver


@dataclass(frozen=True)
class DaggerConfig(TrainingConfig):
    """Settings of `dagger`."""

    vision: str = "compact"
    """Convolutions: compact, which see the whole frame, or paper (the NAC paper's, which miss its last five rows)."""
    residual: bool = True
    """The action head sees the sum of the core's output and its input, instead of the output alone."""
    dropout: float = 0.0
    """Share of convolutional features dropped in training."""
    batch_size: int = 8
    """Sequences per update (B)."""
    learning_rate: float = 1e-3
    """Adam's rate in round 0."""
    final_learning_rate: float = 2e-4
    """Adam's rate in the last round; in between it falls by the same factor from round to round."""
    average: float = 0.999
    """Decay per update of a moving average of the weights: the average drives, is validated and is kept, while the
    weights go on learning. 0: no average."""
    mirror: bool = True
    """Show every other sequence mirrored left to right: tracks are driven counter-clockwise, so curves to the left
    outnumber those to the right."""
    control: Control = "discrete"
    """Five actions, or continuous steer, gas and brake."""
    renderer: RendererName = "fast"
    """Who draws the frames of laps and validations; reported scores are measured with gymnasium's."""
    max_steps: int = 1000
    """Frames before a lap is truncated."""
    init: str = ""
    """Driver whose weights the student starts with, such as the folder of a run; those of vision and action head where
    its core is another one. Empty: random weights."""
    rounds: int = 8
    """Rounds in turns, after round 0 of the teacher alone."""
    first_laps: int = 20
    """Laps of the teacher in round 0."""
    laps: int = 12
    """Laps in each later round."""
    first_track: int = 0
    """Seed of the first track; every lap is on the next training track."""
    noise: float = 0.15
    """Share of frames of round 0 whose executed action is random while the label stays the teacher's."""
    noise_hold: float = 4.0
    """Mean number of frames that one random action is held."""
    student_share: float = 0.8
    """Probability that the student, not the teacher, steers through a segment."""
    segment: int = 25
    """Frames before the wheel is drawn for again."""
    first_epochs: int = 6
    """Passes over the laps of round 0."""
    epochs: int = 2
    """Passes over all laps so far in each later round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.final_learning_rate > 0:
            raise ValueError(f"final_learning_rate must be positive, got {self.final_learning_rate}.")
        self.require(first_laps=1, laps=1, rounds=0, first_epochs=1, epochs=1, max_steps=1)
        if self.window > self.max_steps:
            raise ValueError(
                f"window must not exceed max_steps ({self.max_steps} frames), got {self.window}; choose a shorter one."
            )
        tracks, last = len(SPLITS["train"]), self.first_track + self.first_laps + self.rounds * self.laps - 1
        if self.first_track < 0 or last >= tracks:
            raise ValueError(
                f"first_track, first_laps, rounds and laps must name tracks 0 to {tracks - 1}, "
                f"got {self.first_track} to {last}; start lower or drive fewer."
            )
        _ = self.env, self.noise_config, self.turns  # they check their own numbers

    @property
    def env(self) -> EnvConfig:
        """What the student sees and does."""
        return EnvConfig(control=self.control, mask_bar=self.mask_bar, max_steps=self.max_steps, renderer=self.renderer)

    @property
    def noise_config(self) -> NoiseConfig:
        """Of round 0."""
        return NoiseConfig(self.noise, self.noise_hold)

    @property
    def turns(self) -> TurnsConfig:
        """Of the later rounds."""
        return TurnsConfig(self.student_share, self.segment)

    def tasks(self, number: int) -> list[tuple[int, int]]:
        """(episode, track) of the laps of round `number`."""
        first = 0 if number == 0 else self.first_laps + (number - 1) * self.laps
        count = self.first_laps if number == 0 else self.laps
        return [(i, SPLITS["train"][self.first_track + i]) for i in range(first, first + count)]

    def rate(self, number: int) -> float:
        """Adam's rate in round `number`."""
        return self.learning_rate * (self.final_learning_rate / self.learning_rate) ** (number / max(1, self.rounds))

    def passes(self, number: int) -> range:
        """Numbers of the epochs of round `number`."""
        first = 1 if number == 0 else 1 + self.first_epochs + (number - 1) * self.epochs
        count = self.first_epochs if number == 0 else self.epochs
        return range(first, first + count)


def dagger(
    config: DaggerConfig,
    folder: Path,
    *,
    teacher: str = "expert",
    device: str = "auto",
    resume: bool = False,
    pool: Pool | None = None,
    report: Report = lambda row: None,
) -> Path:
    """Train a driver on its own laps in the run folder `folder`; returns the folder of its best checkpoint.

    teacher: who gives the labels, see `resolve_driver`; it sees the status bar also where the student does not.
    device: `auto`, `cpu`, `cuda`.  pool: for laps and validations, see `worker_pool`; no result depends on it.
    report: gets each row of metrics.jsonl (one per round); before it, a dict per lap (round, lap, laps, seed, return)
    and per batch (round, pass, passes, epoch, batch, batches, loss).

    The laps are the dataset `folder/dataset`, their rows with the key `round`. Frames stay decoded in memory, 27 KiB
    each, or a hundredth of it as features where the vision head is frozen. `resume` goes on from the last round and
    keeps finished laps, on a CPU bit for bit as if never interrupted.

    Raises FileExistsError for an existing run without `resume`; ValueError for a device that is not there, a teacher of
    another control or that was trained without the status bar, or other settings than the run was started with;
    DatasetError when laps cannot be written or those of a finished round are damaged.
    """
    env = config.env
    trained = trained_env(resolve_driver(teacher, env))
    if trained and trained.mask_bar:
        raise ValueError(f"teacher {teacher!r} was trained without the status bar; pass one that was trained with it.")
    trainer = Trainer(config, env, device)
    resolved = {**asdict(config), "teacher": driver_name(teacher), "teacher_sha256": driver_hash(teacher, env)}
    if config.init:
        trainer.start_from(cloned_driver("init", config.init, env))
        resolved["init_sha256"] = driver_hash(config.init, env)
    if config.frozen:
        resolved["frozen_sha256"] = driver_hash(config.frozen, env)
    data = TrainingData(config, env, trainer.fabric.device, frozen_vision(config, env, trainer.fabric.device))
    meta = Meta(env, resolved["teacher"], resolved["teacher_sha256"], config.noise_config, config.seed)
    done = trainer.open(folder, resolved, resume=resume)
    if done == config.rounds:
        return trainer.best
    tracks = [track for number in range(config.rounds + 1) for _, track in config.tasks(number)]
    dataset = open_recording(folder / "dataset", meta, tracks, resume=resume)
    for number in range(config.rounds + 1):
        finished = done is not None and number <= done
        student = None if finished else trainer.driver
        job = LapJob(dataset.path, teacher, meta, number)
        row: dict[str, Any] = {"step": number, **_collect(config, dataset, number, job, student, data, pool, report)}
        if finished:
            continue
        row |= _train(config, trainer, data, number, report) | {"frames": len(data)}
        started = time.perf_counter()
        row |= trainer.validate(pool)
        row["validation_seconds"] = time.perf_counter() - started
        trainer.finish(row, round=number)
        report(row)
    return trainer.best


def _collect(
    config: DaggerConfig,
    dataset: Demonstrations,
    number: int,
    job: LapJob,
    student: Driver | None,
    data: TrainingData,
    pool: Pool | None,
    report: Report,
) -> dict[str, Any]:
    """Let the laps of a round that are not there yet be driven, and add all of them to `data`; returns their figures.

    student: None for a round whose laps must be there.
    """
    started = time.perf_counter()
    tasks = config.tasks(number)
    there = {row["index"] for row in dataset.rows}
    missing = [task for task in tasks if task[0] not in there]
    if missing and student is None:
        raise DatasetError(
            f"dataset {dataset.path} has lost episode {missing[0][0]} of round {number}, whose student is gone; "
            "start a new run."
        )
    if number == 0:
        lap = partial(record_lap, job)
    else:
        lap = partial(turns_lap, job, config.turns, pickle.dumps(student and on_cpu(student)))
    laps = pool.imap(lap, missing) if pool else map(lap, missing)
    for done, row in enumerate(append_laps(dataset, laps), 1 + len(tasks) - len(missing)):
        report({"round": number, "lap": done, "laps": len(tasks), "seed": row["seed"], "return": row["return"]})
    frames = dataset.load([track for _, track in tasks])
    data.add(frames)
    returns = [row["return"] for row in dataset.rows if row["round"] == number]
    figures = {"laps": len(returns), "laps_return_mean": float(np.mean(returns)), **_agreement(config, number, frames)}
    return figures | {"collect_seconds": time.perf_counter() - started}


def _agreement(config: DaggerConfig, number: int, frames: Frames) -> dict[str, float]:
    """How often the student, in its own segments after the zoom, did what the teacher would have done."""
    if number == 0:
        return {}
    agreed = [
        agrees(frames.actions[first + i], frames.labels[first + i])
        for first, end, track in zip(frames.offsets[:-1], frames.offsets[1:], frames.seeds, strict=True)
        for i in np.flatnonzero(config.turns.students(end - first, (config.seed, track)) & ~frames.zooming[first:end])
    ]
    return {"agreement": float(np.mean(agreed))} if agreed else {}


def _train(config: DaggerConfig, trainer: Trainer, data: TrainingData, number: int, report: Report) -> dict[str, float]:
    """The passes of a round; returns the figures of the last."""
    started = time.perf_counter()
    trainer.set_rate(config.rate(number))
    passes, figures = config.passes(number), {}
    for done, epoch in enumerate(passes):
        place = {"round": number, "pass": done, "passes": len(passes)}
        figures = trainer.epoch(data, epoch, lambda row, place=place: report({**place, **row}))
    return {**figures, "seconds": time.perf_counter() - started}
