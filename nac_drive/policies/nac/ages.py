"""Time stamps as ages of keys."""

from __future__ import annotations

from torch import Tensor


def ages(times: Tensor, context_times: Tensor | None = None) -> Tensor:
    """Compute the seconds from each key to each query.

    They are the `times` of NAC.

    Args:
        times: Time stamps of the queries in seconds, (B, Tq).
        context_times: Time stamps of the keys in seconds, (B, Tk); None for the queries' own.

    Returns:
        (B, Tq, Tk) seconds. A key after its query has a negative age.

    Raises:
        ValueError: Time stamps are not finite or decrease, or a shape does not fit.
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
