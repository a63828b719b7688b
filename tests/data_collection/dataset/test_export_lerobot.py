"""Exports to LeRobot, read with pyarrow as LeRobot's documentation says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.rows import REPORTED
from nac_drive.data_collection.interchange.export import WRITERS, export_dataset
from nac_drive.data_collection.interchange.lerobot_stats import merged, vector_stats
from tests.data_collection.dataset.exports import DISCRETE, ENDS, OWN, episodes_of, every_dataset, grey
from tests.data_collection.dataset.test_own_data import older

ARROW = {"float32": "float", "float64": "double", "int64": "int64", "bool": "bool"}


def check_lerobot(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Check a folder against the format LeRobotDataset v3.0. Return info, episodes and frames."""
    info = json.loads((folder / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert info.keys() >= {
        "robot_type", "total_episodes", "total_frames", "total_tasks", "chunks_size", "data_files_size_in_mb",
        "video_files_size_in_mb", "fps", "splits", "data_path", "video_path", "features",
    }  # fmt: skip
    features = info["features"]
    for key, dtype in {
        "timestamp": "float32", "frame_index": "int64", "episode_index": "int64", "index": "int64",
        "task_index": "int64",
    }.items():  # fmt: skip
        assert features[key] == {"dtype": dtype, "shape": [1], "names": None}
    assert not [key for key in features if "/" in key]

    tasks = pq.read_table(folder / "meta/tasks.parquet")
    assert tasks.column_names == ["task_index", "task"]
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]
    texts = dict(zip(*(tasks.column(name).to_pylist() for name in ("task_index", "task")), strict=True))

    episode_files = sorted(folder.glob("meta/episodes/chunk-*/file-*.parquet"))
    episodes = [row for file in episode_files for row in pq.read_table(file).to_pylist()]
    frames: list[dict[str, Any]] = []
    for number, episode in enumerate(episodes):
        assert episode["episode_index"] == number
        assert set(episode["tasks"]) <= set(texts.values())
        assert (episode["dataset_from_index"], episode["dataset_to_index"]) == (
            len(frames),
            len(frames) + episode["length"],
        )
        place = {"chunk_index": episode["data/chunk_index"], "file_index": episode["data/file_index"]}
        table = pq.read_table(folder / info["data_path"].format(**place))
        assert table.column_names == list(features)
        for key, feature in features.items():
            kind = str(table.schema.field(key).type)
            if feature["dtype"] == "image":
                assert kind == "struct<bytes: binary, path: string>"
            else:
                scalar = ARROW[feature["dtype"]]
                width = feature["shape"][0]
                assert kind == scalar if feature["shape"] == [1] else kind.endswith(f"{scalar}>[{width}]"), (key, kind)
        rows = [row for row in table.to_pylist() if row["episode_index"] == number]
        assert [row["frame_index"] for row in rows] == list(range(episode["length"]))
        assert [row["index"] for row in rows] == list(range(len(frames), len(frames) + len(rows)))
        np.testing.assert_allclose([row["timestamp"] for row in rows], np.arange(len(rows)) / info["fps"], rtol=1e-6)
        assert {texts[row["task_index"]] for row in rows} == set(episode["tasks"])
        frames += rows
    assert (info["total_episodes"], info["total_frames"]) == (len(episodes), len(frames))
    assert (info["total_tasks"], info["splits"]) == (len(texts), {"train": f"0:{len(episodes)}"})

    stats = json.loads((folder / "meta/stats.json").read_text())
    assert stats.keys() == features.keys()
    for key, feature in features.items():
        shape = (3, 1, 1) if feature["dtype"] == "image" else tuple(feature["shape"])
        for found in [stats[key], *({n: e[f"stats/{key}/{n}"] for n in stats[key]} for e in episodes)]:
            assert found.keys() == {"min", "max", "mean", "std", "count"}
            assert np.shape(found["count"]) == (1,)
            assert all(np.shape(found[name]) == shape for name in ("min", "max", "mean", "std"))
    return info, episodes, frames


@pytest.fixture(scope="module")
def exports(datasets, tmp_path_factory) -> dict[str, Path]:
    """Dataset -> the folder of its export; not to be changed."""
    root = tmp_path_factory.mktemp("lerobot")
    for name, dataset in datasets.items():
        export_dataset(dataset, root / name, "lerobot")
    return {name: root / name for name in datasets}


def pixels(png: bytes) -> np.ndarray:
    image = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_UNCHANGED)
    assert image is not None
    return image[..., ::-1]


@every_dataset
def test_a_lerobot_dataset_has_its_schema_and_our_episodes(exports, datasets, name):
    info, episodes, frames = check_lerobot(exports[name])
    source, start = datasets[name], 0
    assert len(episodes) == len(source)
    for episode, (arrays, summary) in zip(episodes, episodes_of(source), strict=True):
        rows = frames[start : start + summary["length"]]
        start += summary["length"]
        columns = {
            "action": arrays.action, "label": arrays.label, "next.reward": arrays.reward, "dt": arrays.dt,
            "zooming": arrays.zooming, "next.done": np.arange(len(rows)) == len(rows) - 1,
        }  # fmt: skip
        for key, values in columns.items():
            stored = np.array([row[key] for row in rows], dtype=info["features"][key]["dtype"])
            assert stored.dtype == values.dtype
            np.testing.assert_array_equal(stored, values, err_msg=key)
        if arrays.telemetry:
            names = info["features"]["telemetry"]["names"]
            values = np.stack([arrays.telemetry[key] for key in names], axis=1)
            np.testing.assert_array_equal([row["telemetry"] for row in rows], values)
        images = np.stack([pixels(row["observation.image"]["bytes"]) for row in rows])
        np.testing.assert_array_equal(images, arrays.frames)
        np.testing.assert_array_equal(pixels(episode["nac_drive/last_frame"]), arrays.last_frame)
        assert {key: episode[f"nac_drive/{key}"] for key in summary if key != "length"} == {
            key: value for key, value in summary.items() if key != "length"
        }
    document = json.loads((exports[name] / "meta/nac_drive.json").read_text())
    assert document == json.loads((source.path / "meta.json").read_text())


@every_dataset
def test_statistics_are_those_of_all_frames(exports, datasets, name):
    stats = json.loads((exports[name] / "meta/stats.json").read_text())
    frames = datasets[name].load()
    values = {"action": frames.actions.reshape(len(frames), -1), "dt": np.concatenate(
        [arrays.dt for arrays, _ in episodes_of(datasets[name])])[:, None],
    }  # fmt: skip
    for key, expected in values.items():
        for of in (np.min, np.max, np.mean, np.std):
            np.testing.assert_allclose(stats[key][of.__name__.removeprefix("a")], of(expected.astype(float), axis=0))
    scaled = frames.frames / 255
    for of in (np.min, np.max, np.mean, np.std):
        found = np.ravel(stats["observation.image"][of.__name__.removeprefix("a")])
        np.testing.assert_allclose(found, of(scaled, axis=(0, 1, 2)))
    assert stats["action"]["count"] == stats["observation.image"]["count"] == [len(frames)]


def test_an_end_or_a_seed_that_is_not_known_is_not_stated(tmp_path):
    episodes = [grey(3, i) for i in range(5)]
    for episode, (terminated, truncated) in zip(episodes[1:], ENDS, strict=True):
        episode |= {"terminated": terminated, "truncated": truncated}
    for seeds in (None, [5, 5, 6, 7, 8]):
        name = "given" if seeds else "none"
        dataset = Demonstrations.from_episodes(tmp_path / name, episodes, seeds=seeds)
        export_dataset(dataset, tmp_path / f"lerobot-{name}", "lerobot")
        _, rows, _ = check_lerobot(tmp_path / f"lerobot-{name}")
        ends = [(row["nac_drive/terminated"], row["nac_drive/truncated"]) for row in rows]
        assert ends == [(None, None), *ENDS]
        assert [row["nac_drive/seed"] for row in rows] == (seeds or [None] * 5)


def test_values_that_nobody_measured_are_null(tmp_path):
    """An older version stored zeros in their place."""
    own_data = Demonstrations.from_episodes(tmp_path / "own", [grey(3)])
    for name, dataset in (("new", own_data), ("old", older(tmp_path / "older"))):
        export_dataset(dataset, tmp_path / name, "lerobot")
        _, rows, _ = check_lerobot(tmp_path / name)
        assert [row[f"nac_drive/{column}"] for row in rows for column in REPORTED] == [None] * 4 * len(rows)


def test_merged_statistics_are_those_of_all_values():
    rng = np.random.default_rng(0)
    one, other = rng.normal(3, 2, (5, 3)), rng.normal(-1, 4, (11, 3))
    both = vector_stats(np.concatenate([one, other]))
    for name, values in merged(vector_stats(one), vector_stats(other)).items():
        np.testing.assert_allclose(values, both[name], err_msg=name)


def test_large_data_goes_to_more_files_and_chunks(datasets, tmp_path, monkeypatch):
    module = sys.modules[WRITERS["lerobot"].__module__]
    monkeypatch.setattr(module, "MEGABYTES_PER_FILE", 0.1)
    monkeypatch.setattr(module, "FILES_PER_CHUNK", 2)
    export_dataset(datasets[DISCRETE], tmp_path / "lerobot", "lerobot")
    _, episodes, _ = check_lerobot(tmp_path / "lerobot")
    assert [(e["data/chunk_index"], e["data/file_index"]) for e in episodes] == [(0, 0), (0, 1), (1, 0)]


def test_the_rate_is_that_of_the_episodes(exports, datasets, tmp_path):
    rates = {name: check_lerobot(exports[name])[0]["fps"] for name in (DISCRETE, OWN)}
    assert rates == {DISCRETE: 50, OWN: 50}  # the first episode of OWN has one frame only
    [_, (arrays, _)] = episodes_of(datasets[OWN])
    slow = {"observations": arrays.frames, "actions": arrays.action, "dt": [0, 0.1, 0.1, 0.2, 0.1, 0.3, 0.1]}
    export_dataset(Demonstrations.from_episodes(tmp_path / "slow", [slow]), tmp_path / "lerobot", "lerobot")
    assert check_lerobot(tmp_path / "lerobot")[0]["fps"] == 10
