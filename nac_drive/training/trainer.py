"""The loop of `train` and `dagger` over labelled frames."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save_file

from nac_drive.envs import same_actions
from nac_drive.events import Event, Progress, message, silent
from nac_drive.parallel.processes import Pool
from nac_drive.policies import Driver, load_driver, save_driver
from nac_drive.policies.cores.registry import CORES
from nac_drive.policies.tensors import read_tensors, saved_tensors
from nac_drive.training.data.augmentation import augmented
from nac_drive.training.data.memory import peak_memory_mb
from nac_drive.training.data.sequences import TrainingData
from nac_drive.training.distributed import of_the_batch, own_rows
from nac_drive.training.finite import require_finite_number, require_finite_weights
from nac_drive.training.moving_average import MovingAverage
from nac_drive.training.optimizer import adam, set_rate
from nac_drive.training.plan import TrainingPlan
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.training_state import load_training_state, save_training_state
from nac_drive.training.validation import closed_loop, returns_note

if TYPE_CHECKING:  # slow to import: `build_fabric` does when a run starts
    from lightning_fabric import Fabric

_LEARNER = "learner.safetensors"


class Trainer:
    """Trains a driver step by step.

    A step is an epoch of `train` or a round of `dagger`. Every step ends with a row of metrics and a checkpoint. A
    trainer begins after the last checkpoint of its run.

    Args:
        plan: The training.
        run: Its run, of `open_run`.
        learner: The driver to train, of `build_learner`.
        fabric: The processes, see `build_fabric`. The others are started here: they run the command of this one from
            its start.
        pool: Processes for the closed-loop validation, see `worker_pool`.
        progress: Called with the events of the main process.
    """

    def __init__(
        self,
        plan: TrainingPlan[Any],
        run: RunFolder,
        learner: Driver,
        fabric: Fabric,
        *,
        pool: Pool | None = None,
        progress: Progress = silent,
    ):
        fabric.launch()
        fabric.barrier()
        self.plan, self.run, self.fabric, self.pool = plan, run, fabric, pool
        self.progress = progress if self.is_main else silent
        self.done: int | None = None
        """The last step that is finished."""
        self._learner, optim = learner, plan.config.optim
        self._model, self._optimizer = fabric.setup(
            learner, adam(learner, plan.config.rate_of_core, optim.encoder_learning_rate, optim.weight_decay)
        )
        self._model.mark_forward_method("decide")
        self._ema = MovingAverage(learner, optim.ema_decay) if optim.ema_decay else None
        if last := run.checkpoint_folder("last"):
            self._load(last)
        fabric.barrier()
        if self.is_main:
            run.keep_config(plan.resolved, plan.grown)  # only now: a run that cannot be read stays as it is

    def _load(self, checkpoint: Path) -> None:
        self.driver.load_state_dict(load_driver(checkpoint).state_dict())
        state = load_training_state(checkpoint / "training_state", self._optimizer)
        self.done = state["step"]
        if self._ema is not None:
            file = checkpoint / "training_state" / _LEARNER
            self._learner.load_state_dict(read_tensors(file, self._learner.state_dict(), "config.yaml"))
            self._ema.updates = state["averaged"]

    @property
    def is_main(self) -> bool:
        """True in the process that validates, writes and reports."""
        return self.fabric.is_global_zero

    @property
    def driver(self) -> Driver:
        """Return the driver that is validated and saved.

        It is the learner, or the moving average of its weights.
        """
        return self._learner if self._ema is None else self._ema.module

    def best(self) -> Path:
        """Return the best checkpoint's folder, when all processes are done."""
        self.fabric.barrier()
        best = self.run.checkpoint_folder("best")
        assert best is not None
        return best

    def unfinished(self, steps: range) -> Iterator[int]:
        """Yield the numbers of unfinished steps."""
        return (number for number in steps if self.done is None or number > self.done)

    def finish(self, name: str, number: int, row: dict[str, Any]) -> None:
        """Log the row of a step and save its checkpoint.

        The main process does so.

        Args:
            name: The kind of the step: epoch or round.
            number: Its number.
            row: Its metrics.
        """
        self.done = number
        if not self.is_main:
            return
        row = {"step": number, **row}
        self.run.finish_step(row, partial(self._write, number, {name: number}))
        self.progress(message(f"{name} {number}", row_note(row)))

    def set_rate(self, rate: float) -> None:
        """Set Adam's rate from now on."""
        set_rate(self._optimizer, rate)

    def epoch(
        self, data: TrainingData, number: int, progress: Progress, rate: Callable[[float], float] | None = None
    ) -> dict[str, float]:
        """Train for one epoch. All random numbers are drawn from (seed, number), so that a resumed run does the same.

        Args:
            data: The training data.
            number: The number of the epoch.
            progress: Called after every batch with the loss so far.
            rate: Adam's rate after so many epochs, a part of this one among them; None: as it is.

        Returns:
            loss, frames, samples_per_second, memory_mb (see `peak_memory_mb`) and, for discrete actions, the accuracy.

        Raises:
            DivergedError: If a loss is not finite, or a weight at the end of the epoch.
        """
        config, started = self.plan.config.data, time.perf_counter()
        rng = np.random.default_rng((self.plan.config.seed, number))
        torch.manual_seed(int(rng.integers(2**31)))
        starts = data.starts(rng)
        batches = np.split(starts, range(config.batch_size, len(starts), config.batch_size))
        # Augmentation draws along the whole batch, so each of several processes repeats it before it takes its rows.
        rows = [own_rows(len(batch), self.fabric) for batch in batches]
        read = batches if config.augment else [batch[own] for batch, own in zip(batches, rows, strict=True)]
        self._model.train()
        total, correct, seen, classified = 0.0, 0.0, 0, False
        for done, (batch, own, loaded, stored) in enumerate(
            zip(batches, rows, read, data.read_ahead(read), strict=True)
        ):
            flip = rng.random(len(batch)) < 0.5 if config.horizontal_flip else np.zeros(len(batch), dtype=bool)
            sequences = data.sequences(loaded, flip if config.augment else flip[own], stored)
            if config.shift:
                pixels = rng.integers(-config.shift, config.shift + 1, len(batch))
                sequences.move(pixels if config.augment else pixels[own], config.shift_steering, data.env.spec)
            if config.augment:
                bar_top = data.env.spec.bar_top
                sequences = augmented(sequences, config.augment, rng, bar_top=bar_top, black=data.black)
                sequences = sequences.take(own) if self.fabric.world_size > 1 else sequences
            frames, labels = sequences.frames, sequences.labels  # (B, T, 96, 96, 3), (B, T) or (B, T, K)
            decide = self._model.decide if data.frozen else self._model
            prediction, _ = decide(frames, sequences.dt)
            driver = self._model.module
            head = driver.action_head
            part = head.loss(head.relative(prediction.float()), head.relative(labels), sequences.weight)
            classified = labels.ndim == 2
            right = sequences.mean(prediction.argmax(-1) == labels) if classified else torch.zeros_like(part)
            part, loss, right = of_the_batch(part, right, sequences, len(batch), self.fabric)
            self._optimizer.zero_grad()
            self.fabric.backward(part + driver.core.penalty())
            if (norm := self.plan.config.optim.max_grad_norm) is not None:
                self.fabric.clip_gradients(self._model, self._optimizer, max_norm=norm, error_if_nonfinite=False)
            if rate is not None:
                self.set_rate(rate(number - 1 + done / len(batches)))
            self._optimizer.step()
            driver.core.after_step()
            if self._ema is not None and self.is_main:
                self._ema.update(self._learner)
            value, fraction = torch.stack((loss.detach(), right)).tolist()  # the one wait for the device
            require_finite_number(f"the loss of batch {done + 1} in epoch {number}", value)
            total += value * len(batch)
            seen += len(batch)
            correct += fraction * len(batch)
            progress(Event(f"epoch {number}", done + 1, len(batches), f"loss {total / seen:.3f}"))
        for driver in {self._learner, self.driver}:
            require_finite_weights(f"epoch {number}", driver.state_dict().items())
        frames_seen = seen * data.length
        metrics = {
            "loss": total / seen, "frames": frames_seen,
            "samples_per_second": round(frames_seen / (time.perf_counter() - started), 1),
            "memory_mb": peak_memory_mb(data.device),
        }  # fmt: skip
        return metrics | ({"accuracy": correct / seen} if classified else {})

    def validate(self) -> dict[str, Any]:
        """Let the driver drive the validation tracks.

        Return keys of a row, see `closed_loop`.
        """
        self.driver.eval()
        return closed_loop(self.driver, self.plan.env, self.plan.config.validation.tracks, self.pool, self.progress)

    def _write(self, step: int, meta: dict[str, Any], path: Path) -> None:
        save_driver(path, self.driver, env=asdict(self.plan.env), meta={**meta, "training": self.run.config})
        state = {"step": step}
        if self._ema is not None:
            state["averaged"] = self._ema.updates
        save_training_state(path / "training_state", self._optimizer, state)
        if self._ema is not None:
            save_file(saved_tensors(self._learner.state_dict()), path / "training_state" / _LEARNER)


def build_learner(plan: TrainingPlan[Any]) -> Driver:
    """Make a driver with its first weights.

    They are drawn from the seed, then taken from the drivers that the plan names.

    Raises:
        ValueError: If no such driver can be built, or weights to start from do not fit it.
    """
    torch.manual_seed(plan.config.seed)
    learner = Driver(plan.config.driver)
    if source := plan.sources.get("freeze_encoder_from"):
        _freeze_encoder(learner, source)
    if start := plan.sources.get("init_from"):
        _take_weights(learner, start, source is not None)
    return learner


def _take_weights(learner: Driver, driver: Driver, encoder_is_frozen: bool) -> None:
    """Start from the weights of `driver`.

    Another core keeps its random weights, with a warning, and a frozen encoder its own; the residual path need not be
    the same.

    Raises:
        ValueError: `driver` has another encoder or action head.
    """
    mine, other = learner.config, driver.config
    may_differ = ["core", "core_args", "residual", "dropout"]
    if same_actions(mine.control, other.control):
        may_differ.append("control")
    same = {name: getattr(mine, name) for name in may_differ}
    if replace(other, **same) != mine:
        there, here = asdict(replace(other, **same)), asdict(mine)
        differing = ", ".join(
            f"{name} {there[name]!r} (here {here[name]!r})" for name in here if there[name] != here[name]
        )
        raise ValueError(
            f"init_from must name a driver of the same encoder and action head, got one of {differing}; pass the "
            "options that it was trained with."
        )
    kept: tuple[str, ...] = ("encoder.",) if encoder_is_frozen else ()
    there: Any = other.core
    here: Any = mine.core
    if there == here:
        differing = CORES[here].differences(other.core_args, mine.core_args)
        there, here = (
            {name: args.get(name, "the default") for name in differing} for args in (other.core_args, mine.core_args)
        )
    if there != here:
        kept += ("core.",)
        warnings.warn(
            f"init_from: the core begins with random weights, as it differs: {there} there, {here} here; "
            "pass core and core_args of init_from to go on from its core.",
            stacklevel=2,
        )
    own = {name: tensor for name, tensor in learner.state_dict().items() if name.startswith(kept)}
    weights = {name: tensor for name, tensor in driver.state_dict().items() if not name.startswith(kept)}
    learner.load_state_dict(weights | own)


def _freeze_encoder(learner: Driver, driver: Driver) -> None:
    """Take over the encoder of `driver` and freeze it.

    `epoch` then trains on features.
    """
    mine, other = learner.config, driver.config
    of_encoder = attrgetter("encoder", "encoder_features", "frame_shape")
    if of_encoder(mine) != of_encoder(other):
        raise ValueError(
            f"freeze_encoder_from must name a driver of the same encoder, got {other}, training {mine}; "
            "pass the options that it was trained with."
        )
    learner.encoder.load_state_dict(driver.encoder.state_dict())
    learner.encoder.requires_grad_(False)


def row_note(row: dict[str, Any]) -> str:
    """Return a row of metrics.jsonl as one line."""
    parts = [f"{row['frames']} frames", f"loss {row['loss']:.3f}", f"{row['samples_per_second']:.0f} frames/s"]
    if row.get("validation"):
        parts.append(f"validation {100 * row['validation']['accuracy']:.1f} %")
    parts += [f"{name} {100 * row[name]:.1f} %" for name in ("agreement", "corrected") if name in row]
    if "returns" in row:
        parts.append(returns_note(row))
    return ", ".join(parts)
