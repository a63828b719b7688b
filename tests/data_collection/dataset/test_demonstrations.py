"""The dataset on disk: lossless, checked, split by track, and clear about what is wrong with it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nac_drive.data_collection.dataset.demonstrations import DatasetError, Demonstrations
from nac_drive.data_collection.dataset.episode_arrays import TELEMETRY, EpisodeArrays
from nac_drive.data_collection.dataset.episode_file import SUMMARY, encode_episode, read_episode
from nac_drive.data_collection.dataset.info import describe
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.data_collection.dataset.verify import play_back
from nac_drive.data_collection.drivers import resolve_driver
from nac_drive.envs import PERTURBATIONS, EnvConfig, make_env, rollout
from nac_drive.storage.write import write_atomically
from tests.data_collection.recordings import ENV, NOISE, TRACKS, collect_small, contents


def random_episode(length: int, control: str, seed: int, last: bool = True) -> tuple[EpisodeArrays, dict[str, Any]]:
    rng = np.random.default_rng(seed)

    def action() -> np.ndarray:
        return rng.integers(5, size=length) if control == "discrete" else rng.random((length, 3), dtype=np.float32)

    arrays = EpisodeArrays(
        frames=rng.integers(256, size=(length, 96, 96, 3), dtype=np.uint8),
        label=action(),
        action=action(),
        reward=rng.normal(size=length),
        dt=rng.random(length),
        zooming=rng.random(length) < 0.5,
        telemetry={name: rng.random(length) for name in TELEMETRY},
        last_frame=rng.integers(256, size=(96, 96, 3), dtype=np.uint8) if last else None,
    )
    values = (int(seed), float(rng.normal()), length, True, float(rng.random()), False, 3, 1)
    return arrays, dict(zip(SUMMARY, values, strict=True))


def assert_equal(one: EpisodeArrays, other: EpisodeArrays) -> None:
    assert list(one.columns()) == list(other.columns())  # action logs hash them in this order
    for name, values in {"frames": one.frames, **one.columns()}.items():
        found = {"frames": other.frames, **other.columns()}[name]
        assert found.dtype == values.dtype, name
        np.testing.assert_array_equal(found, values, err_msg=name)
    assert (one.last_frame is None) == (other.last_frame is None)
    np.testing.assert_array_equal(one.last_frame, other.last_frame)


# Losslessness


@settings(max_examples=15, deadline=None)
@given(
    length=st.integers(1, 40), control=st.sampled_from(["discrete", "continuous"]), seed=st.integers(0, 2**31),
    last=st.booleans(),
)  # fmt: skip
def test_an_episode_comes_back_bit_for_bit(tmp_path_factory, length, control, seed, last):
    arrays, summary = random_episode(length, control, seed, last)
    path = tmp_path_factory.mktemp("episode") / "000000.h5"
    write_atomically(path, encode_episode(arrays, summary))
    back, summary_back = read_episode(path, EnvConfig(control))
    assert_equal(arrays, back)
    assert summary_back == summary
    assert {name: type(value) for name, value in summary_back.items()} == {k: type(v) for k, v in summary.items()}
    assert encode_episode(back, summary_back) == path.read_bytes()  # the same episode, the same bytes


@pytest.mark.parametrize(("last", "schema", "stored"), [(False, 1, 33), (True, 2, 34)])
def test_files_hold_n_or_n_plus_1_frames_and_both_load_as_n(tmp_path, last, schema, stored):
    arrays, summary = random_episode(33, "discrete", 0, last)
    path = tmp_path / "000000.h5"
    path.write_bytes(encode_episode(arrays, summary))
    with h5py.File(path) as file:
        assert file.attrs["schema"] == f"nac-drive episode {schema}"
        assert file["frames"].shape == (stored, 96, 96, 3)  # type: ignore[union-attr]
    target = np.zeros((33, 96, 96, 3), np.uint8)
    back, _ = read_episode(path, ENV, frames=target)
    assert back.frames is target
    np.testing.assert_array_equal(target, arrays.frames)
    for wrong in (32, 34):
        with pytest.raises(DatasetError, match=f"it has 33 frames, expected {wrong}"):
            read_episode(path, ENV, frames=np.zeros((wrong, 96, 96, 3), np.uint8))


def test_the_last_frame_is_the_observation_after_the_last_action(recorded):
    dataset = Demonstrations.open(recorded)
    for row in dataset.rows:
        arrays, summary = read_episode(recorded / row["file"], ENV)
        assert arrays.last_frame is not None
        longer, *_ = play_back(  # one action more: the last frame is acted on
            replace(ENV, max_steps=ENV.max_steps + 1),
            summary["seed"],
            np.append(arrays.label, 0),
            np.append(arrays.action, 0),
        )
        np.testing.assert_array_equal(longer.frames, np.concatenate([arrays.frames, arrays.last_frame[None]]))


def test_loading_is_the_episodes_end_to_end(recorded):
    dataset = Demonstrations.open(recorded)
    frames = dataset.load()
    assert list(frames.seeds) == dataset.seeds == TRACKS
    assert frames.offsets[-1] == len(frames) == sum(row["length"] for row in dataset.rows)
    for episode, row in enumerate(dataset.rows):
        arrays, _ = read_episode(recorded / row["file"], ENV)
        part = slice(frames.offsets[episode], frames.offsets[episode + 1])
        np.testing.assert_array_equal(frames.frames[part], arrays.frames)
        np.testing.assert_array_equal(frames.labels[part], arrays.label)
        np.testing.assert_array_equal(frames.actions[part], arrays.action)
        np.testing.assert_array_equal(frames.rewards[part], arrays.reward.astype(np.float32))
        np.testing.assert_array_equal(frames.telemetry["speed"][part], arrays.telemetry["speed"].astype(np.float32))
        np.testing.assert_array_equal(frames.dt[part], np.array([0, *[1 / 50] * (row["length"] - 1)], np.float32))
        np.testing.assert_array_equal(frames.zooming[part], np.arange(row["length"]) < 50)
    some = dataset.load(seeds=[7, 11])
    assert list(some.seeds) == [11, 7]
    np.testing.assert_array_equal(some.frames, np.concatenate([frames.frames[:60], frames.frames[120:]]))


def test_info_counts_what_is_there(recorded):
    dataset = Demonstrations.open(recorded)
    info, frames = dataset.info(), dataset.load()
    assert (info["episodes"], info["frames"]) == (3, 180)
    assert info["seconds"] == pytest.approx(3 * 59 / 50)  # from the first to the last observation of each episode
    assert info["off_label_fraction"] == np.mean(frames.labels != frames.actions)
    assert info["labels"]["gas"] == np.mean(frames.labels == 3)
    assert info["actions"]["left"] == np.mean(frames.actions == 2)
    assert info["bytes"] == sum(file.stat().st_size for file in recorded.glob("episodes/*.h5"))
    assert info["mean_return"] == pytest.approx(frames.rewards.sum() / 3, rel=1e-5)
    assert json.loads(json.dumps(info)) == info


@pytest.mark.parametrize("name", [None, "action-repeat", "frame-rate", "gap:3:skip"])
def test_the_duration_is_the_sum_of_dt_under_every_clock(name: str | None, tmp_path):
    perturb = f"{name}:3" if name in PERTURBATIONS else name
    dataset = collect_small(tmp_path / "dataset", env=replace(ENV, perturb=perturb), seeds=[5], noise=None)
    info, steps = dataset.info(), []
    rollout(make_env(dataset.meta.env), resolve_driver("controller"), 5, subscribers=[steps.append])
    assert info["frames"] == len(steps)
    assert info["seconds"] == pytest.approx(sum(step.dt for step in steps))
    if name == "action-repeat":
        assert info["seconds"] == pytest.approx(7 * 0.16)  # 60 frames are eight actions
        assert dict(describe(info))["frames"] == "8 (1.1 s)"


def test_a_description_has_units(recorded, tmp_path):
    dataset = Demonstrations.open(recorded)
    info = dataset.info()
    lines = dict(describe(info))
    assert lines["frames"] == "180 (3.5 s)"
    assert (lines["environment"], lines["view"]) == ("car-racing", "from above, 96 x 96 pixels")
    assert lines["status bar"] == "visible"
    assert lines["action noise"] == "30.0 % of frames, held for 4"
    assert lines["not the label"] == f"{100 * info['off_label_fraction']:.1f} % of executed actions"
    assert lines["return"].endswith(" under action noise")  # of the controller no card reports a return
    assert dict(describe(info | {"return_without_noise": 918.0}))["return"].endswith("; without it 918, on test-100")
    assert "noise" not in dict(describe(info | {"noise": None}))["return"]
    assert lines["size"].endswith(f"({info['bytes_per_frame'] / 1e3:.1f} KB per frame)")
    assert f"gas {100 * info['labels']['gas']:.1f} %" in lines["labels"]
    assert dict(describe(info | {"seconds": 119.7}))["frames"] == "180 (2 min 0 s)"
    empty = Demonstrations.create(tmp_path / "empty", replace(dataset.meta, noise=None))
    assert dict(describe(empty.info()))["action noise"] == "none"
    pedals = collect_small(tmp_path / "pedals", env=replace(ENV, control="continuous"), seeds=[5])
    assert dict(describe(pedals.info()))["labels"].startswith("mean steer ")


# Splits


@settings(max_examples=100, deadline=None)
@given(tracks=st.lists(st.integers(0, 99), min_size=2, max_size=40), fraction=st.floats(0, 0.99))
def test_no_track_is_on_both_sides_of_a_split(tracks, fraction):
    meta = Meta(ENV, "controller", "", None, 0)
    rows = [{"index": index, "seed": track} for index, track in enumerate(tracks)]
    distinct = set(tracks)
    dataset = Demonstrations(Path("unused"), meta, rows, cut_off=False)
    if fraction > 0 and len(distinct) < 2:
        with pytest.raises(ValueError, match="at least two tracks"):
            dataset.split(fraction)
        return
    train, validation = dataset.split(fraction)
    assert not set(train) & set(validation)
    assert set(train) | set(validation) == distinct
    assert train
    assert bool(validation) == (fraction > 0)
    assert abs(len(validation) - fraction * len(distinct)) <= 1
    shuffled = Demonstrations(Path("unused"), meta, rows[::-1], cut_off=False)
    assert shuffled.split(fraction) == (train, validation)


# Bad input: one line, which names the place, the cause and the fix; nothing is touched


def foreign(path: Path, damage: str) -> str:
    """Turn the dataset at `path` into something else. Return the words that the error must contain."""
    meta = json.loads((path / "meta.json").read_text())
    if damage == "missing":
        shutil.rmtree(path)
        return "no such folder"
    if damage == "other folder":
        (path / "meta.json").unlink()
        return "meta.json is missing"
    if damage == "no rows":
        (path / "episodes.jsonl").unlink()
        return "episodes.jsonl is missing"
    if damage == "not json":
        (path / "meta.json").write_text("{")
        return "meta.json"
    if damage == "a list":
        (path / "meta.json").write_text("[]")
        return "meta.json"
    if damage == "other schema":
        (path / "meta.json").write_text(json.dumps(meta | {"schema": "minari"}))
        return "'minari'"
    if damage == "other program's keys":
        (path / "meta.json").write_text(json.dumps(meta | {"env": {"id": "CarRacing-v3"}}))
        return "id"
    (path / "episodes.jsonl").write_text('{"episode": 1}\n')
    return "line 1"


@pytest.mark.parametrize(
    "damage",
    ["missing", "other folder", "no rows", "not json", "a list", "other schema", "other program's keys", "other rows"],
)
def test_a_foreign_folder_is_named(copy, damage):
    message = foreign(copy, damage)
    before = contents(copy)
    with pytest.raises(DatasetError) as caught:
        Demonstrations.open(copy)
    message = str(caught.value)
    assert message in message
    assert str(copy) in message
    assert "\n" not in message
    assert contents(copy) == before


@pytest.mark.parametrize("damage", ["missing", "truncated", "garbage", "flipped"])
def test_loading_a_damaged_episode_names_it(copy, damage):
    file = copy / "episodes" / "000001.h5"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 255
    file.unlink()
    if damage != "missing":
        file.write_bytes({"truncated": data[:20_000], "garbage": b"x" * 9000, "flipped": data}[damage])
    with pytest.raises(DatasetError, match=r"000001\.h5.*--resume") as caught:
        Demonstrations.open(copy).load()
    assert "\n" not in str(caught.value)


def test_other_settings_are_refused_with_the_keys_that_differ(recorded):
    dataset = Demonstrations.open(recorded)
    dataset.require_meta(dataset.meta)
    with pytest.raises(DatasetError, match=r"env.mask_bar: dataset has False, got True; env.max_steps.* 60,.* 1000"):
        dataset.require_meta(replace(dataset.meta, env=replace(ENV, mask_bar=True, max_steps=1000)))
    with pytest.raises(DatasetError, match=r"noise.hold: dataset has 4, got 2"):
        dataset.require_meta(replace(dataset.meta, noise=replace(NOISE, hold=2)))


def test_tracks_that_were_not_recorded_and_empty_datasets_are_named(recorded, tmp_path):
    with pytest.raises(DatasetError, match=r"no episode on tracks \[5\]"):
        Demonstrations.open(recorded).load(seeds=[5, 7])
    for none in ([], np.array([], int)):
        with pytest.raises(DatasetError, match=r"seeds must name at least one track of .*, got none; leave it out"):
            Demonstrations.open(recorded).stream(seeds=none)  # type: ignore[arg-type]
    empty = Demonstrations.create(tmp_path / "empty", Demonstrations.open(recorded).meta)
    with pytest.raises(DatasetError, match="no finished episode"):
        empty.load()
    assert empty.info()["episodes"] == 0


def test_creating_never_overwrites(copy):
    before = contents(copy)
    with pytest.raises(FileExistsError, match="another folder"):
        Demonstrations.create(copy, Demonstrations.open(copy).meta)
    assert contents(copy) == before


def test_meta_survives_the_disk(recorded, tmp_path):
    meta = Demonstrations.open(recorded).meta
    for changed in (meta, replace(meta, noise=None), replace(meta, env=EnvConfig("continuous", True, 7))):
        path = tmp_path / str(hash(changed))
        Demonstrations.create(path, changed)
        assert Demonstrations.open(path).meta == changed
