"""A LeRobotDataset v3.0 (https://huggingface.co/docs/lerobot/lerobot-dataset-v3), lossless.

    meta/info.json                            features and paths
    meta/stats.json                           statistics of every feature
    meta/tasks.parquet                        the one task
    meta/episodes/chunk-000/file-000.parquet  a row per episode: its place in data, its statistics, our summary of it
    meta/nac_drive.json                       meta.json of our dataset
    data/chunk-000/file-000.parquet           a row per frame, frames as PNG; a new file at 100 MB

LeRobot's own videos are lossy, so frames are of its dtype `image`. The frame after the last action has no row in this
format: it is `nac_drive/last_frame` of the episode.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from nac_drive.data_collection.dataset.episode_arrays import EpisodeArrays
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.data_collection.dataset.rows import (
    OPTIONAL,
    REPORTED,
    ROUND,
    SEED_GIVEN,
    TRUNCATED,
    DatasetRow,
    known_end,
    known_seed,
    reported,
)
from nac_drive.data_collection.interchange.lerobot_stats import Stats, image_stats, merged, vector_stats
from nac_drive.data_collection.interchange.recording import ExportSource
from nac_drive.parallel.optional import optional_module

VERSION = "v3.0"
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
EPISODES = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
FILES_PER_CHUNK, MEGABYTES_PER_FILE = 1000, 100
IMAGE = "observation.image"
_OWN = "nac_drive/"
LAST_FRAME = f"{_OWN}last_frame"
TASK = "Drive a lap around the track."

_EPISODES_PER_WRITE = 100
_SUMMARY_TYPES = {
    "index": "int64", "seed": "int64", "return": "float64", "terminated": "bool", "completion": "float64",
    "lap_finished": "bool", "off_road_events": "int64", "crashes": "int64", ROUND: "int64", TRUNCATED: "bool",
    SEED_GIVEN: "bool",
}  # fmt: skip
"""Columns of our row, and their types: an episode may have no value. Corrected episodes are not exported."""
_PANDAS = {
    "index_columns": ["task"],
    "column_indexes": [],
    "columns": [
        {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
        {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object"},
    ],
}
"""LeRobot reads the tasks with pandas, and expects them as the index."""


def write_lerobot(folder: Path, recording: ExportSource) -> None:
    """Write a dataset that `LeRobotDataset("nac-drive/any-name", root=folder)` reads.

    Args:
        folder: An empty folder.
        recording: The episodes.

    Raises:
        ValueError: If pyarrow is not installed.
    """
    _pyarrow()
    rate = recording.frames_per_second()
    features: dict[str, Any] = {}
    total: dict[str, Stats] = {}
    start = 0
    with _DataFiles(folder) as data, _EpisodeFile(folder / EPISODES.format(chunk_index=0, file_index=0)) as episodes:
        for index, (arrays, row) in enumerate(recording):
            features = features or _features(arrays, recording.meta)
            columns = _columns(arrays, index, start, rate)
            stats = {IMAGE: image_stats(arrays.frames)} | {
                name: vector_stats(values) for name, values in columns.items()
            }
            total = {name: merged(total[name], stats[name]) if total else stats[name] for name in features}
            chunk, file = data.append(_table(arrays.frames, columns, features))
            episodes.append(
                {
                    "episode_index": index,
                    "tasks": [TASK],
                    "length": row["length"],
                    "data/chunk_index": chunk,
                    "data/file_index": file,
                    "dataset_from_index": start,
                    "dataset_to_index": start + row["length"],
                    **{f"stats/{name}/{key}": stats[name][key].tolist() for name in features for key in stats[name]},
                    "meta/episodes/chunk_index": 0,
                    "meta/episodes/file_index": 0,
                    **_own_columns(arrays, row, recording),
                }
            )
            start += row["length"]
    _write_tasks(folder / "meta/tasks.parquet")
    stored = {name: {key: value.tolist() for key, value in stats.items()} for name, stats in total.items()}
    _write_json(folder / "meta/stats.json", stored)
    _write_json(folder / "meta/nac_drive.json", recording.document)
    _write_json(folder / "meta/info.json", _info(features, rate, len(recording.rows), start))


def _features(arrays: EpisodeArrays, meta: Meta) -> dict[str, Any]:
    """Return LeRobot's description of every column of the data files."""
    discrete = meta.env.control == "discrete"
    action = _feature("int64" if discrete else "float32", ["action"] if discrete else list(meta.env.spec.parts))
    features = {
        IMAGE: {"dtype": "image", "shape": [*arrays.frames.shape[1:]], "names": ["height", "width", "channel"]},
        "action": action,
        "label": action,
        "next.reward": _feature("float64"),
        "next.done": _feature("bool"),
        "dt": _feature("float64"),
        "zooming": _feature("bool"),
    }
    if telemetry := _telemetry(arrays):
        features["telemetry"] = _feature("float64", list(telemetry))
    return features | {
        "timestamp": _feature("float32"),
        **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), _feature("int64")),
    }


def _feature(dtype: str, names: list[str] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [len(names or [""])], "names": names}


def _columns(arrays: EpisodeArrays, index: int, start: int, rate: int) -> dict[str, NDArray[Any]]:
    """Return an episode's features without the image.

    They are (N,) or (N, d).
    """
    length = len(arrays.label)
    frames = np.arange(length)
    columns = {
        "action": arrays.action,
        "label": arrays.label,
        "next.reward": arrays.reward,
        "next.done": frames == length - 1,
        "dt": arrays.dt,
        "zooming": arrays.zooming,
    }
    if telemetry := _telemetry(arrays):
        columns["telemetry"] = np.stack([*telemetry.values()], axis=1)
    return columns | {
        "timestamp": (frames / rate).astype(np.float32),
        "frame_index": frames,
        "episode_index": np.full(length, index),
        "index": start + frames,
        "task_index": np.zeros(length, np.int64),
    }


def _telemetry(arrays: EpisodeArrays) -> dict[str, NDArray[np.float64]]:
    """Return the telemetry in the order of `TELEMETRY`."""
    prefix = "telemetry/"
    return {name.removeprefix(prefix): values for name, values in arrays.columns().items() if name.startswith(prefix)}


def _table(frames: NDArray[np.uint8], columns: dict[str, NDArray[Any]], features: dict[str, Any]) -> Any:
    """Return an episode's rows in the order of features."""
    pa = _pyarrow()
    images = [{"bytes": _png(frame), "path": f"frame-{index:06d}.png"} for index, frame in enumerate(frames)]
    arrays = [pa.array(images, pa.struct({"bytes": pa.binary(), "path": pa.string()}))]
    for name in [*features][1:]:
        values = pa.array(columns[name].ravel())
        width = features[name]["shape"][0]
        arrays.append(values if width == 1 else pa.FixedSizeListArray.from_arrays(values, width))
    return pa.Table.from_arrays(arrays, names=[*features])


def _own_columns(arrays: EpisodeArrays, row: DatasetRow, recording: ExportSource) -> dict[str, Any]:
    """Return the columns that LeRobot does not know.

    They are our row, and the frame after the last action.

    Seed, end and reported values are None where they are not known.
    """
    names = [name for name in _SUMMARY_TYPES if name not in OPTIONAL or any(name in other for other in recording.rows)]
    simulated = recording.meta.simulated
    stated = {name: row[name] for name in row if name not in REPORTED} | reported(row, simulated)
    columns = {f"{_OWN}{name}": stated.get(name) for name in names}
    columns[f"{_OWN}seed"] = known_seed(row, simulated)
    if known_end(row, simulated) is None:
        columns[f"{_OWN}terminated"] = None
    return columns | {LAST_FRAME: None if arrays.last_frame is None else _png(arrays.last_frame)}


def _png(frame: NDArray[np.uint8]) -> bytes:
    """Return a frame (H, W, 3) as a PNG file.

    It may have another number of channels that PNG has.
    """
    done, content = cv2.imencode(".png", frame[..., ::-1])  # OpenCV takes blue first
    assert done
    return content.tobytes()


def _write_tasks(path: Path) -> None:
    table = _pyarrow().table({"task_index": [0], "task": [TASK]})
    _parquet().write_table(table.replace_schema_metadata({"pandas": json.dumps(_PANDAS)}), path)


def _info(features: dict[str, Any], rate: int, episodes: int, frames: int) -> dict[str, Any]:
    return {
        "codebase_version": VERSION,
        "robot_type": None,
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": 1,
        "chunks_size": FILES_PER_CHUNK,
        "data_files_size_in_mb": MEGABYTES_PER_FILE,
        "video_files_size_in_mb": 200,
        "fps": rate,
        "splits": {"train": f"0:{episodes}"},
        "data_path": DATA,
        "video_path": None,
        "features": features,
    }


def _write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=4) + "\n")


class _EpisodeFile:
    """The file of meta/episodes. Rows are written a hundred at a time, as a parquet file has a cost per write."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True)
        self._path = path
        self._rows: list[dict[str, Any]] = []
        self._writer: Any = None

    def __enter__(self) -> _EpisodeFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None and self._rows:
            self._write()
        if self._writer is not None:
            self._writer.close()

    def append(self, row: dict[str, Any]) -> None:
        """Add the row of an episode."""
        self._rows.append(row)
        if len(self._rows) == _EPISODES_PER_WRITE:
            self._write()

    def _write(self) -> None:
        pa = _pyarrow()
        if self._writer is None:
            schema = pa.Table.from_pylist(self._rows[:1]).schema
            types = {LAST_FRAME: "binary", **{f"{_OWN}{name}": kind for name, kind in _SUMMARY_TYPES.items()}}
            for place, name in enumerate(schema.names):  # a column is of no type if the first episode has no value
                if name in types:
                    schema = schema.set(place, pa.field(name, pa.type_for_alias(types[name])))
            self._schema = schema
            self._writer = _parquet().ParquetWriter(self._path, self._schema)
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows.clear()


class _DataFiles:
    """The numbered files of data.

    An episode goes to the last one, or to a new one if that would grow too large.

    Args:
        folder: The dataset.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._number = -1
        self._open = ExitStack()
        self._file: Any = None
        self._writer: Any = None

    def __enter__(self) -> _DataFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def append(self, table: Any) -> tuple[int, int]:
        """Write a table as one row group. Return the number of the chunk, and of the file in it."""
        if self._file is None or self._file.tell() + table.nbytes > MEGABYTES_PER_FILE * 2**20:
            self._open.close()
            self._number += 1
            path = self._folder / DATA.format(chunk_index=self._place[0], file_index=self._place[1])
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._open.enter_context(path.open("wb"))
            self._writer = self._open.enter_context(_parquet().ParquetWriter(self._file, table.schema))
        self._writer.write_table(table, row_group_size=len(table))
        return self._place

    @property
    def _place(self) -> tuple[int, int]:
        return divmod(self._number, FILES_PER_CHUNK)


def _pyarrow() -> Any:
    return optional_module("pyarrow", "lerobot")


def _parquet() -> Any:
    return optional_module("pyarrow.parquet", "lerobot")
