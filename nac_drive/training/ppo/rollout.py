"""Rollouts of PPO, in threads.

Each drives a part of the environments with a copy of the policy.

Drawing, stepping and the operations of torch leave Python's lock to the other threads. The parts follow from the number
of environments alone and have random numbers of their own, so the rollout does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import torch
from torch import Tensor

from nac_drive.policies.cores.base import map_state, reset_rows
from nac_drive.training.ppo.envs import RolloutEnvs
from nac_drive.training.ppo.in_threads import in_threads
from nac_drive.training.ppo.policy import ActorCritic

_ENVS_PER_PART = 16
"""Environments of a part: a batch that fills the policy's forward pass."""


@dataclass
class Rollout:
    """T actions in each of E environments. Row t is what was seen and done at t, and what came of it."""

    frames: Tensor
    """(T, E, ...): prepared frames, on the device of the policy."""
    privileged: np.ndarray
    """(T, E, K): the simulator's state that the frame shows."""
    after: np.ndarray
    """(T, E, K): its state after the action, before a reset."""
    dt: np.ndarray
    """(T, E): seconds since the previous frame, 0 where an episode begins."""
    starts: np.ndarray
    """(T, E) bool: an episode begins."""
    samples: np.ndarray
    """(T, E) or (T, E, 3), see `ActorCritic.actions`."""
    log_probs: np.ndarray
    """(T, E)."""
    rewards: np.ndarray
    """(T, E)."""
    durations: np.ndarray
    """(T, E): seconds that the action lasted."""
    terminated: np.ndarray
    """(T, E) bool: the episode ended by a rule."""
    ended: np.ndarray
    """(T, E) bool: the episode ended by a rule or a time limit."""
    states: tuple[Tensor, ...]
    """(T / L, E, ...) each: the driver's state before every action whose number is a multiple of L."""
    returns: list[float]
    """Undiscounted native rewards of the episodes that training did not cut; one that it cut is not whole."""


def parts_of(n_envs: int) -> list[range]:
    """Return the ranks of each part.

    There are two parts or more, as two cores are common.
    """
    count = max(n_envs // _ENVS_PER_PART, min(n_envs, 2))
    return [range(rank * n_envs // count, (rank + 1) * n_envs // count) for rank in range(count)]


class RolloutPart:
    """Some environments, and the policy that drives them.

    Args:
        envs: The environments.
        policy: The policy.
        n_steps: Actions of a rollout in each environment, T.
        sequence_length: Actions between two states that are noted, L.
    """

    def __init__(self, envs: RolloutEnvs, policy: ActorCritic, n_steps: int, sequence_length: int) -> None:
        self._envs, self._policy, self._n_steps, self._length = envs, policy, n_steps, sequence_length

    def start_at(self, timesteps: int, rng: np.random.Generator) -> None:
        """Begin new episodes. `rng` draws the actions from here on."""
        self._envs.start_at(timesteps)
        self._rng, count = rng, len(self._envs.observations)
        self._starts = np.ones(count, dtype=bool)
        self._dt = np.zeros(count, dtype=np.float32)
        self._state = self._policy.driver.initial_state(count)

    def load_weights(self, policy: ActorCritic) -> None:
        """Copy the weights of a policy."""
        with torch.no_grad():
            for parameter, source in zip(self._policy.parameters(), policy.parameters(), strict=True):
                parameter.copy_(source)

    @torch.no_grad()
    def drive(self, frames: Tensor, penalty_share: float) -> Rollout:
        """Drive T actions in every environment.

        An action sends frames and times, and waits for the device once.

        Args:
            frames: (T, E, ...), filled in place.
            penalty_share: Fraction of the penalties that is subtracted from the rewards.
        """
        envs, policy, rows, states = self._envs, self._policy, [], []
        device, returns = frames.device, list[float]()
        for t in range(self._n_steps):
            if t % self._length == 0:
                states.append(map_state(torch.clone, self._state))
            prepared = frames[t] = policy.driver.prepare(torch.from_numpy(envs.observations).to(device))
            dt = torch.from_numpy(self._dt)[:, None].to(device)
            outputs, self._state = policy.outputs(prepared[:, None], dt, self._state)
            distribution = policy.distribution_of(outputs.cpu())
            samples = policy.sample(distribution, self._rng)
            row = {
                "privileged": envs.privileged.copy(),
                "dt": self._dt,
                "starts": self._starts,
                "samples": samples[:, 0].numpy(),
                "log_probs": distribution.log_prob(samples)[:, 0].numpy(),
            }
            outcome = envs.step(policy.actions(samples[:, 0]).numpy(), penalty_share)
            row |= {"after": outcome.after, "terminated": outcome.terminated, "ended": outcome.ended}
            row |= {name: getattr(outcome, name).astype(np.float32) for name in ("rewards", "durations")}
            rows.append(row)
            returns += outcome.returns
            self._starts, self._dt = outcome.ended, outcome.dt.astype(np.float32)
            if outcome.ended.any():
                self._state = reset_rows(self._state, torch.from_numpy(outcome.ended).to(device))
        arrays = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        noted = tuple(torch.stack(parts) for parts in zip(*states, strict=True))
        return Rollout(frames=frames, states=noted, returns=returns, **arrays)

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()


class Rollouts:
    """The environments of a run, which a policy drives.

    Args:
        make_envs: Makes the environments of some ranks.
        policy: The policy.
        n_envs: Number of environments, E.
        n_steps: Actions of a rollout in each environment, T.
        sequence_length: See `RolloutPart`.
        threads: Number of threads; results do not depend on it.
    """

    def __init__(
        self,
        make_envs: Callable[[Sequence[int]], RolloutEnvs],
        policy: ActorCritic,
        n_envs: int,
        n_steps: int,
        sequence_length: int,
        threads: int,
    ) -> None:
        shape, device = policy.driver.config.frame_shape, policy.driver.device
        frame = policy.driver.prepare(torch.zeros((1, *shape), dtype=torch.uint8, device=device))[0]
        self._frames = torch.zeros((n_steps, n_envs, *frame.shape), dtype=frame.dtype, device=device)
        self._policy, self._threads, self._ranks = policy, threads, parts_of(n_envs)
        self._parts = [
            RolloutPart(make_envs(ranks), deepcopy(policy), n_steps, sequence_length) for ranks in self._ranks
        ]

    def start_at(self, timesteps: int, seed: int) -> None:
        """Begin new episodes in all environments.

        All random numbers are drawn from here.
        """
        for number, part in enumerate(self._parts):
            part.start_at(timesteps, np.random.default_rng((seed, number)))

    def drive(self, penalty_share: float = 1.0) -> Rollout:
        """Drive T actions in every environment. The next call overwrites the frames.

        Args:
            penalty_share: Fraction of the penalties that is subtracted from the rewards.
        """
        for part in self._parts:
            part.load_weights(self._policy)
        parts = in_threads(partial(self._drive, penalty_share), range(len(self._parts)), self._threads)
        names = [field.name for field in fields(Rollout) if field.name not in ("frames", "states", "returns")]
        return Rollout(
            frames=self._frames,
            states=tuple(torch.cat(each, dim=1) for each in zip(*(part.states for part in parts), strict=True)),
            returns=[value for part in parts for value in part.returns],
            **{name: np.concatenate([getattr(part, name) for part in parts], axis=1) for name in names},
        )

    def _drive(self, penalty_share: float, number: int) -> Rollout:
        ranks = self._ranks[number]
        return self._parts[number].drive(self._frames[:, ranks.start : ranks.stop], penalty_share)

    def close(self) -> None:
        """Close the environments."""
        for part in self._parts:
            part.close()
