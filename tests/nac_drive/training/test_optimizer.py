"""Two learning rates and weights of curves (Hasani's thesis, Section 6.2 and Table 6.2), by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nac_drive.envs import EnvConfig
from nac_drive.evaluation.formulas import CAR_RACING
from nac_drive.policies import Driver, DriverConfig
from nac_drive.training.data.sequences import TrainingData, curve_weights
from nac_drive.training.optimizer import adam, set_rate
from tests.nac_drive.small import config, synthetic

SHAPE = (32, 36, 3)


def moved(rate: float, encoder_rate: float | None, later: float | None = None) -> dict[str, float]:
    """How far Adam's first step moves the weights of each part: its rate, where the gradient is not tiny."""
    torch.manual_seed(0)
    driver = Driver(DriverConfig("rnn", d_model=8, dense=8, frame_shape=SHAPE, control="continuous"))
    optimizer = adam(driver, rate, encoder_rate)
    if later is not None:
        set_rate(optimizer, later)
    before = {name: weights.detach().clone() for name, weights in driver.named_parameters()}
    for weights in driver.parameters():
        weights.grad = torch.ones_like(weights)
    optimizer.step()
    parts: dict[str, float] = {}
    for name, weights in driver.named_parameters():
        part = name.partition(".")[0]
        parts[part] = max(parts.get(part, 0.0), float((weights.detach() - before[name]).abs().max()))
    return parts


def test_the_encoder_has_its_own_rate_and_keeps_the_ratio():
    same = pytest.approx({"encoder": 0.01, "core": 0.01, "action_head": 0.01}, rel=1e-3)
    assert moved(0.01, None) == same
    assert moved(0.01, 0.01) == same
    slow = moved(0.01, 0.001)
    assert slow == pytest.approx({"encoder": 0.001, "core": 0.01, "action_head": 0.01}, rel=1e-3)
    later = moved(0.01, 0.001, later=0.002)
    assert later == pytest.approx({"encoder": 0.0002, "core": 0.002, "action_head": 0.002}, rel=1e-3)


def test_curves_weigh_more_by_the_exponential_of_the_steering():
    steering = np.array([0.0, 0.5, -1.0], np.float32)
    labels = np.stack((steering, np.ones(3), np.zeros(3)), axis=1).astype(np.float32)
    np.testing.assert_allclose(curve_weights(labels, 2.0, CAR_RACING), [1.0, np.e, np.e**2], rtol=1e-6)
    episode = synthetic([20], "continuous")
    data = TrainingData(config(curve_weight=0.1, sequence_length=16).data, EnvConfig("continuous"), torch.device("cpu"))
    data.add(episode)
    weight = data.sequences(np.array([0]), np.zeros(1, bool)).weight
    assert weight is not None
    np.testing.assert_allclose(weight[0], np.exp(0.1 * np.abs(episode.labels[:16, 0])), rtol=1e-6)


def test_settings_that_have_no_effect_are_refused():
    with pytest.raises(ValueError, match="curve_weight needs the steering of continuous actions"):
        TrainingData(config(curve_weight=0.1).data, EnvConfig("discrete"), torch.device("cpu"))
    with pytest.raises(ValueError, match="encoder_learning_rate: a frozen encoder does not learn"):
        config(encoder_learning_rate=1e-4, freeze_encoder_from="expert").check()
    with pytest.raises(ValueError, match="encoder_learning_rate must"):
        config(encoder_learning_rate=0.0).check()
    with pytest.raises(ValueError, match="curve_weight must"):
        config(curve_weight=-1.0).check()
