"""Help names every option, and the options are the library's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import nac_drive
from nac_drive import cli
from nac_drive.cli import completion, driving, training
from nac_drive.cli.options import options as options_of
from nac_drive.cli.options import other_settings, subcommands
from nac_drive.cli.settings import TrainingCommand
from nac_drive.envs import PERTURBATIONS
from nac_drive.experiments.protocol import REPRODUCTIONS, SCRIPTED, load
from nac_drive.policies import CORES, PRETRAINED, DriverConfig, load_driver
from nac_drive.training.config import CloningConfig, TrainConfig, paper_recipe
from nac_drive.training.dagger_config import DaggerConfig
from nac_drive.training.ppo.config import PPOConfig
from nac_drive.training.settings import CONFIGS, settings
from tests.commands import call, refused
from tests.nac_drive.small import nested

POSITIONAL = {
    "challenge": {"task", "result"},
    "check-core": {"core"},
    "train": {"dataset"},
    "compare": {"dataset"},
    "dataset": {"action"},
    "completion": {"shell"},
    "check-environment": {"environment"},
    "reproduce": {"name"},
    "repeat": {"run_folder"},
}
TRAINING: dict[str, type[TrainingCommand]] = {
    name: command for name, command in cli.COMMANDS.items() if issubclass(command, TrainingCommand)
}


def parsed(monkeypatch: pytest.MonkeyPatch, command: type, *arguments: str) -> Any:
    """The command that `arguments` make, which does not run."""
    commands: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(command, "run", lambda self, console: commands.append(self))
        assert call(*arguments) == 0
    return commands[0]


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_names_every_option(command, capsys):
    assert call(command, "--help") == 0
    text = capsys.readouterr().out
    options = {setting.name for setting in fields(cli.COMMANDS[command])} - {"source", "options"}
    options |= {"config", "set"} if command in TRAINING else set()
    if hasattr(cli.COMMANDS[command], "options") or command in ("train", "compare", "dagger"):
        options |= {setting.name for setting in fields(training.TrainingOptions)}
    positional = POSITIONAL.get(command, set())
    for option in options - positional:
        assert f"--{option.replace('_', '-')}" in text, option
    assert ("--core STR" in text) == (command in ("train", "dagger", "ppo"))
    assert ("positional arguments" in text) == bool(positional - {"action"})
    assert ("{info,verify,merge,action-log,rebuild,export,import,import-tub,import-udacity}" in text) == (
        command == "dataset"
    )


@pytest.mark.parametrize(
    ("action", "options"),
    [
        ("info", {"--json"}), ("verify", {"--replay", "--workers"}), ("action-log", {"--out", "--workers"}),
        ("rebuild", {"--out", "--workers", "--resume"}), ("export", {"--to", "--out"}), ("import", {"--out"}),
        ("merge", {"--out"}),
    ],
)  # fmt: skip
def test_an_action_of_dataset_takes_its_own_options_only(action, options, capsys):
    assert call("dataset", action, "--help") == 0
    text = capsys.readouterr().out
    for option in ("--json", "--replay", "--out", "--workers", "--resume"):
        assert (option in text) == (option in options), option


def test_help_names_every_command_in_the_order_of_use(capsys):
    assert call("--help") == 0
    text = capsys.readouterr().out
    places = [text.index(f"• {command}") for command in cli.COMMANDS]
    assert places == sorted(places)
    assert list(cli.COMMANDS)[:5] == ["demo", "watch", "collect", "train", "evaluate"]
    assert "NAC_DRIVE_TRACEBACK=1" in text


@pytest.mark.parametrize("command", ["watch", "evaluate", "collect"])
def test_help_names_the_champion(command, capsys):
    assert call(command, "--help") == 0
    assert "champion" in capsys.readouterr().out


def test_help_of_reproduce_names_every_table(capsys):
    assert call("reproduce", "--help") == 0
    text = capsys.readouterr().out
    for name in REPRODUCTIONS:
        assert f"- {name}: {load(name).title}\n" in text
    assert set(SCRIPTED) <= set(re.findall(r"[a-z0-9.-]+", text))


def test_the_version_is_that_of_the_package(capsys):
    assert call("--version") == 0
    assert capsys.readouterr().out == f"nac-drive {nac_drive.__version__}\n"


def test_a_mistyped_option_gets_a_hint(capsys):
    assert call("train", "data", "--out", "new", "--corr", "lstm") == 2
    assert "--core" in capsys.readouterr().err


# Options and configs


def test_the_device_has_the_same_words_everywhere():
    """Trainings take a GPU by themselves, drivers when told to."""
    words = "Device of the {}: the GPU where there is one (auto), cpu or cuda."
    learning, driving = ("`auto`", words.format("training")), ("`cpu`", words.format("drivers"))
    expected = dict.fromkeys(("demo", "train", "compare", "reproduce", "dagger", "ppo"), learning)
    expected |= dict.fromkeys(("watch", "evaluate", "inspect", "stress"), driving)
    found = {
        name: (option.default, option.meaning)
        for name, command in subcommands()
        for option in options_of(command)
        if option.name == "--device" and name != "repeat"
    }
    assert found == expected


@pytest.mark.parametrize("command", TRAINING)
def test_a_training_has_few_options_and_docs_name_its_other_settings(command):
    kind = TRAINING[command]
    assert len(options_of(kind)) <= 30
    names = {setting.name for setting in kind.OPTIONS.values()} | {option.name for option in other_settings(kind)}
    known = settings(CONFIGS[kind.TRAINS]).keys()
    assert names | (kind.FIXED.keys() & known) == known


def test_the_options_of_train_are_those_of_the_library(monkeypatch):
    words = ("train", "data", "--out", "new")
    assert parsed(monkeypatch, training.Train, *words).settings() == TrainConfig()
    options = ("--core-args", "top_k=4", "gate=true", "seed=null", "--core", "cnn", "--sequence-length", "1")
    core_args = {"top_k": 4, "gate": True, "seed": None}
    expected = nested(TrainConfig(), core="cnn", core_args=core_args, sequence_length=1)
    assert parsed(monkeypatch, training.Train, *words, *options).settings() == expected


@pytest.mark.parametrize("recipe", [("--recipe", "paper"), ("--recipe=paper",)])
def test_the_recipe_of_the_paper_replaces_the_defaults(monkeypatch, recipe):
    words = ("train", "data", "--out", "new")
    command = parsed(monkeypatch, training.Train, *words, *recipe)
    assert (command.dataset, command.out) == (Path("data"), Path("new"))
    assert command.settings() == paper_recipe() != TrainConfig()
    other = ("--epochs", "3", *recipe, "--set", "driver.dropout=0.1", "--learning-rate", "1e-3")
    changed = parsed(monkeypatch, training.Train, *words, *other).settings()
    assert changed == nested(paper_recipe(), epochs=3, dropout=0.1, learning_rate=1e-3)


def test_the_options_of_dagger_are_those_of_the_library(monkeypatch):
    first = parsed(monkeypatch, training.Dagger, "dagger", "--out", "new")
    assert (first.expert, first.settings()) == ("expert", DaggerConfig())
    options = ("--core-args", "top_k=4", "--episodes", "3", "--set", "noise=0.2", "data.mask_bar=true")
    words = ("dagger", "--out", "new", "--expert", "controller", *options, "--workers", "2", "--resume")
    second = parsed(monkeypatch, training.Dagger, *words)
    assert (second.expert, second.options.workers, second.options.resume) == ("controller", 2, True)
    expected = nested(DaggerConfig(), core_args={"top_k": 4}, episodes=3, noise=0.2, mask_bar=True)
    assert second.settings() == expected
    third = parsed(monkeypatch, training.Dagger, *words, "--set", "data.augment=fog:1")
    with pytest.raises(ValueError, match="'fog' is unknown"):
        third.settings()


def test_the_options_of_ppo_are_those_of_the_library(monkeypatch):
    first = parsed(monkeypatch, training.Ppo, "ppo", "--out", "new")
    assert (first.settings(), first.options.resume) == (PPOConfig(), False)
    options = [
        "--control",
        "continuous",
        "--init-from",
        "champion",
        "--gamma",
        "0.9",
        "--n-envs",
        "8",
        "--resume",
    ]
    second = parsed(monkeypatch, training.Ppo, "ppo", "--out", "new", *options)
    assert second.options.resume
    expected = nested(
        PPOConfig(), driver=load_driver("champion-continuous").config, init_from="champion", gamma=0.9, n_envs=8
    )
    assert second.settings() == expected


def test_one_core_may_be_compared_with_the_settings_that_it_alone_allows(monkeypatch):
    configs: list[CloningConfig] = []
    monkeypatch.setattr(nac_drive, "compare", lambda *_, config, **__: configs.append(config) or pytest.skip())
    words = ("compare", "data", "--out", "new", "--drivers", "cnn", "--sequence-length", "1")
    with pytest.raises(pytest.skip.Exception):
        call(*words)
    assert configs == [nested(TrainConfig(), core="cnn", sequence_length=1)]
    assert call("compare", "data", "--out", "new", "--core", "cnn") == 2  # --drivers names them


# Words of --set


def test_every_kind_of_setting_is_read_by_its_type(monkeypatch):
    words = ["--set", "optim.ema_decay=0", "data.horizontal_flip=false", "data.augment=shadows:1,line:2", "size=96,96"]
    words += ["--set", "view=above", "training_tracks=none", "final_learning_rate=1e-3", "driver.core_args.top_k=3"]
    config = parsed(monkeypatch, training.Dagger, "dagger", "--out", "new", *words, "--rounds", "2").settings()
    expected = nested(
        DaggerConfig(), ema_decay=0.0, horizontal_flip=False, augment=("shadows:1", "line:2"), size=(96, 96), rounds=2,
        training_tracks=None, final_learning_rate=1e-3, core_args={"top_k": 3},
    )  # fmt: skip
    assert config == expected


def test_an_option_counts_more_than_set_and_later_words_more_than_earlier_ones(monkeypatch):
    words = ("train", "data", "--out", "new", "--epochs", "3", "--set", "epochs=4", "seed=1", "--set", "seed=2")
    assert parsed(monkeypatch, training.Train, *words).settings() == nested(TrainConfig(), epochs=3, seed=2)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("ema_decay=0", "there is no setting 'ema_decay'. Did you mean 'optim.ema_decay'?"),
        ("data.shfit=3", "Did you mean 'data.shift'?"),
        ("optim=3", "there is no setting 'optim': it is a group, of optim.ema_decay and others"),
        ("data.shift", "set must be KEY=VALUE, got 'data.shift'"),
        ("=3", "set must be KEY=VALUE"),
        ("data.shift=1.5", "data.shift must be a whole number, got '1.5'"),
        ("data.mask_bar=maybe", "data.mask_bar must be true or false, got 'maybe'"),
        ("optim.ema_decay=much", "optim.ema_decay must be a number, got 'much'"),
        ("optim.ema_decay=2", "ema_decay must lie in [0, 1), got 2.0"),
        ("driver.control=pulsed", "driver.control is decided by the dataset"),
        ("view=seat", "view is decided by the dataset (collect --view seat records one, dataset rebuild --view seat"),
        ("driver.num_actions=2", "driver.num_actions is decided by the environment"),
        ("driver.core_args.top_k=[1]", "neither a number nor a word"),
    ],
)
def test_a_bad_word_of_set_is_refused_in_one_line(word, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, "train", "data", "--out", "new", "--set", word)
    assert not list(tmp_path.iterdir())


def test_compare_has_the_cores_of_drivers(capsys):
    line = refused(capsys, "compare", "data", "--out", "new", "--set", "driver.core_args.top_k=3")
    assert "driver.core_args is decided by --drivers" in line


@pytest.mark.parametrize("word", ["none", "None"])
def test_none_is_no_baseline(monkeypatch, word, capsys):
    command = parsed(monkeypatch, driving.Evaluate, "evaluate", "--driver", "controller", "--baseline", word)
    baselines: list[Any] = []

    def evaluate(*_: Any, baseline: Any, **__: Any) -> None:
        baselines.append(baseline)
        raise ValueError("that is all")

    monkeypatch.setattr(nac_drive, "evaluate_with_baseline", evaluate)
    with pytest.raises(ValueError, match="that is all"):
        replace(command, workers=1).run(cli.main_console())
    assert baselines == [None]


def test_no_setting_means_none_by_an_empty_string():
    settings = [*map(vars, (TrainConfig(), DaggerConfig(), PPOConfig(), DriverConfig())), vars(driving.Evaluate())]
    assert not [name for values in settings for name, value in values.items() if value == ""]


# Completion


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    """The completion script for bash."""
    path = tmp_path_factory.mktemp("completion") / "nac-drive.bash"
    path.write_text(completion.with_names(cli.completion_script("bash")))
    return path


def completed(script: Path, *words: str) -> set[str]:
    """The words that bash offers in place of the last of `words`."""
    line = " ".join(f"'{word}'" for word in ("nac-drive", *words))
    command = f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _nac_drive_names; "
    command += 'printf "%s\\n" "${COMPREPLY[@]}"'
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, env=os.environ)
    return set(result.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_names_complete_in_bash(script, tmp_path, monkeypatch):
    (tmp_path / "champagne").mkdir()
    monkeypatch.chdir(tmp_path)
    champions = {
        name for known in PRETRAINED if known.startswith("champion") for name in (known, known.rpartition("-")[0])
    }
    assert completed(script, "watch", "--driver", "champ") == {*champions, "champagne"}
    beginning = {start: {core for core in CORES if core.startswith(start)} for start in ("nac-", "lst")}
    assert completed(script, "train", "data", "--core", "nac-") == beginning["nac-"]
    assert completed(script, "compare", "data", "--drivers", "cnn", "lst") == beginning["lst"]
    assert completed(script, "evaluate", "--tracks", "test-1") == {"test-1", "test-10", "test-100"}
    assert completed(script, "evaluate", "--perturb", "frame") == {
        name for name in PERTURBATIONS if name.startswith("frame")
    }
    assert "--control" in completed(script, "watch", "--driver", "champion", "--con")
    assert "watch" in completed(script, "wa")
