"""A hash of an object that drives."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import lru_cache, partial
from logging import Logger
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

DEEPEST = 24
"""Values that lie deeper in others do not count."""


def object_hash(value: Any) -> str:
    """Return the SHA-256 of an object.

    It covers its source files, its weights and its attributes.

    Two objects of the same code and the same values have the same hash, in every process. Values that cannot be read,
    such as open files, count by their type alone.

    Args:
        value: An object, a function or a module of torch.
    """
    digest = hashlib.sha256()
    _add(digest, value, {}, 0)
    return digest.hexdigest()


def _add(digest: Any, value: Any, seen: dict[int, tuple[int, Any]], depth: int) -> None:
    """Add a value and its parts to a digest."""
    digest.update(type(value).__qualname__.encode())
    if value is None or isinstance(value, str | bytes | int | float | complex | type(...)):
        digest.update(repr(value).encode())
        return
    if id(value) in seen or depth > DEEPEST:
        digest.update(str(seen.get(id(value), ("",))[0]).encode())
        return
    seen[id(value)] = len(seen), value  # it stays, so that no other value gets its number
    for part in _parts(value):
        _add(digest, part, seen, depth + 1)


def _parts(value: Any) -> list[Any]:
    """Return the parts of a value, bytes or values."""
    if isinstance(value, type):
        return [value.__qualname__, *(part for kind in value.__mro__ for part in _definition(kind))]
    if isinstance(value, np.ndarray | np.generic):
        return [repr((value.dtype, value.shape)), np.asarray(value).tobytes() if not value.dtype.hasobject else b""]
    if _is_tensor(value):
        if sys.modules["torch"].nn.parameter.is_lazy(value):  # it waits for its first input
            return []
        flat = value.detach().cpu().contiguous().flatten()
        return [repr((value.dtype, value.shape)), flat.view(sys.modules["torch"].uint8).numpy()]
    if hasattr(getattr(value, "policy", None), "state_dict"):  # a model of stable-baselines3, without its buffers
        return [type(value).__qualname__, value.policy]
    if hasattr(value, "state_dict"):  # a module of torch
        modules = value.named_modules() if hasattr(value, "named_modules") else [("", value)]
        return [dict(value.state_dict()), {name: [type(module), _settings(module)] for name, module in modules}]
    if isinstance(value, Mapping):
        return [part for name in sorted(value, key=repr) for part in (name, value[name])]
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, ModuleType | BuiltinFunctionType):
        return [value.__name__]
    if isinstance(value, CodeType):
        return [value.co_code, value.co_names, value.co_consts]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, FunctionType):
        used = [value.__globals__.get(name) for name in _names(value.__code__)]
        parts = [value.__code__, value.__defaults__, value.__kwdefaults__, used, source_hash(value.__module__)]
        return [*parts, *(cell for cell in value.__closure__ or () if cell != CellType())]
    if isinstance(value, CellType):
        return [value.cell_contents]
    if isinstance(value, staticmethod | classmethod):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget]
    if isinstance(value, Logger):  # it knows every other one
        return [value.name]
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [type(value), vars(value) if hasattr(value, "__dict__") else {}, [getattr(value, name, 0) for name in slots]]


def _settings(module: Any) -> dict[str, Any]:
    """Return the attributes of a module of torch.

    What torch adds to every module does not count, such as the mode, which driving changes.
    """
    torch = sys.modules.get("torch")
    general = vars(torch.nn.Module()) if torch else {}
    return {name: part for name, part in vars(module).items() if name not in general and _is_setting(part)}


def _is_setting(value: Any) -> bool:
    """Return whether an attribute decides what a module computes.

    A trainer or a logger does not.
    """
    if isinstance(value, Mapping):
        return all(map(_is_setting, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_setting, value))
    plain = None | bool | int | float | complex | str | bytes | np.ndarray | np.generic
    callables = type | partial | FunctionType | BuiltinFunctionType
    return (
        isinstance(value, plain | callables) or is_dataclass(value) or _is_tensor(value) or hasattr(value, "state_dict")
    )


def _is_tensor(value: Any) -> bool:
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)


def _definition(kind: type) -> list[Any]:
    """Return what identifies the code of a class.

    It is the hash of its file, and what its methods use and its attributes are. A class of an installed package, of
    Python or of this one counts by its name and its file.
    """
    package = (kind.__module__ or "").partition(".")[0]
    source = source_hash(kind.__module__)
    if source == b"" or package in sys.stdlib_module_names or package == __name__.partition(".")[0]:
        return [source]
    members = vars(kind).items()  # Python notes things there, some of them later, such as __slotnames__
    return [source, {name: part for name, part in members if isinstance(part, _METHODS) or name[:2] != "__"}]


_METHODS = FunctionType | staticmethod | classmethod | property


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function uses."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


@lru_cache(maxsize=256)
def source_hash(module: str | None) -> bytes | None:
    """Return the hash of a module's file.

    It is empty for an installed module, and None without a file.
    """
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if file is None or not Path(file).is_file():
        return None
    if "site-packages" in Path(file).parts:
        return b""
    return hashlib.sha256(Path(file).read_bytes()).digest()
