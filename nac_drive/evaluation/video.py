"""Videos of driving: one driver with its figures in the picture, or several side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import cv2
import gymnasium as gym
import imageio.v3 as iio
import numpy as np

from nac_drive.envs import FRAMES_PER_SECOND, CrashMode, Driver, EnvConfig, Episode, Step, make_env, perturb, rollout
from nac_drive.evaluation.metrics import steering_of

VIDEO_FPS = 25
_FRAMES_PER_PICTURE = FRAMES_PER_SECOND // VIDEO_FPS
_BANNER = 52
_WHITE, _GREY, _GREEN, _RED, _AMBER = (255, 255, 255), (170, 170, 170), (90, 220, 90), (235, 60, 60), (245, 180, 60)


def record_video(
    path: Path,
    driver: Driver,
    seed: int,
    *,
    name: str,
    env: EnvConfig | None = None,
    crash: CrashMode = "ignore",
    perturbation: str = "",
    on_step: Callable[[Step], None] = lambda step: None,
) -> Episode:
    """Drive the track of `seed` and write it to the mp4 `path`, 600x400, 25 pictures/s, in real time; pictures are
    streamed, never held in memory. Under a `perturbation` (see `envs.perturb`) it shows the world, not what the driver
    sees; a step that lasts longer than a picture is shown as often.

    Raises FileExistsError when `path` exists.
    """
    if path.exists():
        raise FileExistsError(f"video {path} already exists; choose another name.")
    path.parent.mkdir(parents=True, exist_ok=True)
    car_racing = perturb(make_env(env, crash=crash, render_mode="rgb_array"), perturbation)
    try:
        with _writer(path) as write:
            return rollout(car_racing, driver, seed, subscribers=[_Overlay(car_racing, name, seed, write), on_step])
    finally:
        car_racing.close()


def side_by_side(path: Path, videos: Sequence[Path]) -> None:
    """Join videos of equal height into one mp4; one that ends early keeps its last frame."""
    with ExitStack() as stack:
        write = stack.enter_context(_writer(path))
        streams = [iter(iio.imiter(video, plugin="pyav")) for video in videos]
        frames = [next(stream) for stream in streams]
        while True:
            write(np.concatenate(frames, axis=1))
            following = [next(stream, None) for stream in streams]
            if all(frame is None for frame in following):
                return
            frames = [old if new is None else new for old, new in zip(frames, following, strict=True)]


@contextmanager
def _writer(path: Path) -> Iterator[Any]:
    """A function that appends one (H, W, 3) frame; the file appears under its name when all are written."""
    temporary = path.with_name(path.stem + ".tmp.mp4")
    try:
        with iio.imopen(temporary, "w", plugin="pyav") as file:
            file.init_video_stream("libx264", fps=VIDEO_FPS)
            yield file.write_frame
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class _Overlay:
    """Subscribes to a rollout; draws action, return, progress, off-road state and latency on each rendered frame."""

    def __init__(self, env: gym.Env, name: str, seed: int, write: Any):
        self.env, self.name, self.seed, self.write = env, name, seed, write
        self.episode_return = 0.0
        self.frames = self.pictures = 0

    def __call__(self, step: Step) -> None:
        self.episode_return += step.reward
        self.frames += round(step.outcome["dt"] * FRAMES_PER_SECOND)
        due = -(-self.frames // _FRAMES_PER_PICTURE) - self.pictures
        if not due:
            return
        frame = np.ascontiguousarray(self.env.render())
        draw_overlay(frame, step, self.name, self.seed, self.frames / FRAMES_PER_SECOND, self.episode_return)
        for _ in range(due):
            self.write(frame)
        self.pictures += due


def draw_overlay(frame: np.ndarray, step: Step, name: str, seed: int, seconds: float, episode_return: float) -> None:
    """Draw on `frame` (400, 600, 3) uint8, in place; `seconds` and `episode_return` are those after `step`."""
    width = frame.shape[1]
    frame[:_BANNER] = (frame[:_BANNER] * 0.3).astype(np.uint8)
    outcome = step.outcome
    _text(frame, name, (12, 22), _WHITE, 0.62, 2)
    _text(frame, f"track {seed}   {seconds:4.1f} s   {1000 * step.latency:.1f} ms/act", (12, 43), _GREY, 0.42, 1)
    _text(frame, f"return {episode_return:6.1f}", (250, 22), _WHITE, 0.55, 1)
    cv2.rectangle(frame, (250, 33), (410, 44), _GREY, 1)
    cv2.rectangle(frame, (251, 34), (251 + int(158 * outcome["completion"]), 43), _GREEN, -1)
    _text(frame, f"{100 * outcome['completion']:.0f} %", (418, 43), _WHITE, 0.42, 1)
    _draw_action(frame, step.action, (width - 76, 26))
    if outcome["crash"] or outcome["off_road"]:
        color = _RED if outcome["crash"] else _AMBER
        cv2.rectangle(frame, (1, _BANNER), (width - 2, frame.shape[0] - 2), color, 3)
        label = f"CRASH: {outcome['crash'].replace('_', ' ')}" if outcome["crash"] else "OFF ROAD"
        _text(frame, label, (12, _BANNER + 24), color, 0.6, 2)


def _draw_action(frame: np.ndarray, action: Any, centre: tuple[int, int]) -> None:
    """A steering bar with, right of it, gas (green, up) and brake (red, down)."""
    x, y = centre
    if np.ndim(action):
        gas, brake = float(action[1]), float(action[2])
    else:
        gas, brake = float(action == 3), float(action == 4)
    steer = steering_of(action)
    cv2.rectangle(frame, (x - 42, y - 6), (x + 42, y + 6), _GREY, 1)
    cv2.rectangle(frame, (x, y - 5), (x + int(42 * steer), y + 5), _WHITE, -1)
    cv2.line(frame, (x, y - 9), (x, y + 9), _GREY, 1)
    cv2.rectangle(frame, (x + 54, y - 18), (x + 64, y + 18), _GREY, 1)
    if gas:
        cv2.rectangle(frame, (x + 55, y - int(17 * gas)), (x + 63, y), _GREEN, -1)
    if brake:
        cv2.rectangle(frame, (x + 55, y), (x + 63, y + int(17 * brake)), _RED, -1)


def _text(frame: np.ndarray, text: str, at: tuple[int, int], color: Any, scale: float, thickness: int) -> None:
    cv2.putText(frame, text, at, cv2.FONT_HERSHEY_SIMPLEX, scale, color, thickness, cv2.LINE_AA)
