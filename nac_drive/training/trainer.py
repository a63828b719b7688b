"""Training a driver from labelled frames: the loop of `train` and `dagger`."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

from nac_drive.data_collection.drivers import driver_hash, require_environment, require_view, resolve_driver
from nac_drive.envs import EnvConfig, same_actions
from nac_drive.events import Event, Progress, message
from nac_drive.parallel.processes import Pool
from nac_drive.policies import Driver, load_driver, save_driver
from nac_drive.policies.cores.registry import CORES
from nac_drive.policies.encoders import ZeroBlack
from nac_drive.policies.tensors import read_tensors
from nac_drive.training.config import CloningConfig, OptimConfig, for_env
from nac_drive.training.data.augmentation import augmented
from nac_drive.training.data.memory import peak_memory_mb
from nac_drive.training.data.sequences import TrainingData
from nac_drive.training.distributed import deaths_in_one_line, of_the_batch, own_rows
from nac_drive.training.finite import require_finite_number, require_finite_weights
from nac_drive.training.main_process import is_main_process
from nac_drive.training.moving_average import averaged
from nac_drive.training.optimizer import adam, set_rate
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.training_state import load_training_state, save_training_state
from nac_drive.training.validation import closed_loop, returns_note

if TYPE_CHECKING:  # slow to import: `build_fabric` does when a run starts
    from lightning_fabric import Fabric

MOVED = ("optim.init_from", "optim.freeze_encoder_from")
"""Keys of a config that may change on resume: drivers that moved, which `source_hashes` identify."""

_LEARNER = "learner.safetensors"


class Trainer:
    """A driver that is trained step by step in a run folder: an epoch of `train`, a round of `dagger`.

    Every step ends with a row of metrics and a checkpoint; an interrupted run goes on from there. `create` and `resume`
    make a trainer, `fit` takes the steps.
    """

    def __init__(self, run: RunFolder, learner: Driver, config: CloningConfig, env: EnvConfig, fabric: Fabric):
        self.run, self.config, self.env, self.fabric = run, config, env, fabric
        self.done: int | None = None
        """The last step that is finished."""
        self._learner = learner
        optimizer = adam(learner, config.optim.learning_rate, config.optim.encoder_learning_rate)
        self._model, self._optimizer = fabric.setup(learner, optimizer)
        self._model.mark_forward_method("decide")
        self._ema: AveragedModel | None = None
        if config.optim.ema_decay:
            self._ema = averaged(learner, config.optim.ema_decay)
        self._writer = _tensorboard(run.path) if config.tensorboard and self.is_main else None

    @classmethod
    def create(
        cls,
        learner: Driver,
        config: CloningConfig,
        env: EnvConfig,
        fabric: Fabric,
        folder: Path,
        resolved: dict[str, Any],
    ) -> Trainer:
        """Start a new run, and the other processes that train it: they run the command of this one from its start.

        Args:
            learner: The driver to train, of `build_learner`.
            config: Settings.
            env: The environment of the driver.
            fabric: The processes, see `build_fabric`.
            folder: The folder of the run.
            resolved: The whole config, for config.yaml.

        Returns:
            A trainer that has taken no step.

        Raises:
            FileExistsError: If the run exists.
        """
        if is_main_process():
            RunFolder.create(folder, resolved)
        fabric.launch()
        fabric.barrier()
        return cls(RunFolder.open(folder), learner, config, env, fabric)

    @classmethod
    def resume(
        cls,
        learner: Driver,
        config: CloningConfig,
        env: EnvConfig,
        fabric: Fabric,
        folder: Path,
        resolved: dict[str, Any],
        *,
        moved: Sequence[str] = (),
        grown: Sequence[str] = (),
    ) -> Trainer:
        """Go on with the run in `folder` from its last checkpoint.

        Args:
            learner: The driver to train, of `build_learner`.
            config: Settings.
            env: The environment of the driver.
            fabric: The processes, see `build_fabric`.
            folder: The folder of the run.
            resolved: The whole config; it must be that of the run but for `moved` and `grown`.
            moved: Keys that may differ, such as `dataset`.
            grown: Keys whose number may be larger than that of the run, such as `epochs`.

        Returns:
            A trainer that has taken the steps of the run.

        Raises:
            FileNotFoundError: If there is no run.
            ValueError: If the run has another config or was started by an older version.
        """
        run = RunFolder.open(folder)
        if is_main_process():
            run.require_config(resolved, moved=moved, grown=grown)
            run.rewind()
        fabric.launch()
        fabric.barrier()
        trainer = cls(run, learner, config, env, fabric)
        if last := run.checkpoint_folder("last"):
            trainer._load(last)
        fabric.barrier()
        if trainer.is_main:
            run.keep_config(resolved)  # only now: a run that cannot be read stays as it is
        return trainer

    def _load(self, checkpoint: Path) -> None:
        self.driver.load_state_dict(load_driver(checkpoint).state_dict())
        state = load_training_state(checkpoint / "training_state", self._optimizer)
        self.done = state["step"]
        if self._ema is not None:
            file = checkpoint / "training_state" / _LEARNER
            self._learner.load_state_dict(read_tensors(file, self._learner.state_dict(), "config.yaml"))
            self._ema.n_averaged.fill_(state["averaged"])

    @property
    def is_main(self) -> bool:
        """True in the process that validates, writes and reports."""
        return self.fabric.is_global_zero

    @property
    def driver(self) -> Driver:
        """The driver that is validated and saved: the learner, or the moving average of its weights."""
        return self._learner if self._ema is None else self._ema.module  # type: ignore[return-value]

    @property
    def best(self) -> Path:
        """The folder of the best checkpoint."""
        best = self.run.checkpoint_folder("best")
        assert best is not None
        return best

    def fit(self, steps: range, step: Callable[[int], dict[str, Any]], name: str, progress: Progress) -> Path:
        """Take the steps that are not finished yet.

        Args:
            steps: Numbers of all steps.
            step: Trains and, in the main process, validates; returns the row of a step.
            name: The key of the step's number in the checkpoint's meta, such as epoch.
            progress: Called with a message on the row of each step.

        Returns:
            The folder of the best checkpoint.
        """
        for number in steps:
            if self.done is not None and number <= self.done:
                continue
            with deaths_in_one_line(self.fabric):
                row = {"step": number, **step(number)}
            self.done = number
            if not self.is_main:
                continue
            self.run.finish_step(row, partial(self._write, number, {name: number}))
            if self._writer:
                _write_scalars(self._writer, row)
            progress(message(f"{name} {number}", row_note(row)))
        self.fabric.barrier()
        return self.best

    def set_rate(self, rate: float) -> None:
        """Set Adam's rate from now on."""
        set_rate(self._optimizer, rate)

    def epoch(self, data: TrainingData, number: int, progress: Progress) -> dict[str, float]:
        """Train for one epoch. All random numbers are drawn from (seed, number), so that a resumed run does the same.

        Args:
            data: The training data.
            number: The number of the epoch.
            progress: Called after every batch with the loss so far.

        Returns:
            loss, frames, samples_per_second, memory_mb (see `peak_memory_mb`) and, for discrete actions, the accuracy.

        Raises:
            DivergedError: If a loss is not finite, or a weight at the end of the epoch.
        """
        config, started = self.config.data, time.perf_counter()
        rng = np.random.default_rng((self.config.seed, number))
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
            frames, labels = sequences.frames, sequences.labels  # (B, T, 96, 96, 3), (B, T) or (B, T, 3)
            decide = self._model.decide if self.config.optim.freeze_encoder_from else self._model
            prediction, _ = decide(frames, sequences.dt)
            classes = {} if data.classes is None else {"classes": data.classes}
            driver = self._model.module
            part = driver.action_head.loss(prediction.float(), labels, sequences.weight, **classes)
            classified = labels.ndim == 2
            right = sequences.mean(prediction.argmax(-1) == labels) if classified else torch.zeros_like(part)
            part, loss, right = of_the_batch(part, right, sequences, data.classes, len(batch), self.fabric)
            self._optimizer.zero_grad()
            self.fabric.backward(part + driver.core.penalty())
            self._optimizer.step()
            driver.core.after_step()
            if self._ema is not None and self.is_main:
                self._ema.update_parameters(self._learner)
            value = loss.item()
            require_finite_number(f"the loss of batch {done + 1} in epoch {number}", value)
            total += value * len(batch)
            seen += len(batch)
            correct += right.item() * len(batch)
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

    def validate(self, pool: Pool | None, progress: Progress) -> dict[str, Any]:
        """Let the driver drive the validation tracks; returns keys of a row, see `closed_loop`."""
        self.driver.eval()
        return closed_loop(self.driver, self.env, self.config.validation.validation_tracks, pool, progress)

    def _write(self, step: int, meta: dict[str, Any], path: Path) -> None:
        save_driver(path, self.driver, env=asdict(self.env), meta={**meta, "training": self.run.config})
        state = {"step": step}
        if self._ema is not None:
            state["averaged"] = int(self._ema.n_averaged)
        save_training_state(path / "training_state", self._optimizer, state)
        if self._ema is not None:
            weights = {name: tensor.cpu().contiguous() for name, tensor in self._learner.state_dict().items()}
            save_file(weights, path / "training_state" / _LEARNER)


def build_learner(config: CloningConfig, env: EnvConfig) -> Driver:
    """A driver with its first weights: drawn from the seed, then taken from `init_from` and `freeze_encoder_from`.

    Args:
        config: Settings.
        env: The environment of the driver, which decides the control.

    Raises:
        ValueError: If no such driver can be built, or weights to start from do not fit it.
    """
    torch.manual_seed(config.seed)
    learner = Driver(for_env(config.driver, env))
    optim = config.optim
    if optim.freeze_encoder_from:
        _freeze_encoder(learner, cloned_driver("freeze_encoder_from", optim.freeze_encoder_from, env))
    if optim.init_from:
        _take_weights(learner, cloned_driver("init_from", optim.init_from, env), bool(optim.freeze_encoder_from))
    return learner


def _take_weights(learner: Driver, driver: Driver, encoder_is_frozen: bool) -> None:
    """Start from the weights of `driver`.

    Another core keeps its random weights, and a frozen encoder its own; the residual path need not be the same.

    Raises:
        ValueError: `driver` has another encoder or action head.
    """
    mine, other = learner.config, driver.config
    may_differ = ["core", "core_args", "residual", "dropout"]
    if same_actions(mine.control, other.control):
        may_differ.append("control")
    same = {name: getattr(mine, name) for name in may_differ}
    if replace(other, **same) != mine:
        raise ValueError(
            f"init_from must name a driver of the same encoder and action head, got {other}, training {mine}; "
            "pass the options that it was trained with."
        )
    kept: tuple[str, ...] = ("encoder.",) if encoder_is_frozen else ()
    if other.core != mine.core:
        kept += ("core.",)
    elif differing := CORES[mine.core].differences(other.core_args, mine.core_args):
        kept += ("core.",)
        there = {name: other.core_args.get(name, "the default") for name in differing}
        here = {name: mine.core_args.get(name, "the default") for name in differing}
        warnings.warn(
            f"init_from: the core begins with random weights, as its core_args differ: {there} there, {here} here; "
            "pass the core_args of init_from to go on from its core.",
            stacklevel=2,
        )
    own = {name: tensor for name, tensor in learner.state_dict().items() if name.startswith(kept)}
    weights = {name: tensor for name, tensor in driver.state_dict().items() if not name.startswith(kept)}
    learner.load_state_dict(weights | own)


def _freeze_encoder(learner: Driver, driver: Driver) -> None:
    """Take over the encoder of `driver` and freeze it: `epoch` then trains on features."""
    mine, other = learner.config, driver.config
    of_encoder = attrgetter("encoder", "encoder_features", "frame_shape")
    if of_encoder(mine) != of_encoder(other):
        raise ValueError(
            f"freeze_encoder_from must name a driver of the same encoder, got {other}, training {mine}; "
            "pass the options that it was trained with."
        )
    learner.encoder.load_state_dict(driver.encoder.state_dict())
    learner.encoder.requires_grad_(False)


def cloned_driver(option: str, spec: str | os.PathLike[str], env: EnvConfig) -> Driver:
    """The network that `spec` names, see `resolve_driver`.

    Args:
        option: The name of the setting that holds `spec`, for the error.
        spec: A shipped driver's name, or the folder of a driver or run.
        env: The environment of the driver.

    Raises:
        ValueError: If `spec` names the controller, or a driver that was trained in another environment.
    """
    driver = resolve_driver(spec, env)
    if not isinstance(driver, Driver):
        raise ValueError(
            f"{option} must name a cloned driver, got {spec!r}; pass the folder of a run of train or dagger."
        )
    require_environment(f"{option} {os.fspath(spec)!r}", driver, env)
    require_view(f"{option} {os.fspath(spec)!r}", driver, env)
    return driver


def frozen_encoder(config: CloningConfig, env: EnvConfig, device: torch.device) -> nn.Module | None:
    """Return the encoder that `config` freezes, on `device`; None without one.

    Raises:
        ValueError: The config names the controller.
    """
    if not (source := config.optim.freeze_encoder_from):
        return None
    encoder = cloned_driver("freeze_encoder_from", source, env).encoder.to(device).eval()
    return ZeroBlack(encoder) if config.driver.zero_lost_frames else encoder


def source_hashes(config: OptimConfig, env: EnvConfig) -> dict[str, str]:
    """init_sha256 and freeze_encoder_sha256 of the drivers that `config` names, for the config of a run."""
    sources = {"init_sha256": config.init_from, "freeze_encoder_sha256": config.freeze_encoder_from}
    return {name: driver_hash(source, env) for name, source in sources.items() if source}


def row_note(row: dict[str, Any]) -> str:
    """Return a row of metrics.jsonl as one line."""
    parts = [f"{row['frames']} frames", f"loss {row['loss']:.3f}", f"{row['samples_per_second']:.0f} frames/s"]
    if row.get("validation"):
        parts.append(f"validation {100 * row['validation']['accuracy']:.1f} %")
    parts += [f"{name} {100 * row[name]:.1f} %" for name in ("agreement", "corrected") if name in row]
    if "returns" in row:
        parts.append(returns_note(row))
    return ", ".join(parts)


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError("tensorboard is not installed; run `pip install nac-drive[tensorboard]`.") from error
    return SummaryWriter(str(folder / "tensorboard"))


def _write_scalars(writer: Any, row: dict[str, Any], prefix: str = "") -> None:
    for name, value in row.items():
        if isinstance(value, dict):
            _write_scalars(writer, {**value, "step": row["step"]}, f"{name}/")
        elif isinstance(value, int | float) and name != "step":
            writer.add_scalar(prefix + name, value, row["step"])
    writer.flush()
