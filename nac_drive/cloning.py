"""Behaviour cloning: a driver learns the expert's actions from windows of frames with their true time steps."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from data_collection.dataset import Demonstrations
from data_collection.frames import Frames
from data_collection.processes import Pool
from data_collection.run_folder import RunFolder, load_training_state, save_training_state
from envs import BAR_TOP, Augmentation, EnvConfig, track_seeds
from nac_drive.accuracy import Accuracy, measure_accuracy
from nac_drive.evaluation import evaluate
from policies import Driver, DriverConfig, load_driver, save_driver

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class CloneConfig:
    """Settings of `clone`."""

    core: str = "nac-exact"
    """Sequence model: a name in CORES."""
    core_args: dict[str, Any] = field(default_factory=dict)
    """Settings of that core."""
    window: int = 32
    """Frames per training sequence (T), at least 16; `cnn` alone may see single frames."""
    batch_size: int = 16
    """Sequences per update (B)."""
    epochs: int = 100
    """Passes over the demonstrations."""
    learning_rate: float = 1e-4
    """Adam's rate (the paper's)."""
    class_weights: bool = False
    """Weigh each of the five actions by its inverse frequency."""
    change_weight: float = 1.0
    """Weight of the frames where the expert's action changes."""
    mirror: bool = False
    """Show every other sequence mirrored left to right: tracks are driven counter-clockwise, so curves to the left
    outnumber those to the right."""
    augment: tuple[str, ...] = ()
    """Perturbations of pictures, such as gaussian-noise:1 shadows:2+colour:3: every sequence is shown under one of them
    or clean, all equally likely, with a draw of its own."""
    mask_bar: bool = False
    """Hide the status bar from the driver."""
    validation_share: float = 0.1
    """Share of the recorded tracks held out to measure accuracy."""
    validate_every: int = 10
    """Epochs between two closed-loop validations; the last epoch is always validated."""
    validation_tracks: str = "val-5"
    """Tracks of the closed-loop validation: the checkpoint with the best mean - 0.5 sd of returns is kept."""
    precision: str = "auto"
    """auto: bf16-mixed on a GPU, 32-true on a CPU; or a precision of lightning-fabric."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard too (needs the extra `tensorboard`)."""
    seed: int = 0
    """Seed of weights, order and dropout."""

    def __post_init__(self) -> None:
        shortest = 1 if self.core == "cnn" else 16
        for name, least in (("window", shortest), ("batch_size", 1), ("epochs", 1), ("validate_every", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least} for core {self.core!r}, got {getattr(self, name)}.")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}.")
        if not self.change_weight > 0:
            raise ValueError(f"change_weight must be positive, got {self.change_weight}; 1 weighs all frames alike.")
        track_seeds(self.validation_tracks)  # a bad name fails here, before epochs are spent
        Augmentation(self.augment)


def clone(
    config: CloneConfig,
    dataset: Demonstrations,
    folder: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    pool: Pool | None = None,
    report: Report = lambda row: None,
) -> Path:
    """Train a driver on `dataset` in the run folder `folder`; returns the folder of its best checkpoint.

    A row of metrics.jsonl per epoch: training loss and accuracy, accuracy on held-out tracks, and in some epochs the
    closed-loop returns. A checkpoint per epoch; `resume` goes on from the last one, on a CPU bit for bit as if never
    interrupted. device: `auto`, `cpu`, `cuda`.  pool: for the closed-loop validation, see `worker_pool`.  report: gets
    each row, and while an epoch runs dicts with the keys epoch, batch, batches and loss.

    Raises FileExistsError for an existing run without `resume`; ValueError for a device that is not there, a window
    that no episode fills, or other settings than the run was started with.
    """
    fabric = _fabric(device, config.precision)
    fingerprint = hashlib.sha256((dataset.path / "episodes.jsonl").read_bytes()).hexdigest()
    resolved = {**asdict(config), "dataset": str(dataset.path), "dataset_sha256": fingerprint}
    env = replace(dataset.meta.env, mask_bar=dataset.meta.env.mask_bar or config.mask_bar)
    train_seeds, held_out_seeds = dataset.split(config.validation_share, config.seed)
    data = _Data(dataset.load(train_seeds), env, config, fabric.device)
    held_out = dataset.load(held_out_seeds) if held_out_seeds else None

    torch.manual_seed(config.seed)
    driver = Driver(DriverConfig(core=config.core, core_args=config.core_args, control=env.control))
    optimizer = torch.optim.Adam(driver.parameters(), config.learning_rate)
    if resume:
        run = RunFolder.open(folder)
        run.require_config({**resolved, "dataset": run.config.get("dataset")})  # a moved dataset is still the same
    else:
        run = RunFolder.create(folder, resolved)
    model, optimizer = fabric.setup(driver, optimizer)
    done = 0
    if last := run.checkpoint_folder("last"):
        done = _restore(last, driver, optimizer)
    if resume:
        run.drop_rows_after(done)
        if last and run.last_row_is_best():  # killed between the checkpoint and its mark
            run.mark_best(last)
    writer = _tensorboard(run.path) if config.tensorboard else None

    for epoch in range(done + 1, config.epochs + 1):
        started = time.perf_counter()
        row = {"step": epoch, **_train_epoch(fabric, model, optimizer, data, config, epoch, report)}
        row["seconds"] = time.perf_counter() - started
        driver.eval()
        if held_out and not held_out.zooming.all():
            row["held_out"] = asdict(_held_out_accuracy(driver, held_out, env))
        if epoch % config.validate_every == 0 or epoch == config.epochs:
            row |= _closed_loop(driver, env, config, pool)

        def write(path: Path, epoch: int = epoch) -> None:
            save_driver(path, driver, env=asdict(env), meta={"epoch": epoch, "training": resolved})
            save_training_state(path / "training_state", optimizer, {"step": epoch})

        run.log(row)  # before the checkpoint: a row without one is repeated, a checkpoint without its row is not
        checkpoint = run.checkpoint(epoch, write)
        if run.last_row_is_best():
            run.mark_best(checkpoint)
        if writer:
            _write_scalars(writer, row)
        report(row)
    best = run.checkpoint_folder("best")
    assert best is not None
    return best


class _Data:
    """The training episodes on the device, and the windows that an epoch goes through."""

    def __init__(self, frames: Frames, env: EnvConfig, config: CloneConfig, device: torch.device):
        self.frames = torch.from_numpy(masked(frames.frames, env)).to(device)  # (N, 96, 96, 3) uint8
        self.labels = torch.from_numpy(frames.labels).to(device)  # (N,) or (N, 3)
        self.dt = torch.from_numpy(frames.dt).to(device)  # (N,)
        self.offsets = frames.offsets
        self.window = config.window
        if max(np.diff(frames.offsets)) < config.window:
            raise ValueError(
                f"window must not exceed the longest episode ({max(np.diff(frames.offsets))} frames), "
                f"got {config.window}; choose a shorter one."
            )
        changes = action_changes(frames.labels, frames.offsets)
        weight = np.where(changes, config.change_weight, 1.0).astype(np.float32)
        self.weight = torch.from_numpy(weight).to(device) if config.change_weight != 1 else None  # (N,)
        self.classes = None
        if config.class_weights:
            if env.control != "discrete":
                raise ValueError("class_weights applies to five actions; this dataset has continuous control.")
            counts = np.bincount(frames.labels, minlength=5).clip(min=1)
            self.classes = torch.tensor(counts.mean() / counts, dtype=torch.float32, device=device)  # (5,)

    def starts(self, rng: np.random.Generator) -> np.ndarray:
        """First rows of the windows of one epoch, shuffled: they tile every episode from a random phase on."""
        starts = []
        for first, end in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            if end - first >= self.window:
                tiles = np.arange(first - rng.integers(self.window), end, self.window)
                starts.append(np.unique(tiles.clip(first, end - self.window)))
        return rng.permutation(np.concatenate(starts))


def _train_epoch(
    fabric: Fabric, model: Any, optimizer: Any, data: _Data, config: CloneConfig, epoch: int, report: Report
) -> dict[str, float]:
    """One pass. All chance in it comes from (seed, epoch), so that a resumed run repeats it."""
    rng = np.random.default_rng((config.seed, epoch))
    torch.manual_seed(int(rng.integers(2**31)))
    starts = data.starts(rng)
    batches = np.split(starts, range(config.batch_size, len(starts), config.batch_size))
    span = torch.arange(data.window, device=fabric.device)
    model.train()
    total, correct, seen = 0.0, 0.0, 0
    for number, batch in enumerate(batches, 1):
        rows = torch.from_numpy(batch).to(fabric.device)[:, None] + span  # (B, T)
        frames, labels = data.frames[rows], data.labels[rows]  # (B, T, 96, 96, 3), (B, T) or (B, T, 3)
        if config.mirror:
            half = torch.from_numpy(rng.random(len(batch)) < 0.5).to(fabric.device)
            frames[half], labels[half] = mirrored(frames[half], labels[half])
        if config.augment:
            frames = augmented(frames, config.augment, rng)
        prediction, _ = model(frames, data.dt[rows])
        weight = None if data.weight is None else data.weight[rows]
        classes = {} if data.classes is None else {"classes": data.classes}
        loss = model.module.head.loss(prediction.float(), labels, weight, **classes)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        total += loss.item() * len(batch)
        seen += len(batch)
        if labels.ndim == 2:
            correct += (prediction.argmax(-1) == labels).float().mean().item() * len(batch)
        report({"epoch": epoch, "batch": number, "batches": len(batches), "loss": total / seen})
    figures = {"loss": total / seen, "frames": seen * data.window}
    return figures | ({"accuracy": correct / seen} if data.labels.ndim == 1 else {})


def mirrored(frames: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Frames (..., 96, 96, 3) and actions as if the world were seen in a mirror.

    Of the status bar, the speed and wheel gauges stay; the steering gauge (centre at column 48) and the gyroscope
    (column 72) are turned about their own centres.
    """
    columns = [*range(36), *range(59, 35, -1), *range(83, 59, -1), *range(84, 96)]
    world, bar = frames[..., :BAR_TOP, :, :].flip(-2), frames[..., BAR_TOP:, columns, :]
    result = torch.cat([world, bar], dim=-3)
    if labels.is_floating_point():
        return result, labels * labels.new_tensor([-1.0, 1.0, 1.0])
    return result, labels.new_tensor([0, 2, 1, 3, 4])[labels]


def augmented(frames: Tensor, specs: Sequence[str], rng: np.random.Generator) -> Tensor:
    """(B, T, H, W, 3) frames: each sequence under one of `specs` or clean, all equally likely.

    What is static under a perturbation is drawn once per sequence; noise is drawn per frame.
    """
    augmentation, (height, width) = Augmentation(specs), frames.shape[2:4]
    effects = [augmentation.draw(rng, (height, width)) for _ in frames]
    corrupted = [effect(sequence.cpu().numpy()) for effect, sequence in zip(effects, frames, strict=True)]
    return torch.from_numpy(np.stack(corrupted)).to(frames.device)


def masked(frames: np.ndarray, env: EnvConfig) -> np.ndarray:
    """The (N, 96, 96, 3) frames, in place with a black status bar if `env` says so."""
    if env.mask_bar:
        frames[:, BAR_TOP:] = 0
    return frames


def action_changes(labels: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """(N,) bool: the frames whose label differs from the one before, within their episode."""
    different = labels[1:] != labels[:-1]
    changes = np.concatenate([[False], different if labels.ndim == 1 else different.any(axis=1)])
    changes[offsets[:-1]] = False
    return changes


@torch.no_grad()
def _held_out_accuracy(driver: Driver, frames: Frames, env: EnvConfig) -> Accuracy:
    """How well `driver`, streaming over whole held-out episodes, predicts the expert's actions."""
    images, device = masked(frames.frames, env), driver.device
    outputs = []
    for first, end in zip(frames.offsets[:-1], frames.offsets[1:], strict=True):
        state = driver.initial_state(1)
        for start in range(first, end, 256):
            rows = slice(start, min(start + 256, end))
            prediction, state = driver(
                torch.from_numpy(images[rows])[None].to(device),
                torch.from_numpy(frames.dt[rows])[None].to(device),
                state,
            )
            outputs.append(driver.head.action(prediction[0]))
    changes = action_changes(frames.labels, frames.offsets)
    counted = ~frames.zooming
    return measure_accuracy(np.concatenate(outputs)[counted], frames.labels[counted], changes[counted])


def _closed_loop(driver: Driver, env: EnvConfig, config: CloneConfig, pool: Pool | None) -> dict[str, Any]:
    seeds = track_seeds(config.validation_tracks)
    evaluation = evaluate(_on_cpu(driver), seeds, name=config.core, env=env, renderer=env.renderer, pool=pool)
    returns = [row.episode_return for row in evaluation.rows]
    return {
        "score": float(np.mean(returns) - 0.5 * np.std(returns)),
        "returns": returns,
        "return_mean": evaluation.summary.return_mean,
        "completion": evaluation.summary.completion,
        "crashes_per_lap": evaluation.summary.crashes_per_lap,
    }


def _on_cpu(driver: Driver) -> Driver:
    """A copy for the worker processes, free of the trainer's hooks."""
    copy = Driver(driver.config)
    copy.load_state_dict({name: tensor.cpu() for name, tensor in driver.state_dict().items()})
    return copy.eval()


def _restore(checkpoint: Path, driver: Driver, optimizer: Any) -> int:
    driver.load_state_dict(load_driver(checkpoint).state_dict())
    return load_training_state(checkpoint / "training_state", optimizer)["step"]


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
