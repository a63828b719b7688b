"""Which keys a query attends to: selections (NAC paper, Algorithm 2 and its predecessors) and masks.

A selection is a function `(q, k, allowed, top_k) -> (index, kept)`:
    q (B, H, Tq, D), k (B, H, Tk, D), allowed bool broadcastable to (B, H, Tq, Tk) or None (everything is allowed)
    index (B, H, Tq, K) positions of the kept keys, or None for all keys in order
    kept bool broadcastable to (B, H, Tq, K), False where a slot holds a key that is not allowed; None if all are

It chooses; it never weighs. No gradient flows through the choice.
Masks take the queries to be the last Tq of the Tk key positions, so they serve full sequences and streams alike.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Selected = tuple[Tensor | None, Tensor | None]


def pairwise(q: Tensor, k: Tensor, allowed: Tensor | None, top_k: int) -> Selected:
    """Every allowed key (NAC-PW); `top_k` plays no part."""
    return None, allowed


def topk(q: Tensor, k: Tensor, allowed: Tensor | None, top_k: int) -> Selected:
    """The `top_k` allowed keys with the largest q.k, in no particular order; all keys if there are no more."""
    if top_k >= k.shape[2]:
        return None, allowed
    with torch.no_grad():
        scores = q @ k.transpose(2, 3)  # (B, H, Tq, Tk)
        if allowed is None:
            return scores.topk(top_k, dim=-1, sorted=False).indices, None
        values, index = scores.masked_fill_(~allowed, -torch.inf).topk(top_k, dim=-1, sorted=False)
        return index, values != -torch.inf  # (B, H, Tq, K) twice


SELECTIONS: dict[str, Callable[[Tensor, Tensor, Tensor | None, int], Selected]] = {
    "topk": topk,
    "pairwise": pairwise,
}


def causal(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """(Tq, Tk) bool: a query sees its own position and everything before it."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril_(keys - queries)


def sliding_window(queries: int, keys: int, window: int, device: torch.device | None = None) -> Tensor:
    """(Tq, Tk) bool: a query sees its own position and the `window - 1` before it."""
    return causal(queries, keys, device).triu_(keys - queries - window + 1)


def valid_keys(valid: Tensor) -> Tensor:
    """(B, Tk) bool, False for padding -> (B, 1, 1, Tk)."""
    return valid[:, None, None, :]
