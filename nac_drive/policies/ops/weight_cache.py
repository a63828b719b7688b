"""Weights derived from parameters, computed once without gradients."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


class WeightCache(Generic[T]):
    """Cache of a value that tensors decide.

    It is valid until one of the tensors changes.

    While gradients are recorded, or the model is compiled, every call computes. Otherwise three things reveal a change:
    the identity of the tensors, the address of their data (`.to`), and torch's version counters, which every in-place
    operation increments (optimizers, load_state_dict). A write through `parameter.data` goes unnoticed.
    """

    def __init__(self) -> None:
        self._tensors: tuple[Tensor, ...] = ()
        self._places: list[int] = []
        self._versions: list[int] = []
        self._value: T | None = None
        self._frozen = False

    def freeze(self) -> None:
        """Keep the last value, as a constant of an export."""
        self._frozen = self._value is not None

    def __call__(self, tensors: tuple[Tensor, ...], compute: Callable[[], T]) -> T:
        if self._frozen and self._value is not None:
            return self._value
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return compute()
        versions, places = [tensor._version for tensor in tensors], [*map(Tensor.data_ptr, tensors)]
        same = len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))
        if not same or versions != self._versions or places != self._places or self._value is None:
            self._tensors, self._versions, self._places, self._value = tensors, versions, places, compute()
        return self._value

    def __reduce__(self) -> tuple[type[WeightCache[T]], tuple[()]]:
        return WeightCache, ()  # a copied or pickled model starts with an empty cache


def weights_of(*modules: nn.Module) -> tuple[Tensor, ...]:
    """Return the modules' own parameters and buffers. Children are not included."""
    parts = (part for module in modules for part in (module._parameters, module._buffers))
    return tuple(tensor for part in parts for tensor in part.values() if tensor is not None)
