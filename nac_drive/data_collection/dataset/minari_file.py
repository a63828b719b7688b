"""Folders of Minari of unknown origin.

All about them is checked before Minari reads one.

Minari makes the environment of a dataset without spaces, whose settings may start any program. It follows links and
external storage, and takes memory for all that a file declares. So links, external and virtual storage, filters other
than gzip, and arrays that are not stored whole are refused. Declared sizes are compared with the stored ones.
"""

from __future__ import annotations

import os
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import h5py
import h5py.h5o
import msgspec
import numpy as np
from isal import isal_zlib

from nac_drive.data_collection.dataset.hdf5 import member
from nac_drive.data_collection.dataset.limits import LONGEST_EPISODE, DatasetError, require_size
from nac_drive.envs import image_size
from nac_drive.storage.read import FileError, decode_json, one_line, read_json

LARGEST_RATIO = 100
"""Largest size of an episode's arrays over their stored size, above 64 MiB; 12 to 15 are usual."""
_ARRAYS = ("observations", "actions", "rewards", "terminations", "truncations")
_METADATA, _CONTENT = "metadata.json", "main_data.hdf5"
_DEEPEST = 8
"""Groups inside of groups."""
_LARGEST_ATTRIBUTE = 2**16
"""Bytes of an attribute; larger ones are not stored beside their group."""
_REFERENCE = np.dtype([("length", "<u4"), ("place", "V12")])
"""An element of variable length in a chunk: its length, and its place in the file."""
_FIX = "pass the folder of a dataset of Minari"


class _Space(msgspec.Struct):
    """A space of observations or actions."""

    type: Literal["Box", "Discrete"]
    shape: list[Annotated[int, msgspec.Meta(ge=0, le=2**31)]] = []
    dtype: Annotated[str, msgspec.Meta(pattern=r"^(u?int(8|16|32|64)|float(16|32|64)|bool)$")] = "int64"


class _Metadata(msgspec.Struct):
    """The metadata that Minari needs to open a dataset."""

    total_episodes: Annotated[int, msgspec.Meta(ge=0)]
    total_steps: Annotated[int, msgspec.Meta(ge=0)]
    data_format: Literal["hdf5"]
    observation_space: str
    action_space: str
    dataset_id: str
    minari_version: str
    jpeg_encoding: bool = True


def require_sound(data: Path) -> None:
    """Check a folder that Minari will read.

    Args:
        data: The folder `data` of a dataset, with metadata.json and main_data.hdf5.

    Raises:
        DatasetError: If it is anything else, or would lead out of the folder or take more memory than its size allows.
    """
    for name in (_METADATA, _CONTENT):
        if (data / name).is_symlink() or not (data / name).is_file():
            raise DatasetError(f"{data / name} is no plain file; {_FIX}, without links.")
    try:
        metadata = read_json(data / _METADATA, _Metadata, "the metadata of Minari in hdf5", _FIX)
        spaces = [_space(data / _METADATA, metadata, name) for name in ("observation_space", "action_space")]
    except FileError as error:
        raise DatasetError(str(error)) from error
    frame = tuple(spaces[0].shape) if metadata.jpeg_encoding and _is_image(spaces[0]) else None
    if metadata.jpeg_encoding and _is_image(spaces[1]):
        raise DatasetError(f"{data / _METADATA}: actions are images; {_FIX} of driving.")
    path = data / _CONTENT
    try:
        with path.open("rb") as content, h5py.File(content, "r") as file:
            _Checker(os.fstat(content.fileno()).st_size, frame).check(file, metadata.total_episodes)
    except Exception as error:  # the type that h5py raises on a damaged file depends on the byte that is damaged
        raise DatasetError(
            f"{path} cannot be read: {one_line(error).rstrip('.')}; {_FIX}, or fetch it again."
        ) from error


def _space(path: Path, metadata: _Metadata, name: str) -> _Space:
    """Return a space, whose text has all its limits."""
    text = getattr(metadata, name)
    space = decode_json(text.encode(), _Space, f"{path}: {name}", "one array (Box or Discrete)", _FIX)
    if 4 * prod(space.shape) > len(text):  # a lower and an upper limit of each element, and a comma each
        raise DatasetError(f"{path}: {name} declares {space.shape} in {len(text):,} characters; {_FIX}.")
    return space


def _is_image(space: _Space) -> bool:
    """Return whether Minari may store a space's values as JPEG."""
    return space.dtype == "uint8" and len(space.shape) in (2, 3) and min(space.shape[:2]) >= 32


class _Checker:
    """Checks a file.

    Args:
        size: Bytes of the file.
        frame: Shape of a frame if observations are JPEG files, else None.
    """

    def __init__(self, size: int, frame: tuple[int, ...] | None):
        self._size, self._frame = size, frame
        self._visited: set[int] = set()
        self._stored = 0
        self._declared = 0

    def check(self, file: h5py.File, episodes: int) -> None:
        """Check every episode.

        Raises:
            DatasetError: If one is not sound, or there is another number of them.
        """
        if len(file) != episodes:
            raise DatasetError(f"it holds {len(file):,} episodes, and metadata.json says {episodes:,}")
        for index in range(episodes):
            before, self._declared = self._stored, 0
            episode = self._child(file, f"episode_{index}")
            if not isinstance(episode, h5py.Group):
                raise DatasetError(f"episode_{index} is no group")
            for name in _ARRAYS:
                array = member(episode, name, h5py.Dataset)
                if not array.shape or len(array) > LONGEST_EPISODE + 1:
                    raise DatasetError(
                        f"episode_{index}/{name} is {array.shape}, expected up to {LONGEST_EPISODE:,} rows"
                    )
            self._group(episode, f"episode_{index}", 1)
            require_size(self._declared, self._stored - before, LARGEST_RATIO)
            if self._frame is not None:
                self._images(
                    member(episode, "observations", h5py.Dataset),
                    f"episode_{index}/observations",
                    self._stored - before,
                )

    def _group(self, group: h5py.Group, where: str, depth: int) -> None:
        if depth > _DEEPEST:
            raise DatasetError(f"{where[:200]} is nested too deeply")
        for name in group.attrs:
            attribute = group.attrs.get_id(name)
            if prod(attribute.shape or ()) * attribute.dtype.itemsize > _LARGEST_ATTRIBUTE:
                raise DatasetError(f"attribute {name[:100]} of {where} is {attribute.dtype} {attribute.shape}")
            if name == "seed" and (attribute.shape != () or attribute.dtype.kind not in "iu"):
                raise DatasetError(f"the seed of {where} is {attribute.dtype} {attribute.shape}, expected an integer")
        for name in map(str, group):
            child, place = self._child(group, name), f"{where}/{name}"
            if isinstance(child, h5py.Group):
                self._group(child, place, depth + 1)
            elif isinstance(child, h5py.Dataset):
                self._array(child, place)
            else:
                raise DatasetError(f"{place} is neither a group nor an array")

    def _child(self, group: h5py.Group, name: str) -> Any:
        """Return a member that is neither linked nor renamed."""
        child = member(group, name, object)
        place = h5py.h5o.get_info(child.id).addr
        if place in self._visited:
            raise DatasetError(f"{name} is a link to another place")
        self._visited.add(place)
        return child

    def _array(self, array: h5py.Dataset, where: str) -> None:
        """Add the declared and the stored size of an array."""
        plan = array.id.get_create_plist()
        layout = plan.get_layout()
        filters = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]
        if array.shape is None or plan.get_external_count() or layout == h5py.h5d.VIRTUAL:
            raise DatasetError(f"{where} is not stored in the file")
        if filters not in ([], [h5py.h5z.FILTER_DEFLATE]):
            raise DatasetError(f"{where} is stored with another filter than gzip")
        variable = array.dtype.kind == "O"
        if array.dtype.kind not in "iufbcSO" or (variable and _element(array.dtype) is None):
            raise DatasetError(f"{where} is {array.dtype}, expected numbers, text or bytes")
        if variable and (filters or layout != h5py.h5d.CHUNKED):
            raise DatasetError(f"{where} has elements of variable length that are not stored in plain chunks")
        width = _REFERENCE.itemsize if variable else array.dtype.itemsize
        if layout == h5py.h5d.CHUNKED:
            self._chunks(array, where, width, bool(filters), variable)
            return
        declared = prod(array.shape) * width
        if array.id.get_storage_size() != declared or declared > self._size:
            raise DatasetError(f"{where} is not stored whole")
        self._add(where, declared, declared)

    def _chunks(self, array: Any, where: str, width: int, packed: bool, variable: bool) -> None:
        """Check the chunks of an array, one by one.

        It takes no more memory than one of them.
        """
        steps: tuple[int, ...] = array.chunks  # type: ignore[assignment]
        size = prod(steps) * width
        places = [range(0, length, step) for length, step in zip(array.shape, steps, strict=True)]
        count = prod(map(len, places))
        if array.id.get_num_chunks() != count:
            raise DatasetError(f"{where} is not stored whole")
        stored = array.id.get_storage_size()
        self._add(where, count * size, stored)
        require_size(self._declared, self._stored, LARGEST_RATIO)
        for place in product(*places):
            chunk = array.id.get_chunk_info_by_coord(place)
            if chunk.byte_offset is None or chunk.filter_mask or chunk.byte_offset + chunk.size > self._size:
                raise DatasetError(f"{where} is not stored whole")
            if packed:
                stream = isal_zlib.decompressobj()
                content = stream.decompress(array.id.read_direct_chunk(place)[1], size + 1)
                if len(content) != size or not stream.eof:
                    raise DatasetError(f"a chunk of {where} is not {size:,} bytes")
            elif chunk.size != size:
                raise DatasetError(f"a chunk of {where} is not {size:,} bytes")
            if variable:
                lengths = np.frombuffer(array.id.read_direct_chunk(place)[1], _REFERENCE)["length"]
                elements = int(lengths.sum(dtype=np.int64)) * (_element(array.dtype) or 1)
                self._add(where, elements, elements)

    def _add(self, where: str, declared: int, stored: int) -> None:
        self._declared += declared
        self._stored += stored
        if self._stored > self._size:
            raise DatasetError(f"{where} is larger than the file")

    def _images(self, array: h5py.Dataset, where: str, stored: int) -> None:
        """Check the sizes of JPEG files before Minari unpacks them."""
        assert self._frame is not None
        require_size(len(array) * prod(self._frame), stored, LARGEST_RATIO)
        for index in range(len(array)):
            size = image_size(np.asarray(array[index], np.uint8).tobytes())
            if size != self._frame[:2]:
                raise DatasetError(f"image {index} of {where} is {size}, expected {self._frame[:2]}")


def _element(dtype: np.dtype) -> int | None:
    """Return the bytes of an element of variable length.

    A character counts, too; None for other objects.
    """
    if h5py.check_string_dtype(dtype) is not None:
        return 1
    base = h5py.check_vlen_dtype(dtype)
    return None if base is None or base.kind not in "iufb" else base.itemsize
