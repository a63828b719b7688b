"""Episodes that another program recorded, in the form of this package: checked, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nac_drive.data_collection.dataset.episode_file import DatasetError, EpisodeArrays
from nac_drive.envs import Control, EnvSpec
from nac_drive.suggest import did_you_mean

_KEYS = ("observations", "actions", "rewards", "dt")
_LOWEST, _HIGHEST = np.array([-1, 0, 0]), np.array([1, 1, 1])
"""Least and largest values of steer, gas and brake."""


def own_episode(
    index: int, episode: Mapping[str, Any], seed: int | None, dt: float, spec: EnvSpec
) -> tuple[EpisodeArrays, dict[str, Any], Control]:
    """Check an episode of own data and convert it.

    Args:
        index: Its number, for messages.
        episode: See `Demonstrations.from_episodes`.
        seed: Its seed; None if there are too few of them.
        dt: Seconds between observations where the episode has none.
        spec: The environment, which gives the shape of frames and the number of discrete actions.

    Returns:
        The arrays, the summary and the control (`discrete` or `continuous`).

    Raises:
        DatasetError: If a key, shape, dtype or range is another.
    """
    if not isinstance(episode, Mapping):
        raise DatasetError(f"episode {index} is a {type(episode).__name__}, expected a dict with {', '.join(_KEYS)}.")
    for key in episode:
        if key not in _KEYS:
            hint = did_you_mean(str(key), _KEYS)
            raise DatasetError(f"episode {index} has the key {key!r}, expected are {', '.join(_KEYS)}.{hint}")
    for key in ("observations", "actions"):
        if key not in episode:
            raise DatasetError(f"episode {index} has no {key}; pass a dict with observations and actions.")
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise DatasetError(f"the seed of episode {index} is {seed!r}; pass one integer of at least 0 per episode.")
    action, control = _action(index, np.asarray(episode["actions"]), spec)
    frames = np.asarray(episode["observations"])
    length = len(action)
    if frames.dtype != np.uint8 or frames.shape[1:] != spec.frame_shape or len(frames) not in (length, length + 1):
        raise DatasetError(
            f"observations of episode {index} are {frames.dtype} {frames.shape}, expected uint8 "
            f"{(length, *spec.frame_shape)} for its {length} actions, or {length + 1} frames with the one after the "
            "last action; resize or convert them."
        )
    reward = _numbers(index, "rewards", episode.get("rewards"), length, default=0.0)
    seconds = _numbers(index, "dt", episode.get("dt"), length, default=dt)
    if (seconds < 0).any():
        raise DatasetError(f"dt of episode {index} is negative at frame {int((seconds < 0).argmax())}; it is seconds.")
    seconds[0] = 0.0
    arrays = EpisodeArrays(
        frames=frames[:length], label=action, action=action, reward=reward, dt=seconds,
        zooming=np.zeros(length, np.bool_), telemetry={}, last_frame=frames[length] if len(frames) > length else None,
    )  # fmt: skip
    summary = {
        "seed": int(seed), "return": float(np.cumsum(reward)[-1]), "length": length, "terminated": True,
        "completion": 0.0, "lap_finished": False, "off_road_events": 0, "crashes": 0,
    }  # fmt: skip
    return arrays, summary, control


def minari_episodes(dataset: Any) -> Iterator[dict[str, Any]]:
    """Yield the episodes of a `minari.MinariDataset`, or of the id of one, for `Demonstrations.from_episodes`.

    Raises:
        ModuleNotFoundError: If an id is given and Minari is not installed.
    """
    if isinstance(dataset, str):
        try:
            minari = import_module("minari")  # optional
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                f"{dataset!r} is a Minari dataset, and Minari is not installed; run: pip install 'minari[hdf5]'"
            ) from None
        dataset = minari.load_dataset(dataset, download=True)
    for index, episode in enumerate(dataset.iterate_episodes()):
        if isinstance(episode.observations, dict | tuple):
            raise DatasetError(
                f"observations of episode {index} are a {type(episode.observations).__name__} of arrays; "
                "pass the frames alone to Demonstrations.from_episodes."
            )
        yield {"observations": episode.observations, "actions": episode.actions, "rewards": episode.rewards}


def _action(index: int, action: NDArray[Any], spec: EnvSpec) -> tuple[NDArray[Any], Control]:
    """Return the actions as they are stored, and their control."""
    if action.ndim == 1 and action.dtype.kind in "iu" and len(action):
        if not ((action >= 0) & (action < spec.num_actions)).all():
            raise DatasetError(
                f"actions of episode {index} range from {action.min()} to {action.max()}, expected "
                + ", ".join(f"{number} ({name})" for number, name in enumerate(spec.action_names))
                + "."
            )
        return action.astype(np.int64), "discrete"
    if action.ndim == 2 and action.shape[1] == 3 and action.dtype.kind == "f" and len(action):
        narrow = action.astype(np.float32)
        if not ((narrow >= _LOWEST) & (narrow <= _HIGHEST)).all():  # NaN is out of range too
            low, high = narrow.min(axis=0).tolist(), narrow.max(axis=0).tolist()
            raise DatasetError(
                f"actions of episode {index} range from {low} to {high}, "
                f"expected steer, gas, brake from {_LOWEST.tolist()} to {_HIGHEST.tolist()}; scale or clip them."
            )
        return narrow, "continuous"
    raise DatasetError(
        f"actions of episode {index} are {action.dtype} {action.shape}, expected integers (N,) of discrete "
        "actions or floats (N, 3) of steer, gas and brake, with N at least 1."
    )


def _numbers(index: int, name: str, values: Any, length: int, default: float) -> NDArray[np.float64]:
    """Return (N,) finite numbers, or N times the default."""
    if values is None:
        values = np.full(length, default)
    values = np.array(values)  # a copy
    if values.shape != (length,) or values.dtype.kind not in "iuf":
        raise DatasetError(
            f"{name} of episode {index} are {values.dtype} {values.shape}, expected {length} numbers, one per action."
        )
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise DatasetError(f"{name} of episode {index} are not finite at frame {int((~np.isfinite(values)).argmax())}.")
    return values
