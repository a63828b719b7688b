"""Rollouts of PPO: processes that hold some environments each and a copy of the policy, and drive on their own.

A process gets weights and returns a part of the rollout. Frames lie in shared memory, so that they are written once and
never sent; the rest is a few kilobytes.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import cv2
import numpy as np
import torch
from gymnasium.vector.utils import CloudpickleWrapper

from nac_drive.policies.cores.base import map_state, reset_rows
from nac_drive.policies.ops.threads import one_thread
from nac_drive.signals import interrupts_held, release_interrupts
from nac_drive.spawning import reason_of_end, require_spawn
from nac_drive.training.ppo_env import TrainingEnv
from nac_drive.training.ppo_policy import Policy


@dataclass
class Rollout:
    """T actions in each of E environments. Row t is what was seen and done at t, and what came of it."""

    frames: np.ndarray
    """(T, E, ...): frames as the driver's encoder prepares them."""
    privileged: np.ndarray
    """(T, E, K): the simulator's state that the frame shows."""
    after: np.ndarray
    """(T, E, K): its state after the action, before a reset."""
    dt: np.ndarray
    """(T, E): seconds since the previous frame, 0 where an episode begins."""
    starts: np.ndarray
    """(T, E) bool: an episode begins."""
    samples: np.ndarray
    """(T, E) or (T, E, 3), see `Policy.actions`."""
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
    states: tuple[np.ndarray, ...]
    """(T / L, E, ...) each: the driver's state before every action whose number is a multiple of L."""
    returns: list[float]
    """Undiscounted native rewards of the episodes that ended by a rule; one that was cut is not whole."""


Part = tuple[dict[str, np.ndarray], tuple[np.ndarray, ...], list[float]]
"""The rollout of some environments: arrays (T, e, ...) by their names in `Rollout`, states, returns."""


class RolloutWorker:
    """Some environments, and the policy that drives them.

    Args:
        make_envs: Functions that make the environments.
        policy: The policy.
        sequence_length: Actions between two states that are noted, L.
        frames: (T, E, ...); rollouts write their frames here.
    """

    def __init__(
        self, make_envs: list[Callable[[], TrainingEnv]], policy: Policy, sequence_length: int, frames: np.ndarray
    ) -> None:
        self._envs = [make() for make in make_envs]
        self._policy, self._frames, self._length = policy, frames, sequence_length

    def start_at(self, timesteps: int, seed: int) -> None:
        """Begin new episodes, and draw all random numbers from here."""
        torch.manual_seed(seed)
        self._observations = []
        for env in self._envs:
            env.start_at(timesteps)
            self._observations.append(env.reset()[0])
        self._privileged = [env.privileged() for env in self._envs]
        self._starts = np.ones(len(self._envs), dtype=bool)
        self._dt = np.zeros(len(self._envs), dtype=np.float32)
        self._state = self._policy.driver.initial_state(len(self._envs))

    def load_weights(self, weights: dict[str, np.ndarray]) -> None:
        """Replace the weights of the policy."""
        with torch.no_grad():
            for name, parameter in self._policy.named_parameters():
                parameter.copy_(torch.from_numpy(weights[name]))

    def drive(self) -> Part:
        """Drive T actions in every environment."""
        with torch.no_grad(), one_thread():
            return self._drive()

    def _drive(self) -> Part:
        rows, states, returns = [], [], []
        for t in range(len(self._frames)):
            if t % self._length == 0:
                states.append(map_state(torch.clone, self._state))
            prepared = self._policy.driver.prepare(torch.from_numpy(np.stack(self._observations)))
            self._frames[t] = prepared.numpy()
            distribution, self._state = self._policy(
                prepared[:, None], torch.from_numpy(self._dt)[:, None], self._state
            )
            samples = self._policy.sample(distribution)
            row = {
                "privileged": np.array(self._privileged),
                "dt": self._dt,
                "starts": self._starts,
                "samples": samples[:, 0].numpy(),
                "log_probs": distribution.log_prob(samples)[:, 0].numpy(),
            }
            actions = self._policy.actions(samples[:, 0]).numpy()
            outcomes = [self._step(index, action, returns) for index, action in enumerate(actions)]
            after, rewards, durations, terminated, ended, dt = map(np.array, zip(*outcomes, strict=True))
            row |= {"after": after, "terminated": terminated, "ended": ended}
            row |= {"rewards": rewards.astype(np.float32), "durations": durations.astype(np.float32)}
            rows.append(row)
            self._starts, self._dt = ended, dt.astype(np.float32)
            if ended.any():
                self._state = reset_rows(self._state, torch.from_numpy(ended))
        arrays = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        return arrays, tuple(torch.stack(parts).numpy() for parts in zip(*states, strict=True)), returns

    def _step(self, index: int, action: Any, returns: list[float]) -> tuple[Any, ...]:
        env = self._envs[index]
        observation, reward, terminated, truncated, info = env.step(action)
        after, duration = env.privileged(), info["dt"]
        self._observations[index], self._privileged[index] = observation, after
        if terminated:
            returns.append(env.native_return)
        if terminated or truncated:
            self._observations[index], info = env.reset()
            self._privileged[index] = env.privileged()
        return after, reward, duration, terminated, terminated or truncated, info["dt"]

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()


class RolloutWorkers:
    """Processes that drive the environments of a run at the same time; with one process, this one.

    Args:
        make_envs: Functions that make one environment each.
        policy: The policy.
        n_steps: T.
        sequence_length: See `RolloutWorker`.
        processes: Their number, 1 to E.
    """

    def __init__(
        self,
        make_envs: list[Callable[[], TrainingEnv]],
        policy: Policy,
        n_steps: int,
        sequence_length: int,
        processes: int,
    ) -> None:
        context = get_context("spawn")
        frame = policy.driver.prepare(torch.zeros((1, *policy.driver.config.frame_shape), dtype=torch.uint8))[0]
        dtype, shape = frame.numpy().dtype, (n_steps, len(make_envs), *frame.shape)
        memory = context.RawArray("B", int(np.prod(shape)) * dtype.itemsize)
        self._frames = np.frombuffer(memory, dtype).reshape(shape)
        ends = np.linspace(0, len(make_envs), processes + 1).round().astype(int).tolist()
        self._policy = policy
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._here: RolloutWorker | None = None
        if processes == 1:
            self._here = RolloutWorker(make_envs, policy, sequence_length, self._frames)
            return
        require_spawn("pass n_envs=1")
        for first, end in pairwise(ends):
            pipe, workers_pipe = context.Pipe()
            make: Any = CloudpickleWrapper(partial(RolloutWorker, make_envs[first:end], policy, sequence_length))  # type: ignore[arg-type]
            process = context.Process(
                target=_serve, args=(workers_pipe, memory, dtype, shape, slice(first, end)), daemon=True
            )
            with interrupts_held():
                process.start()
            workers_pipe.close()
            # an argument of a process that dies at its start would be awaited for ever
            with suppress(OSError):
                pipe.send(make)
            self._pipes.append(pipe)
            self._processes.append(process)

    def start_at(self, timesteps: int, seed: int) -> None:
        """Begin new episodes in all environments, and draw all random numbers from here."""
        if self._here:
            self._here.start_at(timesteps, seed)
        else:
            self._call("start_at", [(timesteps, seed + 1 + rank) for rank in range(len(self._pipes))])

    def drive(self) -> Rollout:
        """Drive T actions in every environment."""
        if self._here:
            parts = [self._here.drive()]
        else:
            weights = {name: parameter.detach().numpy() for name, parameter in self._policy.named_parameters()}
            self._call("load_weights", [(weights,)] * len(self._pipes))
            parts = self._call("drive", [()] * len(self._pipes))
        arrays, states, returns = zip(*parts, strict=True)
        return Rollout(
            frames=self._frames,
            states=tuple(np.concatenate(each, axis=1) for each in zip(*states, strict=True)),
            returns=[value for part in returns for value in part],
            **{name: np.concatenate([part[name] for part in arrays], axis=1) for name in arrays[0]},
        )

    def _call(self, method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        try:
            for pipe, values in zip(self._pipes, arguments, strict=True):
                pipe.send((method, values))
            results = [pipe.recv() for pipe in self._pipes]
        except (EOFError, OSError):
            self.close()
            reason = reason_of_end(process.exitcode for process in self._processes)
            raise ChildProcessError(
                f"one of {len(self._processes)} worker processes {reason}; use fewer environments."
            ) from None
        for _, error in results:
            if error is not None:
                raise error
        return [result for result, _ in results]

    def close(self) -> None:
        """Close the environments and end the processes."""
        if self._here:
            self._here.close()
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(None)
            pipe.close()
        for process in self._processes:
            process.join()


def _serve(
    pipe: Connection,
    memory: Any,
    dtype: Any,
    shape: tuple[int, ...],
    rows: slice,
) -> None:
    """Run a worker: receive calls, send results, until None is received."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes
    release_interrupts()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    worker = pipe.recv().fn(np.frombuffer(memory, dtype).reshape(shape)[:, rows])
    with suppress(EOFError, OSError):  # the parent is gone
        while (call := pipe.recv()) is not None:
            method, values = call
            try:
                pipe.send((getattr(worker, method)(*values), None))
            except Exception as error:
                pipe.send((None, error))
    worker.close()
