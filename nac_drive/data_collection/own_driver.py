"""Drivers that users bring.

They are objects, models with `predict`, and functions. Their actions are checked.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeAlias, get_args
from weakref import WeakValueDictionary

import cloudpickle
import gymnasium as gym
import numpy as np

from nac_drive.arguments import value_text
from nac_drive.data_collection.adapters import (
    FunctionPolicy,
    PredictPolicy,
    described,
    parameters,
    required,
    takes_any,
)
from nac_drive.data_collection.identity import object_hash
from nac_drive.envs import Control, EnvConfig, Policy, Road, same_actions
from nac_drive.envs.config import require_env
from nac_drive.plugins import place_of
from nac_drive.policies.foreign_onnx import ForeignOnnx
from nac_drive.policies.image_input import UnfitError
from nac_drive.storage.names import shown
from nac_drive.storage.read import one_line


class Predictor(Protocol):
    """A model with the `predict` of stable-baselines3."""

    def predict(self, observation: np.ndarray, *args: Any, **keywords: Any) -> Any:
        """Return the action, or the action and the next state."""
        ...


AnyDriver: TypeAlias = str | os.PathLike[str] | Policy | Predictor | Callable[..., Any]
"""What drives: a name or a path, an object with `begin` and `act`, a model with `predict`, or a function of the
observation, or of the observation and dt. See `resolve_driver` and `as_policy`."""

_LONGEST = 200
"""Characters of an answer or an error of a driver that a message shows."""
_HERE: WeakValueDictionary[int, OwnDriver] = WeakValueDictionary()
"""Drivers of this process that cannot be pickled, by their `id`."""


class ControlError(ValueError):
    """A driver was made for another control.

    Args:
        driver: Name of the driver.
        own: Its control.
        asked: The control of the environment.
        fix: What to do about it.
    """

    def __init__(self, driver: str, own: str, asked: str, fix: str | None = None) -> None:
        super().__init__(driver, own, asked, fix or f"pass --control {own} or another driver")

    def __str__(self) -> str:
        driver, own, asked, fix = self.args
        return f"driver {driver!r} was made for {own} control, the environment has {asked} control; {fix}."


@dataclass
class OwnState:
    """The state of an `OwnDriver` in an episode."""

    env: gym.Env
    frame: int
    inner: Any
    """The state of the driver itself."""

    def __copy__(self) -> OwnState:
        kept = {id(env): env for env in (self.env, self.env.unwrapped)}  # a controller's state may hold them
        return OwnState(self.env, self.frame, deepcopy(self.inner, kept))


class OwnDriver:
    """A policy of a user. Its actions are checked, and torch computes them on one thread.

    A copy by pickle is made by cloudpickle, so that classes of a notebook reach other processes. A driver that cannot
    be pickled is its own copy, in this process alone.

    Args:
        policy: The driver.
        name: Its name, for tables and errors.
        control: The control that it is made for, if it says so.
        env_config: The environment of its training, if it says so.
        sha256: See `driver_hash`.
    """

    def __init__(
        self, policy: Policy, name: str, control: Control | None, env_config: Mapping[str, Any] | None, sha256: str
    ) -> None:
        self._policy, self.name, self.control, self.sha256 = policy, shown(name), control, sha256
        self.env_config = dict(env_config) if env_config else None

    def begin(self, env: gym.Env) -> OwnState:
        """Return the state at the start of an episode.

        Raises:
            ValueError: The driver's own code fails.
        """
        return OwnState(env, 0, self._call(0, self._policy.begin, env))

    def act(self, observation: np.ndarray, state: OwnState, dt: float) -> tuple[Any, OwnState]:
        """Choose an action, see `Policy`.

        Raises:
            ValueError: The driver's own code fails, or its answer is no action of the environment.
        """
        answer = self._call(state.frame, self._policy.act, observation.copy(), state.inner, dt)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise self._wrong(state.frame, "act must return the action and the next state", answer)
        return self._checked(answer[0], state), OwnState(state.env, state.frame + 1, answer[1])

    def __reduce__(self) -> tuple[Any, ...]:
        if self.unsendable:
            _HERE[id(self)] = self
            return _of_this_process, (os.getpid(), id(self), self.name)
        pickled = cloudpickle.dumps(self._policy)
        return _unpickled, (type(self), pickled, self.name, self.control, self.env_config, self.sha256)

    @cached_property
    def unsendable(self) -> str:
        """The reason why no other process can have the driver.

        It is empty if one can.
        """
        try:
            cloudpickle.dumps(self._policy)
        except Exception as error:  # whatever the attributes of the object raise
            return f"{type(error).__name__}: {error}"
        return ""

    def require_env(self, env: EnvConfig) -> None:
        """Check that the driver fits an environment.

        Raises:
            ValueError: It does not.
        """
        if self.control and not same_actions(self.control, env.control):
            raise ControlError(self.name, self.control, env.control)
        image_input = getattr(self._policy, "image_input", None)
        if image_input is not None:
            image_input.require(env.spec.frame_shape, self.name)

    def _call(self, frame: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the driver's own code.

        Raises:
            ValueError: It fails. The message names the line.
        """
        try:
            with _one_thread():
                return function(*arguments)
        except UnfitError:
            raise
        except Exception as error:
            fix = ""
            if isinstance(self._policy, FunctionPolicy) and self._policy.is_network:
                fix = f"; it gets an array of {arguments[0].dtype} {arguments[0].shape}: pass a function that makes a "
                fix += "tensor of it and calls the network"
            message = f"{place_of(error)}{type(error).__name__}: {one_line(error)[:_LONGEST]}{fix}"
            raise ValueError(f"driver {self.name!r} failed at frame {frame}: {message}") from error

    def _checked(self, action: Any, state: OwnState) -> Any:
        """Return an action as the environment takes it.

        It is an int, or an array of float32. An array may have the shape of a user's own action space.

        Raises:
            ValueError: It is no action of the environment.
        """
        space: Any = state.env.action_space
        if callable(getattr(action, "detach", None)):  # a tensor of torch
            action = action.detach().cpu()
            action = action.float() if action.is_floating_point() else action
        try:
            array = np.asarray(action)
        except Exception:  # lists of several lengths
            array = np.array(None)
        if isinstance(space, gym.spaces.Discrete):
            if array.shape == () and array.dtype.kind in "iu" and space.contains(np.int64(array)):
                return int(array)
        elif array.dtype.kind in "fiu" and (array.shape == space.shape or array.shape == _native_shape(state.env)):
            array = array.astype(space.dtype).reshape(space.shape)
            if space.contains(array):  # NaN lies nowhere
                return array
        fix = "" if self.control else _other_control(space, array)
        raise self._wrong(state.frame, f"its action must be {described(space)}", action, fix)

    def _wrong(self, frame: int, expected: str, answer: Any, fix: str = "") -> ValueError:
        array = isinstance(answer, np.ndarray | np.generic)
        got = f"{answer.dtype} {answer.shape} {answer.tolist()}" if array else repr(answer)
        return ValueError(f"driver {self.name!r}, frame {frame}: {expected}, got {shown(got)[:_LONGEST]}{fix}.")


class _OwnBatchDriver(OwnDriver):
    """A policy of a user that decides for several cars."""

    def act_batch(
        self, observations: Sequence[np.ndarray], states: Sequence[OwnState], dts: Sequence[float]
    ) -> tuple[list[Any], list[OwnState]]:
        """Choose an action for each car, see `BatchPolicy`.

        Raises:
            ValueError: As `act`.
        """
        policy: Any = self._policy
        inner, frames = [state.inner for state in states], [observation.copy() for observation in observations]
        actions, after = self._call(states[0].frame, policy.act_batch, frames, inner, dts)
        return (
            [self._checked(action, state) for action, state in zip(actions, states, strict=True)],
            [replace(state, frame=state.frame + 1, inner=new) for state, new in zip(states, after, strict=True)],
        )


def _other_control(space: gym.Space, action: np.ndarray) -> str:
    """Return the fix of an action for the other control."""
    if isinstance(space, gym.spaces.Discrete) and action.ndim == 1 and action.size > 1 and action.dtype.kind in "fiu":
        return "; pass --control continuous"
    if isinstance(space, gym.spaces.Box) and action.ndim == 0 and action.dtype.kind in "iu":
        return "; pass --control discrete"
    return ""


def as_policy(driver: Any, env: EnvConfig | None = None, *, name: str | None = None) -> Policy:
    """Return a policy with `begin` and `act`.

    Args:
        driver: An object with `begin` and `act`; a model with the `predict` of stable-baselines3, also one of stacked
            frames or with a recurrent state; a function of the observation, or of the observation and dt; or a class or
            a function without arguments that makes one of these. Drivers of this package stay as they are.
        env: The environment it will drive in, which it is checked against.
        name: Its name in tables and errors; by default the name of its class or function.

    Returns:
        The policy. Its actions are checked at every frame.

    Raises:
        ValueError: It is none of these, such as a name, which `resolve_driver` takes, or does not fit the environment.
    """
    if isinstance(driver, str | os.PathLike):
        got = value_text(driver)
        raise ValueError(f"driver must be an object that drives, got the name {got}; pass resolve_driver({got}).")
    require_env("env", env)
    name, driver = name or name_of(driver), made(driver)
    ours = type(driver).__module__.startswith("nac_drive.") and _drives(driver)
    if not ours or isinstance(driver, ForeignOnnx):
        driver = _checked_driver(driver, name)
    if env is not None and isinstance(driver, OwnDriver):
        driver.require_env(env)
    return driver


def name_of(driver: Any) -> str:
    """Return the name of an object's class or function."""
    if isinstance(driver, OwnDriver):
        return driver.name
    named = getattr(driver, "__name__", None)
    return shown(named.strip("<>") if isinstance(named, str) else type(driver).__name__)


def made(driver: Any) -> Any:
    """Return the driver that a class or a factory makes.

    Any other driver is returned itself.

    Raises:
        ValueError: The class needs arguments, or the code fails.
    """
    is_class = isinstance(driver, type)
    if not is_class and (not callable(driver) or _drives(driver) or required(driver) or takes_any(driver)):
        return driver
    if is_class and required(driver):
        raise ValueError(f"driver: the class {driver.__name__} needs arguments; pass an object, or a function of none.")
    try:
        return driver()
    except Exception as error:
        raise ValueError(
            f"driver {name_of(driver)!r} cannot be made: {place_of(error)}{type(error).__name__}: {error}"
        ) from error


def can_drive(value: Any) -> bool:
    """Return whether a user's object drives or makes a driver.

    Classes of torch modules are cores, and so are functions whose first argument is a size.
    """
    if _drives(value):
        return True
    if hasattr(value, "state_dict") or type(value).__module__.startswith("nac_drive."):
        return False
    if isinstance(value, type):
        return any("__call__" in vars(kind) for kind in value.__mro__)
    return callable(value) and not next(iter(parameters(value)), "").endswith("size")


def _drives(driver: Any) -> bool:
    return callable(getattr(driver, "act", None)) or callable(getattr(driver, "predict", None))


def _checked_driver(driver: Any, name: str) -> OwnDriver:
    """Return a user's object with its actions checked.

    Raises:
        ValueError: It does not drive.
    """
    kind: type[OwnDriver] = OwnDriver
    if callable(getattr(driver, "act", None)) and callable(getattr(driver, "begin", None)):
        policy = driver
        kind = _OwnBatchDriver if hasattr(driver, "act_batch") else OwnDriver
    elif callable(getattr(driver, "predict", None)):
        policy = PredictPolicy(driver, name)
    elif callable(driver):
        policy = FunctionPolicy(driver)
    else:
        raise ValueError(
            f"driver must be a name, a folder, an object with begin and act, a model with predict, or a function of "
            f"the observation, got {type(driver).__name__}."
        )
    space, control, config = (getattr(driver, word, None) for word in ("action_space", "control", "env_config"))
    if space is not None:
        control = "discrete" if isinstance(space, gym.spaces.Discrete) else "continuous"
    config = asdict(config) if isinstance(config, EnvConfig) else config
    sha256 = driver.sha256 if isinstance(driver, ForeignOnnx) else object_hash(driver)
    return kind(policy, name, control if control in get_args(Control) else None, config, sha256)


def _native_shape(env: gym.Env) -> tuple[int, ...] | None:
    """Return the shape of actions in a user's own environment."""
    road = env.unwrapped
    return road.env.action_space.shape if isinstance(road, Road) else None


def _one_thread() -> Any:
    """Return a context in which torch computes on one thread."""
    if "torch" not in sys.modules:
        return nullcontext()
    from nac_drive.policies.ops.threads import one_thread

    return one_thread()


def _unpickled(kind: type[OwnDriver], pickled: bytes, *settings: Any) -> OwnDriver:
    return kind(pickle.loads(pickled), *settings)


def _of_this_process(process: int, number: int, name: str) -> OwnDriver:
    if process != os.getpid():
        raise RuntimeError(f"driver {name!r} cannot be sent to another process.")
    return _HERE[number]
