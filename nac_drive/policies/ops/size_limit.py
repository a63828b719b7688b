"""A limit on the memory that a driver's settings take.

Anybody may have written the file that a driver is built from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_SHAPED = {torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn, torch.full, torch.Tensor.new_zeros}
_STEPS = {torch.linspace, torch.logspace}


class _Limit(TorchFunctionMode):
    """Counts the elements of new tensors and masks.

    They are counted before they are made.
    """

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.left = self.elements = elements

    def take(self, count: int) -> None:
        """Count elements.

        Raises:
            ValueError: They exceed the limit.
        """
        self.left -= count
        if self.left < 0:
            raise ValueError(f"its settings ask for more than {self.elements:,} numbers, too many for these weights.")

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count what a function that makes tensors will make."""
        kwargs = kwargs or {}
        if func in _SHAPED:
            self.take(math.prod(_shape(args[1:] if func is torch.Tensor.new_zeros else args, kwargs)))
        elif func is torch.randint:
            self.take(math.prod(kwargs["size"] if "size" in kwargs else args[-1]))
        elif func in _STEPS:
            self.take(kwargs["steps"] if "steps" in kwargs else args[2])
        elif func is torch.eye:
            self.take(args[0] * args[-1])
        elif func in (torch.arange, torch.randperm):
            self.take(math.ceil(args[0] if len(args) == 1 else args[1] - args[0]))
        return func(*args, **kwargs)


def _shape(args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[int]:
    if "size" in kwargs:
        return kwargs["size"]
    return args if isinstance(args[0], int) else args[0]


_PRESENT: ContextVar[_Limit | None] = ContextVar("limit", default=None)


@contextmanager
def elements_of_at_most(elements: int) -> Iterator[None]:
    """Limit the elements of tensors and masks.

    More of them are refused in the `with` block.

    Raises:
        ValueError: More are asked for.
    """
    with _Limit(elements) as limit:
        token = _PRESENT.set(limit)
        try:
            yield
        finally:
            _PRESENT.reset(token)


def is_limited() -> bool:
    """Return whether a limit is in force."""
    return _PRESENT.get() is not None


def count_mask(*shape: int) -> None:
    """Count a mask that numpy will make.

    Raises:
        ValueError: It exceeds the limit of the `with` block.
    """
    if limit := _PRESENT.get():
        limit.take(math.prod(shape))
