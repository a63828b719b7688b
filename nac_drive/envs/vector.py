"""Vector environments, compiled or in worker processes (docs/vector.md)."""

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

from nac_drive.envs.batch import CarRacingVectorEnv, reset_arguments
from nac_drive.envs.car_racing import CrashMode
from nac_drive.envs.config import EnvConfig, make_env
from nac_drive.envs.native.check import compiled
from nac_drive.envs.registered import read_settings, step_limit, step_limited_env
from nac_drive.parallel.signals import interrupts_held, release_interrupts
from nac_drive.parallel.spawning import reason_of_end, require_spawn
from nac_drive.plain import plain, whole


def make_vec_env(
    config: EnvConfig | None,
    num_envs: int,
    *,
    processes: int = 0,
    crash: CrashMode = "ignore",
    render_mode: str | None = None,
    out: np.ndarray | None = None,
) -> CarRacingVectorEnv | ProcessVectorEnv | SeededSyncVectorEnv:
    """Make `num_envs` environments as one of gymnasium's vector environments.

    With N environments, `step` takes actions (N,) or (N, 3). It returns observations (N, 96, 96, 3) uint8, rewards,
    terminations and truncations (N,), and an `info` with an array (N,) of every entry of `CarRacing`'s.

    At the end of an episode an environment returns its last frame. At the next step it ignores the action and returns
    the first frame of a new track, with reward 0 and a `dt` of 0: gymnasium's AutoresetMode.NEXT_STEP. Tracks follow
    from the seed of `reset`. `reset(seed=[...], options={"reset_mask": mask})` begins episodes on chosen tracks in the
    environments of the boolean (N,) `mask`, and leaves the others as they are.

    CarRacing without perturbations is a `CarRacingVectorEnv`: all environments are stepped in one call of compiled
    code. Others are stepped in turn. The results are the same, bit for bit.

    Args:
        config: As in `make_env`.
        num_envs: Number of environments, at least 1.
        processes: 0 for none beside this one. K spreads the environments over K worker processes (see
            `ProcessVectorEnv`), which pays for perturbed environments alone. The results are the same, bit for bit.
        crash: As in `make_env`.
        render_mode: As in gymnasium. `render` returns one image per environment.
        out: Memory of the observations, see `CarRacingVectorEnv`.

    Returns:
        The vector environment.

    Raises:
        ValueError: If `num_envs` is less than 1, if there are more processes than environments, and for an `out` where
            the environments are not one batch.
    """
    config = config or EnvConfig()
    make = partial(make_env, config, crash=crash, render_mode=render_mode)
    settings: dict[str, Any] = {"crash": crash, "render_mode": render_mode, "out": out, "max_steps": config.max_steps}
    return _vector(config, make, num_envs, processes, settings)


def vector_env(
    num_envs: int = 1,
    *,
    processes: int = 0,
    max_episode_steps: int | None = None,
    out: np.ndarray | None = None,
    **settings: Any,
) -> CarRacingVectorEnv | ProcessVectorEnv | SeededSyncVectorEnv:
    """Make the vector environment of `gymnasium.make_vec("nac_drive/CarRacing-v0", num_envs)`.

    Args:
        num_envs: Number of environments.
        processes: As in `make_vec_env`.
        max_episode_steps: Steps before an episode is truncated; gymnasium passes this.
        out: As in `make_vec_env`.
        **settings: As in `single_env`.

    Returns:
        The vector environment of `make_vec_env`, of environments that `gymnasium.make` makes.

    Raises:
        TypeError: As `single_env`.
        ValueError: As `make_vec_env` and `single_env`.
    """
    read, steps = read_settings(**settings), step_limit(max_episode_steps)
    limits = [steps, read.config.max_steps if read.limited else None]
    keywords: dict[str, Any] = {
        "crash": read.crash, "render_mode": read.render_mode, "out": out,
        "max_steps": min((limit for limit in limits if limit is not None), default=None), **read.of_car_racing,
    }  # fmt: skip
    return _vector(read.config, partial(step_limited_env, read, steps), num_envs, processes, keywords)


def _vector(
    config: EnvConfig, make: Callable[[], gym.Env], num_envs: int, processes: int, keywords: dict[str, Any]
) -> CarRacingVectorEnv | ProcessVectorEnv | SeededSyncVectorEnv:
    """Make a batch if possible, else single environments by `make`."""
    num_envs, processes = whole("num_envs", num_envs, 1), whole("processes", processes)
    alike = config.environment == EnvConfig.environment and config.perturb is None
    library = compiled() if alike and not processes and keywords["render_mode"] != "human" else None
    if library is not None:
        return CarRacingVectorEnv(config, num_envs, library, **keywords)
    if keywords["out"] is not None:
        raise ValueError("out needs environments in one batch: CarRacing without perturbations, processes or a window.")
    env_fns = [make] * num_envs
    return ProcessVectorEnv(env_fns, processes) if processes else SeededSyncVectorEnv(env_fns)


class ProcessVectorEnv(VectorEnv):
    """gymnasium's SyncVectorEnv spread over several processes.

    gymnasium's AsyncVectorEnv has one process per environment. It is slower and larger where there are more
    environments than cores (docs/vector.md). Observations pass through shared memory and are copied once.

    The processes are spawned, so a script needs `if __name__ == "__main__":` around the code that makes one. They do
    not load torch. They end with `close`, or with this process. An exception of an environment is raised here; a dead
    process raises ChildProcessError.

    Args:
        env_fns: Functions that make one environment each, all with the same spaces. An observation is one array.
        processes: Number of processes, 1 to `len(env_fns)`. Their numbers of environments differ by one at most.

    Raises:
        ValueError: For another number of processes.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]], processes: int):
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        processes = whole("processes", processes)
        if not 1 <= processes <= len(env_fns):
            raise ValueError(
                f"processes must be 1 to {len(env_fns)}, one per environment at most, got {processes}; "
                "make_vec_env also takes 0, for none beside this one."
            )
        require_spawn("make_vec_env with processes=0")
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
            make: Any = CloudpickleWrapper(partial(_WorkerEnvs, env_fns[rows], copy=False))  # type: ignore[arg-type]
            process = context.Process(target=_serve, args=(workers_pipe, make, memory, rows), daemon=True)
            with interrupts_held():
                process.start()
            workers_pipe.close()  # so that the end of the process is the end of the pipe
            self._pipes.append(pipe)
            self._processes.append(process)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new episodes.

        Args:
            seed: One per environment, or a number n for n, n + 1, n + 2, ...; None continues the generators.
            options: `reset_mask`, (num_envs,) bool, selects the environments to reset. Others are passed on.

        Returns:
            Observations of all environments, and `info` of the environments that were reset.

        Raises:
            ValueError: If the number of seeds or the mask does not match the environments.
        """
        seeds, mask, options = reset_arguments(self.num_envs, seed, options)
        calls = {
            worker: ("reset", (), {"seed": seeds[rows], "options": {"reset_mask": mask[rows], **options}})
            for worker, rows in enumerate(self._rows)
            if mask[rows].any()
        }
        results = self._call_workers(calls)
        return self._observations.copy(), self._merge((worker, infos) for worker, (infos,) in results.items())

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Advance every environment by one step.

        Args:
            actions: One per environment.

        Returns:
            Observations, rewards, terminations and truncations, arrays of `num_envs`; and `info`.

        Raises:
            ValueError: If the number of actions is not the number of environments.
            ChildProcessError: If a process died.
        """
        if len(actions) != self.num_envs:
            raise ValueError(f"actions must be one per environment ({self.num_envs}), got {len(actions)}.")
        results = self._call_workers({worker: ("step", (actions[rows],), {}) for worker, rows in enumerate(self._rows)})
        *outcomes, infos = zip(*results.values(), strict=True)
        rewards, terminations, truncations = map(np.concatenate, outcomes)
        return self._observations.copy(), rewards, terminations, truncations, self._merge(enumerate(infos))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call method `name` of every environment and return the results. An attribute gives its values."""
        results = self._call_workers(dict.fromkeys(range(len(self._rows)), ("call", (name, *args), kwargs)))
        return tuple(chain.from_iterable(results.values()))

    def render(self) -> tuple[Any, ...]:
        """Return the result of `render` of every environment."""
        return self.call("render")

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return attribute `name` of every environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment.

        Args:
            name: The attribute.
            values: A list or tuple with one value per environment, or one value for all.

        Raises:
            ValueError: If the number of values is not the number of environments.
        """
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"values must be one for all or one per environment ({self.num_envs}), got {len(values)}.")
        self._call_workers({worker: ("set_attr", (name, values[rows]), {}) for worker, rows in enumerate(self._rows)})

    def _call_workers(self, calls: dict[int, tuple[str, tuple, dict[str, Any]]]) -> dict[int, Any]:
        """Send method calls to workers and return their results."""
        if self.closed:
            raise ClosedEnvironmentError("the environments are closed; make new ones.")
        try:
            for worker, call in calls.items():
                self._pipes[worker].send(call)
            results = {worker: self._pipes[worker].recv() for worker in calls}
        except (EOFError, OSError):
            self.close()
            reason = reason_of_end(process.exitcode for process in self._processes)
            raise ChildProcessError(
                f"one of {len(self._rows)} worker processes {reason}; use fewer processes or environments."
            ) from None
        except BaseException:  # a result left in a pipe would be taken for the next call's
            self.close()
            raise
        for _, error in results.values():
            if error is not None:
                raise error
        return {worker: result for worker, (result, _) in results.items()}

    def _merge(self, infos: Iterable[tuple[int, dict[int, dict[str, Any]]]]) -> dict[str, Any]:
        """Merge the infos of workers into gymnasium's vector `info`."""
        merged: dict[str, Any] = {}
        for worker, worker_infos in infos:
            for index, info in worker_infos.items():
                merged = self._add_info(merged, info, self._rows[worker].start + index)
        return merged

    def close_extras(self, **kwargs: Any) -> None:
        """End the processes; `close` calls this."""
        for pipe in self._pipes:
            with suppress(OSError):  # the process is dead
                pipe.send(None)
            pipe.close()
        for process in self._processes:
            process.join()


class SeededSyncVectorEnv(SyncVectorEnv):
    """gymnasium's SyncVectorEnv, which takes a seed of numpy too."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=plain(seed), options=options)


class _WorkerEnvs(SyncVectorEnv):
    """Environments of one worker. Its vector info is the single infos by index, cheaper to send than arrays."""

    def _add_info(self, vector_infos: dict[Any, Any], env_info: dict[str, Any], env_num: int) -> dict[Any, Any]:
        vector_infos[env_num] = env_info
        return vector_infos


def _serve(pipe: Connection, make: Callable[[], SyncVectorEnv], memory: Any, rows: slice) -> None:
    """Run a worker: receive method calls and send results.

    None ends it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes
    release_interrupts()
    cv2.setNumThreads(1)
    env = make()
    space = env.single_observation_space
    observations = np.frombuffer(memory, space.dtype).reshape(-1, *space.shape)[rows]  # type: ignore[misc]
    try:
        while (call := pipe.recv()) is not None:
            method, args, kwargs = call
            try:
                result = getattr(env, method)(*args, **kwargs)
                if method in ("reset", "step"):
                    observations[:], *result = result
                message = pickle.dumps((result, None))
            except Exception as error:
                error.add_note(f"In a worker process:\n{traceback.format_exc()}")
                message = pickle.dumps((None, error))
            pipe.send_bytes(message)
    except (EOFError, OSError):  # the parent is gone
        pass
    env.close()
