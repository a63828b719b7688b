"""Recipes: a dataset in a few kilobytes, driven again bit for bit; what is not the recipe's episode is never written."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from nac_drive.data_collection import recipe as recipe_module
from nac_drive.data_collection import record as record_module
from nac_drive.data_collection.collect import EpisodeJob, add_missing, collect_episode, open_recording, record
from nac_drive.data_collection.dart import NoiseConfig
from nac_drive.data_collection.dataset.action_log import ActionLog, encode_action_log, read_action_log
from nac_drive.data_collection.dataset.demonstrations import DatasetError, Demonstrations, Meta
from nac_drive.data_collection.experts import driver_hash
from nac_drive.data_collection.mixture import MixtureConfig, collect_mixture_episode
from nac_drive.data_collection.replay import rebuild, save_action_log
from nac_drive.envs import EnvConfig
from nac_drive.policies import Driver, DriverConfig
from tests.data_collection.recordings import TRACKS, contents, record_small, rewrite_row, tamper
from tests.killing import Fuse, Killed

ENV = EnvConfig(max_steps=60, renderer="fast")
CONTINUOUS = replace(ENV, control="continuous")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A dataset of three episodes under noise."""
    return record_small(tmp_path_factory.mktemp("recorded") / "dataset", env=ENV).path


@pytest.fixture(scope="module")
def file(recorded, tmp_path_factory) -> Path:
    """Its recipe."""
    path = tmp_path_factory.mktemp("recipe") / "episodes.npz"
    save_action_log(Demonstrations.open(recorded), path)
    return path


@pytest.fixture
def copy(recorded, tmp_path) -> Path:
    return shutil.copytree(recorded, tmp_path / "dataset")


def turns(path: Path, env: EnvConfig, share: float = 0.8) -> Demonstrations:
    """As DAgger records: round 0 is the expert's under noise, round 1 is driven in turns."""
    meta = Meta(env, "controller", driver_hash("controller", env), NoiseConfig(0.3, 4), 3)
    student = pickle.dumps(Driver(DriverConfig(core="cnn", control=env.control)).eval())
    dataset = open_recording(path, meta, [5, 6], resume=False)
    job = EpisodeJob(path, "controller", meta)
    in_turns = partial(collect_mixture_episode, replace(job, round=1), MixtureConfig(share, 10), student)
    add_missing(dataset, partial(collect_episode, replace(job, round=0)), [(0, 5)], 1, None)
    add_missing(dataset, in_turns, [(1, 6)], 1, None)
    return dataset


class StraightOn:
    """Leaves the playfield: its episodes end early."""

    env_config = None

    def begin(self, env: gym.Env) -> int:
        return 0

    def act(self, observation: np.ndarray, state: int, dt: float) -> tuple[Any, int]:
        return np.int64(3), state


def straight_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> Demonstrations:
    monkeypatch.setattr(record_module, "resolve_driver", lambda spec, env: StraightOn())
    monkeypatch.setattr(record_module, "driver_hash", lambda spec, env: "double")
    return record(path, "straight", env=replace(ENV, max_steps=900), seeds=[5])


# Round trips


def disturbed(dataset: Demonstrations) -> bool:
    frames = dataset.load()
    return bool((frames.labels != frames.actions).any())


@pytest.mark.parametrize("kind", ["noisy", "continuous", "noiseless", "masked", "gymnasium", "rounds", "early end"])
def test_a_rebuilt_dataset_is_the_original(tmp_path, monkeypatch, kind):
    path = tmp_path / "dataset"
    if kind == "rounds":
        dataset = turns(path, CONTINUOUS)
        assert [row["round"] for row in dataset.rows] == [0, 1]
    elif kind == "early end":
        dataset = straight_on(path, monkeypatch)
        assert dataset.rows[0]["terminated"]
        assert dataset.rows[0]["length"] < 900
    else:
        changed = {
            "noisy": {"env": ENV},
            "continuous": {"env": CONTINUOUS},
            "noiseless": {"env": ENV, "noise": None},
            "masked": {"env": replace(ENV, mask_bar=True)},
            "gymnasium": {"env": replace(ENV, renderer="gymnasium")},
        }[kind]
        dataset = record_small(path, **changed)
    assert disturbed(dataset) == (kind not in ("noiseless", "early end"))
    save_action_log(dataset, tmp_path / "episodes.npz")
    shutil.move(path, tmp_path / "away")  # the recipe is all there is
    rows: list[dict[str, Any]] = []
    rebuilt = rebuild(tmp_path / "episodes.npz", path, on_episode=rows.append)
    assert contents(path) == contents(tmp_path / "away")
    assert rows == rebuilt.rows == dataset.rows
    assert rebuilt.meta == dataset.meta
    assert rebuilt.verify(replay=True) == []


@pytest.mark.parametrize(
    ("driver", "control", "bytes_per_frame"), [("expert", "discrete", 2), ("controller", "continuous", 10)]
)
def test_a_lap_takes_a_few_bytes_a_frame(tmp_path, driver, control, bytes_per_frame):
    env = EnvConfig(control=control, renderer="fast")
    dataset = record(tmp_path / "dataset", driver, env=env, seeds=[1], noise=NoiseConfig(0.15, 4))
    save_action_log(dataset, tmp_path / "episodes.npz")
    size, (row,) = (tmp_path / "episodes.npz").stat().st_size, dataset.rows
    assert row["length"] > 500
    assert size < bytes_per_frame * row["length"]


def test_the_number_of_workers_does_not_show(file, recorded, tmp_path):
    rebuild(file, tmp_path / "dataset", workers=2)
    assert contents(tmp_path / "dataset") == contents(recorded)


# Interruptions


@pytest.mark.parametrize("moment", range(0, 12, 2))
def test_killed_on_the_way_it_goes_on_to_the_same_dataset(file, recorded, tmp_path, monkeypatch, moment):
    fuse = Fuse(moment)
    path = tmp_path / "dataset"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fuse.deadly(os.fsync))
        with pytest.raises(Killed):
            rebuild(file, path)
    whole = len(list(path.glob("episodes/*.h5")))
    again: list[dict[str, Any]] = []
    rebuild(file, path, resume=True, on_episode=again.append)
    assert len(again) == len(TRACKS) - whole
    assert contents(path) == contents(recorded)


def test_resuming_mends_the_laps_of_the_original(file, recorded, copy):
    (copy / "episodes" / "000001.h5").write_bytes(b"damaged")
    (copy / "episodes" / "000002.h5").unlink()
    again: list[dict[str, Any]] = []
    rebuild(file, copy, resume=True, on_episode=again.append)
    assert [row["index"] for row in again] == [1, 2]
    assert contents(copy) == contents(recorded)


# Episodes that come out otherwise


def change_episode(file: Path, path: Path, index: int, **changed: Any) -> Path:
    """A recipe in which episode `index` is another."""
    recipe = read_action_log(file)
    episodes = [replace(episode, **changed) if i == index else episode for i, episode in enumerate(recipe.episodes)]
    path.write_bytes(encode_action_log(ActionLog(recipe.document, episodes)))
    return path


def flipped(actions: np.ndarray, frame: int) -> np.ndarray:
    changed = actions.copy()
    changed[frame] = 1 if changed[frame] == 2 else 2
    return changed


@pytest.mark.parametrize("name", ["action", "label"])
def test_one_flipped_action_or_label_is_noticed_and_its_lap_named(file, tmp_path, name):
    episode = read_action_log(file).episodes[1]
    other = change_episode(file, tmp_path / "other.npz", 1, **{name: flipped(getattr(episode, name), 55)})
    with pytest.raises(DatasetError, match=r"episode 1 \(track 3\) of .*other.npz comes out otherwise here:") as caught:
        rebuild(other, tmp_path / "dataset")
    assert "columns differ" in str(caught.value)
    assert ("frames differ" in str(caught.value)) == (name == "action")
    assert "\n" not in str(caught.value)
    kept = Demonstrations.open(tmp_path / "dataset")
    assert [row["index"] for row in kept.rows] == [0]
    assert kept.verify(replay=True) == []
    if name == "action":
        with pytest.raises(DatasetError, match="episode 1"):  # out of another process, too
            rebuild(other, tmp_path / "dataset", resume=True, workers=2)
    assert len(rebuild(file, tmp_path / "dataset", resume=True)) == len(TRACKS)  # the right recipe goes on


def test_the_versions_that_differ_are_told(file, tmp_path, monkeypatch):
    episode = read_action_log(file).episodes[0]
    other = change_episode(file, tmp_path / "other.npz", 0, sha256={**episode.sha256, "frames": "0"})
    with pytest.raises(DatasetError, match="frames differ; the versions are the same"):
        rebuild(other, tmp_path / "one")
    here = recipe_module.installed_versions()
    monkeypatch.setattr(recipe_module, "installed_versions", lambda: here | {"gymnasium": "9.9", "torch": "9.9"})
    with pytest.raises(DatasetError, match=rf"frames differ; .* with gymnasium {here['gymnasium']} \(here 9.9\): inst"):
        rebuild(other, tmp_path / "two")


# Refusals: one line, nothing touched


def test_other_laps_of_the_same_drivers_tracks_and_settings_are_left_alone(tmp_path):
    save_action_log(turns(tmp_path / "one", ENV, share=0.8), tmp_path / "episodes.npz")
    other = turns(tmp_path / "other", ENV, share=0.2).path
    (other / "episodes" / "000000.h5").write_bytes(b"damaged")
    before = contents(other)
    with pytest.raises(DatasetError, match=r"its episode 1 is not the recipe's \(.*frames differ.*another folder"):
        rebuild(tmp_path / "episodes.npz", other, resume=True)
    (other / "episodes.jsonl").write_bytes(b"")  # nor are they taken for the recipe's without a row
    with pytest.raises(DatasetError, match="its episode 1 is not the recipe's"):
        rebuild(tmp_path / "episodes.npz", other, resume=True)
    assert contents(other) == before | {"episodes.jsonl": [b""]}


def test_rebuilding_touches_nothing_that_is_not_the_recipes(file, copy, tmp_path):
    (copy / "episodes" / "000002.h5").write_bytes(b"damaged")
    (copy / "episodes" / "left.h5.1.tmp").write_bytes(b"half")
    before = contents(copy)
    with pytest.raises(FileExistsError, match="already exists"):
        rebuild(file, copy)
    recipe = read_action_log(file)
    shorter = tmp_path / "shorter.npz"
    shorter.write_bytes(encode_action_log(ActionLog(recipe.document, recipe.episodes[:1])))
    with pytest.raises(DatasetError, match=r"its episode 1 is not the recipe's \(there is none in the recipe\)"):
        rebuild(shorter, copy, resume=True)
    reseeded = tmp_path / "reseeded.npz"
    reseeded.write_bytes(encode_action_log(ActionLog(recipe.document | {"seed": 9}, recipe.episodes)))
    with pytest.raises(DatasetError, match="seed: dataset has 0, asked for 9"):
        rebuild(reseeded, copy, resume=True)
    assert contents(copy) == before
    with pytest.raises(DatasetError, match="nothing to resume"):
        rebuild(file, tmp_path / "typo", resume=True)
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        rebuild(file, tmp_path / "typo", workers=0)
    assert not (tmp_path / "typo").exists()


def test_a_recipe_overwrites_nothing(recorded, tmp_path):
    (tmp_path / "thesis.npz").write_text("all my work")
    with pytest.raises(FileExistsError, match="choose another file"):
        save_action_log(Demonstrations.open(recorded), tmp_path / "thesis.npz")
    assert (tmp_path / "thesis.npz").read_text() == "all my work"


def empty(path: Path) -> None:
    meta = Demonstrations.open(path).meta
    shutil.rmtree(path)
    Demonstrations.create(path, meta)


def without_the_middle(path: Path) -> None:
    rows = (path / "episodes.jsonl").read_text().splitlines(keepends=True)
    (path / "episodes.jsonl").write_text(rows[0] + rows[2])
    (path / "episodes" / "000001.h5").unlink()


def with_a_wide_action(path: Path) -> None:
    def change(content: Any) -> None:
        content["action"][30] = 256 + 3  # 3 in eight bits

    tamper(path, 1, change)


def with_a_short_episode(path: Path) -> None:
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(meta | {"env": meta["env"] | {"max_steps": 61}}))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda path: (path / "episodes" / "000001.h5").write_bytes(b"damaged"), r"content has changed .*\(2 problem"),
        (lambda path: rewrite_row(path, 1, crashes=9), "crashes is 0, its row says 9"),
        (empty, "there is no episode in it"),
        (without_the_middle, "its episode 1 is missing"),
        (with_a_wide_action, "episode 1 has a value of action outside of 0 to 4"),
        (with_a_short_episode, "episode 0 has 60 frames of 61, but nothing ended it there"),
    ],
)
def test_a_damaged_or_unfinished_dataset_makes_no_recipe(copy, tmp_path, damage, told):
    damage(copy)
    with pytest.raises(DatasetError, match=told) as caught:
        save_action_log(Demonstrations.open(copy), tmp_path / "episodes.npz")
    assert "\n" not in str(caught.value)
    assert str(copy) in str(caught.value)
    assert not list(tmp_path.glob("episodes*"))
