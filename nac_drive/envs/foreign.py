"""Any environment of gymnasium as a track environment.

Its images become frames (H, W, 3), its time is in `info["dt"]`, and an error in it is one line.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import cv2
import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from nac_drive.envs.display import prepare_window
from nac_drive.envs.foreign_road import Image, Road, described
from nac_drive.envs.spec import ENVIRONMENTS, EnvSpec
from nac_drive.plain import plain

ASSUMED_RATE = 50
"""Frames per second of an environment that states none."""
_MOST_NUMBERS = 1024
"""The most numbers of an observation that the value network of PPO sees."""
_SMALL = 12
"""Side of the image that it sees otherwise."""

_BLANK = 5
"""Steps after which an environment must have shown anything."""
_VIDEO_DRIVER = "SDL_VIDEODRIVER"
"""Variable of the shell: with `dummy`, highway-env observes zeros without a word."""

_OF_USER = ("pose", "road", "regions", "privileged", "video_image")
"""Functions of `EnvSpec` that get the user's own environment."""


def environment(name: str) -> EnvSpec:
    """Return the track environment of that name.

    An id that is registered with gymnasium is one, too. Nothing is imported for its name.

    Raises:
        ValueError: There is none, or it cannot be made.
    """
    if name not in ENVIRONMENTS and name in gym.registry:
        ENVIRONMENTS[name] = gymnasium_environment(name)
    if name not in ENVIRONMENTS and ":" in str(name):
        module, _, bare = str(name).rpartition(":")
        raise ValueError(
            f"environment {name!r} names a module, which is imported only for --plugin; pass --plugin {module} and the "
            f"environment {bare!r}."
        )
    try:
        return ENVIRONMENTS.require(name)
    except ValueError as error:
        raise ValueError(
            f"{error} If a plug-in registers it with gymnasium, pass --plugin with its file or module."
        ) from None


def gymnasium_environment(name: str, arguments: Mapping[str, Any] | None = None, **facts: Any) -> EnvSpec:
    """Return the facts of an environment of gymnasium.

    It is made once and reset, to read its spaces, its rate and its limit. Observations that are images (uint8: grey,
    RGB, or a stack of either) are the frames, or the only such entry of a dict or tuple; the last three of a grey stack
    are the channels. Otherwise `render` draws the frames, with a longer side of 96 pixels.

    Args:
        name: An id such as `racetrack-v1`, or what `gymnasium.register` was called with.
        arguments: Keywords of `gymnasium.make`.
        **facts: Fields of `EnvSpec` that are known better, such as `steering` or `pose`. Functions get the user's
            environment, `env.unwrapped`.

    Returns:
        The facts, for `ENVIRONMENTS`.

    Raises:
        ValueError: There is no such id, it cannot be made, it has no images, images of one colour alone, or other
            actions than one choice or bounded numbers.
    """
    if name not in gym.registry:
        raise ValueError(f"environment {name!r} is not registered with gymnasium; register it before.")
    registered, arguments = gym.spec(name), dict(arguments or {})
    env = _made(registered, arguments, None)
    image = Image.of(env.observation_space)
    if image is None:
        env.close()
        env = _made(registered, arguments, "rgb_array")
        if env.render_mode != "rgb_array":
            raise ValueError(
                f"environment {name!r} has no images: its observations are {env.observation_space}, and it has no "
                "render_mode 'rgb_array'; wrap it so that observations, or one entry of them, are uint8 images."
            )
    rate = facts.get("frames_per_second") or max(1, round(frame_rate(env) or ASSUMED_RATE))
    actions = _actions(name, env.action_space)
    of_user = {field: partial(_of_user, facts[field]) for field in _OF_USER if facts.get(field)}
    road = Road(name, env, image, rate, "ignore")
    try:
        frame, info = road.reset(seed=0)
        size = np.size(of_user.get("privileged", _numbers)(road, info))
        _require_picture(name, road)
    finally:
        road.close()
    spec = EnvSpec(
        partial(_make, name, registered, arguments, image, rate), frame.shape, rate, steering=None,
        flipped_actions=None, steering_part=None, flipped_parts=None, bar_top=None, flipped_bar_columns=None,
        solved_return=registered.reward_threshold, max_steps=registered.max_episode_steps, video_image=_shown,
        privileged=_numbers, privileged_size=size, **actions,
    )  # fmt: skip
    return replace(spec, **{**facts, **of_user})


def frame_rate(env: gym.Env) -> float | None:
    """Return the steps per second that an environment states.

    They are positive. None if it states none.

    It is the policy frequency of an environment that has one (highway-env), or `metadata["render_fps"]`.
    """
    config = getattr(env.unwrapped, "config", None)
    stated = config.get("policy_frequency") if isinstance(config, Mapping) else None
    stated = plain(stated or env.metadata.get("render_fps"))
    return stated if isinstance(stated, int | float) and 0 < stated < math.inf else None


def _made(registered: GymnasiumSpec, arguments: dict[str, Any], render_mode: str | None) -> gym.Env:
    """Make an environment, with a render mode if possible.

    Raises:
        ValueError: It cannot be made.
    """
    prepare_window(render_mode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of older versions of an id
        try:
            env = gym.make(registered, disable_env_checker=True, **arguments)
            if render_mode in env.metadata.get("render_modes", ()):
                env.close()
                env = gym.make(registered, disable_env_checker=True, **arguments, render_mode=render_mode)
        except Exception as error:
            raise ValueError(
                f"environment {registered.id!r} cannot be made: {described(error)}; correct it, or its arguments."
            ) from error
    return env


def _require_picture(name: str, road: Road) -> None:
    """Check that the first frames show anything.

    Raises:
        ValueError: Each has one colour alone.
    """
    road.action_space.seed(0)
    frames = [road.state]
    while not _shows_anything(frames[-1]) and len(frames) <= _BLANK:
        frame, _, terminated, truncated, _ = road.step(road.action_space.sample())
        frames.append(frame)
        if terminated or truncated:
            break
    if _shows_anything(frames[-1]):
        return
    driver = os.environ.get(_VIDEO_DRIVER)
    fix = f"unset {_VIDEO_DRIVER}, which is {driver!r}: pygame draws nothing then" if driver else "correct its images"
    raise ValueError(f"environment {name!r}: its first {len(frames)} images have one colour alone each; {fix}.")


def _shows_anything(frame: np.ndarray) -> bool:
    return bool(np.ptp(frame.reshape(-1, 3), axis=0).any())


def _make(
    name: str,
    registered: GymnasiumSpec,
    arguments: dict[str, Any],
    image: Image | None,
    rate: int,
    config: Any,
    crash: str,
    render_mode: str | None,
) -> Road:
    """Make the road of an `EnvSpec`."""
    if crash == "intervene":
        raise ValueError(f"crash: environment {name!r} cannot put a car back on the road; pass ignore or terminate.")
    if image is None:
        if render_mode == "human":
            raise ValueError(
                f"environment {name!r} draws its frames, so that it cannot open a window too; write a video or a page."
            )
        render_mode = "rgb_array"
    env = _made(registered, arguments, render_mode)
    if render_mode == "human" and env.render_mode != "human":
        raise ValueError(f"environment {name!r} has no window; write a video or a page.")
    return Road(name, env, image, rate, crash)


def _actions(name: str, space: gym.Space) -> dict[str, Any]:
    """Return the fields of `EnvSpec` that an action space decides.

    Raises:
        ValueError: There are other actions than one choice or bounded numbers.
    """
    if isinstance(space, gym.spaces.Discrete):
        return {"controls": ("discrete",), "action_names": tuple(f"action {number}" for number in range(int(space.n)))}
    if isinstance(space, gym.spaces.Box) and space.is_bounded() and np.issubdtype(space.dtype, np.floating):
        low, high = (bound.astype(np.float32).ravel().tolist() for bound in (space.low, space.high))
        parts = tuple(f"action {number}" for number in range(int(np.prod(space.shape))))
        return {"controls": ("continuous",), "parts": parts, "part_ranges": tuple(zip(low, high, strict=True))}
    raise ValueError(
        f"environment {name!r} has the actions {space}, expected Discrete(n) or a Box of numbers with bounds; wrap it."
    )


def _of_user(function: Callable[..., Any], road: Road, *rest: Any) -> Any:
    return deepcopy(function(road.env.unwrapped, *rest))  # the environment may change its array later


def _shown(road: Road) -> np.ndarray:
    """Return the drawn image, or the frame."""
    image = road.render() if road.render_mode == "rgb_array" else road.state
    return image if isinstance(image, np.ndarray) else road.state


def _numbers(road: Road, info: dict[str, Any]) -> np.ndarray:
    """Return a short observation, or a small image."""
    own = road.observation
    if isinstance(own, np.ndarray) and own.dtype != np.uint8 and own.size <= _MOST_NUMBERS:
        return own.astype(np.float32).ravel()
    grey = cv2.cvtColor(road.state, cv2.COLOR_RGB2GRAY)
    return cv2.resize(grey, (_SMALL, _SMALL), interpolation=cv2.INTER_AREA).ravel().astype(np.float32) / 255
