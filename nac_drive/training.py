"""Training a driver from labelled frames: what cloning and DAgger have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from data_collection.drivers import resolve_driver
from data_collection.processes import Pool
from data_collection.run_folder import RunFolder, load_training_state, save_training_state
from envs import EnvConfig, track_seeds
from nac_drive.evaluation import evaluate
from nac_drive.training_config import TrainingConfig
from nac_drive.training_data import TrainingData, augmented
from policies import Driver, DriverConfig, load_driver, save_driver
from policies.heads import VisionHead

Report = Callable[[dict[str, Any]], None]

_LEARNER = "learner.safetensors"


class Trainer:
    """A driver that is trained step by step in a run folder. A step ends with `finish`, and a killed run goes on there.

    device: `auto`, `cpu` or `cuda`. Raises ValueError for one that is not there, for a driver that cannot be built and
    for a frozen vision head of another make.
    """

    def __init__(self, config: TrainingConfig, env: EnvConfig, device: str):
        self.config, self.env = config, env
        self.fabric = _fabric(device, config.precision)
        torch.manual_seed(config.seed)
        self._average: AveragedModel | None = None
        self._learner = Driver(
            DriverConfig(
                core=config.core, core_args=config.core_args, vision=config.vision, residual=config.residual,
                dropout=config.dropout, control=env.control,
            )
        )  # fmt: skip
        if config.frozen:
            self._freeze_vision(cloned_driver("frozen", config.frozen, env))
        self._optimizer = torch.optim.Adam(self._learner.parameters(), config.learning_rate)

    @property
    def driver(self) -> Driver:
        """What drives, is validated and is kept: the driver that learns, or the moving average of its weights."""
        return self._learner if self._average is None else self._average.module  # type: ignore[return-value]

    def start_from(self, driver: Driver) -> None:
        """Begin with the weights of `driver` instead of random ones; a core of another make begins anew, a frozen
        vision head stays, and with or without a residual path is no matter.

        Raises ValueError for another vision or action head.
        """
        mine, other = self._learner.config, driver.config
        same = {name: getattr(mine, name) for name in ("core", "core_args", "residual", "dropout")}
        if replace(other, **same) != mine:
            raise ValueError(
                f"init must name a driver of the same vision and action head, got {other}, training {mine}; "
                "pass the options that it was trained with."
            )
        kept: tuple[str, ...] = ("vision.",) if self.config.frozen else ()
        if (other.core, other.core_args) != (mine.core, mine.core_args):
            kept += ("core.",)
        own = {name: tensor for name, tensor in self._learner.state_dict().items() if name.startswith(kept)}
        weights = {name: tensor for name, tensor in driver.state_dict().items() if not name.startswith(kept)}
        self._learner.load_state_dict(weights | own)

    def _freeze_vision(self, driver: Driver) -> None:
        """Take the vision head of `driver`, which then learns no more: `epoch` goes through features."""
        mine, other = self._learner.config, driver.config
        if (mine.vision, mine.d_model, mine.frame_shape) != (other.vision, other.d_model, other.frame_shape):
            raise ValueError(
                f"frozen must name a driver of the same vision head, got {other}, training {mine}; "
                "pass the options that it was trained with."
            )
        self._learner.vision.load_state_dict(driver.vision.state_dict())
        self._learner.vision.requires_grad_(False)

    def open(self, folder: Path, resolved: dict[str, Any], *, resume: bool, moved: Sequence[str] = ()) -> int | None:
        """Create the run, or go on from its last checkpoint; returns the step of that, None without one.

        resolved: the whole config, equal to that of the run on disk but for the keys `moved`.
        Raises what `RunFolder` raises.
        """
        if resume:
            self.run = RunFolder.open(folder)
            self.run.require_config({**resolved, **{key: self.run.config.get(key) for key in moved}})
        else:
            self.run = RunFolder.create(folder, resolved)
        self._resolved = resolved
        self._model, self._optimizer = self.fabric.setup(self._learner, self._optimizer)
        self._model.mark_forward_method("decide")
        if self.config.average:
            self._average = AveragedModel(self._learner, avg_fn=partial(_moving_average, self.config.average))
        done = None
        if last := self.run.checkpoint_folder("last"):
            self.driver.load_state_dict(load_driver(last).state_dict())
            state = load_training_state(last / "training_state", self._optimizer)
            done = state["step"]
            if self._average is not None:
                self._learner.load_state_dict(load_file(last / "training_state" / _LEARNER))
                self._average.n_averaged.fill_(state["averaged"])
        if resume:
            self.run.drop_rows_after(-1 if done is None else done)
            if last and self.run.last_row_is_best():  # killed between the checkpoint and its mark
                self.run.mark_best(last)
        self._writer = _tensorboard(folder) if self.config.tensorboard else None
        return done

    def set_rate(self, rate: float) -> None:
        """Adam's rate from now on."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def epoch(self, data: TrainingData, number: int, report: Report) -> dict[str, float]:
        """One pass over `data`. All chance in it comes from (seed, number), so that a resumed run repeats it.

        report: gets dicts with epoch, batch, batches and the loss so far.  Returns loss, frames and, for five actions,
        the accuracy.
        """
        config = self.config
        rng = np.random.default_rng((config.seed, number))
        torch.manual_seed(int(rng.integers(2**31)))
        starts = data.starts(rng)
        batches = np.split(starts, range(config.batch_size, len(starts), config.batch_size))
        self._model.train()
        total, correct, seen, classified = 0.0, 0.0, 0, False
        for done, batch in enumerate(batches):
            mirror = rng.random(len(batch)) < 0.5 if config.mirror else np.zeros(len(batch), dtype=bool)
            sequences = data.sequences(batch, mirror)
            frames, labels = sequences.frames, sequences.labels  # (B, T, 96, 96, 3), (B, T) or (B, T, 3)
            if config.augment:
                frames = augmented(frames, config.augment, rng)
            decide = self._model.decide if self.config.frozen else self._model
            prediction, _ = decide(frames, sequences.dt)
            classes = {} if data.classes is None else {"classes": data.classes}
            driver = self._model.module
            loss = driver.head.loss(prediction.float(), labels, sequences.weight, **classes)
            self._optimizer.zero_grad()
            self.fabric.backward(loss + driver.core.penalty())
            self._optimizer.step()
            if self._average is not None:
                self._average.update_parameters(self._learner)
            total += loss.item() * len(batch)
            seen += len(batch)
            classified = labels.ndim == 2
            if classified:
                correct += (prediction.argmax(-1) == labels).float().mean().item() * len(batch)
            report({"epoch": number, "batch": done + 1, "batches": len(batches), "loss": total / seen})
        figures = {"loss": total / seen, "frames": seen * data.window}
        return figures | ({"accuracy": correct / seen} if classified else {})

    def validate(self, pool: Pool | None) -> dict[str, Any]:
        """The keys of a row that a closed-loop validation gives; `score` picks the best checkpoint."""
        self.driver.eval()
        return closed_loop(self.driver, self.env, self.config, pool)

    def finish(self, row: dict[str, Any], **meta: Any) -> None:
        """Log the row of a step and keep its checkpoint, `meta` in the driver's folder."""

        def write(path: Path) -> None:
            save_driver(path, self.driver, env=asdict(self.env), meta={**meta, "training": self._resolved})
            state = {"step": row["step"]}
            if self._average is not None:
                state["averaged"] = int(self._average.n_averaged)
            save_training_state(path / "training_state", self._optimizer, state)
            if self._average is not None:
                weights = {name: tensor.cpu().contiguous() for name, tensor in self._learner.state_dict().items()}
                save_file(weights, path / "training_state" / _LEARNER)

        self.run.log(row)  # before the checkpoint: a row without one is repeated, a checkpoint without its row is not
        checkpoint = self.run.checkpoint(row["step"], write)
        if self.run.last_row_is_best():
            self.run.mark_best(checkpoint)
        if self._writer:
            _write_scalars(self._writer, row)

    @property
    def best(self) -> Path:
        """The folder of the best checkpoint."""
        best = self.run.checkpoint_folder("best")
        assert best is not None
        return best


def _moving_average(decay: float, average: Tensor, weight: Tensor, updates: Tensor | int) -> Tensor:
    """Over the last tenth of the updates at first, so that random weights are soon forgotten; `decay` bounds it."""
    share = min(decay, (1 + float(updates)) / (10 + float(updates)))
    return average + (1 - share) * (weight - average)


def closed_loop(driver: Driver, env: EnvConfig, config: TrainingConfig, pool: Pool | None) -> dict[str, Any]:
    """Score, returns, completion and crashes of `driver` on the validation tracks."""
    seeds = track_seeds(config.validation_tracks)
    evaluation = evaluate(on_cpu(driver), seeds, name=config.core, env=env, renderer=env.renderer, pool=pool)
    returns = [row.episode_return for row in evaluation.rows]
    return {
        "score": float(np.mean(returns) - 0.5 * np.std(returns)),
        "returns": returns,
        "return_mean": evaluation.summary.return_mean,
        "completion": evaluation.summary.completion,
        "crashes_per_lap": evaluation.summary.crashes_per_lap,
    }


def cloned_driver(option: str, spec: str, env: EnvConfig) -> Driver:
    """The network that `spec` names, see `resolve_driver`; `option` is who asks. ValueError for the controller."""
    driver = resolve_driver(spec, env)
    if not isinstance(driver, Driver):
        raise ValueError(
            f"{option} must name a cloned driver, got {spec!r}; pass the folder of a run of train or dagger."
        )
    return driver


def frozen_vision(config: TrainingConfig, env: EnvConfig, device: torch.device) -> VisionHead | None:
    """The vision head that `config` freezes, if any, on `device`. ValueError where that is no cloned driver's."""
    return cloned_driver("frozen", config.frozen, env).vision.to(device).eval() if config.frozen else None


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
