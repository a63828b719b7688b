"""Frames that stay in their files.

A table of compressed chunks is decoded where rows are read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from nac_drive.data_collection.dataset.hdf5 import StoredArray
from nac_drive.data_collection.dataset.limits import DatasetError


@dataclass(frozen=True)
class FrameChunks:
    """Places of the compressed frames of one episode in its file."""

    path: Path
    version: tuple[int, int]
    """Bytes of the file and time of its last change, in nanoseconds, when it was checked."""
    frames: int
    """Frames in a chunk; the last one may hold fewer."""
    positions: NDArray[np.int64]
    """(C,): first byte of each chunk."""
    sizes: NDArray[np.int64]
    """(C,): bytes of each chunk."""


def frame_chunks(path: Path, frames: StoredArray) -> FrameChunks:
    """Return the places of the chunks in an episode file.

    No frame is decoded.
    """
    status = path.stat()
    return FrameChunks(path, (status.st_size, status.st_mtime_ns), frames.rows, frames.positions, frames.sizes)


class StoredFrames:
    """N frames of episodes end to end, in their files. Reading is safe in several threads.

    A read decodes the chunks that hold its rows, and keeps nothing: memory is 16 bytes a chunk.

    Args:
        files: One per episode.
        offsets: (E + 1,): episode e is the rows offsets[e] to offsets[e + 1].
        frame_shape: Height, width and channels of a frame.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, files: Sequence[FrameChunks], offsets: NDArray[np.int64], frame_shape: tuple[int, int, int]):
        self._files, self._offsets = files, offsets
        self.shape = (int(offsets[-1]), *frame_shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: int | slice) -> NDArray[np.uint8]:
        """Decode frames into a new array.

        Args:
            rows: A slice of step 1, or the number of one frame.

        Returns:
            (n, H, W, 3), or (H, W, 3) for one frame.

        Raises:
            IndexError: There is no such frame.
            TypeError: `rows` is of another kind.
        """
        if isinstance(rows, int | np.integer):
            if not -len(self) <= rows < len(self):
                raise IndexError(f"frame {rows} is out of range: there are {len(self):,} frames.")
            row = int(rows) % len(self)
            return self[row : row + 1][0]
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            raise TypeError(
                f"frames in files are read by a number or a slice of step 1, got {rows!r}; load() gives an array."
            )
        first, end, _ = rows.indices(len(self))
        frames = np.empty((max(end - first, 0), *self.shape[1:]), dtype=np.uint8)
        self.read(first, frames)
        return frames

    def read(self, first: int, frames: NDArray[np.uint8]) -> None:
        """Decode rows into memory.

        Args:
            first: The first row.
            frames: (n, H, W, 3), filled with rows first to first + n; contiguous.

        Raises:
            DatasetError: If a file is missing, damaged or has changed since it was checked.
        """
        row, end = first, first + len(frames)
        while row < end:
            episode = int(np.searchsorted(self._offsets, row, side="right")) - 1
            stop = min(end, int(self._offsets[episode + 1]))
            _read(self._files[episode], row - int(self._offsets[episode]), frames[row - first : stop - first])
            row = stop


def _read(file: FrameChunks, first: int, frames: NDArray[np.uint8]) -> None:
    """Decode the frames of one episode from `first` on."""
    flat = frames.reshape(len(frames), -1)  # (n, bytes of a frame), a view
    try:
        descriptor = os.open(file.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            status = os.fstat(descriptor)
            if (status.st_size, status.st_mtime_ns) != file.version:
                raise DatasetError("it has changed since the training began")
            done = 0
            while done < len(flat):
                chunk, skip = divmod(first + done, file.frames)
                count = min(file.frames - skip, len(flat) - done)
                compressed = _read_at(descriptor, int(file.positions[chunk]), int(file.sizes[chunk]))
                wanted = (skip + count) * flat.shape[1]
                decoded = isal_zlib.decompressobj().decompress(compressed, wanted)
                if len(decoded) != wanted:
                    raise DatasetError(f"{len(decoded)} of {wanted} bytes are stored in chunk {chunk}")
                block = np.frombuffer(decoded, dtype=np.uint8, offset=skip * flat.shape[1])
                flat[done : done + count] = block.reshape(count, -1)
                done += count
        finally:
            os.close(descriptor)
    except Exception as error:  # of the system, of isal, or the ones above
        cause = error.strerror if isinstance(error, OSError) else error
        raise DatasetError(f"episode {file.path} cannot be read: {cause}; check the dataset with `verify`.") from error


def _read_at(descriptor: int, position: int, size: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, position)
    os.lseek(descriptor, position, os.SEEK_SET)  # Windows
    return os.read(descriptor, size)
