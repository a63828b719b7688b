"""MetaDrive as a track environment.

Telemetry is tested on a stand-in, episodes where metadrive is installed.
"""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from nac_drive.data_collection.drivers import resolve_driver
from nac_drive.data_collection.trained_env import env_for
from nac_drive.envs import METADRIVE, METADRIVE_EMPTY, EnvConfig, MetaDrive, make_env
from nac_drive.envs.metadrive import process as module
from nac_drive.envs.metadrive.process import SimulatorProcess
from nac_drive.envs.metadrive.simulator import Settings, turn_ahead
from nac_drive.evaluation.evaluate import tracks_at_a_time
from nac_drive.evaluation.results import read_results
from nac_drive.policies import Driver, DriverConfig
from tests.commands import call, refused
from tests.envs.metadrive_stand_in import StandIn, StraightLane, navigation, situation

installed = pytest.mark.skipif(importlib.util.find_spec("metadrive") is None, reason="needs nac-drive[metadrive]")
GAS = np.array((0.0, 1.0, 0.0), np.float32)


def standing(*script: Any) -> tuple[MetaDrive, StandIn]:
    simulator = StandIn(list(script))
    return MetaDrive(Settings(), simulator=simulator), simulator


def test_steering_is_right_positive_and_the_pedals_are_one():
    env, simulator = standing(situation(), situation())
    env.reset(seed=7)
    env.step(np.array((0.5, 1.0, 0.25), np.float32))
    env.step(np.array((-1.0, 0.0, 1.0), np.float32))
    assert simulator.told == [(-0.5, 0.75), (1.0, -1.0)]
    assert simulator.seeds == [7]
    for wrong in ((0.5, 1.5, 0.0), (0.0, -0.1, 0.0), (math.nan, 0, 0), (0.0, 0.0)):
        with pytest.raises(ValueError, match="action must lie in"):
            env.step(np.array(wrong, np.float32))


def test_telemetry_has_the_units_that_metrics_read():
    env, _ = standing(
        situation(
            offset=0.875, heading=math.pi - 0.1, lane_heading=-math.pi + 0.1, speed=8.0, completion=0.5, reward=2.0
        )
    )
    _, info = env.reset(seed=0)
    assert (info["dt"], info["lateral_offset"], info["crash"], info["completion"]) == (0.0, 0.0, None, 0.0)
    _, reward, terminated, truncated, info = env.step(GAS)
    assert (reward, terminated, truncated, info["dt"]) == (2.0, True, False, 0.1)
    assert info["lateral_offset"] == 0.5
    assert info["heading_error"] == pytest.approx(-0.2)
    assert (info["speed"], info["completion"], info["wheels_off_road"]) == (8.0, 0.5, 0)


def test_a_crash_and_a_way_off_the_road_count_once():
    off, hit = situation(off_road=True), situation(crash="car")
    env, _ = standing(off, off, situation(), hit, hit, off)
    env.reset(seed=0)
    infos = [env.step(GAS)[-1] for _ in range(6)]
    assert [info["off_road_events"] for info in infos] == [1, 1, 1, 1, 1, 2]
    assert [info["crashes"] for info in infos] == [0, 0, 0, 1, 1, 1]
    assert [info["crash"] for info in infos] == [None, None, None, "car", "car", None]
    assert [info["wheels_off_road"] for info in infos] == [4, 4, 0, 0, 0, 4]
    assert env.reset(seed=1)[1]["crashes"] == 0


def test_a_turn_is_announced_before_a_junction_and_shown_on_it():
    lane = StraightLane(length=100.0)
    left, right = StraightLane(bend=1.5, start=100.0), StraightLane(bend=-1.5, start=100.0)
    route = navigation(lane, {"c": left, "d": right}, "d")
    assert turn_ahead(route, (40.0, 0.0)) is None
    assert turn_ahead(route, (60.0, 0.0)) == pytest.approx(-1.5)
    assert turn_ahead(navigation(lane, {"c": left}, "c"), (60.0, 0.0)) is None  # nothing to choose
    inside = navigation(lane, {"c": left, "d": right}, "c", on_branch=True)
    assert turn_ahead(inside, (110.0, 0.0)) == pytest.approx(1.5)


def test_experts_give_actions_of_the_environment():
    env, _ = standing(situation())
    env.reset(seed=0)
    for name, expected in (("metadrive-idm", (-0.25, 0.0, 0.5)), ("metadrive-ppo", (0.25, 0.5, 0.0))):
        driver = resolve_driver(name)
        action, _ = driver.act(env.state, driver.begin(env), 0.0)
        np.testing.assert_array_equal(action, np.array(expected, np.float32))
        assert env.action_space.contains(action)


def test_experts_drive_on_the_roads_that_are_asked_for_and_nowhere_else():
    assert env_for(resolve_driver("metadrive-idm")) == EnvConfig("continuous", environment=METADRIVE)
    empty = EnvConfig(environment=METADRIVE_EMPTY)
    assert env_for(resolve_driver("metadrive-idm", empty)) == empty
    with pytest.raises(ValueError, match=r"asks MetaDrive's simulator, got .*pass another one"):
        resolve_driver("metadrive-idm").begin(make_env())


def test_a_driver_of_another_road_is_refused_with_the_names_of_the_experts(tmp_path, capsys):
    message = refused(capsys, "collect", "--environment", METADRIVE, "--out", str(tmp_path / "data"))
    assert "such as metadrive-idm or metadrive-ppo" in message
    message = refused(capsys, "collect", "--driver", "metadrive-idm", "--control", "continuous", "--out", str(tmp_path))
    assert f"was trained in the environment {METADRIVE!r}, here it is 'car-racing'" in message


def test_without_metadrive_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"metadrive is not installed; run `pip install 'nac-drive\[metadrive\]'`"):
        gym.make(METADRIVE)
    with pytest.raises(ValueError, match=r"pip install 'nac-drive\[metadrive\]'"):
        make_env(EnvConfig(environment=METADRIVE_EMPTY))


def test_a_worker_drives_one_episode_at_a_time_there():
    batched: Any = Driver(DriverConfig("cfc", d_model=8, dense=8))
    assert tracks_at_a_time(batched, EnvConfig(environment=METADRIVE)) == 1
    assert tracks_at_a_time(batched, EnvConfig("continuous")) > 1


def test_before_a_reset_and_after_close_there_is_no_episode():
    env, _ = standing(situation())
    with pytest.raises(ResetNeeded):
        env.step(GAS)
    env.reset(seed=0)
    env.close()
    with pytest.raises(ResetNeeded):
        env.step(GAS)


@pytest.mark.parametrize(
    ("crash", "render_mode", "words"), [("intervene", None, "back on the road"), ("ignore", "human", "no window")]
)
def test_what_it_cannot_do_is_refused(crash, render_mode, words):
    with pytest.raises(ValueError, match=words):
        make_env(EnvConfig(environment=METADRIVE), crash=crash, render_mode=render_mode)


def test_the_process_says_that_it_ended():
    process = SimulatorProcess.__new__(SimulatorProcess)
    process.broken, process._process = False, subprocess.Popen([sys.executable, "-c", ""], stdin=-1, stdout=-1)
    process._process.wait()
    with pytest.raises(ChildProcessError, match=r"MetaDrive ended; .*--workers"):
        process.reset(0)
    assert process.broken


ECHO = """
import sys
from nac_drive.envs.metadrive.process import _receive, _send
while True:
    try:
        _send(sys.stdout.buffer, (_receive(sys.stdin.buffer), ""))
    except EOFError:
        break
"""


def test_the_answer_of_an_interrupted_call_is_no_answer_to_the_next_one(monkeypatch):
    process = SimulatorProcess.__new__(SimulatorProcess)
    process.settings, process.owner, process.broken = Settings(), os.getpid(), False
    process._process = subprocess.Popen([sys.executable, "-c", ECHO], stdin=-1, stdout=-1)
    assert process.reset(1) == ("reset", (1,))

    def interrupt(stream: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            process.step(0.1, 0.2)
    with pytest.raises(ChildProcessError, match="interrupted; close this environment"):
        process.reset(2)
    module.give_back(process)
    assert process not in module._idle
    assert process._process.returncode is not None


# Where metadrive is installed


def episode(
    env: gym.Env, seed: int, frames: int = 60, expert: str = "metadrive-idm"
) -> tuple[list[np.ndarray], list[float]]:
    frame, _ = env.reset(seed=seed)
    seen, rewards = [frame], []
    for _ in range(frames):
        simulator: Any = env.unwrapped
        frame, reward, terminated, _, _ = env.step(simulator.advice(expert))
        seen.append(frame)
        rewards.append(float(reward))
        if terminated:
            break
    return seen, rewards


@installed
@pytest.mark.parametrize("expert", ["metadrive-idm", "metadrive-ppo"])
def test_the_same_seed_gives_the_same_episode_whatever_was_driven_before(expert, capfd):
    env, other = (make_env(EnvConfig(environment=METADRIVE)) for _ in range(2))
    first = episode(env, 2, expert=expert)
    episode(env, 5, 20, expert)
    again = episode(env, 2, expert=expert)
    beside = episode(other, 2, expert=expert)  # two at a time, in two processes
    for one in (again, beside):
        assert one[1] == first[1]
        np.testing.assert_array_equal(one[0], first[0])
    assert not np.array_equal(episode(env, 3, 1)[0], first[0][:2])
    env.close()
    other.close()
    assert capfd.readouterr() == ("", "")


@installed
def test_commands_take_it_by_its_name(tmp_path, capsys):
    data, run = str(tmp_path / "data"), str(tmp_path / "run")
    tiny = (
        "--core", "lstm", "--sequence-length", "16", "--batch-size", "2", "--validation-tracks", "7", "--device", "cpu"
    )  # fmt: skip
    small = ("--epochs", "1", "--workers", "1", "--set", "driver.d_model=8", "driver.dense=8")
    collect = ("collect", "--environment", METADRIVE_EMPTY, "--driver", "metadrive-idm", "--episodes", "2")
    assert call(*collect, "--out", data, "--workers", "2") == 0
    assert call("train", data, "--out", run, *tiny, *small) == 0
    evaluate = ("evaluate", "--driver", run, "--baseline", "metadrive-idm", "--tracks", "3,5")
    assert call(*evaluate, "--out", str(tmp_path / "one"), "--workers", "1") == 0
    assert call(*evaluate, "--out", str(tmp_path / "two"), "--workers", "2") == 0
    one, two = (read_results(tmp_path / name / "rows.jsonl") for name in ("one", "two"))
    assert len(one) == 4
    assert {(row.driver, row.seed, row.episode_return, row.length) for row in one} == {
        (row.driver, row.seed, row.episode_return, row.length) for row in two
    }
    assert all(row.metrics["lap_finished"] for row in one if row.driver == "metadrive-idm")
    assert call("watch", "--driver", run, "--track", "3", "--html", str(tmp_path / "watch.html")) == 0
    assert call("inspect", "--driver", run, "--track", "3", "--out", str(tmp_path / "seen")) == 0
