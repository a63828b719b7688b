"""The mean of several drivers."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch
from average_weights import average, run

from nac_drive.envs import EnvConfig
from nac_drive.policies import Driver, DriverConfig, load_driver, save_driver

SETTINGS = DriverConfig("lstm", control="continuous")


def driver(weight: float, config: DriverConfig = SETTINGS) -> Driver:
    made = Driver(config)
    made.load_state_dict({name: torch.full_like(tensor, weight) for name, tensor in made.state_dict().items()})
    return made


def test_every_weight_is_the_mean_and_the_perturbation_of_a_stage_is_none_of_the_result(tmp_path):
    stages = [EnvConfig("continuous", view="seat", perturb=spec) for spec in (None, "mishaps:1", "gap:1")]
    for weight, (name, env) in zip((1.0, 2.0, 6.0), zip("abc", stages, strict=True), strict=True):
        save_driver(tmp_path / name, driver(weight), env=asdict(env))
    run([str(tmp_path / name) for name in "abc"], tmp_path / "mean")
    mean = load_driver(tmp_path / "mean")
    assert {name: tensor.unique().tolist() for name, tensor in mean.state_dict().items()} == {
        name: [3.0] for name in driver(0.0).state_dict()
    }
    assert EnvConfig(**mean.env_config) == stages[0]
    assert set(mean.meta["average_of"]) == {str(tmp_path / name) for name in "abc"}


@pytest.mark.parametrize(
    ("others", "error"),
    [
        ([], r"^drivers must be two or more, got 1"),
        ([replace(SETTINGS, core="gru")], r"^drivers must have the same settings"),
    ],
)
def test_what_has_no_mean_is_refused(others, error):
    with pytest.raises(ValueError, match=error):
        average([driver(1.0), *(driver(1.0, config) for config in others)])


def test_drivers_of_two_views_have_no_mean(tmp_path):
    for view in ("above", "seat"):
        save_driver(tmp_path / view, driver(1.0), env=asdict(EnvConfig("continuous", view=view)))
    with pytest.raises(ValueError, match=r"^drivers must have the same environment"):
        run([str(tmp_path / view) for view in ("above", "seat")], tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_a_folder_knows_its_control(tmp_path):
    discrete = DriverConfig("lstm", control="discrete")
    for name in "ab":
        save_driver(tmp_path / name, driver(1.0, discrete), env=asdict(EnvConfig("discrete")))
    run([str(tmp_path / name) for name in "ab"], tmp_path / "mean")
    assert load_driver(tmp_path / "mean").config == discrete


def test_a_driver_without_weights_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^drivers must have weights, got 'controller'"):
        run(["champion", "controller"], tmp_path / "mean")
