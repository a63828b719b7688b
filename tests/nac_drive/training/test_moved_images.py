"""Images that are moved to one side, with the steering that leads back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from nac_drive.envs import UDACITY, EnvConfig
from nac_drive.training.config import CloningConfig, DataConfig
from nac_drive.training.data.images import move
from nac_drive.training.data.sequences import TrainingData
from tests.nac_drive.small import nested, synthetic

PIXELS = np.array([3, 0, -5])


@pytest.mark.parametrize("pixels", [PIXELS, np.array([150, -119, -130])])
@pytest.mark.parametrize("environment", ["car-racing", UDACITY])
def test_columns_move_the_bar_stays_and_the_steering_leads_back(environment: str, pixels: np.ndarray):
    spec = EnvConfig("continuous", environment=environment).spec
    rng = np.random.default_rng(0)
    before = rng.integers(1, 256, (3, 2, *spec.frame_shape), dtype=np.uint8)
    labels = torch.zeros(3, 2, 3)
    labels[2, 1, 0] = -0.99
    frames = torch.from_numpy(before.copy())
    move(frames, labels, pixels, 0.01, spec)
    after, bar = frames.numpy(), spec.bar_top or spec.frame_shape[0]
    np.testing.assert_array_equal(after[:, :, bar:], before[:, :, bar:])
    for row, right in enumerate(pixels):
        for column in range(spec.frame_shape[1]):
            came_from = column - right
            inside = 0 <= came_from < spec.frame_shape[1]
            expected = before[row, :, :bar, came_from] if inside else 0 * before[row, :, :bar, column]
            np.testing.assert_array_equal(after[row, :, :bar, column], expected)
    steering = np.clip(np.add([[0.0, 0.0], [0.0, 0.0], [0.0, -0.99]], 0.01 * pixels[:, None]), -1, 1)
    np.testing.assert_allclose(labels[..., 0], steering, atol=1e-7)
    assert not labels[..., 1:].any()


def test_moving_sequences_leaves_the_data_as_they_are():
    env = EnvConfig("continuous")
    data = TrainingData(DataConfig(sequence_length=4, shift=2), env, torch.device("cpu"))
    data.add(synthetic([8], "continuous"))
    starts, flip = np.array([0, 2, 4]), np.zeros(3, bool)
    sequences, untouched = data.sequences(starts, flip), data.sequences(starts, flip)
    sequences.move(PIXELS, 0.01, env.spec)
    assert not torch.equal(sequences.frames, untouched.frames)
    assert torch.equal(data.sequences(starts, flip).frames, untouched.frames)
    assert torch.equal(data.sequences(starts, flip).labels, untouched.labels)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shift": -1}, "shift must"),
        ({"shift_steering": 2.0}, "shift_steering must"),
        ({"shift": 3, "freeze_encoder_from": "expert"}, "a frozen encoder sees each image once"),
    ],
)
def test_shifts_that_cannot_be_trained_with_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        nested(CloningConfig(), **settings).check()


@pytest.mark.parametrize(("environment", "width"), [("car-racing", 96), (UDACITY, 120)])
def test_a_shift_of_the_whole_width_is_refused(environment: str, width: int):
    env = EnvConfig("continuous", environment=environment)
    with pytest.raises(ValueError, match=rf"shift must be less than the width of the frames \({width} pixels\), got"):
        TrainingData(DataConfig(shift=width), env, torch.device("cpu"))
    TrainingData(DataConfig(shift=width - 1), env, torch.device("cpu"))


def test_discrete_actions_have_no_steering_to_correct():
    with pytest.raises(ValueError, match="this dataset has discrete control"):
        TrainingData(DataConfig(shift=1), EnvConfig("discrete"), torch.device("cpu"))
