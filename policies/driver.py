"""The driver: encoder -> core -> action head."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nac_drive.policies.action_heads import ACTION_HEADS
from nac_drive.policies.config import DriverConfig
from nac_drive.policies.cores.base import State, reset_rows
from nac_drive.policies.cores.registry import build_core
from nac_drive.policies.encoders import ENCODERS
from nac_drive.policies.ops.threads import one_thread

NOMINAL_DT = 1.0 / 50.0
"""Seconds between two frames of CarRacing; what `predict` assumes, since its caller has no clock."""

Action = int | np.ndarray


class Driver(nn.Module):
    """Drives, one observation at a time or over whole sequences. The state is the core's, held by the caller."""

    def __init__(self, config: DriverConfig) -> None:
        super().__init__()
        config.check()
        self.config = config
        self.env_config: dict[str, Any] = {}
        """The environment it was trained in; filled by `load_driver`."""
        self.meta: dict[str, Any] = {}
        """Whatever the saver noted; filled by `load_driver`."""
        if config.encoder not in ENCODERS:
            raise ValueError(f"encoder: must be one of {sorted(ENCODERS)}, got {config.encoder!r}.")
        self.encoder = ENCODERS[config.encoder](config.frame_shape, config.d_model, config.dropout)
        self.core = build_core(config.core, config.d_model, config.d_model, **config.core_args)
        self.action_head = ACTION_HEADS[config.control](config.d_model, config.dense)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.action_head.out.weight.device

    def forward(self, frames: Tensor, dt: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """frames (B, T, H, W, 3), dt (B, T) seconds -> prediction (B, T, A), new state.

        Frames are uint8, or float in 0..1. A is 5 logits (discrete) or 3 controls (continuous). `state` None is the
        start of an episode. Raises ValueError on inputs that break these rules.
        """
        self._check(frames, dt)
        return self.decide(self.encoder(frames), dt, state)

    def decide(self, features: Tensor, dt: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """`forward` from what the encoder made of the frames: features (B, T, d) -> prediction (B, T, A), new
        state."""
        start = self.initial_state(features.shape[0]) if state is None else state
        y, after = self.core(features, dt.to(self.action_head.out.weight.dtype), start)  # (B, T, d)
        return self.action_head(y + features if self.config.residual else y), after

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
        action = self.action_head.action(prediction[0, 0])
        return (int(action) if self.config.control == "discrete" else action), state

    def predict(
        self,
        observation: np.ndarray,
        state: State | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = True,
    ) -> tuple[np.ndarray, State]:
        """Choose actions, by the interface of stable-baselines3 (`BaseAlgorithm.predict`, `evaluate_policy`).

        Args:
            observation: One observation (H, W, 3) or a batch (n, H, W, 3), or with channels first, as
                VecTransposeImage makes them. Frames are taken to be 1/50 s apart.
            state: What the last call returned; None is the start of an episode.
            episode_start: (n,) bool, True for the rows that start afresh.
            deterministic: Must be True: a cloned driver has no exploration noise.

        Returns:
            The action of one observation, or (n,) or (n, 3) of a batch; and the new state.

        Raises:
            ValueError: If `deterministic` is False, or an observation has another shape than the driver's frames.
        """
        if not deterministic:
            raise ValueError("deterministic: must be True, got False; a cloned driver has no exploration noise.")
        observation = np.asarray(observation)
        single = observation.ndim == 3
        if single:
            observation = observation[None]
        if observation.ndim == 4 and observation.shape[-1] != 3 and observation.shape[1] == 3:
            observation = np.moveaxis(observation, 1, -1)
        frames = self._frames(observation)
        state = self.initial_state(frames.shape[0]) if state is None else state
        if episode_start is not None:
            starts = torch.as_tensor(np.atleast_1d(episode_start), dtype=torch.bool, device=self.device)
            state = reset_rows(state, starts)
        dt = torch.full(frames.shape[:2], NOMINAL_DT, device=self.device)
        prediction, state = self._infer(frames, dt, state)
        action = self.action_head.action(prediction[:, 0])
        return (action[0] if single else action), state

    def _infer(self, frames: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        """`forward` in evaluation mode, without gradients, on one thread."""
        training = self.training
        if training:
            self.eval()
        with torch.no_grad(), one_thread():
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
