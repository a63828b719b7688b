"""A dataset of Minari (https://minari.farama.org), lossless.

`Demonstrations.from_minari` reads it back.
"""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
from numpy.typing import NDArray

from nac_drive.data_collection.dataset.episode_arrays import EpisodeArrays
from nac_drive.data_collection.dataset.episode_file import CHUNK_FRAMES, GZIP_LEVEL
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.data_collection.dataset.minari_data import EXPORTED, NAMESPACE
from nac_drive.data_collection.dataset.rows import DatasetRow, known_end, known_seed
from nac_drive.data_collection.interchange.recording import ExportSource
from nac_drive.envs import EnvConfig
from nac_drive.parallel.optional import optional_module

_DESCRIPTION = (
    "Driving of {driver}, recorded by nac-drive. Actions are the executed ones. infos has a value per observation: "
    "label (the expert's action), dt (seconds since the previous observation), zooming (the opening animation is on) "
    "and telemetry. Its values for the last observation, on which nobody acts, are zeros."
)


def write_minari(folder: Path, recording: ExportSource) -> None:
    """Write a folder for MINARI_DATASETS_PATH with one dataset.

    It is `nac-drive/car-racing-discrete-v0` for CarRacing.

    Args:
        folder: An empty folder.
        recording: The episodes.

    Raises:
        ValueError: If Minari is not installed.
        DatasetError: If an episode has no frame after its last action, and cannot be simulated again.
    """
    minari = optional_module("minari", "minari")
    storages = optional_module("minari.dataset.minari_storage", "minari")
    meta, shape = recording.meta, recording.meta.env.spec.frame_shape
    dataset_id = minari_id(meta.env)
    (folder / dataset_id).mkdir(parents=True)
    (folder / NAMESPACE / optional_module("minari.namespace", "minari").NAMESPACE_METADATA_FILENAME).write_text("{}")
    storage = storages.MinariStorage.new(
        folder / dataset_id / "data",
        observation_space=gym.spaces.Box(0, 255, shape, np.uint8),
        action_space=_action_space(meta.env),
        env_spec=_env_spec(meta.env),
        data_format="hdf5",
        jpeg_encoding=False,  # it is lossy
    )
    storage.update_metadata(
        {
            "dataset_id": dataset_id,
            "minari_version": minari.__version__,
            "algorithm_name": meta.driver,
            "author": {"nac-drive"},
            "description": _DESCRIPTION.format(driver=meta.driver),
            "requirements": ["gymnasium[box2d]>=1.4"],
            EXPORTED: recording.document,
        }
    )
    [file] = storage.data_path.glob("*.hdf5")
    for index, (arrays, row) in enumerate(recording):
        with h5py.File(file, "a", track_order=True) as content:
            # Minari appends to an array that is there, which keeps its compression; its own are not compressed.
            content.create_dataset(
                f"episode_{index}/observations", (0, *shape), np.uint8, maxshape=(None, *shape),
                chunks=(CHUNK_FRAMES, *shape), compression="gzip", compression_opts=GZIP_LEVEL,
            )  # fmt: skip
        storage.update_episodes([_buffer(minari, index, arrays, row, meta)])
        known = {f"{EXPORTED}/{key}": row[key] for key in row if key not in ("index", "file", "sha256")}
        storage.update_episode_metadata([known], [index])


def minari_id(env: EnvConfig) -> str:
    """Return the id of an exported dataset."""
    return f"{NAMESPACE}/{re.sub(r'[^A-Za-z0-9_-]', '-', env.environment)}-{env.control}-v0"


def _buffer(minari: Any, index: int, arrays: EpisodeArrays, row: DatasetRow, meta: Meta) -> Any:
    """Return episode `index` as an EpisodeBuffer of N steps.

    It has N + 1 observations and infos, and N of everything else.
    """
    length = row["length"]
    terminations, truncations = np.zeros((2, length), np.bool_)
    terminations[-1], truncations[-1] = known_end(row, meta.simulated) or (False, False)
    columns = arrays.columns()
    return minari.data_collector.EpisodeBuffer(
        id=index,
        seed=known_seed(row, meta.simulated),
        observations=np.concatenate([arrays.frames, _last_frame(arrays, row)[None]]),
        actions=columns.pop("action"),
        rewards=columns.pop("reward"),
        terminations=terminations,
        truncations=truncations,
        infos=_nested({name: np.concatenate([values, np.zeros_like(values[:1])]) for name, values in columns.items()}),
    )


def _nested(columns: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Return `telemetry/speed` and the like as nested dicts."""
    infos: dict[str, Any] = {}
    for name, values in columns.items():
        *groups, leaf = name.split("/")
        group = infos
        for part in groups:
            group = group.setdefault(part, {})
        group[leaf] = values
    return infos


def _last_frame(arrays: EpisodeArrays, row: DatasetRow) -> NDArray[np.uint8]:
    if arrays.last_frame is None:
        raise DatasetError(
            f"episode {row['index']} has no observation after its last action, which Minari needs, and own data cannot "
            "be simulated again; export it to lerobot, which needs none, or write it again with N + 1 observations for "
            "N actions (Demonstrations.from_episodes)."
        )
    return arrays.last_frame


def _action_space(env: EnvConfig) -> gym.Space:
    if env.control == "discrete":
        return gym.spaces.Discrete(env.spec.num_actions)
    low, high = np.array(env.spec.part_ranges, np.float32).T
    return gym.spaces.Box(low, high)


def _env_spec(env: EnvConfig) -> Any:
    """Return gymnasium's own CarRacing, which the environment equals. None for another one."""
    if env.environment != "car-racing" or env.control == "pulsed":
        return None
    spec = deepcopy(gym.spec("CarRacing-v3"))
    spec.kwargs["continuous"] = env.control == "continuous"
    spec.max_episode_steps = env.max_steps
    return spec
