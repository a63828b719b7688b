"""A tiny training of the expert, on episodes of 60 frames and in this process: its phases, rows and checkpoints."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from nac_drive.data_collection import ppo
from nac_drive.data_collection.experts import driver_hash
from nac_drive.envs import BAR_TOP, SPLITS, Control, EnvConfig, make_env, rollout
from nac_drive.policies import Driver, DriverConfig, load_driver, save_driver
from nac_drive.policies.ops.threads import one_thread
from nac_drive.training.ppo import ExpertConfig, train_expert
from nac_drive.training.run_folder import RunFolder
from tests.killing import Fuse, Killed

TINY = ExpertConfig(
    steps=96, envs=2, rollout_steps=16, value_warmup_steps=32, batch_size=16,
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
            self.experts[row["step"]] = load_driver(self.folder / "checkpoints" / "last").state_dict()
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
    assert first == ["validation", "ppo", "validation"]
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
    seconds = [row["seconds"] for row in rows]
    assert seconds[0] == 0
    assert seconds == sorted(set(seconds))  # they add up over interruptions
    for row in rows:
        assert len(row["returns"]) == 2
        assert row["score"] == pytest.approx(np.mean(row["returns"]) - 0.5 * np.std(row["returns"]))
    winner = max(rows, key=lambda row: row["score"])
    assert best == run.checkpoint_folder("best")
    assert best.name == f"step_{winner['step']}"
    expert = load_driver(best)
    assert expert.meta["step"] == winner["step"]
    assert expert.meta["training"]["envs"] == 2
    validated = [rollout(make_env(EnvConfig(max_steps=60)), expert, seed).episode_return for seed in (800_000, 800_001)]
    assert validated == winner["returns"]

    finished = Watch(folder)
    assert train_expert(TINY, folder, resume=True, report=finished) == best
    assert finished.reports == []


def bias(expert: Driver, env_config: EnvConfig, seed: int) -> float:
    """Stands for the return of a episode: depends on the weights alone."""
    return float(expert.action_head.out.bias.detach().sum())


def test_killed_at_any_moment_it_neither_loses_nor_repeats_a_row(tmp_path, monkeypatch):
    settings: dict[str, Any] = {"steps": 32, "envs": 1, "value_warmup_steps": 0}
    config = replace(TINY, **settings, validate_every=16)
    monkeypatch.setattr(ppo, "_validation_return", bias)
    fuse = Fuse()
    moment, killed = 0, True
    while killed:
        folder, fuse.left, killed = tmp_path / str(moment), moment, False
        with monkeypatch.context() as patch:
            for name in ("log", "checkpoint", "mark_best"):
                patch.setattr(RunFolder, name, fuse.deadly(getattr(RunFolder, name)))
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
        assert winner["score"] == bias(load_driver(best), EnvConfig(), 0)
        moment += 1
    assert moment >= 3 * 2 + 1


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_from_nothing_both_controls_train(tmp_path, control):
    settings: dict[str, Any] = {"control": control, "steps": 32, "epochs": 2}
    best = train_expert(replace(TINY, **settings), tmp_path / "run")
    assert load_driver(best).config.control == control


def test_in_training_rewards_are_scaled_grass_and_crashes_cost_and_tracks_are_training_tracks():
    class Crashes(gym.Env):
        seeds: list[int | None] = []

        def reset(self, *, seed=None, options=None):
            self.seeds.append(seed)
            return np.zeros((2, 2, 3)), {}

        def step(self, action):
            info = {"crash": "off_road" if action == 1 else None, "wheels_off_road": action}
            return np.zeros((2, 2, 3)), 7.0, False, False, info

    env = ppo._TrainingEnv(Crashes(), np.random.default_rng(0), ExpertConfig())
    for _ in range(20):
        env.reset(seed=900_000)  # whatever is asked for
    assert all(seed in SPLITS["train"] for seed in Crashes.seeds)
    assert len(set(Crashes.seeds)) > 15
    assert env.step(0)[1] == pytest.approx(0.7)
    assert env.step(1)[1] == pytest.approx(-2.3)
    assert env.step(2)[1] == pytest.approx(0.7)
    assert env.step(3)[1] == env.step(4)[1] == pytest.approx(0.6)


def test_in_training_every_episode_has_a_draw_of_one_augmentation_or_none():
    config = replace(TINY, augment=("colour:3", "occlusion-bars:2"))
    env, plain = (
        ppo._TrainingEnv(make_env(EnvConfig(max_steps=3, renderer="fast")), np.random.default_rng(0), config)
        for config in (config, TINY)
    )
    changed = []
    for _ in range(12):
        seen, shown = env.reset()[0], env.unwrapped.state  # type: ignore[attr-defined]
        after = env.step(3)[0]
        assert (seen[BAR_TOP:] == shown[BAR_TOP:]).all()
        kinds = [(frame != state).any() for frame, state in ((seen, shown), (after, env.unwrapped.state))]  # type: ignore[attr-defined]
        assert kinds[0] == kinds[1], "one draw holds for the whole episode"
        changed.append(kinds[0])
        assert (plain.reset()[0] == plain.unwrapped.state).all()  # type: ignore[attr-defined]
    assert 0 < sum(changed) < 12


def test_a_bad_name_of_tracks_fails_before_laps_are_driven():
    with pytest.raises(ValueError, match="has 25 tracks"):
        ExpertConfig(validation_tracks="val-99")


def test_an_augmentation_that_there_is_not_fails_before_laps_are_driven():
    with pytest.raises(ValueError, match="'frame-drop' changes the drive, not the picture"):
        ExpertConfig(augment=("frame-drop:1",))


def model(config: ExpertConfig) -> Any:
    env = EnvConfig(config.control, max_steps=60)
    vec_env = DummyVecEnv([partial(ppo._training_env, env, config, 0)])
    return ppo._build(config, ppo._actor(config, env), vec_env)


def test_the_value_network_sends_no_gradient_into_the_actors_features():
    policy = model(TINY).policy
    value = policy.predict_values(torch.rand(2, 3, 96, 96))
    value.sum().backward()
    assert all(parameter.grad is None for parameter in policy.features_extractor.driver.parameters())
    assert all(parameter.grad is not None for parameter in policy.value_net.parameters())


def saved(path: Path, control: Control, core: str = "cnn", *, residual: bool = False, mask_bar: bool = False) -> Driver:
    torch.manual_seed(3)
    driver = Driver(DriverConfig(core=core, encoder="compact", dropout=0.0, control=control, residual=residual)).eval()
    save_driver(path, driver, env=asdict(EnvConfig(control, mask_bar=mask_bar)))
    return driver


@pytest.mark.parametrize("control", ["discrete", "continuous"])
@pytest.mark.parametrize("residual", [False, True])
def test_it_begins_as_the_driver_that_it_starts_from(tmp_path, control, residual):
    """stable-baselines3's own forward pass gives the actions that the driver gives."""
    driver = saved(tmp_path / "clone", control, residual=residual)
    with torch.no_grad():
        driver.action_head.out.weight.mul_(5.0)  # different actions on noise
    save_driver(tmp_path / "clone", driver, env=asdict(EnvConfig(control)))
    policy = model(replace(TINY, control=control, init=str(tmp_path / "clone"), sharpness=3.0)).policy
    frames = np.random.default_rng(0).integers(256, size=(6, 96, 96, 3), dtype=np.uint8)
    actions, _ = policy.predict(frames.transpose(0, 3, 1, 2), deterministic=True)
    expected, _ = driver.predict(frames)
    if control == "discrete":
        assert actions.tolist() == expected.tolist()
        logits = policy.get_distribution(torch.tensor(frames.transpose(0, 3, 1, 2))).distribution.logits
        plain = driver(torch.tensor(frames)[:, None], torch.zeros(6, 1))[0][:, 0]
        torch.testing.assert_close(logits, torch.log_softmax(3.0 * plain, dim=-1))
    else:
        np.testing.assert_allclose(actions, expected, atol=1e-5)


def test_a_start_with_memory_or_without_the_bar_is_refused_before_a_run_is_made(tmp_path):
    saved(tmp_path / "lstm", "discrete", "lstm")
    saved(tmp_path / "masked", "discrete", mask_bar=True)
    for name, told in (("lstm", "init must name a driver of core cnn, got lstm"), ("masked", "without the status bar")):
        with pytest.raises(ValueError, match=told):
            train_expert(replace(TINY, init=str(tmp_path / name)), tmp_path / "run")
    with pytest.raises(ValueError, match="init must name a driver of core cnn, got controller"):
        train_expert(replace(TINY, init="controller"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_run_notes_which_driver_it_started_from(tmp_path):
    saved(tmp_path / "clone", "discrete")
    config = replace(TINY, init=str(tmp_path / "clone"), steps=0)
    train_expert(config, tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").config["init_sha256"] == driver_hash(config.init, EnvConfig())
    torch.manual_seed(4)
    other = Driver(DriverConfig(core="cnn", encoder="compact", dropout=0.0))
    save_driver(tmp_path / "clone", other, env=asdict(EnvConfig()))
    with pytest.raises(ValueError, match="init_sha256"):
        train_expert(config, tmp_path / "run", resume=True)
