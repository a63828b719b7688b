"""Values that `make test-all` alone tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(quick: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Mark the values for `parametrize` that are not in `quick`."""
    quick, values = list(quick), list(values)
    assert all(value in values for value in quick)
    return [value if value in quick else pytest.param(*_arguments(value), marks=pytest.mark.slow) for value in values]


def _arguments(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
