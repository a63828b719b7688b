"""Masks: the keys that a query may see."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """Causal, sliding-window and padding masks, combined.

    They are evaluated for a few queries at a time, so memory stays linear in the length. The queries are the last
    `queries` of the `keys` positions, so one mask serves full sequences and streams alike.
    """

    queries: int
    keys: int
    causal: bool = False
    """A query sees its own position and everything before it."""
    window: int | None = None
    """A query sees its own position and the `window - 1` before it."""
    valid: Tensor | None = None
    """(B, Tk) bool, False for padding."""

    def masked(self, rows: slice, device: torch.device) -> Tensor | None:
        """Return True for masked keys; None if none is masked.

        The mask is broadcastable to (B, H, queries in `rows`, Tk).
        """
        first, last = self.positions(rows)
        parts = []
        if self.valid is not None:
            parts.append(~self.valid[:, None, None, :])  # (B, 1, 1, Tk)
        future = self.forward_only and first < self.keys - 1
        window = self.window if self.window is not None and last >= self.window else None
        if future or window is not None:
            key = torch.arange(self.keys, device=device)
            query = torch.arange(first, last + 1, device=device).unsqueeze(1)
            if future:
                parts.append(key > query)  # (Tq, Tk)
            if window is not None:
                parts.append(key <= query - window)
        return reduce(torch.bitwise_or, parts) if parts else None

    @property
    def forward_only(self) -> bool:
        """Report whether the future is masked."""
        return self.causal or self.window is not None

    def positions(self, rows: slice) -> tuple[int, int]:
        """Return the first and the last query's key positions.

        The queries are in `rows`.
        """
        offset = self.keys - self.queries
        return rows.start + offset, min(rows.stop, self.queries) - 1 + offset
