"""The logit of a query-key pair (NAC paper, Eq. 1-3, 15-18).

It solves da/dt = phi - omega a from a(0) = 0 to time t.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

OMEGA_FLOOR = 1e-3
"""The epsilon of Eq. 16: omega never falls below it."""


def exact(phi: Tensor, omega: Tensor, t: Tensor, steps: int) -> Tensor:
    """Return a(t) = phi / omega (1 - exp(-omega t)), Eq. 17. Expm1 is exact as omega t -> 0. `steps` has no effect."""
    return -phi / omega * torch.expm1(-omega * t)


def euler(phi: Tensor, omega: Tensor, t: Tensor, steps: int) -> Tensor:
    """Return a_n after n Euler steps from a_0 = 0 (Eq. 2).

    a_{n+1} = a_n + h (phi - omega a_n), h = t / n.

    The recursion is linear, so its n-th iterate is a_n = phi / omega (1 - (1 - omega h)^n): no loop. A pair takes
    `steps` steps, or as many more as keep omega h < 1, without which Theorem 1 does not hold.
    """
    n = (omega * t).detach().floor().add_(1.0).clamp_(min=steps)
    return -phi / omega * torch.expm1(n * torch.log1p(-omega * t / n))


def steady(phi: Tensor, omega: Tensor, t: Tensor, steps: int) -> Tensor:
    """Return a* = phi / omega, Eq. 18: the limit of long times. `t` and `steps` have no effect."""
    return phi / omega


MODES: dict[str, Callable[[Tensor, Tensor, Tensor, int], Tensor]] = {"exact": exact, "euler": euler, "steady": steady}

PHI_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "linear": torch.positive,
}
"""Activations of phi: Eq. 15 and the variants of appendix D.2, which allow negative logits."""
