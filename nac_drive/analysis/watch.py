"""Watch one episode in a window, a video or a page."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from nac_drive.analysis.page import save_episode_page
from nac_drive.analysis.recording import record
from nac_drive.arguments import checks_shared_arguments
from nac_drive.data_collection.drivers import AnyDriver, driver_name, driving_device, on_device, resolve_driver
from nac_drive.data_collection.trained_env import env_for
from nac_drive.envs import (
    SPLITS,
    Control,
    CrashMode,
    EnvConfig,
    Episode,
    Step,
    make_env,
    rollout,
    track_seeds,
)
from nac_drive.envs.config import in_views
from nac_drive.envs.perturbations.registry import parse_all
from nac_drive.envs.views import VideoView
from nac_drive.evaluation.video import check_video_path, record_video
from nac_drive.events import Event
from nac_drive.notebook import automatic, in_notebook, opens_windows, player
from nac_drive.storage.write import require_new, require_writable

_SMALL = {"crf": "30"}
"""Options of the codec: half a megabyte for an episode."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class WatchedEpisode(Episode):
    """An episode with its video, which a notebook plays."""

    video: bytes = b""
    """The content of the file."""
    kind: str = ".mp4"
    """The suffix of the file."""

    def _repr_html_(self) -> str:
        return player(self.video, self.kind) + Episode._repr_html_(self)


def bar_of(job: str, step: Step) -> Event:
    """Return the progress of an episode."""
    total = EnvConfig.max_steps
    return Event(job, total if step.terminated or step.truncated else min(step.index + 1, total), total)


@checks_shared_arguments
def watch(
    driver: AnyDriver = "champion",
    track: int = SPLITS["test"][0],
    *,
    video: str | os.PathLike[str] | None = None,
    html: str | os.PathLike[str] | None = None,
    control: Control | None = None,
    crash: CrashMode = "ignore",
    perturbation: str | None = None,
    device: str = "cpu",
    view: VideoView | None = None,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Episode:
    """Drive one episode for a window, a video or a page.

    Args:
        driver: The driver, its name, or its folder (see `resolve_driver`).
        track: Seed of the track.
        video: The new video file, .mp4, .webm or .gif (see `record_video`).
        html: The new page: frames with saliency, actions, neurons and attention on one time slider, see `inspect`.
            Without it and `video` a window opens, or where none can open, as in a notebook, the episode has its video.
        control: Control of a shipped driver or the controller; a cloned driver knows its own.
        crash: The effect of a crash, see `CarRacing`.
        perturbation: See `envs.perturb`.
        device: Of a network, `auto`, `cpu` or `cuda`; also of its saliency maps.
        view: What the video shows, see `record_video`, or what the page shows beside the view of the driver, see
            `inspect`.
        on_step: Called with every step.

    Returns:
        The episode; a `WatchedEpisode`, which a notebook plays, instead of a window, and of a `video` in a notebook.

    Raises:
        FileExistsError: If the video or the page exists.
        FileNotFoundError: If there is no such driver.
        ValueError: For a device that is not there, a driver of another control, a track that `track_seeds` refuses, an
            unknown perturbation, another suffix of the video, a video or page that cannot be written, or both at once,
            and a `view` of a window.
    """
    track_seeds([track])
    device = driving_device(device)
    if perturbation is not None:
        parse_all(perturbation)
    if video is not None and html is not None:
        raise ValueError("video and html: pass one of them; each drives an episode of its own.")
    if view is not None and video is None and html is None:
        raise ValueError("view is what a video or a page shows; pass one of them, or leave it out for a window.")
    if video is not None:
        require_writable(check_video_path(video))
    if html is not None:
        require_new(html)
        require_writable(Path(html))
    name, driver = driver_name(driver), resolve_driver(driver, EnvConfig(control=control) if control else None)
    driver = on_device(driver, device)
    env = env_for(driver, control, perturbation)

    def on_each(step: Step) -> None:
        automatic(bar_of(f"{name} on track {track}", step))
        on_step(step)

    film = partial(record_video, driver=driver, seed=track, name=name, env=env, crash=crash, on_step=on_each)
    if video is not None:
        episode = film(video, view=view)
        return _with_video(episode, Path(video)) if in_notebook() else episode
    if html is not None:
        in_views(env, view)  # a view that it does not have is refused
        with closing(make_env(env, crash=crash)) as simulator:
            recording = record(
                simulator, driver, track, name=name, perturbation=perturbation, spec=env.spec, view=view,
                on_step=on_each,
            )  # fmt: skip
        require_new(html)  # a file may have come in the meantime
        save_episode_page(html, [recording], f"{name} on track {track}")
        assert recording.episode
        return recording.episode
    if not opens_windows():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "episode.mp4"
            return _with_video(film(path, options=_SMALL), path)
    window = make_env(env, crash=crash, render_mode="human")
    try:
        return rollout(window, driver, track, subscribers=[on_each])
    finally:
        window.close()


def _with_video(episode: Episode, path: Path) -> WatchedEpisode:
    """Return an episode with the video of a file."""
    values = {item.name: getattr(episode, item.name) for item in fields(episode)}
    return WatchedEpisode(**values, video=path.read_bytes(), kind=path.suffix)
