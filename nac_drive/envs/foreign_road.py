"""A user's environment of gymnasium with frames (H, W, 3) and time.

An error in it is one line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import cv2
import gymnasium as gym
import numpy as np

from nac_drive.plain import plain
from nac_drive.plugins import place_of

RENDERED_SIDE = 96
"""Pixels of the longer side of a frame that `render` drew."""
_LEAST_SIDE, _MOST_CHANNELS = 16, 16
"""The smallest side of an image, and the largest number of its channels or stacked frames."""
_ROUNDING = 1e-5
"""The fraction of its range by which a rounded number of an action may leave it."""
_LONGEST = 300
"""Characters of an error or a value that a message shows."""
_MOST_COMPLETION = 1.01
"""The largest completion that rounding explains."""


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _fraction(value: Any) -> float:
    number = _number(value)
    if number > _MOST_COMPLETION:
        raise ValueError
    return min(max(number, 0.0), 1.0)


def _flag(value: Any) -> bool:
    """Return a flag; texts and lists are none."""
    flag = plain(value)
    if not isinstance(flag, int | float) or flag not in (0, 1):
        raise ValueError
    return bool(flag)


def _crash(value: Any) -> str | None:
    """Return the kind of a crash; None for no crash."""
    if value is None or isinstance(value, str):
        return value or None
    return "crash" if _flag(value) else None


KEYS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "speed": (_number, "a number"),
    "lateral_offset": (_number, "a number"),
    "heading_error": (_number, "a number"),
    "wheels_off_road": (int, "a number"),
    "completion": (_fraction, "a fraction of the track, 0 to 1"),
    "lap_finished": (_flag, "True or False"),
    "off_road": (_flag, "True or False"),
    "off_road_events": (int, "a number"),
    "crash": (_crash, "True, False, None or the kind of the crash"),
    "crashes": (int, "a number"),
    "interventions": (int, "a number"),
}
"""Keys of `info` that metrics read: a function that converts a value or raises an error, and the expected values."""


@dataclass(frozen=True)
class Image:
    """The place of an image in observations."""

    shape: tuple[int, ...]
    """Shape of the image, or of the stack of images."""
    frame_shape: tuple[int, int, int]
    """Shape of a frame, with three channels."""
    stack: bool
    """The first axis counts frames with channels of their own, of which the last one is taken."""
    first: bool
    """Channels come first."""
    channels: int
    entry: Any = None
    """Key or number of the image in an observation of several entries; None if it is the whole observation."""

    @classmethod
    def of(cls, space: gym.Space) -> Image | None:
        """Return the image in observations of a space.

        A dict or a tuple has one where one entry alone is an image. None if there is none.
        """
        entries: Any = getattr(space, "spaces", ())
        entries = entries.items() if isinstance(space, gym.spaces.Dict) else enumerate(entries)
        images = [replace(image, entry=entry) for entry, inner in entries if (image := cls._of_box(inner))]
        return images[0] if len(images) == 1 else cls._of_box(space)

    @classmethod
    def _of_box(cls, space: gym.Space) -> Image | None:
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

    def found(self, observation: Any) -> Any:
        """Return the image of an observation, which may be wrong. None if its entry is missing."""
        if self.entry is None:
            return observation
        try:
            return observation[self.entry]
        except (LookupError, TypeError):
            return None

    def frame(self, image: np.ndarray) -> np.ndarray:
        """Return an image as a frame (H, W, 3), a new array."""
        image = image[-1] if self.stack else image
        image = image.reshape(*self.frame_shape[:2], 1) if image.ndim == 2 else image
        image = image.transpose(1, 2, 0) if self.first else image
        if self.channels < 3:  # the oldest frame of a stack is repeated
            image = image[..., [0] * (3 - self.channels) + list(range(self.channels))]
        return np.array(image[..., -3:], order="C")  # an environment may draw into one array again and again

    @property
    def words(self) -> str:
        """How an observation becomes a frame."""
        words = {1: "grey, three times", 3: "three channels"}.get(
            self.channels, f"the last 3 of {self.channels} channels"
        )
        words = "the last image of a stack" if self.stack else words
        return words if self.entry is None else f"{words}, from the entry {self.entry!r} of observations"


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
        self._keys: set[str] = set()
        if image is None:
            self._try(env.reset)  # without a seed: the first reset of a user may have none
        self.state = self._rendered() if image is None else np.zeros(image.frame_shape, np.uint8)
        """The present frame."""
        self.observation: Any = None
        """The present observation of the environment itself."""
        self.observation_space = gym.spaces.Box(0, 255, self.state.shape, np.uint8)
        actions = env.action_space
        self._start = int(actions.start) if isinstance(actions, gym.spaces.Discrete) else 0
        self._box = actions if isinstance(actions, gym.spaces.Box) else None
        self.action_space: gym.Space = (
            gym.spaces.Box(actions.low.astype(np.float32).ravel(), actions.high.astype(np.float32).ravel())
            if isinstance(actions, gym.spaces.Box)
            else gym.spaces.Discrete(int(actions.n))  # type: ignore[attr-defined]
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._seed, self._steps = seed, 0
        self._crashed = self._off = False
        self._counts = {"crashes": 0, "off_road_events": 0}
        self.observation, info = self._outcome("reset", 2, self._try(self.env.reset, seed=seed, options=options))
        self.state = self._look(self.observation)
        return self.state, self._read(info, 0.0)

    def step(self, action):
        self._steps += 1
        outcome = self._outcome("step", 5, self._try(self.env.step, self._native(action)))
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
            image = self.image.found(observation)
            if getattr(image, "shape", None) != self.image.shape or image.dtype != np.uint8:
                got = f"{getattr(image, 'dtype', type(image).__name__)} {getattr(image, 'shape', '')}".strip()
                what = "an observation" if self.image.entry is None else f"for the entry {self.image.entry!r}"
                raise ValueError(
                    self._says(f"returned {what} {got}, its space says uint8 {self.image.shape}; correct it")
                )
            return self.image.frame(np.asarray(image))
        frame, shape = self._rendered(), self.observation_space.shape
        if frame.shape != shape:
            what = f"an image that becomes a frame {frame.shape}, the first one became {shape}; keep its proportions"
            raise ValueError(self._says(f"returned from render {what}"))
        return frame

    def _rendered(self) -> np.ndarray:
        image = self._try(self.env.render)
        image = image[-1] if isinstance(image, list) and image else image
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise ValueError(
                self._says(f"returned from render a {type(image).__name__}, expected uint8 (H, W, 3); correct it")
            )
        return self.fitted(image)

    @staticmethod
    def fitted(image: np.ndarray) -> np.ndarray:
        """Return a rendered image in the size of a frame."""
        scale = RENDERED_SIDE / max(image.shape[:2])
        size = tuple(max(_LEAST_SIDE, round(side * scale)) for side in image.shape[1::-1])
        return cv2.resize(image, size, interpolation=cv2.INTER_AREA)

    def _outcome(self, method: str, number: int, outcome: Any) -> tuple[Any, ...]:
        """Return what `reset` or `step` returned.

        Raises:
            ValueError: It is no tuple of this many values, or its `info` is no dict.
        """
        if isinstance(outcome, tuple) and len(outcome) == number and isinstance(outcome[-1], Mapping):
            return outcome
        values = "observation, reward, terminated, truncated, info" if number == 5 else "observation, info"
        got = f"{len(outcome)} values" if isinstance(outcome, tuple) else f"a {type(outcome).__name__}"
        raise ValueError(self._says(f"returned {got} from {method}, expected {values}; correct it"))

    def _read(self, info: dict[str, Any], dt: float) -> dict[str, Any]:
        """Return `info` with the time and checked keys."""
        info = self._reported(info)
        read = {**info, "dt": dt, "zooming": False}
        for key, (kind, expected) in KEYS.items():
            if key in info:
                read[key] = self._converted(key, info[key], kind, expected)
        if "crash" in info:
            read.setdefault("interventions", 0)
            self._crashed = self._count("crashes", read["crash"] is not None, self._crashed, read)
        if "off_road" in info:
            self._off = self._count("off_road_events", read["off_road"], self._off, read)
        return read

    def _reported(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return `info` without empty keys of metrics.

        The first step decides which of them there are. A crash may be None.

        Raises:
            ValueError: One of them is missing later, or comes later.
        """
        info = {key: value for key, value in info.items() if value is not None or key not in KEYS or key == "crash"}
        keys = info.keys() & KEYS.keys()
        if self._steps == 1:
            self._keys = keys
        for key in sorted(keys ^ self._keys) if self._steps else ():
            name = f"info[{key!r}]"
            what = f"no {name} any more" if key in self._keys else f"{name}, but not from the first step on"
            raise ValueError(self._says(f"reports {what}; report it after every step"))
        return info

    def _count(self, key: str, now: bool, before: bool, read: dict[str, Any]) -> bool:
        """Count beginnings of an event that nobody counts."""
        self._counts[key] += now and not before
        read.setdefault(key, self._counts[key])
        return now

    def _converted(self, key: str, value: Any, kind: Callable[[Any], Any], expected: str) -> Any:
        try:
            return kind(value)
        except (TypeError, ValueError, OverflowError):
            got = " ".join(repr(value).split())[:_LONGEST]
            what = f"returned info[{key!r}] = {got}, expected {expected}; correct or rename it"
            raise ValueError(self._says(what)) from None

    def _try(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the environment."""
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise ValueError(self._says(f"raised {described(error)}; correct it, what was recorded is kept")) from error

    def _says(self, what: str) -> str:
        of = "" if self._seed is None else f" of the episode with seed {self._seed}"
        return f"environment {self._name!r}, step {self._steps}{of}: it {what}."


def described(error: Exception) -> str:
    """Return type, text and place of an error."""
    line = place_of(error).removesuffix(": ")
    location = f" ({line})" if line else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST]}{location}"
