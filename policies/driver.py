"""The driver: vision head -> core -> action head."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from policies.core import State, reset_rows
from policies.cores import build_core
from policies.heads import ACTION_HEADS, VISIONS, VisionHead

NOMINAL_DT = 1.0 / 50.0
"""Seconds between two frames of CarRacing; what `predict` assumes, since its caller has no clock."""

Action = int | np.ndarray


@dataclass(frozen=True)
class DriverConfig:
    """All it takes to build a driver."""

    core: str = "nac-exact"
    """A name in CORES."""
    core_args: dict[str, Any] = field(default_factory=dict)
    """Settings of that core, JSON-able."""
    vision: str = "paper"
    """A name in VISIONS: the convolutions."""
    residual: bool = False
    """The action head sees the sum of the core's output and its input, instead of the output alone."""
    d_model: int = 64
    """Features between vision head, core and action head."""
    dense: int = 64
    """Units of the action head's hidden layer."""
    control: str = "discrete"
    """"discrete" (five actions) or "continuous" (steering, gas, brake)."""
    frame_shape: tuple[int, int, int] = (96, 96, 3)
    """Height, width, channels of an observation."""
    dropout: float = 0.2
    """Share of convolutional features dropped in training."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "frame_shape", tuple(self.frame_shape))
        if self.control not in ACTION_HEADS:
            raise ValueError(f"control: must be one of {sorted(ACTION_HEADS)}, got {self.control!r}.")
        if self.vision not in VISIONS:
            raise ValueError(f"vision: must be one of {sorted(VISIONS)}, got {self.vision!r}.")
        for name in ("d_model", "dense"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}.")
        if len(self.frame_shape) != 3:
            raise ValueError(f"frame_shape: must be (H, W, 3), got {self.frame_shape}.")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout: must be in [0, 1), got {self.dropout}.")


class Driver(nn.Module):
    """Drives, one observation at a time or over whole sequences. The state is the core's, held by the caller."""

    def __init__(self, config: DriverConfig) -> None:
        super().__init__()
        self.config = config
        self.env_config: dict[str, Any] = {}
        """The environment it was trained in; filled by `load_driver`."""
        self.meta: dict[str, Any] = {}
        """Whatever the saver noted; filled by `load_driver`."""
        self.vision = VisionHead(config.frame_shape, config.d_model, config.dropout, VISIONS[config.vision])
        self.core = build_core(config.core, config.d_model, config.d_model, **config.core_args)
        self.head = ACTION_HEADS[config.control](config.d_model, config.dense)

    @classmethod
    def from_pretrained(cls, name: str, control: str = "discrete") -> Driver:
        """A driver that comes with the package: "champion" or "expert" for a control, or their full names, such as
        "champion-continuous". ValueError for one that there is not."""
        from policies.pretrained import load_pretrained  # loading needs this module

        return load_pretrained(name, control)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.out.weight.device

    def forward(self, frames: Tensor, dt: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """frames (B, T, H, W, 3), dt (B, T) seconds -> prediction (B, T, A), new state.

        Frames are uint8, or float in 0..1. A is 5 logits (discrete) or 3 controls (continuous). `state` None is the
        start of an episode. Raises ValueError on inputs that break these rules.
        """
        self._check(frames, dt)
        return self.decide(self.vision(frames), dt, state)

    def decide(self, features: Tensor, dt: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """`forward` from what the vision head made of the frames: features (B, T, d) -> prediction (B, T, A), new
        state."""
        start = self.initial_state(features.shape[0]) if state is None else state
        y, after = self.core(features, dt.to(self.head.out.weight.dtype), start)  # (B, T, d)
        return self.head(y + features if self.config.residual else y), after

    def initial_state(self, batch: int) -> State:
        """The start of `batch` episodes."""
        return self.core.initial_state(batch)

    def begin(self, env: object = None) -> State:
        """The start of one episode. A learned driver looks at observations only: `env` plays no part."""
        return self.initial_state(1)

    def act(self, observation: np.ndarray, state: State, dt: float) -> tuple[Action, State]:
        """One step without gradients or dropout: observation (H, W, 3) uint8, dt seconds -> action, new state.

        The action is an int (discrete) or float32 (3,) (continuous).
        """
        frames = self._frames(np.asarray(observation)[None])
        prediction, state = self._infer(frames, torch.tensor([[dt]], device=self.device), state)
        action = self.head.action(prediction[0, 0])
        return (int(action) if self.config.control == "discrete" else action), state

    def predict(
        self,
        observation: np.ndarray,
        state: State | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = True,
    ) -> tuple[np.ndarray, State]:
        """stable-baselines3's interface, for its `evaluate_policy`: observations (n, H, W, 3), or (n, 3, H, W) as
        VecTransposeImage makes them -> actions (n,) or (n, 3), new state. Frames are taken to be 1/50 s apart.

        Rows where `episode_start` (n,) is true start afresh. Raises ValueError if `deterministic` is False: a cloned
        driver has no exploration noise.
        """
        if not deterministic:
            raise ValueError("deterministic: must be True, got False; a cloned driver has no exploration noise.")
        observation = np.asarray(observation)
        if observation.ndim == 4 and observation.shape[-1] != 3 and observation.shape[1] == 3:
            observation = np.moveaxis(observation, 1, -1)
        frames = self._frames(observation)
        state = self.initial_state(frames.shape[0]) if state is None else state
        if episode_start is not None:
            state = reset_rows(state, torch.as_tensor(episode_start, dtype=torch.bool, device=self.device))
        dt = torch.full(frames.shape[:2], NOMINAL_DT, device=self.device)
        prediction, state = self._infer(frames, dt, state)
        return self.head.action(prediction[:, 0]), state

    def _infer(self, frames: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        """`forward` in evaluation mode and without gradients."""
        training = self.training
        if training:
            self.eval()
        with torch.no_grad():
            result = self(frames, dt, state)
        if training:
            self.train()
        return result

    def _frames(self, observations: np.ndarray) -> Tensor:
        """(n, H, W, 3) observations as (n, 1, H, W, 3) frames; copies only what torch cannot view."""
        if not observations.flags.writeable or any(stride < 0 for stride in observations.strides):
            observations = observations.copy()
        return torch.from_numpy(observations).unsqueeze(1).to(self.device)

    def _check(self, frames: Tensor, dt: Tensor) -> None:
        shape = self.config.frame_shape
        if frames.dim() != 5 or frames.shape[2:] != shape or 0 in frames.shape:
            expected = ", ".join(map(str, ("B >= 1", "T >= 1", *shape)))
            raise ValueError(
                f"frames: shape must be ({expected}), got {tuple(frames.shape)}; check the frame size and that "
                "channels come last."
            )
        if dt.shape != frames.shape[:2]:
            raise ValueError(f"dt: shape must be (B, T) = {tuple(frames.shape[:2])}, got {tuple(dt.shape)}.")
        if frames.dtype != torch.uint8:
            if not frames.is_floating_point():
                raise ValueError(f"frames: dtype must be uint8 (0..255) or float (0..1), got {frames.dtype}.")
            low, high = frames.detach().aminmax()
            if not (low >= 0.0 and high <= 1.0):
                raise ValueError(f"frames: float frames must be in [0, 1], got {low:g}..{high:g}; divide by 255.")
        low, high = dt.detach().aminmax()
        if not (low >= 0.0 and high < torch.inf):
            raise ValueError(f"dt: must be finite seconds >= 0 since the previous frame, got {low:g}..{high:g}.")
