"""Line and speeds of a driver that knows the track.

scipy is imported where it computes: every process that loads a driver imports this module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nac_drive.envs import Track

if TYPE_CHECKING:
    from scipy.sparse import csc_array

_ROUNDS = 10
"""Linearisations of the curvature; each goes half of the way to its optimum."""
_SWEEPS = 30
"""Projections on the edges in each of them."""
_FLOOR = 0.01
"""Curvature, 1/units, that counts even where the line is straight."""


def racing_line(track: Track, reach: float) -> NDArray[np.float64]:
    """Return the line of least sum of curvature^4.

    It leaves the centre line by at most `reach` units.

    The offsets x along the normals of the centre line minimise sum_i w_i kappa_i(x)^2 under |x_i| <= reach, with kappa
    linearised around the present line (Heilmeier et al., Vehicle System Dynamics 58, 2020) and w = kappa^2 taken from
    it. The fourth power, instead of theirs, the second, widens the tightest bends, which cost the most time: a car that
    must slow down there pays for the way back to speed. The bounded problem is solved by ADMM (Boyd et al. 2011, 5.2).

    The line starts at the car's place: on the centre line, along the road.

    Args:
        track: A track of N points.
        reach: Largest distance from the centre line, in simulator units.

    Returns:
        (N, 2), simulator units.
    """
    from scipy.sparse import eye_array
    from scipy.sparse.linalg import splu

    bound = np.full(len(track), reach)
    bound[:2] = 0.0
    normal = np.stack([np.cos(track.angles), np.sin(track.angles)], axis=1)  # (N, 2), to the right
    offset = edge = dual = np.zeros(len(track))
    for _ in range(_ROUNDS):
        matrix, constant = _weighted_curvature(track.points, normal, offset)
        hessian, gradient = (matrix.T @ matrix).tocsc(), matrix.T @ constant
        penalty = 0.1 * np.exp(np.log(hessian.diagonal()).mean())
        solve = splu(hessian + penalty * eye_array(len(track), format="csc")).solve
        for _ in range(_SWEEPS):
            free = solve(penalty * (edge - dual) - gradient)
            edge = np.clip(free + dual, -bound, bound)
            dual = dual + free - edge
        offset = (offset + edge) / 2
    return track.points + offset[:, None] * normal


def _weighted_curvature(points: NDArray, normal: NDArray, offset: NDArray) -> tuple[csc_array, NDArray]:
    """Return a linear form of the curvature near `offset`.

    A (N, N) and b (N,) have A x + b = sqrt(w) kappa(x), with weights of mean 1.
    """
    from scipy.sparse import csc_array

    def bend(p: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        """Return the second derivative's terms across the line.

        They belong to p[i - 1], p[i] and p[i + 1], along the line.
        """
        across = p if p.ndim == 2 else p[:, None]
        return (
            before * (_previous(across) * left).sum(axis=1),
            -(before + after) * (across * left).sum(axis=1),
            after * (_next(across) * left).sum(axis=1),
        )

    line = points + offset[:, None] * normal
    chord = _next(line) - _previous(line)
    left = np.stack([-chord[:, 1], chord[:, 0]], axis=1) / np.linalg.norm(chord, axis=1)[:, None]  # (N, 2)
    spacing = np.maximum(np.linalg.norm(_next(line) - line, axis=1), 0.5)  # (N,) from point i to point i + 1
    width = (spacing + _previous(spacing)) / 2
    before, after = 1 / (_previous(spacing) * width), 1 / (spacing * width)

    weight = np.sqrt(width) * (np.abs(sum(bend(line))) + _FLOOR)
    weight /= np.sqrt((weight**2).mean())
    i = np.arange(len(points))
    entries = np.concatenate([weight * term for term in bend(normal)])
    columns = np.concatenate([_previous(i), i, _next(i)])
    matrix = csc_array((entries, (np.tile(i, 3), columns)), shape=(len(points), len(points)))
    return matrix, weight * sum(bend(points))


def _next(a: NDArray) -> NDArray:
    return np.roll(a, -1, axis=0)


def _previous(a: NDArray) -> NDArray:
    return np.roll(a, 1, axis=0)


@dataclass(frozen=True)
class Path:
    """A closed line of equidistant points, headings and curvatures."""

    points: NDArray[np.float64]
    """(M, 2), simulator units."""
    heading: NDArray[np.float64]
    """(M,), radians: the hull angle that points along the line."""
    curvature: NDArray[np.float64]
    """(M,), 1/units, positive to the left."""
    step: float
    """Units from point to point, about 1."""


def smooth_path(line: NDArray) -> Path:
    """Return the cubic spline through a closed line (N, 2).

    It is cut in steps of about a unit.
    """
    from scipy.interpolate import CubicSpline

    closed = np.concatenate([line, line[:1]])
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(closed, axis=0), axis=1))])
    spline = CubicSpline(along, closed, bc_type="periodic")
    count = round(along[-1])
    at = np.arange(count) * along[-1] / count
    (dx, dy), (ddx, ddy) = spline(at, 1).T, spline(at, 2).T
    curvature = (dx * ddy - dy * ddx) / np.hypot(dx, dy) ** 3
    return Path(spline(at), np.arctan2(dy, dx) - np.pi / 2, curvature, along[-1] / count)


def speed_profile(path: Path, *, lateral_limit: float, braking_limit: float, top_speed: float) -> NDArray[np.float64]:
    """Return the highest speeds that keep the limits.

    In a bend v^2 |kappa| <= lateral_limit; on the way to it, braking has the rest of the traction ellipse.

    Args:
        path: A path of M points.
        lateral_limit: Highest centripetal acceleration, units/s^2.
        braking_limit: Highest deceleration, units/s^2.
        top_speed: Units/s.

    Returns:
        (M,), units/s.
    """
    bend = np.abs(path.curvature)
    bend = np.convolve(np.concatenate([bend[-3:], bend, bend[:3]]), np.ones(7) / 7, mode="valid")  # over 7 units
    speed = np.minimum(top_speed, np.sqrt(lateral_limit / np.maximum(bend, 1e-6))).tolist()
    for i in reversed(range(2 * len(speed))):  # twice round: the first bend is braked for before the finish
        i %= len(speed)
        ahead = speed[(i + 1) % len(speed)]
        cornering = min(1.0, ahead**2 * bend[i] / lateral_limit)
        braking = braking_limit * math.sqrt(1 - cornering**2)
        speed[i] = min(speed[i], math.sqrt(ahead**2 + 2 * braking * path.step))
    return np.array(speed)
