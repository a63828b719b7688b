"""Many environments as one: stepped in turn in this process, or spread over worker processes (docs/vector.md)."""

from __future__ import annotations

import pickle
import signal
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import cv2
import gymnasium as gym
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import CloudpickleWrapper, batch_space

from nac_drive.envs.car_racing import CrashMode, EnvConfig, make_env


def make_vec_env(
    config: EnvConfig | None, num_envs: int, *, processes: int = 0, crash: CrashMode = "ignore"
) -> SyncVectorEnv | ProcessVectorEnv:
    """`num_envs` environments of `make_env(config, crash=crash)` as one of gymnasium's vector environments.

    processes: 0 steps them in turn in this process; K spreads them over K worker processes (see `ProcessVectorEnv`).
    The numbers that come back are the same, bit for bit.

    With N environments, `step` takes actions (N,) or (N, 3) and returns observations (N, 96, 96, 3) uint8, rewards,
    terminations and truncations (N,), and an `info` that holds an array (N,) of every entry of `CarRacing`'s.

    At the end of an episode an environment returns its last frame. At the next step it ignores the action and returns
    the first frame of a new track, with reward 0 and a `dt` of 0: gymnasium's AutoresetMode.NEXT_STEP. Tracks follow
    from the seed that `reset` was given. `reset(seed=[...], options={"reset_mask": mask})` puts the environments of the
    boolean (N,) `mask` on tracks of one's choice instead.

    Raises ValueError for fewer than one environment and for more processes than environments.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}.")
    env_fns = [partial(make_env, config, crash=crash)] * num_envs
    return ProcessVectorEnv(env_fns, processes) if processes else SyncVectorEnv(env_fns)


def vector_env(num_envs: int = 1, *, processes: int = 0, crash: CrashMode = "ignore", **config: Any) -> VectorEnv:
    """Make `gymnasium.make_vec("nac_drive/CarRacing-v0", num_envs, vectorization_mode="vector_entry_point")`.

    Args:
        num_envs: How many environments.
        processes: As in `make_vec_env`.
        crash: As in `make_vec_env`.
        **config: Settings of `EnvConfig`.
    """
    return make_vec_env(EnvConfig(**config), num_envs, processes=processes, crash=crash)


class ProcessVectorEnv(VectorEnv):
    """gymnasium's SyncVectorEnv in several processes: each steps its share of the environments in turn.

    gymnasium's AsyncVectorEnv, one process per environment, is slower and larger where there are more environments than
    cores (docs/vector.md). Observations come through shared memory, copied once on arrival.

    env_fns: functions that make one environment each, all with the same spaces; an observation is one array.
    processes: how many; their shares differ by one environment at most.

    The processes are spawned, so a script needs `if __name__ == "__main__":` around what makes one. They end with
    `close`, or with this process. Raises what an environment raises; ChildProcessError when a process died.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]], processes: int):
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        if not 1 <= processes <= len(env_fns):
            raise ValueError(
                f"processes must be 1 to {len(env_fns)}, one per environment at most, got {processes}; "
                "make_vec_env also takes 0, for none beside this one."
            )
        env = env_fns[0]()
        self.num_envs = len(env_fns)
        self.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = env.render_mode
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.observation_space = batch_space(env.observation_space, self.num_envs)
        self.action_space = batch_space(env.action_space, self.num_envs)
        env.close()

        context = get_context("spawn")
        shape, dtype = self.observation_space.shape, self.observation_space.dtype
        assert shape is not None
        memory = context.RawArray("B", int(np.prod(shape)) * np.dtype(dtype).itemsize)
        self._observations = np.frombuffer(memory, dtype).reshape(shape)
        ends = np.linspace(0, self.num_envs, processes + 1).round().astype(int).tolist()
        self._rows = [slice(*bounds) for bounds in pairwise(ends)]
        for rows in self._rows:
            pipe, workers_pipe = context.Pipe()
            make: Any = CloudpickleWrapper(partial(_Share, env_fns[rows], copy=False))  # type: ignore[arg-type]
            process = context.Process(target=_work, args=(workers_pipe, make, memory, rows), daemon=True)
            process.start()
            workers_pipe.close()  # so that the end of the process is the end of the pipe
            self._pipes.append(pipe)
            self._processes.append(process)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is None or isinstance(seed, int):
            seed = [seed if seed is None else seed + index for index in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"seed must be a number or one per environment ({self.num_envs}), got {len(seed)}.")
        options = dict(options or {})
        mask = np.asarray(options.pop("reset_mask", np.ones(self.num_envs, bool)))
        if mask.shape != (self.num_envs,) or mask.dtype != bool or not mask.any():
            raise ValueError(
                f"options['reset_mask'] must be {self.num_envs} booleans, at least one of them True, got {mask}; "
                "leave it out to reset all environments."
            )
        calls = {
            worker: ("reset", (), {"seed": list(seed[rows]), "options": {"reset_mask": mask[rows], **options}})
            for worker, rows in enumerate(self._rows)
            if mask[rows].any()
        }
        answers = self._ask(calls)
        return self._observations.copy(), self._merge((worker, infos) for worker, (infos,) in answers.items())

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if len(actions) != self.num_envs:
            raise ValueError(f"actions must be one per environment ({self.num_envs}), got {len(actions)}.")
        answers = self._ask({worker: ("step", (actions[rows],), {}) for worker, rows in enumerate(self._rows)})
        *outcomes, infos = zip(*answers.values(), strict=True)
        rewards, terminations, truncations = map(np.concatenate, outcomes)
        return self._observations.copy(), rewards, terminations, truncations, self._merge(enumerate(infos))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The result of a method of every environment; the value, where `name` is an attribute."""
        answers = self._ask(dict.fromkeys(range(len(self._rows)), ("call", (name, *args), kwargs)))
        return tuple(chain.from_iterable(answers.values()))

    def render(self) -> tuple[Any, ...]:
        return self.call("render")

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment: to its own of a list or tuple of values, or all to the same."""
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"values must be one for all or one per environment ({self.num_envs}), got {len(values)}.")
        self._ask({worker: ("set_attr", (name, values[rows]), {}) for worker, rows in enumerate(self._rows)})

    def _ask(self, calls: dict[int, tuple[str, tuple, dict[str, Any]]]) -> dict[int, Any]:
        """Have workers call a method of their environments, all at the same time."""
        if self.closed:
            raise ClosedEnvironmentError("the environments are closed; make new ones.")
        try:
            for worker, call in calls.items():
                self._pipes[worker].send(call)
            answers = {worker: self._pipes[worker].recv() for worker in calls}
        except (EOFError, OSError):
            self.close()
            raise ChildProcessError(
                f"one of {len(self._rows)} worker processes died, perhaps out of memory; use fewer processes or "
                'environments. A script needs `if __name__ == "__main__":` around what starts them.'
            ) from None
        except BaseException:  # an answer left in a pipe would be taken for that to the next question
            self.close()
            raise
        for _, error in answers.values():
            if error is not None:
                raise error
        return {worker: answer for worker, (answer, _) in answers.items()}

    def _merge(self, infos: Iterable[tuple[int, dict[int, dict[str, Any]]]]) -> dict[str, Any]:
        """gymnasium's vector `info` from what each worker's environments tell, by their index in the worker."""
        merged: dict[str, Any] = {}
        for worker, told in infos:
            for index, info in told.items():
                merged = self._add_info(merged, info, self._rows[worker].start + index)
        return merged

    def close_extras(self, **kwargs: Any) -> None:
        for pipe in self._pipes:
            with suppress(OSError):  # that one is dead
                pipe.send(None)
            pipe.close()
        for process in self._processes:
            process.join()


class _Share(SyncVectorEnv):
    """Tells what its environments do, each by its index: cheaper to send than arrays, which the parent makes."""

    def _add_info(self, vector_infos: dict[Any, Any], env_info: dict[str, Any], env_num: int) -> dict[Any, Any]:
        vector_infos[env_num] = env_info
        return vector_infos


def _work(pipe: Connection, make: Callable[[], SyncVectorEnv], memory: Any, rows: slice) -> None:
    """A worker: calls what it is asked for, until it is told None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes
    cv2.setNumThreads(1)
    env = make()
    space = env.single_observation_space
    observations = np.frombuffer(memory, space.dtype).reshape(-1, *space.shape)[rows]  # type: ignore[misc]
    try:
        while (call := pipe.recv()) is not None:
            method, args, kwargs = call
            try:
                answer = getattr(env, method)(*args, **kwargs)
                if method in ("reset", "step"):
                    observations[:], *answer = answer
                message = pickle.dumps((answer, None))
            except Exception as error:
                error.add_note(f"In a worker process:\n{traceback.format_exc()}")
                message = pickle.dumps((None, error))
            pipe.send_bytes(message)
    except (EOFError, OSError):  # the parent is gone
        pass
    env.close()
