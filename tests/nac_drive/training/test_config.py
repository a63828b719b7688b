"""Settings of training: cheap to import, one recipe of the paper, and every default can be trained with."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, asdict
from pathlib import Path

import pytest

from nac_drive.policies import Driver
from nac_drive.training.config import DaggerConfig, PPOConfig, TrainConfig, core_settings, paper_recipe
from tests.nac_drive.small import nested

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.timeout(1200)
def test_slow_libraries_are_imported_only_where_they_are_needed():
    """Workers that step environments do without torch; lightning-fabric is imported when a run starts."""
    script = (
        "import sys, nac_drive.training.config, nac_drive.training.ppo_env\n"
        "print([name for name in ('torch', 'lightning_fabric', 'stable_baselines3') if name in sys.modules])\n"
        "import nac_drive.training.train, nac_drive.training.dagger, nac_drive.training.ppo\n"
        "print([name for name in ('torch', 'lightning_fabric') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n['torch']\n"


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
    assert (recipe.data.horizontal_flip, recipe.data.class_weights, recipe.data.augment) == (False, False, ())
    assert recipe.optim.init_from is recipe.optim.freeze_encoder_from is None
    assert Driver(recipe.driver).core.nac.num_heads == 16  # type: ignore[union-attr]
    assert paper_recipe() == recipe
    other = nested(recipe, core="lstm", epochs=3)
    other.check()
    assert asdict(other.optim) == asdict(recipe.optim)


def test_settings_of_a_core_from_words():
    words = ["top_k=4", "window=64", "phi_activation=tanh", "rate=0.5"]
    assert core_settings(words) == {"top_k": 4, "window": 64, "phi_activation": "tanh", "rate": 0.5}
    assert core_settings([]) == {}
    for word in ("top_k", "=4", "top_k=[1"):
        with pytest.raises(ValueError, match="core-args"):
            core_settings([word])
