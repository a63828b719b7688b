"""MixturePolicy at the wheel: whose action is executed, whose is the label, and that the student streams through all frames."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from nac_drive.data_collection.collect import EpisodeJob, append_episodes, open_recording, record
from nac_drive.data_collection.controller.controller import Controller
from nac_drive.data_collection.dataset.demonstrations import Demonstrations, Meta
from nac_drive.data_collection.experts import driver_hash
from nac_drive.data_collection.mixture import MixtureConfig, MixturePolicy, collect_mixture_episode
from nac_drive.envs import Control, EnvConfig, make_env, rollout
from nac_drive.policies import Driver, DriverConfig
from tests.problems import CheckingDriver, Darkened, ToyEnv

ENV = EnvConfig(max_steps=70, renderer="fast")
TRACK = 5


def test_the_timeline_of_a_lap_in_turns():
    env, steps = Darkened(ToyEnv()), []
    student = CheckingDriver(0, sees=[0, 0, 0, 0])  # the doubles check their states and times, whoever steers
    turns = MixturePolicy(CheckingDriver(10, sees=[0, 1, 2, 3]), np.array([True, False, False, True]))
    for episode in (1, 2):
        rollout(env, student, episode, expert=turns, execute=turns.execute, subscribers=[steps.append])
        assert env.unwrapped.actions == [0, 11, 12, 3]  # type: ignore[attr-defined]
    assert [(s.index, s.dt, s.intended, s.expert_action, s.action) for s in steps] == 2 * [
        # index, dt, the student's, the expert's (the label), executed
        (0, 0.00, 0, 10, 0),
        (1, 0.02, 1, 11, 11),
        (2, 0.06, 2, 12, 12),
        (3, 0.02, 3, 13, 3),
    ]


def test_the_wheel_is_drawn_for_once_per_segment():
    turns = MixtureConfig(student_share=0.8, segment=25)
    students = turns.students(1010, (0, 7))
    assert students.shape == (1010,)
    segments = students[:1000].reshape(40, 25)
    assert (segments == segments[:, :1]).all()
    assert 0.6 < segments[:, 0].mean() < 0.95
    np.testing.assert_array_equal(turns.students(333, (0, 7)), students[:333])
    assert (turns.students(1010, (0, 8)) != students).any()
    assert (turns.students(1010, (1, 7)) != students).any()
    assert np.mean([turns.students(25, seed)[0] for seed in range(2000)]) == pytest.approx(0.8, abs=0.03)
    assert MixtureConfig(student_share=1.0).students(500, 0).all()
    assert not MixtureConfig(student_share=0.0).students(500, 0).any()


def student(control: Control = "discrete") -> Driver:
    torch.manual_seed(1)
    return Driver(DriverConfig(core="lstm", control=control)).eval()


def in_turns(path, turns: MixtureConfig, env: EnvConfig = ENV) -> Demonstrations:
    meta = Meta(env, "controller", driver_hash("controller", env), None, 3)
    dataset = open_recording(path, meta, [TRACK], resume=False)
    episode = collect_mixture_episode(
        EpisodeJob(path, "controller", meta, 2), turns, pickle.dumps(student(env.control)), (0, TRACK)
    )
    assert list(append_episodes(dataset, [episode])) == [episode]
    return dataset


@pytest.mark.parametrize("control", ["discrete", "continuous"])
@pytest.mark.parametrize("mask_bar", [False, True])
def test_a_share_of_0_is_a_lap_of_the_teacher(tmp_path, control, mask_bar):
    env = replace(ENV, control=control, mask_bar=mask_bar)
    frames = in_turns(tmp_path / "turns", MixtureConfig(0.0), env).load()
    plain = record(tmp_path / "plain", "controller", env=env, seeds=[TRACK]).load()
    for name in ("frames", "labels", "actions", "rewards", "dt"):
        np.testing.assert_array_equal(getattr(frames, name), getattr(plain, name), name)


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_a_share_of_1_is_a_lap_of_the_student_with_the_teachers_labels(tmp_path, control):
    env, steps = replace(ENV, control=control), []
    frames = in_turns(tmp_path / "turns", MixtureConfig(1.0), env).load()
    rollout(make_env(env), student(control), TRACK, expert=Controller(control), subscribers=[steps.append])
    np.testing.assert_array_equal(frames.frames, [step.observation for step in steps])
    np.testing.assert_array_equal(frames.actions, np.array([step.action for step in steps], frames.actions.dtype))
    np.testing.assert_array_equal(frames.labels, np.array([step.expert_action for step in steps], frames.labels.dtype))
    assert (frames.labels != frames.actions).any()


def test_both_steer_in_their_segments_and_the_student_keeps_its_state(tmp_path):
    turns, steps = MixtureConfig(0.5, segment=10), []
    dataset = in_turns(tmp_path / "turns", turns)
    frames, students = dataset.load(), turns.students(70, (3, TRACK))
    assert 0 < students.sum() < 70
    np.testing.assert_array_equal(frames.actions[~students], frames.labels[~students])
    # A second route to the student's actions: it looks on, from the first frame on, while the episodes are repeated.
    driver, state = student(), student().begin()
    for i in range(len(frames)):
        action, state = driver.act(frames.frames[i], state, float(frames.dt[i]))
        steps.append(action)
    np.testing.assert_array_equal(frames.actions[students], np.array(steps)[students])
    assert (np.array(steps)[~students] != frames.actions[~students]).any()
    assert dataset.verify(replay=True) == []


def test_the_round_is_told_by_row_and_file(tmp_path):
    dataset = in_turns(tmp_path / "turns", MixtureConfig())
    assert [row["round"] for row in Demonstrations.open(dataset.path).rows] == [2]
    (dataset.path / "episodes.jsonl").write_bytes(b"")  # killed between file and row
    orphaned = Demonstrations.open(dataset.path)
    orphaned.recover([TRACK])
    assert orphaned.rows == dataset.rows
    rows = (dataset.path / "episodes.jsonl").read_text()
    (dataset.path / "episodes.jsonl").write_text(rows.replace('"round": 2', '"round": 1'))
    assert "round is 2, its row says 1" in Demonstrations.open(dataset.path).verify()[0]


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"student_share": 1.1}, r"student_share must lie in \[0, 1\], got 1.1"),
        ({"student_share": float("nan")}, "student_share must lie in"),
        ({"segment": 0}, "segment must be at least 1 frame, got 0"),
    ],
)
def test_bad_turns_are_named(bad, told):
    with pytest.raises(ValueError, match=told):
        MixtureConfig(**bad)
