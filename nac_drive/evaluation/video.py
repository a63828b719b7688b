"""Videos of driving: one driver, or several side by side.

Telemetry is drawn on the images of one driver.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import cv2
import gymnasium as gym
import imageio.v3 as iio
import numpy as np
from PIL import Image

from nac_drive.arguments import checks_shared_arguments, path_of, value_text
from nac_drive.data_collection.dataset.sources import one_or_several
from nac_drive.data_collection.drivers import AnyDriver, resolve_driver
from nac_drive.data_collection.trained_env import env_for
from nac_drive.envs import (
    CrashMode,
    EnvConfig,
    EnvSpec,
    Episode,
    Step,
    make_env,
    rollout,
    track_seeds,
)
from nac_drive.envs.config import in_views, with_perturbation
from nac_drive.envs.views import VideoView
from nac_drive.evaluation.formulas import CAR_RACING, steering_of
from nac_drive.plain import whole
from nac_drive.storage.names import shown
from nac_drive.storage.write import remove_leftovers, require_new, temporary_path, writing

VIDEO_FPS = 25
_CRASH_SECONDS = 1  # that a crash stays on the images
GIF_EVERY = 2
"""A GIF holds every second image, at half the size."""
CODECS: dict[str, tuple[str, dict[str, str]]] = {
    ".mp4": ("libx264", {}),
    ".webm": ("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8", "crf": "30", "b": "0"}),
}
"""Codec and options of each suffix; .gif is written by Pillow."""
_HEIGHT, _WIDTH, _BANNER = 400, 600, 52
_WHITE, _GREY, _GREEN, _RED, _AMBER = (255, 255, 255), (170, 170, 170), (90, 220, 90), (235, 60, 60), (245, 180, 60)


@checks_shared_arguments
def record_video(
    path: str | os.PathLike[str],
    driver: AnyDriver,
    seed: int,
    *,
    name: str,
    env: EnvConfig | None = None,
    crash: CrashMode = "ignore",
    perturbation: str | None = None,
    view: VideoView | None = None,
    options: Mapping[str, str] | None = None,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Episode:
    """Drive one episode and write it as a video.

    The video runs in real time, 600x400, 25 images a second.

    The suffix decides the format: .mp4, .webm, or .gif (300x200, 12.5 images a second). Under a perturbation the video
    shows the world, not the observation of the driver. Of another environment it shows `EnvSpec.video_image`. A step
    that lasts longer than an image is shown as often.

    Args:
        path: The new file. It appears under its name when it is complete.
        driver: The driver, see `resolve_driver`.
        seed: Seed of the track.
        name: Name of the driver in the video.
        env: The environment; by default the one in which `evaluate` measures the driver.
        crash: The effect of a crash, see `CarRacing`.
        perturbation: See `envs.perturb`; it replaces the perturbation of `env`.
        view: What the video shows: the view `above` or `seat`, or `both` side by side, 1200x400; by default the view of
            `env`.
        options: Options of the codec instead of those in CODECS, such as {"crf": "30"} for a smaller file.
        on_step: Called with every step.

    Returns:
        The episode.

    Raises:
        FileExistsError: If `path` exists.
        ValueError: For an argument of another type, a view that the environment does not have, another suffix, a seed
            that `track_seeds` refuses, and if the file cannot be written.
    """
    path = check_video_path(path)
    _require_options(options)
    track_seeds([whole("seed", seed)])
    driver = resolve_driver(driver, env)
    env = env or env_for(driver)
    config = with_perturbation(env, perturbation)
    image = _image_of(config, view)
    simulator = make_env(config, crash=crash, render_mode="rgb_array")
    try:
        with _writer(path, new=True, options=options) as write:
            overlay = _Overlay(simulator, config.spec, name, seed, image, write)
            return rollout(simulator, driver, seed, subscribers=[overlay, on_step])
    finally:
        simulator.close()


def side_by_side(
    path: str | os.PathLike[str],
    videos: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    columns: int | None = None,
) -> None:
    """Join videos of equal size into one. A video that ends early keeps its last image.

    Args:
        path: The joined video, see `record_video` for its suffix; an existing file is replaced.
        videos: The videos from left to right, .mp4 or .webm.
        columns: Videos in a line; all of them by default. Places that are left over are black.

    Raises:
        FileNotFoundError: If a video is not there.
        ValueError: For another suffix of `path`, no video, videos of several sizes, and less than one column.
    """
    path = _check_suffix(path)
    names = [os.fspath(video) for video in one_or_several("videos", videos, (str, os.PathLike), "a video")]
    columns = len(names) if columns is None else whole("columns", columns, 1)
    if missing := [name for name in names if not os.path.isfile(name)]:
        raise FileNotFoundError(f"videos: there is no file {missing[0]}; pass videos of record_video.")
    with ExitStack() as stack:
        streams = [iter(iio.imiter(name, plugin="pyav")) for name in names]
        images = [next(stream) for stream in streams]
        if len(sizes := {image.shape for image in images}) > 1:
            raise ValueError(f"videos must have one size, got {sorted(sizes)}; record them in one view.")
        write = stack.enter_context(_writer(path, new=False))
        while True:
            write(_tiled(images, columns))
            following = [next(stream, None) for stream in streams]
            if all(image is None for image in following):
                return
            images = [old if new is None else new for old, new in zip(images, following, strict=True)]


def middle_image(path: str | os.PathLike[str]) -> np.ndarray:
    """Return the middle image (H, W, 3) uint8 of a video.

    Args:
        path: A video of `record_video`, .mp4 or .webm.
    """
    count = iio.improps(os.fspath(path), plugin="pyav").shape[0]
    return iio.imread(os.fspath(path), plugin="pyav", index=count // 2)


def _tiled(images: Sequence[np.ndarray], columns: int) -> np.ndarray:
    """Return images (H, W, 3) as one, line by line."""
    places = [*images, *[np.zeros_like(images[0])] * (-len(images) % columns)]
    lines = [np.concatenate(places[i : i + columns], axis=1) for i in range(0, len(places), columns)]
    return np.concatenate(lines, axis=0)


def check_video_path(path: str | os.PathLike[str]) -> Path:
    """Check the path of a new video.

    Raises:
        FileExistsError: It exists.
        ValueError: No video has its suffix.
    """
    path = _check_suffix(path)
    require_new(path)
    return path


def _require_options(options: Any) -> None:
    """Check options of a codec.

    Raises:
        ValueError: They are no texts by name.
    """
    by_name = isinstance(options, Mapping) and all(isinstance(word, str) for pair in options.items() for word in pair)
    if options is not None and not by_name:
        raise ValueError(f"options must be texts by name, got {value_text(options)}; such as {{'crf': '30'}}.")


def _check_suffix(path: str | os.PathLike[str]) -> Path:
    path = path_of("path", path)
    if path.suffix not in (*CODECS, ".gif"):
        raise ValueError(f"video must end in .mp4, .webm or .gif, got {str(path)!r}.")
    return path


@contextmanager
def _writer(
    path: Path, *, new: bool, options: Mapping[str, str] | None = None
) -> Iterator[Callable[[np.ndarray], None]]:
    """A function that appends one (H, W, 3) image; the file appears under its name when all are written."""
    remove_leftovers(path)
    temporary = temporary_path(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)
    try:
        with _write_gif(temporary, path) if path.suffix == ".gif" else _write_stream(temporary, path, options) as write:
            yield write
        with writing(path):
            if new:  # a file may have come in the meantime
                check_video_path(path)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _write_stream(
    temporary: Path, path: Path, chosen: Mapping[str, str] | None
) -> Iterator[Callable[[np.ndarray], None]]:
    """Errors of the disk name `path`; errors of the code that makes the images pass."""
    codec, options = CODECS[path.suffix]
    options = options if chosen is None else dict(chosen)
    with writing(path):
        container = av.open(str(temporary), "w", format=path.suffix.removeprefix("."))
    try:
        stream: Any = container.add_stream(codec, rate=VIDEO_FPS, options=options)
        stream.pix_fmt = "yuv420p"

        def write(image: np.ndarray) -> None:
            if not stream.codec_context.is_open:
                stream.height, stream.width = image.shape[:2]
            with writing(path):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))

        yield write
        with writing(path):
            container.mux(stream.encode())
    finally:
        with writing(path):
            container.close()


@contextmanager
def _write_gif(temporary: Path, path: Path) -> Iterator[Callable[[np.ndarray], None]]:
    """Images are held in memory, half as large and with a palette each, until the file is written at the end."""
    images: list[Image.Image] = []
    written = 0

    def write(image: np.ndarray) -> None:
        nonlocal written
        if written % GIF_EVERY == 0:
            half = cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
            images.append(Image.fromarray(half).quantize(128, dither=Image.Dither.NONE))
        written += 1

    yield write
    duration = 1000 * GIF_EVERY // VIDEO_FPS
    with writing(path):
        images[0].save(temporary, "GIF", save_all=True, append_images=images[1:], duration=duration, loop=0)


class _Overlay:
    """Subscribes to a rollout and draws on each image.

    It draws action, return, latency and, if they are reported, progress and off-road state.
    """

    def __init__(
        self, env: gym.Env, spec: EnvSpec, name: str, seed: int, image: Callable[[Any], np.ndarray], write: Any
    ):
        self.env, self.spec, self.name, self.seed = env, spec, shown(name), seed
        self.image, self.write = image, write
        self.episode_return = 0.0
        self.frames = self.images = 0
        self._crash, self._crash_until = "", 0

    def __call__(self, step: Step) -> None:
        self.episode_return += step.reward
        rate = self.spec.frames_per_second
        self.frames += round(step.outcome["dt"] * rate)
        if crash := step.outcome.get("crash"):
            self._crash, self._crash_until = crash, self.frames + _CRASH_SECONDS * rate
        elif self.frames < self._crash_until:
            step = replace(step, outcome={**step.outcome, "crash": self._crash})
        seen_last = (step.terminated or step.truncated) and self.frames < self._crash_until  # also between two images
        due = max(-(-self.frames * VIDEO_FPS // rate) - self.images, int(seen_last))
        if not due:
            return
        frame = self.image(self.env.unwrapped)
        draw_overlay(frame, step, self.name, self.seed, self.frames / rate, self.episode_return, self.spec)
        for _ in range(due):
            self.write(frame)
        self.images += due


def _image_of(config: EnvConfig, view: VideoView | None) -> Callable[[Any], np.ndarray]:
    """Return the function from the simulator to an image.

    Raises:
        ValueError: For a view that the environment does not have.
    """
    specs = [env.spec for env in in_views(config, view)]

    def image(simulator: Any) -> np.ndarray:
        frames = (spec.video_image(simulator) if spec.video_image else simulator.state for spec in specs)
        return np.concatenate([_fitted(frame) for frame in frames], axis=1)

    return image


def _fitted(image: np.ndarray) -> np.ndarray:
    """Return an image (H, W, 3) in the video's size."""
    height, width = image.shape[:2]
    if (height, width) == (_HEIGHT, _WIDTH):
        return np.ascontiguousarray(image)
    scale = min(_HEIGHT / height, _WIDTH / width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    top, left = (_HEIGHT - size[1]) // 2, (_WIDTH - size[0]) // 2
    frame = np.zeros((_HEIGHT, _WIDTH, 3), np.uint8)
    frame[top : top + size[1], left : left + size[0]] = cv2.resize(image, size, interpolation=cv2.INTER_NEAREST)
    return frame


def draw_overlay(
    frame: np.ndarray,
    step: Step,
    name: str,
    seed: int,
    seconds: float,
    episode_return: float,
    spec: EnvSpec = CAR_RACING,
) -> None:
    """Draw on `frame` (400, 600, 3) uint8, in place; `seconds` and `episode_return` are those after `step`."""
    width = frame.shape[1]
    _darken(frame[:_BANNER])
    outcome = step.outcome
    _text(frame, _shortened(name, 230, 0.62, 2), (12, 22), _WHITE, 0.62, 2)
    milliseconds = 1000 * (step.latency or 0.0)
    _text(frame, f"track {seed}   {seconds:4.1f} s   {milliseconds:.1f} ms/act", (12, 43), _GREY, 0.42, 1)
    _text(frame, f"return {episode_return:6.1f}", (250, 22), _WHITE, 0.55, 1)
    if "completion" in outcome:
        cv2.rectangle(frame, (250, 33), (410, 44), _GREY, 1)
        cv2.rectangle(frame, (251, 34), (251 + int(158 * outcome["completion"]), 43), _GREEN, -1)
        _text(frame, f"{100 * outcome['completion']:.0f} %", (418, 43), _WHITE, 0.42, 1)
    _draw_action(frame, step.action, (width - 76, 26), spec)
    crash = outcome.get("crash")
    if crash or outcome.get("off_road"):
        color = _RED if crash else _AMBER
        cv2.rectangle(frame, (1, _BANNER), (width - 2, frame.shape[0] - 2), color, 3)
        label = f"CRASH: {crash.replace('_', ' ')}" if crash else "OFF ROAD"
        _darken(frame[_BANNER + 3 : _BANNER + 34, 4 : 20 + _width(label, 0.6, 2)])
        _text(frame, label, (12, _BANNER + 24), color, 0.6, 2)


def _draw_action(frame: np.ndarray, action: Any, centre: tuple[int, int], spec: EnvSpec) -> None:
    """A steering bar with, right of it, gas (green, up) and brake (red, down). Without steering, the action as text."""
    x, y = centre
    names = spec.parts if np.ndim(action) else spec.action_names
    if not spec.steers("continuous" if np.ndim(action) else "discrete"):
        text = " ".join(f"{value:+.2f}" for value in action[:3]) if np.ndim(action) else names[int(action)]
        _text(frame, text, (x - 60, y + 4), _WHITE, 0.42, 1)
        return
    if np.ndim(action):
        gas, brake = (float(action[names.index(pedal)]) if pedal in names else 0.0 for pedal in ("gas", "brake"))
    else:
        gas, brake = (float(names[int(action)] == pedal) for pedal in ("gas", "brake"))
    steer = steering_of(action, spec)
    cv2.rectangle(frame, (x - 42, y - 6), (x + 42, y + 6), _GREY, 1)
    cv2.rectangle(frame, (x, y - 5), (x + int(42 * steer), y + 5), _WHITE, -1)
    cv2.line(frame, (x, y - 9), (x, y + 9), _GREY, 1)
    cv2.rectangle(frame, (x + 54, y - 18), (x + 64, y + 18), _GREY, 1)
    if gas:
        cv2.rectangle(frame, (x + 55, y - int(17 * gas)), (x + 63, y), _GREEN, -1)
    if brake:
        cv2.rectangle(frame, (x + 55, y), (x + 63, y + int(17 * brake)), _RED, -1)


def _darken(area: np.ndarray) -> None:
    """Darken a part of a frame, in place, behind text."""
    area[:] = (area * 0.3).astype(np.uint8)


def _text(frame: np.ndarray, text: str, at: tuple[int, int], color: Any, scale: float, thickness: int) -> None:
    cv2.putText(frame, text, at, cv2.FONT_HERSHEY_SIMPLEX, scale, color, thickness, cv2.LINE_AA)


def _width(text: str, scale: float, thickness: int) -> int:
    return cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, scale, thickness)[0][0]


def _shortened(text: str, most: int, scale: float, thickness: int) -> str:
    """Return a text, without its middle if it is wider."""
    short, length = text, len(text)
    while _width(short, scale, thickness) > most:
        length -= 1
        short = f"{text[: length - length // 2]}...{text[len(text) - length // 2 :]}"
    return short
