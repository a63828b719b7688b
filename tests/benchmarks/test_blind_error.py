"""Steering error by the frames since the last seen one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from blind_error import frames_blind, rows_of

from nac_drive.data_collection.dataset.frames import Frames


def test_a_driver_is_blind_since_the_last_seen_frame_of_its_episode() -> None:
    lost = np.array([0, 1, 1, 0, 1, 1, 0, 1, 1, 1], dtype=bool)
    offsets = np.array([0, 5, 10])  # the second episode begins with a lost frame
    assert frames_blind(lost, offsets).tolist() == [0, 1, 2, 0, 1, 1, 0, 1, 2, 3]
    rng = np.random.default_rng(0)
    lost, offsets = rng.random(60) < 0.6, np.array([0, 1, 25, 60])
    expected = []
    for first, end in pairwise(offsets):
        blind = 0
        for row in range(first, end):
            blind = blind + 1 if lost[row] else 0
            expected.append(blind)
    assert frames_blind(lost, offsets).tolist() == expected


def test_errors_are_means_by_perturbation_and_by_how_long_nothing_was_seen() -> None:
    frames = Frames(
        frames=np.zeros((6, 1, 1, 3), np.uint8), labels=np.zeros((6, 3), np.float32), actions=np.zeros((6, 3)),
        rewards=np.zeros(6, np.float32), dt=np.full(6, 0.02, np.float32), zooming=np.array([True] + [False] * 5),
        telemetry={}, offsets=np.array([0, 4, 6]), seeds=np.array([8, 5]),
    )  # fmt: skip
    errors = np.array([9.0, 0.1, 0.2, 0.4, 0.8, 0.6])
    rows = rows_of("mine", errors, frames, np.array([0, 0, 1, 2, 0, 8]), ["none", "blackouts:2"])
    assert rows == [  # the zoom does not count; track 8 is under the first specification, track 5 under the second
        ["mine", "none", "233", "100", "300", "", "", "", ""],
        ["mine", "blackouts:2", "700", "800", "", "", "", "600", ""],
    ]
