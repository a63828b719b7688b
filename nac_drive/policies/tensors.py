"""Read tensors that anybody may have written.

They are compared with what is expected before any memory is allocated.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nac_drive.storage.read import LARGEST_DOCUMENT, FileError, one_line

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


_NONE = "no such tensor"


def read_tensors(path: str | os.PathLike[str], expected: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Read a safetensors file.

    Args:
        path: The file.
        expected: The tensors that it must hold; their names, shapes and dtypes count.
        source: Where they are described, for the error message.

    Returns:
        The tensors by name, on the CPU.

    Raises:
        FileError: The file is damaged, it holds other tensors, or a number is NaN or infinite.
    """
    path = Path(path)
    with _opened(path) as file:
        names = set(file.keys())
        for name in sorted(expected.keys() | names):
            want = _describe(expected[name].dtype, expected[name].shape) if name in expected else _NONE
            have = _NONE
            if name in names:
                header = file.get_slice(name)
                have = _describe(_DTYPES.get(header.get_dtype(), header.get_dtype()), header.get_shape())
            if want != have:
                raise FileError(f"{path}: does not match {source} at {name!r}: expected {want}, got {have}.")
        tensors = {name: file.get_tensor(name) for name in names}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise FileError(f"{path}: {name!r} holds NaN or infinite numbers, as after a training that diverged.")
    return tensors


def saved_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as a safetensors file takes them.

    They are on the CPU, and none shares its memory with another.

    Args:
        state: Tensors by name. Tied weights are one tensor under several names.
    """
    tensors, memory = {}, set[int]()
    for name, tensor in state.items():
        tensor = tensor.detach().cpu().contiguous()
        tensors[name] = tensor.clone() if tensor.untyped_storage().data_ptr() in memory else tensor
        memory.add(tensor.untyped_storage().data_ptr())
    return tensors


def tensor_names(path: str | os.PathLike[str]) -> set[str]:
    """Return the names of the tensors in a safetensors file.

    Raises:
        FileError: The file is damaged.
    """
    with _opened(Path(path)) as file:
        return set(file.keys())


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file whose header is no larger than ours can be.

    Raises:
        FileError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")  # of the header
        if length > LARGEST_DOCUMENT:
            raise FileError(f"{path}: damaged or not a safetensors file (a header of {length:,} bytes).")
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path}: damaged or not a safetensors file ({one_line(error)}).") from error


def _describe(dtype: object, shape: Sequence[int]) -> str:
    return f"{dtype} {tuple(shape)}"
