"""PPO: a driver learns by driving, with any core.

It begins with random weights or as a cloned driver.

PPO: Schulman et al., arXiv 1707.06347. PPO from a clone of a privileged expert: Chen et al., "Learning by Cheating",
arXiv 1912.12294. Threads drive some environments each with a copy of the policy (`rollout`); then threads
compute the gradients of some actions each, through time in cores with memory (`update`).

On the CPU a run goes on bit for bit as if never interrupted, whatever the number of cores. At every checkpoint all
environments begin a new episode, and all random numbers are drawn anew from the seed and the number of frames, with and
without an interruption.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from nac_drive.arguments import checks_shared_arguments, path_of
from nac_drive.data_collection.trained_env import trained_env
from nac_drive.envs import EnvConfig, EnvSpec
from nac_drive.events import Event, Progress, message
from nac_drive.notebook import automatic
from nac_drive.parallel.processes import Pool, default_workers
from nac_drive.policies import Driver, load_driver, save_driver
from nac_drive.policies.cores.pdna import NoisyCfC
from nac_drive.policies.ops.generators import own_generators
from nac_drive.policies.tensors import read_tensors, saved_tensors
from nac_drive.training.config import require_config
from nac_drive.training.distributed import warn_of_emulation
from nac_drive.training.finite import require_finite_weights
from nac_drive.training.plan import TrainingPlan, open_run
from nac_drive.training.ppo.config import PPOConfig
from nac_drive.training.ppo.env import privileged_size
from nac_drive.training.ppo.envs import rollout_envs
from nac_drive.training.ppo.policy import ActorCritic
from nac_drive.training.ppo.rollout import Rollouts
from nac_drive.training.ppo.update import Learner
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.training_state import load_training_state, save_training_state
from nac_drive.training.validation import closed_loop, on_cpu, returns_note

_POLICY = "policy.safetensors"
_EPISODES_REPORTED = 100
"""The latest episodes of training whose mean return is reported."""


@own_generators()
@checks_shared_arguments
def ppo(
    config: PPOConfig,
    folder: str | os.PathLike[str],
    *,
    device: str = "auto",
    resume: bool = False,
    pool: Pool | None = None,
    progress: Progress = automatic,
) -> Path:
    """Train a driver by PPO.

    Args:
        config: Settings. The driver learns in evaluation mode: what drives is what learns.
        folder: The folder of the run.
        device: `auto`, `cpu` or `cuda`.
        resume: Go on from the last checkpoint, bit for bit as if never interrupted. `total_timesteps` may have grown;
            the learning rate then falls to zero over the new number.
        pool: Processes for the validation episodes, see `worker_pool`; None: this process.
        progress: Called after every rollout with the mean return of the last whole episodes and the metrics of
            `Learner.update`, after every validation episode, and with a message after every validation.

    Returns:
        The folder of the best checkpoint.

    Raises:
        FileExistsError: If the run exists and `resume` is off.
        FileNotFoundError: If there is no run to resume.
        ValueError: For an argument of another type, if the device is not there, the driver would have dropout or noise
            in training, its sequences do not fill a rollout, `init_from` drives another environment, or the run was
            started with other settings or by an older version.
        DivergedError: If a weight becomes NaN or infinite; the last checkpoint is kept.
        FolderInUseError: If another process writes to the folder.

    Warns:
        UserWarning: If the processor has no bfloat16 of its own, so that it is many times slower.
    """
    require_config(config, PPOConfig)
    config.check()
    folder = path_of("folder", folder)
    RunFolder.require(folder, resume)
    plan = TrainingPlan.resolve(config, config.env, device=device, grown=("total_timesteps",))
    if plan.device.type == "cpu":
        warn_of_emulation(config.optim.precision)
    learner, n_steps = Learner(build_policy(plan), config.optim, default_workers()), config.rollout.n_steps
    if n_steps % learner.sequence_length:
        raise ValueError(
            f"sequence_length must divide n_steps = {n_steps} in a core with memory, got {learner.sequence_length}."
        )
    with open_run(folder, plan, resume=resume) as run:
        last = run.checkpoint_folder("last")
        step = _load(learner, last) if last else 0
        run.keep_config(plan.resolved, plan.grown)  # only now: a run that cannot be read stays as it is
        training = _Training(plan, run, learner, step, pool, progress)
        if not run.rows():
            training.validate({"step": step, "seconds": 0.0})
        if step < config.total_timesteps:
            training.learn()
        best = run.checkpoint_folder("best")
    assert best is not None
    return best


def _load(learner: Learner, folder: Path) -> int:
    """Load weights and moments; return the number of frames."""
    learner.driver.load_state_dict(load_driver(folder).state_dict())
    weights = dict(learner.policy.named_parameters())
    for name, saved in read_tensors(folder / "training_state" / _POLICY, weights, "config.yaml").items():
        weights[name].data.copy_(saved)
    state = load_training_state(folder / "training_state", learner.optimizer)
    if learner.average is not None:
        learner.average.updates = state["averaged"]
    return state["step"]


# The policy


def build_policy(plan: TrainingPlan[PPOConfig]) -> ActorCritic:
    """Make the policy that a run begins with.

    Raises:
        ValueError: If `init_from` was trained without the bar.
    """
    torch.manual_seed(plan.config.seed)
    driver = _init_from(plan) if plan.sources else _random(plan.config, plan.env.spec)
    policy = ActorCritic(
        driver, privileged_size(plan.env), plan.config.rollout.distribution, plan.config.optim.precision,
        value_core=plan.config.optim.value_core,
    )  # fmt: skip
    return policy.to(plan.device)


def _random(config: PPOConfig, spec: EnvSpec) -> Driver:
    """Make a driver whose first actions hardly depend on frames.

    They are half gas and no brake, or all actions alike.
    """
    driver = Driver(config.driver)
    if isinstance(driver.core, NoisyCfC):
        raise ValueError(
            f"core must add no noise in training, got {config.driver.core}: the policy that learns must be the one "
            "that drove; cfc is the same core without noise."
        )
    with torch.no_grad():
        driver.action_head.out.weight.mul_(0.1)
        driver.action_head.out.bias.zero_()
        if config.driver.control != "discrete":
            for number, part in enumerate(spec.parts):
                if part == "brake":
                    driver.action_head.out.bias[number] = -3.0  # on average the car would not move against its brake
    return driver


def _init_from(plan: TrainingPlan[PPOConfig]) -> Driver:
    config, source = plan.config, plan.sources["init_from"]
    driver = on_cpu(source)
    trained = trained_env(source)
    if trained and trained.mask_bar:
        raise ValueError(
            f"init_from {str(config.optim.init_from)!r} was trained without the status bar; pass one that was trained "
            "with it."
        )
    if driver.config.control == "discrete":
        driver.action_head.out.weight.data *= config.optim.init_logit_scale
        driver.action_head.out.bias.data *= config.optim.init_logit_scale
    return driver


# Rollouts, learning, validation


def _penalty_share(config: PPOConfig, step: int) -> float:
    """Return the fraction of the penalties that counts now.

    It depends on the frames so far.
    """
    if config.optim.init_from or not config.reward.penalty_warmup_steps:
        return 1.0
    return min(step / config.reward.penalty_warmup_steps, 1.0)


class _Training:
    """A run from its last checkpoint on."""

    def __init__(
        self,
        plan: TrainingPlan[PPOConfig],
        run: RunFolder,
        learner: Learner,
        step: int,
        pool: Pool | None,
        progress: Progress,
    ) -> None:
        self._run, self._config, self._env, self._learner = run, plan.config, plan.env, learner
        self._step, self._pool, self._progress = step, pool, progress
        rows = run.rows()
        self._seconds = rows[-1]["seconds"] if rows else 0.0
        """Driving and learning so far, without validations."""
        self._returns: deque[float] = deque(maxlen=_EPISODES_REPORTED)

    def learn(self) -> None:
        """Drive and learn up to `total_timesteps`.

        Every rollout leaves a row. A validation joins the row of its step.

        Raises:
            DivergedError: A weight or a metric is not finite.
        """
        config = self._config
        rollouts = Rollouts(
            partial(rollout_envs, self._env, config),
            self._learner.policy,
            config.rollout.n_envs,
            config.rollout.n_steps,
            self._learner.sequence_length,
            default_workers() if self._env.environment == EnvConfig.environment else 1,  # others may not bear threads
        )
        try:
            while self._step < config.total_timesteps:
                order = self._start_over(rollouts)
                end = min(self._step + config.validate_every, config.total_timesteps)
                while (row := self._learn_once(rollouts, order))["step"] < end:
                    self._run.log(row)
                self.validate(row)
        finally:
            rollouts.close()

    def _learn_once(self, rollouts: Rollouts, order: np.random.Generator) -> dict[str, Any]:
        """Drive a rollout, learn from it, and return its row."""
        started, config, step = time.perf_counter(), self._config, self._step
        rollout = rollouts.drive(_penalty_share(config, step))
        rate = config.optim.learning_rate * max(1 - step / config.total_timesteps, 0.0)
        learned = self._learner.update(rollout, rate, order, actor=step >= config.optim.value_warmup_steps)
        frames = round(float(rollout.durations.sum()) * self._env.spec.frames_per_second)
        self._step += frames
        require_finite_weights(f"frame {self._step:,}", self._learner.policy.named_parameters())
        seconds = time.perf_counter() - started
        self._seconds += seconds
        self._returns.extend(rollout.returns)
        note = [f"return {np.mean(self._returns):z.1f}"] if self._returns else []
        note += [f"{name} {value:.3g}" for name, value in learned.items()]
        self._progress(Event("ppo", self._step, config.total_timesteps, ", ".join(note)))
        row: dict[str, Any] = {"step": self._step, "episodes": len(rollout.returns)}
        if rollout.returns:
            row["episodes_return_mean"] = float(np.mean(rollout.returns))
        row |= {**learned, "learning_rate": rate, "frames_per_second": round(frames / seconds, 1)}
        return row | {"seconds": self._seconds}

    def _start_over(self, rollouts: Rollouts) -> np.random.Generator:
        """Begin new episodes and draw all random numbers anew.

        A run that is resumed here does the same.
        """
        seeds = np.random.SeedSequence((self._config.seed, self._step))
        rollouts.start_at(self._step, int(seeds.generate_state(1)[0]))
        return np.random.default_rng(seeds)

    def validate(self, row: dict[str, Any]) -> None:
        """Validate, log the completed row and save the checkpoint."""
        step = row["step"]
        driver = on_cpu(self._learner.driver)

        def write(folder: Path) -> None:
            meta = {"step": step, "training": asdict(self._config)}
            save_driver(folder, driver, env=asdict(self._env), meta=meta)
            state = {"step": step}
            if self._learner.average is not None:
                state["averaged"] = self._learner.average.updates
            save_training_state(folder / "training_state", self._learner.optimizer, state)
            weights = saved_tensors(dict(self._learner.policy.named_parameters()))
            save_file(weights, folder / "training_state" / _POLICY)

        row |= closed_loop(driver, self._env, self._config.validation.tracks, self._pool, self._progress)
        self._run.finish_step(row, write)
        self._progress(message(f"validation at step {step}", returns_note(row)))
