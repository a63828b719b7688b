"""The policy that PPO trains.

It is a driver, the spread of the actions around its own, and a value network.

Steer, gas and brake are drawn from Beta distributions with one mode, whose means are the driver's action: a bounded
action needs no clipping (Petrazzini and Antonelo, arXiv 2111.02202). Or they are drawn from normal distributions before
tanh and sigmoid. Discrete actions are drawn from the softmax of the driver's logits.

The value network does not see frames. It sees what the simulator knows of the car, as it is needed in training alone
(Pinto et al., arXiv 1710.06542).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Beta, Categorical, Distribution, Independent, Normal

from nac_drive.policies import Driver, DriverConfig
from nac_drive.policies.cores.base import NOMINAL_DT, Core, State
from nac_drive.policies.cores.registry import build_core

MARGIN = 1e-4
"""Samples and means of a Beta distribution keep this distance from 0 and 1, where its density may be 0."""
ACTION_NOISE = 0.19
"""Standard deviation of a continuous action at the start, as a fraction of its range."""
_HIDDEN = 128


class CoreValue(nn.Module):
    """A value network with a core.

    It maps states (..., K) to values (..., 1).

    The CircuitNet paper has networks of one kind as policy and value functions (Section 3.1). The simulator's state
    hides nothing, so every state is the first frame of an episode.

    Args:
        privileged: Number of inputs, K.
        config: The driver, whose kind of core it has.
    """

    def __init__(self, privileged: int, config: DriverConfig) -> None:
        super().__init__()
        self.core = build_core(config.core, privileged, _HIDDEN, **config.core_args).eval()
        self.out = nn.Linear(_HIDDEN, 1)

    def forward(self, states: Tensor) -> Tensor:
        frames = states.reshape(-1, 1, states.shape[-1])  # (N, 1, K)
        dt = frames.new_full(frames.shape[:2], NOMINAL_DT)
        y, _ = self.core(frames, dt, self.core.initial_state(len(frames)))  # (N, 1, d)
        return self.out(y).reshape(*states.shape[:-1], 1)


class ActorCritic(nn.Module):
    """A driver, the spread of its actions and a value network.

    Args:
        driver: The driver. It is trained in place and in evaluation mode, without dropout and noise of its own: the
            policy that learns is the one that drove.
        privileged: Number of inputs of the value network, K.
        distribution: Of continuous actions: beta or gaussian.
        precision: Of the encoder: 32-true, or bf16-mixed. Driving and learning have the same, and the rest has float32.
        action_noise: Of continuous actions: their standard deviation at the start, as a fraction of their range, for an
            action in the middle of it; with beta at most 0.22, just under sqrt(1/20), so that there is one mode.
        value_core: The value network has a core of the driver's kind, see `CoreValue`.
    """

    def __init__(
        self,
        driver: Driver,
        privileged: int,
        distribution: str = "beta",
        precision: str = "32-true",
        action_noise: float = ACTION_NOISE,
        value_core: bool = False,
    ) -> None:
        super().__init__()
        self.driver, self.distribution = driver.eval(), distribution
        self._in_bfloat16 = precision == "bf16-mixed"
        self.spread: nn.Linear | None = None
        if driver.config.control != "discrete":
            signed: Any = driver.action_head.signed
            self.spread = nn.Linear(driver.config.d_model, len(signed))
            nn.init.zeros_(self.spread.weight)
            self.spread.bias.data.copy_(_start(distribution, action_noise, signed))
        self.value: nn.Module = (
            CoreValue(privileged, driver.config)
            if value_core
            else nn.Sequential(
                nn.Linear(privileged, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, 1)
            )
        )

    def cores(self, actor: bool) -> list[Core]:
        """Return the cores that learn, the driver's with `actor`."""
        of_value = [self.value.core] if isinstance(self.value, CoreValue) else []
        return [self.driver.core, *of_value] if actor else of_value

    def forward(self, prepared: Tensor, dt: Tensor, state: State) -> tuple[Distribution, State]:
        """Return the distributions of samples, and the driver's state.

        Samples are (B, T) or (B, T, K), see `actions`. The state is new.

        Args:
            prepared: Frames as the driver's encoder prepares them, (B, T, ...).
            dt: Seconds since the previous observation, (B, T).
            state: The driver's state.
        """
        outputs, state = self.outputs(prepared, dt, state)
        return self.distribution_of(outputs), state

    def outputs(self, prepared: Tensor, dt: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the numbers of the distributions, and the driver's state.

        They are one tensor, so that one transfer reads them: logits (B, T, A), or two numbers (B, T, 2 K) for each part
        of an action. The arguments are as in `forward`.
        """
        with torch.autocast(prepared.device.type, torch.bfloat16, self._in_bfloat16):
            features = self.driver.encode(prepared)
        y, state = self.driver.core_output(features.to(dt.dtype), dt, state)
        head: Any = self.driver.action_head
        z = head.out(head.hidden(y).relu())
        if self.spread is None:
            return z, state
        if self.distribution == "gaussian":
            return torch.cat((z, self.spread(y).clamp(-5, 1).exp()), dim=-1), state
        mean = MARGIN + (1 - 2 * MARGIN) * head.fractions(z)  # a clamp would have no gradient at the ends
        concentration = 1 / (mean * (1 - mean)) + F.softplus(self.spread(y))  # both parameters exceed 1: one mode
        return torch.cat((mean * concentration, (1 - mean) * concentration), dim=-1), state

    def distribution_of(self, outputs: Tensor) -> Distribution:
        """Return the distributions that `outputs` describes, on any device."""
        if self.spread is None:
            return Categorical(logits=outputs, validate_args=False)
        family = Normal if self.distribution == "gaussian" else Beta
        return Independent(family(*outputs.chunk(2, dim=-1), validate_args=False), 1)

    def sample(self, distribution: Distribution, rng: np.random.Generator) -> Tensor:
        """Draw samples, of which `distribution` has a finite density.

        Args:
            distribution: As `forward` returns it, on the CPU.
            rng: Draws them. torch's generator would be one for all threads.
        """
        drawn: Any = distribution if self.spread is None else distribution.base_dist  # type: ignore[attr-defined]
        if self.spread is None:
            passed = drawn.probs.cumsum(dim=-1).numpy()
            passed /= passed[..., -1:]
            return torch.from_numpy((rng.random(passed.shape[:-1])[..., None] >= passed).sum(axis=-1))
        if self.distribution == "gaussian":
            noise = torch.from_numpy(rng.standard_normal(drawn.loc.shape, dtype=np.float32))
            return drawn.loc + drawn.scale * noise
        samples = rng.beta(drawn.concentration1.numpy(), drawn.concentration0.numpy())
        return torch.from_numpy(samples.astype(np.float32)).clamp(MARGIN, 1 - MARGIN)

    def actions(self, samples: Tensor) -> Tensor:
        """Return the actions of the environment, (...) or (..., K), of samples."""
        if self.spread is None:
            return samples
        head: Any = self.driver.action_head
        if self.distribution == "gaussian":
            return head.squash(samples)
        return head.of_fractions(samples)

    def values(self, privileged: Tensor) -> Tensor:
        """Return the expected discounted rewards (...) of the simulator's states (..., K)."""
        return self.value(privileged).squeeze(-1)


def _start(distribution: str, noise: float, signed: Sequence[bool]) -> Tensor:
    """Return the bias (K,) of the spread of actions.

    An action in its middle deviates by `noise` times its range.
    """
    if distribution == "gaussian":  # tanh has the slope 1 at 0 and a range of 2, sigmoid 1/4 and 1
        return (noise * torch.tensor([2.0 if each else 4.0 for each in signed])).log()
    more = 0.25 / noise**2 - 1 - 4  # the variance of Beta(c / 2, c / 2) is 1 / (4 (c + 1)), and c is 4 + more
    return torch.full((len(signed),), math.log(math.expm1(more)))
