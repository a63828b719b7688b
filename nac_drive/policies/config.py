"""The settings of a driver, free of torch.

The command line reads them at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from nac_drive.arguments import require_flag, value_text
from nac_drive.plain import plain_fields
from nac_drive.policies.ranges import check_number, check_positive, check_type, check_whole

_Control = Literal["discrete", "continuous", "pulsed"]
CONTROLS: tuple[str, ...] = get_args(_Control)
ADDED = ("part_ranges", "nominal_dt")
"""Settings that folders of older versions lack: they have the defaults, CarRacing's."""
MOST_SECONDS = 3600.0
"""Largest number of seconds between two frames."""
WIDEST = 65_536
"""Largest number of features, units or actions."""
LONGEST_SIDE = 4096
"""Largest height or width of an observation, in pixels."""


@dataclass(frozen=True)
class DriverConfig:
    """Settings of a driver: encoder, core and action head.

    Raises:
        ValueError: `frame_shape` or `part_ranges` is no sequence.
    """

    core: str = "nac-exact"
    """Sequence model: a name in CORES, see docs/drivers.md."""
    core_args: dict[str, Any] = field(default_factory=dict)
    """Settings of that core, such as top_k=4 window=64."""
    encoder: str = "compact"
    """Convolutions: compact (sees the whole frame), chroma (compact, blind to lightness), pooled (a grey image of half
    the size and the means of the status bar's columns, for PPO), paper (the NAC paper's, which miss the last five
    rows), thesis (Hasani's, with a multiple of 8 features) or bojarski (his network without memory; features=2304, core
    cnn-bojarski)."""
    residual: bool = False
    """The action head sees the sum of the core's output and its input, instead of the output alone."""
    d_model: int = 64
    """Features between encoder, core and action head."""
    features: int | None = None
    """Features of the encoder, where the core has more or fewer outputs; none: d_model."""
    dense: int = 64
    """Units of the action head's hidden layer."""
    control: _Control = "discrete"
    """discrete (in CarRacing nothing, right, left, gas, brake), continuous (steering, gas, brake) or pulsed (the same
    three numbers, carried out by the discrete actions)."""
    num_actions: int = 5
    """Discrete actions of the environment."""
    part_ranges: tuple[tuple[float, float], ...] = ((-1.0, 1.0), (0.0, 1.0), (0.0, 1.0))
    """The least and the largest value of each number of a continuous action; in CarRacing steering, gas, brake."""
    nominal_dt: float = 0.02
    """Seconds between two frames of the environment. Cores measure time in such frames, as 1/50 s each."""
    frame_shape: tuple[int, int, int] = (96, 96, 3)
    """Height, width, channels of an observation."""
    clockless: bool = False
    """The core gets the nominal time step of one frame at every frame, whatever the true one is."""
    dt_input: bool = False
    """The core's input is the features plus an affine map of log(1 + dt in frames): a clock for cores without one."""
    zero_lost_frames: bool = False
    """A frame that is black all over, as a lost one is under MISSING zero, reaches the core as zeros, instead of the
    encoder's features of a black image."""
    dropout: float = 0.0
    """Fraction of convolutional features dropped in training."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "frame_shape", tuple(self.frame_shape))
        except TypeError:
            raise ValueError(f"frame_shape: must be (H, W, 3), got {value_text(self.frame_shape)}.") from None
        try:
            object.__setattr__(self, "part_ranges", tuple(map(tuple, self.part_ranges)))
        except TypeError:
            raise ValueError(f"part_ranges: must be pairs of numbers, got {value_text(self.part_ranges)}.") from None
        plain_fields(self)

    @property
    def encoder_features(self) -> int:
        """Number of features that the encoder hands to the core."""
        return self.d_model if self.features is None else self.features

    def check(self) -> None:
        """Check the settings.

        Raises:
            ValueError: A setting is outside its range.
        """
        check_type("core:", self.core, str)
        if "," in self.core:
            name, _, words = self.core.partition(",")
            raise ValueError(
                f"core: must be a name, got {self.core!r}; settings go to core_args: {name} --core-args {words}."
            )
        check_type("core_args:", self.core_args, dict)
        check_type("encoder:", self.encoder, str)
        for name in ("residual", "clockless", "dt_input", "zero_lost_frames"):
            require_flag(f"{name}:", getattr(self, name))
        if self.control not in CONTROLS:
            raise ValueError(f"control: must be one of {CONTROLS}, got {self.control!r}.")
        for name in ("d_model", "dense", "num_actions"):
            check_whole(f"{name}:", getattr(self, name), 1, WIDEST)
        if self.features is not None:
            check_whole("features:", self.features, 1, WIDEST)
        if self.residual and self.encoder_features != self.d_model:
            raise ValueError(
                f"features: must be d_model = {self.d_model} with a residual path, which adds the core's input to its "
                f"output, got {self.features}; leave out one of the two."
            )
        if len(self.frame_shape) != 3:
            raise ValueError(f"frame_shape: must be (H, W, 3), got {self.frame_shape}.")
        for size in self.frame_shape:
            check_whole("frame_shape: a side", size, 1, LONGEST_SIDE)
        check_whole("part_ranges: their number", len(self.part_ranges), 1, WIDEST)
        for bounds in self.part_ranges:
            if len(bounds) != 2:
                raise ValueError(f"part_ranges: must be pairs of numbers, got {bounds}.")
            for bound in bounds:
                check_number("part_ranges: a bound", bound)
            if not bounds[0] < bounds[1]:
                raise ValueError(f"part_ranges: the least value must be below the largest, got {bounds}.")
        check_positive("nominal_dt:", self.nominal_dt, MOST_SECONDS, "the default is 0.02")
        check_number("dropout:", self.dropout)
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout: must be in [0, 1), got {self.dropout}.")
