"""Arrays in an HDF5 file of unknown origin.

All about them is checked before one is unpacked.

Nothing but plain gzip chunks inside of the file itself is read: no links, no virtual or external storage, no other
filter. The chunks are unpacked here, up to their declared size, because the library's own filter has no bound.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from math import prod
from typing import Any

import h5py
import numpy as np
from numpy.typing import DTypeLike, NDArray

from nac_drive.data_collection.dataset.limits import DatasetError

_LONGEST_TEXT = 1000
"""Bytes of the longest text of a fixed size in an attribute."""


class StoredArray:
    """An array of an open file, whole and checked.

    It is of the expected kind; nothing of it is in memory.

    `rows` is the number of rows in a chunk; the last chunk may have fewer.

    Args:
        group: The file, or a group in it.
        name: The name of the array.
        dtype: The expected type of its values.
        shape: The expected shape.
        chunk_rows: The largest number of rows in a chunk.
        size: Bytes of the file.

    Raises:
        DatasetError: If it is missing or anything else.
    """

    def __init__(
        self, group: h5py.Group, name: str, dtype: DTypeLike, shape: tuple[int, ...], chunk_rows: int, size: int
    ):
        dataset = member(group, name, h5py.Dataset)
        plan = dataset.id.get_create_plist()
        if plan.get_layout() != h5py.h5d.CHUNKED or plan.get_external_count():
            raise DatasetError(f"{name} is not stored in chunks of the file")
        if [plan.get_filter(i)[0] for i in range(plan.get_nfilters())] != [h5py.h5z.FILTER_DEFLATE]:
            raise DatasetError(f"{name} is stored with another filter than gzip")
        if dataset.dtype != dtype or dataset.shape != shape:
            raise DatasetError(
                f"{name} is {dataset.dtype} {dataset.shape}, expected {np.dtype(dtype)} {shape} for its length"
            )
        rows, *rest = dataset.chunks
        if tuple(rest) != shape[1:] or not 1 <= rows <= min(chunk_rows, shape[0]):
            raise DatasetError(f"{name} has chunks of {dataset.chunks}, expected up to {chunk_rows} whole rows")
        self.name, self.dtype, self.shape, self.rows = name, np.dtype(dtype), shape, rows
        self._id = dataset.id
        chunks = [self._id.get_chunk_info_by_coord(self._place(number)) for number in range(len(self))]
        if any(chunk.byte_offset is None or chunk.filter_mask for chunk in chunks):
            raise DatasetError(f"{name} is not stored whole")
        self.positions = np.array([chunk.byte_offset for chunk in chunks])
        """(C,): first byte of each chunk in the file."""
        self.sizes = np.array([chunk.size for chunk in chunks])
        """(C,): bytes of each chunk."""
        if sum(chunk.size for chunk in chunks) > size or (self.positions + self.sizes).max() > size:
            raise DatasetError(f"{name} is larger than the file")

    def __len__(self) -> int:
        """Number of chunks, C."""
        return -(-self.shape[0] // self.rows)

    def read(self) -> NDArray[Any]:
        """Return the whole array."""
        return np.concatenate([self.unpack(i, self.packed(i)) for i in range(len(self))])

    def packed(self, number: int) -> bytes:
        """Read a chunk; `unpack` turns it into an array."""
        return self._id.read_direct_chunk(self._place(number))[1]

    def unpack(self, number: int, packed: bytes) -> NDArray[Any]:
        """Return the rows of a chunk. It needs no open file, and other threads run meanwhile.

        Raises:
            DatasetError: If the chunk has another size or is damaged.
        """
        size = self.rows * prod(self.shape[1:]) * self.dtype.itemsize  # the last chunk is stored at full length
        stream = zlib.decompressobj()
        content = stream.decompress(packed, size + 1)
        if len(content) != size or not stream.eof:
            raise DatasetError(f"chunk {number} of {self.name} is not {size} bytes")
        rows = np.frombuffer(content, self.dtype).reshape(self.rows, *self.shape[1:])
        return rows[: self.shape[0] - number * self.rows]

    def _place(self, number: int) -> tuple[int, ...]:
        return (number * self.rows, *(0 for _ in self.shape[1:]))


def member(group: h5py.Group, name: str, kind: type) -> Any:
    """Return a group's member of a kind such as h5py.Dataset.

    Raises:
        DatasetError: If it is missing, of another kind, or a link to another place.
    """
    link = group.get(name, getlink=True)
    if link is None:
        raise DatasetError(f"{name} is missing")
    if not isinstance(link, h5py.HardLink):
        raise DatasetError(f"{name} is a link to another place")
    found = group[name]
    if not isinstance(found, kind):
        raise DatasetError(f"{name} is no {kind.__name__.lower()}")
    return found


def require_members(group: h5py.Group, expected: Sequence[str]) -> None:
    """Check the names of the members of a group.

    Raises:
        DatasetError: If there is another one.
    """
    for name in group:
        if name not in expected:
            raise DatasetError(f"it holds {str(name)[:100]!r}, expected are {', '.join(expected)}")


def attributes(file: h5py.File, expected: Sequence[str]) -> dict[str, Any]:
    """Return the attributes of a file.

    They are single numbers, truth values and strings.

    Raises:
        DatasetError: If there is another one than `expected`, or an array.
    """
    values = {}
    for name in file.attrs:
        if name not in expected:
            raise DatasetError(f"it has an attribute {name[:100]!r}, expected are {', '.join(expected)}")
        found = file.attrs.get_id(name)
        dtype = found.dtype
        single = dtype.kind in "ifb" or (h5py.check_string_dtype(dtype) and dtype.itemsize <= _LONGEST_TEXT)
        if found.shape != () or not single:
            raise DatasetError(f"attribute {name} is {dtype} {found.shape}, expected one number or short text")
        value = file.attrs[name]
        values[name] = value.item() if isinstance(value, np.generic) else value
    return values
