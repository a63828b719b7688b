"""The defaults of a training: --config and --init-from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import nac_drive as nd
from nac_drive.cli import training
from nac_drive.policies import Driver, DriverConfig
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.train import train_plan
from tests.commands import refused
from tests.nac_drive import small
from tests.test_cli_help import parsed

SOURCE = DriverConfig(
    "nac-exact", {"window": 4, "num_heads": 4}, encoder="pooled", d_model=32, dense=16, residual=True, dropout=0.1
)


@pytest.fixture(name="source", scope="module")
def _source(tmp_path_factory) -> Path:
    """The folder of a driver with unusual settings."""
    path = tmp_path_factory.mktemp("source") / "driver"
    nd.save_driver(path, Driver(SOURCE), env={}, meta={})
    return path


def words(command: str, data: nd.Demonstrations) -> list[str]:
    return ["train", str(data.path), "--out", "new"] if command == "train" else ["dagger", "--out", "new"]


def driver(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> DriverConfig:
    """The driver that a command of these words trains."""
    return (
        parsed(monkeypatch, {"train": training.Train, "dagger": training.Dagger}[arguments[0]], *arguments)
        .settings()
        .driver
    )


@pytest.mark.parametrize("command", ["train", "dagger"])
def test_a_driver_goes_on_with_its_own_settings(command, source, dataset, monkeypatch):
    start = [*words(command, dataset), "--init-from", str(source)]
    assert driver(monkeypatch, *start) == SOURCE
    assert driver(monkeypatch, *start, "--core", "nac-exact", "--no-residual") == replace(SOURCE, residual=False)
    changed = driver(monkeypatch, *start, "--core-args", "window=8", "--set", "driver.dropout=0")
    assert changed == replace(SOURCE, core_args={"window": 8}, dropout=0.0)
    by_set = [*words(command, dataset), "--set", f"optim.init_from={source}"]
    assert driver(monkeypatch, *by_set) == SOURCE


@pytest.mark.parametrize("command", ["train", "dagger"])
def test_another_core_takes_encoder_and_head_alone(command, source, dataset, monkeypatch):
    """It has its own settings, and no residual path."""
    start = [*words(command, dataset), "--init-from", str(source), "--core"]
    expected = replace(SOURCE, core="lstm", core_args={}, residual=False)
    assert driver(monkeypatch, *start, "lstm") == expected
    assert driver(monkeypatch, *start, "lstm", "--residual") == replace(expected, residual=True)
    same_words = driver(monkeypatch, *start, "nac-sharp", "--core-args", "window=4", "num_heads=4")
    assert same_words == replace(expected, core="nac-sharp", core_args=SOURCE.core_args)


def test_the_ordinary_core_can_be_typed_for_a_driver_of_another(dataset, tmp_path, monkeypatch):
    nd.save_driver(tmp_path / "lstm", Driver(DriverConfig("lstm", encoder="pooled")), env={}, meta={})
    start = [*words("train", dataset), "--init-from", str(tmp_path / "lstm")]
    assert driver(monkeypatch, *start).core == "lstm"
    assert driver(monkeypatch, *start, "--core", "nac-exact") == DriverConfig(encoder="pooled")


def test_the_dataset_decides_the_actions(source, continuous, monkeypatch):
    """A shipped driver may have two controls."""
    shipped = [*words("train", continuous), "--init-from", "champion"]
    assert driver(monkeypatch, *shipped).core_args == nd.load_driver("champion", "continuous").config.core_args
    assert driver(monkeypatch, *words("train", continuous), "--init-from", str(source)) == SOURCE


@pytest.mark.parametrize("command", ["train", "dagger"])
def test_a_driver_to_start_from_is_missed_early(command, dataset, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no folder nobody" in refused(capsys, *words(command, dataset), "--init-from", "nobody")
    assert "learned driver, got 'controller'" in refused(capsys, *words(command, dataset), "--init-from", "controller")
    assert not list(tmp_path.iterdir())


# --config


@pytest.fixture(name="run", scope="module")
def _run(dataset, tmp_path_factory) -> Path:
    """The folder of a run with its own settings."""
    settings = small.config("nac-exact", core_args={"window": 4, "num_heads": 4}, residual=True)
    return RunFolder.create(tmp_path_factory.mktemp("config") / "run", train_plan(settings, dataset).resolved).path


def test_another_core_leaves_the_settings_of_the_first(run, dataset, monkeypatch):
    """It was refused: the first core's settings stayed."""
    start = [*words("train", dataset), "--config", str(run)]
    first = driver(monkeypatch, *start)
    assert (first.core, first.core_args, first.residual) == ("nac-exact", {"window": 4, "num_heads": 4}, True)
    expected = replace(first, core="lstm", core_args={})
    assert driver(monkeypatch, *start, "--core", "lstm") == expected
    assert driver(monkeypatch, *start, "--set", "driver.core=lstm") == expected
    sharp = replace(first, core="nac-sharp", core_args={"window": 4})
    assert driver(monkeypatch, *start, "--core", "nac-sharp", "--core-args", "window=4") == sharp
    assert driver(monkeypatch, *start, "--set", "driver.core_args.window=4", "driver.core=nac-sharp") == sharp
    assert driver(monkeypatch, *start, "--set", "driver.core_args.window=8").core_args == {"window": 8, "num_heads": 4}
    assert driver(monkeypatch, *start, "--core", "nac-exact") == first


def test_a_config_counts_more_than_the_driver_to_start_from(run, source, dataset, monkeypatch):
    start = [*words("train", dataset), "--config", str(run), "--init-from", str(source)]
    assert driver(monkeypatch, *start).d_model == DriverConfig().d_model
