"""The table of shifts, and distillation under augmentations."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from distil_encoder import PROBED, main, steering_error
from shifts import OWN, PAPER, PUBLISHED, SEEN, paper, table

import nac_drive as nd
from nac_drive.envs import PERTURBATIONS
from nac_drive.evaluation.results import EpisodeResult
from nac_drive.experiments.families import families
from nac_drive.experiments.stress import StressResult, stress_cells
from nac_drive.policies import Driver, DriverConfig, load_driver, save_driver

NO_CRASH = {"crashes": 0.0, "interventions": 0.0, "first_crash_time": None}


def row(driver: str, spec: str | None, track: int, value: float) -> EpisodeResult:
    return EpisodeResult(driver, track, "ignore", spec, None, {"episode_return": value, **NO_CRASH})


def test_the_table_marks_what_was_seen():
    returns = {None: 900.0, "colour:2": 300.0, "gap:1": 700.0}
    rows = {
        (driver, spec): [row(driver, spec, track, value + lead + 10 * track) for track in (0, 1)]
        for driver, lead in (("mine", 0), ("robust-champion", 20))
        for spec, value in returns.items()
    }
    result = StressResult(["mine", "robust-champion"], families(["colour:2", "gap:1"]), rows, stress_cells(rows))
    lines = table(result, SEEN | {"mine": frozenset({"colour"})}).splitlines()
    assert lines[2:] == [
        "| none | 905 [900, 910] (900) | 925 [920, 930] (920) |",
        "| `colour:2` | 305 [300, 310]* (300) | 325 [320, 330] (320) |",
        "| `gap:1` | 705 [700, 710] (700) | 725 [720, 730]* (720) |",
    ]
    assert len(paper().splitlines()) == 2 + len(PAPER)


def test_every_shift_and_everything_seen_is_a_perturbation():
    families([*PUBLISHED, *OWN])
    assert all(names <= PERTURBATIONS.keys() for names in SEEN.values())


@pytest.fixture(scope="module")
def driver() -> Driver:
    torch.manual_seed(0)
    return Driver(DriverConfig("lstm", d_model=8, dense=8, control="continuous")).eval()


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["compact", "chroma"])
def test_a_short_run_changes_the_encoder_alone_and_goes_on(encoder, driver, tmp_path, monkeypatch):
    clock = SimpleNamespace(monotonic=count(step=0.05).__next__)  # an update takes 0.05 s on any machine
    monkeypatch.setattr("distil_encoder.time", clock)
    save_driver(tmp_path / "mine", driver, env={"control": "continuous"})
    env = nd.EnvConfig("continuous", max_steps=30)
    nd.collect(tmp_path / "data", "controller", env=env, seeds=range(PROBED + 1))
    out = tmp_path / "out"
    settings = ["--driver", str(tmp_path / "mine"), "--augment", "cut-out:1", "--probe", "colour:1", "--out", str(out)]
    settings += ["--encoder", encoder]
    for minutes in ("0.02", "0.04"):
        main([str(tmp_path / "data"), *settings, "--minutes", minutes])
    first, second = (json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines())
    assert 0 < first["step"] < second["step"]
    assert second["loss"] < first["loss"]
    assert set(first["steering_error"]) == {"", "colour:1"}
    distilled = load_driver(out / "driver")
    assert distilled.config == replace(driver.config, encoder=encoder)
    for name, weight in driver.state_dict().items():
        assert torch.equal(weight, distilled.state_dict()[name]) != name.startswith("encoder."), name
    held = nd.Demonstrations.open(tmp_path / "data").load()
    assert steering_error(driver, driver, held, "") == 0
    assert steering_error(driver, driver, held, "cut-out:3") > 0
