"""Numbers of numpy, and texts that YAML takes for no number, as numbers of Python.

JSON, YAML and gymnasium take those alone.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import numpy as np

_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def plain(value: Any) -> Any:
    """Return a number of numpy, or an array of one number without axes, as Python's.

    Tuples, lists and dicts are gone through. Anything else is returned as it is.
    """
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return type(value)(map(plain, value))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def plain_fields(config: Any) -> None:
    """Turn numbers of numpy in the fields of a frozen dataclass into Python's, in place."""
    for field in fields(config):
        object.__setattr__(config, field.name, plain(getattr(config, field.name)))


def whole(name: str, value: Any, least: int | None = None) -> int:
    """Return a whole number of Python or numpy as Python's.

    Args:
        name: The start of the error message.
        value: The number.
        least: The smallest number allowed; None for no limit.

    Raises:
        ValueError: It is no whole number, or less than `least`.
    """
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, int):
        raise ValueError(f"{name} must be a whole number, got {number!r}.")
    if least is not None and number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}.")
    return number


def yaml_number(value: Any) -> Any:
    """Return a text such as 1e-3 as a number: YAML 1.1 wants 1.0e-3.

    Other values are returned as they are.
    """
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value
