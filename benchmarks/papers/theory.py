"""The error of freezing phi and omega: the logit ODE with coefficients that vary, beside its closed form.

    da/dt = phi(t) - omega(t) a,   a(0) = 0        closed form: nac_drive.policies.nac.logits.exact at phi(0), omega(0)

Source: NAC paper, Theorem 3 and Table 2 (Appendix B.1.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.integrate import solve_ivp

from nac_drive.policies.nac.logits import MODES

GRID = 2001
"""Points per window at which variations and errors are taken."""


@dataclass(frozen=True)
class Shape:
    """Course of a coefficient over a window: a function of s = t / horizon in [0, 1]."""

    at: Callable[[np.ndarray], np.ndarray]
    slope: float
    """The largest |d at / ds|: the shape's own Lipschitz constant."""


def slow() -> Shape:
    """s, a linear drift."""
    return Shape(lambda s: s, 1.0)


def fast(rate: float = 5.0) -> Shape:
    """(exp(rate s) - 1) / (exp(rate) - 1), exponential growth."""
    return Shape(lambda s: np.expm1(rate * s) / np.expm1(rate), rate * np.exp(rate) / np.expm1(rate))


def step(centre: float = 0.5, width: float = 0.01) -> Shape:
    """(1 + tanh((s - centre) / width)) / 2: a steep ramp, because a jump has no Lipschitz constant."""
    return Shape(lambda s: 0.5 * (1.0 + np.tanh((s - centre) / width)), 0.5 / width)


def oscillatory(cycles: float = 2.0) -> Shape:
    """sin(2 pi cycles s)."""
    return Shape(lambda s: np.sin(2.0 * np.pi * cycles * s), 2.0 * np.pi * cycles)


REGIMES: dict[str, Callable[..., Shape]] = {"slow": slow, "fast": fast, "step": step, "oscillatory": oscillatory}


@dataclass(frozen=True)
class Coefficient:
    """base (1 + amplitude shape(t / horizon)): phi or omega over the window [0, horizon]."""

    base: float
    amplitude: float
    shape: Shape
    horizon: float = 1.0

    def __call__(self, t: np.ndarray) -> np.ndarray:
        return self.base * (1.0 + self.amplitude * self.shape.at(t / self.horizon))

    @property
    def lipschitz(self) -> float:
        """The largest |d coefficient / dt|."""
        return abs(self.base * self.amplitude) * self.shape.slope / self.horizon

    @property
    def variation(self) -> float:
        """Standard deviation over the window divided by the mean over it, in per cent."""
        values = self(np.linspace(0.0, self.horizon, GRID))
        return float(100.0 * values.std() / abs(values.mean()))

    @classmethod
    def of_variation(cls, percent: float, base: float, shape: Shape, horizon: float, sign: int = 1) -> Coefficient:
        """The coefficient whose `variation` is `percent`, moving up (sign 1) or down (-1) along its shape."""
        s = shape.at(np.linspace(0.0, 1.0, GRID))
        ratio = sign * percent / 100.0  # A std = ratio (1 + A mean)
        return cls(base, float(ratio / (s.std() - ratio * s.mean())), shape, horizon)


@dataclass(frozen=True)
class FrozenError:
    """Both solutions on one grid, and bounds of their difference. All arrays have the shape of the grid."""

    t: np.ndarray
    varying: np.ndarray
    frozen: np.ndarray
    bound: np.ndarray
    """Theorem 3: (L_phi + C L_omega) t^2 exp(L_omega t), with C = |phi(0)| / omega(0)."""
    sharp_bound: np.ndarray
    """(L_phi + C L_omega) t^2 / 2; docs/nac.md has the proof."""

    @property
    def error(self) -> np.ndarray:
        """|varying - frozen|."""
        return np.abs(self.varying - self.frozen)

    @property
    def percent(self) -> np.ndarray:
        """100 |varying - frozen| / |varying|, where t > 0."""
        return 100.0 * self.error[self.t > 0] / np.abs(self.varying[self.t > 0])


def frozen_error(phi: Coefficient, omega: Coefficient, t: np.ndarray) -> FrozenError:
    """Integrate the varying ODE to 1e-12 and compare it with the closed form at the initial coefficients.

    Args:
        phi: The target of the logit.
        omega: The rate of the logit; positive on `t`.
        t: (n,) times that increase from 0.

    Returns:
        Both solutions and the bounds at the times `t`.

    Raises:
        RuntimeError: If the integration fails.
    """
    solution = solve_ivp(
        lambda now, a: phi(now) - omega(now) * a,
        (0.0, t[-1]),
        [0.0],
        method="DOP853",
        t_eval=t,
        rtol=1e-12,
        atol=1e-14,
        max_step=min(phi.horizon, omega.horizon) / 100.0,  # no step of the solver may jump over a ramp
    )
    if not solution.success:
        raise RuntimeError(f"the varying ODE could not be integrated: {solution.message}")
    start = np.zeros(1)
    phi_0, omega_0 = float(phi(start)[0]), float(omega(start)[0])
    coefficients = torch.tensor([phi_0, omega_0], dtype=torch.float64)
    frozen = MODES["exact"](coefficients[0], coefficients[1], torch.from_numpy(t), 0)
    growth = phi.lipschitz + abs(phi_0) / omega_0 * omega.lipschitz
    bound = growth * t**2 * np.exp(omega.lipschitz * t)
    return FrozenError(t, solution.y[0], frozen.numpy(), bound, growth * t**2 / 2.0)
