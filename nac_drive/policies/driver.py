"""The driver: encoder -> core -> action head."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nac_drive.arguments import require_kind, value_text
from nac_drive.policies.action_heads import build_action_head
from nac_drive.policies.batched_acts import BatchedActs
from nac_drive.policies.config import DriverConfig
from nac_drive.policies.cores.base import NOMINAL_DT, State, reset_rows
from nac_drive.policies.cores.registry import build_core
from nac_drive.policies.encoders import Encoder, build_encoder, zero_black
from nac_drive.policies.ops.evaluation_mode import evaluation_mode
from nac_drive.policies.ops.threads import one_thread
from nac_drive.policies.ranges import seconds

LONGEST_DT = 1e9
"""Largest seconds between two frames; every core gives finite numbers up to there."""

Action = int | np.ndarray


class Driver(nn.Module):
    """An encoder, a core and an action head. It acts on one observation at a time or on whole sequences.

    The state is the core's; the caller holds it.

    Args:
        config: Settings of the three parts.

    Raises:
        ValueError: `config` is no `DriverConfig`, or a setting is unknown or outside its range.
    """

    def __init__(self, config: DriverConfig) -> None:
        super().__init__()
        require_kind("config", config, DriverConfig)
        config.check()
        self.config = config
        self.env_config: dict[str, Any] = {}
        """Configuration of the environment that it was trained in; set by `load_driver`."""
        self.meta: dict[str, Any] = {}
        """Notes saved with the driver; set by `load_driver`."""
        self.encoder = build_encoder(config.encoder, config.frame_shape, config.encoder_features, config.dropout)
        self.clock = nn.Linear(1, config.encoder_features) if config.dt_input else None
        self.core = build_core(config.core, config.encoder_features, config.d_model, **config.core_args)
        self.action_head = build_action_head(
            config.control, config.d_model, config.dense, config.num_actions, config.part_ranges
        )
        self._time_scale = NOMINAL_DT / config.nominal_dt
        """Seconds of a core in a second: it takes 1/50 s for a frame."""
        self._batched_acts = BatchedActs()

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.action_head.out.weight.device

    def forward(self, frames: Tensor, dt: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Predict the actions of sequences.

        Args:
            frames: Observations, (B, T, H, W, 3), uint8 or float in 0..1.
            dt: Seconds since the previous observation, (B, T). Times on the CPU are checked without waiting for the
                device of the driver.
            state: The state before the first frame; None for the start of an episode.

        Returns:
            Prediction (B, T, A), A logits (discrete) or numbers (continuous), and the new state.

        Raises:
            ValueError: A type, shape, dtype or value breaks these rules.
        """
        self._check(frames, dt)
        return self.decide(self.features(frames), dt.to(frames.device), state)

    def features(self, frames: Tensor) -> Tensor:
        """Return the features (..., d) of frames (..., H, W, 3), which `decide` takes."""
        features = self.encoder(frames)
        return zero_black(features, frames) if self.config.zero_lost_frames else features

    def prepare(self, frames: Tensor) -> Tensor:
        """Do the part of `features` that has no weights.

        It is done once if the same frames are learned from many times.
        """
        return self.encoder.prepare(frames) if isinstance(self.encoder, Encoder) else frames

    def encode(self, prepared: Tensor) -> Tensor:
        """Return the features (..., d) of frames that `prepare` has prepared."""
        features = self.encoder.encode(prepared) if isinstance(self.encoder, Encoder) else self.encoder(prepared)
        return zero_black(features, prepared) if self.config.zero_lost_frames else features

    def decide(self, features: Tensor, dt: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Compute `forward` from features (B, T, d) instead of frames."""
        y, after = self.core_output(features, dt, state)
        return self.action_head(y), after

    def core_output(self, features: Tensor, dt: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return the action head's input (B, T, d) from features.

        Features are the encoder's, (B, T, d).
        """
        start = self.initial_state(features.shape[0]) if state is None else state
        if self.config.clockless:
            dt = torch.full_like(dt, NOMINAL_DT)
        elif self._time_scale != 1:
            dt = dt * self._time_scale
        if self.clock is not None:
            features = features + self.clock(torch.log1p(dt / NOMINAL_DT).to(features.dtype).unsqueeze(2))
        y, after = self.core(features, dt.to(self.action_head.out.weight.dtype), start)  # (B, T, d)
        return (y + features if self.config.residual else y), after

    def initial_state(self, batch: int) -> State:
        """Return the state at the start of `batch` episodes."""
        return self.core.initial_state(batch)

    def begin(self, env: object = None) -> State:
        """Return the state at the start of one episode. `env` has no effect on a learned driver."""
        return self.initial_state(1)

    def act(self, observation: np.ndarray, state: State, dt: float) -> tuple[Action, State]:
        """Choose one action, without gradients and dropout.

        Args:
            observation: One frame, (H, W, 3) uint8.
            state: The state before this frame.
            dt: Seconds since the previous observation.

        Returns:
            The action, an int (discrete) or float32 (K,) (continuous), and the new state.

        Raises:
            ValueError: The observation has another shape or type, or `dt` is no number of seconds.
        """
        frames = self._frames(np.asarray(observation)[None])
        prediction, state = self._infer(frames, torch.tensor([[seconds(dt)]]), state)
        action = self.action_head.action(prediction[0, 0])
        return (int(action) if self.config.control == "discrete" else action), state

    def act_batch(
        self, observations: Sequence[np.ndarray], states: Sequence[State], dts: Sequence[float]
    ) -> tuple[list[Action], list[State]]:
        """Choose one action for each of several cars, in few passes.

        A car's action and state have the bits of `act`: they depend neither on the number of cars nor on the others.
        `BatchedActs` says how this is guaranteed.

        Args:
            observations: One frame per car, (H, W, 3) uint8.
            states: The state of each car before its frame.
            dts: Seconds since the previous observation of each car.

        Returns:
            The action and the new state of each car, as `act` returns them.

        Raises:
            ValueError: See `act`, or the three lists differ in length.
        """
        alone = type(self).act is not Driver.act  # a subclass decides in its own way
        return self._batched_acts(self, observations, states, dts, alone=alone)  # type: ignore[arg-type]

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
                VecTransposeImage makes them. Frames are taken to be `config.nominal_dt` apart, and the first one of an
                episode comes after no time, as in `rollout`.
            state: The state that the last call returned; None for the start of an episode.
            episode_start: (n,) bool, True for the rows that start an episode.
            deterministic: Must be True: a cloned driver has no exploration noise.

        Returns:
            The action of one observation, or (n,) or (n, 3) actions of a batch, and the new state.

        Raises:
            ValueError: `deterministic` is False, or an observation does not have the shape of the driver's frames.
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
        dt = torch.full(frames.shape[:2], 0.0 if state is None else self.config.nominal_dt)
        state = self.initial_state(frames.shape[0]) if state is None else state
        if episode_start is not None:
            starts = torch.as_tensor(np.atleast_1d(episode_start), dtype=torch.bool)
            state, dt = reset_rows(state, starts.to(self.device)), dt.masked_fill(starts[:, None], 0.0)
        prediction, state = self._infer(frames, dt, state)
        action = self.action_head.action(prediction[:, 0])
        return (action[0] if single else action), state

    def _infer(self, frames: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        """Compute `forward` in evaluation mode, without gradients, on one thread."""
        with evaluation_mode(self) if self.training else nullcontext(), torch.no_grad(), one_thread():
            return self(frames, dt, state)

    def _frames(self, observations: np.ndarray) -> Tensor:
        """Turn observations (n, H, W, 3) into frames (n, 1, H, W, 3).

        Only data that torch cannot view is copied.
        """
        if observations.dtype.kind not in "biuf" or not observations.ndim:
            got = reprlib.repr(observations.tolist())
            raise ValueError(f"frames: must be images of numbers, got {got}; pass an observation.")
        if not observations.flags.writeable or any(stride < 0 for stride in observations.strides):
            observations = observations.copy()
        return torch.from_numpy(observations).unsqueeze(1).to(self.device)

    def _check(self, frames: Tensor, dt: Tensor) -> None:
        for name, value in (("frames", frames), ("dt", dt)):
            if not isinstance(value, Tensor):
                fix = f"torch.from_numpy({name})" if isinstance(value, np.ndarray) else "torch.tensor(...)"
                raise ValueError(f"{name}: must be a tensor, got {value_text(value)}; pass {fix}.")
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
            if not _within(frames, 1.0):
                low, high = frames.detach().aminmax()
                raise ValueError(f"frames: float frames must be in [0, 1], got {low:g}..{high:g}; divide by 255.")
        if not dt.is_floating_point():
            raise ValueError(f"dt: dtype must be floating, got {dt.dtype}; pass dt.float().")
        if not _within(dt, LONGEST_DT):
            low, high = dt.detach().aminmax()
            raise ValueError(
                f"dt: must be finite seconds >= 0 and <= {LONGEST_DT:g} since the previous frame, "
                f"got {low:g}..{high:g}."
            )


def _within(values: Tensor, most: float) -> bool:
    """Return whether all values lie in 0 to `most`.

    It waits for the device once.
    """
    values = values.detach()
    return bool(((values >= 0.0) & (values <= most)).all())
