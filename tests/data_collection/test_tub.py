"""Tubs of donkeycar are read, refused or written."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import nac_drive as nd
from nac_drive.data_collection.collect import EpisodeJob, append_episodes, collect_episode
from nac_drive.data_collection.dataset.info import describe
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.own_data import write_own_data
from nac_drive.data_collection.drivers import resolve_driver
from nac_drive.envs import DONKEYCAR
from nac_drive.events import Event
from tests.commands import call, refused
from tests.data_collection.recordings import ENV, collect_small, contents
from tests.data_collection.tubs import TubWriter, road_frame, write_tub

GREY = np.full((120, 160, 3), 90, np.uint8)


@pytest.fixture
def tub(tmp_path) -> Path:
    """Three sessions of eight records, in catalogs of ten."""
    write_tub(tmp_path / "tub", frames=24, max_len=10)
    return tmp_path / "tub"


def imported(tub: Path, **options: object) -> nd.Demonstrations:
    return nd.import_tub(tub, tub.parent / "data", **options)  # type: ignore[arg-type]


def change(tub: Path, name: str, old: str, new: str) -> None:
    text = (tub / name).read_text()
    assert old in text
    (tub / name).write_text(text.replace(old, new, 1))


# What is read


def test_sessions_become_episodes(tub):
    dataset = imported(tub)
    assert [row["length"] for row in dataset.rows] == [8, 8, 8]
    assert dataset.seeds == [0, 1, 2]
    assert (dataset.meta.env.environment, dataset.meta.env.control, dataset.meta.driver) == (
        DONKEYCAR, "continuous", "donkeycar",
    )  # fmt: skip
    frames = dataset.load()
    angles = 0.6 * np.sin(np.arange(24) / 7)
    throttle = np.array([0.3 if number % 10 else -0.2 for number in range(24)])
    np.testing.assert_array_equal(
        frames.labels, np.array([angles, throttle.clip(0), (-throttle).clip(0)], np.float32).T
    )
    np.testing.assert_allclose(frames.dt, np.tile([0, *[0.05] * 7], 3), atol=1e-6)
    images = [np.asarray(Image.open(tub / "images" / f"{i}_cam_image_array_.jpg")) for i in range(24)]
    assert np.abs(frames.frames[:].astype(int) - np.stack(images)).max() <= 2  # of two JPEG decoders
    assert frames.labelled is None
    assert not any("truncated" in row or "seed_given" in row for row in dataset.rows)


def test_deleted_records_are_left_out(tub):
    writer_view = json.loads((tub / "manifest.json").read_text().splitlines()[4])
    writer_view["deleted_indexes"] = [3, 4, 9, 16, 99]
    lines = (tub / "manifest.json").read_text().splitlines()
    (tub / "manifest.json").write_text("\n".join([*lines[:4], json.dumps(writer_view)]) + "\n")
    events: list[Event] = []
    dataset = imported(tub, progress=events.append)
    assert [row["length"] for row in dataset.rows] == [6, 7, 7]  # a gap of three frames is none of a second
    np.testing.assert_allclose(dataset.load().dt[:6], [0, 0.05, 0.05, 0.15, 0.05, 0.05], atol=1e-6)
    assert any("20 of 24 records used (4 deleted), 20.0 frames a second" in event.note for event in events)


def test_a_session_is_cut_at_pauses_and_after_some_frames(tmp_path):
    writer = TubWriter(tmp_path / "tub")
    for after in (50, 50, 1000, 1001, 50, 50, -70, 50, 5000, 50, 50, 0, 0):
        writer.write(GREY, after=after)
    dataset = imported(tmp_path / "tub", episode_frames=3)
    assert [row["length"] for row in dataset.rows] == [3, 3, 2, 3, 2]


def test_records_of_one_millisecond_are_one_episode(tmp_path):
    writer = TubWriter(tmp_path / "tub")
    for number in range(9):
        writer.write(GREY, after=number % 2)
    dataset = imported(tmp_path / "tub")
    assert [row["length"] for row in dataset.rows] == [9]
    np.testing.assert_allclose(dataset.load().dt, [0, *[0.001, 0] * 4], atol=1e-6)


def test_a_tub_without_two_records_is_refused(tub):
    change(tub, "manifest.json", '"deleted_indexes": []', f'"deleted_indexes": {list(range(23))}')
    with pytest.raises(DatasetError, match=r"0 of 24 records used \(23 deleted, .*needs two of them; restore deleted"):
        imported(tub)


def test_frames_that_a_pilot_drove_have_no_label(tmp_path):
    writer = TubWriter(tmp_path / "tub")
    user = {"user/angle": 0.5, "user/throttle": 0.4}
    pilot = {"pilot/angle": -0.25, "pilot/throttle": -0.5}
    writer.write(GREY, user)
    writer.write(GREY, {**user, **pilot, "user/mode": "local_angle"})
    writer.write(GREY, {**user, **pilot, "user/mode": "local"})
    writer.write(GREY, {**user, "user/mode": "local"})
    dataset = imported(tmp_path / "tub")
    assert [row["corrections"] for row in dataset.rows] == ["0:1"]
    frames = dataset.load()
    expected = [[0.5, 0.4, 0], [-0.25, 0.4, 0], [-0.25, 0, 0.5], [0.5, 0.4, 0]]
    np.testing.assert_allclose(frames.actions, expected, atol=1e-7)
    assert frames.labelled is not None
    assert frames.labelled.tolist() == [True, False, False, False]
    info = dataset.info()
    assert info["labels"]["steer"] == pytest.approx(0.5)  # the pilot's actions are no labels
    assert info["off_label_fraction"] == 0
    described = dict(describe(info))
    assert (described["environment"], described["view"]) == ("donkeycar", "160 x 120 pixels")
    assert "status bar" not in described


def test_a_tub_of_a_pilot_alone_has_no_labels(tmp_path):
    writer = TubWriter(tmp_path / "tub")
    for _ in range(2):
        writer.write(GREY, {"user/mode": "local", "user/angle": 0.5})
    info = imported(tmp_path / "tub").info()
    assert (info["labels"], info["off_label_fraction"]) == (None, None)
    assert (dict(describe(info))["labels"], dict(describe(info))["not the label"]) == ("none", "-")


def test_images_of_other_sizes_are_scaled_and_grey_ones_get_colours(tmp_path):
    writer = TubWriter(tmp_path / "tub")
    writer.write(road_frame(0.0, (240, 320, 3)))
    writer.write(np.full((120, 160), 70, np.uint8))
    frames = imported(tmp_path / "tub").load().frames
    assert frames.shape == (2, 120, 160, 3)
    assert np.abs(frames[0].astype(int) - road_frame(0.0)).mean() < 3
    assert np.abs(frames[1].astype(int) - 70).max() <= 1


def test_several_tubs_and_later_ones(tub, tmp_path):
    write_tub(tmp_path / "other", frames=10, sessions=2)
    both = nd.import_tub([tub, tmp_path / "other"], tmp_path / "both")
    assert [row["length"] for row in both.rows] == [8, 8, 8, 5, 5]
    first = nd.import_tub(tub, tmp_path / "first")
    with pytest.raises(DatasetError, match="imported again with another --first-track"):
        nd.Demonstrations.merge(tmp_path / "none", [first, nd.import_tub(tmp_path / "other", tmp_path / "second")])
    later = nd.import_tub(tmp_path / "other", tmp_path / "later", first_track=3)
    merged = nd.Demonstrations.merge(tmp_path / "merged", [first, later])
    assert contents(merged.path)["episodes.jsonl"] == contents(both.path)["episodes.jsonl"]


def test_a_tub_of_the_first_releases_is_read(tub):
    """Lines end as in Windows, and sessions are numbers."""
    expected = contents(imported(tub).path)
    for catalog in tub.glob("*.catalog"):
        text = catalog.read_text().replace('"26-11-23_', "").replace('", "_timestamp', ', "_timestamp')
        catalog.write_text(text.replace(', "user/mode": "user"', ""), newline="\r\n")
    assert contents(nd.import_tub(tub, tub.parent / "again").path) == expected


# What is damaged


def test_a_torn_line_and_missing_images_are_counted(tub, capsys):
    lines = (tub / "catalog_1.catalog").read_text().splitlines()
    lines[3] = lines[3][:40]
    lines[6] = "\0" * 60
    (tub / "catalog_1.catalog").write_text("\n".join(lines))
    (tub / "images" / "2_cam_image_array_.jpg").unlink()
    image = tub / "images" / "20_cam_image_array_.jpg"
    image.write_bytes(image.read_bytes()[:-300])
    message = refused(capsys, "dataset", "import-tub", str(tub), "--out", str(tub.parent / "data"))
    assert "line 4 of" in message
    assert "catalog_1.catalog is torn; 4 of 24 records are torn or wrong, or lack an image" in message
    assert "--skip-missing" in message
    assert not (tub.parent / "data").exists()
    assert call("dataset", "import-tub", str(tub), "--out", str(tub.parent / "data"), "--skip-missing") == 0
    printed = capsys.readouterr()
    assert "20 of 24 records used (2 torn, 2 without an image)" in printed.out + printed.err
    assert [row["length"] for row in nd.Demonstrations.open(tub.parent / "data").rows] == [7, 7, 6]


def test_wrong_records_can_be_left_out_and_deleted_ones_stay_deleted(tub):
    for value in ("25.0", "null", "NaN"):
        change(tub, "catalog_0.catalog", '"user/angle": 0.', f'"user/angle": {value}, "was": 0.')
    change(tub, "manifest.json", '"deleted_indexes": []', '"deleted_indexes": [12, 13]')
    with pytest.raises(DatasetError, match=r"line 1 of .*`\$.user/angle`, got 25.0; 3 of 24 records are torn or wrong"):
        imported(tub)
    events: list[Event] = []
    dataset = imported(tub, skip_missing=True, progress=events.append)
    assert any("19 of 24 records used (2 deleted, 3 wrong)" in event.note for event in events)
    angles = 0.6 * np.sin(np.delete(np.arange(24), [0, 1, 2, 12, 13]) / 7)
    np.testing.assert_allclose(dataset.load().labels[:, 0], angles, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("catalog_0.catalog", '"user/angle": 0.0', '"user/angle": NaN', "no record of a tub: a number is NaN"),
        ("catalog_0.catalog", '"user/angle": 0.0', '"user/angle": 25.0', r"line 1 of .* no record.*<= 1.0.*user/angle"),
        ("catalog_0.catalog", ', "user/throttle": -0.2', "", "missing required field `user/throttle`"),
        ("catalog_0.catalog", "0_cam_image_array_.jpg", "../manifest.json", "names the image '../manifest.json'"),
        ("catalog_0.catalog", "0_cam_image_array_.jpg", "none.jpg", "'none.jpg', which cannot be read"),
        ("manifest.json", "catalog_1.catalog", "../catalog_1.catalog", "expected a file beside it"),
        ("manifest.json", "catalog_2.catalog", "catalog_7.catalog", "catalog_7.catalog cannot be read"),
        ("manifest.json", '"paths"', '"path"', "line 5 is not the manifest of a tub"),
        ("manifest.json", "{}\n", "[" * 9999 + "\n", "line 3 is not the manifest of a tub"),
        ("manifest.json", "{}\n", '{"nac_drive": {"meta": 1, "episodes": {}}}\n', "is no dataset's: its schema is"),
    ],
)  # fmt: skip
def test_a_bad_tub_is_refused_in_one_line(tub, name, old, new, message):
    change(tub, name, old, new)
    with pytest.raises(DatasetError, match=message) as error:
        imported(tub)
    assert "\n" not in str(error.value)
    assert not (tub.parent / "data").exists()


def test_links_are_not_followed(tub):
    for file in ("images/3_cam_image_array_.jpg", "catalog_1.catalog", "images", "manifest.json"):
        moved = tub.parent / "elsewhere"
        os.rename(tub / file, moved)
        (tub / file).symlink_to(moved)
        with pytest.raises(DatasetError, match="is a link, which an import does not follow"):
            imported(tub)
        (tub / file).unlink()
        os.rename(moved, tub / file)
    imported(tub)


def test_options_are_checked(tub, tmp_path, capsys):
    with pytest.raises(ValueError, match="comes twice"):
        nd.import_tub([tub, tub / ".." / tub.name], tmp_path / "data")
    for wrong, got in (([], "none"), (None, "None"), (b"tub", "b'tub'"), ([tub, 3], "3")):
        with pytest.raises(ValueError, match=f"^tub must .*, got {got}; pass "):
            nd.import_tub(wrong, tmp_path / "data")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="episode_frames must be at least 2"):
        imported(tub, episode_frames=1)
    with pytest.raises(DatasetError, match="there is no folder"):
        nd.import_tub(tmp_path / "none", tmp_path / "data")
    assert "dataset import-tub" in refused(capsys, "dataset", "import", str(tub), "--out", str(tmp_path / "data"))
    shutil.rmtree(tub / "images")
    with pytest.raises(DatasetError, match="the file is missing"):
        imported(tub)


# What is written


def records(tub: Path) -> list[dict[str, Any]]:
    """Return every record, sought by the lengths of lines."""
    lines = (tub / "manifest.json").read_text().splitlines()
    inputs, types, _, sessions, catalogs = map(json.loads, lines)
    assert len(inputs) == len(types)
    found = []
    for name in catalogs["paths"]:
        content = (tub / name).read_bytes()
        manifest = json.loads((tub / f"{name}_manifest").read_text())
        assert (manifest["path"], manifest["start_index"]) == (f"{name}_manifest", len(found))
        start = 0
        for length in manifest["line_lengths"]:
            assert content[start + length - 1 : start + length] == b"\n"
            found.append(json.loads(content[start : start + length]))
            start += length
        assert start == len(content)
        assert len(manifest["line_lengths"]) <= catalogs["max_len"]
    assert catalogs["current_index"] == len(found)
    assert [record["_index"] for record in found] == list(range(len(found)))
    assert list(dict.fromkeys(record["_session_id"] for record in found)) == sessions["sessions"]["all_full_ids"]
    assert all(set(record) <= {*inputs, "_index", "_session_id", "_timestamp_ms"} for record in found)
    return found


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_a_dataset_comes_back_from_a_tub(tmp_path, control, monkeypatch):
    monkeypatch.setattr("nac_drive.data_collection.interchange.to_tub.CATALOG_RECORDS", 70)
    env = nd.EnvConfig(control, max_steps=60)
    dataset = collect_small(tmp_path / "data", env=env)
    nd.export_dataset(dataset, tmp_path / "tub", "tub")
    found = records(tmp_path / "tub")
    again = nd.import_tub(tmp_path / "tub", tmp_path / "again")
    assert again.meta.env == env
    before, after = dataset.load(), again.load()
    for name in ("labels", "actions", "rewards", "dt", "offsets", "seeds"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name), err_msg=name)
    for one, other in zip(dataset.rows, again.rows, strict=True):
        assert (one["return"], one["terminated"]) == (other["return"], other["terminated"])
        assert other["seed_given"]
        assert other["truncated"] is not one["terminated"]
    error = np.abs(after.frames[:].astype(int) - before.frames[:])
    assert error.mean() < 2.5
    if control == "continuous":
        angles = np.array([record["user/angle"] for record in found], np.float32)
        throttle = np.array([record["user/throttle"] for record in found])
        np.testing.assert_array_equal(angles, before.labels[:, 0])
        np.testing.assert_allclose(throttle, before.labels[:, 1] - before.labels[:, 2], atol=1e-7)
    else:
        steering = np.array([record["user/angle"] for record in found])
        np.testing.assert_array_equal(steering, np.array(env.spec.steering)[before.labels])


def export(dataset: nd.Demonstrations, tub: Path) -> Path:
    nd.export_dataset(dataset, tub, "tub")
    return tub


def delete(tub: Path, numbers: Iterable[int]) -> None:
    change(tub, "manifest.json", '"deleted_indexes": []', f'"deleted_indexes": {list(numbers)}')


SHARED = ("return", "length", "terminated", "completion", "lap_finished", "off_road_events", "crashes", "round")
"""Columns of a row that are the same after an export to a tub and an import."""


@pytest.fixture(scope="module")
def dagger(tmp_path_factory) -> nd.Demonstrations:
    """Two noisy episodes, one of round 1.

    They are not to be changed.
    """
    dataset = collect_small(tmp_path_factory.mktemp("dagger") / "data", seeds=[11], seed=5)
    job = EpisodeJob(pickle.dumps(resolve_driver("controller", ENV)), dataset.meta, round=1)
    for row in append_episodes(dataset, [collect_episode(job, (1, 3))]):
        assert row["round"] == 1
    return dataset


def test_a_tub_keeps_noise_rounds_and_outcomes(dagger, tmp_path):
    again = nd.import_tub(export(dagger, tmp_path / "tub"), tmp_path / "again")
    assert again.meta == replace(dagger.meta, driver_sha256="")
    for name in SHARED:
        assert [row.get(name) for row in again.rows] == [row.get(name) for row in dagger.rows], name
    described, before = dict(describe(again.info())), dict(describe(dagger.info()))
    for name in ("action noise", "return", "completion", "off-road events", "not the label"):
        assert described[name] == before[name]
    versions = [json.loads((dataset.path / "meta.json").read_text())["versions"] for dataset in (dagger, again)]
    assert versions[0] == versions[1]
    assert again.verify() == []
    twice = nd.import_tub(export(again, tmp_path / "tub 2"), tmp_path / "twice")
    assert (twice.meta, [row.get("round") for row in twice.rows]) == (again.meta, [None, 1])


def test_the_outcome_of_an_episode_counts_for_all_of_it_alone(dagger, tmp_path):
    """Its round counts for every frame."""
    tub = export(dagger, tmp_path / "tub")
    delete(tub, [0, 70, 119])
    rows = nd.import_tub(tub, tmp_path / "holes").rows
    assert not any(name in row for row in rows for name in SHARED[3:7])
    assert ["truncated" in row for row in rows] == [True, False]
    assert [row.get("round") for row in rows] == [None, 1]
    rows = nd.import_tub(export(dagger, tmp_path / "tub 2"), tmp_path / "cut", episode_frames=40).rows
    assert [("completion" in row, "truncated" in row) for row in rows] == [(False, False), (False, True)] * 2


def test_an_end_that_was_deleted_is_not_known(tmp_path):
    """Torn lines of the end count as deleted ones."""
    env = nd.EnvConfig("continuous", environment=DONKEYCAR)
    episode = {"observations": np.zeros((6, 120, 160, 3), np.uint8), "actions": np.zeros((6, 3), np.float32)}
    episodes = [episode | {"terminated": True, "truncated": False}] * 3
    dataset = nd.Demonstrations.from_episodes(tmp_path / "data", episodes, env=env)
    tub = export(dataset, tmp_path / "tub")
    delete(tub, [4, 5, 6, 7])
    [catalog] = tub.glob("*.catalog")
    catalog.write_text("".join(catalog.read_text().splitlines(keepends=True)[:17]) + "torn\n")
    again = nd.import_tub(tub, tmp_path / "again", skip_missing=True)
    assert [row["length"] for row in again.rows] == [4, 4, 5]
    assert [row.get("truncated") for row in again.rows] == [None, False, None]


@pytest.mark.parametrize(
    ("name", "value"),
    [("completion", 7.5), ("round", -1), ("crashes", 0.5), ("terminated", "yes"), ("seed", 2**63), ("track", [1])],
)
def test_a_manifest_with_other_values_is_refused(dagger, tmp_path, name, value):
    tub = export(dagger, tmp_path / "tub")
    lines = (tub / "manifest.json").read_text().splitlines()
    metadata = json.loads(lines[2])
    next(iter(metadata["nac_drive"]["episodes"].values()))[name] = value
    (tub / "manifest.json").write_text("\n".join([*lines[:2], json.dumps(metadata), *lines[3:]]) + "\n")
    with pytest.raises(DatasetError, match=f"is no dataset's: .*{name}.*; remove it there") as error:
        nd.import_tub(tub, tmp_path / "again")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "again").exists()


def test_tubs_of_other_noise_are_imported_one_by_one(dagger, tmp_path):
    quiet = collect_small(tmp_path / "quiet", seeds=[7], noise=None, seed=5)
    tubs = [export(dagger, tmp_path / "tub"), export(quiet, tmp_path / "tub 2")]
    with pytest.raises(DatasetError, match=r"tub 2 was recorded under the noise None of seed 5, .*; import them one"):
        nd.import_tub(tubs, tmp_path / "again")


def test_a_tub_comes_back_from_a_dataset(tub, tmp_path):
    """Donkeycar reads the same times, modes, angles and throttles."""
    writer = TubWriter(tmp_path / "mixed")
    for number in range(6):
        mode = {"user/mode": "local", "pilot/angle": 0.1, "pilot/throttle": -0.3} if number > 3 else {}
        writer.write(GREY, {"user/angle": 0.1 * number, "user/throttle": 0.5, **mode}, after=47 + number)
    dataset = nd.import_tub([tub, tmp_path / "mixed"], tmp_path / "data")
    nd.export_dataset(dataset, tmp_path / "tub again", "tub")
    found = records(tmp_path / "tub again")
    expected = records_of(tub) + records_of(tmp_path / "mixed")
    for one, other in zip(expected, found, strict=True):
        assert one["user/mode"] == other["user/mode"]
        driver = "user" if one["user/mode"] == "user" else "pilot"
        for name in ("angle", "throttle"):
            assert other[f"{driver}/{name}"] == pytest.approx(one[f"{driver}/{name}"], abs=1e-7)
    steps = [np.diff([record["_timestamp_ms"] for record in each[-6:]]).tolist() for each in (expected, found)]
    assert steps[0] == steps[1]
    again = nd.import_tub(tmp_path / "tub again", tmp_path / "data again")
    assert [row.get("corrections") for row in again.rows] == [None, None, None, "0:4"]
    np.testing.assert_array_equal(again.load().labels, dataset.load().labels)


def records_of(tub: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(tub.glob("*.catalog")) for line in file.read_text().splitlines()]


def test_a_record_that_was_deleted_in_an_exported_tub_leaves_its_time(tmp_path):
    write_tub(tmp_path / "tub", frames=6, sessions=1)
    nd.export_dataset(imported(tmp_path / "tub"), tmp_path / "exported", "tub")
    delete(tmp_path / "exported", [2, 3])
    again = nd.import_tub(tmp_path / "exported", tmp_path / "again")
    np.testing.assert_allclose(again.load().dt, [0, 0.05, 0.15, 0.05], atol=1e-6)


def test_cameras_of_one_drive_stay_together_in_a_tub(tmp_path):
    """A split keeps out all of them or none."""
    episodes = [
        {"observations": np.full((4, 120, 160, 3), 9 * number, np.uint8), "actions": np.zeros((4, 3), np.float32)}
        for number in range(6)
    ]
    env = nd.EnvConfig("continuous", environment=DONKEYCAR)
    write_own_data(tmp_path / "data", episodes, "me", 0.05, [7, 7, 3, 3, 7, 5], False, env, lambda _: None)
    for name in ("tub", "tub 2"):
        nd.export_dataset(tmp_path / "data", tmp_path / name, "tub")
    again = nd.import_tub([tmp_path / "tub", tmp_path / "tub 2"], tmp_path / "again", first_track=10)
    assert again.seeds == [10, 10, 11, 11, 10, 12, 13, 13, 14, 14, 13, 15]


def test_the_zoom_comes_back_from_a_tub(tmp_path):
    """So the same frames count in both."""
    dataset = collect_small(tmp_path / "data", env=nd.EnvConfig("continuous", max_steps=60))
    nd.export_dataset(dataset, tmp_path / "tub", "tub")
    again = nd.import_tub(tmp_path / "tub", tmp_path / "again")
    assert 0 < dataset.load().zooming.sum() < len(dataset.load().zooming)
    np.testing.assert_array_equal(again.load().zooming, dataset.load().zooming)


def test_a_session_of_an_exported_tub_is_cut_where_it_is_asked_for(tmp_path):
    write_tub(tmp_path / "tub", frames=21, sessions=1)
    nd.export_dataset(imported(tmp_path / "tub"), tmp_path / "exported", "tub")
    lengths = lambda **options: [  # noqa: E731
        row["length"] for row in nd.import_tub(tmp_path / "exported", tmp_path / str(options), **options).rows
    ]
    assert lengths() == [21]
    assert lengths(episode_frames=5) == [5, 5, 5, 6], "a single frame stays with those before it"
    dataset = collect_small(tmp_path / "simulated", env=nd.EnvConfig("continuous", max_steps=90))
    nd.export_dataset(dataset, tmp_path / "known", "tub")
    delete(tmp_path / "known", range(5, 80))
    again = nd.import_tub(tmp_path / "known", tmp_path / "cut")
    assert [row["length"] for row in again.rows][:3] == [5, 10, 90], "the hole is longer than a second"
    assert again.seeds[:3] == [dataset.seeds[0], dataset.seeds[0], dataset.seeds[1]]
    with pytest.raises(ValueError, match=r"first_track must be left out for .*known, which names its tracks, got 9"):
        nd.import_tub(tmp_path / "known", tmp_path / "no", first_track=9)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_an_image_is_read_as_it_is_stored(tub, orientation):
    """Whatever rotation a camera noted."""
    file = tub / "images" / "0_cam_image_array_.jpg"
    expected = imported(tub).load().frames[0]
    exif = Image.Exif()
    exif[0x0112] = orientation
    with Image.open(file) as image:
        image.save(file, exif=exif, quality="keep")
    file.write_bytes(file.read_bytes() + b"\n")
    np.testing.assert_array_equal(nd.import_tub(tub, tub.parent / "again").load().frames[0], expected)
