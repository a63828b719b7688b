"""The mixture policy: which action is executed, which is the label, and the learner's state through all frames."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from nac_drive.data_collection.collect import (
    EpisodeJob,
    append_episodes,
    collect,
    collect_mixture_episode,
    open_recording,
)
from nac_drive.data_collection.controller.controller import Controller
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.data_collection.drivers import driver_hash, resolve_driver
from nac_drive.data_collection.mixture import MixtureConfig, MixturePolicy
from nac_drive.envs import Control, EnvConfig, make_env, rollout
from nac_drive.policies import Driver, DriverConfig
from tests.problems import CheckingDriver, Darkened, ToyEnv

ENV = EnvConfig(max_steps=70)
TRACK = 5


def test_the_timeline_of_an_episode():
    env, steps = Darkened(ToyEnv()), []
    learner = CheckingDriver(0, sees=[0, 0, 0, 0])  # the doubles check their states and times at every frame
    mixture = MixturePolicy(CheckingDriver(10, sees=[0, 1, 2, 3]), np.array([True, False, False, True]))
    for episode in (1, 2):
        rollout(env, learner, episode, expert=mixture, execute=mixture.execute, subscribers=[steps.append])
        assert env.unwrapped.actions == [0, 11, 12, 3]  # type: ignore[attr-defined]
    assert [(s.index, s.dt, s.intended, s.expert_action, s.action) for s in steps] == 2 * [
        # index, dt, the learner's action, the expert's (the label), executed
        (0, 0.00, 0, 10, 0),
        (1, 0.02, 1, 11, 11),
        (2, 0.06, 2, 12, 12),
        (3, 0.02, 3, 13, 3),
    ]


def test_the_driver_is_drawn_once_per_switch_interval():
    mixture = MixtureConfig(beta=0.2, switch_interval=25)
    by_learner = mixture.learner_frames(1010, (0, 7))
    assert by_learner.shape == (1010,)
    intervals = by_learner[:1000].reshape(40, 25)
    assert (intervals == intervals[:, :1]).all()
    assert 0.6 < intervals[:, 0].mean() < 0.95
    np.testing.assert_array_equal(mixture.learner_frames(333, (0, 7)), by_learner[:333])
    assert (mixture.learner_frames(1010, (0, 8)) != by_learner).any()
    assert (mixture.learner_frames(1010, (1, 7)) != by_learner).any()
    assert np.mean([mixture.learner_frames(25, seed)[0] for seed in range(2000)]) == pytest.approx(0.8, abs=0.03)
    assert MixtureConfig(beta=0.0).learner_frames(500, 0).all()
    assert not MixtureConfig(beta=1.0).learner_frames(500, 0).any()


def make_learner(control: Control = "discrete") -> Driver:
    torch.manual_seed(1)
    return Driver(DriverConfig(core="lstm", control=control)).eval()


def collect_mixed(path, mixture: MixtureConfig, env: EnvConfig = ENV) -> Demonstrations:
    meta = Meta(env, "controller", driver_hash("controller", env), None, 3)
    job = EpisodeJob(pickle.dumps(resolve_driver("controller", env)), meta, 2)
    episode = collect_mixture_episode(job, mixture, pickle.dumps(make_learner(env.control)), (0, TRACK))
    with open_recording(path, meta, [TRACK], resume=False) as dataset:
        assert list(append_episodes(dataset, [episode])) == [episode.row]
    return dataset


@pytest.mark.parametrize("control", ["discrete", "continuous"])
@pytest.mark.parametrize("mask_bar", [False, True])
def test_a_beta_of_1_is_an_episode_of_the_expert(tmp_path, control, mask_bar):
    env = replace(ENV, control=control, mask_bar=mask_bar)
    frames = collect_mixed(tmp_path / "mixed", MixtureConfig(1.0), env).load()
    plain = collect(tmp_path / "plain", "controller", env=env, seeds=[TRACK]).load()
    for name in ("frames", "labels", "actions", "rewards", "dt"):
        np.testing.assert_array_equal(getattr(frames, name), getattr(plain, name), name)


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_a_beta_of_0_is_an_episode_of_the_learner_with_the_experts_labels(tmp_path, control):
    env, steps = replace(ENV, control=control), []
    frames = collect_mixed(tmp_path / "mixed", MixtureConfig(0.0), env).load()
    rollout(make_env(env), make_learner(control), TRACK, expert=Controller(control), subscribers=[steps.append])
    np.testing.assert_array_equal(frames.frames, [step.observation for step in steps])
    np.testing.assert_array_equal(frames.actions, np.array([step.action for step in steps], frames.actions.dtype))
    np.testing.assert_array_equal(frames.labels, np.array([step.expert_action for step in steps], frames.labels.dtype))
    assert (frames.labels != frames.actions).any()


def test_both_drive_in_their_intervals_and_the_learner_keeps_its_state(tmp_path):
    mixture, steps = MixtureConfig(0.5, switch_interval=10), []
    dataset = collect_mixed(tmp_path / "mixed", mixture)
    frames, by_learner = dataset.load(), mixture.learner_frames(70, (3, TRACK))
    assert 0 < by_learner.sum() < 70
    np.testing.assert_array_equal(frames.actions[~by_learner], frames.labels[~by_learner])
    # A second route to the learner's actions: it acts on every stored frame, from the first one on.
    learner = make_learner()
    state = learner.begin()
    for i in range(len(frames)):
        action, state = learner.act(frames.frames[i], state, float(frames.dt[i]))
        steps.append(action)
    np.testing.assert_array_equal(frames.actions[by_learner], np.array(steps)[by_learner])
    assert (np.array(steps)[~by_learner] != frames.actions[~by_learner]).any()
    assert dataset.verify(replay=True) == []


def test_the_round_is_in_row_and_file(tmp_path):
    dataset = collect_mixed(tmp_path / "mixed", MixtureConfig())
    assert [row["round"] for row in Demonstrations.open(dataset.path).rows] == [2]
    (dataset.path / "episodes.jsonl").write_bytes(b"")  # killed between file and row
    orphaned = Demonstrations.open(dataset.path)
    orphaned.recover([TRACK])
    assert orphaned.rows == dataset.rows
    rows = (dataset.path / "episodes.jsonl").read_text()
    (dataset.path / "episodes.jsonl").write_text(rows.replace('"round": 2', '"round": 1'))
    assert "round is 2, its row says 1" in Demonstrations.open(dataset.path).verify()[0]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"beta": 1.1}, r"beta must lie in \[0, 1\], got 1.1"),
        ({"beta": float("nan")}, "beta must lie in"),
        ({"switch_interval": 0}, "switch_interval must be at least 1 frame, got 0"),
    ],
)
def test_bad_settings_are_named(bad, message):
    with pytest.raises(ValueError, match=message):
        MixtureConfig(**bad)
