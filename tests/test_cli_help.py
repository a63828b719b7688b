"""The command line tells every option, and its options are those of the library."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nac_drive import cli
from nac_drive.cli.training import DaggerOptions, ExpertOptions, Training
from nac_drive.training.dagger import DaggerConfig
from nac_drive.training.ppo import ExpertConfig
from nac_drive.training.train import CloneConfig
from tests.test_cli import call


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_mentions_every_option(command, capsys):
    assert call(command, "--help") == 0
    told = capsys.readouterr().out
    nested = {"train": Training, "compare": Training, "dagger": DaggerOptions, "expert": ExpertOptions}
    options = set(cli.COMMANDS[command].__dataclass_fields__) - {"training", "settings"}
    if command in nested:
        options |= set(nested[command].__dataclass_fields__) - {"core"}
    positional = {"dataset": {"action", "path"}, "train": {"dataset"}, "compare": {"dataset"}}.get(command, set())
    for option in options - positional:
        assert f"--{option.replace('_', '-')}" in told, option
    assert ("--core STR" in told) == (command in ("train", "dagger"))
    assert ("positional arguments" in told) == bool(positional)
    assert ("{info,verify,recipe,rebuild}" in told) == (command == "dataset")


def test_help_names_every_command(capsys):
    assert call("--help") == 0
    told = capsys.readouterr().out
    assert all(command in told for command in cli.COMMANDS)
    assert "NAC_DRIVE_TRACEBACK=1" in told


def test_the_options_of_a_training_are_those_of_the_library(monkeypatch):
    configs: list[CloneConfig] = []
    monkeypatch.setattr(cli.Train, "run", lambda self, console: configs.append(self.training.config(self.core)))
    train = ("train", "data", "--out", "new")
    assert call(*train) == 0
    assert call(*train, "--core-args", "top_k=4", "gate=true", "seed=null", "--core", "cnn", "--window", "1") == 0
    assert configs == [
        CloneConfig(), CloneConfig("cnn", {"top_k": 4, "gate": True, "seed": None}, window=1)
    ]  # fmt: skip


def test_the_options_of_dagger_are_those_of_the_library(monkeypatch):
    commands: list[Any] = []
    monkeypatch.setattr(cli.Dagger, "run", lambda self, console: commands.append(self))
    assert call("dagger", "--out", "new") == 0
    options = ("--core-args", "top_k=4", "--episodes", "3", "--noise", "0.2", "--mask-bar", "--augment", "fog:1")
    assert call("dagger", "--out", "new", "--expert", "controller", *options, "--workers", "2", "--resume") == 0
    first, second = commands
    assert (first.expert, first.training.config()) == ("expert", DaggerConfig())
    assert (second.expert, second.training.workers, second.training.resume) == ("controller", 2, True)
    with pytest.raises(ValueError, match="'fog' is unknown"):
        second.training.config()
    asked = DaggerConfig(core_args={"top_k": 4}, episodes=3, noise=0.2, mask_bar=True)
    assert replace(second.training, augment=()).config() == asked


def test_the_options_of_the_expert_are_those_of_the_library(monkeypatch):
    commands: list[Any] = []
    monkeypatch.setattr(cli.Expert, "run", lambda self, console: commands.append(self))
    assert call("expert", "--out", "new") == 0
    options = ("--control", "continuous", "--init", "clone", "--action-noise", "0.05", "--validation-tracks", "val-99")
    assert call("expert", "--out", "new", *options, "--resume") == 0
    first, second = commands
    assert (first.training.config(), first.training.resume) == (ExpertConfig(), False)
    assert second.training.resume
    with pytest.raises(ValueError, match="has 25 tracks"):
        second.training.config()
    asked = ExpertConfig(control="continuous", init="clone", action_noise=0.05)
    assert replace(second.training, validation_tracks=ExpertConfig.validation_tracks).config() == asked


def test_one_core_may_be_compared_with_the_settings_that_it_alone_allows(monkeypatch):
    configs: list[CloneConfig] = []
    monkeypatch.setattr(
        cli.Compare, "run", lambda self, console: configs.append(self.training.config(self.drivers[0]))
    )  # fmt: skip
    assert call("compare", "data", "--out", "new", "--drivers", "cnn", "--window", "1") == 0
    assert configs == [CloneConfig("cnn", window=1)]
    assert call("compare", "data", "--out", "new", "--core", "cnn") == 2  # --drivers names them
