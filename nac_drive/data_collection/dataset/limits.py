"""Limits of the files of datasets and action logs.

A file beyond them is an error.
"""

from __future__ import annotations

from nac_drive.storage.read import FileError, one_line

LONGEST_EPISODE = 1_000_000
"""Frames; CarRacing's episodes have at most 1000."""
LARGEST_NUMBER = 3.4028234663852886e38
"""Largest number in an array: training reads them as 32-bit numbers."""
LONGEST_DT = 3600.0
"""Seconds between two observations."""

_ALLOWANCE = 64 * 2**20
"""Bytes that a file of any size may unpack to."""


class DatasetError(FileError):
    """Something is wrong with a dataset. The message is one line: where, the cause, and the fix."""


def unreadable(what: object, error: Exception, fix: str) -> DatasetError:
    """Return the error for a file that cannot be read.

    Args:
        what: The file.
        error: The cause.
        fix: The advice, unless the user may not read the file.
    """
    if isinstance(error, PermissionError):
        return DatasetError(f"{what} cannot be read: permission denied; give this user the right to read it.")
    cause = "the file is missing" if isinstance(error, FileNotFoundError) else one_line(error).rstrip(".")
    return DatasetError(f"{what} cannot be read: {cause}; {fix}.")


def require_size(unpacked: int, stored: int, ratio: int) -> None:
    """Check the declared size of a file before unpacking.

    Args:
        unpacked: Bytes of its arrays.
        stored: Bytes of the file.
        ratio: Largest `unpacked / stored` above 64 MiB.

    Raises:
        DatasetError: If the arrays are larger than a file of this size may hold.
    """
    largest = max(_ALLOWANCE, ratio * stored)
    if unpacked > largest:
        raise DatasetError(
            f"its arrays would unpack to {unpacked:,} bytes, and {stored:,} stored bytes may hold {largest:,}"
        )
