"""What every training of a driver from labelled frames is told, whether its laps were recorded before or meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from envs import Augmentation, track_seeds


@dataclass(frozen=True)
class TrainingConfig:
    """Settings that `clone` and `dagger` share."""

    core: str = "nac-exact"
    """Sequence model: a name in CORES."""
    core_args: dict[str, Any] = field(default_factory=dict)
    """Settings of that core."""
    vision: str = "paper"
    """Convolutions: paper (the NAC paper's) or compact (a third of the parameters, and it sees the whole frame)."""
    residual: bool = False
    """The action head sees the sum of the core's output and its input, instead of the output alone."""
    dropout: float = 0.2
    """Share of convolutional features dropped in training."""
    window: int = 32
    """Frames per training sequence (T), at least 16; `cnn` alone may see single frames."""
    batch_size: int = 16
    """Sequences per update (B)."""
    learning_rate: float = 1e-4
    """Adam's rate (the paper's)."""
    average: float = 0.0
    """Decay per update of a moving average of the weights, such as 0.999: the average then drives, is validated and is
    kept, while the weights go on learning. 0: no average."""
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
    frozen: str = ""
    """Driver whose vision head is taken over and learns no more, such as expert or the folder of a run: the features of
    all frames are computed once, which makes training many times faster. Empty: the driver learns end to end."""
    mask_bar: bool = False
    """Hide the status bar from the driver."""
    validation_tracks: str = "val-5"
    """Tracks of the closed-loop validation: the checkpoint with the best mean - 0.5 sd of returns is kept."""
    precision: str = "auto"
    """auto: bf16-mixed on a GPU, 32-true on a CPU; or a precision of lightning-fabric."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard too (needs the extra `tensorboard`)."""
    seed: int = 0
    """Seed of weights, order, dropout and whatever else is drawn."""

    def __post_init__(self) -> None:
        self.require(window=1 if self.core == "cnn" else 16, batch_size=1)
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}.")
        if not 0 <= self.average < 1:
            raise ValueError(f"average must lie in [0, 1), got {self.average}; 0.999 is usual, 0 is none.")
        if not self.change_weight > 0:
            raise ValueError(f"change_weight must be positive, got {self.change_weight}; 1 weighs all frames alike.")
        track_seeds(self.validation_tracks)  # a bad name fails here, before epochs are spent
        Augmentation(self.augment)
        if self.frozen and self.augment:
            raise ValueError(
                f"augment changes pictures, which a frozen vision head sees once, got {self.augment}; "
                "train end to end, or augment when the vision head is trained."
            )

    def require(self, **least: int) -> None:
        """Raises ValueError unless each of the named settings is at least the number given."""
        for name, number in least.items():
            if getattr(self, name) < number:
                raise ValueError(f"{name} must be at least {number} for core {self.core!r}, got {getattr(self, name)}.")


def core_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE words as settings of a core. Raises ValueError for a word of another form."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"core-args must be KEY=VALUE, got {pair!r}; such as --core-args top_k=4 window=64.")
        try:
            settings[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ValueError(f"core-args: the value of {pair!r} is neither a number nor a word.") from None
    return settings
