"""Weights derived from parameters, computed once while nobody is training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Memo(Generic[T]):
    """Remembers what `compute` made of some tensors until one of them changes.

    While gradients are recorded (or the model is being compiled) it computes afresh at every call. Otherwise a change
    is noticed by torch's version counters, which every in-place operation moves (optimizers, load_state_dict, `.to`);
    only a write through `parameter.data` escapes them.
    """

    def __init__(self) -> None:
        self._key: tuple[tuple[int, int], ...] | None = None
        self._value: T | None = None

    def __call__(self, tensors: Iterable[Tensor], compute: Callable[[], T]) -> T:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return compute()
        key = tuple((tensor.data_ptr(), tensor._version) for tensor in tensors)
        if key != self._key or self._value is None:
            self._key, self._value = key, compute()
        return self._value

    def __reduce__(self) -> tuple[type[Memo[T]], tuple[()]]:
        return Memo, ()  # a copied or pickled model starts with nothing remembered
