"""Watch one episode in a window, a video or a page."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from nac_drive.analysis.page import save_episode_page
from nac_drive.analysis.recording import record
from nac_drive.data_collection.drivers import driver_name, env_for, resolve_driver
from nac_drive.envs import (
    SPLITS,
    Control,
    CrashMode,
    EnvConfig,
    Episode,
    Policy,
    Step,
    make_env,
    rollout,
    track_seeds,
)
from nac_drive.envs.perturbations.registry import parse_all
from nac_drive.envs.views import VideoView
from nac_drive.evaluation.video import check_video_path, record_video
from nac_drive.storage.write import require_writable


def watch(
    driver: Policy | str | os.PathLike[str] = "champion",
    track: int = SPLITS["test"][0],
    *,
    video: str | os.PathLike[str] | None = None,
    html: str | os.PathLike[str] | None = None,
    control: Control | None = None,
    crash: CrashMode = "ignore",
    perturbation: str | None = None,
    view: VideoView | None = None,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Episode:
    """Drive one episode for a window, a video or a page.

    Args:
        driver: The driver, its name, or its folder (see `resolve_driver`).
        track: Seed of the track.
        video: The new video file, .mp4, .webm or .gif (see `record_video`).
        html: The new page: frames with saliency, actions, neurons and attention on one time slider, see `inspect`.
            Without it and `video` a window opens.
        control: Control of a shipped driver or the controller; a cloned driver knows its own.
        crash: The effect of a crash, see `CarRacing`.
        perturbation: See `envs.perturb`.
        view: What the video shows, see `record_video`.
        on_step: Called with every step.

    Returns:
        The episode.

    Raises:
        FileExistsError: If the video or the page exists.
        FileNotFoundError: If there is no such driver.
        ValueError: For a driver of another control, a track that `track_seeds` refuses, an unknown perturbation,
            another suffix of the video, a video or page that cannot be written, or both at once, and a `view` without
            a video.
    """
    track_seeds([track])
    if perturbation is not None:
        parse_all(perturbation)
    if video is not None and html is not None:
        raise ValueError("video and html: pass one of them; each drives an episode of its own.")
    if view is not None and video is None:
        raise ValueError("view is what a video shows; pass video, or leave it out: a driver sees the view it learned.")
    if video is not None:
        require_writable(check_video_path(video))
    if html is not None:
        if os.path.lexists(html):
            raise FileExistsError(f"{os.fspath(html)} already exists; choose another file.")
        require_writable(Path(html))
    name = "driver"
    if isinstance(driver, str | os.PathLike):
        name, driver = driver_name(driver), resolve_driver(driver, EnvConfig(control=control) if control else None)
    env = env_for(driver, control, perturbation)
    if video is not None:
        return record_video(video, driver, track, name=name, env=env, crash=crash, view=view, on_step=on_step)
    if html is not None:
        with closing(make_env(env, crash=crash)) as simulator:
            recording = record(
                simulator, driver, track, name=name, perturbation=perturbation, spec=env.spec, on_step=on_step
            )
        save_episode_page(html, [recording], f"{name} on track {track}")
        assert recording.episode
        return recording.episode
    window = make_env(env, crash=crash, render_mode="human")
    try:
        return rollout(window, driver, track, subscribers=[on_step])
    finally:
        window.close()
