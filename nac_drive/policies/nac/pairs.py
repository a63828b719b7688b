"""Values of pairs of a query and a key."""

from __future__ import annotations

import torch
from torch import Tensor


def mix_inputs(weight: Tensor, inputs: Tensor, index: Tensor | None) -> Tensor:
    """Return the weighed sum of inputs, (B, H, Tq, F).

    Inputs are (B, Tk, F), weight is (B, H, Tq, K) at the positions `index`.
    """
    if index is not None:
        dense = weight.new_zeros(*weight.shape[:3], inputs.shape[1])  # (B, H, Tq, Tk)
        weight = dense.scatter_add(3, index, weight)
    return weight @ inputs.unsqueeze(1).to(weight.dtype)


def gather(table: Tensor, index: Tensor) -> Tensor:
    """Gather rows (B, H, Tq, K, R) of a table by index.

    The table is (B, H, Tk, R), index (B, H, Tq, K). Each pair costs one row copy.
    """
    batch, heads, keys, width = table.shape
    offset = torch.arange(0, batch * heads * keys, keys, device=index.device).view(batch, heads, 1, 1)
    return table.reshape(-1, width).index_select(0, (index + offset).flatten()).view(*index.shape, width)


def scores(query: Tensor, key: Tensor, index: Tensor | None) -> Tensor:
    """Return the scores q.k of the kept pairs, (B, H, Tq, K).

    Queries are (B, H, Tq, D), keys (B, H, Tk, D), index (B, H, Tq, K); None keeps every key.
    """
    if index is None:
        return query @ key.transpose(2, 3)
    return (query.unsqueeze(3) * gather(key, index)).sum(dim=4)


def straight_through(query: Tensor, key: Tensor, index: Tensor | None) -> Tensor:
    """Return zeros that pass gradients to scores.

    They are (B, H, Tq, K), with the gradient of the score q M k of each kept pair.

    The score of a key rises where a larger logit would lower the loss, so useful keys are kept more often.
    """
    score = scores(query, key, index)
    return score - score.detach()
