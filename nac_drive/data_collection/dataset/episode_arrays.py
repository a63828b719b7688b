"""One demonstrated episode in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nac_drive.data_collection.dataset.rows import REPORTED
from nac_drive.envs import Episode, Step

TELEMETRY = ("speed", "lateral_offset", "heading_error", "completion", "wheels_off_road")
"""Telemetry of each observation; units as in `CarRacing`'s docstring. All of them are stored, or none: own
data, and environments that do not report them all."""


@dataclass(frozen=True)
class EpisodeArrays:
    """The arrays of an episode of N steps. Row i is observation i and the decision made on it."""

    frames: NDArray[np.uint8]
    """(N, 96, 96, 3): the observations that the driver acted on."""
    label: NDArray[Any]
    """int64 (N,) or float32 (N, 3), of other environments (N, K): the expert's action."""
    action: NDArray[Any]
    """The executed action, like `label`."""
    reward: NDArray[np.float64]
    """(N,): the native reward of the executed action."""
    dt: NDArray[np.float64]
    """(N,): seconds since the previous observation, 0 at the first."""
    zooming: NDArray[np.bool_]
    """(N,): whether gymnasium's opening animation is on."""
    telemetry: dict[str, NDArray[np.float64]]
    """One (N,) array per name of `TELEMETRY`; empty for own data, and where `info` does not hold all of them."""
    last_frame: NDArray[np.uint8] | None = None
    """(96, 96, 3): the observation after the last action; None where it was not stored."""

    @classmethod
    def from_steps(cls, steps: Sequence[Step], last_frame: NDArray[np.uint8] | None) -> EpisodeArrays:
        """Return the arrays of one rollout.

        Args:
            steps: Its N steps. The label is the expert's action if an expert was queried, else the intended action.
            last_frame: Its `Episode.last_observation`.
        """
        return cls(
            frames=np.stack([step.observation for step in steps]),
            label=_actions([step.intended if step.expert_action is None else step.expert_action for step in steps]),
            action=_actions([step.action for step in steps]),
            reward=np.array([step.reward for step in steps], dtype=np.float64),
            dt=np.array([step.dt for step in steps], dtype=np.float64),
            zooming=np.array([step.info["zooming"] for step in steps], dtype=np.bool_),
            telemetry={name: np.array([step.info[name] for step in steps], dtype=np.float64) for name in TELEMETRY}
            if all(name in step.info for step in steps for name in TELEMETRY)
            else {},
            last_frame=last_frame,
        )

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return every array except frames, by name.

        The order, in which action logs hash them, is the same before and after a file, which forgets it.
        """
        names = [name for name in TELEMETRY if name in self.telemetry]
        names += sorted(self.telemetry.keys() - set(names))
        telemetry = {f"telemetry/{name}": self.telemetry[name] for name in names}
        return {
            "label": self.label, "action": self.action, "reward": self.reward, "dt": self.dt,
            "zooming": self.zooming, **telemetry,
        }  # fmt: skip


def summarize(episode: Episode) -> dict[str, Any]:
    """Return the reported values of `SUMMARY` for a finished episode."""
    kinds = dict(zip(REPORTED, (float, bool, int, int), strict=True))
    return {
        "seed": episode.seed,
        "return": episode.episode_return,
        "length": episode.length,
        "terminated": bool(episode.terminated),
        **{name: kind(episode.outcome[name]) for name, kind in kinds.items() if name in episode.outcome},
    }


def _actions(actions: Sequence[Any]) -> NDArray[Any]:
    stacked = np.stack(actions)
    return stacked.astype(np.int64 if stacked.dtype.kind in "iu" else np.float32)
