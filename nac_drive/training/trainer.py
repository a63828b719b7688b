"""Training a driver from labelled frames: what cloning and DAgger have in common."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from nac_drive.data_collection.experts import resolve_driver
from nac_drive.data_collection.processes import Pool
from nac_drive.envs import EnvConfig, track_seeds
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.evaluation.metrics import EpisodeResult
from nac_drive.policies import Driver, load_driver, save_driver
from nac_drive.training.config import CloningConfig, OptimConfig
from nac_drive.training.data import TrainingData, augmented
from nac_drive.training.run_folder import RunFolder, load_training_state, save_training_state

Report = Callable[[dict[str, Any]], None]

_LEARNER = "learner.safetensors"


class Trainer:
    """A driver that is trained step by step in a run folder. Every step ends with a row and a checkpoint, and a killed
    run goes on there.

    Made by `create` or `resume`, which raise ValueError for a device that is not there, for a driver that cannot be
    built, for an encoder to be frozen and for initial weights of another make.
    """

    def __init__(self, run: RunFolder, learner: Driver, config: CloningConfig, env: EnvConfig, fabric: Fabric):
        self.run, self.config, self.env, self.fabric = run, config, env, fabric
        self.done: int | None = None
        """The last step that is finished."""
        self._learner = learner
        optimizer = torch.optim.Adam(learner.parameters(), config.optim.learning_rate)
        self._model, self._optimizer = fabric.setup(learner, optimizer)
        self._model.mark_forward_method("decide")
        self._ema: AveragedModel | None = None
        if config.optim.ema_decay:
            self._ema = AveragedModel(learner, avg_fn=partial(_moving_average, config.optim.ema_decay))
        self._writer = _tensorboard(run.path) if config.tensorboard else None

    @classmethod
    def create(
        cls, config: CloningConfig, env: EnvConfig, device: str, folder: Path, resolved: dict[str, Any]
    ) -> Trainer:
        """Start a new run in `folder`; `resolved` is its whole config. Raises FileExistsError for an existing one."""
        fabric, learner = _fabric(device, config.optim.precision), build_learner(config, env)
        return cls(RunFolder.create(folder, resolved), learner, config, env, fabric)

    @classmethod
    def resume(
        cls,
        config: CloningConfig,
        env: EnvConfig,
        device: str,
        folder: Path,
        resolved: dict[str, Any],
        *,
        moved: Sequence[str] = (),
        grown: Sequence[str] = (),
    ) -> Trainer:
        """Go on with the run in `folder` from its last checkpoint.

        `resolved` must be the config of the run on disk but for the keys `moved` and for larger numbers of the keys
        `grown`. Raises FileNotFoundError where there is no run, and ValueError for another config.
        """
        fabric, learner = _fabric(device, config.optim.precision), build_learner(config, env)
        run = RunFolder.open(folder)
        run.require_config(resolved, moved=moved, grown=grown)
        trainer = cls(run, learner, config, env, fabric)
        last = run.checkpoint_folder("last")
        if last:
            trainer._load(last)
        run.drop_rows_after(-1 if trainer.done is None else trainer.done)
        if last and run.last_row_is_best():  # killed between the checkpoint and its mark
            run.mark_best(last)
        return trainer

    def _load(self, checkpoint: Path) -> None:
        self.driver.load_state_dict(load_driver(checkpoint).state_dict())
        state = load_training_state(checkpoint / "training_state", self._optimizer)
        self.done = state["step"]
        if self._ema is not None:
            self._learner.load_state_dict(load_file(checkpoint / "training_state" / _LEARNER))
            self._ema.n_averaged.fill_(state["averaged"])

    @property
    def driver(self) -> Driver:
        """The driver that is validated and kept: the learner, or the moving average of its weights."""
        return self._learner if self._ema is None else self._ema.module  # type: ignore[return-value]

    @property
    def best(self) -> Path:
        """The folder of the best checkpoint."""
        best = self.run.checkpoint_folder("best")
        assert best is not None
        return best

    def fit(self, steps: range, step: Callable[[int], dict[str, Any]], name: str, report: Report) -> Path:
        """Take the steps that are not finished yet; returns the folder of the best checkpoint.

        Args:
            steps: Numbers of all steps.
            step: Trains and validates; returns the row of a step.
            name: The key of the step's number in the checkpoint's meta, such as epoch.
            report: Called with each row.
        """
        for number in steps:
            if self.done is not None and number <= self.done:
                continue
            row = {"step": number, **step(number)}
            self._finish(row, {name: number})
            report(row)
        return self.best

    def set_rate(self, rate: float) -> None:
        """Set Adam's rate from now on."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def epoch(self, data: TrainingData, number: int, report: Report) -> dict[str, float]:
        """Train for one epoch on `data`. All chance in it comes from (seed, number), so that a resumed run repeats it.

        Args:
            data: The training data.
            number: The number of the epoch.
            report: Called with dicts of epoch, batch, batches and the loss so far.

        Returns:
            loss, frames and, for discrete actions, the accuracy.
        """
        config = self.config.data
        rng = np.random.default_rng((self.config.seed, number))
        torch.manual_seed(int(rng.integers(2**31)))
        starts = data.starts(rng)
        batches = np.split(starts, range(config.batch_size, len(starts), config.batch_size))
        self._model.train()
        total, correct, seen, classified = 0.0, 0.0, 0, False
        for done, batch in enumerate(batches):
            flip = rng.random(len(batch)) < 0.5 if config.horizontal_flip else np.zeros(len(batch), dtype=bool)
            sequences = data.sequences(batch, flip)
            frames, labels = sequences.frames, sequences.labels  # (B, T, 96, 96, 3), (B, T) or (B, T, 3)
            if config.augment:
                frames = augmented(frames, config.augment, rng)
            decide = self._model.decide if self.config.optim.freeze_encoder_from else self._model
            prediction, _ = decide(frames, sequences.dt)
            classes = {} if data.classes is None else {"classes": data.classes}
            driver = self._model.module
            loss = driver.action_head.loss(prediction.float(), labels, sequences.weight, **classes)
            self._optimizer.zero_grad()
            self.fabric.backward(loss + driver.core.penalty())
            self._optimizer.step()
            if self._ema is not None:
                self._ema.update_parameters(self._learner)
            total += loss.item() * len(batch)
            seen += len(batch)
            classified = labels.ndim == 2
            if classified:
                correct += (prediction.argmax(-1) == labels).float().mean().item() * len(batch)
            report({"epoch": number, "batch": done + 1, "batches": len(batches), "loss": total / seen})
        metrics = {"loss": total / seen, "frames": seen * data.length}
        return metrics | ({"accuracy": correct / seen} if classified else {})

    def validate(self, pool: Pool | None, report: Report) -> dict[str, Any]:
        """Drive the validation tracks; returns keys of a row, of which `score` picks the best checkpoint."""
        self.driver.eval()
        return closed_loop(self.driver, self.env, self.config, pool, report)

    def _finish(self, row: dict[str, Any], meta: dict[str, Any]) -> None:
        """Log the row of a step and keep its checkpoint, `meta` in the driver's folder."""
        self.run.log(row)  # before the checkpoint: a row without one is repeated, a checkpoint without its row is not
        checkpoint = self.run.checkpoint(row["step"], partial(self._write, row["step"], meta))
        if self.run.last_row_is_best():
            self.run.mark_best(checkpoint)
        if self._writer:
            _write_scalars(self._writer, row)
        self.done = row["step"]

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
    """A driver with its first weights: drawn from the seed, then those of `init_from` and `freeze_encoder_from`."""
    torch.manual_seed(config.seed)
    learner = Driver(replace(config.driver, control=env.control))
    optim = config.optim
    if optim.freeze_encoder_from:
        _freeze_encoder(learner, cloned_driver("freeze_encoder_from", optim.freeze_encoder_from, env))
    if optim.init_from:
        _take_weights(learner, cloned_driver("init_from", optim.init_from, env), bool(optim.freeze_encoder_from))
    return learner


def _take_weights(learner: Driver, driver: Driver, encoder_is_frozen: bool) -> None:
    """Begin with the weights of `driver`; a core of another make begins anew, a frozen encoder stays, and with or
    without a residual path is no matter. Raises ValueError for another encoder or action head."""
    mine, other = learner.config, driver.config
    same = {name: getattr(mine, name) for name in ("core", "core_args", "residual", "dropout")}
    if replace(other, **same) != mine:
        raise ValueError(
            f"init_from must name a driver of the same encoder and action head, got {other}, training {mine}; "
            "pass the options that it was trained with."
        )
    kept: tuple[str, ...] = ("encoder.",) if encoder_is_frozen else ()
    if (other.core, other.core_args) != (mine.core, mine.core_args):
        kept += ("core.",)
    own = {name: tensor for name, tensor in learner.state_dict().items() if name.startswith(kept)}
    weights = {name: tensor for name, tensor in driver.state_dict().items() if not name.startswith(kept)}
    learner.load_state_dict(weights | own)


def _freeze_encoder(learner: Driver, driver: Driver) -> None:
    """Take the encoder of `driver`, which then learns no more: `epoch` goes through features."""
    mine, other = learner.config, driver.config
    if (mine.encoder, mine.d_model, mine.frame_shape) != (other.encoder, other.d_model, other.frame_shape):
        raise ValueError(
            f"freeze_encoder_from must name a driver of the same encoder, got {other}, training {mine}; "
            "pass the options that it was trained with."
        )
    learner.encoder.load_state_dict(driver.encoder.state_dict())
    learner.encoder.requires_grad_(False)


def _moving_average(decay: float, average: Tensor, weight: Tensor, updates: Tensor | int) -> Tensor:
    """Over the last tenth of the updates at first, so that random weights are soon forgotten; `decay` bounds it."""
    weight_of_old = min(decay, (1 + float(updates)) / (10 + float(updates)))
    return average + (1 - weight_of_old) * (weight - average)


def closed_loop(
    driver: Driver, env: EnvConfig, config: CloningConfig, pool: Pool | None, report: Report
) -> dict[str, Any]:
    """Score, returns, completion and crashes of `driver` on the validation tracks; reports every episode."""
    seeds, done = track_seeds(config.validation.validation_tracks), itertools.count(1)

    def on_episode(row: EpisodeResult) -> None:
        report({"validation_episode": next(done), "validation_episodes": len(seeds), "return": row.episode_return})

    evaluation = evaluate(
        on_cpu(driver), seeds, name=config.driver.core, env=env, renderer=env.renderer, pool=pool,
        on_episode=on_episode,
    )  # fmt: skip
    returns = [row.episode_return for row in evaluation.rows]
    return {
        "score": validation_score(returns),
        "returns": returns,
        "return_mean": evaluation.summary.return_mean,
        "completion": evaluation.summary.completion,
        "crashes_per_episode": evaluation.summary.crashes_per_episode,
    }


def validation_score(returns: Sequence[float]) -> float:
    """mean - 0.5 sd: what picks the best checkpoint of every training."""
    return float(np.mean(returns) - 0.5 * np.std(returns))


def cloned_driver(option: str, spec: str, env: EnvConfig) -> Driver:
    """The network that `spec` names, see `resolve_driver`; `option` is who asks. ValueError for the controller."""
    driver = resolve_driver(spec, env)
    if not isinstance(driver, Driver):
        raise ValueError(
            f"{option} must name a cloned driver, got {spec!r}; pass the folder of a run of train or dagger."
        )
    return driver


def frozen_encoder(config: OptimConfig, env: EnvConfig, device: torch.device) -> nn.Module | None:
    """The encoder that `config` freezes, if any, on `device`. ValueError where that is no cloned driver's."""
    if not config.freeze_encoder_from:
        return None
    return cloned_driver("freeze_encoder_from", config.freeze_encoder_from, env).encoder.to(device).eval()


def choose_device(device: str) -> torch.device:
    """The device that `auto`, `cpu` or `cuda` means. ValueError for another name, and for cuda without a GPU."""
    return _fabric(device, "32-true").device


def on_cpu(driver: Driver) -> Driver:
    """A copy for the worker processes, free of the trainer's hooks."""
    copy = Driver(driver.config)
    copy.load_state_dict({name: tensor.cpu() for name, tensor in driver.state_dict().items()})
    return copy.eval()


def _fabric(device: str, precision: str) -> Fabric:
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, got {device!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch sees no GPU here; pass --device cpu or auto.")
    accelerator = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    if precision == "auto":
        precision = "bf16-mixed" if accelerator == "cuda" else "32-true"
    return Fabric(accelerator=accelerator, devices=1, precision=precision)  # type: ignore[arg-type]


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
