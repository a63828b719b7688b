"""Selection of the keys that a query attends to.

Source: NAC paper, Algorithm 2 and earlier text.

A selection is a function `(k, mask, top_k) -> Selection` of the keys k (B, H, Tk, D). No gradient flows through it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nac_drive.policies.nac.masks import Mask

Choice = tuple[Tensor | None, Tensor | None]
"""index (B, H, Tq, K): positions of the kept keys, or None for all keys in order; and masked, bool broadcastable to
(B, H, Tq, K), True where a slot holds a key that is not allowed, or None if all slots are valid."""


class Selection(NamedTuple):
    """A selection at work on given keys."""

    choose: Callable[[Tensor, slice], Choice]
    """`choose(q, rows)` for the queries q (B, H, Tq, D), those in `rows` of all queries."""
    kept: int
    """Keys kept per query, K."""
    everything: bool = False
    """Every allowed key is kept."""


def pairwise(k: Tensor, mask: Mask, top_k: int) -> Selection:
    """Keep every allowed key (NAC-PW). `top_k` has no effect."""
    return Selection(lambda q, rows: (None, mask.masked(rows, k.device)), k.shape[2], everything=True)


TIE = 2.0**-12
"""Scores q.k that differ by less than about this fraction of |q||k| tie. Equal frames have equal scores, and rounding
differs between a stream and its whole sequence, so a choice by the scores alone would differ as well."""
FLOOR = 1e-10
"""Added to |q| and |k|, so that zeros tie as well."""


def topk(k: Tensor, mask: Mask, top_k: int) -> Selection:
    """Keep the `top_k` allowed keys with the largest scores.

    Their order is free. All keys are kept if there are no more.

    The score of the query at position i and the key at position j breaks ties by age: the younger key is kept.

        q.k - TIE (|q| + FLOOR) (|k| + FLOOR) (i - j) / W

    W is the window, or Tk without one. The second term is two more features of q and k: no T x T step more. It is left
    out where the window holds no more than `top_k` keys, because then no allowed key is left out.
    """
    keys = k.shape[2]
    if top_k >= keys:
        return pairwise(k, mask, top_k)
    k, span = k.detach(), mask.window or keys
    if span > top_k:
        norm = torch.linalg.vector_norm(k, dim=3, keepdim=True) + FLOOR  # (B, H, Tk, 1)
        position = torch.arange(keys, device=k.device, dtype=k.dtype).unsqueeze(1)  # (Tk, 1)
        k = torch.cat((k, norm, norm * position), dim=3)  # (B, H, Tk, D + 2)

    def choose(q: Tensor, rows: slice) -> Choice:
        q = q.detach()
        if span > top_k:
            first, last = mask.positions(rows)
            own = torch.arange(first, last + 1, device=q.device, dtype=q.dtype).unsqueeze(1)  # (Tq, 1)
            norm = TIE / span * (torch.linalg.vector_norm(q, dim=3, keepdim=True) + FLOOR)  # (B, H, Tq, 1)
            q = torch.cat((q, -own * norm, norm), dim=3)  # (B, H, Tq, D + 2)
        scores = q @ k.transpose(2, 3)  # (B, H, Tq, Tk)
        masked = mask.masked(rows, k.device)
        if masked is None:
            return _largest(scores, top_k)[1], None
        values, index = _largest(scores.masked_fill_(masked, -torch.inf), top_k)
        return index, values == -torch.inf

    return Selection(_in_parts(choose, k.shape[2]), top_k)


def block(k: Tensor, mask: Mask, top_k: int, size: int | None = None) -> Selection:
    """Keep the `top_k` best keys of the best blocks (Algorithm 2).

    It costs O(T sqrt T): the full score matrix is never built.

    The keys are cut into blocks of `size`, floor(sqrt(Tk)) by default (the last may be shorter). A query scores their
    means, takes the ceil(K / size) best blocks, and the K best keys in them: an approximation of `topk`, equal to it
    where one block holds every key.

    Padding counts neither in a mean nor as a key. Where the future is masked, the mean of a block that a query sees in
    part would depend on masked keys. Such blocks (its own, and the one at the far end of its window) are always
    searched, besides the best of those that it sees whole.
    """
    batch, heads, keys, width = k.shape
    if top_k >= keys:
        return pairwise(k, mask, top_k)
    k = k.detach()
    size = math.isqrt(keys) if size is None else size
    count = -(-keys // size)
    wanted = min(-(-top_k // size), count)
    padded = F.pad(k, (0, 0, 0, count * size - keys)) if count * size > keys else k
    blocks = padded.unflatten(2, (count, size))  # (B, H, N, S, D)
    position = torch.arange(count * size, device=k.device)
    usable = (position < keys).unsqueeze(0)  # (1, N S)
    if mask.valid is not None:
        usable = usable & F.pad(mask.valid, (0, count * size - keys))  # (B, N S)
    usable = usable.unflatten(1, (count, size))  # (B or 1, N, S)
    members = usable.sum(dim=2).clamp(min=1)[:, None, :, None]  # (B or 1, 1, N, 1)
    means = (blocks * usable[:, None, :, :, None]).sum(dim=3) / members  # (B, H, N, D)
    table = blocks.reshape(batch * heads * count, size * width)
    always = 0 if not mask.forward_only else 1 if mask.window is None else 2
    kept = min(top_k, (wanted + always) * size)

    def choose(q: Tensor, rows: slice) -> Choice:
        q = q.detach()
        eligible = usable.any(dim=2)[:, None, None, :]  # (B or 1, 1, 1, N)
        number = torch.arange(count, device=k.device)
        first, last = mask.positions(rows)
        here = torch.arange(first, last + 1, device=k.device).unsqueeze(1)  # (Tq, 1) position of the query
        partial = []
        if mask.forward_only:
            own = here // size
            eligible = eligible & (number < own)
            partial.append((own, own >= 0))
        if mask.window is not None:
            oldest = (here - mask.window + 1).div(size, rounding_mode="floor")
            eligible = eligible & (number > oldest)
            partial.append((oldest.clamp(min=0), (oldest >= 0) & (oldest < here // size)))
        scores = (q @ means.transpose(2, 3)).masked_fill(~eligible, -torch.inf)  # (B, H, Tq, N)
        values, chosen = _largest(scores, wanted)
        valid = values != -torch.inf  # (B, H, Tq, M)
        for which, whole in partial:
            chosen = torch.cat((chosen, which.expand(*chosen.shape[:3], 1)), dim=3)
            valid = torch.cat((valid, whole.expand(*valid.shape[:3], 1)), dim=3)
        index = (chosen.unsqueeze(4) * size + torch.arange(size, device=k.device)).flatten(3)  # (B, H, Tq, M S)
        start = torch.arange(0, batch * heads * count, count, device=k.device).view(batch, heads, 1, 1)
        candidates = table.index_select(0, (chosen + start).flatten()).view(*index.shape, width)
        fine = (candidates * q.unsqueeze(3)).sum(dim=4)  # (B, H, Tq, M S)
        if not partial and mask.valid is None and count * size == keys:
            return index.gather(3, _largest(fine, kept)[1]), None
        usable_rows = usable.flatten(1)[:, None, None, :].expand(*index.shape[:3], -1)
        valid_slots = valid.repeat_interleave(size, dim=3) & usable_rows.gather(3, index)
        if mask.forward_only:
            valid_slots = valid_slots & (index <= here)
        if mask.window is not None:
            valid_slots = valid_slots & (index > here - mask.window)
        values, slot = _largest(fine.masked_fill(~valid_slots, -torch.inf), kept)
        # a slot without a key points at key 0, which is always there
        empty = values == -torch.inf
        return index.gather(3, slot).masked_fill(empty, 0), empty

    return Selection(_in_parts(choose, (wanted + always) * size * width), kept)


SELECTIONS: dict[str, Callable[[Tensor, Mask, int], Selection]] = {"topk": topk, "block": block, "pairwise": pairwise}


def _in_parts(choose: Callable[[Tensor, slice], Choice], width: int) -> Callable[[Tensor, slice], Choice]:
    """Choose for a few queries at a time.

    The result is the same.

    The `width` numbers per query then stay in the caches; reused memory also avoids fresh pages of the system.
    """

    def choose_in_parts(q: Tensor, rows: slice) -> Choice:
        batch, heads, queries, _ = q.shape
        size = max(1, _NUMBERS_HELD // (batch * heads * width))
        if queries <= size:
            return choose(q, rows)
        parts = [
            choose(q[:, :, start : start + size], slice(rows.start + start, min(rows.start + start + size, rows.stop)))
            for start in range(0, queries, size)
        ]
        index = [index for index, _ in parts if index is not None]
        masked = [masked for _, masked in parts]
        if all(m is None for m in masked):
            return torch.cat(index, dim=2), None
        filled = [torch.zeros_like(i, dtype=torch.bool) if m is None else m for i, m in zip(index, masked, strict=True)]
        return torch.cat(index, dim=2), torch.cat(filled, dim=2)

    return choose_in_parts


_NUMBERS_HELD = 2**20


def _largest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest values and their positions.

    They are largest along the last axis; their order is free.

    Long rows are folded first: the largest elements lie in the columns whose maximum over the folds is largest. Fewer
    elements then reach torch.topk, whose cost per element is several times the cost of a maximum.
    """
    if count == 1:  # many times faster than topk
        values, index = scores.max(dim=-1, keepdim=True)
        return values, index
    length = scores.shape[-1]
    folds = length // (64 * count)  # torch.topk is fast from 64 elements per wanted one
    if folds < 4 or scores.device.type != "cpu":
        return scores.topk(count, dim=-1, sorted=False)
    columns = length // folds
    folded = reduce(torch.maximum, scores.split(columns, dim=-1)[:folds])  # (..., columns)
    column = folded.topk(count, dim=-1, sorted=False).indices
    rest = torch.arange(folds * columns, length, device=scores.device).expand(*scores.shape[:-1], -1)
    places = torch.cat([*(column + fold * columns for fold in range(folds)), rest], dim=-1)
    values, slot = scores.gather(-1, places).topk(count, dim=-1, sorted=False)
    return values, places.gather(-1, slot)
