"""Time stamps as ages of keys."""

from __future__ import annotations

from torch import Tensor


def ages(times: Tensor, context_times: Tensor | None = None) -> Tensor:
    """Seconds from each key to each query, to be passed to NAC as `times`: (B, Tq), (B, Tk) -> (B, Tq, Tk).

    Both are timestamps in seconds, `context_times` those of the keys if they are not the queries' own. Keys that lie
    ahead of a query have a negative age. Raises ValueError if timestamps are not finite or run backwards.
    """
    keys = times if context_times is None else context_times
    for name, stamps in (("times", times), ("context_times", keys)):
        if stamps.dim() != 2 or stamps.shape[0] != times.shape[0]:
            raise ValueError(f"{name}: shape must be (B, T) with one B for both, got {tuple(stamps.shape)}.")
        if not stamps.isfinite().all():
            raise ValueError(f"{name}: must be finite, got NaN or infinity.")
        step = stamps.diff(dim=1)
        if (step < 0).any():
            raise ValueError(
                f"{name}: must not decrease along the sequence, got a step of {step.min():g} s; sort them."
            )
    return times.unsqueeze(2) - keys.unsqueeze(1)
