"""A stand-in for CUDA graphs on any device.

Operations are recorded, and repeated in the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from nac_drive.policies.ops import graphed as loops


class _Tape(TorchDispatchMode):
    """Records operations. One that reads a value is an error, as in a CUDA graph."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Any]]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket._qualified_op_name
        if name in ("aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::is_nonzero"):
            raise RuntimeError(f"{name} is not permitted while a loop is recorded")
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.calls.append((func, args, kwargs or {}, pytree.tree_leaves(result)))
        return result

    def repeat(self) -> None:
        """Do the same work in the same memory. No line of the function runs."""
        for func, args, kwargs, places in self.calls:
            results = pytree.tree_leaves(func(*args, **kwargs))
            if not func._schema.is_mutable:
                for place, result in zip(places, results, strict=True):
                    place.copy_(result)


@contextmanager
def recorded_loops(device: str = "cpu") -> Iterator[list[int]]:
    """Record loops on a device, and repeat them.

    Yield a list that grows by an entry with every repetition.
    """
    repeated: list[int] = []

    def record(function: Callable[[], tuple[Tensor, ...]]) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
        with _Tape() as tape:
            outputs = function()

        def repeat() -> None:
            repeated.append(len(tape.calls))
            tape.repeat()

        return repeat, outputs

    with patch.dict(loops.CAPTURES, {device: record}):
        try:
            yield repeated
        finally:
            forget_loops()


def forget_loops() -> None:
    """Forget all loops, and all refusals."""
    loops._loops.clear()
    loops._refused.clear()
