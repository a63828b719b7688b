"""A source that was replaced at its path is noticed: no command goes on with other drivers, encoders or data."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from reproduce import EXPERIMENTS as PAPERS
from responses import Responses

from nac_drive.cli.main import COMMANDS
from nac_drive.data_collection.collect import collect
from nac_drive.data_collection.dart import NoiseConfig
from nac_drive.data_collection.replay import rebuild, save_action_log
from nac_drive.envs import EnvConfig
from nac_drive.events import Event
from nac_drive.experiments import compare as comparison
from nac_drive.experiments import reproduce as reproduction
from nac_drive.experiments.challenge import challenge
from nac_drive.experiments.cloning import Cloning
from nac_drive.experiments.compare import compare
from nac_drive.experiments.evaluation import evaluate_with_baseline
from nac_drive.experiments.offline import Offline
from nac_drive.experiments.protocol import PaperEntry, Protocol
from nac_drive.experiments.reproduce import EXPERIMENTS as SHIPPED
from nac_drive.experiments.reproduce import reproduce
from nac_drive.experiments.stress import stress
from nac_drive.policies import Driver, DriverConfig, save_driver
from nac_drive.training.ppo.config import PPOConfig
from nac_drive.training.ppo.run import ppo
from nac_drive.training.settings import CONFIGS
from tests.data_collection.recordings import contents
from tests.nac_drive.small import Stop, config, dagger_config, nested, train, train_dagger
from tests.slow import slow_but

SOURCES = {
    "driver",
    "drivers",
    "baseline",
    "expert",
    "dataset",
    "log",
    "init_from",
    "freeze_encoder_from",
    "encoder_from",
}
"""Names of options that are paths of drivers, data sets or action logs, or may be."""
EXPERIMENTS = {**SHIPPED, **PAPERS}
REFUSED = r"dataset has|sha256: |other conditions \(drivers|has changed;|is not the action log's"
CONTINUOUS = EnvConfig("continuous", max_steps=3)
DISCRETE = EnvConfig(max_steps=3)


def driver_at(path: Path, seed: int, env: EnvConfig) -> None:
    torch.manual_seed(seed)
    settings = DriverConfig("cnn", encoder="pooled", d_model=64, control=env.control)
    save_driver(path, Driver(settings), env=asdict(env))


def recording_at(path: Path, seed: int, env: EnvConfig) -> None:
    env = replace(env, max_steps=20)
    collect(path, "controller", env=env, seeds=[0, 1], noise=NoiseConfig(0.9, 1), seed=seed)


def log_at(path: Path, seed: int, env: EnvConfig) -> None:
    recording_at(path.with_name(f"recording {seed}"), 0, replace(env, perturb="action-noise:3" if seed else None))
    save_action_log(path.with_name(f"recording {seed}"), path)


def stopped(event: Event) -> None:
    """Stop after the first row."""
    if event.done:
        raise Stop


def interrupted(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
    with suppress(Stop):
        call(*arguments, **keywords)


def training(option: str) -> Callable[..., None]:
    def begin(source: Path, folder: Path, data: Path, resume: bool) -> None:
        settings = config("cnn", residual=False, encoder="pooled", d_model=64, sequence_length=4, dropout=0.0)
        dataset: Any = data
        if option == "dataset":
            dataset = source
        else:
            settings = nested(settings, **{option: str(source)})
        interrupted(train, settings, dataset, folder, resume=resume, progress=stopped)

    return begin


def daggering(option: str) -> Callable[..., None]:
    def begin(source: Path, folder: Path, data: Path, resume: bool) -> None:
        settings = dagger_config("cnn", encoder="pooled", d_model=64, max_steps=4, sequence_length=1, residual=False)
        expert = "controller"
        if option == "expert":
            expert = str(source)
        else:
            settings = nested(settings, **{option: str(source)})
        interrupted(train_dagger, settings, folder, expert=expert, resume=resume, progress=stopped)

    return begin


def comparing(option: str) -> Callable[..., None]:
    def begin(source: Path, folder: Path, data: Path, resume: bool) -> None:
        settings = config("cnn", encoder="pooled", d_model=64, sequence_length=4, dropout=0.0)
        arguments: dict[str, Any] = {"dataset": data, "expert": "controller"}
        drivers = ["cnn"]
        if option == "drivers":
            drivers.append(str(source))
        elif option in arguments:
            arguments[option] = source
        else:
            settings = nested(settings, **{option: str(source)})
        interrupted(
            compare, drivers, tracks=[5], folder=folder, config=settings, device="cpu", resume=resume, **arguments
        )  # fmt: skip

    return begin


def reproducing(experiment: str, option: str, **settings: Any) -> Callable[..., None]:
    def begin(source: Path, folder: Path, data: Path, resume: bool) -> None:
        named = {**settings, option: str(source)}
        table = Protocol("T", "S", experiment, "d", [PaperEntry("A", "cnn")], settings=named)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reproduction, "load", lambda *_: table)
            interrupted(reproduce, "tiny", folder, resume=resume, workers=1, experiments=EXPERIMENTS)

    return begin


def drive(driver: Any, folder: Path, resume: bool, **keywords: Any) -> None:
    evaluate_with_baseline(driver, [5], folder=folder, resume=resume, **keywords)


Begin = Callable[[Path, Path, Path, bool], Any]
CASES: dict[tuple[str, str], tuple[Callable[..., None], EnvConfig, Begin]] = {
    ("collect", "driver"): (driver_at, DISCRETE, lambda source, folder, _, resume: collect(
        folder, source, env=DISCRETE, seeds=[0, 1][: 1 + resume], resume=resume)),
    ("dataset", "log"): (log_at, DISCRETE, lambda source, folder, _, resume: rebuild(source, folder, resume=resume)),
    ("evaluate", "driver"): (driver_at, DISCRETE, lambda source, folder, _, resume: drive(
        source, folder, resume, baseline=None)),
    ("challenge", "driver"): (driver_at, CONTINUOUS, lambda source, folder, _, resume: interrupted(
        challenge, source, folder.with_suffix(".json"), tracks=1, resume=resume, progress=stopped)),
    ("evaluate", "baseline"): (driver_at, DISCRETE, lambda source, folder, _, resume: drive(
        source.with_name("mine"), folder, resume, baseline=source)),
    ("stress", "drivers"): (driver_at, DISCRETE, lambda source, folder, _, resume: stress(
        [source], ["gap:3"], [5], folder=folder, resume=resume)),
    ("train", "dataset"): (recording_at, DISCRETE, training("dataset")),
    ("train", "init_from"): (driver_at, DISCRETE, training("init_from")),
    ("train", "freeze_encoder_from"): (driver_at, DISCRETE, training("freeze_encoder_from")),
    ("dagger", "expert"): (driver_at, DISCRETE, daggering("expert")),
    ("dagger", "init_from"): (driver_at, DISCRETE, daggering("init_from")),
    ("dagger", "freeze_encoder_from"): (driver_at, DISCRETE, daggering("freeze_encoder_from")),
    ("ppo", "init_from"): (driver_at, DISCRETE, lambda source, folder, _, resume: interrupted(
        ppo, nested(PPOConfig(),init_from=str(source), total_timesteps=0), folder, resume=resume)),
    ("compare", "drivers"): (driver_at, DISCRETE, comparing("drivers")),
    ("compare", "dataset"): (recording_at, DISCRETE, comparing("dataset")),
    ("compare", "expert"): (driver_at, DISCRETE, comparing("expert")),
    ("compare", "init_from"): (driver_at, DISCRETE, comparing("init_from")),
    ("compare", "freeze_encoder_from"): (driver_at, DISCRETE, comparing("freeze_encoder_from")),
    ("cloning", "expert"): (driver_at, CONTINUOUS, reproducing("cloning", "expert", perturbations=[])),
    ("cloning", "encoder_from"): (driver_at, CONTINUOUS, reproducing("cloning", "encoder_from", perturbations=[])),
    ("offline", "driver"): (driver_at, DISCRETE, reproducing("offline", "driver")),
    ("learning-curves", "driver"): (driver_at, DISCRETE, reproducing("learning-curves", "driver")),
    ("pictures", "expert"): (driver_at, CONTINUOUS, reproducing("pictures", "expert")),
    ("pictures", "encoder_from"): (driver_at, CONTINUOUS, reproducing("pictures", "encoder_from")),
    ("responses", "expert"): (driver_at, CONTINUOUS, reproducing("responses", "expert")),
}  # fmt: skip
"""Command or experiment, and its option -> what makes a source, its environment, and what begins or resumes work."""


def names_of(options: Any) -> set[str]:
    """Names of the fields of a command, and of what it holds."""
    names: set[str] = set()
    for option in fields(options):
        default = option.default_factory() if callable(option.default_factory) else option.default
        names |= names_of(default) if is_dataclass(default) else {option.name}
    return names


def test_every_source_of_every_command_that_resumes_is_here():
    commands = {name: names_of(kind) for name, kind in COMMANDS.items() if name != "dataset"}
    for name, kind in COMMANDS.items():
        if hasattr(kind, "TRAINS"):  # --set reaches all settings
            commands[name] |= names_of(CONFIGS[kind.TRAINS])
    sources = {(name, option) for name, names in commands.items() if "resume" in names for option in names & SOURCES}
    sources.remove(("compare", "baseline"))  # a name of one of its drivers
    sources.remove(("evaluate", "dataset"))  # measured at once, and not resumed
    sources.remove(("repeat", "dataset"))  # compared with the run's own; tests/nac_drive/training/test_repeat.py
    experiments = {(name, option) for name, kind in EXPERIMENTS.items() for option in names_of(kind) & SOURCES}
    assert sources | {("dataset", "log")} | experiments == set(CASES)


@pytest.mark.parametrize(
    ("command", "option"), slow_but(CASES.keys() - {("challenge", "driver")}, CASES), ids=lambda value: str(value)
)
def test_a_source_that_was_replaced_is_refused_and_nothing_changes(
    command: str, option: str, dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def stop(*arguments: Any, **keywords: Any) -> Any:
        raise Stop

    monkeypatch.setattr(comparison, "run", stop)
    monkeypatch.setattr("nac_drive.training.ppo.run.closed_loop", stop)
    for kind in (Cloning, Offline, Responses):
        monkeypatch.setattr(kind, "prepare", stop)
    make, env, begin = CASES[command, option]
    source, folder = tmp_path / "source", tmp_path / "out"
    make(source, 0, env)
    driver_at(tmp_path / "mine", 2, DISCRETE)
    begin(source, folder, dataset.path, False)
    before = contents(folder)
    assert before
    if source.is_dir():
        shutil.rmtree(source)
    else:
        source.unlink()
    make(source, 1, env)
    with pytest.raises(ValueError, match=REFUSED) as refusal:
        begin(source, folder, dataset.path, True)
    assert str(refusal.value).isprintable()
    assert contents(folder) == before
