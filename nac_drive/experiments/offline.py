"""Cross-validated tests on recorded episodes: how well a core predicts the expert's actions, without driving."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

import msgspec
import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from nac_drive.data_collection.collect import collect
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.frames import Frames
from nac_drive.data_collection.drivers import driver_hash
from nac_drive.envs import SPLITS, Control, EnvConfig
from nac_drive.evaluation.metric import Count, Number
from nac_drive.experiments.paper import Map, PaperExperiment, PaperTask, Place, Rate, ResultColumn, Row, Whole
from nac_drive.policies import ENCODERS, Driver, DriverConfig
from nac_drive.policies.ops.generators import own_generators
from nac_drive.storage.write import write_atomically
from nac_drive.training.config import OptimConfig
from nac_drive.training.finite import require_finite_number, require_finite_weights
from nac_drive.training.moving_average import MovingAverage
from nac_drive.training.offline import macro_f1
from nac_drive.training.optimizer import adam

Split = Literal["tracks", "frames"]
DATASET, TRAINED_ENCODERS = "dataset", "encoders"
_STOPPING = 8
"""A run stops by one of so many parts of what it may train on."""
_FRAMES_AT_ONCE = 1024
"""Frames that an encoder takes at a time."""
_FIX = "lower learning_rate in the protocol, or measure other lines with --only"


@dataclass(frozen=True)
class Offline(PaperExperiment):
    """Folds over whole tracks, or over shuffled frames, whose neighbours are then trained on. Fields are settings.

    A run stops when the loss on an eighth of its own training tracks (or frames) has not fallen for some epochs, and is
    tested where that loss was least. The encoder is taken from a memoryless driver that learned from the same training
    part, end to end on shuffled frames; cores and action heads learn on its features. The zoom at the start of an
    episode is left out.
    """

    control: Control = "discrete"
    driver: str = "expert"
    episodes: Whole = 20
    cells: list[tuple[Split, Whole]] = field(default_factory=lambda: [("frames", 1), ("tracks", 32)])
    """Folds, and frames of a sequence. With one frame no core remembers anything; longer ones are tested streamed over
    whole episodes."""
    folds: Annotated[int, msgspec.Meta(ge=2)] = 5
    tested_folds: Whole = 5
    """Folds that are tested, of `folds`."""
    encoder: str = "compact"
    features: int | None = None
    """Features of the encoder where they differ from d_model."""
    d_model: Whole = 64
    end_to_end: bool = False
    """Train every driver from its own random encoder on, in place of one encoder for all cores of a fold."""
    learning_rate: Rate = 1e-3
    encoder_learning_rate: Rate | None = None
    """Adam's rate of the encoder's weights, end to end; None: learning_rate."""
    steering_alone: bool = False
    """Learn and test steering alone, as the thesis does; gas and brake have no loss."""
    curve_weight: float = 0.0
    """Alpha of the weight exp(alpha |steering|) of a frame's loss."""
    frames_per_update: Whole = 128
    epochs: Whole = 100
    """Epochs at most."""
    patience: Whole = 3
    """Epochs without progress after which a run stops."""
    ema_decay: float = 0.99
    precision: Literal["32-true", "bf16-mixed"] = "bf16-mixed"

    repeats: ClassVar[str] = "folds"

    def check(self) -> None:
        ENCODERS.require(self.encoder)
        if self.steering_alone and self.control == "discrete":
            raise ValueError("steering_alone needs continuous actions; set control: continuous.")
        if self.tested_folds > self.folds:
            raise ValueError(f"tested_folds must lie in 1 to folds = {self.folds}, got {self.tested_folds}.")
        if self.folds > self.episodes and "tracks" in dict(self.cells):
            raise ValueError(f"folds of tracks must be at most episodes = {self.episodes}, got {self.folds}.")

    def drivers(self) -> dict[str, str]:
        return {f"{self.driver}, {self.control}": driver_hash(self.driver, EnvConfig(self.control))}

    def prepare(self, folder: Path, each: Map) -> Iterator[str]:
        """Record the episodes and train the encoders."""
        dataset = folder / DATASET
        tracks = list(SPLITS["train"][: self.episodes])
        env = EnvConfig(self.control)
        collect(dataset, self.driver, env=env, seeds=tracks, workers=0, resume=dataset.exists())
        yield f"{self.episodes} episodes"
        if self.end_to_end:
            return
        (folder / TRAINED_ENCODERS).mkdir(exist_ok=True)
        splits: list[Split] = [split for split in get_args(Split) if split in dict(self.cells)]
        tasks = [
            task for fold in range(self.tested_folds) for split in splits
            if not _encoder_file(folder, task := self._encoder_task(split, fold)).exists()
        ]  # fmt: skip
        for done, _ in enumerate(each(partial(_train_encoder, self, folder), tasks), 1):
            yield f"encoder {done} of {len(tasks)}"

    def places(self) -> list[Place]:
        return [
            (("split", split), ("length", length), ("fold", fold))
            for fold in range(self.tested_folds)
            for split, length in self.cells
        ]

    def measure(self, folder: Path, task: PaperTask) -> Row:
        """Return epochs, and loss, accuracy, macro_f1 (discrete), squared and absolute error (continuous) of a test."""
        return self.trained(folder, task)[0]

    @own_generators()
    def trained(self, folder: Path, task: PaperTask) -> tuple[Row, list[tuple[float, float]]]:
        """Return the numbers of `measure`, and the losses of every epoch: in training, and where a run stops."""
        place = dict(task.place)
        torch.manual_seed(place["fold"])
        driver = Driver(self._driver_config(task.core, dict(task.core_args))).to(self.device)
        if self.end_to_end:
            fold = _Fold(self, folder, task)
        else:
            encoder = _encoder_file(folder, self._encoder_task(place["split"], place["fold"]))
            fold = _Fold(self, folder, task, _features(self, folder, encoder))
            driver.encoder.load_state_dict(load_file(encoder))
        driver, epochs = fold.train(driver)
        trained = {f"training_{name}": value for name, value in fold.test(driver, fold.parts.train).items()}
        return {"epochs": epochs, **fold.test(driver, fold.parts.test), **trained}, fold.curve

    def numbers(self, task: PaperTask) -> dict[str, Any]:
        measures = ("accuracy", "macro_f1") if self.control == "discrete" else ("squared_error", "absolute_error")
        tested = ("loss", *measures)
        return {"epochs": Count, **dict.fromkeys((*tested, *(f"training_{name}" for name in tested)), Number)}

    def columns(self) -> list[ResultColumn]:
        columns = []
        for split, length in self.cells:
            where = {"split": split, "length": length}
            name = f"folds over {split}, {'single frames' if length == 1 else f'sequences of {length}'}"
            if self.control == "discrete":
                columns.append(
                    ResultColumn(f"accuracy_{split}_{length}", f"accuracy, %: {name}", "accuracy", where, 1, 100)
                )
                columns.append(ResultColumn(f"f1_{split}_{length}", f"F1, %: {name}", "macro_f1", where, 1, 100))
            else:
                for part, key in (("training", "training_squared_error"), ("test", "squared_error")):
                    heading = f"squared error of steering x 100, {part}: {name}"
                    columns.append(ResultColumn(f"{part}_{split}_{length}", heading, key, where, 3, 100))
                heading = f"absolute error x 100, test: {name}"
                columns.append(ResultColumn(f"absolute_{split}_{length}", heading, "absolute_error", where, 2, 100))
        return columns

    def describe(self) -> str:
        if self.end_to_end:
            learned = f"Every driver learned with an encoder {self.encoder} of its own"
        else:
            learned = (
                f"Encoder {self.encoder}, trained in each fold with a memoryless head; cores learn on its "
                f"{self.features or self.d_model} features"
            )
        learned_actions = "Steering alone was learned and tested. " if self.steering_alone else ""
        weighted = f", weights exp({self.curve_weight:g} |steering|)" if self.curve_weight else ""
        return (
            f"{self.driver} drove {self.episodes} episodes ({self.control} control). {learned_actions}"
            f"{self.tested_folds} of {self.folds} folds were tested; ± is the standard deviation over them. "
            f"Adam at {self.learning_rate:g}, {self.frames_per_update} frames an update, at most {self.epochs} epochs, "
            f"stopped after {self.patience} without progress on an eighth of the training part, moving average of the "
            f"weights {self.ema_decay:g}{weighted}. {learned}."
        )

    def _driver_config(self, core: str, args: dict[str, Any]) -> DriverConfig:
        return DriverConfig(
            core, args, encoder=self.encoder, features=self.features, d_model=self.d_model, control=self.control
        )

    def _encoder_task(self, split: Split, fold: int) -> PaperTask:
        return PaperTask("encoder", "cnn", {}, (("split", split), ("length", 1), ("fold", fold)))


@dataclass(frozen=True)
class Parts:
    """First rows of the sequences to train on, to stop by and to test on."""

    train: np.ndarray
    stop: np.ndarray
    test: np.ndarray


def parts(frames: Frames, split: Split, length: int, fold: int, folds: int) -> Parts:
    """Split the frames after the zoom. Sequences never cross episodes; with `tracks` they tile every episode."""
    episodes = list(zip(frames.offsets[:-1], frames.offsets[1:], strict=True))
    rng = np.random.default_rng(fold)
    if split == "frames":
        shuffled = np.random.default_rng(0).permutation(np.flatnonzero(~frames.zooming))
        test, rest = shuffled[fold::folds], np.delete(shuffled, np.s_[fold::folds])
        return Parts(rest[len(rest) // _STOPPING :], rest[: len(rest) // _STOPPING], test)
    order = np.random.default_rng(0).permutation(len(episodes))
    tested = set(order[fold::folds].tolist())
    rest = rng.permutation([episode for episode in order if episode not in tested]).tolist()
    stop = rest[: max(1, len(rest) // _STOPPING)]

    def tiles(chosen: list[int]) -> np.ndarray:
        begun = [episodes[episode][0] + int(frames.zooming[slice(*episodes[episode])].sum()) for episode in chosen]
        return np.concatenate([
            np.arange(first, episodes[episode][1] - length + 1, length)
            for episode, first in zip(chosen, begun, strict=True)
        ])  # fmt: skip

    return Parts(tiles(rest[len(stop) :]), tiles(stop), tiles(sorted(tested)))


class _Fold:
    """The data of one run, and the training on it: from frames, or from their `features` (N, d)."""

    def __init__(self, config: Offline, folder: Path, task: PaperTask, features: Tensor | None = None) -> None:
        place, frames = dict(task.place), _load(folder)
        self._config, self._device = config, torch.device(config.device)
        self._what = f"{task.entry}, fold {place['fold']} over {place['split']}"
        self._inputs = (torch.from_numpy(frames.frames) if features is None else features).to(self._device)
        self._decide: Callable[..., Any] = Driver.forward if features is None else Driver.decide
        self._learned = (..., slice(1)) if config.steering_alone else ...  # of the numbers of an action
        self._labels, self._dt = (torch.from_numpy(array).to(self._device) for array in (frames.labels, frames.dt))
        self.length, self.seed = place["length"], place["fold"]
        self.curve: list[tuple[float, float]] = []
        """Losses of every epoch: the mean in training, weighted as there, and the average's on the stopping part."""
        self.parts = parts(frames, place["split"], self.length, self.seed, config.folds)
        bfloat16 = config.precision == "bf16-mixed"
        self._autocast = partial(torch.autocast, self._device.type, torch.bfloat16, enabled=bfloat16)

    def _windows(self, starts: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.from_numpy(starts[:, None] + np.arange(self.length)).to(self._device)
        return self._inputs[rows], self._dt[rows], self._labels[rows][self._learned]

    @torch.no_grad()
    def predict(self, driver: Driver, starts: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return predictions and labels, streamed, on the CPU.

        A sequence that follows on another goes on with its state, unless sequences are single frames.
        """
        driver.eval()
        predictions, truth = [], []
        state, previous = driver.initial_state(1), None
        with self._autocast():
            for batch in np.split(starts, range(512, len(starts), 512)) if self.length == 1 else starts[:, None]:
                if self.length == 1:
                    state = driver.initial_state(len(batch))
                elif previous is None or batch[0] != previous + self.length:
                    state = driver.initial_state(1)
                frames, dt, labels = self._windows(batch)
                prediction, state = self._decide(driver, frames, dt, state)
                predictions.append(prediction[self._learned].float().flatten(0, 1))
                truth.append(labels.flatten(0, 1))
                previous = batch[0]
        return torch.cat(predictions).cpu(), torch.cat(truth).cpu()

    def test(self, driver: Driver, starts: np.ndarray) -> dict[str, float]:
        """Return the numbers of a test."""
        prediction, labels = self.predict(driver, starts)
        loss = {"loss": self._loss(prediction, labels)}
        if self._config.control == "discrete":
            chosen = prediction.argmax(-1)
            accuracy = float((chosen == labels).float().mean())
            return loss | {"accuracy": accuracy, "macro_f1": macro_f1(chosen.numpy(), labels.numpy())}
        error = prediction[:, 0] - labels[:, 0]
        return loss | {"squared_error": float(error.square().mean()), "absolute_error": float(error.abs().mean())}

    def _loss(self, prediction: Tensor, labels: Tensor) -> float:
        measure = cross_entropy if self._config.control == "discrete" else mse_loss
        return float(measure(prediction, labels))

    def train(self, driver: Driver) -> tuple[Driver, int]:
        """Train until the loss on the stopping part no longer falls.

        Returns:
            The best average of the weights, and the epochs.

        Raises:
            ValueError: A learning rate or the decay of the average is outside its range.
            DivergedError: A loss or a weight is NaN or infinite.
        """
        config = self._config
        OptimConfig(config.learning_rate, config.encoder_learning_rate, config.ema_decay).check()
        optimizer = adam(driver, config.learning_rate, config.encoder_learning_rate)
        average = MovingAverage(driver, config.ema_decay)
        mean, best = average.module, Driver(driver.config).to(self._device)
        rng = np.random.default_rng((self.seed, 1))
        least, since, epoch = float("inf"), 0, 0
        size = max(1, config.frames_per_update // self.length)
        while epoch < config.epochs and since < config.patience:
            driver.train()
            order, losses = rng.permutation(self.parts.train), []
            for batch in np.split(order, range(size, len(order), size)):
                frames, dt, labels = self._windows(batch)
                with self._autocast():
                    prediction, _ = self._decide(driver, frames, dt)
                weight = torch.exp(config.curve_weight * labels[..., 0].abs()) if config.curve_weight else None
                prediction = prediction[self._learned].float()
                loss = driver.action_head.loss(prediction, labels, weight) + driver.core.penalty()
                require_finite_number(f"the training loss of {self._what}, in epoch {epoch + 1}", loss.item(), _FIX)
                losses.append(loss.item())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                driver.core.after_step()
                average.update(driver)
            epoch, since = epoch + 1, since + 1
            stopping = self._loss(*self.predict(mean, self.parts.stop))
            require_finite_number(f"the loss of {self._what}, after epoch {epoch}", stopping, _FIX)
            self.curve.append((float(np.mean(losses)), stopping))
            if stopping < least:
                best.load_state_dict(mean.state_dict())
                least, since = stopping, 0
        require_finite_weights(self._what, best.state_dict().items(), _FIX)
        return best, epoch


@own_generators()
def _train_encoder(config: Offline, folder: Path, task: PaperTask) -> None:
    """Save the encoder of a memoryless driver of this split and fold."""
    torch.manual_seed(dict(task.place)["fold"])
    driver_config = DriverConfig(
        "cnn",
        encoder=config.encoder,
        features=config.features,
        d_model=config.d_model,
        control=config.control,
        dropout=0.2,
    )
    driver, _ = _Fold(config, folder, task).train(Driver(driver_config).to(config.device))
    file = _encoder_file(folder, task)
    write_atomically(
        file, save({name: tensor.cpu().contiguous() for name, tensor in driver.encoder.state_dict().items()})
    )


def _encoder_file(folder: Path, task: PaperTask) -> Path:
    place = dict(task.place)
    return folder / TRAINED_ENCODERS / f"{place['split']}-{place['fold']}.safetensors"


@lru_cache(maxsize=1)
def _load(folder: Path) -> Frames:
    return Demonstrations.open(folder / DATASET).load()


@torch.no_grad()
def _features(config: Offline, folder: Path, encoder: Path) -> Tensor:
    """Features (N, d) of all frames by the encoder in a file, computed once and kept beside it."""
    kept = encoder.with_suffix(".features")
    if not kept.exists():
        driver = Driver(config._driver_config("cnn", {})).eval().to(config.device)
        driver.encoder.load_state_dict(load_file(encoder))
        frames = torch.from_numpy(_load(folder).frames).split(_FRAMES_AT_ONCE)
        features = torch.cat([driver.encoder(part.to(config.device)).cpu() for part in frames])
        write_atomically(kept, save({"features": features.contiguous()}))
    return load_file(kept)["features"]
