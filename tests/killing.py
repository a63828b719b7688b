"""A death at a chosen operation, as by kill -9."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Killed(BaseException):
    """Not an Exception: no clean-up may run."""


class Fuse:
    """Lets `left` calls of the functions that `deadly` wraps pass; the next one dies instead."""

    def __init__(self, left: int = 0) -> None:
        self.left = left

    def deadly(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call` until the fuse has burnt down, then Killed."""

        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            if self.left == 0:
                raise Killed
            self.left -= 1
            return call(*arguments, **keywords)

        return wrapped
