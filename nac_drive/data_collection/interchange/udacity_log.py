"""driving_log.csv of the Udacity simulator, checked and sorted.

Lines are checked one by one and sorted by time; no line is there twice.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import pairwise
from math import isfinite
from pathlib import Path, PureWindowsPath
from stat import S_ISREG

import numpy as np

from nac_drive.data_collection.dataset.limits import DatasetError, unreadable
from nac_drive.envs import decode_image

IMAGES = "IMG"
"""Folder of the images, beside the log."""
CAMERAS = ("center", "left", "right")
COLUMNS = (*CAMERAS, "steering", "throttle", "brake", "speed")
"""The columns of the log, in the order of a log without a header."""
BREAK = 1.0
"""Seconds without an image after which another episode begins."""
CENTER_ALONE = "pass --steering-offset 0 (steering_offset=0), which takes the camera in the middle alone"
"""The advice for a log without images of the side cameras."""
LARGEST_IMAGE = 2**20
"""Bytes of an image file; some 15,000 are usual."""
LONGEST_LINE = 10_000
"""Bytes of a line; some 200 are usual."""
_RANGES = {"steering": (-1.0, 1.0), "throttle": (-1.0, 1.0), "brake": (0.0, 1.0)}
_STEERING_FIX = (
    "divide degrees by the largest angle, 25 in the simulator; columns in another order than {} need a header"
).format(", ".join(COLUMNS))
_SEPARATORS = {";": "semicolons", "\t": "tabs"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TIME = re.compile(r"(\d{4}(?:_\d\d){5})_(\d{3})\.\w+$")


@dataclass(frozen=True)
class LogLine:
    """One line of a log."""

    number: int
    """Its number in the file, from 1."""
    images: tuple[str, ...]
    """Names of the images in `IMAGES`, one per camera."""
    action: tuple[float, float, float]
    """Steering, gas and brake."""
    seconds: float
    """Time of the image, from its name."""


@dataclass(frozen=True)
class Log:
    """The lines of a log that can be used, by time."""

    path: Path
    lines: list[LogLine]
    total: int
    """Lines in the file, without headers and empty lines."""
    doubled: int
    """Lines that repeat another one."""
    without_image: int
    """Lines without an image."""
    without_side: int
    """Lines among them that lack the image of a side camera alone."""

    @property
    def misplaced(self) -> int:
        """Lines that follow a later line within a second."""
        return sum(
            later.number < earlier.number and later.seconds - earlier.seconds <= BREAK
            for earlier, later in pairwise(self.lines)
        )

    def usage(self, used: int) -> str:
        """Return how many lines are used, in one line.

        It says why the others are not.
        """
        reasons = {
            "twice": self.doubled, "without an image": self.without_image,
            "alone: no other image of their episode within a second": len(self.lines) - used,
        }  # fmt: skip
        why = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
        mixed = f"; {self.misplaced:,} out of order: import drives of the same time one by one"
        order = mixed if self.misplaced else ""
        return f"{used:,} of {self.total:,} lines used" + (f" ({why})" if why else "") + order


def read_log(path: Path, cameras: int, skip_missing: bool) -> Log:
    """Read a log.

    Args:
        path: driving_log.csv.
        cameras: Number of cameras whose images are needed, in the order of `CAMERAS`.
        skip_missing: Leave lines out whose images are missing or damaged.

    Returns:
        Its lines by time.

    Raises:
        DatasetError: If a line is wrong, an image is missing or a link, or two lines contradict each other.
        FileNotFoundError: If there is no such log.
    """
    folder, fix = path.parent / IMAGES, "pass driving_log.csv of a recording"
    try:
        if not S_ISREG(path.lstat().st_mode):
            raise DatasetError(f"{path} is no plain file; {fix}.")
        path.open("rb").close()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}; {fix}.") from None
    except OSError as error:
        raise unreadable(path, error, fix) from None
    if folder.is_symlink():
        raise DatasetError(f"{folder} is a link, which an import does not follow; replace it by a copy.")
    by_image: dict[str, LogLine] = {}
    total = doubled = 0
    for line in _lines(path, cameras):
        total += 1
        first = by_image.setdefault(line.images[0], line)
        if first is line:
            continue
        if (first.images, first.action) != (line.images, line.action):
            raise _error(
                path, line.number, f"it names {line.images[0]} as line {first.number} does, with other values",
                "keep one of the lines",
            )  # fmt: skip
        doubled += 1
    missing: dict[int, str] = {}
    without_side = 0
    for line in by_image.values():
        faults = [_fault(folder / name) for name in line.images[:cameras]]
        for name, fault in zip(line.images, faults, strict=False):
            if fault:
                missing.setdefault(line.number, f"{name}, which {fault}")
        without_side += any(faults) and not faults[0]
    if missing and not skip_missing:
        number = min(missing)
        cures = ["copy the images there"]
        if without_side:
            cures.append(CENTER_ALONE)
        if len(missing) < len(by_image):
            cures.append("leave such lines out with --skip-missing (skip_missing=True)")
        raise DatasetError(
            f"line {number} of {path} names {missing[number]}; {len(missing):,} of {total:,} lines lack an image: "
            f"{', '.join(cures[:-1])}{', or ' * (len(cures) > 1)}{cures[-1]}."
        )
    lines = sorted(
        (line for line in by_image.values() if line.number not in missing), key=lambda line: (line.seconds, line.number)
    )
    return Log(path, lines, total, doubled, len(missing), without_side)


def _fault(path: Path) -> str:
    """Return why there is no image at `path`.

    It is empty for an image.

    Raises:
        DatasetError: If it is a link.
    """
    if path.is_symlink():
        raise DatasetError(f"{path} is a link, which an import does not follow; replace it by a copy.")
    if not path.is_file():
        return f"is no image in {path.parent}"
    try:
        read_image(path)
    except (ValueError, OSError) as error:
        return f"cannot be read in {path.parent}: {str(error).rstrip('.')}"
    return ""


def read_image(path: Path) -> np.ndarray:
    """Return the image of a file, RGB.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no image, or too large.
    """
    with path.open("rb") as file:
        content = file.read(LARGEST_IMAGE + 1)
    if len(content) > LARGEST_IMAGE:
        raise ValueError(f"it is larger than {LARGEST_IMAGE:,} bytes; record at 320 x 160.")
    return decode_image(content)


def _lines(path: Path, cameras: int) -> Iterator[LogLine]:
    """Yield the lines of a log in the order of the file."""
    columns: tuple[str, ...] = COLUMNS
    with path.open("rb") as file:
        number = 0
        while content := file.readline(LONGEST_LINE + 1):
            number += 1
            text = _text(path, number, content)
            fields = _fields(path, number, text)
            if not any(fields):
                continue
            if sum(field.lower() in COLUMNS for field in fields) > 1:
                columns = _header(path, number, fields)
                continue
            try:
                yield _line(number, fields, columns, cameras)
            except _LineError as error:
                if not text.endswith("\n") and (len(fields) < len(columns) or not fields[-1]):
                    raise _error(
                        path, number, f"it is cut off, with {len(fields)} of {len(columns)} columns", "delete the line"
                    ) from None
                raise _error(path, number, *_separator(text, fields, error)) from None


class _LineError(ValueError):
    """A fault of a line: rule, value, and fix."""

    def __init__(self, fault: str, fix: str):
        super().__init__(fault, fix)
        self.fault, self.fix = fault, fix


def _error(path: Path, number: int, fault: str, fix: str) -> DatasetError:
    return DatasetError(f"line {number} of {path} cannot be read: {fault}; {fix}.")


def _text(path: Path, number: int, content: bytes) -> str:
    """Return a line as text."""
    if number == 1:
        content = content.removeprefix(_BYTE_ORDER_MARK)
    if b"\0" in content or (number == 1 and content.startswith((b"\xff\xfe", b"\xfe\xff"))):
        raise _error(
            path, number, "it is UTF-16 or no text", "save the log as UTF-8 (`iconv -f UTF-16 -t UTF-8 LOG > NEW`)"
        )
    if len(content) > LONGEST_LINE:
        raise _error(
            path,
            number,
            f"it begins with {content[:40]!r} and is longer than {LONGEST_LINE:,} bytes",
            "delete the line",
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise _error(
            path, number, f"byte {error.start + 1} of it is {content[error.start]:#x}, which is not UTF-8",
            "save the log as UTF-8 (`iconv -f CP1252 -t UTF-8 LOG > NEW`)",
        ) from None  # fmt: skip


def _fields(path: Path, number: int, text: str) -> list[str]:
    """Return the fields of a line."""
    if "\r" in (text := text.rstrip("\r\n")):
        raise _error(path, number, "its lines end with CR alone", "end them with LF (`tr '\\r' '\\n' < LOG > NEW`)")
    try:
        rows = list(csv.reader([text], skipinitialspace=True))
    except csv.Error as error:
        raise _error(
            path, number, f"{error} in {text[:80]!r}", "write seven columns with commas between them"
        ) from None
    return [field.strip() for row in rows for field in row]


def _header(path: Path, number: int, names: list[str]) -> tuple[str, ...]:
    """Return the order of the columns in a header."""
    expected = f"expected are {', '.join(COLUMNS)}"
    for column, name in enumerate(names, 1):
        if not name:
            raise _error(
                path, number, f"column {column} has no name, {expected}",
                "remove the index column (index=False where pandas writes it)",
            )  # fmt: skip
        if name not in COLUMNS:
            hint = next(iter(get_close_matches(name.lower(), COLUMNS, 1)), "")
            raise _error(
                path,
                number,
                f"the column {name[:80]!r} is not known, {expected}",
                f"rename it to {hint}" if hint else "rename or remove it",
            )
        if names.count(name) > 1:
            raise _error(path, number, f"the column {name!r} comes twice, {expected}", "remove one of them")
    for name in COLUMNS:
        if name not in names:
            raise _error(path, number, f"the column {name!r} is missing, {expected}", "add it")
    return tuple(names)


def _line(number: int, fields: list[str], columns: tuple[str, ...], cameras: int) -> LogLine:
    """Return a line whose columns are in the order of `columns`."""
    if len(fields) != len(columns):
        raise _LineError(
            f"it has {len(fields)} columns, expected {len(columns)}: {', '.join(columns)}", "write all of them"
        )
    values = dict(zip(columns, fields, strict=True))
    images = tuple(PureWindowsPath(values[camera]).name for camera in CAMERAS)  # it understands both kinds of slashes
    for camera, image in zip(CAMERAS[:cameras], images, strict=False):
        if not image:
            fix = CENTER_ALONE if camera != "center" else "add it"
            raise _LineError(f"{camera} names no image, got {values[camera][:80]!r}", fix)
    steering, throttle, brake, _ = (_number(name, values[name]) for name in COLUMNS[len(CAMERAS) :])
    action = steering, max(throttle, 0.0), max(brake, -throttle, 0.0)  # the simulator brakes by negative throttle too
    return LogLine(number, images, action, _seconds(images[0]))


def _number(name: str, text: str) -> float:
    """Return the number of a column, which is in its range."""
    try:
        value = float(text.replace("_", " "))  # Python reads 0_1 as 1
    except ValueError as error:
        fix = "write a point in place of the comma" if "," in text else "write a number"
        raise _LineError(f"{name}: {str(error)[:120]}", fix) from None
    low, high = _RANGES.get(name, (-1e9, 1e9))
    if not (isfinite(value) and low <= value <= high):
        fix = _STEERING_FIX if name == "steering" and isfinite(value) else "correct it or delete the line"
        raise _LineError(f"{name} is {text[:80]}, expected {low:g} to {high:g}", fix)
    return value


def _seconds(image: str) -> float:
    """Return the time in the name of an image."""
    match = _TIME.search(image)
    try:
        if match:
            moment = datetime.strptime(match[1], "%Y_%m_%d_%H_%M_%S").replace(tzinfo=UTC)  # no hour comes twice
            return moment.timestamp() + int(match[2]) / 1000
    except ValueError:
        pass
    raise _LineError(
        f"the image {image[:80]!r} has no time in its name, such as center_2016_12_01_13_30_48_287.jpg",
        "keep the names that the simulator gives",
    )


def _separator(text: str, fields: list[str], error: _LineError) -> tuple[str, str]:
    """Return fault and fix of a line. A wrong number of columns may come from its separator."""
    if len(fields) == len(COLUMNS):
        return error.fault, error.fix
    for separator, plural in _SEPARATORS.items():
        if text.count(separator) >= len(COLUMNS) - 1:
            return f"{error.fault} (it is separated by {plural})", "save it with commas, and points in numbers"
    if len(fields) == len(COLUMNS) + 1 and fields[0].isdecimal():
        return f"{error.fault} (it begins with an index, {fields[0][:20]})", "remove the index column"
    if len(fields) > len(COLUMNS):
        return error.fault, "remove other columns, and write numbers with a point, 0.25 for 0,25"
    return error.fault, error.fix
