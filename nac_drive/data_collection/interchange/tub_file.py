"""The files of a donkeycar tub (version 2), checked.

TUB/manifest.json  catalog_0.catalog  catalog_0.catalog_manifest  ...  images/

`manifest.json` has five lines: the names of inputs, their types, metadata of the user, metadata of the tub (sessions),
and the catalogs with the deleted records. A catalog has a JSON object a line. Its catalog_manifest holds the length of
each line in bytes, which donkeycar needs to add records; a reader does without.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from nac_drive.data_collection.dataset.limits import LONGEST_DT, DatasetError, unreadable
from nac_drive.data_collection.dataset.rows import FiniteNumber, WholeNumber
from nac_drive.storage.read import (
    BYTES_PER_VALUE,
    LARGEST_DOCUMENT,
    LARGEST_LINE,
    FileError,
    decode_json,
    one_line,
    read_bounded,
    require_few_values,
)

MANIFEST, IMAGES = "manifest.json", "images"
INPUTS = ("cam/image_array", "user/angle", "user/throttle", "user/mode")
"""Inputs of donkeycar itself: a file name in `IMAGES`, numbers in [-1, 1], and who drives."""
PILOT = ("pilot/angle", "pilot/throttle")
"""Inputs of a record in which a pilot drives: what it did."""
TYPES = {
    "cam/image_array": "image_array", "user/angle": "float", "user/throttle": "float", "user/mode": "str",
    "pilot/angle": "float", "pilot/throttle": "float",
}  # fmt: skip
USER = "user"
"""The mode in which a person steers and accelerates. In `local_angle` a pilot steers, in `local` it does both."""
EXPORTED = "nac_drive"
"""Key in the metadata of an exported tub, and first part of the inputs that donkeycar does not have."""
_FIX = "pass the folder of a tub of donkeycar 4 or later"
_FIELD = re.compile(r"`\$\.([^`]+)`$")
"""The field in an error of msgspec."""
_Range = Annotated[float, msgspec.Meta(ge=-1, le=1)]
_Numbers = Annotated[list[FiniteNumber], msgspec.Meta(max_length=100)]


class TubRecord(msgspec.Struct, frozen=True):
    """A record: an image and what was done. Other inputs, such as an IMU's, are not read."""

    image: str = msgspec.field(name="cam/image_array")
    """Its name in `IMAGES`."""
    angle: _Range = msgspec.field(name="user/angle")
    """Steering, right positive."""
    throttle: _Range = msgspec.field(name="user/throttle")
    """Below 0 the car brakes, or drives backwards."""
    milliseconds: WholeNumber = msgspec.field(name="_timestamp_ms")
    mode: str = msgspec.field(name="user/mode", default=USER)
    session: str | int | None = msgspec.field(name="_session_id", default=None)
    pilot_angle: _Range | None = msgspec.field(name="pilot/angle", default=None)
    pilot_throttle: _Range | None = msgspec.field(name="pilot/throttle", default=None)
    label: int | _Numbers | None = msgspec.field(name=f"{EXPORTED}/label", default=None)
    """The label in an exported tub, as it is in the dataset. So are the next four."""
    action: int | _Numbers | None = msgspec.field(name=f"{EXPORTED}/action", default=None)
    reward: FiniteNumber | None = msgspec.field(name=f"{EXPORTED}/reward", default=None)
    dt: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_DT)] | None = msgspec.field(name=f"{EXPORTED}/dt", default=None)
    zooming: bool = msgspec.field(name=f"{EXPORTED}/zooming", default=False)


class _Line(msgspec.Struct, frozen=True):
    """The session of a line that may be no record."""

    session: str | int | None = msgspec.field(name="_session_id", default=None)


class PlacedRecord(NamedTuple):
    """A record and its place."""

    number: int
    """Its number in the tub, from 0: donkeycar's index."""
    where: str
    """Catalog and line, for errors."""
    record: TubRecord


class _Catalogs(msgspec.Struct):
    """The last line of a manifest."""

    paths: list[str]
    deleted_indexes: list[WholeNumber]


@dataclass(frozen=True)
class Tub:
    """The records of a tub that are not deleted."""

    path: Path
    records: list[PlacedRecord]
    total: int
    """Lines in its catalogs."""
    deleted: int
    torn: list[str]
    """Lines that are no JSON, with their places: a car that loses its power leaves such lines."""
    wrong: list[str]
    """Lines that are no record of donkeycar, with their places and their faults."""
    metadata: dict[str, Any]
    """The metadata of its user."""
    sessions: dict[str, list[int]]
    """The numbers of all lines of a session, deleted ones included. A torn line belongs to the session before it."""


def is_tub(path: Path) -> bool:
    """Return whether a folder looks like a tub."""
    return (path / MANIFEST).is_file() and (path / IMAGES).is_dir()


def read_tub(path: Path) -> Tub:
    """Read the records of a tub.

    Args:
        path: Its folder.

    Returns:
        The tub. Its images are not read.

    Raises:
        DatasetError: If a file is missing, a link or of another kind.
    """
    if not path.is_dir():
        raise DatasetError(f"there is no folder {path}; {_FIX}.")
    manifest = path / MANIFEST
    for file in (manifest, path / IMAGES):
        require_no_link(file)
    try:
        metadata, catalogs = _manifest(manifest)
    except FileError as error:
        raise DatasetError(str(error)) from None
    deleted, number = set(catalogs.deleted_indexes), 0
    tub, session = Tub(path, [], number, 0, [], [], metadata, {}), ""
    for name in catalogs.paths:
        file = path / name
        if Path(name).name != name or not name.isprintable():
            raise DatasetError(f"{manifest} names the catalog {name[:80]!r}, expected a file beside it; {_FIX}.")
        require_no_link(file)
        for where, line in _lines(file):
            number += 1
            session = _session(line, session)
            tub.sessions.setdefault(session, []).append(number - 1)
            if number - 1 in deleted:
                continue
            try:
                tub.records.append(PlacedRecord(number - 1, where, msgspec.json.decode(line, type=TubRecord)))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                if fault := _fault(line, error):
                    tub.wrong.append(f"{where} is no record of a tub: {fault}")
                else:
                    tub.torn.append(f"{where} is torn")
    return replace(tub, total=number, deleted=len(deleted & set(range(number))))


def _session(line: bytes, before: str) -> str:
    """Return the session of a line.

    A torn line belongs to the session before it.
    """
    try:
        return str(msgspec.json.decode(line, type=_Line).session)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return before


def _fault(line: bytes, error: Exception) -> str:
    """Return what is wrong with a line that is JSON.

    It is empty for any other line.
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(error, msgspec.ValidationError):
        return "a number is NaN or infinite"  # Python writes and reads them, JSON has none
    name = _FIELD.search(str(error))
    value = f", got {str(values[name[1]])[:40]}" if name and isinstance(values, dict) and name[1] in values else ""
    return f"{one_line(error)}{value}"


def require_no_link(path: Path) -> None:
    """Raise DatasetError if there is a link at `path`.

    It is raised, too, if nobody can look there.
    """
    try:
        link = path.is_symlink()
    except OSError as error:
        raise unreadable(path, error, _FIX) from None
    if link:
        raise DatasetError(f"{path} is a link, which an import does not follow; replace it by a copy.")


def _manifest(path: Path) -> tuple[dict[str, Any], _Catalogs]:
    """Return the user's metadata and the catalogs."""
    what = "the manifest of a tub"
    content = read_bounded(path, what, _FIX, LARGEST_DOCUMENT)
    require_few_values(content, LARGEST_DOCUMENT // BYTES_PER_VALUE, path, what, _FIX)
    lines = content.splitlines()
    if len(lines) < 5:
        raise FileError(f"{path} is not {what}: it has {len(lines)} lines, expected 5; {_FIX}.")
    metadata = decode_json(lines[2], dict[str, Any], f"{path}, line 3", what, _FIX)
    return metadata, decode_json(lines[4], _Catalogs, f"{path}, line 5", what, _FIX)


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield place and content of each line of a catalog."""
    number = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(LARGEST_LINE):
                number += 1
                if len(line) == LARGEST_LINE and not line.endswith(b"\n"):
                    raise DatasetError(f"line {number} of {path} is longer than {LARGEST_LINE:,} bytes; {_FIX}.")
                yield f"line {number} of {path}", line
    except OSError as error:
        raise unreadable(path, error, _FIX) from None
