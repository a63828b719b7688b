"""The environment as any program for gymnasium uses it: made by name, copied, closed, reopened, filmed."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers.vector import RecordVideo
from stable_baselines3.common.vec_env import VecVideoRecorder

from nac_drive.envs import CarRacing, EnvConfig, make_env, make_vec_env
from nac_drive.training.sb3_vec_env import SB3VecEnv

NAME = "nac_drive/CarRacing-v0"
PERTURBED = (
    None, "gap:2", "frame-drop:3:skip", "action-delay:2+gaussian-noise:1", "gap:2,frame-rate:2",
    "colour:2+weak-tyres:1+action-noise:1+action-repeat:2",
)  # fmt: skip
COPIES = (copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env)), lambda env: pickle.loads(cloudpickle.dumps(env)))


def results(env: gym.Env, seed: int, steps: int = 4) -> list[Any]:
    """The first steps of an episode, with observations as bytes."""
    outcomes: list[Any] = [env.reset(seed=seed), *(env.step(3) for _ in range(steps))]
    return [(np.asarray(observation).tobytes(), *rest) for observation, *rest in outcomes]


# Copies, ends and beginnings


@pytest.mark.parametrize("perturb", PERTURBED)
def test_a_copy_is_a_new_environment_of_the_same_settings(perturb):
    """gymnasium's own is copied so, in the middle of an episode too."""
    with closing(make_env(EnvConfig(mask_bar=True, perturb=perturb), crash="terminate")) as env:
        expected = results(env, 5)
        for duplicate in COPIES:
            with closing(duplicate(env)) as other:
                assert other.get_wrapper_attr("crash") == "terminate"
                with pytest.raises(ResetNeeded):
                    other.step(3)
                assert results(other, 5) == expected
        env.step(3)  # the copies have not touched it
        env.close()
        with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
            env.step(3)
        assert results(env, 5) == expected
        env.close()
        env.close()


@pytest.mark.parametrize("perturb", PERTURBED)
def test_a_step_before_the_first_reset_is_refused(perturb):
    with closing(make_env(EnvConfig(perturb=perturb))) as env:
        with pytest.raises(ResetNeeded, match=r"no episode before the first reset and after close; call reset\(\)"):
            env.step(3)
        for method in ("look", "intervene"):
            with pytest.raises(ResetNeeded):
                env.get_wrapper_attr(method)()


def test_it_renders_as_gymnasiums_own_after_a_close_too():
    with closing(make_env(render_mode="rgb_array")) as env:
        assert env.render() is None
        env.reset(seed=3)
        image = env.render()
        env.close()
        assert env.render() is None
        env.reset(seed=3)
        np.testing.assert_array_equal(env.render(), image)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"render_mode must be None or one of .*rgb_array.*, got 'ansi'"):
        make_env(render_mode="ansi")


def test_a_window_opens_again_after_a_close(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with closing(make_env(EnvConfig(), render_mode="human")) as env:
        for _ in range(2):
            env.reset(seed=3)
            env.step(3)
            env.close()


def test_the_checker_of_gymnasium_passes_with_rendering(recwarn):
    with closing(gym.make(NAME, render_mode="rgb_array")) as env:
        check_env(env.unwrapped)
    messages = [str(warning.message) for warning in recwarn]
    assert not [message for message in messages if "symmetric" not in message and "WARN" in message]


# Keywords

KEYWORDS: list[tuple[dict[str, Any], Callable[[], gym.Env]]] = [
    ({"max_steps": 4}, lambda: make_env(EnvConfig(max_steps=4))),
    ({"max_episode_steps": 4}, lambda: make_env(EnvConfig(max_steps=4))),
    ({"mask_bar": True}, lambda: make_env(EnvConfig(mask_bar=True))),
    (
        {"perturb": "gap:3+frame-drop:3:skip", "max_steps": 9},
        lambda: make_env(EnvConfig(perturb="gap:3+frame-drop:3:skip", max_steps=9)),
    ),
    ({"perturb": "action-repeat:2"}, lambda: make_env(EnvConfig(perturb="action-repeat:2"))),
    ({"continuous": True}, lambda: make_env(EnvConfig("continuous"))),
    ({"continuous": False}, lambda: make_env(EnvConfig())),
    ({"continuous": True, "control": "continuous"}, lambda: make_env(EnvConfig("continuous"))),
    ({"domain_randomize": True}, lambda: CarRacing(domain_randomize=True)),
    ({"lap_complete_percent": 0.5}, lambda: CarRacing(lap_complete_percent=0.5)),
    ({"render_mode": "rgb_array"}, lambda: make_env(EnvConfig(), crash="terminate")),
]  # fmt: skip
STEPS = 6


def single_results(env: gym.Env, seed: int) -> list[Any]:
    with closing(env):
        action = [0.0, 1.0, 0.0] if env.action_space.shape else 3
        outcomes: list[Any] = [env.reset(seed=seed)]
        while len(outcomes) <= STEPS and not any(outcomes[-1][2:4] if len(outcomes) > 1 else ()):
            outcomes.append(env.step(np.asarray(action, env.action_space.dtype)))
        return [(outcome[0].tobytes(), *map(float, outcome[1:-1])) for outcome in outcomes]


def vector_results(envs: Any, seed: int) -> list[Any]:
    """The first episode of the second environment."""
    with closing(envs):
        action = [0.0, 1.0, 0.0] if envs.single_action_space.shape else 3
        outcomes = [envs.reset(seed=seed - 1)]
        while len(outcomes) <= STEPS and not any(part[1] for part in outcomes[-1][2:4] if len(outcomes) > 1):
            outcomes.append(envs.step(np.asarray([action] * 2, envs.action_space.dtype)))
        return [(outcome[0][1].tobytes(), *(float(part[1]) for part in outcome[1:-1])) for outcome in outcomes]


@pytest.mark.parametrize(
    ("keywords", "expected"), KEYWORDS, ids=lambda value: str(value) if type(value) is dict else ""
)
def test_a_keyword_means_the_same_in_every_way_to_make_it(keywords, expected):
    episode = single_results(expected(), 4)
    assert single_results(gym.make(NAME, **keywords), 4) == episode
    for mode in ("vector_entry_point", "sync"):
        envs = gym.make_vec(NAME, num_envs=2, vectorization_mode=mode, **keywords)
        assert envs.render_mode == keywords.get("render_mode")
        assert vector_results(envs, 4) == episode


@pytest.mark.parametrize(
    "make",
    [
        partial(gym.make_vec, NAME, num_envs=2, vectorization_mode="async"),
        partial(gym.make_vec, NAME, num_envs=2, processes=1),
    ],
)
def test_keywords_reach_other_processes(make):
    keywords = {"mask_bar": True, "continuous": True, "perturb": "action-repeat:3", "max_steps": 20}
    config = EnvConfig("continuous", mask_bar=True, perturb="action-repeat:3", max_steps=20)
    envs = make(render_mode="rgb_array", **keywords)
    assert [image.shape for image in (envs.reset(seed=3), envs.render())[1]] == [(400, 600, 3)] * 2
    assert vector_results(envs, 4) == single_results(make_env(config), 4)


def test_the_limit_of_steps_is_gymnasiums():
    limits: list[tuple[int, Any]] = [(1000, {}), (3000, {"max_episode_steps": 3000}), (7, {"max_episode_steps": 7})]
    for steps, keywords in limits:
        with closing(gym.make(NAME, **keywords)) as env, closing(gym.make_vec(NAME, num_envs=1, **keywords)) as envs:
            assert env.get_wrapper_attr("_max_episode_steps") == steps
            assert envs.get_attr("_max_episode_steps") == (steps,)  # type: ignore[attr-defined]
            assert env.spec is not None
            with closing(gym.make(env.spec)) as again:
                assert again.get_wrapper_attr("_max_episode_steps") == steps


def test_colours_are_those_that_gymnasium_draws():
    ours = CarRacing(domain_randomize=True)
    theirs = gym.make("CarRacing-v3", continuous=False, domain_randomize=True, disable_env_checker=True)
    with closing(ours), closing(theirs):
        for seed, options in ((3, None), (4, None), (5, {"randomize": False})):
            frame, expected = (env.reset(seed=seed, options=options)[0] for env in (ours, theirs))
            np.testing.assert_array_equal(frame, expected)
            np.testing.assert_array_equal(ours.step(3)[0], theirs.step(3)[0])


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        (
            {"verbose": True},
            "verbose is no keyword of nac_drive/CarRacing-v0, which takes control, mask_bar, max_steps",
        ),
        ({"mask_barr": True}, "mask_barr is no keyword.*Did you mean 'mask_bar'"),
        (
            {"control": "discrete", "continuous": True},
            "continuous=True means control='continuous', got control='disc",
        ),
        ({"max_steps": 3000}, "max_steps must be at most 1000.*got 3000; pass max_episode_steps=3000"),
        ({"max_steps": 2.5}, "max_steps must be a whole number, got 2.5"),
        ({"perturb": "fog:1"}, "perturbation 'fog' is unknown"),
        ({"environment": "udacity"}, "environment 'udacity' is not simulated here"),
        ({"environment": "udacity", "domain_randomize": True}, "domain_randomize: only 'car-racing' has it"),
        ({"environment": "udacity", "lap_complete_percent": 0.5}, "lap_complete_percent: only 'car-racing' has it"),
        ({"lap_complete_percent": 95}, "lap_complete_percent must lie in"),
        ({"render_mode": "ansi"}, "render_mode must be None or one of"),
        ({"crash": "explode"}, "crash must be one of"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*render_mode")
def test_a_keyword_that_cannot_be_honoured_is_refused(keywords, message):
    for make in (
        partial(gym.make, NAME),
        partial(gym.make_vec, NAME, num_envs=1, vectorization_mode="sync"),
        partial(gym.make_vec, NAME, num_envs=1),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            make(**keywords)


def test_processes_belong_to_the_entry_point():
    with pytest.raises(TypeError, match="processes: of make_vec's vector_entry_point alone"):
        gym.make(NAME, processes=2)


# Videos


@pytest.fixture
def clips(monkeypatch) -> list[tuple[int, float]]:
    """Images and rate of every video that moviepy, which is not installed, would write."""
    written: list[tuple[int, float]] = []

    class Clip:
        def __init__(self, frames: list[np.ndarray], fps: float) -> None:
            assert all(frame.shape == frames[0].shape and frame.dtype == np.uint8 for frame in frames)
            written.append((len(frames), fps))

        def write_videofile(self, *arguments: Any, **keywords: Any) -> None: ...

    clip = SimpleNamespace(ImageSequenceClip=Clip)
    for name in ("moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip"):
        monkeypatch.setitem(sys.modules, name, clip)
    return written


@pytest.mark.parametrize("processes", [0, 1])
def test_vector_environments_are_filmed_at_their_rate(processes, clips, tmp_path):
    config = EnvConfig(max_steps=3)
    with closing(make_vec_env(config, 2, processes=processes, render_mode="rgb_array")) as envs:
        assert envs.render_mode == "rgb_array"
        recorder: Any = RecordVideo(
            envs, str(tmp_path / "gymnasium"), video_length=3, step_trigger=lambda step: step == 0
        )
        recorder.reset(seed=3)
        for _ in range(4):
            recorder.step(np.full(2, 3))
        assert clips == [(4, 50)]
        for_sb3 = VecVideoRecorder(SB3VecEnv(envs), str(tmp_path / "sb3"), lambda step: step == 0, video_length=2)
        for_sb3.seed(3)
        for_sb3.reset()
        for _ in range(3):
            for_sb3.step(np.full(2, 3))
        assert clips[1] == (3, 50)


@pytest.mark.slow
def test_torch_compiles_beside_a_window():
    """Mesa's LLVM and triton's crash in one process (see `prepare_window`)."""
    pytest.importorskip("triton")
    program = f"""
import gymnasium, nac_drive
env = gymnasium.make("{NAME}", render_mode="human")
env.reset(seed=1)
env.close()
import triton
print("fine")
"""
    others = {name: value for name, value in os.environ.items() if not name.startswith("SDL_")}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=others)
    if "No available video device" in run.stderr:
        pytest.skip("no window can open here")
    assert (run.returncode, run.stdout.split()[-1:]) == (0, ["fine"]), run.stderr
