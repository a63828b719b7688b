"""config.yaml and the words of --set are settings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from nac_drive import cli
from nac_drive.cli import training
from nac_drive.storage.read import FileError
from nac_drive.training.config import TrainConfig, paper_recipe
from nac_drive.training.dagger_config import DaggerConfig
from nac_drive.training.ppo.config import PPOConfig
from nac_drive.training.settings import CONFIG, CONFIGS, FORMAT, changed, read_config, settings, value_of
from tests.commands import refused
from tests.nac_drive.small import config, nested

COMMANDS: dict[str, Any] = {"train": training.Train, "dagger": training.Dagger, "ppo": training.Ppo}
RICH: dict[str, Any] = {
    "train": nested(
        paper_recipe(), core="nac-exact", core_args={"top_k": 4, "gain": None, "value": "input"}, augment=("line:1",),
        encoder_learning_rate=1e-4, init_from="a driver", perturb="gap:1", shift=3, seed=7,
    ),
    "dagger": nested(
        DaggerConfig(), control="pulsed", view="seat", size=(160, 80), training_tracks="4,5", noise=0, ema_decay=0.5,
        freeze_encoder_from="expert", features=None, horizontal_flip=False,
    ),
    "ppo": nested(
        PPOConfig(), control="continuous", distribution="gaussian", init_from=Path("clone"), precision="bf16-mixed",
        augment=("colour:2", "shadows:1+gaussian-noise:1"), crash_penalty=0, gamma=0.9, size=(96, 96),
    ),
}  # fmt: skip
"""Command -> a config with values of every type, and with no value."""


def written(folder: Path, document: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_text(yaml.safe_dump(document, sort_keys=False))
    return folder / CONFIG


def parsed(monkeypatch: pytest.MonkeyPatch, command: str, words: Sequence[str | os.PathLike[str]]) -> Any:
    """The command of these words, which does not run."""
    commands: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(COMMANDS[command], "run", lambda self, console: commands.append(self))
        assert cli.main([command, *map(str, words)]) == 0
    return commands[0]


@pytest.mark.parametrize("command", CONFIGS)
def test_a_config_that_is_written_is_read_back_by_its_command(command, tmp_path, monkeypatch):
    before = RICH[command]
    path = written(tmp_path / "run", {"format": FORMAT, **asdict(before)})
    saved = read_config(path.parent)
    assert (saved.command, saved.facts) == (command, {})
    assert saved.config == before
    monkeypatch.setattr(CONFIGS[command], "check", lambda self: None)  # "a driver" is none
    words = ["data"] if command == "train" else []
    again = parsed(monkeypatch, command, [*words, "--config", path, "--out", "new"]).settings()
    assert again == before


def test_options_and_set_replace_the_settings_of_a_config(tmp_path, monkeypatch):
    facts = {"dataset": "demos", "dataset_sha256": "ab"}
    path = written(tmp_path, {"format": FORMAT, **asdict(config("lstm", epochs=9)), **facts})
    words = ["--config", path, "--out", "new", "--set", "optim.ema_decay=0.5", "--learning-rate", "0.002"]
    command = parsed(monkeypatch, "train", words)
    assert command.dataset == Path("demos")
    assert command.settings() == nested(config("lstm", epochs=9), ema_decay=0.5, learning_rate=0.002)
    other = parsed(monkeypatch, "train", ["others", *words, "--epochs", "12", "--core", "nac-exact"])
    assert other.dataset == Path("others")
    assert (other.settings().epochs, other.settings().driver.core) == (12, "nac-exact")  # the ordinary defaults


def test_a_file_may_name_some_settings_alone(tmp_path, monkeypatch):
    path = written(tmp_path, {"optim": {"learning_rate": 0.002}, "seed": 3})
    for command, kind in CONFIGS.items():
        words = ["data"] if command == "train" else []
        got = parsed(monkeypatch, command, [*words, "--config", path, "--out", "new"]).settings()
        assert got == nested(kind(), learning_rate=0.002, seed=3)


@pytest.mark.parametrize("command", CONFIGS)
def test_a_config_of_another_command_is_refused_with_its_name(command, tmp_path, capsys):
    path = written(tmp_path, {"format": FORMAT, **asdict(CONFIGS[command]())})
    for other in CONFIGS.keys() - {command}:
        line = refused(capsys, other, *(["data"] if other == "train" else []), "--config", str(path), "--out", "new")
        assert f"{CONFIG} is a config of `nac-drive {command}`; pass one that `nac-drive {other}` wrote." in line


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optim": {"ema_deca": 0.9}}, "there is no setting 'optim.ema_deca'. Did you mean 'optim.ema_decay'?"),
        ({"epoch": 3}, "there is no setting 'epoch'. Did you mean 'epochs'?"),
        ({"epochs": "3"}, "epochs must be a whole number, got '3'"),
        ({"epochs": True}, "epochs must be a whole number, got True"),
        ({"data": {"augment": "line:1"}}, "data.augment must be words, got 'line:1'"),
        ({"data": {"mask_bar": 1}}, "data.mask_bar must be true or false, got 1"),
        ({"driver": {"core_args": [3]}}, "driver.core_args must be a mapping"),
        ({"driver": {"control": "masked"}}, "driver.control must be one of discrete, continuous, pulsed, got 'masked'"),
        ({"optim": 3}, "there is no setting 'optim': it is a group, of optim.ema_decay and others"),
        ({"optim": {"ema_decay": 2.0}}, "ema_decay must lie in [0, 1), got 2.0"),
        ({"dataset": 3}, "dataset must be of type str, got 3"),
        ({"format": 1}, "was written by another version of nac-drive (format 1"),
        ({"format": None}, "was written by another version"),
    ],
)
def test_a_config_that_is_none_is_refused_in_one_line(change, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document = {"format": FORMAT, **asdict(TrainConfig())}
    for key, value in change.items():
        document[key] = document[key] | value if isinstance(value, dict) else value
    written(tmp_path / "run", document)
    assert message in refused(capsys, "train", "data", "--config", "run", "--out", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "a: &x {b: *x}", "1: 2", "\x00", "- !!python/object:os.system {}"])
def test_a_file_that_is_no_config_is_refused(text, tmp_path):
    (tmp_path / CONFIG).write_text(text)
    with pytest.raises(FileError, match=r"config\.yaml"):
        read_config(tmp_path)


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "+1.0e-3", ".1e-2", "1e-03", "'1e-3'"])
def test_a_number_with_an_exponent_is_a_number(text, tmp_path):
    """YAML 1.1 reads 1e-3 as text."""
    (tmp_path / CONFIG).write_text(
        f"optim: {{learning_rate: {text}, encoder_learning_rate: {text}, init_from: '1e-3'}}\n"
        f"driver: {{core: nac-exact, core_args: {{time_unit: {text}, value: input}}}}\n"
    )
    read = read_config(tmp_path, "train").config
    assert (read.optim.learning_rate, read.optim.encoder_learning_rate, read.optim.init_from) == (1e-3, 1e-3, "1e-3")
    assert read.driver.core_args == {"time_unit": 1e-3, "value": "input"}


@pytest.mark.parametrize("text", ["1e", "e-3", "1e-3x", "1e-3 s", "'0.001'"])
def test_a_text_that_is_no_number_stays_one(text, tmp_path):
    (tmp_path / CONFIG).write_text(f"optim: {{learning_rate: {text}}}")
    with pytest.raises(FileError, match="learning_rate must be a number or none, got '"):
        read_config(tmp_path, "train")


def test_an_exponent_is_a_number_in_a_setting_of_the_core(monkeypatch):
    words = ["data", "--out", "new", "--core", "nac-exact", "--set", "driver.core_args.time_unit=1e-3"]
    assert parsed(monkeypatch, "train", words).settings().driver.core_args == {"time_unit": 1e-3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "optim: {ema_decay: 0,\n  ema_decay: 0.5}",
            "config.yaml, line 2 repeats the key 'ema_decay' of line 1; leave one",
        ),
        ("optim: {ema_decay: 0}\noptim.ema_decay: 0.5", "config.yaml: optim.ema_decay comes twice; leave one out"),
    ],
)
def test_a_setting_that_comes_twice_is_refused(text, message, tmp_path):
    (tmp_path / CONFIG).write_text(text)
    with pytest.raises(FileError) as caught:
        read_config(tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize("command", ["trainn", "", 3])
def test_an_unknown_command_lists_the_known(command, tmp_path):
    with pytest.raises(ValueError, match=r"^command: must be one of train, dagger, ppo, or None, got") as caught:
        read_config(tmp_path, command)
    assert ("Did you mean 'train'?" in str(caught.value)) == (command == "trainn")


def test_a_missing_config_is_refused(tmp_path, capsys):
    assert "cannot be read" in refused(capsys, "ppo", "--config", str(tmp_path / "nothing"), "--out", "new")


def test_config_and_recipe_are_one_too_many(tmp_path, capsys):
    path = written(tmp_path, asdict(TrainConfig()))
    words = ("train", "data", "--out", "new", "--recipe", "paper", "--config", str(path))
    assert "config and recipe both give all settings" in refused(capsys, *words)


@pytest.mark.parametrize("command", CONFIGS)
def test_settings_are_all_fields_of_a_config(command):
    before = RICH[command]
    values = {name: value_of(before, name) for name in settings(CONFIGS[command])}
    assert changed(CONFIGS[command](), values) == before
    assert replace(before) == changed(before, {})
