"""Frames that several processes have driven, counted in a file."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from nac_drive.envs import Step

_EVERY = 25
"""Frames that one byte of the file stands for."""
_SECONDS_BETWEEN_REPORTS = 1.0


def _nothing() -> None:
    """Do nothing."""


@dataclass
class FrameCount:
    """A subscriber of rollouts that counts their frames.

    It may be pickled into other processes of this machine. A process on another machine has no such file, and its
    frames are not counted.
    """

    path: Path
    """The file."""
    steps: int = 0
    """Frames of this process."""
    counted: Callable[[], None] = _nothing
    """Called in this process whenever the file has grown."""

    def __call__(self, step: Step) -> None:
        self.steps += 1
        if self.steps % _EVERY == 0:
            with suppress(OSError):  # a count costs no episode
                file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
                try:
                    os.write(file, b".")
                finally:
                    os.close(file)
            self.counted()

    @property
    def frames(self) -> int:
        """Frames of all processes, in steps of 25."""
        try:
            return _EVERY * self.path.stat().st_size
        except OSError:  # somebody has tidied up
            return 0


@contextmanager
def frame_count() -> Iterator[FrameCount | None]:
    """Count frames for a `with` block; None without a place for temporary files."""
    with ExitStack() as stack:
        count = None
        with suppress(OSError):  # a full disk costs the count alone
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="nac-drive-", ignore_cleanup_errors=True))
            path = Path(folder, "frames")
            path.touch()
            count = FrameCount(path)
        yield count


class FrameReports:
    """Reports of new frames, one a second at most.

    Args:
        count: The count.
        report: Called with a note such as "1,250 frames".
    """

    def __init__(self, count: FrameCount, report: Callable[[str], None]) -> None:
        self._count, self._report = count, report
        self._frames, self._last = 0, time.monotonic()

    def __call__(self) -> None:
        """Report new frames if a second has passed."""
        now = time.monotonic()
        if now - self._last >= _SECONDS_BETWEEN_REPORTS and (frames := self._count.frames) > self._frames:
            self._frames, self._last = frames, now
            self._report(f"{frames:,} frames")
