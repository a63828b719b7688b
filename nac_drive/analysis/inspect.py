"""Inspect drivers: one recorded episode of each, as a page and as arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from nac_drive.analysis.page import save_episode_page
from nac_drive.analysis.recording import Recording, record
from nac_drive.analysis.rerun_file import save_rerun
from nac_drive.analysis.watch import bar_of
from nac_drive.arguments import checks_shared_arguments
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.recorded_episode import (
    RecordedEpisode,
    driver_of_recording,
    open_dataset,
)
from nac_drive.data_collection.drivers import (
    AnyDriver,
    driver_names,
    driving_device,
    each_accepted,
    on_device,
    resolve_together,
)
from nac_drive.data_collection.trained_env import env_for, env_of_first, require_environment
from nac_drive.envs import SPLITS, Control, CrashMode, Step, make_env, track_seeds
from nac_drive.envs.config import in_views
from nac_drive.envs.perturbations.registry import parse_all
from nac_drive.envs.views import VideoView
from nac_drive.notebook import automatic, paragraph
from nac_drive.parallel.optional import optional_module
from nac_drive.plain import whole
from nac_drive.storage.links import require_link_to_something
from nac_drive.storage.write import require_new, require_writable, writing

PAGE = "episode.html"


@dataclass(frozen=True, repr=False)
class Inspection(os.PathLike[str]):
    """The recorded episodes of some drivers, and their page."""

    page: Path
    """The page, which opens without a network."""
    recordings: list[Recording]
    """An episode of each driver."""

    def __fspath__(self) -> str:
        return str(self.page)

    def __repr__(self) -> str:
        return f"Inspection({str(self.page)!r}: {'; '.join(recording.title for recording in self.recordings)})"

    def _repr_html_(self) -> str:
        """A frame of every driver, and the page."""
        return "".join(recording._repr_html_() for recording in self.recordings) + paragraph(f"page: {self.page}")


@checks_shared_arguments
def inspect(
    drivers: AnyDriver | Sequence[AnyDriver],
    track: int = SPLITS["test"][0],
    *,
    folder: str | os.PathLike[str],
    control: Control | None = None,
    crash: CrashMode = "ignore",
    perturbation: str | None = None,
    device: str = "cpu",
    view: VideoView | None = None,
    rerun: str | os.PathLike[str] | None = None,
    dataset: Demonstrations | str | os.PathLike[str] | None = None,
    episode: int = 0,
    on_step: Callable[[str, Step], None] = lambda name, step: None,
) -> Inspection:
    """Record one episode of each driver and write it.

    `folder` gets episode.html, which opens without a network, and the arrays of each driver as NAME.npz (see
    `Recording`).

    Args:
        drivers: A driver or several, their names or folders (see `resolve_driver`).
        track: Seed of the track.
        folder: The folder; it is created if needed.
        control: Control of shipped drivers and the controller; a cloned driver knows its own.
        crash: The effect of a crash, see `CarRacing`.
        perturbation: See `envs.perturb`.
        device: Of networks, `auto`, `cpu` or `cuda`; also of their saliency maps.
        view: `above`, `seat` or `both`: shown beside the view that a driver sees, if it is another one.
        rerun: A new file `.rrd` for the rerun viewer, besides the page; see `save_rerun`.
        dataset: A dataset, or its folder: the drivers see one of its episodes as it was recorded, and nothing is
            simulated. The page has the recorded labels beside their actions. There is no perturbation and no `track`.
        episode: Number of the episode in `dataset`.
        on_step: Called with the name of the driver and every step.

    Returns:
        The page and the recordings.

    Raises:
        FileExistsError: If a file would be replaced.
        WriteError: If a file cannot be written; the others are removed again.
        FileNotFoundError: If there is no such driver.
        DatasetError: If there is no such episode, or it is damaged.
        ValueError: For no driver, two of one name, a driver of another control or of other frames, a track that
            `track_seeds` refuses, an unknown perturbation, a setting of the simulator in a recording, or if rerun is
            wanted and not installed, or the device is not there.
    """
    folder, device = Path(folder), driving_device(device)
    specs = each_accepted(drivers)
    names = driver_names(specs)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"drivers must be one or more with different names, got {', '.join(names) or 'none'}.")
    recorded = None
    if dataset is None:
        track_seeds([track])
        if episode != 0:
            raise ValueError(f"episode must be left out without a dataset, got {episode}; track names a track.")
    else:
        settings = {
            "track": (track, SPLITS["test"][0]), "crash": (crash, "ignore"), "perturbation": (perturbation, None),
            "control": (control, None), "view": (view, None),
        }  # fmt: skip
        _require_defaults(settings)
        dataset = open_dataset(dataset)
        recorded = RecordedEpisode.read(dataset, whole("episode", episode))
    if perturbation is not None:
        parse_all(perturbation)
    if rerun is not None:
        optional_module("rerun", "rerun")
    episode_name = f"track {track}" if dataset is None else f"episode {episode} of {dataset.path.name}"
    require_link_to_something(folder)
    files = [folder / PAGE, *(folder / f"{name}.npz" for name in names), *([] if rerun is None else [Path(rerun)])]
    _require_new(files)
    if recorded:
        loaded = [driver_of_recording(spec, recorded.env) for spec in specs]
    else:
        loaded = resolve_together(specs, control)
    loaded = [on_device(driver, device) for driver in loaded]
    home = env_of_first(loaded)
    envs = [recorded.env if recorded else env_for(driver, control, perturbation, beside=home) for driver in loaded]
    for name, driver, env in () if recorded else zip(names, loaded, envs, strict=True):
        require_environment(f"driver {name!r}", driver, envs[0])  # a track is another one elsewhere
        in_views(env, view)  # a view that it does not have is refused
    roads = [None if recorded is None else recorded.road(driver) for driver in loaded]
    recordings: list[Recording] = []
    for name, driver, env, road in zip(names, loaded, envs, roads, strict=True):
        with closing(make_env(env, crash=crash) if road is None else road) as simulator:
            recordings.append(
                record(
                    simulator, driver, recorded.track if recorded else track, name=name, perturbation=perturbation,
                    spec=recorded.spec if recorded else env.spec, view=view,
                    on_step=lambda step, name=name: _note(name, step, on_step),
                )
            )  # fmt: skip
        if recorded:
            recordings[-1].add_recorded(episode_name, recorded)
    _require_new(files)  # another process may have written one
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as unfinished:
        for file in files:  # what was written goes if a later part fails, so that the same command works afterwards
            unfinished.callback(file.unlink, missing_ok=True)
        for name, recording in zip(names, recordings, strict=True):
            recording.save(folder / f"{name}.npz")
        page = save_episode_page(folder / PAGE, recordings, f"{', '.join(names)} on {episode_name}")
        if rerun is not None:
            save_rerun(rerun, recordings)
        unfinished.pop_all()
    return Inspection(page, recordings)


def _require_new(files: Sequence[Path]) -> None:
    for file in files:
        require_new(file, "choose another folder or file")
        require_writable(file)


def _require_defaults(settings: dict[str, tuple[object, object]]) -> None:
    """Raise ValueError if a setting has a value."""
    for option, (value, default) in settings.items():
        if value != default:
            raise ValueError(f"{option} must be left out for a recording, which goes on as recorded, got {value!r}.")


def _note(name: str, step: Step, on_step: Callable[[str, Step], None]) -> None:
    automatic(bar_of(f"inspect ({name})", step))
    on_step(name, step)
