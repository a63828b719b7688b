"""The shipped drivers finish a track."""

from __future__ import annotations

import pytest

from nac_drive.data_collection.drivers import resolve_driver
from nac_drive.data_collection.trained_env import env_for
from nac_drive.envs import Control, EnvConfig, make_env, rollout


@pytest.mark.parametrize(("word", "control", "least"), [
    pytest.param("expert", "discrete", 880, marks=pytest.mark.slow), ("expert", "continuous", 900),
    ("champion", "discrete", 880), pytest.param("champion", "continuous", 900, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_shipped_driver_drives_a_test_track_without_a_crash(word: str, control: Control, least: float):
    env = EnvConfig(control)
    episode = rollout(make_env(env), resolve_driver(word, env), 900_005)
    assert episode.episode_return > least
    assert episode.outcome["crashes"] == 0
    other = EnvConfig("continuous" if control == "discrete" else "discrete")
    with pytest.raises(ValueError, match=f"was made for {control} control"):
        resolve_driver(f"{word}-{control}", other)


@pytest.mark.slow
@pytest.mark.parametrize("control", ["continuous", "pulsed"])
@pytest.mark.parametrize("perturb", ["gaussian-noise:3", "frame-drop:3:zero"])
def test_a_robust_champion_drives_under_noise_and_on_half_of_the_frames(perturb: str, control: Control):
    env = EnvConfig(control, perturb=perturb)
    episode = rollout(make_env(env), resolve_driver("robust-champion", env), 900_005)
    assert episode.episode_return > 900
    assert episode.outcome["crashes"] == 0


def test_the_champion_of_the_seat_drives_from_there():
    driver = resolve_driver("champion-seat")
    env = env_for(driver)
    assert env.view == "seat"
    episode = rollout(make_env(env), driver, 900_005)
    assert episode.episode_return > 900
    assert episode.outcome["crashes"] == 0
