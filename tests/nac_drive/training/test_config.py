"""Settings of training: cheap to import, one recipe of the paper, and every default can be trained with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import FrozenInstanceError, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from nac_drive.policies import Driver
from nac_drive.training.config import TrainConfig, core_settings, paper_recipe
from nac_drive.training.dagger_config import DaggerConfig
from nac_drive.training.ppo.config import PPOConfig
from tests.nac_drive.small import nested

REPOSITORY = Path(__file__).parents[3]


def test_the_defaults_can_be_trained_with_and_stay_as_they_are():
    for config in (TrainConfig(), DaggerConfig(), PPOConfig(), paper_recipe()):
        config.check()
        with pytest.raises(FrozenInstanceError):
            config.seed = 1  # type: ignore[misc]


def test_the_recipe_of_the_paper():
    """Table 4, column CarRacing."""
    recipe = paper_recipe()
    assert (recipe.driver.encoder, recipe.driver.d_model, recipe.driver.dense) == ("paper", 64, 64)
    assert (recipe.driver.dropout, recipe.driver.residual) == (0.2, False)
    assert (recipe.optim.learning_rate, recipe.optim.ema_decay) == (1e-4, 0.0)
    assert (recipe.data.batch_size, recipe.epochs) == (32, 100)
    assert (recipe.data.horizontal_flip, recipe.data.augment) == (False, ())
    assert recipe.optim.init_from is recipe.optim.freeze_encoder_from is None
    assert Driver(recipe.driver).core.nac.num_heads == 16  # type: ignore[union-attr]
    assert paper_recipe() == recipe
    other = nested(recipe, core="lstm", epochs=3)
    other.check()
    assert asdict(other.optim) == asdict(recipe.optim)


def test_settings_of_a_core_from_words():
    words = ["top_k=4", "window=64", "phi_activation=tanh", "rate=0.5", "time_unit=1e-3"]
    assert core_settings(words) == {"top_k": 4, "window": 64, "phi_activation": "tanh", "rate": 0.5, "time_unit": 1e-3}
    assert core_settings([]) == {}
    for word in ("top_k", "=4", "top_k=[1"):
        with pytest.raises(ValueError, match="core-args"):
            core_settings([word])


CONFIGS = {"train": TrainConfig(), "dagger": DaggerConfig(), "ppo": PPOConfig()}
WRONG: dict[str, tuple[Any, ...]] = {
    "int": (float("nan"), float("inf"), 2.5, "8", None, True, 10**12, -1, [3]),
    "float": (float("nan"), float("inf"), -float("inf"), "8", None, True, 1e30, -1.0, [3]),
    "bool": (2, "yes", None),
    "tuple[str, ...]": ("colour:2", 3, (3,), None, ("fog:1",)),
    "str": (3, None, ("a",), "nonsense"),
    "str | None": (3, True, ("gap:1",), "nonsense", "gap:1,fog:1", "gap:4"),
}
WRONG["Control"] = WRONG["Distribution"] = WRONG["str"]
"""Type of a setting -> values that no setting of this type takes."""


def settings(config: Any) -> Iterator[tuple[str, str]]:
    """(name, type) of all settings, nested ones included."""
    for field in fields(config):
        if is_dataclass(value := getattr(config, field.name)):
            yield from settings(value)
        elif str(field.type) in WRONG:
            yield field.name, str(field.type)


@pytest.mark.parametrize("command", CONFIGS)
def test_every_setting_has_a_type_and_a_range(command):
    """nac_drive.envs says which tracks there are, DriverConfig and its core which cores and encoders."""
    config, checked = CONFIGS[command], set()
    accepted, messages = [], []
    for name, kind in settings(config):
        for value in WRONG[kind]:
            if name in ("core", "encoder") and isinstance(value, str):
                continue  # only the driver knows them
            changed = nested(config, **{name: value})
            try:
                changed.check()
                accepted.append((name, value))
            except ValueError as error:
                messages.append(str(error))
            checked.add(name)
    assert not accepted
    assert not any("\n" in message for message in messages)
    assert len(checked) >= {"train": 21, "dagger": 31, "ppo": 23}[command]


def test_without_its_package_a_tracker_is_refused_before_anything_is_made(monkeypatch, tmp_path):
    monkeypatch.setattr("nac_drive.training.tracking.find_spec", lambda name: None)
    for name in ("tensorboard", "wandb", "trackio"):
        with pytest.raises(
            ValueError, match=rf"track: {name} is not installed; run `pip install 'nac-drive\[{name}\]'`"
        ):
            nested(TrainConfig(), track=(name,)).check()
    with pytest.raises(ValueError, match="track must be of tensorboard, wandb, trackio, got 'mlflow'"):
        nested(TrainConfig(), track=("mlflow",)).check()
