"""Functions and models with `predict` as policies."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import gymnasium as gym
import numpy as np

from nac_drive.policies.image_input import OWN_FUNCTION, ImageInput, UnfitError
from nac_drive.policies.ops.evaluation_mode import evaluation_mode


class FunctionPolicy:
    """A function of the observation as a policy.

    A network of torch is called in its mode of evaluation, as a model of stable-baselines3 is, and keeps its own.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function: Any = function
        self._takes_dt = _takes_dt(function)
        self.is_network = hasattr(function, "state_dict") and hasattr(function, "modules")

    def begin(self, env: gym.Env) -> None:
        """Return no state."""

    def act(self, observation: np.ndarray, state: None, dt: float) -> tuple[Any, None]:
        """Call the function."""
        with evaluation_mode(self._function) if self.is_network else nullcontext():
            return (self._function(observation, dt) if self._takes_dt else self._function(observation)), None


class PredictPolicy:
    """A model with `predict` as a policy.

    The last frames of an episode and a recurrent state are its state.
    """

    def __init__(self, model: Any, name: str) -> None:
        # The policy of stable-baselines3 decides alone: the rest of its model holds environments and buffers.
        self._model = model.policy if hasattr(getattr(model, "policy", None), "predict") else model
        known = inspect.signature(self._model.predict).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        self._keywords = [word for word in ("state", "episode_start", "deterministic") if takes_all or word in known]
        space, self._name = getattr(model, "observation_space", None), name
        self.image_input = None if space is None else _image_input(space, name)

    def begin(self, env: gym.Env) -> tuple[Any, Any, bool]:
        """Return the state at the start of an episode.

        It is the frames so far, the recurrent state, and whether the episode starts.

        Raises:
            UnfitError: The model has other frames or another action space than the environment.
        """
        if self.image_input and env.observation_space.shape:
            self.image_input.require(env.observation_space.shape, self._name)
        own: Any = getattr(self._model, "action_space", None)
        if own is not None and not _same_space(own, env.action_space):
            raise UnfitError(
                f"driver {self._name!r}: its action is {described(own)}, the environment takes "
                f"{described(env.action_space)}; write a function drive(observation) in mine.py that translates it, "
                "and pass mine.py:drive."
            )
        return (self.image_input.start() if self.image_input else None), None, True

    def act(self, observation: np.ndarray, state: tuple[Any, Any, bool], dt: float) -> tuple[Any, tuple]:
        """Predict from the last frames."""
        stack, inner, starts = state
        if self.image_input:
            stack = self.image_input.push(stack, observation)
            observation = self.image_input.array(stack)
        values = {"state": inner, "episode_start": np.array([starts]), "deterministic": True}
        answer = self._model.predict(observation, **{word: values[word] for word in self._keywords})
        action, inner = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)
        return action, (stack, inner, False)


def required(function: Callable[..., Any]) -> int:
    """Return the number of required arguments, 1 if unknown."""
    by_place = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    positional = [one for one in parameters(function).values() if one.kind in by_place]
    return sum(one.default is one.empty for one in positional)


def takes_any(function: Callable[..., Any]) -> bool:
    """Return whether a function takes any number of arguments."""
    return any(one.kind is one.VAR_POSITIONAL for one in parameters(function).values())


def _takes_dt(function: Callable[..., Any]) -> bool:
    """Return whether a function takes the observation and dt."""
    return required(function) > 1 or list(parameters(function))[1:2] == ["dt"]


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a function; the observation if it does not say."""
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {"observation": inspect.Parameter("observation", inspect.Parameter.POSITIONAL_ONLY)}


def _image_input(space: Any, name: str) -> ImageInput:
    """Return the frames that a model's observation space asks for.

    Raises:
        ValueError: It asks for other observations.
    """
    if not isinstance(space, gym.spaces.Box):
        raise ValueError(f"driver {name!r}: its observations must be images, got {space}; {OWN_FUNCTION}.")
    low, largest = float(space.low.min()), float(space.high.max())
    if low != 0 or largest not in (1, 255):
        raise ValueError(
            f"driver {name!r}: its observations must be frames from 0 to 255 or from 0 to 1, got numbers from {low:g} "
            f"to {largest:g}; {OWN_FUNCTION}."
        )
    return ImageInput.of(space.shape, name, space.dtype.name, largest)


def _same_space(one: gym.Space, other: gym.Space) -> bool:
    """Return whether two spaces hold the same actions.

    Their dtypes may differ.
    """
    if isinstance(one, gym.spaces.Box) and isinstance(other, gym.spaces.Box):
        return one.shape == other.shape and bool(np.all(one.low == other.low) and np.all(one.high == other.high))
    return one == other


def described(space: Any) -> str:
    """Return the actions of a space in words."""
    if isinstance(space, gym.spaces.Discrete):
        return f"an integer from {space.start} to {space.start + space.n - 1}"
    if isinstance(space, gym.spaces.Box) and space.low.ndim == 1:
        ranges = ", ".join(f"[{low:g}, {high:g}]" for low, high in zip(space.low, space.high, strict=True))
        return f"{space.low.size} finite numbers in {ranges}"
    return str(space)
