"""Datasets of Minari (https://minari.farama.org), ours and others'."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nac_drive.data_collection.dataset.create import write_dataset
from nac_drive.data_collection.dataset.episode_arrays import EpisodeArrays
from nac_drive.data_collection.dataset.episode_file import EncodedEpisode
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.meta import Meta, parse_meta
from nac_drive.data_collection.dataset.minari_file import require_sound
from nac_drive.data_collection.dataset.rows import checked_summary
from nac_drive.envs import LARGEST_SEED
from nac_drive.events import Progress, counting
from nac_drive.parallel.optional import optional_module
from nac_drive.storage.read import one_line

NAMESPACE = "nac-drive"
"""First part of the id of an exported dataset."""
EXPORTED = "nac_drive"
"""Key in the metadata of an exported dataset (its meta.json), and of each of its episodes (its summary)."""
_ID = re.compile(r"([\w-]+/)*[\w-]+-v\d+")
"""The id of a dataset: NAMESPACE/NAME-vVERSION."""
_OWN_INFOS = {"label": "labels", "dt": "dt"}
"""Key in the infos of an exported episode -> key of own data."""


def minari_dataset(source: Any) -> Any:
    """Return a `minari.MinariDataset`.

    Args:
        source: The dataset itself, a folder that holds one, or the id of one, which Minari downloads if need be. A
            folder is checked before Minari reads it.

    Raises:
        ValueError: If Minari is not installed.
        DatasetError: If there is no such dataset, or its folder is not sound.
    """
    if not isinstance(source, str | os.PathLike):
        return source
    minari, folder = optional_module("minari", "minari"), Path(source)
    if not folder.is_dir() and not _ID.fullmatch(str(source)):
        raise DatasetError(
            f"there is no folder {source}, and it is no id of Minari such as nac-drive/car-racing-discrete-v0; pass "
            "the folder or the id of a dataset."
        )
    try:
        data = _data_folder(folder) if folder.is_dir() else _downloaded(str(source))
        if data != folder and data.is_symlink():
            raise DatasetError(f"{data} is a link, which an import does not follow; replace it by a copy.")
        require_sound(data)
        return minari.MinariDataset(data)
    except DatasetError:
        raise
    except Exception as error:  # of any type: from its files, or from the network
        cause = one_line(error)
        raise DatasetError(f"no dataset of Minari at {source}: {cause}; pass its folder or its id.") from error


def _data_folder(folder: Path) -> Path:
    """Return the folder `data` of the one dataset in a folder."""
    data = [path for path in (folder, *sorted(folder.rglob("data"))) if (path / "metadata.json").is_file()]
    if len(data) != 1:
        raise DatasetError(f"{folder} holds {len(data)} datasets of Minari; pass the folder of one.")
    return data[0]


def _downloaded(dataset_id: str) -> Path:
    """Return the folder `data` of a dataset on this machine. Minari downloads one that is not there."""
    root = optional_module("minari.storage.datasets_root_dir", "minari")
    data = root.get_dataset_path(dataset_id) / "data"
    if not data.exists():
        optional_module("minari.storage.hosting", "minari").download_dataset(dataset_id)
    return data


def _read_by_minari(dataset: Any) -> Iterator[Any]:
    """Yield the episodes of a `minari.MinariDataset`.

    Raises:
        DatasetError: If Minari cannot read one.
    """
    episodes, index = iter(dataset.iterate_episodes()), 0
    while True:
        try:
            episode = next(episodes)
        except StopIteration:
            return
        except Exception as error:  # of h5py, or of the library that unpacks images
            raise DatasetError(
                f"episode {index} of the Minari dataset cannot be read: {one_line(error).rstrip('.')}; fetch it again."
            ) from error
        yield episode
        index += 1


def minari_episodes(dataset: Any) -> Iterator[dict[str, Any]]:
    """Yield the episodes of a `minari.MinariDataset` for `Demonstrations.from_episodes`.

    Raises:
        DatasetError: If observations are more than one array.
    """
    for index, episode in enumerate(_read_by_minari(dataset)):
        if isinstance(episode.observations, dict | tuple):
            raise DatasetError(
                f"observations of episode {index} are a {type(episode.observations).__name__} of arrays; "
                "pass the frames alone to Demonstrations.from_episodes."
            )
        known = {"observations": episode.observations, "actions": episode.actions, "rewards": episode.rewards}
        if _OWN_INFOS.keys() <= (episode.infos or {}).keys():  # exported from here, then combined with others by Minari
            known |= {key: episode.infos[name][: len(episode)] for name, key in _OWN_INFOS.items()}
        yield known | _end(episode)


def _end(episode: Any) -> dict[str, bool]:
    """Return `terminated` and `truncated` of an episode. Nothing where it goes on after its end."""
    flags = [np.asarray(values) for values in (episode.terminations, episode.truncations)]
    if not len(episode) or any(values.shape != (len(episode),) or values[:-1].any() for values in flags):
        return {}
    terminated, truncated = (bool(values[-1]) for values in flags)
    return {"terminated": terminated, "truncated": truncated}


def minari_seeds(dataset: Any) -> list[int] | None:
    """Return the seeds of the episodes of a `minari.MinariDataset`. None unless each has one that we can store."""
    seeds = [metadata.get("seed") for metadata in dataset.storage.get_episode_metadata(dataset.episode_indices)]
    return seeds if all(isinstance(seed, int) and 0 <= seed <= LARGEST_SEED for seed in seeds) else None


def exported_meta(dataset: Any) -> tuple[Meta, dict[str, str]] | None:
    """Return settings and versions of an exported `minari.MinariDataset`.

    It was exported from here.

    Returns:
        What its meta.json said; None for a dataset of another origin.

    Raises:
        DatasetError: If it is any other content.
    """
    document = dataset.storage.metadata.get(EXPORTED)
    if document is None:
        return None
    try:
        return parse_meta(document), document.get("versions", {})
    except (ValueError, TypeError) as error:
        raise DatasetError(
            f"{EXPORTED!r} in the metadata of the Minari dataset is no meta.json: {' '.join(str(error).split())}; "
            "export it again."
        ) from error


def write_exported(path: Path, dataset: Any, meta: Meta, versions: dict[str, str], progress: Progress) -> None:
    """Write a dataset that `export_dataset` wrote as demonstrations, see `write_dataset`.

    Args:
        path: The new folder.
        dataset: A `minari.MinariDataset`.
        meta: Its settings, see `exported_meta`.
        versions: Versions of the packages that recorded it.
        progress: Called after every episode.
    """
    episodes = (
        (EncodedEpisode.encode(index, *episode), meta) for index, episode in enumerate(_exported_episodes(dataset))
    )
    write_dataset(path, episodes, counting(progress, f"import ({path.name})", int(dataset.total_episodes)), versions)


def _exported_episodes(dataset: Any) -> Iterator[tuple[EpisodeArrays, dict[str, Any]]]:
    """Yield each episode of an exported `minari.MinariDataset`.

    Each has arrays and a summary; it was exported from here.

    Raises:
        DatasetError: If an episode has another form.
    """
    all_metadata = dataset.storage.get_episode_metadata(dataset.episode_indices)
    for index, (episode, metadata) in enumerate(zip(_read_by_minari(dataset), all_metadata, strict=True)):
        try:
            arrays = _exported_arrays(episode)
            summary = checked_summary({name: value.item() for name, value in metadata[EXPORTED].items()})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DatasetError(
                f"episode {index} of the Minari dataset is not as it was exported: {error!r}; export it again."
            ) from error
        yield arrays, summary


def _exported_arrays(episode: Any) -> EpisodeArrays:
    length = len(episode.rewards)
    observations = np.asarray(episode.observations)
    if len(observations) != length + 1:
        raise ValueError(f"{len(observations)} observations for {length} rewards")

    def info(name: str, infos: dict[str, Any] = episode.infos) -> NDArray[Any]:
        return np.asarray(infos[name])[:length]  # there is one more, for the last observation

    telemetry = episode.infos.get("telemetry", {})
    return EpisodeArrays(
        frames=observations[:length],
        label=info("label"),
        action=np.asarray(episode.actions),
        reward=np.asarray(episode.rewards),
        dt=info("dt"),
        zooming=info("zooming"),
        telemetry={name: info(name, telemetry) for name in telemetry},
        last_frame=observations[length],
    )
