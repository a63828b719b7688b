"""Recording: the same dataset whatever the number of workers, and whatever kills it on the way."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from nac_drive.data_collection import files
from nac_drive.data_collection import record as record_module
from nac_drive.data_collection.collect import record
from nac_drive.data_collection.controller.controller import Controller
from nac_drive.data_collection.dart import ActionNoise, NoiseConfig
from nac_drive.data_collection.dataset.demonstrations import DatasetError, Demonstrations
from nac_drive.data_collection.files import WriteError
from nac_drive.envs import EnvConfig, Step, make_env, rollout
from tests.data_collection.recordings import ENV, NOISE, TRACKS, contents, record_small
from tests.killing import Fuse, Killed

REPOSITORY = Path(__file__).parents[2]
MANY = list(range(20, 26))
TINY = EnvConfig(max_steps=5)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    return record_small(tmp_path_factory.mktemp("recorded") / "dataset").path


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """Six episodes, recorded without interruption."""
    return record_small(tmp_path_factory.mktemp("many") / "dataset", seeds=MANY).path


@pytest.fixture
def copy(recorded, tmp_path) -> Path:
    return shutil.copytree(recorded, tmp_path / "dataset")


# What is recorded


class Repeat:
    """Drives given actions."""

    def __init__(self, actions: np.ndarray):
        self.actions = actions

    def begin(self, env: gym.Env) -> int:
        return 0

    def act(self, observation: np.ndarray, state: int, dt: float) -> tuple[Any, int]:
        return self.actions[state], state + 1


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_under_noise_labels_stay_the_drivers_and_executed_actions_are_the_noises(tmp_path, control):
    env = EnvConfig(control=control, max_steps=60)
    dataset = record_small(tmp_path / "dataset", env=env, seeds=[5], seed=9)
    frames = dataset.load()
    assert (frames.labels != frames.actions).any()
    # Two routes to the labels: an expert that is asked while the executed actions are repeated.
    steps: list[Step] = []
    rollout(make_env(env), Repeat(frames.actions), 5, expert=Controller(control), subscribers=[steps.append])
    np.testing.assert_array_equal(frames.labels, [step.expert_action for step in steps])
    np.testing.assert_array_equal(frames.frames, [step.observation for step in steps])
    # And to the executed actions: the noise of this seed and track, applied to the labels.
    noise = ActionNoise(NOISE.probability, NOISE.hold, make_env(env).action_space, (9, 5))
    np.testing.assert_array_equal(frames.actions, [noise(label) for label in frames.labels])


def test_without_noise_the_label_is_executed(tmp_path):
    frames = record_small(tmp_path / "dataset", noise=None, seeds=[5]).load()
    np.testing.assert_array_equal(frames.labels, frames.actions)


def test_noise_depends_on_its_seed_and_on_the_track(tmp_path, recorded):
    other = record_small(tmp_path / "dataset", seed=1).load()
    frames = Demonstrations.open(recorded).load()
    assert (other.actions != frames.actions).any()
    episodes = [tuple(frames.actions[a:b]) for a, b in zip(frames.offsets[:-1], frames.offsets[1:], strict=True)]
    assert len(set(episodes)) == len(TRACKS)


def test_a_driver_trained_with_the_bar_sees_it_while_the_mask_is_recorded(tmp_path, monkeypatch):
    seen: list[np.ndarray] = []

    class Looks:
        env_config = {"control": "discrete", "mask_bar": False, "max_steps": 1000}

        def begin(self, env: gym.Env) -> int:
            return 40

        def act(self, observation: np.ndarray, state: int, dt: float) -> tuple[Any, int]:
            seen.append(observation)
            return np.int64(3), state + 1

    monkeypatch.setattr(record_module, "resolve_driver", lambda spec, env: Looks())
    monkeypatch.setattr(record_module, "driver_hash", lambda spec, env: "double")
    env = EnvConfig(mask_bar=True, max_steps=8)
    dataset = record(tmp_path / "dataset", "looks", env=env, seeds=[5])
    masked = dataset.load().frames
    shown = np.stack(seen)
    assert not masked[:, 84:].any()
    assert shown[:, 84:].any()
    np.testing.assert_array_equal(masked[:, :84], shown[:, :84])
    assert dataset.verify(replay=True) == []


# Workers and interruptions


def test_the_number_of_workers_does_not_show(tmp_path, many):
    rows: list[dict[str, Any]] = []
    dataset = record_small(tmp_path / "dataset", seeds=MANY, workers=2, on_episode=rows.append)
    assert contents(tmp_path / "dataset") == contents(many)
    assert sorted(rows, key=lambda row: row["index"]) == dataset.rows == Demonstrations.open(many).rows
    assert dataset.verify(replay=True, workers=2) == []


@pytest.mark.parametrize(("workers", "kills"), [(1, [2]), (2, [1, 3])])
def test_killed_at_random_moments_it_loses_no_finished_episode_and_ends_the_same(tmp_path, many, workers, kills):
    path = tmp_path / "dataset"
    script = (
        "import sys; from pathlib import Path; from tests.data_collection.recordings import record_small\n"
        "path = Path(sys.argv[1])\n"
        f"if __name__ == '__main__': record_small(path, seeds={MANY}, workers={workers}, resume=path.exists())"
    )
    rng, files = random.Random(workers), []
    for finished_before_kill in kills:
        process = subprocess.Popen([sys.executable, "-c", script, str(path)], cwd=REPOSITORY, start_new_session=True)
        while len(list(path.glob("episodes/*.h5"))) < finished_before_kill and process.poll() is None:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.3))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        files = list(path.glob("episodes/*.h5"))
        rows = Demonstrations.open(path).rows
        assert len(files) >= finished_before_kill
        assert len(files) - workers <= len(rows) <= len(files)
    recorded_now: list[dict[str, Any]] = []
    record_small(path, seeds=MANY, resume=True, on_episode=recorded_now.append)
    assert contents(path) == contents(many)
    assert len(recorded_now) == len(MANY) - len(files)  # what was whole was kept, with a row or without


def test_killed_at_any_system_call_it_resumes_to_the_same_dataset(tmp_path, monkeypatch):
    whole = record_small(tmp_path / "whole", env=TINY, seeds=[1, 2]).path
    fuse = Fuse()
    real = {name: getattr(os, name) for name in ("replace", "fsync", "mkdir")}
    moment = 0
    while True:
        path = tmp_path / f"killed_{moment}"
        fuse.left = moment
        with monkeypatch.context() as patch:
            for name, call in real.items():
                patch.setattr(os, name, fuse.deadly(call))
            try:
                record_small(path, env=TINY, seeds=[1, 2])
                break
            except Killed:
                pass
        record_small(path, env=TINY, seeds=[1, 2], resume=path.exists())
        assert contents(path) == contents(whole), f"killed at call {moment}"
        moment += 1
    assert moment >= 4 * 2 + 6  # write, rename, folder and row of each episode, and the making of the folder


def test_a_row_cut_off_anywhere_costs_nothing(copy, recorded):
    rows = (recorded / "episodes.jsonl").read_bytes()
    last = rows[:-1].rfind(b"\n") + 1
    for cut in {*range(last, len(rows), 40), last + 1, len(rows) - 1}:
        (copy / "episodes.jsonl").write_bytes(rows[:cut])
        assert Demonstrations.open(copy).seeds == TRACKS[:2]
        again: list[dict[str, Any]] = []
        record_small(copy, resume=True, on_episode=again.append)
        assert again == []  # the episode's file was whole and is adopted
        assert contents(copy) == contents(recorded)


def test_resuming_mends_damaged_episodes_and_adds_tracks(copy, recorded):
    data = bytearray((copy / "episodes" / "000001.h5").read_bytes())
    data[-100] ^= 1
    (copy / "episodes" / "000001.h5").write_bytes(data)
    (copy / "episodes" / "000002.h5").unlink()
    (copy / "episodes" / "000002.h5.1.tmp").write_bytes(b"half")
    again: list[dict[str, Any]] = []
    record_small(copy, resume=True, on_episode=again.append)
    assert [row["index"] for row in again] == [1, 2]
    assert contents(copy) == contents(recorded)
    longer = record_small(copy, seeds=[*TRACKS, 4], resume=True)
    assert longer.seeds == [*TRACKS, 4]
    assert longer.rows[:3] == Demonstrations.open(recorded).rows
    assert longer.verify() == []


def test_a_killed_worker_ends_the_recording_with_one_line(tmp_path, many):
    path = tmp_path / "dataset"

    def kill_workers(row: dict[str, Any]) -> None:
        for child in active_children():
            child.kill()

    with pytest.raises(DatasetError, match=r"a worker process died.*--resume and fewer workers"):
        record_small(path, seeds=MANY, workers=2, on_episode=kill_workers)
    assert Demonstrations.open(path).rows
    record_small(path, seeds=MANY, resume=True)
    assert contents(path) == contents(many)


# Refusals: one line, nothing touched


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"env": EnvConfig(max_steps=60, mask_bar=True)}, "env.mask_bar: dataset has False, asked for True"),
        ({"noise": NoiseConfig(0.3, 5)}, "noise.hold: dataset has 4, asked for 5"),
        ({"noise": None}, "noise"),
        ({"seed": 1}, "seed: dataset has 0, asked for 1"),
        ({"seeds": [11, 4, 7]}, "episode 1 is on track 3, asked for 4"),
    ],
)
def test_resuming_something_else_is_refused(copy, changed, told):
    (copy / "episodes" / "left.h5.1.tmp").write_bytes(b"half")
    before = contents(copy)
    with pytest.raises(DatasetError) as caught:
        record_small(copy, resume=True, **changed)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(copy) == before


def test_resuming_another_driver_is_refused(copy, monkeypatch):
    before = contents(copy)
    monkeypatch.setattr(record_module, "driver_hash", lambda spec, env: "retrained")
    with pytest.raises(DatasetError, match=r"driver_sha256: dataset has '.*', asked for 'retrained'"):
        record_small(copy, resume=True)
    assert contents(copy) == before


def test_existing_missing_and_foreign_folders_are_refused(copy, tmp_path):
    before = contents(copy)
    with pytest.raises(FileExistsError, match="--resume"):
        record_small(copy)
    assert contents(copy) == before
    with pytest.raises(DatasetError, match="nothing to resume"):
        record_small(tmp_path / "typo", resume=True)
    assert not (tmp_path / "typo").exists()
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter.tex").write_text("all my work")
    for resume, error in ((False, FileExistsError), (True, DatasetError)):
        with pytest.raises(error):
            record_small(thesis, resume=resume)
    assert contents(thesis) == {"chapter.tex": b"all my work"}


def test_a_bad_driver_or_argument_leaves_no_folder(tmp_path):
    path = tmp_path / "dataset"
    with pytest.raises((ValueError, OSError), match="no_such_driver"):
        record(path, str(tmp_path / "no_such_driver"), env=TINY, seeds=[1])
    for seeds in ([], [1, 1], [-1]):
        with pytest.raises(ValueError, match="seeds must be distinct"):
            record_small(path, seeds=seeds)
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        record_small(path, workers=0)
    assert not path.exists()


@pytest.mark.parametrize(
    ("code", "fix"), [(errno.ENOSPC, "free some space"), (errno.EROFS, "make the folder writable")]
)
def test_a_disk_that_fails_midway_leaves_the_finished_episodes(tmp_path, recorded, monkeypatch, code, fix):
    path = tmp_path / "dataset"
    real = os.replace

    def full(source, target):
        if Path(target).name == "000001.h5":
            raise OSError(code, os.strerror(code))
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", full)
        with pytest.raises(WriteError, match=fix) as caught:
            record_small(path)
    assert "000001.h5" in str(caught.value)
    assert "\n" not in str(caught.value)
    dataset = Demonstrations.open(path)
    assert dataset.seeds == TRACKS[:1]
    assert dataset.verify() == []
    assert not list(path.rglob("*.tmp"))
    record_small(path, resume=True)
    assert contents(path) == contents(recorded)


def test_a_full_disk_is_seen_before_anything_is_written(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(DatasetError, match=r"MB are needed, 0\.0 MB are free; free some space"):
        record_small(tmp_path / "dataset")
    assert not (tmp_path / "dataset").exists()


def test_a_file_in_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=r"cannot write .*file/dataset: Not a directory"):
        record_small(tmp_path / "file" / "dataset")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_folder_is_named(tmp_path, copy):
    before = contents(copy)
    for folder in (tmp_path, copy, copy / "episodes"):
        folder.chmod(0o555)
    try:
        with pytest.raises(WriteError, match="Permission denied; make the folder writable"):
            record_small(tmp_path / "new")
        with pytest.raises(WriteError, match="Permission denied; make the folder writable"):
            record_small(copy, seeds=[*TRACKS, 4], resume=True)
    finally:
        for folder in (tmp_path, copy, copy / "episodes"):
            folder.chmod(0o755)
    assert contents(copy) == before


def test_meta_tells_where_the_episodes_come_from(recorded):
    meta = json.loads((recorded / "meta.json").read_text())
    assert meta["env"] == asdict(EnvConfig(max_steps=ENV.max_steps))
    assert meta["driver"] == "controller"
    assert len(meta["driver_sha256"]) == 64
    assert meta["noise"] == {"probability": 0.3, "hold": 4}
    assert meta["versions"].keys() >= {"numpy", "gymnasium", "box2d", "h5py"}
