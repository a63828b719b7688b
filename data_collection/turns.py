"""Laps in which a student and its teacher take turns at the wheel: DAgger, Ross et al., AISTATS 2011, arXiv 1011.0686.

The student visits the states that it brings about itself; the teacher, asked at every frame, says what to do there.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from data_collection.processes import one_thread
from data_collection.record import LapJob, Row, stage, write_lap
from envs import Driver, Step, rollout


@dataclass(frozen=True)
class TurnsConfig:
    """Who is at the wheel for how long."""

    student_share: float = 0.8
    """Probability that a segment is the student's, in [0, 1]."""
    segment: int = 25
    """Frames before the wheel is drawn for again."""

    def __post_init__(self) -> None:
        if not 0 <= self.student_share <= 1:
            raise ValueError(f"student_share must lie in [0, 1], got {self.student_share}; 0.8 is usual.")
        if self.segment < 1:
            raise ValueError(f"segment must be at least 1 frame, got {self.segment}; 25 are half a second.")

    def students(self, frames: int, seed: int | Sequence[int]) -> NDArray[np.bool_]:
        """(frames,) where the student steers. Same seed, same turns; a longer lap begins like a shorter one."""
        drawn = np.random.default_rng(seed).random(-(-frames // self.segment)) < self.student_share
        return np.repeat(drawn, self.segment)[:frames]


class Turns:
    """The teacher of one lap, and the hand between the drivers and the wheel.

    `rollout(env, student, track, advisor=turns, execute=turns.execute)`: the student is asked at every frame and
    carries its state through all of them, also where the teacher steers; so is the teacher, whose action is the label
    (`Step.advice`). `students` (N,) says for each frame whether the student's action is executed or the teacher's.
    """

    def __init__(self, teacher: Driver, students: NDArray[np.bool_]):
        self._teacher = teacher
        self._students = students
        self._frame = 0
        self._advice: Any = None

    def begin(self, env: gym.Env) -> Any:
        self._frame = 0
        return self._teacher.begin(env)

    def act(self, observation: np.ndarray, state: Any, dt: float) -> tuple[Any, Any]:
        self._advice, state = self._teacher.act(observation, state, dt)
        return self._advice, state

    def execute(self, intended: Any) -> Any:
        """The action of whoever's turn it is, given the student's; after `act`, once per frame."""
        student = self._students[self._frame]
        self._frame += 1
        return intended if student else self._advice


def turns_lap(job: LapJob, turns: TurnsConfig, student: bytes, task: tuple[int, int]) -> Row:
    """Drive episode `task[0]` on track `task[1]` in turns and write its file; returns its row.

    job: its driver is the teacher, its meta's seed that of the turns.  student: a pickled `Driver`.
    """
    index, track = task
    env, teacher = stage(job.driver, job.meta.driver_sha256, job.meta.env)
    hand = Turns(teacher, turns.students(job.meta.env.max_steps, (job.meta.seed, track)))
    steps: list[Step] = []
    with one_thread():
        episode = rollout(
            env, pickle.loads(student), track, advisor=hand, execute=hand.execute, subscribers=[steps.append]
        )
    return write_lap(job, index, steps, episode)
