"""An update of PPO: advantages, sequences, and clipped loss.

Sequences serve backpropagation through time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nac_drive.policies import Driver
from nac_drive.policies.cores.base import reset_rows
from nac_drive.policies.ops.threads import one_thread
from nac_drive.training.moving_average import MovingAverage
from nac_drive.training.ppo.config import PPOOptimConfig
from nac_drive.training.ppo.in_threads import in_threads
from nac_drive.training.ppo.policy import ActorCritic
from nac_drive.training.ppo.rollout import Rollout

_LARGEST_GRADIENT = 0.5
"""Norm to which the gradients of the policy and of the value network are clipped, each on its own."""
_ACTIONS_PER_SHARD = 256
"""Actions whose gradients a CPU computes at once.

The images between the convolutions fit the caches.
"""
_METRICS = ("loss", "value_loss", "policy_loss", "entropy", "clip_fraction", "approx_kl")
"""Metrics of an update. Without the driver there are the first two."""


def advantages(
    rewards: np.ndarray, values: np.ndarray, next_values: np.ndarray, terminated: np.ndarray, ended: np.ndarray,
    discounts: np.ndarray, gae_lambda: float,
) -> np.ndarray:  # fmt: skip
    """Generalised advantage estimation (Schulman et al., arXiv 1506.02438).

    Args:
        rewards: (T, E).
        values: (T, E), before each action.
        next_values: (T, E), after it; where a time limit cut an episode, the value of its last state.
        terminated: (T, E) bool: nothing follows.
        ended: (T, E) bool: the next row belongs to another episode.
        discounts: (T, E), of what follows each action.
        gae_lambda: Decay per action.

    Returns:
        (T, E).
    """
    errors = rewards + discounts * next_values * ~terminated - values
    result = np.zeros_like(errors)
    later = np.zeros_like(errors[0])
    for t in reversed(range(len(errors))):
        later = errors[t] + discounts[t] * gae_lambda * ~ended[t] * later
        result[t] = later
    return result


def cut(starts: np.ndarray, length: int) -> np.ndarray:
    """Cut a rollout into sequences.

    They begin where an episode does, or at a multiple of `length`.

    Args:
        starts: (T, E) bool: an episode begins.
        length: The longest sequence.

    Returns:
        (S, 3) int: first row, environment and length of each sequence.
    """
    firsts = starts.copy()
    firsts[::length] = True
    columns, rows = np.nonzero(firsts.T)
    ends = np.append(rows[1:], 0)
    last = np.append(columns[1:] != columns[:-1], True)
    ends[last] = len(starts)
    return np.stack((rows, columns, ends - rows), axis=1)


def batches(sequences: np.ndarray, length: int, size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffle the sequences of a rollout into the batches of an epoch.

    Sequences are shuffled in blocks of `length` rows of one environment. All blocks hold as many actions, wherever
    episodes begin, so all batches do too.

    Args:
        sequences: (S, 3), the result of `cut`.
        length: The longest sequence; it divides the rows of the rollout.
        size: Actions per batch.
        rng: Draws the order of the blocks.

    Returns:
        Indices of the sequences of each batch. A batch holds `size` actions where `length` divides `size`; elsewhere
        whole blocks, as even as they can be.
    """
    new = np.diff(sequences[:, 1]).astype(bool) | np.diff(sequences[:, 0] // length).astype(bool)
    blocks = np.split(np.arange(len(sequences)), np.flatnonzero(new) + 1)
    count = min(len(blocks) * length // size, len(blocks))
    return [
        np.concatenate([blocks[block] for block in batch])
        for batch in np.array_split(rng.permutation(len(blocks)), count)
    ]


class Learner:
    """The optimizer of a policy, and updates from rollouts.

    A batch is divided into shards of some actions, whose gradients are computed by threads and added in order: one
    batch on one core and on many gives the same weights, bit for bit.

    Args:
        policy: The policy, trained in place.
        config: Settings.
        threads: Number of threads.
    """

    def __init__(self, policy: ActorCritic, config: PPOOptimConfig, threads: int = 1):
        self.policy, self._config, self._threads = policy, config, threads
        self.optimizer = torch.optim.Adam(policy.parameters(), config.learning_rate, eps=1e-5)
        value = set(policy.value.parameters())
        self._clipped = [[p for p in policy.parameters() if (p in value) == part] for part in (False, True)]
        self.average = MovingAverage(policy.driver, config.ema_decay) if config.ema_decay else None
        has_memory = bool(policy.driver.core.state_shapes())
        self.sequence_length = config.sequence_length if has_memory else 1

    @property
    def driver(self) -> Driver:
        """Return the driver that is validated and saved.

        It is the policy's, or the moving average of its weights.
        """
        return self.policy.driver if self.average is None else self.average.module

    def update(
        self, rollout: Rollout, rate: float, rng: np.random.Generator, *, actor: bool = True
    ) -> dict[str, float]:
        """Learn from a rollout.

        Args:
            rollout: What the policy drove.
            rate: Adam's rate.
            rng: Order of the sequences.
            actor: Train the driver too, not the value network alone.

        Returns:
            Means over the updates: loss and value_loss; with `actor` also policy_loss, entropy, clip_fraction and
            approx_kl.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.policy.driver.requires_grad_(actor)
        if self.policy.spread is not None:
            self.policy.spread.requires_grad_(actor)
        config, sequences = self._config, cut(rollout.starts, self.sequence_length)
        with one_thread():
            data = self._data(rollout)
            metrics = [
                self._step(rollout, data, sequences[batch], actor)
                for _ in range(config.n_epochs)
                for batch in batches(sequences, self.sequence_length, config.batch_size, rng)
            ]
            means = torch.stack(metrics).cpu().double().mean(dim=0)  # no update waits for the device
        return dict(zip(_METRICS, means.tolist(), strict=False))

    def _data(self, rollout: Rollout) -> dict[str, Tensor]:
        """Return advantages, targets, and arrays of the loss.

        The targets are the value network's. The arrays are parts of the rollout. All are on the device.
        """
        config, device = self._config, rollout.frames.device
        privileged = torch.from_numpy(rollout.privileged).to(device)
        with torch.no_grad():
            after = self.policy.values(torch.from_numpy(rollout.after).to(device))
            values, next_values = torch.stack((self.policy.values(privileged), after)).numpy(force=True)
        discounts = config.gamma ** (rollout.durations * round(1 / self.policy.driver.config.nominal_dt))
        advantage = advantages(
            rollout.rewards, values, next_values, rollout.terminated, rollout.ended, discounts, config.gae_lambda
        )
        arrays = {
            "advantage": (advantage - advantage.mean()) / (advantage.std() + 1e-8), "target": advantage + values,
            "log_prob": rollout.log_probs, "samples": rollout.samples, "dt": rollout.dt, "starts": rollout.starts,
        }  # fmt: skip
        sent = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        return {**sent, "privileged": privileged, "frames": rollout.frames}

    def _step(self, rollout: Rollout, data: dict[str, Tensor], sequences: np.ndarray, actor: bool) -> Tensor:
        """Take one step of the optimizer on a batch of sequences (S, 3) and return its metrics."""
        parameters, cores = [each for each in self.policy.parameters() if each.requires_grad], self.policy.cores(actor)
        actions = int(sequences[:, 2].sum())
        count = 1  # a GPU takes the whole batch
        if rollout.frames.device.type == "cpu":
            count = min(-(-actions // _ACTIONS_PER_SHARD), len(sequences))
        shards = np.array_split(sequences, count)

        def gradients(number: int) -> tuple[Any, Tensor]:
            loss, metrics = self._loss(rollout, data, shards[number], actor, actions)
            if number == 0:
                loss = loss + sum(core.penalty() for core in cores)
            return torch.autograd.grad(loss, parameters, allow_unused=True), metrics

        results = in_threads(gradients, range(len(shards)), self._threads)
        self.optimizer.zero_grad(set_to_none=True)
        for gradient, _ in results:
            for parameter, summand in zip(parameters, gradient, strict=True):
                if summand is not None:
                    parameter.grad = summand if parameter.grad is None else parameter.grad.add_(summand)
        for group in self._clipped:
            torch.nn.utils.clip_grad_norm_(group, _LARGEST_GRADIENT)
        self.optimizer.step()
        for core in cores:
            core.after_step()
        if actor and self.average is not None:
            self.average.update(self.policy.driver)
        return torch.stack([metrics for _, metrics in results]).sum(dim=0)

    def _loss(
        self, rollout: Rollout, data: dict[str, Tensor], sequences: np.ndarray, actor: bool, actions: int
    ) -> tuple[Tensor, Tensor]:
        """Return a shard's part of the loss and metrics.

        The batch has so many actions. The shard sends one array of indices, and does not wait for the device.
        """
        config = self._config
        t, e, valid = _indices(sequences, rollout.frames.device)
        part = {name: tensor[t, e] for name, tensor in data.items() if name != "frames"}
        values, target = (each.flatten()[valid] for each in (self.policy.values(part["privileged"]), part["target"]))
        loss = F.smooth_l1_loss(values, target, reduction="sum") / actions
        metrics = [loss, loss]
        if actor:
            noted = tuple(state[t[:, 0] // self.sequence_length, e[:, 0]] for state in rollout.states)
            state = reset_rows(noted, part["starts"][:, 0])
            distribution, _ = self.policy(data["frames"][t, e], part["dt"], state)
            log_ratio = (distribution.log_prob(part["samples"]) - part["log_prob"]).flatten()[valid]
            advantage = part["advantage"].flatten()[valid]
            ratio = log_ratio.exp()
            clipped = ratio.clamp(1 - config.clip_range, 1 + config.clip_range)
            entropy = distribution.entropy().flatten()[valid].sum() / actions
            gain = torch.minimum(ratio * advantage, clipped * advantage).sum() / actions
            loss = loss - gain - config.ent_coef * entropy
            outside = ((ratio - 1).abs() > config.clip_range).sum() / actions
            metrics = [loss, metrics[1], -gain, entropy, outside, (ratio - 1 - log_ratio).sum() / actions]
        return loss, torch.stack(metrics).detach()


def _indices(sequences: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Send the places of the actions of some sequences (S, 3).

    Returns:
        Rows and environments, (S, L) each, in which padding repeats the last action of a sequence; and, once they are
        flat, the places of the actions without padding.
    """
    rows, columns, lengths = sequences.T
    steps = np.arange(lengths.max())
    t = rows[:, None] + np.minimum(steps, lengths[:, None] - 1)
    e = np.broadcast_to(columns[:, None], t.shape)
    valid = np.flatnonzero(steps < lengths[:, None])
    sent = torch.from_numpy(np.concatenate((t.ravel(), e.ravel(), valid))).to(device)
    t_sent, e_sent, valid_sent = sent.split((t.size, t.size, len(valid)))
    return t_sent.view(t.shape), e_sent.view(t.shape), valid_sent
