"""Checks of settings: type and range, in one line.

Free of torch.
"""

from __future__ import annotations

import math
import reprlib
from typing import Any

import numpy as np

from nac_drive.arguments import require_number
from nac_drive.plain import plain


def check_whole(name: str, value: Any, least: int, most: int) -> None:
    """Check a whole number.

    Args:
        name: The start of the error message.
        value: The setting.
        least: The smallest number allowed.
        most: The largest number allowed.

    Raises:
        ValueError: It is no int, or outside [least, most].
    """
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, got {value!r}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}.")
    if value > most:
        raise ValueError(f"{name} must be at most {most:,}, got {value:,}.")


def check_number(name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> None:
    """Check a finite number in [least, most].

    Raises:
        ValueError: It is no number, not finite, or outside [least, most].
    """
    value = require_number(name, value)
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}.")
    if not least <= value <= most:
        raise ValueError(f"{name} must lie in [{least:g}, {most:g}], got {value}.")


def check_type(name: str, value: Any, kind: type) -> None:
    """Check the type of a setting.

    Raises:
        ValueError: It has another one.
    """
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be of type {kind.__name__}, got {value!r}.")


def check_words(name: str, value: Any) -> None:
    """Check a tuple of words.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(value, tuple) or not all(isinstance(word, str) for word in value):
        raise ValueError(f"{name} must be a tuple of words, got {value!r}.")


def check_positive(name: str, value: Any, most: float, hint: str) -> None:
    """Check a number above 0 and at most `most`. `hint` ends the error message.

    Raises:
        ValueError: It is no such number.
    """
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {value!r}; {hint}.")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value}; {hint}.")
    if value > most:
        raise ValueError(f"{name} must be at most {most:,g}, got {value:g}; {hint}.")


def seconds(dt: Any) -> float:
    """Return a number of seconds as a number of Python.

    It may be of numpy or torch.

    Raises:
        ValueError: It is no number.
    """
    number = plain(np.asarray(dt))
    if not isinstance(number, int | float):
        raise ValueError(f"dt: must be a number of seconds since the previous frame, got {reprlib.repr(dt)}.")
    return float(number)
