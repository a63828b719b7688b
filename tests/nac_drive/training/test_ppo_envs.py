"""The batch of compiled environments is the single environments of PPO, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nac_drive.envs import EnvConfig, make_env
from nac_drive.envs.car_state import car_state, car_states, tiles_missed
from nac_drive.training.ppo.config import PPOConfig
from nac_drive.training.ppo.env import training_env
from nac_drive.training.ppo.envs import BatchedEnvs, RolloutEnvs, SingleEnvs, rollout_envs
from tests.nac_drive.small import nested

RANKS = range(3, 6)


def both(env: EnvConfig, config: PPOConfig) -> tuple[RolloutEnvs, RolloutEnvs]:
    batch = rollout_envs(env, config, RANKS)
    if not isinstance(batch, BatchedEnvs):
        pytest.skip("gymnasium's own simulator drives on this platform")
    return batch, SingleEnvs([training_env(env, config, rank) for rank in RANKS])


def drawn(rng: np.random.Generator, control: str) -> np.ndarray:
    """The first car drives straight on, the second one weaves, the third one turns and spins."""
    if control == "discrete":
        return np.array([3, rng.choice([0, 1, 2, 3, 3, 3]), rng.choice([1, 3])])
    steer = rng.uniform((-0.05, -0.4, 0.3), (0.05, 0.4, 1.0))
    return np.stack((steer, rng.uniform(0.2, 1, 3), rng.uniform(0, 0.1, 3)), axis=1).astype(np.float32)


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        (EnvConfig("continuous", max_steps=150), {"patience": 60}),
        (EnvConfig("continuous", max_steps=100), {"augment": ("colour:3",), "action_repeat": 3}),
        (EnvConfig("discrete", max_steps=250), {"patience": 0, "off_road_penalty": 0.5}),
        (EnvConfig("continuous", max_steps=100, view="seat", size=(64, 48)), {"augment": ("shadows:1",)}),
    ],
)
def test_the_batch_gives_the_frames_rewards_ends_and_states_of_single_environments(env, settings):
    """Episodes end by crash, by patience, by the time limit within a held action, and where the first one is cut."""
    pair = both(env, nested(PPOConfig(), **settings))
    rng, ends, cuts, last = np.random.default_rng(5), 0, 0, None
    for timesteps in (0, 64):
        for envs in pair:
            envs.start_at(timesteps)
        for _ in range(90):
            batch, single = pair
            assert np.array_equal(batch.observations, single.observations)
            assert np.array_equal(batch.privileged, single.privileged)
            assert batch.privileged.dtype == single.privileged.dtype == np.float32
            actions = drawn(rng, env.control)
            share = rng.random()
            outcome, expected = (envs.step(actions, share) for envs in pair)
            for name, value, goal in zip(expected._fields, outcome, expected, strict=True):
                assert np.array_equal(value, goal), name
            ends += int(outcome.terminated.sum())
            cuts += int((outcome.ended & ~outcome.terminated).sum())
            last = outcome
    assert ends > 3
    assert cuts > 0
    assert last is not None
    for envs in pair:
        envs.close()


def test_a_batch_of_states_has_the_numbers_of_each():
    """In every frame of an episode that leaves the road; tiles are missed."""
    env = make_env(EnvConfig("continuous", max_steps=200))
    _, info = env.reset(seed=3)
    simulator: Any = env.unwrapped
    missed = []
    for frame in range(200):
        roads, cars = np.repeat(simulator._roads, 2), np.repeat(simulator._cars, 2)
        expected = car_state(simulator, info)
        np.testing.assert_allclose(car_states(roads, cars), [expected, expected], rtol=1e-6, atol=1e-7)
        assert tiles_missed(roads, cars).tolist() == [simulator.tiles_missed()] * 2
        missed.append(simulator.tiles_missed())
        _, _, terminated, truncated, info = env.step(np.array([0.1 * (frame > 100), 0.6, 0.0], np.float32))
        if terminated or truncated:
            break
    assert missed[0] == 0


@pytest.mark.parametrize("settings", [{"perturb": "frame-drop:1"}, {"mask_bar": True}, {"control": "pulsed"}])
def test_environments_that_have_no_batch_are_stepped_in_turn(settings):
    envs = rollout_envs(EnvConfig(**{"control": "continuous", **settings}), PPOConfig(), range(1))
    assert isinstance(envs, SingleEnvs)
    envs.close()
