"""Videos: the right number of images of the right size, or no file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio.v3 as iio
import numpy as np
import pytest

from nac_drive.analysis.watch import watch
from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import ENVIRONMENTS, FRAMES_PER_SECOND, CarRacing, EnvConfig, make_env, rollout
from nac_drive.evaluation import video
from nac_drive.evaluation.video import GIF_EVERY, VIDEO_FPS, draw_overlay, record_video, side_by_side

IMAGES_PER_FRAME = VIDEO_FPS / FRAMES_PER_SECOND
LENGTHS = (6, 2)


def frames_of(path: Path) -> np.ndarray:
    return np.stack(list(iio.imiter(path, plugin="pyav")))


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("videos")
    paths = [folder / "new" / f"{length}.mp4" for length in LENGTHS]
    for path, length in zip(paths, LENGTHS, strict=True):
        env = EnvConfig(max_steps=length)
        episode = record_video(path, Controller(), 5, name="controller", env=env)
        assert episode == rollout(make_env(env), Controller(), 5)  # recording changes nothing
    return paths


def test_a_video_has_its_images_and_plays_in_real_time(videos):
    for path, length in zip(videos, LENGTHS, strict=True):
        frames = frames_of(path)
        assert frames.shape == (length * IMAGES_PER_FRAME, 400, 600, 3)
        assert iio.immeta(path, plugin="pyav")["fps"] == VIDEO_FPS
    assert sorted(file.name for file in videos[0].parent.iterdir()) == ["2.mp4", "6.mp4"]


def test_lost_frames_do_not_stop_time(tmp_path):
    env = EnvConfig(max_steps=13)
    episode = record_video(tmp_path / "episode.mp4", Controller(), 5, name="c", env=env, perturbation="frame-rate:3")
    assert episode.length < 7
    assert len(frames_of(tmp_path / "episode.mp4")) == 7  # 13 frames of the simulator, every second one


class Slow(gym.Wrapper):
    """CarRacing as if its frames were 1/30 s apart."""

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, info | {"dt": 1 / 30}


def test_a_video_of_another_frame_rate_plays_in_real_time(tmp_path, monkeypatch):
    spec = replace(
        ENVIRONMENTS["car-racing"], make=lambda config, crash, mode: Slow(CarRacing(mode)), frames_per_second=30
    )
    monkeypatch.setitem(ENVIRONMENTS, "slow", spec)
    env = EnvConfig(environment="slow", max_steps=6)
    record_video(tmp_path / "episode.mp4", Controller(), 5, name="c", env=env)
    assert len(frames_of(tmp_path / "episode.mp4")) == 6 / 30 * VIDEO_FPS


def test_side_by_side_keeps_the_last_image_of_the_shorter_one(videos, tmp_path):
    side_by_side(tmp_path / "both.mp4", videos)
    both, (longer, shorter) = frames_of(tmp_path / "both.mp4"), map(frames_of, videos)
    assert both.shape == (len(longer), 400, 1200, 3)
    halves = both[:, :, :600].astype(int), both[:, :, 600:].astype(int)
    for i in range(len(longer)):
        assert np.abs(halves[0][i] - longer[i]).mean() < 4  # encoded twice
        assert np.abs(halves[1][i] - shorter[min(i, len(shorter) - 1)]).mean() < 4


@pytest.mark.parametrize("suffix", [".webm", ".gif"])
def test_the_suffix_decides_the_format(suffix, videos, tmp_path):
    path = tmp_path / f"episode{suffix}"
    record_video(str(path), Controller(), 5, name="controller", env=EnvConfig(max_steps=LENGTHS[0]))
    assert path.read_bytes()[:4] == {".webm": b"\x1aE\xdf\xa3", ".gif": b"GIF8"}[suffix]
    plain = frames_of(videos[0])  # the same episode
    if suffix == ".gif":
        images = np.stack(list(iio.imiter(path, plugin="pillow", mode="RGB")))
        assert iio.immeta(path, plugin="pillow")["duration"] == 80  # ms
        plain = plain[::GIF_EVERY, ::2, ::2]
    else:
        images = frames_of(path)
        assert iio.immeta(path, plugin="pyav")["fps"] == VIDEO_FPS
    assert images.shape == plain.shape
    assert np.abs(images.astype(int) - plain).mean() < 6
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["lap.avi", "lap", "lap.mp4.txt"])
def test_another_suffix_is_refused_before_anything_is_driven(name, tmp_path):
    message = rf"video must end in .mp4, .webm or .gif, got '.*{name}'."
    with pytest.raises(ValueError, match=message):
        record_video(tmp_path / name, None, 5, name="nobody")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        watch("no such driver", video=tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_video_is_not_overwritten(tmp_path):
    path = tmp_path / "episode.mp4"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="already exists; choose another file"):
        record_video(path, Controller(), 5, name="controller", env=EnvConfig(max_steps=2))
    assert path.read_text() == "mine"


def test_an_episode_that_fails_leaves_no_file(tmp_path):
    class Fails(Controller):
        frames = 0

        def act(self, observation: np.ndarray, state: Any, dt: float) -> tuple[Any, Any]:
            self.frames += 1
            if self.frames == 5:
                raise KeyboardInterrupt
            return super().act(observation, state, dt)

    with pytest.raises(KeyboardInterrupt):
        record_video(tmp_path / "episode.mp4", Fails(), 5, name="fails", env=EnvConfig(max_steps=10))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".gif"])
def test_files_of_others_stay_and_those_of_a_killed_process_go(suffix, tmp_path):
    path = tmp_path / f"lap{suffix}"
    mine = [tmp_path / name for name in (f"lap.tmp{suffix}", f"lap{suffix}.tmp", f"lap{suffix}.x.tmp")]
    mine.append(tmp_path / f"lap{suffix}.{os.getpid()}0.{os.getpid()}.tmp")
    mine.append(tmp_path / f"lap{suffix}.{os.getppid()}.tmp")  # of a process that runs
    for file in mine:
        file.write_text("mine")
    (tmp_path / f"lap{suffix}.{2**31 - 1}.tmp").write_text("of a process that was killed")
    record_video(path, Controller(), 5, name="controller", env=EnvConfig(max_steps=2))
    assert set(tmp_path.iterdir()) == {path, *mine}
    assert all(file.read_text() == "mine" for file in mine)


def test_a_file_that_comes_while_the_video_is_made_is_not_overwritten(tmp_path):
    path = tmp_path / "lap.mp4"
    with pytest.raises(FileExistsError, match="already exists"):
        record_video(
            path, Controller(), 5, name="c", env=EnvConfig(max_steps=1), on_step=lambda _: path.write_text("mine")
        )  # fmt: skip
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("track", "message"), [(-1, "whole numbers"), (2**63, "whole numbers"), (1.5, "whole")])
def test_no_track_is_refused_before_a_file_is_made(track, message, tmp_path):
    for make in (lambda: watch("no such driver", track, video=tmp_path / "new" / "lap.mp4"),
                 lambda: record_video(tmp_path / "new" / "lap.mp4", Controller(), track, name="c")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            make()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_the_overlay_shows_action_progress_and_crashes(control):
    steps: list[Any] = []
    rollout(make_env(EnvConfig(control, max_steps=3)), Controller(control), 5, subscribers=[steps.append])
    step = steps[-1]
    plain = np.full((400, 600, 3), 100, np.uint8)

    def drawn(**changed: Any) -> np.ndarray:
        from dataclasses import replace

        image = plain.copy()
        action = changed.pop("action", step.action)
        draw_overlay(image, replace(step, action=action, outcome={**step.outcome, **changed}), "me", 5, 0.06, 12.5)
        return image

    calm = drawn()
    assert (calm[60:, 5:-5] == 100).all()
    left, right = (2, 1) if control == "discrete" else (np.array([-0.6, 0, 0]), np.array([0.6, 0, 0]))
    assert (drawn(action=left) != drawn(action=right)).any()
    assert (drawn(completion=0.9) != drawn(completion=0.1)).any()
    assert (drawn(off_road=True) != calm).any()
    assert (drawn(crash="off_road") != drawn(off_road=True)).any()


@pytest.mark.parametrize("name", ["W" * 25, "a_driver_" * 12, "i" * 200])
def test_a_long_name_leaves_the_return_alone(name):
    """The rest is as with a short name."""
    steps: list[Any] = []
    rollout(make_env(EnvConfig(max_steps=1)), Controller(), 5, subscribers=[steps.append])
    images = np.full((2, 400, 600, 3), 100, np.uint8)
    for image, text in zip(images, ("me", name), strict=True):
        draw_overlay(image, steps[0], text, 5, 0.02, 12.5)
    assert (images[0, :, 245:] == images[1, :, 245:]).all()
    assert (images[0, :25, 180:245] != images[1, :25, 180:245]).any()


def test_a_warning_stands_on_a_dark_ground():
    """On grass too."""
    steps: list[Any] = []
    rollout(make_env(EnvConfig(max_steps=1)), Controller(), 5, subscribers=[steps.append])
    for crash, off_road in (("off_road", True), (None, True)):
        image = np.full((400, 600, 3), (102, 229, 102), np.uint8)
        outcome = {**steps[0].outcome, "crash": crash, "off_road": off_road}
        draw_overlay(image, replace(steps[0], outcome=outcome), "me", 5, 0.02, 12.5)
        corner = np.array([56, 6])
        written = corner + np.argwhere(image[56:-6, 6:-6, 0] > 150)  # red and amber, no grass
        (top, left), (bottom, right) = written.min(axis=0), written.max(axis=0)
        assert 60 < right < 300
        assert image[top - 2, left:right].max() < 80
        assert image[bottom + 2, left:right].max() < 80


def test_a_video_shows_the_view_that_is_asked_for_whatever_the_driver_sees(tmp_path):
    """Both views of the same moments: the halves of one video are the other two videos."""
    shown = {}
    for view, driven in (("above", "seat"), ("seat", "above"), ("both", "above"), (None, "seat")):
        path = tmp_path / f"{view}.mp4"
        record_video(path, Controller(), 5, name="c", env=EnvConfig(max_steps=2, view=driven), view=view)  # type: ignore[arg-type]
        shown[view] = frames_of(path)[-1, 60:].astype(int)  # below the banner
    left, right = shown["both"][:, :600], shown["both"][:, 600:]
    for half, name, other in ((left, "above", "seat"), (right, "seat", "above")):
        assert abs(half - shown[name]).mean() < 4 < 10 < abs(half - shown[other]).mean()
    assert abs(shown[None] - shown["seat"]).mean() < 4
    with pytest.raises(ValueError, match="view 'seat' is none of 'udacity'"):
        record_video(tmp_path / "x.mp4", Controller(), 5, name="c", env=EnvConfig(environment="udacity"), view="seat")


@pytest.mark.parametrize("crash", [70, 71])
@pytest.mark.parametrize("end", [74, 75])
def test_a_crash_stays_for_a_second_and_the_end_is_shown(crash, end, monkeypatch):
    """A crash between two images was never seen."""
    shown: list[tuple[str | None, float]] = []
    monkeypatch.setattr(
        video, "draw_overlay", lambda frame, step, *rest: shown.append((step.outcome["crash"], round(50 * rest[2])))
    )
    steps: list[Any] = []
    env = make_env(EnvConfig("continuous", max_steps=1))
    rollout(env, Controller("continuous"), 5, subscribers=[steps.append])
    image = np.zeros((400, 600, 3), np.uint8)
    overlay = video._Overlay(env, ENVIRONMENTS["car-racing"], "me", 5, lambda _: image, lambda _: None)
    for number in range(1, end + 1):
        outcome = {**steps[0].outcome, "crash": "off_road" if number == crash else None, "dt": 0.02}
        overlay(replace(steps[0], outcome=outcome, terminated=number == end))
    assert shown[-1] == ("off_road", end)
    assert {frame for kind, frame in shown if kind} == {frame for _, frame in shown if frame >= crash}
