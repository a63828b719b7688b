"""Episodes of a recording that nobody divided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def stretches(items: Iterable[Item], follows: Callable[[Item, Item], bool], frames: int | None) -> Iterator[list[Item]]:
    """Yield stretches without a break.

    A single item that a cut would leave at the end stays with those before it.

    Args:
        items: Images with their times, in their order.
        follows: Whether the second of two neighbours goes on where the first one was.
        frames: Items of a stretch, at least 2; a longer one is cut. None cuts none.
    """
    stretch: list[Item] = []
    for item in items:
        if stretch and not follows(stretch[-1], item):
            yield from _cut(stretch, frames)
            stretch = []
        stretch.append(item)
    if stretch:
        yield from _cut(stretch, frames)


def _cut(stretch: list[Item], frames: int | None) -> Iterator[list[Item]]:
    starts = [0] if frames is None else [*range(0, max(1, len(stretch) - 1), frames)]
    for first, end in zip(starts, [*starts[1:], len(stretch)], strict=True):
        yield stretch[first:end]
