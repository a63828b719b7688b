"""Tubs of donkeycar (version 2) as demonstrations.

A tub is a folder with a manifest, catalogs of records, and images.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from nac_drive.arguments import checks_shared_arguments, path_of
from nac_drive.data_collection.dataset.create import write_dataset
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.episode_file import EncodedEpisode
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.meta import Meta, parse_meta
from nac_drive.data_collection.dataset.own_data import own_episodes
from nac_drive.data_collection.dataset.rows import REPORTED, ROUND, SEED_GIVEN, WholeNumber, checked_summary
from nac_drive.data_collection.dataset.sources import one_or_several
from nac_drive.data_collection.interchange.stretches import stretches
from nac_drive.data_collection.interchange.tub_file import (
    EXPORTED,
    IMAGES,
    USER,
    PlacedRecord,
    Tub,
    read_tub,
    require_no_link,
)
from nac_drive.envs import DONKEYCAR, LARGEST_SEED, EnvConfig, donkeycar_frame
from nac_drive.events import Progress, counting, message
from nac_drive.notebook import automatic
from nac_drive.plain import whole
from nac_drive.storage.read import FRACTION, one_line

EPISODE_FRAMES = 500
"""A session is cut into episodes of so many frames, so that some can be kept out of training."""
LARGEST_IMAGE = 2**22
"""Bytes of an image file; some 5,000 are usual."""
_BREAK = 1000
"""Milliseconds without a record after which another episode begins."""


@checks_shared_arguments
def import_tub(
    tub: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    path: str | os.PathLike[str],
    *,
    episode_frames: int | None = None,
    first_track: int = 0,
    skip_missing: bool = False,
    progress: Progress = automatic,
) -> Demonstrations:
    """Write tubs of donkeycar as a dataset (docs/donkeycar.md).

    A session becomes an episode, or several: it is cut where no record came for more than a second, for example where
    records are deleted, where the clock went back, and after `episode_frames`; a single record that would be left stays
    with those before it. Deleted records are left out. Steering
    is `user/angle`. A `user/throttle` above 0 is gas, and below 0 it is brake. Where `user/mode` says that a pilot
    drove, the action is the pilot's, if the tub has it, and the frame has no label. Images of another size are scaled
    to 160 x 120 pixels. A tub that `export_dataset` wrote comes back with its own environment, action noise, episodes
    and labels; a session is cut there by `episode_frames`, and where more than a second of records is deleted.

    Args:
        tub: The folder of a tub, or several.
        path: The new dataset folder.
        episode_frames: Frames of an episode; None: 500, and all of a session of an exported tub.
        first_track: Number of the first track; datasets of different numbers can be merged. It must be left out where
            an exported tub names the tracks.
        skip_missing: Leave records out whose line is torn or wrong, or whose image is missing or damaged.
        progress: Called after every episode, and with a message per tub that says how many of its records are used.

    Returns:
        The dataset.

    Raises:
        DatasetError: If a record or an image cannot be read, or the tubs were exported from datasets of different
            environments or action noise.
        FileExistsError: If `path` exists.
        ValueError: If an argument is of another type or out of its range.
    """
    if episode_frames is not None:
        episode_frames = whole("episode_frames", episode_frames, 2)
    if not 0 <= whole("first_track", first_track) <= LARGEST_SEED - 10**9:
        raise ValueError(f"first_track must lie in 0 to {LARGEST_SEED - 10**9}, got {first_track}; 0 is usual.")
    paths = [Path(source) for source in one_or_several("tub", tub, (str, os.PathLike), "the folder of a tub")]
    for number, source in enumerate(paths):
        if source.resolve() in {earlier.resolve() for earlier in paths[:number]}:
            raise ValueError(f"tub: {source} comes twice; pass it once.")
    Demonstrations.require_vacant(path_of("path", path))
    metas: list[Meta] = []
    versions: dict[str, str] = {}
    episodes: list[_TubEpisode] = []
    for source in paths:
        content = read_tub(source)
        meta, sessions, recorded_with = _exported(content)
        metas.append(meta)
        versions = versions or recorded_with
        if meta.env != metas[0].env:
            raise DatasetError(
                f"tub: {source} holds frames of {meta.env.environment!r} ({meta.env.control}), {paths[0]} of "
                f"{metas[0].env.environment!r} ({metas[0].env.control}); import them one by one."
            )
        if (meta.noise, meta.seed) != (metas[0].noise, metas[0].seed):
            raise DatasetError(
                f"tub: {source} was recorded under the noise {meta.noise} of seed {meta.seed}, {paths[0]} under "
                f"{metas[0].noise} of seed {metas[0].seed}; import them one by one."
            )
        usable = _usable(content, meta.env, skip_missing)
        parts = list(_stretches(source, usable, episode_frames, exported=EXPORTED in content.metadata))
        used = sum(len(part.records) for part in parts)
        if not used:
            slow = (
                "no two records of a session follow each other within a second; record at one frame a second or faster"
            )
            why = slow if len(usable) > 1 else "an episode needs two of them; restore deleted ones, or record more"
            raise DatasetError(f"{source}: {_usage(content, len(usable), 0)}: {why}.")
        progress(message(str(source), f"{_usage(content, len(usable), used)}, {_rate(parts):.1f} frames a second"))
        episodes += [episode.named(sessions, content.sessions[episode.session]) for episode in parts]
    seeds = [episode.seed for episode in episodes if episode.seed is not None]
    given = len(seeds) == len(episodes)
    if given and first_track:
        raise ValueError(f"first_track must be left out for {paths[0]}, which names its tracks, got {first_track}.")
    name = metas[0].driver if len({meta.driver for meta in metas}) == 1 else DONKEYCAR
    meta = replace(metas[0], driver=name, driver_sha256="")  # its frames went through JPEG: they are own data
    numbers = seeds if given else _numbers(episodes, first_track)
    encoded = ((episode, meta) for episode in _encoded(episodes, numbers, given, meta.env))
    finished = counting(progress, f"import ({Path(path).name})", len(episodes))
    write_dataset(Path(path), encoded, finished, versions)
    return Demonstrations.open(path)


class _Session(msgspec.Struct, frozen=True):
    """The facts that an exported tub states about a session."""

    track: WholeNumber | None = None
    """The number of its track."""
    seed: WholeNumber | None = None
    terminated: bool | None = None
    truncated: bool | None = None
    round: WholeNumber | None = None
    completion: Annotated[float, FRACTION] | None = None
    lap_finished: bool | None = None
    off_road_events: WholeNumber | None = None
    crashes: WholeNumber | None = None

    def stated(self, *names: str) -> dict[str, Any]:
        """Return the values that are not None, by name."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class _TubEpisode:
    """The records of an episode."""

    tub: Path
    session: str
    records: list[PlacedRecord]
    seed: int | None = None
    """The seed that an exported tub gives."""
    track: int | None = None
    """The number of the track in an exported tub."""
    summary: dict[str, Any] = field(default_factory=dict)
    """Further columns of its row, as an exported tub says."""

    def named(self, sessions: dict[str, _Session], numbers: list[int]) -> _TubEpisode:
        """Return the episode with the facts that its session states.

        Args:
            sessions: The sessions of an exported tub, by name.
            numbers: The numbers of all lines of its session: an end counts where the last one is in the episode, and
                the outcome of the session where all are.
        """
        session = sessions.get(self.session)
        if session is None:
            return self
        summary = session.stated(ROUND)
        if self.records[-1].number == numbers[-1] and None not in (session.terminated, session.truncated):
            summary |= session.stated("terminated", "truncated")
        if len(self.records) == len(numbers):
            summary |= session.stated(*REPORTED)
        return replace(self, seed=session.seed, track=session.track, summary=summary)


def _numbers(episodes: Sequence[_TubEpisode], first: int) -> list[int]:
    """Number the tracks.

    Episodes of one track of an exported tub have one number, such as the three cameras of one drive.
    """
    keys = [index if part.track is None else (part.tub, part.track) for index, part in enumerate(episodes)]
    numbers = {key: first + number for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys]


def _exported(tub: Tub) -> tuple[Meta, dict[str, _Session], dict[str, str]]:
    """Return the settings of a tub.

    Return, too, the facts of an exported one about its sessions, and the versions that recorded it.

    Raises:
        DatasetError: If these are no settings of a dataset, or a record has no label.
    """
    document = tub.metadata.get(EXPORTED)
    if document is None:
        return Meta(EnvConfig(environment=DONKEYCAR), DONKEYCAR, "", None, 0), {}, {}
    try:
        if not isinstance(document, dict) or not isinstance(document.get("episodes"), dict):
            raise ValueError("it has no episodes")
        meta = parse_meta(document.get("meta"))
        sessions = msgspec.convert(document["episodes"], dict[str, _Session])
    except (ValueError, TypeError) as error:
        raise DatasetError(
            f"{tub.path}: {EXPORTED} in the metadata of its manifest is no dataset's: {one_line(error).rstrip('.')}; "
            "remove it there to read the tub as donkeycar's own."
        ) from None
    for number, where, record in tub.records:
        if record.label is None or record.action is None:
            raise DatasetError(
                f"{where} (record {number}) has no {EXPORTED}/label, although the tub was exported from a dataset; "
                "delete the record, or record into a tub of its own."
            )
    return meta, sessions, document["meta"].get("versions", {})


def _usable(tub: Tub, env: EnvConfig, skip_missing: bool) -> list[PlacedRecord]:
    """Return the records whose image can be read.

    Raises:
        DatasetError: If a line is torn or wrong, or an image cannot be read, unless they are left out.
    """
    faults = [*tub.torn, *tub.wrong]
    usable = []
    for placed in tub.records:
        try:
            _frame(tub.path, placed, env)
            usable.append(placed)
        except (ValueError, OSError) as error:
            if isinstance(error, DatasetError):
                raise
            cause = "the file is missing" if isinstance(error, FileNotFoundError) else str(error).rstrip(".")
            faults.append(
                f"{placed.where} (record {placed.number}) names {placed.record.image[:80]!r}, which cannot be read in "
                f"{tub.path / IMAGES}: {cause}"
            )
    if faults and not skip_missing:
        raise DatasetError(
            f"{faults[0]}; {len(faults):,} of {tub.total:,} records are torn or wrong, or lack an image: leave them "
            "out with --skip-missing (skip_missing=True)."
        )
    return usable


def _usage(tub: Tub, usable: int, used: int) -> str:
    """Return how many records are used.

    It says why the others are not.
    """
    reasons = {
        "deleted": tub.deleted, "torn": len(tub.torn), "wrong": len(tub.wrong),
        "without an image": len(tub.records) - usable,
        "alone: no other record of their session within a second": usable - used,
    }  # fmt: skip
    why = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
    return f"{used:,} of {tub.total:,} records used" + (f" ({why})" if why else "")


def _rate(parts: Sequence[_TubEpisode]) -> float:
    """Return one over the median time between two records."""
    gaps = np.concatenate([_seconds(part.records)[1:] for part in parts])
    typical = float(np.median(gaps)) if len(gaps) else 0.0
    return 1 / typical if typical > 0 else 0.0


def _sessions(tub: Path, records: list[PlacedRecord]) -> list[_TubEpisode]:
    """Return an episode for each session.

    They are in the order of their first records.
    """
    sessions: dict[str, list[PlacedRecord]] = {}
    for placed in records:
        sessions.setdefault(str(placed.record.session), []).append(placed)
    return [_TubEpisode(tub, session, members) for session, members in sessions.items()]


def _stretches(tub: Path, records: list[PlacedRecord], frames: int | None, *, exported: bool) -> Iterator[_TubEpisode]:
    """Yield unbroken stretches of records.

    They have at least two records in a tub of donkeycar.
    """

    def follows(earlier: PlacedRecord, later: PlacedRecord) -> bool:
        together = exported and later.number == earlier.number + 1
        return together or 0 <= later.record.milliseconds - earlier.record.milliseconds <= _BREAK

    most = frames if exported else frames or EPISODE_FRAMES
    for session in _sessions(tub, records):
        for stretch in stretches(session.records, follows, most):
            if exported or len(stretch) > 1:
                yield replace(session, records=stretch)


def _seconds(records: Sequence[PlacedRecord]) -> np.ndarray:
    """Return the seconds since the previous record."""
    times = np.array([placed.record.milliseconds for placed in records], np.float64) / 1000
    seconds = np.diff(times, prepend=times[0])
    for place, (earlier, placed) in enumerate(pairwise(records), 1):
        if placed.record.dt is not None and placed.number == earlier.number + 1:
            seconds[place] = placed.record.dt  # exact, in an exported tub
    return seconds


def _encoded(
    episodes: Sequence[_TubEpisode], seeds: Sequence[int], seeds_given: bool, env: EnvConfig
) -> Iterator[EncodedEpisode]:
    """Yield episodes with the facts of their sessions."""
    converted = own_episodes((_own_episode(episode, env) for episode in episodes), seeds, 0.0, env)
    for index, (episode, (arrays, summary, _)) in enumerate(zip(episodes, converted, strict=True)):
        summary |= episode.summary | ({SEED_GIVEN: True} if seeds_given else {})
        yield EncodedEpisode.encode(index, arrays, checked_summary(summary))


def _own_episode(part: _TubEpisode, env: EnvConfig) -> dict[str, Any]:
    """Return an episode as own data."""
    records = [placed.record for placed in part.records]
    episode: dict[str, Any] = {
        "observations": np.stack([_frame(part.tub, placed, env) for placed in part.records]),
        "dt": _seconds(part.records),
        "labelled": np.array([record.mode == USER for record in records]),
        "zooming": np.array([record.zooming for record in records]),
    }
    if all(record.label is not None for record in records):
        kind = np.int64 if env.control == "discrete" else np.float32
        try:
            for name, values in (("labels", "label"), ("actions", "action")):
                episode[name] = np.array([getattr(record, values) for record in records], kind)
        except (ValueError, TypeError, OverflowError) as error:
            shapes = Counter(type(record.label).__name__ for record in records)
            raise DatasetError(
                f"{part.tub}: {EXPORTED}/label of session {part.session[:80]!r} are not alike ({one_line(error)}; "
                f"{dict(shapes)}); export it again."
            ) from None
        episode["rewards"] = np.array([record.reward or 0.0 for record in records])
    else:
        episode["actions"] = np.array([_action(placed) for placed in part.records], np.float32)
    return episode


def _action(placed: PlacedRecord) -> tuple[float, float, float]:
    """Return steer, gas and brake of who drove."""
    record = placed.record
    angle, throttle = record.angle, record.throttle
    if record.mode != USER and record.pilot_angle is not None:
        angle = record.pilot_angle
    if record.mode == "local" and record.pilot_throttle is not None:
        throttle = record.pilot_throttle
    return angle, max(throttle, 0.0), max(-throttle, 0.0)


def _frame(tub: Path, placed: PlacedRecord, env: EnvConfig) -> np.ndarray:
    """Return the frame of a record.

    Raises:
        DatasetError: If its name leads elsewhere, or it is a link.
        OSError: If there is no such file.
        ValueError: If it is no image.
    """
    name = placed.record.image
    if Path(name).name != name or not name.isprintable():
        raise DatasetError(
            f"{placed.where} names the image {name[:80]!r}, expected a file in {tub / IMAGES}; correct the name."
        )
    file = tub / IMAGES / name
    require_no_link(file)
    with file.open("rb") as stream:
        content = stream.read(LARGEST_IMAGE + 1)
    if len(content) > LARGEST_IMAGE:
        raise ValueError(f"it is larger than {LARGEST_IMAGE:,} bytes")
    return donkeycar_frame(content, env.spec.frame_shape)
