"""Collecting gives one dataset, whatever workers and interruptions there are."""

from __future__ import annotations

import errno
import gc
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from nac_drive.data_collection import frame_count
from nac_drive.data_collection.collect import EpisodeJob, add_missing, collect, collect_episode
from nac_drive.data_collection.controller.controller import Controller
from nac_drive.data_collection.dart import ActionNoise, NoiseConfig
from nac_drive.data_collection.dataset.demonstrations import DatasetError, Demonstrations
from nac_drive.data_collection.dataset.episode_file import EncodedEpisode
from nac_drive.data_collection.dataset.rows import row_note
from nac_drive.data_collection.drivers import driver_hash, reported_return, resolve_driver
from nac_drive.data_collection.replay import rebuild, save_action_log
from nac_drive.data_collection.trained_env import env_for
from nac_drive.envs import EnvConfig, Step, make_env, rollout
from nac_drive.events import Event, silent
from nac_drive.parallel import processes
from nac_drive.parallel.processes import Workers
from nac_drive.policies import PRETRAINED
from nac_drive.storage import write as files
from nac_drive.storage.write import WriteError
from tests.data_collection.recordings import ENV, NOISE, TRACKS, collect_small, contents, tracks_of
from tests.killing import Fuse, Killed

REPOSITORY = Path(__file__).parents[2]
TINY = EnvConfig(max_steps=5)
MODULE = import_module("nac_drive.data_collection.collect")  # the name in the package is the function


def test_no_environment_outlives_its_episode(tmp_path):
    gc.collect()
    before = {id(item) for item in gc.get_objects() if isinstance(item, gym.Env)}
    dataset = collect_small(tmp_path / "dataset", env=TINY, seeds=[5])
    gc.collect()
    assert len(dataset) == 1
    assert [item for item in gc.get_objects() if isinstance(item, gym.Env) and id(item) not in before] == []


# The content of a dataset


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
    env = replace(ENV, control=control)
    dataset = collect_small(tmp_path / "dataset", env=env, seeds=[5], seed=9)
    frames = dataset.load()
    assert (frames.labels != frames.actions).any()
    # Two routes to the labels: an expert that is queried while the executed actions are repeated.
    steps: list[Step] = []
    rollout(make_env(env), Repeat(frames.actions), 5, expert=Controller(control), subscribers=[steps.append])
    np.testing.assert_array_equal(frames.labels, [step.expert_action for step in steps])
    np.testing.assert_array_equal(frames.frames, [step.observation for step in steps])
    # And to the executed actions: the noise of this seed and track, applied to the labels.
    noise = ActionNoise(NOISE.probability, NOISE.hold, make_env(env).action_space, (9, 5))
    np.testing.assert_array_equal(frames.actions, [noise(label) for label in frames.labels])


def test_without_noise_the_label_is_executed(tmp_path):
    frames = collect_small(tmp_path / "dataset", noise=None, seeds=[5]).load()
    np.testing.assert_array_equal(frames.labels, frames.actions)


def test_noise_depends_on_its_seed_and_on_the_track(tmp_path, recorded):
    other = collect_small(tmp_path / "dataset", seed=1).load()
    frames = Demonstrations.open(recorded).load()
    assert (other.actions != frames.actions).any()
    episodes = [tuple(frames.actions[a:b]) for a, b in zip(frames.offsets[:-1], frames.offsets[1:], strict=True)]
    assert len(set(episodes)) == len(TRACKS)


class Looks:
    """A driver trained with the status bar. All its copies note what they see."""

    env_config = {"control": "discrete", "mask_bar": False, "max_steps": 1000}
    seen: list[np.ndarray] = []

    def begin(self, env: gym.Env) -> int:
        return 40

    def act(self, observation: np.ndarray, state: int, dt: float) -> tuple[Any, int]:
        self.seen.append(observation)
        return np.int64(3), state + 1


def test_a_driver_trained_with_the_bar_sees_it_while_the_mask_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(Looks, "seen", [])
    monkeypatch.setattr(MODULE, "resolve_driver", lambda spec, env: Looks())
    monkeypatch.setattr(MODULE, "driver_hash", lambda spec, env: "double")
    env = EnvConfig(mask_bar=True, max_steps=8)
    dataset = collect(tmp_path / "dataset", "looks", env=env, seeds=[5])
    masked = dataset.load().frames
    shown = np.stack(Looks.seen)
    assert not masked[:, 84:].any()
    assert shown[:, 84:].any()
    np.testing.assert_array_equal(masked[:, :84], shown[:, :84])
    assert dataset.verify(replay=True) == []


def test_under_perturbations_the_driver_sees_the_true_frames_and_the_perturbed_ones_are_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(Looks, "seen", [])
    monkeypatch.setattr(MODULE, "resolve_driver", lambda spec, env: Looks())
    monkeypatch.setattr(MODULE, "driver_hash", lambda spec, env: "double")
    env = EnvConfig(max_steps=40, perturb="frame-drop:3:zero+action-delay:1")
    dataset = collect(tmp_path / "dataset", "looks", env=env, seeds=[5])
    recorded, shown = dataset.load().frames, np.stack(Looks.seen)
    lost = ~recorded.any(axis=(1, 2, 3))
    assert 5 < lost.sum() < 35
    np.testing.assert_array_equal(recorded[~lost], shown[~lost])
    assert shown[lost].any(axis=(1, 2, 3)).all()
    assert dataset.verify(replay=True) == []


def test_the_labels_of_the_cautious_controller_stop_the_car_while_frames_are_lost(tmp_path):
    env = EnvConfig(max_steps=60, perturb="gap:3")
    cautious, plain = (
        collect(tmp_path / name, name, env=env, seeds=[5]).load() for name in ("cautious-controller", "controller")
    )
    for frames, stops in ((cautious, True), (plain, False)):
        lost = np.flatnonzero(~frames.frames.any(axis=(1, 2, 3)))
        assert len(lost) == 18
        assert (frames.labels[lost[:6]] == 3).any()
        assert (frames.labels[lost[6:]] == 3).any() != stops
    assert Demonstrations.open(tmp_path / "cautious-controller").meta.driver == "cautious-controller"


def test_a_dataset_under_perturbations_in_turn_is_those_of_each_of_them(tmp_path):
    specs, env = ["frame-rate:3", "blackouts:3"], EnvConfig(max_steps=30)
    both = collect(tmp_path / "both", "controller", env=replace(env, perturb=",".join(specs)), seeds=[4, 7])
    assert both.verify(replay=True) == []
    for track, spec in zip((4, 7), specs, strict=True):
        alone = collect(tmp_path / str(track), "controller", env=replace(env, perturb=spec), seeds=[track]).load()
        for name in ("frames", "labels", "rewards", "dt"):
            np.testing.assert_array_equal(getattr(both.load([track]), name), getattr(alone, name), err_msg=name)


def test_a_perturbed_dataset_keeps_the_true_time_and_comes_again_from_its_action_log(tmp_path):
    env = replace(ENV, perturb="frame-rate:3")
    dataset = collect_small(tmp_path / "dataset", env=env)
    assert dataset.meta.env == env
    frames = dataset.load()
    assert set(np.rint(50 * frames.dt).astype(int)) == {0, 1, 2, 3, 4, 5}
    clean = make_env(replace(env, perturb=None))
    for first, end, track in zip(frames.offsets[:-1], frames.offsets[1:], frames.seeds, strict=True):
        assert 12 <= end - first <= 30
        clean.reset(seed=int(track))
        for i in range(first, end - 1):  # the held action leads to the next query's frame
            for _ in range(round(50 * frames.dt[i + 1])):
                observation, *_ = clean.step(frames.actions[i])
            np.testing.assert_array_equal(frames.frames[i + 1], observation)
    save_action_log(dataset, tmp_path / "log.npz")
    again = rebuild(tmp_path / "log.npz", tmp_path / "again")
    assert contents(again.path) == contents(dataset.path)


def test_the_return_without_noise_is_the_one_that_a_shipped_drivers_card_reports():
    for control, expected in (("discrete", 918.0), ("continuous", 935.0)):
        env = EnvConfig(control)  # type: ignore[arg-type]
        sha256 = driver_hash("expert", env)
        assert reported_return("expert", sha256, env) == expected
        card = Path(PRETRAINED[f"expert-{control}"], "README.md").read_text()
        assert f"| test-100 | {expected:.0f} ± " in card
        assert reported_return("expert", "0" * 64, env) is None  # another driver of that name
        assert reported_return("mine", sha256, env) is None
        assert reported_return("expert", sha256, replace(env, max_steps=500)) is None
        assert reported_return("expert", sha256, replace(env, perturb="gap:1")) is None


def test_a_card_reports_the_return_of_its_own_control():
    pulsed = EnvConfig("pulsed")
    for name in ("expert", "expert-continuous"):
        assert reported_return(name, driver_hash(name, pulsed), pulsed) is None
    for name in PRETRAINED.keys() - {"robust-champion-continuous", "robust-champion-pulsed"}:  # they report 30 tracks
        env = env_for(resolve_driver(name))
        assert reported_return(name, driver_hash(name, env), env), name


# Workers and interruptions


def test_the_number_of_workers_does_not_show(tmp_path, recorded):
    events: list[Event] = []
    keep = lambda event: None if event.note.endswith(" frames") else events.append(event)  # noqa: E731
    dataset = collect_small(tmp_path / "dataset", workers=2, progress=keep)
    assert contents(tmp_path / "dataset") == contents(recorded)
    assert dataset.rows == Demonstrations.open(recorded).rows
    assert sorted(event.note for event in events) == sorted(["", *map(row_note, dataset.rows)])
    assert [(event.job, event.done) for event in events] == [("collect (controller)", done) for done in range(4)]
    assert dataset.fingerprint() == Demonstrations.open(recorded).fingerprint()
    assert dataset.verify(replay=True, workers=2) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_frames_are_reported_before_the_last_episode_has_ended(workers, tmp_path, monkeypatch):
    events: list[Event] = []
    monkeypatch.setattr(frame_count, "_SECONDS_BETWEEN_REPORTS", 0.0)
    monkeypatch.setattr(processes, "_PATIENCE", 0.001)
    env, seeds = EnvConfig(max_steps=100), [5, 6]
    collect(tmp_path / "data", "controller", env=env, seeds=seeds, workers=workers, progress=events.append)
    reports = [(event.done, int(event.note.split()[0])) for event in events if event.note.endswith(" frames")]
    assert reports
    assert reports == sorted(set(reports))
    assert {frames for _, frames in reports} <= {*range(25, 225, 25)}
    assert {event.total for event in events} == {2}
    if workers == 1:
        assert reports == [(done, 100 * done + frames) for done in (0, 1) for frames in (25, 50, 75, 100)]


def test_frames_of_several_processes_are_counted(tmp_path):
    with frame_count.frame_count() as count:
        assert count
        with Workers(2) as pool:
            list(pool.imap_unordered(partial(_count, count), [60, 130]))
        assert count.frames == 50 + 125
    assert not count.path.exists()
    for _ in range(25):
        count(None)  # type: ignore[arg-type]  # a process without the file goes on
    assert count.frames == 0


def test_a_recording_without_a_place_for_temporary_files_is_complete(tmp_path, monkeypatch, recorded):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert contents(collect_small(tmp_path / "dataset").path) == contents(recorded)


def _count(count: frame_count.FrameCount, steps: int) -> None:
    for _ in range(steps):
        count(None)  # type: ignore[arg-type]


def test_killed_by_the_system_it_loses_no_finished_episode_and_ends_the_same(tmp_path, recorded):
    """The test below dies at every operation of one process. This one kills a parent and its workers for real."""
    path = tmp_path / "dataset"
    script = (
        "import sys; from pathlib import Path; from tests.data_collection.recordings import collect_small\n"
        "if __name__ == '__main__':\n"
        "    progress = lambda event: event.note.startswith('track') and print(event.note, flush=True)\n"
        "    collect_small(Path(sys.argv[1]), workers=2, progress=progress)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], cwd=REPOSITORY, start_new_session=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"track ")  # the row of the first episode is written
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    files = list(path.glob("episodes/*.h5"))
    assert len(files) >= len(Demonstrations.open(path).rows) >= 1
    again: list[Event] = []
    collect_small(path, resume=True, progress=again.append)
    assert contents(path) == contents(recorded)
    assert len(tracks_of(again)) == len(TRACKS) - len(files)  # whole files are kept, with a row or without


@pytest.mark.slow
def test_killed_at_any_system_call_it_resumes_to_the_same_dataset(tmp_path, monkeypatch):
    whole = collect_small(tmp_path / "whole", env=TINY, seeds=[1, 2]).path
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
                collect_small(path, env=TINY, seeds=[1, 2])
                break
            except Killed:
                pass
        collect_small(path, env=TINY, seeds=[1, 2], resume=path.exists())
        assert contents(path) == contents(whole), f"killed at call {moment}"
        moment += 1
    assert moment >= 4 * 2 + 6  # write, rename, folder and row of each episode, and the making of the folder


def test_a_row_cut_off_anywhere_costs_nothing(copy, recorded):
    rows = (recorded / "episodes.jsonl").read_bytes()
    last = rows[:-1].rfind(b"\n") + 1
    for cut in {*range(last, len(rows), 40), last + 1, len(rows) - 1}:
        (copy / "episodes.jsonl").write_bytes(rows[:cut])
        assert Demonstrations.open(copy).seeds == TRACKS[:2]
        again: list[Event] = []
        collect_small(copy, resume=True, progress=again.append)
        assert tracks_of(again) == []  # the episode's file was whole and is adopted
        assert contents(copy) == contents(recorded)


def test_resuming_repairs_damaged_episodes_and_adds_tracks(copy, recorded):
    data = bytearray((copy / "episodes" / "000001.h5").read_bytes())
    data[-100] ^= 1
    (copy / "episodes" / "000001.h5").write_bytes(data)
    (copy / "episodes" / "000002.h5").unlink()
    (copy / "episodes" / "000002.h5.1.tmp").write_bytes(b"half")
    again: list[Event] = []
    collect_small(copy, resume=True, progress=again.append)
    assert tracks_of(again) == TRACKS[1:]
    assert [event.done for event in again] == [1, 2, 3]
    assert contents(copy) == contents(recorded)
    longer = collect_small(copy, seeds=[*TRACKS, 4], resume=True)
    assert longer.seeds == [*TRACKS, 4]
    assert longer.rows[:3] == Demonstrations.open(recorded).rows
    assert longer.verify() == []


def collect_or_die(job: EpisodeJob, task: tuple[int, int]) -> EncodedEpisode:
    if task[0] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return collect_episode(job, task)


def test_a_worker_that_dies_ends_the_collection_with_one_line(tmp_path, recorded):
    path, meta = tmp_path / "dataset", Demonstrations.open(recorded).meta
    dataset = Demonstrations.create(path, meta)
    episode = partial(collect_or_die, EpisodeJob(pickle.dumps(resolve_driver("controller")), meta))
    with pytest.raises(DatasetError, match=r"one of 2 worker processes died, .*fewer workers") as caught:
        add_missing(dataset, episode, list(enumerate(TRACKS)), 2, silent, "collect")
    assert "\n" not in str(caught.value)
    collect_small(path, resume=True)
    assert contents(path) == contents(recorded)


def test_a_driver_that_fails_at_once_leaves_nothing(tmp_path):
    """One that fails later keeps its episodes."""
    path, env = tmp_path / "data", EnvConfig(max_steps=5)

    def drive(observation: np.ndarray) -> int:
        return 3 if mended and not list(path.glob("episodes/*.h5")) else 7

    for mended in (False, False, True):
        with pytest.raises(ValueError, match="frame 0"):
            collect(path, drive, seeds=[1, 2], env=env)
        assert (path / "meta.json").exists() == mended
    assert [row["seed"] for row in Demonstrations.open(path).rows] == [1]


# Refusals: one line, nothing touched


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"env": replace(ENV, mask_bar=True)}, "env.mask_bar: dataset has False, got True"),
        ({"noise": NoiseConfig(0.3, 5)}, "noise.hold: dataset has 4, got 5"),
        ({"noise": None}, "noise"),
        ({"seed": 1}, "seed: dataset has 0, got 1"),
        ({"seeds": [11, 4, 7]}, "episode 1 is on track 3, got 4"),
        ({"seeds": [11]}, "episodes, more than the 1 asked for; ask for as many"),
    ],
)
def test_resuming_something_else_is_refused(copy, changed, message):
    (copy / "episodes" / "left.h5.1.tmp").write_bytes(b"half")
    before = contents(copy)
    with pytest.raises(DatasetError) as caught:
        collect_small(copy, resume=True, **changed)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(copy) == before


def test_resuming_another_driver_is_refused(copy, monkeypatch):
    before = contents(copy)
    monkeypatch.setattr(MODULE, "driver_hash", lambda spec, env: "retrained")
    with pytest.raises(DatasetError, match=r"driver_sha256: dataset has '.*', got 'retrained'"):
        collect_small(copy, resume=True)
    assert contents(copy) == before


def test_existing_missing_and_foreign_folders_are_refused(copy, tmp_path):
    before = contents(copy)
    with pytest.raises(FileExistsError, match="--resume"):
        collect_small(copy)
    assert contents(copy) == before
    with pytest.raises(DatasetError, match="nothing to resume"):
        collect_small(tmp_path / "typo", resume=True)
    assert not (tmp_path / "typo").exists()
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter.tex").write_text("all my work")
    for resume, error in ((False, FileExistsError), (True, DatasetError)):
        with pytest.raises(error):
            collect_small(thesis, resume=resume)
    assert contents(thesis) == {"chapter.tex": b"all my work"}


def test_a_bad_driver_or_argument_leaves_no_folder(tmp_path):
    path = tmp_path / "dataset"
    with pytest.raises((ValueError, OSError), match="no_such_driver"):
        collect(path, str(tmp_path / "no_such_driver"), env=TINY, seeds=[1])
    for seeds in ([], [1, 1], [-1]):
        with pytest.raises(ValueError, match=r"seeds must (name at least one|name every track once|be whole)"):
            collect_small(path, seeds=seeds)
    with pytest.raises(ValueError, match=r"workers must lie in 0 to .*, got -1"):
        collect_small(path, workers=-1)
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
            collect_small(path)
    assert "000001.h5" in str(caught.value)
    assert "\n" not in str(caught.value)
    dataset = Demonstrations.open(path)
    assert dataset.seeds == TRACKS[:1]
    assert dataset.verify() == []
    assert not list(path.rglob("*.tmp"))
    collect_small(path, resume=True)
    assert contents(path) == contents(recorded)


def test_a_full_disk_is_seen_before_anything_is_written(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(DatasetError, match=r"MB are needed, 0\.0 MB are free; free some space"):
        collect_small(tmp_path / "dataset")
    assert not (tmp_path / "dataset").exists()


def test_a_file_in_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=r"cannot write .*file/dataset: Not a directory"):
        collect_small(tmp_path / "file" / "dataset")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_folder_is_named(tmp_path, copy):
    before = contents(copy)
    for folder in (tmp_path, copy, copy / "episodes"):
        folder.chmod(0o555)
    try:
        with pytest.raises(WriteError, match="Permission denied; make the folder writable"):
            collect_small(tmp_path / "new")
        with pytest.raises(WriteError, match="Permission denied; make the folder writable"):
            collect_small(copy, seeds=[*TRACKS, 4], resume=True)
    finally:
        for folder in (tmp_path, copy, copy / "episodes"):
            folder.chmod(0o755)
    assert contents(copy) == before


def test_meta_names_the_origin_of_the_episodes(recorded):
    meta = json.loads((recorded / "meta.json").read_text())
    assert {**meta["env"], "perturb": None} == json.loads(json.dumps(asdict(ENV)))
    assert meta["driver"] == "controller"
    assert len(meta["driver_sha256"]) == 64
    assert meta["noise"] == {"probability": 0.3, "hold": 4}
    assert meta["versions"].keys() >= {"numpy", "gymnasium", "box2d", "h5py"}
