"""A learning rate that nobody chose belongs to the core.

So it is when the settings of a run are used again.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nac_drive.cli import training
from nac_drive.policies.cores.rates import RECOMMENDED, USUAL_RATE
from nac_drive.training.dagger_config import DaggerConfig
from nac_drive.training.settings import read_config
from nac_drive.training.trainer import Trainer
from tests.nac_drive.small import config, dagger_config, nested, rows, train, train_dagger
from tests.test_cli_help import parsed


def validated(trainer: Trainer) -> dict[str, Any]:
    """Replacement of the closed loop."""
    return {"score": 0.0, "returns": [0.0], "return_mean": 0.0}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def lstm(dataset, tmp_path_factory) -> Path:
    """A run without a chosen learning rate."""
    run = tmp_path_factory.mktemp("rates") / "lstm"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "validate", validated)
        train(config("lstm", learning_rate=None, epochs=1), dataset, run)
    return run


def test_another_core_has_its_own_rate(lstm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = read_config(lstm, "train")
    assert saved.trained.optim.learning_rate == RECOMMENDED["lstm"] != USUAL_RATE
    assert saved.trained.optim.encoder_learning_rate == USUAL_RATE
    assert (saved.config.optim.learning_rate, saved.config.optim.encoder_learning_rate) == (None, None)
    assert saved.config.rate_of_core == RECOMMENDED["lstm"]
    assert nested(saved.config, core="ncp").rate_of_core == RECOMMENDED["ncp"]
    words = ("train", "--config", str(lstm), "--out", "new", "--core", "ncp")
    assert parsed(monkeypatch, training.Train, *words).settings().rate_of_core == RECOMMENDED["ncp"]


def test_a_chosen_rate_stays(trained: Path) -> None:
    assert read_config(trained, "train").config.optim.learning_rate == 1e-3


def test_a_run_goes_on_whoever_chose_the_same_rate(lstm: Path, dataset, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Trainer, "validate", validated)
    saved = read_config(lstm, "train")
    run = Path(shutil.copytree(lstm, tmp_path / "run"))
    for epochs, settings in ((2, saved.config), (3, saved.trained), (4, saved.config)):
        train(nested(settings, epochs=epochs), dataset, run, resume=True)
    assert len(rows(run)) == 4


@pytest.mark.parametrize("core", ["cnn", "nac-exact"])
def test_a_training_moves_no_generator_of_the_caller(core: str, dataset, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Trainer, "validate", validated)
    before = torch.get_rng_state()
    train(config(core, epochs=1), dataset, tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ValueError, match="heads"):
        train(config(core, core_args={"heads": 4}), dataset, tmp_path / "refused")
    assert torch.equal(torch.get_rng_state(), before)


def test_nor_does_dagger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "validate", validated)
    settings: DaggerConfig = dagger_config("cnn", rounds=0, initial_episodes=1, initial_epochs=1)
    before = torch.get_rng_state()
    train_dagger(settings, tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)
