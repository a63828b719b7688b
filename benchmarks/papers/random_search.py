"""Adaptive random search: training without gradients (Hasani's thesis, Section 4.4, Algorithm 5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nac_drive.training.finite import require_finite_number


@dataclass(frozen=True)
class SearchResult:
    """Result of a random search of K iterations."""

    parameters: np.ndarray
    """(D,), the last that were accepted."""
    value: float
    """The last estimate of their objective."""
    values: np.ndarray
    """(K + 1,), the estimate of the accepted parameters at the start and after every iteration. A new estimate of the
    same parameters may be worse."""
    sigmas: np.ndarray
    """(K + 1,), the noise scale at the start and after every iteration."""


def random_search(
    objective: Callable[[np.ndarray], float],
    start: np.ndarray,
    rng: np.random.Generator,
    *,
    iterations: int,
    sigma: float,
    alpha: float = 1.0,
    patience: int = 50,
    bounds: tuple[np.ndarray, np.ndarray] | None = None,
) -> SearchResult:
    """Minimise a stochastic objective by Algorithm 5.

    In an iteration Gaussian noise of scale sigma is added to all parameters. If the new estimate of the objective is
    less, the new parameters are accepted and sigma is multiplied by alpha; otherwise sigma is divided by alpha. After
    `patience` iterations without an acceptance, the objective of the accepted parameters is estimated again, so that a
    lucky estimate does not end the search. The count then starts again, as in the authors' published code;
    Algorithm 5 as printed would estimate again in every iteration that follows.

    Args:
        objective: Returns an estimate of the objective of parameters (D,).
        start: The first parameters, (D,).
        rng: Generator of the noise.
        iterations: Number of iterations, K.
        sigma: Noise scale at the start.
        alpha: Adaption rate, at least 1; 1 keeps sigma.
        patience: N of Algorithm 5.
        bounds: Least and largest value of each parameter, (D,) each; None for none. New parameters are clipped.

    Returns:
        The accepted parameters, and how the search went.

    Raises:
        ValueError: `sigma` is not positive, or `alpha` or `patience` is less than 1.
        DivergedError: An estimate is NaN or infinite.
    """
    for name, number, least in (("alpha", alpha, 1), ("patience", patience, 1)):
        if number < least:
            raise ValueError(f"{name}: must be at least {least}, got {number}.")
    if sigma <= 0:
        raise ValueError(f"sigma: must be positive, got {sigma}; 0.1 is a good start for parameters of the order of 1.")

    def estimate(parameters: np.ndarray) -> float:
        value = objective(parameters)
        require_finite_number("an estimate of the search", value, "take a smaller sigma")
        return value

    parameters = np.asarray(start, dtype=np.float64)
    value, waited = estimate(parameters), 0
    values, sigmas = [value], [sigma]
    for _ in range(iterations):
        candidate = parameters + rng.normal(0.0, sigma, parameters.shape)
        if bounds is not None:
            candidate = np.clip(candidate, *bounds)
        found = estimate(candidate)
        if found < value:
            parameters, value, waited, sigma = candidate, found, 0, sigma * alpha
        else:
            waited, sigma = waited + 1, sigma / alpha
        if waited == patience:
            value, waited = estimate(parameters), 0
        values.append(value)
        sigmas.append(sigma)
    return SearchResult(parameters, value, np.array(values), np.array(sigmas))


def mean_of_worst(returns: np.ndarray, worst: int | None = None) -> float:
    """Return the mean of the `worst` least returns of some rollouts, or of all of them for None (Section 4.4).

    Raises:
        ValueError: `worst` is less than 1 or more than there are returns.
    """
    if worst is None:
        return float(returns.mean())
    if not 1 <= worst <= len(returns):
        raise ValueError(f"worst: must be between 1 and the number of rollouts, {len(returns)}, got {worst}.")
    return float(np.sort(returns)[:worst].mean())
