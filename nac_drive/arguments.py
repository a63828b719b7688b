"""Checks of arguments where they enter the package.

Each check raises one line with the argument, the rule, the value and the fix. It runs before any work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path, PurePath
from typing import Any, TypeVar

import numpy as np

from nac_drive.plain import plain

_LONGEST = 100
"""Characters of a value that a message shows."""
_PLAIN = (type(None), bool, int, float, str, bytes, list, tuple, dict, set, range, PurePath, np.generic)
"""Types of values that a message shows as code; others are named by their type."""


def value_text(value: Any) -> str:
    """Return a value as one short line for an error."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} {value.shape}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if not isinstance(value, _PLAIN):
        return _one(type(value))
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _one(kind: type) -> str:
    """Return the name of a type with its article."""
    if kind is Mapping:
        return "a dict"
    return f"{'an' if kind.__name__[0] in 'AEIOUaeiou' else 'a'} {kind.__name__}"


def require_kind(name: str, value: Any, kind: type, fix: str = "", *, optional: bool = False) -> None:
    """Check the type of an argument.

    Args:
        name: The argument, for the error.
        value: Its value.
        kind: Its type.
        fix: The advice; by default to call `kind` with a number, text or dict that was given.
        optional: Whether None will do.

    Raises:
        ValueError: It has another type.
    """
    if isinstance(value, kind) or (optional and value is None):
        return
    fix = fix or f"pass {_call(kind, value)}"
    raise ValueError(f"{name} must be {_one(kind)}{' or None' * optional}, got {value_text(value)}; {fix}.")


def _call(kind: type, value: Any) -> str:
    """Return the call that the user may have meant."""
    if isinstance(value, Mapping):
        return f"{kind.__name__}(**{value_text(value)})"
    if isinstance(value, str | int | float):
        return f"{kind.__name__}({value_text(value)})"
    return f"{kind.__name__}()" if value is kind else f"{kind.__name__}(...)"


def require_flag(name: str, value: Any) -> None:
    """Check a bool.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(plain(value), bool):
        raise ValueError(f"{name} must be True or False, got {value_text(value)}.")


def require_number(name: str, value: Any) -> float:
    """Return a number as Python's.

    Raises:
        ValueError: It is none; a bool is none.
    """
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"{name} must be a number, got {value_text(number)}.")
    return number


def require_text(name: str, value: Any, fix: str) -> None:
    """Check a text. `fix` ends the error message.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, got {value_text(value)}; {fix}.")


def _require_function(name: str, value: Any) -> None:
    """Check a function that is called later.

    Raises:
        ValueError: It cannot be called.
    """
    if not callable(value):
        raise ValueError(f"{name} must be a function, got {value_text(value)}; leave it out for none, or pass one.")


def _require_pool(name: str, pool: Any) -> None:
    """Check an argument `pool`.

    Raises:
        ChildProcessError: One of its processes died.
        ValueError: It is neither None nor a pool of processes, or has ended.
    """
    if pool is None or (callable(getattr(pool, "imap", None)) and callable(getattr(pool, "imap_unordered", None))):
        getattr(pool, "require_open", lambda: None)()
        return
    count = pool if type(pool) is int else 2
    raise ValueError(
        f"{name} must be a pool of processes, got {value_text(pool)}; use `with worker_pool({count}) as pool:`."
    )


Function = TypeVar("Function", bound=Callable[..., Any])

_SHARED: dict[str, Callable[[str, Any], None]] = {
    "pool": _require_pool, "resume": require_flag,
    "progress": _require_function, "on_step": _require_function, "on_episode": _require_function,
}  # fmt: skip
"""Name of an argument that public functions share, and its check."""


def checks_shared_arguments(function: Function) -> Function:
    """Check the arguments that public functions share.

    The decorated function takes any of `pool`, `resume`, `progress`, `on_step` and `on_episode`, by name alone. It
    raises a ValueError for a wrong one before it does anything, and a ChildProcessError for a pool that lost a process.
    """

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in _SHARED.keys() & kwargs.keys():
            _SHARED[name](name, kwargs[name])
        return function(*args, **kwargs)

    return checked  # type: ignore[return-value]


def path_of(name: str, path: Any) -> Path:
    """Return a text or a path as a path.

    Raises:
        ValueError: It is neither.
    """
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"{name} must be a path, got {value_text(path)}; pass text or a Path.")
    return Path(path)


def as_list(given: Any) -> list[Any]:
    """Return one argument or several as a list.

    Several are a sequence. A text is one.
    """
    return list(given) if isinstance(given, Sequence) and not isinstance(given, str | bytes) else [given]
