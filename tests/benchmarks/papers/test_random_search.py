"""Adaptive random search: known optima, and the bookkeeping of Algorithm 5 step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from random_search import mean_of_worst, random_search

from nac_drive.training.finite import DivergedError


def scripted(values: list[float], seen: list[np.ndarray]) -> Callable[[np.ndarray], float]:
    """An objective that returns these values one after the other."""
    left: Iterator[float] = iter(values)

    def objective(parameters: np.ndarray) -> float:
        seen.append(parameters)
        return next(left)

    return objective


def test_the_bookkeeping_of_every_iteration() -> None:
    """Accepted, two rejected and estimated again, accepted, rejected: six iterations with a patience of two."""
    seen: list[np.ndarray] = []
    objective = scripted([10.0, 8.0, 9.0, 8.0, 12.0, 11.0, 13.0, 11.5], seen)
    found = random_search(
        objective, np.zeros(3), np.random.default_rng(0), iterations=5, sigma=1.0, alpha=2.0, patience=2
    )
    assert found.values.tolist() == [10.0, 8.0, 8.0, 12.0, 11.0, 11.0]
    assert found.sigmas.tolist() == [1.0, 2.0, 1.0, 0.5, 1.0, 0.5]
    start, first, _, _, again, second, _ = seen
    assert not start.any()
    assert again is first  # an equal value is no improvement
    assert found.parameters is second
    assert found.value == 11.0
    rng = np.random.default_rng(0)
    assert np.array_equal(first, rng.normal(0.0, 1.0, 3))
    assert np.array_equal(seen[2], first + rng.normal(0.0, 2.0, 3))
    assert np.array_equal(seen[3], first + rng.normal(0.0, 1.0, 3))
    assert np.array_equal(second, first + rng.normal(0.0, 0.5, 3))


def test_the_count_starts_again_after_a_new_estimate() -> None:
    seen: list[np.ndarray] = []
    objective = scripted([0.0, *[1.0, 1.0, 1.0, 0.5] * 3], seen)
    found = random_search(objective, np.zeros(1), np.random.default_rng(0), iterations=9, sigma=1.0, patience=3)
    assert [index for index, parameters in enumerate(seen) if not parameters.any()] == [0, 4, 8, 12]
    assert found.values.tolist() == [0.0, 0.0, 0.0, *[0.5] * 7]


@pytest.mark.parametrize("optimum", [(0.0, 0.0, 0.0), (2.0, -1.0, 0.5)])
def test_finds_the_optimum_of_a_bowl(optimum: tuple[float, ...]) -> None:
    def bowl(x: np.ndarray) -> float:
        return float(((x - optimum) ** 2).sum())

    found = random_search(bowl, np.ones(3), np.random.default_rng(1), iterations=3000, sigma=0.5, alpha=1.01)
    assert found.parameters == pytest.approx(optimum, abs=0.01)
    assert found.value == bowl(found.parameters)
    assert (np.diff(found.values) <= 0).all()  # an exact objective never gets worse


def test_keeps_within_bounds_where_the_optimum_lies_outside() -> None:
    bounds = np.array([-1.0, 0.0]), np.array([0.5, 2.0])
    found = random_search(
        lambda x: float(((x - 5.0) ** 2).sum()), np.zeros(2), np.random.default_rng(0), iterations=300, sigma=0.3,
        bounds=bounds,
    )  # fmt: skip
    assert found.parameters.tolist() == [0.5, 2.0]


def test_new_estimates_free_the_search_from_a_lucky_one() -> None:
    """The first estimate is lower than any parameters deserve. Without a new one nothing is ever accepted."""

    def found(patience: int) -> np.ndarray:
        calls = iter(range(10**6))

        def lucky(x: np.ndarray) -> float:
            return -1e9 if next(calls) == 0 else float((x**2).sum())

        return random_search(
            lucky, np.full(2, 3.0), np.random.default_rng(0), iterations=500, sigma=0.3, patience=patience
        ).parameters

    assert found(10**6).tolist() == [3.0, 3.0]
    assert found(20) == pytest.approx([0.0, 0.0], abs=0.2)


def test_the_mean_of_the_worst() -> None:
    returns = np.array([4.0, 1.0, 3.0, 10.0])
    assert mean_of_worst(returns) == 4.5
    assert [mean_of_worst(returns, worst) for worst in (1, 2, 3, 4)] == [1.0, 2.0, 8 / 3, 4.5]
    for worst in (0, 5):
        with pytest.raises(ValueError, match=f"worst: must be between 1 and the number of rollouts, 4, got {worst}"):
            mean_of_worst(returns, worst)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sigma": 0.0}, "sigma: must be positive, got 0.0"),
        ({"alpha": 0.9}, "alpha: must be at least 1, got 0.9"),
        ({"patience": 0}, "patience: must be at least 1, got 0"),
    ],
)
def test_settings_that_do_not_fit_are_named(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_search(
            lambda x: 0.0, np.zeros(1), np.random.default_rng(0), **{"iterations": 1, "sigma": 1.0} | settings
        )


@pytest.mark.parametrize("moment", range(4))
@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
def test_an_estimate_that_is_no_number_is_an_error_and_never_a_rejection(moment: int, value: float) -> None:
    """At the start, of a candidate, of the next, and when the accepted parameters are estimated again."""
    estimates = [1.0, 2.0, 2.0, 1.0]
    estimates[moment] = value
    with pytest.raises(DivergedError, match=r"an estimate of the search is .*; take a smaller sigma"):
        random_search(
            scripted(estimates, []), np.zeros(2), np.random.default_rng(0), iterations=2, sigma=1.0, patience=2
        )
