"""The rows of a dataset, in episodes.jsonl.

There is one line per finished episode.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from nac_drive.data_collection.dataset.limits import LONGEST_EPISODE, DatasetError
from nac_drive.storage.read import FRACTION, FileError, read_json_lines

DatasetRow = dict[str, Any]

WholeNumber = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""An integer of at least 0."""
FiniteNumber = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""A finite number."""
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
"""A SHA-256 in hexadecimal."""
FrameRanges = Annotated[str, msgspec.Meta(pattern=r"^(\d{1,9}:\d{1,9}( \d{1,9}:\d{1,9})*)?$")]
"""Ranges of frames as Python writes slices: `120:180 300:352`."""


class EpisodeSummary(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename={"return_": "return"}):
    """An episode in numbers.

    They are attributes of its file, and columns of its row.
    """

    seed: WholeNumber
    """Seed of the track."""
    return_: FiniteNumber
    """Sum of the native rewards."""
    length: Annotated[int, msgspec.Meta(ge=1, le=LONGEST_EPISODE)]
    """Number of frames."""
    terminated: bool
    completion: Annotated[float, FRACTION] | msgspec.UnsetType = msgspec.UNSET
    """Not there where the environment does not report it, as the next three."""
    lap_finished: bool | msgspec.UnsetType = msgspec.UNSET
    off_road_events: WholeNumber | msgspec.UnsetType = msgspec.UNSET
    crashes: WholeNumber | msgspec.UnsetType = msgspec.UNSET
    round: WholeNumber | msgspec.UnsetType = msgspec.UNSET
    """Round of a DAgger run in which the episode was collected; not there outside of one."""
    corrections: FrameRanges | msgspec.UnsetType = msgspec.UNSET
    """Frames in which a person corrected the driver, such as `120:180 300:352`; only they have a label of the
    expert. Not there where all frames have one."""
    truncated: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether a limit ended an episode of own data. Not there where the end is not known; `terminated` has no meaning
    then. A simulated episode that did not terminate was truncated."""
    seed_given: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the source of own data gave the seed. Without it the seed of own data only numbers its tracks."""

    def __post_init__(self) -> None:
        if isinstance(self.corrections, str):
            edges = [0, *map(int, self.corrections.replace(":", " ").split()), self.length]
            if edges != sorted(edges):
                raise ValueError(f"corrections must rise from 0 to {self.length} frames, got {self.corrections!r}")


with suppress(msgspec.ValidationError):  # msgspec 0.22 crashes if several threads use a type for the first time
    msgspec.convert({}, EpisodeSummary)


class _StoredRow(EpisodeSummary, kw_only=True):
    """A line of episodes.jsonl."""

    index: Annotated[int, msgspec.Meta(ge=0, le=999_999_999)]
    file: str
    """Path of the episode file inside the dataset; the index decides it."""
    sha256: Sha256
    """SHA-256 of that file."""


ROUND = "round"
"""Attribute and column of the episodes of a DAgger run only: the round in which they were collected."""
CORRECTIONS = "corrections"
"""Attribute and column of the episodes in which a person corrected a driver: the frames that have a label."""
TRUNCATED = "truncated"
"""Attribute and column of own episodes whose end is known."""
SEED_GIVEN = "seed_given"
"""Attribute and column of own episodes whose seed is known."""
OPTIONAL = (ROUND, CORRECTIONS, TRUNCATED, SEED_GIVEN)
"""Attributes and columns that not all episodes have."""
SUMMARY = tuple(name for name in EpisodeSummary.__struct_encode_fields__ if name not in OPTIONAL)
"""Attributes of an episode file, and columns of the dataset's rows. `REPORTED` are there if `info` has them."""
REPORTED = ("completion", "lap_finished", "off_road_events", "crashes")
"""Columns of `SUMMARY` that an environment reports in `info`."""
_UNMEASURED = dict(zip(REPORTED, (0.0, False, 0, 0), strict=True))
ROW = ("index", *SUMMARY, "file", "sha256")
"""Keys of a row of episodes.jsonl. `return` is the sum of the native rewards; `file` is relative to the dataset."""


def checked_summary(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `SUMMARY`, checked.

    Values of `OPTIONAL` are added where there are some. Types and ranges are checked.

    Raises:
        ValueError: If one is missing, unknown, of another type or out of range.
    """
    return msgspec.to_builtins(msgspec.convert(dict(values), EpisodeSummary))


def known_end(row: DatasetRow, simulated: bool) -> tuple[bool, bool] | None:
    """Return whether an episode terminated, and whether it was truncated. None where neither is known."""
    if TRUNCATED in row:
        return row["terminated"], row[TRUNCATED]
    return (row["terminated"], not row["terminated"]) if simulated else None


def known_seed(row: DatasetRow, simulated: bool) -> int | None:
    """Return the seed of the environment of an episode. None where it is not known."""
    return row["seed"] if simulated or row.get(SEED_GIVEN) else None


def reported(row: DatasetRow, simulated: bool) -> dict[str, Any]:
    """Return the values of `REPORTED` that were measured.

    Own data of older versions hold `_UNMEASURED` in their place.
    """
    values = {name: row[name] for name in REPORTED if name in row}
    return {} if not simulated and values == _UNMEASURED else values


def frame_ranges(chosen: NDArray[np.bool_]) -> str:
    """Return the frames of a mask (N,) as a value of `CORRECTIONS`."""
    edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
    return " ".join(f"{first}:{end}" for first, end in edges.reshape(-1, 2))


def labelled_frames(row: DatasetRow) -> NDArray[np.bool_] | None:
    """Return the mask (N,) of frames with an expert's label.

    None where all have one.
    """
    if CORRECTIONS not in row:
        return None
    chosen = np.zeros(row["length"], dtype=np.bool_)
    for frames in row[CORRECTIONS].split():
        first, end = map(int, frames.split(":"))
        chosen[first:end] = True
    return chosen


def episode_file(index: int) -> str:
    """Return the path of episode `index` inside its dataset folder."""
    return f"episodes/{index:06d}.h5"


def episode_row(index: int, summary: Mapping[str, Any], sha256: str) -> DatasetRow:
    """Return the row of episodes.jsonl for an episode file. Its keys are `ROW`."""
    return {"index": index, **summary, "file": episode_file(index), "sha256": sha256}


def row_note(row: DatasetRow) -> str:
    """Return track and return of an episode, as progress shows them."""
    return f"track {row['seed']} return {row['return']:z.0f}"


def row_line(row: DatasetRow) -> bytes:
    """Return a row as a line of episodes.jsonl."""
    return (json.dumps(row) + "\n").encode()


def read_rows(path: Path, fix: str) -> tuple[list[DatasetRow], bool]:
    """Return all whole rows of an episodes.jsonl.

    Return, too, whether the last one is cut off.

    Args:
        path: The file.
        fix: The advice of an error.

    Raises:
        DatasetError: Unless every row has the keys `ROW`, types and ranges of an episode, the file of its index, and an
            index of its own.
    """
    try:
        stored, cut_off = read_json_lines(path, _StoredRow, "an episode", fix)
    except FileError as error:
        raise DatasetError(str(error)) from error
    rows: dict[int, DatasetRow] = {}
    for number, entry in enumerate(stored, 1):
        if entry.file != episode_file(entry.index):
            raise DatasetError(
                f"{path}, line {number} is not an episode: its file is {entry.file[:200]!r}, that of episode "
                f"{entry.index} is {episode_file(entry.index)}; {fix}."
            )
        if entry.index in rows:
            raise DatasetError(f"{path}, line {number} repeats episode {entry.index}; {fix}.")
        values = msgspec.to_builtins(entry)
        rows[entry.index] = {"index": values.pop("index"), **values}
    return list(rows.values()), cut_off
