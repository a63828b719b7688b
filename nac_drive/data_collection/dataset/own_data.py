"""Episodes that another program recorded, checked and converted.

They are taken one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nac_drive.data_collection.dataset.create import write_dataset
from nac_drive.data_collection.dataset.episode_arrays import EpisodeArrays
from nac_drive.data_collection.dataset.episode_file import EncodedEpisode
from nac_drive.data_collection.dataset.limits import LARGEST_NUMBER, LONGEST_DT, LONGEST_EPISODE, DatasetError
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.data_collection.dataset.rows import CORRECTIONS, SEED_GIVEN, TRUNCATED, frame_ranges
from nac_drive.envs import LARGEST_SEED, Control, EnvConfig, EnvSpec, same_actions
from nac_drive.envs.config import require_env
from nac_drive.storage.read import one_line
from nac_drive.suggest import did_you_mean

_ENDS = ("terminated", TRUNCATED)
_KEYS = ("observations", "actions", "labels", "labelled", "zooming", "rewards", "dt", *_ENDS)


def write_own_data(
    path: Path,
    episodes: Iterable[Mapping[str, Any]],
    driver: str,
    dt: float | None,
    seeds: Iterable[int] | None,
    seeds_given: bool,
    env: EnvConfig | None,
    finished: Callable[[str], None],
) -> None:
    """Write own data, see `Demonstrations.from_episodes`.

    Args:
        path: The new folder.
        episodes: See `Demonstrations.from_episodes`.
        driver: The name of the driver in tables.
        dt: Seconds between observations where an episode has none; a frame of the environment for None.
        seeds: One per episode; 0, 1, 2, ... for None.
        seeds_given: Whether the episodes were driven with these seeds; otherwise they only number the tracks.
        env: The environment; one with the control of the first episode for None.
        finished: Called with a note on each episode once it is written.

    Raises:
        ValueError: `env` is no `EnvConfig`.
    """
    require_env("env", env)
    dt = (env or EnvConfig()).spec.nominal_dt if dt is None else dt
    settled = (
        (
            EncodedEpisode.encode(index, arrays, {**summary, **({SEED_GIVEN: True} if seeds_given else {})}),
            Meta(own_env, driver, "", None, 0),
        )
        for index, (arrays, summary, own_env) in enumerate(own_episodes(episodes, seeds, dt, env))
    )
    write_dataset(path, settled, finished)


def own_episodes(
    episodes: Iterable[Mapping[str, Any]], seeds: Iterable[int] | None, dt: float, env: EnvConfig | None
) -> Iterator[tuple[EpisodeArrays, dict[str, Any], EnvConfig]]:
    """Check and convert episodes of own data.

    They are taken one at a time.

    Args:
        episodes: See `Demonstrations.from_episodes`.
        seeds: One per episode; 0, 1, 2, ... for None.
        dt: Seconds between observations where an episode has none.
        env: The environment; one with the control of the first episode for None.

    Yields:
        Arrays, summary and environment of each episode.

    Raises:
        DatasetError: If a key, shape, dtype or range is another.
    """
    numbers, index = count() if seeds is None else iter(seeds), -1
    for index, episode in enumerate(episodes):
        arrays, summary, control = _own_episode(index, episode, next(numbers, None), dt, (env or EnvConfig()).spec)
        env = env or EnvConfig(control)
        if not same_actions(control, env.control):
            raise DatasetError(
                f"episode {index} has {control} actions, expected {env.control} ones, as in `env` or the first "
                "episode; write one dataset for each control."
            )
        yield arrays, summary, env
    if isinstance(seeds, Sized) and next(numbers, None) is not None:
        raise DatasetError(f"seeds: {len(seeds)} for {index + 1} episodes; pass one integer of at least 0 per episode.")


def _own_episode(
    index: int, episode: Mapping[str, Any], seed: int | None, dt: float, spec: EnvSpec
) -> tuple[EpisodeArrays, dict[str, Any], Control]:
    """Return arrays, summary and control of an episode. `seed` is None if there are too few of them."""
    if not isinstance(episode, Mapping):
        raise DatasetError(f"episode {index} is a {type(episode).__name__}, expected a dict with {', '.join(_KEYS)}.")
    for key in episode:
        if key not in _KEYS:
            hint = did_you_mean(str(key), _KEYS)
            raise DatasetError(f"episode {index} has the key {key!r}, expected are {', '.join(_KEYS)}.{hint}")
    for key in ("observations", "actions"):
        if key not in episode:
            raise DatasetError(f"episode {index} has no {key}; pass a dict with observations and actions.")
    if not isinstance(seed, int | np.integer) or not 0 <= seed <= LARGEST_SEED:
        raise DatasetError(f"the seed of episode {index} is {seed!r}; pass one integer of at least 0 per episode.")
    action, control = _action(index, "actions", _array(index, "actions", episode["actions"]), spec)
    label, _ = _action(index, "labels", _array(index, "labels", episode.get("labels", action)), spec)
    if label.shape != action.shape:
        raise DatasetError(
            f"labels of episode {index} are {label.shape}, expected {action.shape}, those of its actions."
        )
    frames = _array(index, "observations", episode["observations"])
    length = len(action)
    if frames.dtype != np.uint8 or frames.shape[1:] != spec.frame_shape or len(frames) not in (length, length + 1):
        raise DatasetError(
            f"observations of episode {index} are {frames.dtype} {frames.shape}, expected uint8 "
            f"{(length, *spec.frame_shape)} for its {length} actions, or {length + 1} frames with the one after the "
            "last action; resize or convert them."
        )
    reward = _numbers(index, "rewards", episode.get("rewards"), length, default=0.0)
    seconds = _numbers(index, "dt", episode.get("dt"), length, default=dt)
    for wrong, rule in ((seconds < 0, "negative"), (seconds > LONGEST_DT, f"longer than {LONGEST_DT:g} s")):
        if wrong.any():
            raise DatasetError(f"dt of episode {index} is {rule} at frame {int(wrong.argmax())}; it is seconds.")
    seconds[0] = 0.0
    if length > LONGEST_EPISODE:
        raise DatasetError(f"episode {index} has {length:,} steps; split it: up to {LONGEST_EPISODE:,} are read.")
    end = _end(index, episode)
    labelled = _mask(index, "labelled", episode.get("labelled"), length, default=True)
    zooming = _mask(index, "zooming", episode.get("zooming"), length, default=False)
    total = float(np.cumsum(reward)[-1])
    if not np.isfinite(total):
        raise DatasetError(f"rewards of episode {index} sum to {total}; scale them.")
    arrays = EpisodeArrays(
        frames=frames[:length], label=label, action=action, reward=reward, dt=seconds,
        zooming=zooming, telemetry={}, last_frame=frames[length] if len(frames) > length else None,
    )  # fmt: skip
    summary = {
        "seed": int(seed), "return": total, "length": length, "terminated": True,
        **({} if labelled.all() else {CORRECTIONS: frame_ranges(labelled)}), **end,
    }  # fmt: skip
    return arrays, summary, control


def _array(index: int, name: str, values: Any) -> NDArray[Any]:
    """Return values of an episode as an array."""
    try:
        return np.asarray(values)
    except ValueError as error:
        raise DatasetError(
            f"{name} of episode {index} are no array: {one_line(error)}; give all of its steps one shape."
        ) from None


def _mask(index: int, name: str, values: Any, length: int, default: bool) -> NDArray[np.bool_]:
    """Return a mask (N,), or N times the default."""
    mask = np.full(length, default) if values is None else _array(index, name, values)
    if mask.shape != (length,) or mask.dtype != np.bool_:
        raise DatasetError(
            f"{name} of episode {index} is {mask.dtype} {mask.shape}, expected bool {(length,)}: one for each frame."
        )
    return mask


def _end(index: int, episode: Mapping[str, Any]) -> dict[str, bool]:
    """Return `terminated` and `truncated` of an episode. Nothing where it has neither."""
    given = {name: episode[name] for name in _ENDS if episode.get(name) is not None}
    if given and (len(given) < len(_ENDS) or not all(isinstance(value, bool | np.bool_) for value in given.values())):
        raise DatasetError(
            f"the end of episode {index} is {given}, expected terminated and truncated, each True or False; leave both "
            "out where they are not known."
        )
    return {name: bool(value) for name, value in given.items()}


def _action(index: int, name: str, action: NDArray[Any], spec: EnvSpec) -> tuple[NDArray[Any], Control]:
    """Return the stored actions or labels, and their control."""
    if action.ndim == 1 and action.dtype.kind in "iu" and len(action):
        if not ((action >= 0) & (action < spec.num_actions)).all():
            raise DatasetError(
                f"{name} of episode {index} range from {action.min()} to {action.max()}, expected "
                + ", ".join(f"{number} ({name})" for number, name in enumerate(spec.action_names))
                + "."
            )
        return action.astype(np.int64), "discrete"
    parts = len(spec.parts)
    if action.ndim == 2 and action.shape[1] == parts and action.dtype.kind == "f" and len(action):
        narrow = action.astype(np.float32)
        lowest, highest = np.array(spec.part_ranges).T
        if not ((narrow >= lowest) & (narrow <= highest)).all():  # NaN is out of range too
            low, high = narrow.min(axis=0).tolist(), narrow.max(axis=0).tolist()
            raise DatasetError(
                f"{name} of episode {index} range from {low} to {high}, expected {', '.join(spec.parts)} from "
                f"{_plain(lowest)} to {_plain(highest)}; scale or clip them."
            )
        return narrow, "continuous"
    raise DatasetError(
        f"{name} of episode {index} are {action.dtype} {action.shape}, expected integers (N,) of discrete "
        f"actions or floats (N, {parts}) of {_listed(spec.parts)}, with N at least 1."
    )


def _plain(numbers: NDArray[Any]) -> list[float | int]:
    return [int(number) if number == int(number) else number for number in numbers.tolist()]


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _numbers(index: int, name: str, values: Any, length: int, default: float) -> NDArray[np.float64]:
    """Return (N,) finite numbers, or N times the default."""
    if values is None:
        values = np.full(length, default)
    values = _array(index, name, values)
    if values.shape != (length,) or values.dtype.kind not in "iuf":
        raise DatasetError(
            f"{name} of episode {index} are {values.dtype} {values.shape}, expected {length} numbers, one per action."
        )
    values = values.astype(np.float64)
    wrong = ~(np.abs(values) <= LARGEST_NUMBER)  # so is NaN
    if wrong.any():
        raise DatasetError(f"{name} of episode {index} are not finite at frame {int(wrong.argmax())}.")
    return values
