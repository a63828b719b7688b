"""Orders of a page that wait for the clock."""

from __future__ import annotations

from collections import deque

from nac_drive.live.messages import Add, Again, Mark, Message, Perturb, Remove, Restart, SetDriver, TakeStep

MOST_ORDERS = 256
"""Orders of a page that may wait."""
DEAR = (Restart, Mark, Again, Add, Remove, SetDriver, Perturb)
"""Orders that may take many milliseconds."""
_BARRIERS = (TakeStep, Mark, Again, Add, Remove, SetDriver)
"""Orders that change the meaning of earlier ones: frames pass, a moment is kept, or other cars have the numbers."""


class Orders:
    """Orders of a page in their order. A later one replaces an earlier one that it makes void."""

    def __init__(self) -> None:
        self._waiting: deque[Message] = deque()

    def put(self, order: Message) -> None:
        """Add an order.

        Raises:
            ValueError: If too many wait; the order is dropped.
        """
        for index in reversed(range(len(self._waiting))):
            earlier = self._waiting[index]
            if _subject(earlier) == _subject(order) is not None:
                del self._waiting[index]
                if isinstance(order, Restart) and isinstance(earlier, Restart) and order.track is None:
                    order = earlier
                break
            if isinstance(earlier, _BARRIERS):
                break
        if len(self._waiting) == MOST_ORDERS:
            raise ValueError(f"{MOST_ORDERS} orders of this page wait; the last one is dropped, send it again.")
        self._waiting.append(order)

    @property
    def first(self) -> Message | None:
        """The next order; None if none waits."""
        return self._waiting[0] if self._waiting else None

    def pop(self) -> Message:
        """Take the next order."""
        return self._waiting.popleft()


def _subject(order: Message) -> tuple[object, ...] | None:
    """Return the thing that an order sets. None if the order adds to earlier ones."""
    if isinstance(order, TakeStep | Mark | Again | Add | Remove):
        return None
    names = ("car", "group", "index") if not isinstance(order, Perturb) else ("name",)
    return type(order), *(getattr(order, name, None) for name in names)
