"""What comes with the package drives."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from data_collection.drivers import resolve_driver
from data_collection.expert import load_expert
from envs import EnvConfig, make_env, rollout


def test_the_shipped_expert_drives_a_test_track():
    expert = load_expert()
    assert expert.env_config == asdict(
        EnvConfig(control="discrete", mask_bar=False, max_steps=1000, renderer="gymnasium")
    )
    episode = rollout(make_env(), expert, 900_000)
    assert episode.episode_return > 700
    assert episode.outcome["crashes"] == 0


def test_the_shipped_nac_driver_drives_a_test_track():
    driver = resolve_driver("nac-continuous", EnvConfig("continuous"))
    episode = rollout(make_env(EnvConfig("continuous", renderer="fast")), driver, 900_005)
    assert episode.episode_return > 800
    with pytest.raises(ValueError, match="was made for continuous control"):
        resolve_driver("nac-continuous", EnvConfig("discrete"))
