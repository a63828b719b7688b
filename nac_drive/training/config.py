"""The settings of train, nested by subject.

dagger (`dagger_config`) shares most of them. Free of torch: the command line reads them at once. A config is a frozen
value; `check` raises ValueError for settings that cannot be trained with. train, dagger and ppo (`ppo.config`) call it
before anything is created.
"""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import yaml

from nac_drive.arguments import require_flag, require_kind, require_text, value_text
from nac_drive.envs import CORRUPTIONS, Augmentation, track_seeds
from nac_drive.envs.perturbations.registry import parse
from nac_drive.plain import plain_fields, yaml_number
from nac_drive.policies import DriverConfig
from nac_drive.policies.cores.rates import USUAL_RATE, recommended_rate
from nac_drive.policies.ranges import check_number, check_positive, check_type, check_whole, check_words
from nac_drive.training.tracking import TrackerName, check_track

Cloning = TypeVar("Cloning", bound="CloningConfig")

SHORTEST_SEQUENCE = 16
"""Frames that a core with memory must see at least in training."""
MOST = 2**31 - 1
"""Largest number of epochs, rounds, episodes, frames or updates."""
MOST_SEEDS = 2**32 - 1
LONGEST_SEQUENCE, LARGEST_BATCH = 65_536, 65_536
HIGHEST_RATE = 10.0
"""Largest learning rate."""
LARGEST_FACTOR = 1e6
"""Largest weight, scale or penalty."""
LARGEST_CURVE_WEIGHT = 50.0
"""Largest alpha of `curve_weight`: exp(50) is still far from the largest float32."""
Schedule = Literal["constant", "cosine"]
PRECISIONS = ("auto", "32-true", "bf16-mixed", "16-mixed", "32", "16", "bf16")
"""auto, and the precisions of lightning-fabric whose weights are float32."""


@dataclass(frozen=True)
class DataConfig:
    """Training sequences: their length, number, augmentation and weights."""

    sequence_length: int = 32
    """Frames per training sequence (T), at least 16; `cnn` alone may see single frames."""
    batch_size: int = 8
    """Sequences per update (B)."""
    horizontal_flip: bool = True
    """Flip half of the sequences, drawn at random, left to right: tracks are driven counter-clockwise, so curves to the
    left outnumber those to the right."""
    shift: int = 0
    """Largest distance in pixels by which a sequence's images are moved to one side, drawn at random: as if the car
    were beside its place. Continuous actions only."""
    shift_steering: float = 0.01
    """Steering that the label gains for each pixel that the images are moved to the right: it leads back."""
    augment: tuple[str, ...] = ()
    """Perturbations of images and time, such as gaussian-noise:1 shadows:2+frame-drop:1:zero frame-rate:3: every
    sequence is put under one of them or left clean, all equally likely, with a draw of its own."""
    curve_weight: float = 0.0
    """Alpha of the weight exp(alpha |steering|) of every frame: curves count more (Hasani's thesis, Section 6.2, with
    0.1). Continuous actions only."""
    mask_bar: bool = False
    """Hide the status bar from the driver."""

    def __post_init__(self) -> None:
        plain_fields(self)

    def check(self) -> None:
        """Check the settings.

        Raises:
            ValueError: A setting is outside its range.
        """
        check_whole("sequence_length", self.sequence_length, 1, LONGEST_SEQUENCE)
        check_whole("batch_size", self.batch_size, 1, LARGEST_BATCH)
        for name in ("horizontal_flip", "mask_bar"):
            require_flag(name, getattr(self, name))
        check_number("curve_weight", self.curve_weight, 0, LARGEST_CURVE_WEIGHT)
        check_whole("shift", self.shift, 0, MOST)
        check_number("shift_steering", self.shift_steering, 0, 1)
        check_words("augment", self.augment)
        Augmentation(self.augment)


@dataclass(frozen=True)
class OptimConfig:
    """Optimizer, initial weights and precision."""

    learning_rate: float | None = None
    """Adam's rate; none: in train and compare the core's own (docs/drivers.md), in dagger 0.001."""
    encoder_learning_rate: float | None = None
    """Adam's rate of the encoder's weights; none: learning_rate, or 0.001 where that is none too."""
    weight_decay: float = 0.0
    """Decoupled decay of all weights (AdamW); 0 is Adam."""
    max_grad_norm: float | None = None
    """Norm to which the gradients of an update are clipped, over all weights together; none: no clipping."""
    schedule: Schedule = "constant"
    """Learning rate after the warm-up: constant, or cosine, which falls to zero at the end of the last epoch. Updates
    of `train` alone; dagger has rates of its own."""
    warmup_epochs: int = 0
    """Epochs of `train` over which the learning rate rises linearly from zero, update by update."""
    patience: int | None = None
    """Epochs of `train` without progress on the validation tracks, frame by frame, after which the run stops. The epoch
    with the highest accuracy there is kept, or with continuous actions with the least squared error of the steering.
    None: all epochs, and the closed loop picks one."""
    ema_decay: float = 0.999
    """Decay per update of an exponential moving average of the weights: the average is validated and saved, the
    optimizer updates the weights themselves. 0: no average."""
    init_from: str | Path | None = None
    """Driver whose weights training starts from, such as the folder of a run. On the command line its settings are the
    defaults of the driver. If its core is another one, only the encoder and the action head are taken over."""
    freeze_encoder_from: str | Path | None = None
    """Driver whose encoder is taken over and frozen, such as expert or the folder of a run: the features of all frames
    are computed once, which makes training many times faster."""
    precision: str = "auto"
    """auto: bf16-mixed on a GPU, 32-true on a CPU; or 32-true, bf16-mixed or 16-mixed."""

    def __post_init__(self) -> None:
        plain_fields(self)
        paths_as_text(self, "init_from", "freeze_encoder_from")

    def of_epochs(self) -> dict[str, Any]:
        """Return changed settings that count the epochs of `train`."""
        names = ("schedule", "warmup_epochs", "patience")
        return {name: value for name in names if (value := getattr(self, name)) != getattr(OptimConfig, name)}

    def check(self) -> None:
        """Check the settings.

        Raises:
            ValueError: A setting is outside its range.
        """
        for name in ("init_from", "freeze_encoder_from"):
            if getattr(self, name) is not None:
                require_text(name, getattr(self, name), "pass the name or the folder of a driver")
            if getattr(self, name) == "":
                raise ValueError(f"{name} must name a driver, got ''; leave it out for none.")
        if self.learning_rate is not None:
            check_positive("learning_rate", self.learning_rate, HIGHEST_RATE, "0.001 is usual")
        if self.encoder_learning_rate is not None:
            check_positive("encoder_learning_rate", self.encoder_learning_rate, HIGHEST_RATE, "0.0001 is usual")
            if self.freeze_encoder_from:
                raise ValueError("encoder_learning_rate: a frozen encoder does not learn; leave out one of the two.")
        check_number("weight_decay", self.weight_decay, 0, 1)
        if self.max_grad_norm is not None:
            check_positive("max_grad_norm", self.max_grad_norm, LARGEST_FACTOR, "1 is usual")
        if self.schedule not in get_args(Schedule):
            raise ValueError(f"schedule must be one of {', '.join(get_args(Schedule))}, got {self.schedule!r}.")
        check_whole("warmup_epochs", self.warmup_epochs, 0, MOST)
        if self.patience is not None:
            check_whole("patience", self.patience, 1, MOST)
        check_number("ema_decay", self.ema_decay)
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}.")
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must lie in [0, 1), got {self.ema_decay}; 0.999 is usual, 0 is none.")


@dataclass(frozen=True)
class EvalConfig:
    """The closed-loop validation, which picks the best checkpoint."""

    tracks: str = "val-20"
    """Tracks of the closed-loop validation: the checkpoint with the best mean - 0.5 sd of returns is kept."""

    def check(self) -> None:
        """Raises ValueError for unknown tracks."""
        check_type("validation_tracks", self.tracks, str)
        track_seeds(self.tracks)


@dataclass(frozen=True)
class CloningConfig:
    """Settings that `train` and `dagger` have in common.

    Raises:
        ValueError: `driver`, `data`, `optim` or `validation` is of another type.
    """

    driver: DriverConfig = field(default_factory=DriverConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    validation: EvalConfig = field(default_factory=EvalConfig)
    seed: int = 0
    """Seed of weights, order, dropout and every other draw."""
    track: tuple[TrackerName, ...] = ()
    """Trackers that show the rows of metrics.jsonl too; each needs the extra of its name."""

    def __post_init__(self) -> None:
        plain_fields(self)
        require_parts(self)

    @property
    def rate_of_core(self) -> float:
        """Adam's rate of core and action head."""
        return USUAL_RATE if self.optim.learning_rate is None else self.optim.learning_rate

    def with_rates(self: Cloning) -> Cloning:
        """Return the settings with the learning rates that they mean."""
        optim = self.optim
        if optim.learning_rate is not None:
            return self
        encoder = optim.encoder_learning_rate
        if encoder is None and not optim.freeze_encoder_from and self.rate_of_core != USUAL_RATE:
            encoder = USUAL_RATE
        return replace(self, optim=replace(optim, learning_rate=self.rate_of_core, encoder_learning_rate=encoder))

    def check(self) -> None:
        """Check the settings.

        Raises:
            ValueError: The settings cannot be trained with.
        """
        for part in (self.driver, self.data, self.optim, self.validation):
            part.check()
        check_whole("seed", self.seed, 0, MOST_SEEDS)
        check_track(self.track)
        if self.driver.core != "cnn" and self.data.sequence_length < SHORTEST_SEQUENCE:
            raise ValueError(
                f"sequence_length must be at least {SHORTEST_SEQUENCE} for core {self.driver.core!r}, "
                f"got {self.data.sequence_length}; cnn alone may see single frames."
            )
        if self.data.shift and self.optim.freeze_encoder_from:
            raise ValueError("shift: a frozen encoder sees each image once, in its place; train end to end.")
        if self.optim.freeze_encoder_from:
            for spec in self.data.augment:
                if images := sorted({part.name for part in parse(spec)} & set(CORRUPTIONS)):
                    raise ValueError(
                        f"augment or perturb: {images[0]!r} changes images, which a frozen encoder sees once; train "
                        "end to end, augment when the encoder is trained, or lose frames alone."
                    )


@dataclass(frozen=True)
class TrainConfig(CloningConfig):
    """Settings of `train`: behaviour cloning on recorded episodes. Control and frame shape are the dataset's."""

    epochs: int = 12
    """Epochs over the demonstrations."""
    validation_fraction: float = 0.1
    """Fraction of the recorded tracks kept out of training, on which accuracy is measured."""
    validate_every: int = 5
    """Epochs between two closed-loop validations; the last epoch is always validated."""
    perturb: str | None = None
    """Perturbations, such as frame-drop:3:zero: sequences are put under them, as with --augment, and the driver drives
    under them. A dataset that was recorded under perturbations has its own and takes none."""

    @property
    def rate_of_core(self) -> float:
        given = self.optim.learning_rate
        return recommended_rate(self.driver.core) if given is None else given

    def check(self) -> None:
        """Check the settings.

        Raises:
            ValueError: The settings cannot be trained with.
        """
        super().check()
        check_whole("epochs", self.epochs, 1, MOST)
        check_whole("validate_every", self.validate_every, 1, MOST)
        check_number("validation_fraction", self.validation_fraction)
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must lie in [0, 1), got {self.validation_fraction}; 0 is none.")
        if self.optim.warmup_epochs >= self.epochs:
            raise ValueError(
                f"warmup_epochs must be less than the {self.epochs} epochs, got {self.optim.warmup_epochs}; "
                "train longer or warm up shorter."
            )
        if self.optim.patience is not None and self.validation_fraction == 0:
            raise ValueError(
                "validation_fraction must be above 0 with patience, which stops by the validation tracks, got 0; "
                "0.1 is usual."
            )
        if self.perturb is not None:
            check_type("perturb", self.perturb, str)
            self.perturbed().check()

    def rate(self, epochs: float) -> float:
        """Adam's rate after so many epochs, or parts of one.

        It rises over the warm-up, and then stays, or falls along half a cosine (Loshchilov and Hutter, arXiv
        1608.03983, without restarts).
        """
        warmup, rate = self.optim.warmup_epochs, self.rate_of_core
        if epochs < warmup:
            return rate * epochs / warmup
        if self.optim.schedule == "constant":
            return rate
        return rate * 0.5 * (1 + math.cos(math.pi * (epochs - warmup) / (self.epochs - warmup)))

    def perturbed(self) -> TrainConfig:
        """Return the same settings, augmented by `perturb`, too."""
        specs = self.perturb.split(",") if self.perturb else []
        return replace(self, data=replace(self.data, augment=(*self.data.augment, *specs)), perturb=None)


def paper_recipe() -> TrainConfig:
    """The NAC paper's settings for CarRacing (Table 4).

    Three convolutions with dropout 0.2, NAC with 64 features and 16 heads (the default of the NAC cores), 64 dense
    units, Adam at 1e-4, batches of 32, 100 epochs; no flips, no moving average. One
    difference: the table names no sequence length, and the published accuracies belong to sequences of one frame
    (docs/cloning.md), on which a memory learns nothing; sequences here have the least length, 16 frames.

    Returns:
        The config; a user's own options replace its values.
    """
    return TrainConfig(
        driver=DriverConfig(core="nac-exact", encoder="paper", d_model=64, dense=64, dropout=0.2),
        data=DataConfig(sequence_length=SHORTEST_SEQUENCE, batch_size=32, horizontal_flip=False),
        optim=OptimConfig(learning_rate=1e-4, ema_decay=0.0),
        epochs=100,
        validation_fraction=0.1,
    )


def core_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Settings of a core from the words of --core-args.

    Args:
        pairs: Words KEY=VALUE; values are read as YAML: numbers, words, true, false or null.

    Raises:
        ValueError: For a word of another form.
    """
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"core-args must be KEY=VALUE, got {pair!r}; such as --core-args top_k=4 window=64.")
        try:
            settings[key] = yaml_number(yaml.safe_load(value))
        except (yaml.YAMLError, ValueError, RecursionError):
            settings[key] = []
        if not isinstance(settings[key], int | float | str | None):
            raise ValueError(f"core-args: the value of {reprlib.repr(pair)} is neither a number nor a word.")
    return settings


def paths_as_text(config: Any, *names: str) -> None:
    """Settings are written to config.yaml and compared there as text."""
    for name in names:
        if isinstance(getattr(config, name), os.PathLike):
            object.__setattr__(config, name, os.fspath(getattr(config, name)))


def require_parts(config: Any) -> None:
    """Check that the nested settings of a config are configs.

    Raises:
        ValueError: One is of another type.
    """
    for setting in fields(config):
        usual = None if setting.default_factory is MISSING else setting.default_factory()
        if is_dataclass(usual):
            require_kind(setting.name, getattr(config, setting.name), type(usual))


_FUNCTIONS = {"TrainConfig": "train", "DaggerConfig": "dagger", "PPOConfig": "ppo"}
"""Config -> the function that takes it."""


def require_config(config: Any, kind: type) -> None:
    """Check the type of a config and its parts.

    Raises:
        ValueError: It has another type. The message names the function that takes such a config.
    """
    fix, other = "", _FUNCTIONS.get(type(config).__name__)
    if isinstance(config, str):
        fix = f"pass {kind.__name__}(DriverConfig({value_text(config)}))"
    elif other:
        fix = f"pass {kind.__name__}(...), or call {other}"
    require_kind("config", config, kind, fix)
    require_parts(config)
