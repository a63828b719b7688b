"""Any environment of gymnasium as a track environment.

Its images become frames (H, W, 3), its time is in `info["dt"]`, and an error in it is one line.
"""

from __future__ import annotations

import math
import os
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from nac_drive.envs.spec import ENVIRONMENTS, EnvSpec

ASSUMED_RATE = 50
"""Frames per second of an environment that states none."""
RENDERED_SIDE = 96
"""Pixels of the longer side of a frame that `render` drew."""
_LEAST_SIDE, _MOST_CHANNELS = 16, 16
"""The smallest side of an image, and the largest number of its channels or stacked frames."""
_MOST_NUMBERS = 1024
"""The most numbers of an observation that the value network of PPO sees."""
_ROUNDING = 1e-5
"""The fraction of its range by which a rounded number of an action may leave it."""
_SMALL = 12
"""Side of the image that it sees otherwise."""

_BLANK = 5
"""Steps after which an environment must have shown anything."""
_VIDEO_DRIVER = "SDL_VIDEODRIVER"
"""Variable of the shell: with `dummy`, highway-env observes zeros without a word."""

KEYS: dict[str, Callable[[Any], Any]] = {
    "speed": float,
    "lateral_offset": float,
    "heading_error": float,
    "wheels_off_road": int,
    "completion": float,
    "lap_finished": bool,
    "off_road": bool,
    "off_road_events": int,
    "crashes": int,
    "interventions": int,
}
"""Keys of `info` that metrics read, and their types. `crash`, the kind of a crash, is one more."""
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
    RGB, or a stack of either) are the frames; the last three of a grey stack are the channels. Otherwise `render` draws
    the frames, with a longer side of 96 pixels.

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
                "render_mode 'rgb_array'; wrap it so that observations are uint8 images."
            )
    rate = facts.get("frames_per_second") or frame_rate(env) or ASSUMED_RATE
    actions = _actions(name, env.action_space)
    road = Road(name, env, image, rate, "ignore")
    try:
        frame, info = road.reset(seed=0)
        size = len(_numbers(road, info))
        _require_picture(name, road)
    finally:
        road.close()
    spec = EnvSpec(
        partial(_make, name, registered, arguments, image, rate), frame.shape, rate, steering=None,
        flipped_actions=None, steering_part=None, flipped_parts=None, bar_top=None, flipped_bar_columns=None,
        solved_return=registered.reward_threshold, max_steps=registered.max_episode_steps, video_image=_shown,
        privileged=_numbers, privileged_size=size, **actions,
    )  # fmt: skip
    of_user = {field: partial(_of_user, facts[field]) for field in _OF_USER if facts.get(field)}
    return replace(spec, **{**facts, **of_user})


def frame_rate(env: gym.Env) -> int | None:
    """Return the steps per second that an environment states.

    They are at least 1. None if it states none.

    It is the policy frequency of an environment that has one (highway-env), or `metadata["render_fps"]`.
    """
    config = getattr(env.unwrapped, "config", None)
    stated = config.get("policy_frequency") if isinstance(config, Mapping) else None
    stated = stated or env.metadata.get("render_fps")
    return max(1, round(stated)) if isinstance(stated, int | float) and 0 < stated < math.inf else None


@dataclass(frozen=True)
class Image:
    """The place of an image in observations."""

    shape: tuple[int, ...]
    """Shape of an observation."""
    frame_shape: tuple[int, int, int]
    """Shape of a frame, with three channels."""
    stack: bool
    """The first axis counts frames with channels of their own, of which the last one is taken."""
    first: bool
    """Channels come first."""
    channels: int

    @classmethod
    def of(cls, space: gym.Space) -> Image | None:
        """Return the image in observations of a space. None if there is none."""
        if not isinstance(space, gym.spaces.Box) or space.dtype != np.uint8:
            return None
        shape = space.shape[1:] if len(space.shape) == 4 else space.shape
        if len(shape) == 2:
            shape = (*shape, 1)
        for first, height, width, channels in (
            ((False, *shape), (True, *shape[1:], *shape[:1])) if len(shape) == 3 else ()
        ):
            if min(height, width) >= _LEAST_SIDE and channels <= _MOST_CHANNELS:
                return cls(space.shape, (height, width, 3), len(space.shape) == 4, first, channels)
        return None

    def frame(self, observation: np.ndarray) -> np.ndarray:
        """Return the frame (H, W, 3) of an observation."""
        image = observation[-1] if self.stack else observation
        image = image.reshape(*self.frame_shape[:2], 1) if image.ndim == 2 else image
        image = image.transpose(1, 2, 0) if self.first else image
        if self.channels < 3:  # the oldest frame of a stack is repeated
            image = image[..., [0] * (3 - self.channels) + list(range(self.channels))]
        return np.ascontiguousarray(image[..., -3:])

    @property
    def words(self) -> str:
        """How an observation becomes a frame."""
        if self.stack:
            return "the last image of a stack"
        return {1: "grey, three times", 3: "three channels"}.get(
            self.channels, f"the last 3 of {self.channels} channels"
        )


class Road(gym.Env):
    """An environment of gymnasium with frames and time.

    Frames are (H, W, 3), the time is in `info`.

    Args:
        name: Its id, for errors.
        env: The environment.
        image: The image in its observations; None for images of `render`.
        rate: Steps per second.
        crash: `terminate` ends an episode at a crash that `info` reports.
    """

    def __init__(self, name: str, env: gym.Env, image: Image | None, rate: int, crash: str) -> None:
        self.env, self.spec, self.render_mode, self.metadata = env, env.spec, env.render_mode, env.metadata
        self.image = image
        """The image in the observations of the environment itself; None for images of `render`."""
        self._name, self._dt, self._ends_at_crash = name, 1 / rate, crash == "terminate"
        self._seed: int | None = None
        self._steps = 0
        self._reported: set[str] | None = None
        if image is None:
            self._try(env.reset, seed=0)
        self.state = self._look(None) if image is None else np.zeros(image.frame_shape, np.uint8)
        """The present frame."""
        self.observation: Any = None
        """The present observation of the environment itself."""
        self.observation_space = gym.spaces.Box(0, 255, self.state.shape, np.uint8)
        own = env.action_space
        self._start = int(own.start) if isinstance(own, gym.spaces.Discrete) else 0
        self._box = own if isinstance(own, gym.spaces.Box) else None
        self.action_space: gym.Space = (
            gym.spaces.Box(own.low.astype(np.float32).ravel(), own.high.astype(np.float32).ravel())
            if isinstance(own, gym.spaces.Box)
            else gym.spaces.Discrete(int(own.n))  # type: ignore[attr-defined]
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._seed, self._steps, self._reported = seed, 0, None
        self._crashed = self._off = False
        self._counts = {"crashes": 0, "off_road_events": 0}
        self.observation, info = self._try(self.env.reset, seed=seed, options=options)
        self.state = self._look(self.observation)
        return self.state, self._read(info, 0.0)

    def step(self, action):
        self._steps += 1
        outcome = self._try(self.env.step, self._native(action))
        self.observation, reward, terminated, truncated, info = outcome
        try:
            reward = float(reward)
        except (TypeError, ValueError):
            reward = math.nan
        if not math.isfinite(reward):
            raise ValueError(self._says(f"returned the reward {outcome[1]!r}, expected a finite number; correct it"))
        self.state = self._look(self.observation)
        info = self._read(info, self._dt)
        terminated = bool(terminated) or (self._ends_at_crash and bool(info.get("crash")))
        return self.state, reward, terminated, bool(truncated), info

    def render(self) -> Any:
        return self._try(self.env.render)

    def close(self) -> None:
        self.env.close()

    def _native(self, action: Any) -> Any:
        """Return an action as the environment takes it."""
        if self._box is None:
            return self._start + int(action)
        low, high = self._box.low, self._box.high
        values = np.asarray(action, self._box.dtype).reshape(self._box.shape)
        if not (np.abs(values - (low + high) / 2) <= (0.5 + _ROUNDING) * (high - low)).all():  # so is NaN
            raise ValueError(self._says(f"got the action {values.tolist()}, expected one of {self._box}; clip it"))
        return values.clip(low, high)

    def _look(self, observation: Any) -> np.ndarray:
        """Return the frame of an observation or of `render`."""
        if self.image is not None:
            if getattr(observation, "shape", None) != self.image.shape or observation.dtype != np.uint8:
                got = f"{getattr(observation, 'dtype', type(observation).__name__)} {getattr(observation, 'shape', '')}"
                raise ValueError(
                    self._says(f"returned an observation {got}, its space says uint8 {self.image.shape}; correct it")
                )
            return self.image.frame(observation)
        image = self._try(self.env.render)
        image = image[-1] if isinstance(image, list) and image else image
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise ValueError(self._says(f"render() returned a {type(image).__name__}, expected uint8 (H, W, 3)"))
        return self.fitted(image)

    @staticmethod
    def fitted(image: np.ndarray) -> np.ndarray:
        """Return a rendered image in the size of a frame."""
        scale = RENDERED_SIDE / max(image.shape[:2])
        size = tuple(max(_LEAST_SIDE, round(side * scale)) for side in image.shape[1::-1])
        return cv2.resize(image, size, interpolation=cv2.INTER_AREA)

    def _read(self, info: dict[str, Any], dt: float) -> dict[str, Any]:
        """Return `info` with the time and checked keys."""
        info = self._kept(info)
        read = {**info, "dt": dt, "zooming": False}
        for key, kind in KEYS.items():
            if key in info:
                read[key] = self._number(key, info[key], kind)
        if "completion" in info:
            read["completion"] = min(max(read["completion"], 0.0), 1.0)
        if "crash" in info:
            crash = info["crash"]
            read["crash"] = crash if isinstance(crash, str) and crash else "crash" if crash else None
            read.setdefault("interventions", 0)
            self._crashed = self._count("crashes", bool(crash), self._crashed, read)
        if "off_road" in info:
            self._off = self._count("off_road_events", read["off_road"], self._off, read)
        return read

    def _kept(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return `info` without keys that came later.

        The first step decides which keys of metrics there are.

        Raises:
                ValueError: One of them is missing.
        """
        keys = {key for key in (*KEYS, "crash") if info.get(key) is not None or (key == "crash" and key in info)}
        if self._steps == 0:
            return {key: value for key, value in info.items() if key in keys or key not in KEYS}
        self._reported = keys if self._reported is None else self._reported
        for key in sorted(self._reported - keys):
            raise ValueError(self._says(f"reports no info[{key!r}] any more; report it after every step"))
        return {key: value for key, value in info.items() if key in self._reported or key not in (*KEYS, "crash")}

    def _count(self, key: str, now: bool, before: bool, read: dict[str, Any]) -> bool:
        """Count beginnings of an event that nobody counts."""
        self._counts[key] += now and not before
        read.setdefault(key, self._counts[key])
        return now

    def _number(self, key: str, value: Any, kind: Callable[[Any], Any]) -> Any:
        try:
            number = kind(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(self._says(f"returned info[{key!r}] = {value!r}, expected a number; correct or rename it"))
        return number

    def _try(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the environment."""
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise ValueError(
                self._says(f"raised {_described(error)}; correct it, what was recorded is kept")
            ) from error

    def _says(self, what: str) -> str:
        of = "" if self._seed is None else f" of the episode with seed {self._seed}"
        return f"environment {self._name!r}, step {self._steps}{of}: it {what}."


def _described(error: Exception) -> str:
    """Return type, text and place of an error."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}{place}"


def _made(registered: GymnasiumSpec, arguments: dict[str, Any], render_mode: str | None) -> gym.Env:
    """Make an environment, with a render mode if possible.

    Raises:
        ValueError: It cannot be made.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of older versions of an id
        try:
            env = gym.make(registered, disable_env_checker=True, **arguments)
            if render_mode in env.metadata.get("render_modes", ()):
                env.close()
                env = gym.make(registered, disable_env_checker=True, **arguments, render_mode=render_mode)
        except Exception as error:
            raise ValueError(
                f"environment {registered.id!r} cannot be made: {_described(error)}; correct it, or its arguments."
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
    return function(road.env.unwrapped, *rest)


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
