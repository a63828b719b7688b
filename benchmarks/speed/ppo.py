"""Frames of the simulator per second that PPO drives and learns from: `nac-drive ppo` and stable-baselines3's PPO.

    python benchmarks/speed/ppo.py [--rollouts 12] [--precision bf16-mixed --n-envs 32 --n-epochs 3]
    python benchmarks/speed/ppo.py --device cuda   # ours on the GPU, beside both on the CPU

Both have the same environments, network, rollouts, batches and epochs. stable-baselines3 has a value network on the
frames' features instead of the simulator's state, and a normal distribution instead of Beta.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor

import nac_drive as nd
from nac_drive.parallel.processes import default_workers
from nac_drive.training.plan import TrainingPlan
from nac_drive.training.ppo.env import training_env
from nac_drive.training.ppo.envs import rollout_envs
from nac_drive.training.ppo.rollout import Rollouts
from nac_drive.training.ppo.run import build_policy
from nac_drive.training.ppo.update import Learner

ENV = nd.EnvConfig(control="continuous")


def ours(config: nd.PPOConfig, rollouts: int, cores: int, device: str = "cpu") -> dict[str, float]:
    """Seconds of driving and learning per rollout."""
    policy = build_policy(TrainingPlan.resolve(config, ENV, device=device))
    learner = Learner(policy, config.optim, cores)
    driving_envs = Rollouts(
        partial(rollout_envs, ENV, config),
        policy,
        config.rollout.n_envs,
        config.rollout.n_steps,
        learner.sequence_length,
        cores,
    )
    driving_envs.start_at(0, 1)
    order, driving, learning = np.random.default_rng(0), 0.0, 0.0
    for number in range(rollouts + 1):
        start = time.perf_counter()
        rollout = driving_envs.drive()
        middle = time.perf_counter()
        learner.update(rollout, config.optim.learning_rate, order)
        if number:  # the first one starts the threads
            driving += middle - start
            learning += time.perf_counter() - middle
    driving_envs.close()
    return {"driving": driving / rollouts, "learning": learning / rollouts}


class _Encoder(BaseFeaturesExtractor):
    def __init__(self, observation_space: gym.Space, config: nd.DriverConfig):
        super().__init__(observation_space, config.d_model)
        self.driver = nd.Driver(config)

    def forward(self, observations: Tensor) -> Tensor:
        return self.driver.encoder(observations.permute(0, 2, 3, 1))


class _Times(BaseCallback):
    def __init__(self) -> None:
        super().__init__()
        self.starts: list[float] = []
        self.ends: list[float] = []

    def _on_rollout_start(self) -> None:
        self.starts.append(time.perf_counter())

    def _on_rollout_end(self) -> None:
        self.ends.append(time.perf_counter())

    def _on_step(self) -> bool:
        return True


def theirs(config: nd.PPOConfig, rollouts: int, cores: int) -> dict[str, float]:
    """The same with stable-baselines3's loop."""
    envs = [partial(training_env, ENV, config, rank) for rank in range(config.rollout.n_envs)]
    vec_env = nd.SB3VecEnv(nd.ProcessVectorEnv(envs, cores))
    model = PPO(
        "CnnPolicy", vec_env, n_steps=config.rollout.n_steps, batch_size=config.optim.batch_size,
        n_epochs=config.optim.n_epochs, device="cpu",
        policy_kwargs={
            "features_extractor_class": _Encoder, "features_extractor_kwargs": {"config": config.driver},
            "ortho_init": False, "net_arch": {"pi": [config.driver.dense], "vf": [128, 128]},
        },
    )  # fmt: skip
    times = _Times()
    model.learn((rollouts + 2) * config.rollout.n_envs * config.rollout.n_steps, callback=times)
    vec_env.close()
    driving = np.subtract(times.ends, times.starts)[1:-1]
    learning = np.subtract(times.starts[1:], times.ends[:-1])[1:]
    return {"driving": float(driving.mean()), "learning": float(learning.mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=12, help="rollouts of each loop that count")
    parser.add_argument("--precision", default=nd.PPOOptimConfig.precision, help="of our encoder")
    parser.add_argument(
        "--n-envs", type=int, default=nd.RolloutConfig.n_envs, help="environments that share the actions"
    )
    parser.add_argument("--n-epochs", type=int, default=nd.PPOOptimConfig.n_epochs)
    parser.add_argument("--actions", type=int, default=2048, help="of a rollout; a batch has a quarter of them")
    parser.add_argument("--repeats", type=int, nargs="+", default=[4, 8], help="frames of an action")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    driver = nd.DriverConfig(core="cnn", encoder="pooled", d_model=128, control="continuous")
    cores = default_workers()
    print("| action repeat | loop | driving, s | learning, s | frames/s |\n|---:|---|---:|---:|---:|")
    loops = {"nac-drive ppo": ours, "stable-baselines3": theirs}
    if arguments.device == "cuda":
        loops = {f"nac-drive ppo, {torch.cuda.get_device_name()}": partial(ours, device="cuda"), **loops}
    for repeat in arguments.repeats:
        rollout = nd.RolloutConfig(arguments.n_envs, arguments.actions // arguments.n_envs, repeat)
        optim = nd.PPOOptimConfig(
            precision=arguments.precision, n_epochs=arguments.n_epochs, batch_size=arguments.actions // 4
        )
        config = nd.PPOConfig(driver, rollout, optim=optim)
        for name, loop in loops.items():
            torch.manual_seed(0)
            seconds = loop(config, arguments.rollouts, cores)
            frames = rollout.n_envs * rollout.n_steps * repeat / sum(seconds.values())
            print(
                f"| {repeat} | {name} | {seconds['driving']:.2f} | {seconds['learning']:.2f} | {frames:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
