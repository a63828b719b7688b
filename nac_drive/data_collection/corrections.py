"""A person corrects a driver (human-gated DAgger).

It is interactive imitation learning.

Kelly et al., ICRA 2019, arXiv 1810.02890. The driver drives; the person takes the wheel where it goes wrong, and gives
it back. Only the person's frames have a label: elsewhere the person may have agreed, or not have looked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from nac_drive.data_collection.dataset.rows import frame_ranges
from nac_drive.data_collection.human import Human
from nac_drive.envs import Step


class Corrections:
    """The person of one episode, who corrects the driver.

    It chooses between the person's action and the driver's.

    `rollout(env, driver, track, expert=person, execute=person.execute, subscribers=[person.keep])`.

    Args:
        person: Says at every frame whether it holds the wheel, and what it does.
    """

    def __init__(self, person: Human) -> None:
        self._person = person
        self._action: Any = None
        self._held: list[bool] = []
        self.steps: list[Step] = []
        """The steps so far; `expert_action` is None where the driver drove."""

    def begin(self, env: gym.Env) -> Any:
        return self._person.begin(env)

    def act(self, observation: np.ndarray, state: Any, dt: float) -> tuple[Any, Any]:
        self._action, state = self._person.act(observation, state, dt)
        self._held.append(self._person.holds)
        return self._action, state

    def execute(self, intended: Any) -> Any:
        """Return the action to execute, given the driver's. Call it after `act`, once per frame."""
        return self._action if self._held[-1] else intended

    def keep(self, step: Step) -> None:
        """Keep a step."""
        self.steps.append(step if self._held[-1] else replace(step, expert_action=None))

    @property
    def frames(self) -> str:
        """The corrected frames, as a value of `CORRECTIONS`."""
        return frame_ranges(np.array(self._held, dtype=np.bool_))
