"""Hostile and damaged content, drawn by hypothesis: bytes, JSON, HDF5, npz and safetensors."""

from __future__ import annotations

import copy
import io
import json
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h5py
import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

PATHS = ("../victim.txt", "/victim.txt", "episodes/../../victim.txt", "a\x00b", "x" * 5_000, "\ud800", "", ".", "CON")
NUMBERS = (-1, 0, 1, 2, 7, 255, 2**31, 2**53 + 1, 2**62, 2**64, 10**30, -0.0, 0.5, 5e-324, 1e30, 1e308)

WHOLE = (b"", b"null", b"[" * 5_000, b"\x89HDF\r\n\x1a\n", b"PK\x03\x04", b"\n" * 9)

SCALARS = st.one_of(
    st.none(), st.booleans(), st.sampled_from(NUMBERS), st.sampled_from(PATHS), st.floats(), st.integers(),
    st.text(max_size=6),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


class Content(bytes):
    """Bytes of a file; hypothesis prints them by their size."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


@st.composite
def damaged(draw: DrawFn, content: bytes) -> bytes:
    """`content` with flipped bits, cut off, with bytes put in, doubled, or something else altogether."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(("flip", "flip", "cut", "insert", "repeat", "replace", "other")))
        if kind == "flip" and data:
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del data[place:]
        elif kind == "insert":
            data[place:place] = draw(st.binary(max_size=8))
        elif kind == "repeat":
            data[place:place] = data[place : place + draw(st.integers(1, 64))]
        elif kind == "replace":
            size = draw(st.sampled_from((1, 2, 4, 8)))
            data[place : place + size] = draw(st.sampled_from((b"\x00", b"\xff", b"\x7f", b"9"))) * size
        else:
            data = bytearray(draw(st.sampled_from(WHOLE)))
    return bytes(data)


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place] + [deeper for key, item in inner for deeper in _places(item, (*place, key))]


@st.composite
def other_document(draw: DrawFn, document: Any) -> Any:
    """`document` with other, missing and additional values."""
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        *path, key = draw(st.sampled_from(_places(changed)[1:] or [(None,)]))
        holder = changed
        for step in path:
            holder = holder[step]
        if not isinstance(holder, dict | list) or key is None:
            return draw(VALUES)
        kind = draw(st.sampled_from(("value", "value", "value", "remove", "add", "root")))
        if kind == "value":
            holder[key] = draw(VALUES)
        elif kind == "remove":
            del holder[key]
        elif kind == "root":
            return draw(VALUES)
        elif isinstance(holder, dict):
            holder[draw(st.text(max_size=5))] = draw(VALUES)
        else:
            holder.append(copy.deepcopy(holder[key]))
        if not isinstance(changed, dict | list) or not changed:
            break
    return changed


def _dumped(document: Any) -> bytes:
    return json.dumps(document).encode("utf-8", "surrogatepass")


def json_file(content: bytes) -> SearchStrategy[bytes]:
    """A JSON document, damaged or with other values."""
    return damaged(content) | other_document(json.loads(content)).map(_dumped)


def json_lines(content: bytes) -> SearchStrategy[bytes]:
    """A file of JSON lines, damaged or with other values, rows and orders."""
    rows = [json.loads(line) for line in content.splitlines()]
    return damaged(content) | other_document(rows).map(
        lambda rows: b"".join(_dumped(row) + b"\n" for row in (rows if isinstance(rows, list) else [rows]))
    )


@st.composite
def _array(draw: DrawFn, like: np.ndarray) -> np.ndarray:
    """An array of about the form of `like`, with other values, dtype or shape."""
    kind = draw(st.sampled_from(("value", "value", "dtype", "shape", "scalar")))
    if kind == "value" and like.size and like.dtype.kind in "iufb":
        values = like.copy()
        number = draw(st.floats() if like.dtype.kind == "f" else _integers(like.dtype))
        values.reshape(-1)[draw(st.integers(0, like.size - 1))] = number
        return values
    if kind == "dtype":
        dtype = draw(st.sampled_from(("u1", "i1", "i8", "u8", "f2", "f4", "f8", "c16", "S3", "bool", ">i8")))
        with np.errstate(all="ignore"):
            return np.resize(np.arange(7), like.shape).astype(dtype)
    if kind == "shape":
        shapes = ((0,), (1,), (), like.shape[1:], (*like.shape, 1), (2, *like.shape), like.shape[::-1])
        return np.zeros(draw(st.sampled_from(shapes)), like.dtype)
    return np.array(draw(st.sampled_from((0, -1, 2**40, 1.5, b"x"))))


def _integers(dtype: np.dtype) -> SearchStrategy[int]:
    """Integers that fit into `dtype`. Often the extremes and their neighbours."""
    low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    return st.sampled_from((low, high, max(low, -1), min(high, 5), min(high, 255))) | st.integers(low, high)


@st.composite
def hdf5(draw: DrawFn, content: bytes) -> bytes:
    """An HDF5 file, damaged or with other attributes, arrays, links and storage."""
    if draw(st.integers(0, 3)) == 0:
        return draw(damaged(content))
    with h5py.File.in_memory(bytes(content)) as file:
        for _ in range(draw(st.integers(1, 2))):
            names: list[str] = []
            file.visit(names.append)
            name, kind = draw(st.sampled_from(names)), draw(st.sampled_from(_HDF5_CHANGES))
            with suppress(KeyError, OSError, RuntimeError):  # of HDF5, after changes that it cannot follow itself
                kind(draw, file, name)
        file.flush()
        return file.id.get_file_image()


def _attribute(draw: DrawFn, file: h5py.File, name: str) -> None:
    key = draw(st.sampled_from([*file.attrs, "more"]))
    if draw(st.booleans()) and key in file.attrs:
        del file.attrs[key]
    else:
        value = draw(SCALARS.filter(lambda value: value is not None))
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            value = float(value)
        file.attrs[key] = value.encode("utf-8", "replace").replace(b"\x00", b"") if isinstance(value, str) else value


def _dataset(draw: DrawFn, file: h5py.File, name: str) -> None:
    found = file[name]
    if not isinstance(found, h5py.Dataset) or found.is_virtual or (found.size or 0) > 10**7:
        return
    values = draw(_array(found[()]))
    del file[name]
    options: dict[str, Any] = {}
    if values.size and values.ndim and draw(st.booleans()):
        chunks = tuple(draw(st.sampled_from((1, size, min(size, 16)))) for size in values.shape)
        options = {"chunks": chunks, "compression": draw(st.sampled_from(("gzip", "lzf")))}
    file.create_dataset(name, data=values, **options)


def _remove(draw: DrawFn, file: h5py.File, name: str) -> None:
    if name in file:
        del file[name]


def _link(draw: DrawFn, file: h5py.File, name: str) -> None:
    if name in file:
        del file[name]
    target = draw(st.sampled_from(("soft", "external", "hard", "group", "virtual", "huge")))
    if target == "soft":
        file[name] = h5py.SoftLink(draw(st.sampled_from(("/label", "/", "/nowhere", f"/{name}"))))
    elif target == "external":
        file[name] = h5py.ExternalLink("../victim.h5", "/label")
    elif target == "hard" and len(file):
        file[name] = file[draw(st.sampled_from(list(file)))]
    elif target == "virtual":
        layout = h5py.VirtualLayout((60,), "i8")
        layout[:] = h5py.VirtualSource("../victim.h5", "label", (60,))
        file.create_virtual_dataset(name, layout)
    elif target == "huge":
        file.create_dataset(name, shape=(2**34,), dtype="u1", chunks=(2**16,), compression="gzip")
    else:
        file.create_group(name)


_HDF5_CHANGES: tuple[Callable[[DrawFn, h5py.File, str], None], ...] = (
    _attribute, _attribute, _dataset, _dataset, _remove, _link,
)  # fmt: skip


@st.composite
def npz(draw: DrawFn, content: bytes) -> bytes:
    """An npz archive, damaged or with other members."""
    if draw(st.integers(0, 3)) == 0:
        return draw(damaged(content))
    with np.load(io.BytesIO(content)) as file:
        members = {name: file[name] for name in file.files}
    raw: dict[str, bytes] = {}
    for name, values in members.items():
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, values, allow_pickle=False)
        raw[f"{name}.npy"] = buffer.getvalue()
    name = draw(st.sampled_from(sorted(raw)))
    kind = draw(st.sampled_from(("json", "array", "array", "bytes", "remove", "add", "declared")))
    if kind == "json" and (key := next((key for key in members if members[key].dtype.kind == "S"), None)):
        document = draw(other_document(json.loads(members[key].item())))
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.array(np.bytes_(_dumped(document))), allow_pickle=False)
        raw[f"{key}.npy"] = buffer.getvalue()
    elif kind == "array":
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, draw(_array(members[name.removesuffix(".npy")])), allow_pickle=False)
        raw[name] = buffer.getvalue()
    elif kind == "bytes":
        raw[name] = draw(damaged(raw[name]))
    elif kind == "remove":
        del raw[name]
    elif kind == "add":
        raw[draw(st.sampled_from(("more.npy", "../victim.npy", name)))] = draw(st.binary(max_size=20))
    else:
        descr, buffer = draw(st.sampled_from(("|u1", "<f8", "|O", "<U9"))), io.BytesIO()
        np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": (2**40,)})
        raw[name] = buffer.getvalue()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in raw.items():
            archive.writestr(member, data)
    return file.getvalue()


@st.composite
def safetensors(draw: DrawFn, content: bytes) -> bytes:
    """A safetensors file, damaged, with another header, or with numbers that are not finite."""
    (size,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    kind = draw(st.sampled_from(("bytes", "header", "header", "numbers", "size")))
    if kind == "header":
        changed = _dumped(draw(other_document(header)))
        return struct.pack("<Q", len(changed)) + changed + data
    if kind == "numbers":
        tensor = draw(st.sampled_from([name for name in header if name != "__metadata__"]))
        start, end = header[tensor]["data_offsets"]
        if end - start >= 4 and header[tensor]["dtype"] == "F32":
            place = start + 4 * draw(st.integers(0, (end - start) // 4 - 1))
            number = struct.pack("<f", draw(st.sampled_from((float("nan"), float("inf"), float("-inf"), 1e38))))
            data = data[:place] + number + data[place + 4 :]
        return content[: 8 + size] + data
    if kind == "size":
        return struct.pack("<Q", draw(st.sampled_from((0, 1, 2**40, 2**63, size + 1, len(content))))) + content[8:]
    return draw(damaged(content))
