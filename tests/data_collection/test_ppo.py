"""A tiny training of the expert, on episodes of 60 frames and in this process: its phases, rows and checkpoints."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from data_collection import ppo
from data_collection.controller import Controller
from data_collection.expert import Expert, load_expert
from data_collection.ppo import ExpertConfig, train_expert
from data_collection.processes import one_thread
from data_collection.run_folder import RunFolder
from envs import SPLITS, EnvConfig, make_env, rollout

TINY = ExpertConfig(
    warm_start_laps=1, warm_start_epochs=2, steps=96, envs=2, rollout_steps=16, value_warmup_steps=32, batch_size=16,
    epochs=1, validate_every=32, validation_tracks="val-2",
)  # fmt: skip


def map_here(function: Callable, tasks: Iterable, workers: int) -> Iterable:
    """In this process. Tasks are pickled all the same: in processes they would be."""
    return map(pickle.loads(pickle.dumps(function)), tasks)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(ppo, "map_in_processes", map_here)
    monkeypatch.setattr(ppo, "ProcessVectorEnv", lambda env_fns, processes: SyncVectorEnv(env_fns))
    monkeypatch.setattr(ppo, "EnvConfig", partial(EnvConfig, max_steps=60))
    with one_thread():
        yield


class Watch:
    """Takes the reports of a training, and the expert of each validation."""

    def __init__(self, folder: Path, stop_at: int | None = None):
        self.folder, self.stop_at = folder, stop_at
        self.reports: list[dict[str, Any]] = []
        self.experts: dict[int, dict[str, torch.Tensor]] = {}

    def __call__(self, row: dict[str, Any]) -> None:
        self.reports.append(row)
        if row["phase"] == "validation":
            network = load_expert(self.folder / "checkpoints" / "last").network
            self.experts[row["step"]] = {name: tensor.clone() for name, tensor in network.state_dict().items()}
            if row["step"] == self.stop_at:
                raise KeyboardInterrupt


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_training_warms_up_learns_validates_and_goes_on_after_an_interruption(tmp_path):
    folder = tmp_path / "run"
    watch = Watch(folder, stop_at=32)
    with pytest.raises(KeyboardInterrupt):
        train_expert(TINY, folder, report=watch)
    first = [row["phase"] for row in watch.reports]
    assert first == ["warm_start"] * 3 + ["validation", "ppo", "validation"]
    losses = [row["loss"] for row in watch.reports if "loss" in row]
    assert losses[1] < losses[0]
    assert same(watch.experts[0], watch.experts[32])  # only the value network has learned so far

    with pytest.raises(FileExistsError, match="--resume"):
        train_expert(TINY, folder)
    with pytest.raises(ValueError, match=r"gamma: run has 0.99, asked for 0.5"):
        train_expert(replace(TINY, gamma=0.5), folder, resume=True)

    again = Watch(folder)
    best = train_expert(TINY, folder, resume=True, report=again)
    assert [row["phase"] for row in again.reports] == ["ppo", "validation", "ppo", "validation"]
    assert not same(again.experts[64], watch.experts[32])  # the actor learns
    run = RunFolder.open(folder)
    rows = run.rows()
    assert [row["step"] for row in rows] == [0, 32, 64, 96]
    assert rows[0]["returns"] == rows[1]["returns"]
    for row in rows:
        assert len(row["returns"]) == 2
        assert row["score"] == pytest.approx(np.mean(row["returns"]) - 0.5 * np.std(row["returns"]))
    winner = max(rows, key=lambda row: row["score"])
    assert best == run.checkpoint_folder("best")
    assert best.name == f"step_{winner['step']}"
    expert = load_expert(best)
    assert expert.meta["step"] == winner["step"]
    assert expert.meta["training"]["envs"] == 2
    validated = [rollout(make_env(EnvConfig(max_steps=60)), expert, seed).episode_return for seed in (800_000, 800_001)]
    assert validated == winner["returns"]

    finished = Watch(folder)
    assert train_expert(TINY, folder, resume=True, report=finished) == best
    assert finished.reports == []


class Killed(BaseException):
    """Not an Exception: no clean-up may run, as after kill -9."""


def bias(expert: Expert, env_config: EnvConfig, seed: int) -> float:
    """Stands for the return of a lap: depends on the weights alone."""
    return float(expert.network.action.bias.detach().sum())


def test_killed_at_any_moment_it_neither_loses_nor_repeats_a_row(tmp_path, monkeypatch):
    settings: dict[str, Any] = {"warm_start_laps": 0, "steps": 32, "envs": 1, "value_warmup_steps": 0}
    config = replace(TINY, **settings, validate_every=16)
    monkeypatch.setattr(ppo, "_validation_return", bias)
    left = 0

    def deadly(call: Callable) -> Callable:
        def wrapped(*arguments: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return call(*arguments)

        return wrapped

    moment, killed = 0, True
    while killed:
        folder, left, killed = tmp_path / str(moment), moment, False
        with monkeypatch.context() as patch:
            for name in ("log", "checkpoint", "mark_best"):
                patch.setattr(RunFolder, name, deadly(getattr(RunFolder, name)))
            try:
                train_expert(config, folder)
            except Killed:
                killed = True
        best = train_expert(config, folder, resume=True)
        run = RunFolder.open(folder)
        assert [row["step"] for row in run.rows()] == [0, 16, 32], f"killed at call {moment}"
        assert run.checkpoint_folder("last") == (folder / "checkpoints" / "step_32").resolve()
        winner = max(run.rows(), key=lambda row: row["score"])
        assert best.name == f"step_{winner['step']}", f"killed at call {moment}"
        assert winner["score"] == bias(load_expert(best), EnvConfig(), 0)
        moment += 1
    assert moment >= 3 * 2 + 1


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_without_a_warm_start_both_controls_train(tmp_path, control):
    settings: dict[str, Any] = {"control": control, "warm_start_laps": 0, "steps": 32, "epochs": 2}
    best = train_expert(replace(TINY, **settings), tmp_path / "run")
    assert load_expert(best).control == control


def test_the_warm_start_repeats_the_controllers_labels_under_noise():
    env = EnvConfig(max_steps=60)
    frames, labels, _ = ppo._controller_lap(TINY, env, 5)
    assert frames.shape == (60, 96, 96, 3)
    assert labels.shape == (60,)
    quiet, quiet_labels, quiet_return = ppo._controller_lap(ExpertConfig(warm_start_noise=0.0), env, 5)
    assert not np.array_equal(frames, quiet)
    assert len(quiet_labels) == 60
    assert quiet_return == rollout(make_env(env), Controller(), 5).episode_return


def test_in_training_rewards_are_scaled_crashes_cost_and_tracks_are_training_tracks():
    class Crashes(gym.Env):
        seeds: list[int | None] = []

        def reset(self, *, seed=None, options=None):
            self.seeds.append(seed)
            return np.zeros(1), {}

        def step(self, action):
            return np.zeros(1), 7.0, False, False, {"crash": "off_road" if action else None}

    env = ppo._TrainingEnv(Crashes(), np.random.default_rng(0), ExpertConfig())
    for _ in range(20):
        env.reset(seed=900_000)  # whatever is asked for
    assert all(seed in SPLITS["train"] for seed in Crashes.seeds)
    assert len(set(Crashes.seeds)) > 15
    assert env.step(0)[1] == pytest.approx(0.7)
    assert env.step(1)[1] == pytest.approx(-2.3)


def test_a_bad_name_of_tracks_fails_before_laps_are_driven():
    with pytest.raises(ValueError, match="has 25 tracks"):
        ExpertConfig(validation_tracks="val-99")


def test_the_value_network_sends_no_gradient_into_the_actors_features(tmp_path):
    vec_env = DummyVecEnv([partial(ppo._training_env, EnvConfig(max_steps=60), TINY, 0)])
    policy: Any = ppo._build(TINY, vec_env).policy
    value = policy.predict_values(torch.rand(2, 3, 96, 96))
    value.sum().backward()
    assert all(parameter.grad is None for parameter in policy.features_extractor.parameters())
    assert all(parameter.grad is not None for parameter in policy.value_net.parameters())
