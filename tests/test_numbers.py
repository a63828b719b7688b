"""Numbers of numpy are numbers everywhere, and what is no number is refused in one line that names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import nac_drive as nd
from nac_drive.data_collection.mixture import MixtureConfig
from nac_drive.envs import ActionRepeat
from nac_drive.envs.perturbations.dynamics import ActionDelay
from nac_drive.envs.perturbations.frames import Gaps
from nac_drive.parallel.processes import number_of_workers
from nac_drive.plain import plain
from nac_drive.policies.cores.registry import build_core
from tests.data_collection.recordings import contents
from tests.problems import ToyEnv

int64: Any = np.int64  # a type checker would refuse it
array: Any = np.array
SHORT = nd.EnvConfig(max_steps=3)
CONFIGS = (
    nd.EnvConfig(),
    nd.DriverConfig("lstm", {"rnn_size": 8}, features=64),
    nd.DataConfig(),
    nd.OptimConfig(encoder_learning_rate=1e-4),
    nd.TrainConfig(),
    nd.DaggerConfig(),
    nd.PPOConfig(),
    nd.NoiseConfig(),
    MixtureConfig(),
)


def of_numpy(value: Any) -> Any:
    """The same value with numbers of numpy in it."""
    if isinstance(value, dict):
        return {key: of_numpy(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(of_numpy, value))
    types: dict[type, Callable[[Any], Any]] = {bool: np.bool_, int: np.int64, float: np.array}
    return types.get(type(value), lambda value: value)(value)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_settings_of_numpy_are_settings(config):
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    other = type(config)(**{name: of_numpy(value) for name, value in values.items()})
    assert other == config
    assert json.dumps(asdict(other)) == json.dumps(asdict(config))
    assert yaml.safe_dump(json.loads(json.dumps(asdict(other)))) != ""
    assert all(type(getattr(other, name)) is type(value) for name, value in values.items())
    if hasattr(other, "check"):
        other.check()


def test_a_core_is_built_from_numbers_of_numpy():
    torch.manual_seed(0)
    one = build_core("nac-exact", 8, 8, window=int64(4), num_heads=int64(2))
    torch.manual_seed(0)
    other = build_core("nac-exact", 8, 8, window=4, num_heads=2)
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("seed", [int64(7), np.uint8(7), np.array(7)])
def test_seeds_of_numpy_are_seeds(seed: Any):
    with closing(nd.make_env(SHORT)) as env, closing(nd.make_vec_env(SHORT, int64(2))) as envs:
        frame, frames = env.reset(seed=7)[0], envs.reset(seed=7)[0]
        np.testing.assert_array_equal(env.reset(seed=seed)[0], frame)
        np.testing.assert_array_equal(envs.reset(seed=seed)[0], frames)
        np.testing.assert_array_equal(envs.reset(seed=array([7, 8]))[0], frames)
        np.testing.assert_array_equal(envs.reset(seed=[seed, int64(8)])[0], frames)
        episode = nd.rollout(env, nd.Controller(), seed)
        assert (type(episode.seed), episode) == (int, nd.rollout(env, nd.Controller(), 7))
        perturbed = nd.perturb(env, "gaussian-noise:1", seed, episode_frames=int64(3))
        expected = nd.perturb(env, "gaussian-noise:1", 7, episode_frames=3)
        np.testing.assert_array_equal(perturbed.reset(seed=seed)[0], expected.reset(seed=7)[0])
    assert nd.track_seeds(array([seed, 9])) == [7, 9]
    assert type(nd.track_seeds([seed])[0]) is int


def test_a_recording_takes_numbers_of_numpy(tmp_path):
    for folder, number in (("one", int), ("other", int64)):
        tracks = [number(3), number(4)]
        nd.collect(tmp_path / folder, "controller", env=SHORT, seeds=tracks, seed=number(5), workers=number(1))
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


def test_processes_take_numbers_of_numpy():
    with closing(nd.make_vec_env(SHORT, int64(2), processes=int64(1))) as envs:
        frames = envs.reset(seed=int64(7))[0]
        np.testing.assert_array_equal(envs.reset(seed=array([7, 8]))[0], frames)
    assert type(number_of_workers(int64(2))) is int


@pytest.mark.parametrize("dt", [np.array(0.06), np.float32(0.06), np.float64(0.06), torch.tensor(0.06)])
@pytest.mark.parametrize("name", ["champion-discrete", "champion-continuous"])
def test_a_driver_takes_a_time_of_numpy(name, dt):
    driver, frame = nd.load_driver(name), np.full((96, 96, 3), 90, np.uint8)
    (action, state), (expected, after) = (driver.act(frame, driver.begin(), seconds) for seconds in (dt, 0.06))
    np.testing.assert_array_equal(action, expected)
    assert all(map(torch.equal, state, after))


FRAME = np.zeros((96, 96, 3), np.uint8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((FRAME, None), "dt: must be a number of seconds since the previous frame, got None"),
        ((FRAME, "0.02"), "dt: must be a number of seconds .*got '0.02'"),
        ((FRAME, [0.02]), r"dt: must be a number of seconds .*got \[0.02\]"),
        ((FRAME, np.array([0.02, 1])), r"dt: must be a number of seconds .*got array"),
        ((None, 0.02), r"frames: must be images of numbers, got .*None.*; pass an observation"),
        (("frame", 0.02), "frames: must be images of numbers, got .*'frame'.*; pass an observation"),
        ((7, 0.02), "frames: (shape must be|must be images of numbers)"),
    ],
)
def test_what_a_driver_cannot_act_on_is_named(arguments, message):
    driver = nd.load_driver("champion-discrete")
    frame, dt = arguments
    with pytest.raises(ValueError, match=message) as caught:
        driver.act(frame, driver.begin(), dt)
    assert "\n" not in str(caught.value)
    if frame is not FRAME:
        with pytest.raises(ValueError, match=message):
            driver.predict(frame)


NAN = float("nan")


@pytest.mark.parametrize("number", [NAN, 2.5, True, "3", None, np.float64(3.0)])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("max_steps", lambda number: nd.EnvConfig(max_steps=number)),
        ("num_envs", lambda number: nd.make_vec_env(SHORT, number)),
        ("processes", lambda number: nd.make_vec_env(SHORT, 2, processes=number)),
        ("workers", number_of_workers),
        ("seed", lambda number: nd.rollout(ToyEnv(), nd.Controller(), number)),
        ("seed", lambda number: nd.perturb(ToyEnv(), "gap:1", number)),
        ("episode_frames", lambda number: nd.perturb(ToyEnv(), "gap:1", episode_frames=number)),
        ("frames", lambda number: ActionRepeat(ToyEnv(), number)),
        ("frames", ActionDelay),
        ("pieces", lambda number: Gaps(0.1, number)),
        ("switch_interval", lambda number: MixtureConfig(switch_interval=number)),
        ("seeds", lambda number: nd.collect("never", "controller", seeds=[number])),
        ("seed", lambda number: nd.collect("never", "controller", seeds=[3], seed=number)),
        ("tracks", lambda number: nd.track_seeds([number])),
        ("max_steps", lambda number: replace(nd.DaggerConfig(), max_steps=number).check()),
        ("n_envs", lambda number: nd.RolloutConfig(n_envs=number).check()),
    ],
)
def test_what_is_no_whole_number_is_refused(name, call, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=rf"{name}\b.* must be .*whole number.*, got ") as caught:
        call(number)
    assert repr(plain(number)) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(Path().iterdir()) == []


def test_one_track_is_no_list():
    with pytest.raises(ValueError, match=r"SPLIT-COUNT .* or a list of seeds, got 5; pass \[5\] for this seed"):
        nd.evaluate("controller", 5)  # type: ignore[arg-type]
