"""Evaluation: the same rows from any number of processes, after any other episode, and from any loop."""

from __future__ import annotations

import warnings
from dataclasses import asdict, replace
from multiprocessing import get_context
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv

from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import EnvConfig, make_env, perturb, rollout
from nac_drive.evaluation.evaluate import Evaluation, evaluate
from nac_drive.evaluation.results import EpisodeResult
from nac_drive.parallel.processes import worker_pool
from nac_drive.policies import Driver, DriverConfig
from tests.nac_drive.small import ZOOM
from tests.parallel.work import Dies

ENV = EnvConfig(max_steps=15)
AFTER_ZOOM: dict[str, Any] = {"env": replace(ENV, max_steps=ZOOM + 10)}
"""Ten frames after the zoom: only those count for the agreement."""
SEEDS = [900_003, 5, 900_001]


def network(core: str = "lstm", env: EnvConfig = ENV) -> Driver:
    torch.manual_seed(0)
    driver = Driver(DriverConfig(core=core)).eval()
    driver.env_config = asdict(env)
    return driver


def timeless(evaluation: Evaluation) -> list[EpisodeResult]:
    return [row.with_metrics(latency_ms=0.0) for row in evaluation.rows]


@pytest.mark.parametrize("core", ["lstm", "nac-exact"])
def test_rows_come_in_the_order_of_the_tracks_and_do_not_depend_on_workers(core, workers):
    driver, reported = network(core, AFTER_ZOOM["env"]), []
    here = evaluate(driver, SEEDS, name=core, **AFTER_ZOOM, expert=Controller(), on_episode=reported.append)
    assert [row.seed for row in here.rows] == SEEDS
    assert reported == here.rows
    if core == "nac-exact":
        there = evaluate(driver, SEEDS, name=core, **AFTER_ZOOM, expert=Controller(), pool=workers)
        assert timeless(there) == timeless(here)
    alone = evaluate(driver, SEEDS[1:2], name=core, **AFTER_ZOOM, expert=Controller())
    assert timeless(alone) == timeless(here)[1:2]


@pytest.mark.parametrize(
    ("crash", "spec"), [pytest.param("ignore", "", marks=pytest.mark.slow), ("intervene", "blackouts:3+action-noise:2")]
)
def test_rows_do_not_depend_on_the_batch(crash, spec):
    """Nor on the lengths of the others: the next track starts where one has ended."""
    env = EnvConfig(max_steps=20)
    driver, tracks = network("nac-exact", env), [5, 6, 900_001, 7, 8]
    conditions: dict[str, Any] = {"env": env, "crash": crash, "perturbation": spec, "expert": driver}
    rows = [timeless(evaluate(driver, tracks, **conditions, batch_size=size)) for size in (1, 2, 16)]
    assert rows[0] == rows[1] == rows[2]
    assert len({row.episode_return for row in rows[0]}) > 1
    assert all(row.latency_ms > 0 for row in evaluate(driver, tracks[:2], **conditions).rows)


def test_a_batch_drives_all_tracks_of_a_process_in_one_pass(monkeypatch):
    sizes = []
    act_batch = Driver.act_batch
    monkeypatch.setattr(Driver, "act_batch", lambda *args: sizes.append(len(args[1])) or act_batch(*args))
    driver = network("cnn", EnvConfig(max_steps=3))
    evaluate(driver, [*range(5)])
    assert sizes == [5, 5]  # the first decision of a car is made alone, and timed
    sizes.clear()
    evaluate(driver, [*range(5)], batch_size=2)
    assert sizes == [2, 2] * 2
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        evaluate(network("cnn"), [5], batch_size=0)


def test_a_pool_of_the_standard_library_does_the_work_too():
    with get_context("spawn").Pool(1) as pool:
        there = evaluate(Controller(), SEEDS[:2], env=ENV, pool=pool)
    assert timeless(there) == timeless(evaluate(Controller(), SEEDS[:2], env=ENV))


@pytest.mark.timeout(1200)  # ends a hang
def test_a_worker_that_is_killed_ends_the_evaluation():
    with worker_pool(2) as pool, pytest.raises(ChildProcessError, match="one of 2 worker processes died"):
        evaluate(Dies(), SEEDS[:2], env=ENV, pool=pool)


class Counts:
    """Drives straight and `begin` must be called before each episode; its memory must not leak into the next."""

    def __init__(self) -> None:
        self.begun = 0

    def begin(self, env: gym.Env) -> int:
        assert self.begun == 0, "a driver that has driven before"
        self.begun += 1
        return 0

    def act(self, observation: np.ndarray, state: int, dt: float) -> tuple[int, int]:
        assert dt == (0.02 if state else 0.0)
        return 3, state + 1


def test_every_episode_gets_a_fresh_driver():
    driver = Counts()
    assert len(evaluate(driver, SEEDS, env=ENV).rows) == 3
    assert driver.begun == 0


def test_a_driver_agrees_with_itself():
    driver = network(env=AFTER_ZOOM["env"])
    evaluation = evaluate(driver, SEEDS[:1], **AFTER_ZOOM, expert=driver)
    assert evaluation.summary.agreement == 1.0
    other = evaluate(driver, SEEDS[:1], **AFTER_ZOOM, expert=Controller())
    assert other.summary.agreement is not None
    assert other.summary.agreement < 1.0
    assert evaluate(driver, SEEDS[:1], **AFTER_ZOOM).summary.agreement is None
    assert timeless(evaluation)[0].episode_return == timeless(other)[0].episode_return  # an expert never drives


def test_metrics_are_those_of_the_episode():
    env = make_env(EnvConfig(max_steps=200))
    env.unwrapped.observe = False  # type: ignore[attr-defined]
    env.reset(seed=5)
    total, infos = 0.0, []
    for _ in range(200):
        _, reward, terminated, truncated, info = env.step(3)
        total += float(reward)
        infos.append(info)
        if terminated or truncated:
            break
    (row,) = evaluate(Counts(), [5], env=EnvConfig(max_steps=200)).rows
    assert (row.episode_return, row.length) == (total, len(infos))
    assert row.off_road_fraction == np.mean([info["off_road"] for info in infos])
    assert row.crashes == infos[-1]["crashes"] > 0
    assert row.first_crash_time == (1 + next(i for i, info in enumerate(infos) if info["crash"])) / 50
    assert row.first_crash_time is not None
    (ended,) = evaluate(Counts(), [5], env=EnvConfig(max_steps=200), crash="terminate").rows
    assert ended.length == round(50 * row.first_crash_time)
    (back,) = evaluate(Counts(), [5], env=EnvConfig(max_steps=200), crash="intervene").rows
    assert (back.crash_mode, back.interventions) == ("intervene", back.crashes)
    assert back.autonomy is not None
    assert back.autonomy < 1.0


@pytest.mark.parametrize("core", ["lstm", "cnn"])
def test_stable_baselines3_measures_the_same_returns(core):
    driver: Any = network(core)
    returns: list[Any] = []
    for seed in SEEDS[:2]:
        env = DummyVecEnv([lambda: make_env(ENV)])
        env.seed(seed)
        rewards, lengths = evaluate_policy(driver, env, n_eval_episodes=1, return_episode_rewards=True, warn=False)
        assert lengths == [ENV.max_steps]
        assert isinstance(rewards, list)
        returns += rewards
    rows = evaluate(driver, SEEDS[:2], env=ENV).rows
    assert returns == pytest.approx([row.episode_return for row in rows], abs=1e-4)  # its rewards are float32


def test_differences_are_against_the_baseline():
    baseline = evaluate(Controller(), SEEDS[:2], name="controller", env=ENV)
    same = evaluate(Controller(), SEEDS[:2], name="again", env=ENV, baseline=baseline)
    assert same.summary.versus == "controller"
    assert same.summary.return_difference is not None
    assert same.summary.return_difference.mean == 0.0
    with pytest.raises(ValueError, match="same tracks"):
        evaluate(Controller(), SEEDS[1:2], env=ENV, baseline=baseline)


def test_another_environment_is_warned_of():
    short = EnvConfig(mask_bar=True, max_steps=2)
    other = "driver 'mine' was trained in another environment: mask_bar False -> True"
    with pytest.warns(UserWarning, match=other) as caught:
        evaluate(network("cnn"), [5], name="mine", env=short)
    assert caught[0].filename == __file__, "the line of the user"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        evaluate(network("cnn"), [5], env=ENV)
        evaluate(Controller(), [5], env=short)


def test_a_perturbed_drive_is_that_of_a_rollout_here_and_in_a_process(workers):
    spec, driver = "frame-rate:3+action-noise:2", network()
    env = perturb(make_env(ENV), spec, episode_frames=ENV.max_steps)
    episodes = [rollout(env, driver, seed) for seed in SEEDS[:2]]
    rows = evaluate(driver, SEEDS[:2], env=ENV, perturbation=spec).rows
    assert [(row.episode_return, row.length) for row in rows] == [(e.episode_return, e.length) for e in episodes]
    assert all(row.length < ENV.max_steps / 2 and row.perturbation == spec for row in rows)
    there = evaluate(driver, SEEDS[:2], env=ENV, perturbation=spec, pool=workers)
    assert timeless(there) == [row.with_metrics(latency_ms=0.0) for row in rows]


@pytest.mark.parametrize("spec", ["fog:1", "gap:1,fog:1"])
def test_an_unknown_perturbation_is_refused_before_anything_drives(spec):
    with pytest.raises(ValueError, match="perturbation 'fog' is unknown"):
        evaluate(Dies(), SEEDS[:1], perturbation=spec)


def test_of_several_perturbations_every_track_has_its_own():
    specs, driver = ["frame-rate:3", "gap:0", "frame-rate:1"], network()
    rows = evaluate(driver, [3, 4, 8], env=ENV, perturbation=",".join(specs)).rows
    for row in rows:
        (alone,) = evaluate(driver, [row.seed], env=ENV, perturbation=specs[row.seed % 3]).rows
        assert row.with_metrics(latency_ms=0.0).metrics == alone.with_metrics(latency_ms=0.0).metrics
    assert len({row.length for row in rows}) == 3
    assert {row.perturbation for row in rows} == {",".join(specs)}


def test_no_tracks_are_refused():
    with pytest.raises(ValueError, match="tracks must name at least one track, got none"):
        evaluate(Controller(), [])


def test_a_track_that_is_named_twice_is_refused():
    with pytest.raises(ValueError, match=r"tracks must name every track once, got \[5, 6, 5\]"):
        evaluate(Controller(), [5, 6, 5])
