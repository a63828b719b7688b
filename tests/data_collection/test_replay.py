"""Replays of action logs: the same dataset bit for bit. An episode that differs from the log is never written."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from nac_drive.data_collection import replay
from nac_drive.data_collection.collect import (
    EpisodeJob,
    add_missing,
    collect,
    collect_episode,
    collect_mixture_episode,
    open_recording,
)
from nac_drive.data_collection.dart import NoiseConfig
from nac_drive.data_collection.dataset.action_log import ActionLog, encode_action_log, read_action_log
from nac_drive.data_collection.dataset.demonstrations import DatasetError, Demonstrations
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.data_collection.dataset.rows import row_note
from nac_drive.data_collection.drivers import driver_hash, resolve_driver
from nac_drive.data_collection.mixture import MixtureConfig
from nac_drive.data_collection.replay import drawn_anew, rebuild, save_action_log
from nac_drive.envs import EnvConfig
from nac_drive.events import Event, silent
from nac_drive.policies import Driver, DriverConfig
from tests.data_collection.recordings import ENV, TRACKS, collect_small, contents, rewrite_row, tamper, tracks_of
from tests.killing import Fuse, Killed
from tests.slow import slow_but

SHIPPED = Path(__file__).parents[2] / "action_logs"
COLLECT = import_module("nac_drive.data_collection.collect")  # the name in the package is the function
CONTINUOUS = replace(ENV, control="continuous")


def collect_rounds(path: Path, env: EnvConfig, beta: float = 0.2) -> Demonstrations:
    """A dataset like DAgger's: round 0 is the expert's under noise, round 1 is driven by the mixture policy."""
    meta = Meta(env, "controller", driver_hash("controller", env), NoiseConfig(0.3, 4), 3)
    torch.manual_seed(1)
    learner = pickle.dumps(Driver(DriverConfig(core="cnn", control=env.control)).eval())
    job = EpisodeJob(pickle.dumps(resolve_driver("controller", env)), meta)
    mixed = partial(collect_mixture_episode, replace(job, round=1), MixtureConfig(beta, 10), learner)
    with open_recording(path, meta, [5, 6], resume=False) as dataset:
        add_missing(dataset, partial(collect_episode, replace(job, round=0)), [(0, 5)], 1, silent, "collect")
        add_missing(dataset, mixed, [(1, 6)], 1, silent, "collect")
    return dataset


class StraightOn:
    """Leaves the playfield: its episodes end early."""

    env_config = None

    def begin(self, env: gym.Env) -> int:
        return 0

    def act(self, observation: np.ndarray, state: int, dt: float) -> tuple[Any, int]:
        return np.int64(3), state


def straight_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> Demonstrations:
    monkeypatch.setattr(COLLECT, "resolve_driver", lambda spec, env: StraightOn())
    monkeypatch.setattr(COLLECT, "driver_hash", lambda spec, env: "double")
    return collect(path, "straight", env=replace(ENV, max_steps=900), seeds=[5])


# Round trips


def noisy(dataset: Demonstrations) -> bool:
    frames = dataset.load()
    return bool((frames.labels != frames.actions).any())


@pytest.mark.parametrize(
    "kind",
    slow_but(["continuous", "rounds"], ["noisy", "continuous", "noiseless", "masked", "rounds", "early end"]),
)
def test_a_rebuilt_dataset_is_the_original(tmp_path, monkeypatch, kind):
    path = tmp_path / "dataset"
    if kind == "rounds":
        dataset = collect_rounds(path, CONTINUOUS)
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
        }[kind]
        dataset = collect_small(path, **changed)
    assert noisy(dataset) == (kind not in ("noiseless", "early end"))
    save_action_log(dataset, tmp_path / "episodes.npz")
    shutil.move(path, tmp_path / "away")  # the action log is all there is
    events: list[Event] = []
    rebuilt = rebuild(tmp_path / "episodes.npz", path, progress=events.append)
    assert contents(path) == contents(tmp_path / "away")
    assert rebuilt.rows == dataset.rows
    assert [event.note for event in events] == ["", *map(row_note, dataset.rows)]
    assert rebuilt.meta == dataset.meta
    assert rebuilt.verify(replay=True) == []


@pytest.mark.parametrize("size", [64, "64", (64,), (64, 48.5), (64, 48, 3), (8, 8)])
def test_a_size_that_is_no_width_and_height_is_named(log_file, tmp_path, size):
    for use in (
        lambda: rebuild(log_file, tmp_path / "data", view="seat", size=size),
        lambda: EnvConfig(view="seat", size=size),
    ):
        with pytest.raises(ValueError, match=r"^size must be a width and a height of 32 to 1024 pixels, got .*; such"):
            use()
    assert not (tmp_path / "data").exists()


def test_one_recording_gives_both_views_of_the_same_moments(tmp_path):
    """Two routes: the frames of a view were recorded, or are drawn from the recording of the other view."""
    seat = replace(ENV, view="seat", size=(64, 48))
    for name, env in (("above", ENV), ("seat", seat)):
        save_action_log(collect_small(tmp_path / name, env=env), tmp_path / f"{name}.npz")
    rebuild(tmp_path / "above.npz", tmp_path / "seat-again", view="seat", size=(64, 48))
    rebuild(tmp_path / "seat.npz", tmp_path / "above-again", view="above")
    for name in ("above", "seat"):
        assert contents(tmp_path / f"{name}-again") == contents(tmp_path / name)
    shutil.rmtree(tmp_path / "seat-again" / "episodes")
    rebuild(tmp_path / "above.npz", tmp_path / "seat-again", view="seat", size=(64, 48), resume=True)
    assert contents(tmp_path / "seat-again")["episodes/000002.h5"] == contents(tmp_path / "seat")["episodes/000002.h5"]
    above = Demonstrations.open(tmp_path / "above")
    drawn = drawn_anew(above, "seat")
    assert (drawn.path, drawn.meta.env) == (tmp_path / "above-seat", replace(ENV, view="seat"))
    rebuild(tmp_path / "above.npz", tmp_path / "by-hand", view="seat")
    assert contents(drawn.path) == contents(tmp_path / "by-hand")
    assert contents(drawn_anew(above, "seat").path) == contents(tmp_path / "by-hand")
    assert drawn_anew(above, "above") is above
    with pytest.raises(ValueError, match=r"env.view: dataset has 'seat', got 'above'"):
        rebuild(tmp_path / "above.npz", tmp_path / "seat-again", resume=True)


@pytest.mark.parametrize(
    ("driver", "control", "bytes_per_frame"),
    [pytest.param("expert", "discrete", 2, marks=pytest.mark.slow), ("controller", "continuous", 10)],
)
def test_an_episode_takes_a_few_bytes_per_frame(tmp_path, driver, control, bytes_per_frame):
    env = EnvConfig(control=control)
    dataset = collect(tmp_path / "dataset", driver, env=env, seeds=[1], noise=NoiseConfig(0.15, 4))
    save_action_log(dataset, tmp_path / "episodes.npz")
    size, (row,) = (tmp_path / "episodes.npz").stat().st_size, dataset.rows
    assert row["length"] > 500
    assert size < bytes_per_frame * row["length"]


def test_the_number_of_workers_does_not_show(log_file, recorded, tmp_path):
    rebuild(log_file, tmp_path / "dataset", workers=2)
    assert contents(tmp_path / "dataset") == contents(recorded)


# Interruptions


@pytest.mark.parametrize("moment", range(0, 12, 2))
def test_killed_on_the_way_it_goes_on_to_the_same_dataset(log_file, recorded, tmp_path, monkeypatch, moment):
    fuse = Fuse(moment)
    path = tmp_path / "dataset"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fuse.deadly(os.fsync))
        with pytest.raises(Killed):
            rebuild(log_file, path)
    whole = len(list(path.glob("episodes/*.h5")))
    again: list[Event] = []
    rebuild(log_file, path, resume=True, progress=again.append)
    assert len(tracks_of(again)) == len(TRACKS) - whole
    assert contents(path) == contents(recorded)


def test_resuming_repairs_the_episodes_of_the_original(log_file, recorded, copy):
    (copy / "episodes" / "000001.h5").write_bytes(b"damaged")
    (copy / "episodes" / "000002.h5").unlink()
    again: list[Event] = []
    rebuild(log_file, copy, resume=True, progress=again.append)
    assert tracks_of(again) == TRACKS[1:]
    assert contents(copy) == contents(recorded)


# Episodes that come out otherwise


def change_episode(log_file: Path, path: Path, index: int, **changed: Any) -> Path:
    """An action log in which episode `index` is another."""
    log = read_action_log(log_file)
    episodes = [replace(episode, **changed) if i == index else episode for i, episode in enumerate(log.episodes)]
    path.write_bytes(encode_action_log(ActionLog(log.document, episodes)))
    return path


def flipped(actions: np.ndarray, frame: int) -> np.ndarray:
    changed = actions.copy()
    changed[frame] = 1 if changed[frame] == 2 else 2
    return changed


@pytest.mark.parametrize("name", ["action", "label"])
def test_one_flipped_action_or_label_is_found_and_its_episode_named(log_file, tmp_path, name):
    episode = read_action_log(log_file).episodes[1]
    other = change_episode(log_file, tmp_path / "other.npz", 1, **{name: flipped(getattr(episode, name), 55)})
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
    assert len(rebuild(log_file, tmp_path / "dataset", resume=True)) == len(TRACKS)  # the right action log goes on


def test_the_versions_that_differ_are_named(log_file, tmp_path, monkeypatch):
    episode = read_action_log(log_file).episodes[0]
    other = change_episode(log_file, tmp_path / "other.npz", 0, sha256={**episode.sha256, "frames": "0" * 64})
    with pytest.raises(DatasetError, match="frames differ; the versions are the same"):
        rebuild(other, tmp_path / "one")
    here = replay.installed_versions()
    monkeypatch.setattr(replay, "installed_versions", lambda: here | {"gymnasium": "9.9", "torch": "9.9"})
    with pytest.raises(DatasetError, match=rf"frames differ; .* with gymnasium {here['gymnasium']} \(here 9.9\): inst"):
        rebuild(other, tmp_path / "two")


def test_another_frame_after_the_last_action_is_found(log_file, tmp_path):
    episode = read_action_log(log_file).episodes[0]
    other = change_episode(log_file, tmp_path / "other.npz", 0, sha256={**episode.sha256, "last_frame": "0" * 64})
    with pytest.raises(DatasetError, match="comes out otherwise here: last_frame differ"):
        rebuild(other, tmp_path / "dataset")


def test_an_episode_of_a_published_log_is_rebuilt(tmp_path):
    """Another version of the program made the log: every hash must hold."""
    log = read_action_log(SHIPPED / "expert-20.npz")
    shortest = min(log.episodes, key=lambda episode: episode.summary["length"])
    path = tmp_path / "one.npz"
    path.write_bytes(encode_action_log(ActionLog(log.document, [shortest])))
    (row,) = rebuild(str(path), str(tmp_path / "dataset")).rows
    assert row["length"] == shortest.summary["length"]


# Refusals: one line, nothing touched


def test_other_episodes_of_the_same_driver_tracks_and_settings_are_left_alone(tmp_path):
    save_action_log(collect_rounds(tmp_path / "one", ENV, beta=0.2), tmp_path / "episodes.npz")
    other = collect_rounds(tmp_path / "other", ENV, beta=0.8).path
    (other / "episodes" / "000000.h5").write_bytes(b"damaged")
    before = contents(other)
    with pytest.raises(DatasetError, match=r"its episode 1 is not the action log's \(.*frames differ.*another folder"):
        rebuild(tmp_path / "episodes.npz", other, resume=True)
    (other / "episodes.jsonl").write_bytes(b"")  # nor are they taken for the action log's without a row
    with pytest.raises(DatasetError, match="its episode 1 is not the action log's"):
        rebuild(tmp_path / "episodes.npz", other, resume=True)
    assert contents(other) == before | {"episodes.jsonl": [b""]}


def test_rebuilding_touches_nothing_that_is_not_the_action_logs(log_file, copy, tmp_path):
    (copy / "episodes" / "000002.h5").write_bytes(b"damaged")
    (copy / "episodes" / "left.h5.1.tmp").write_bytes(b"half")
    before = contents(copy)
    with pytest.raises(FileExistsError, match="already exists"):
        rebuild(log_file, copy)
    log = read_action_log(log_file)
    shorter = tmp_path / "shorter.npz"
    shorter.write_bytes(encode_action_log(ActionLog(log.document, log.episodes[:1])))
    with pytest.raises(DatasetError, match=r"its episode 1 is not the .* \(there is none in the action log\)"):
        rebuild(shorter, copy, resume=True)
    reseeded = tmp_path / "reseeded.npz"
    reseeded.write_bytes(encode_action_log(ActionLog(log.document | {"seed": 9}, log.episodes)))
    with pytest.raises(DatasetError, match="seed: dataset has 0, got 9"):
        rebuild(reseeded, copy, resume=True)
    assert contents(copy) == before
    with pytest.raises(DatasetError, match="nothing to resume"):
        rebuild(log_file, tmp_path / "typo", resume=True)
    with pytest.raises(ValueError, match=r"workers must lie in 0 to .*, got -1"):
        rebuild(log_file, tmp_path / "typo", workers=-1)
    assert not (tmp_path / "typo").exists()


def test_an_action_log_overwrites_nothing(recorded, tmp_path):
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
    ("damage", "message"),
    [
        (lambda path: (path / "episodes" / "000001.h5").write_bytes(b"damaged"), r"2 problem\(s\), .*has changed"),
        (lambda path: rewrite_row(path, 1, crashes=9), "crashes is 0, its row says 9"),
        (empty, "there is no episode in it"),
        (without_the_middle, "its episode 1 is missing"),
        (with_a_wide_action, r"000001.h5 cannot be read: action has a value outside of 0 to 4"),
        (with_a_short_episode, "episode 0 has 60 frames of 61, but nothing ended it there"),
    ],
)
def test_a_damaged_or_unfinished_dataset_makes_no_action_log(copy, tmp_path, damage, message):
    damage(copy)
    with pytest.raises(DatasetError, match=message) as caught:
        save_action_log(Demonstrations.open(copy), tmp_path / "episodes.npz")
    assert "\n" not in str(caught.value)
    assert str(copy) in str(caught.value)
    assert not list(tmp_path.glob("episodes*"))
