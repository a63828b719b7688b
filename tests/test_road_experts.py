"""Experts that a road brings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nac_drive as nd
from nac_drive.cli.completion import names_of
from nac_drive.data_collection.drivers import driver_hash, known_there, resolve_driver
from nac_drive.data_collection.trained_env import trained_env
from nac_drive.envs import ENVIRONMENTS, METADRIVE, EnvConfig
from nac_drive.evaluation.results import read_results
from tests.commands import call, refused
from tests.roads import GREY, LANE, PLUGIN, TINY, roads_of_plugins


@pytest.fixture(scope="module", autouse=True)
def _plugins() -> Iterator[None]:
    with roads_of_plugins():
        yield


def test_every_command_takes_the_expert_of_a_road_by_its_name(tmp_path, capsys):
    plugin, place = ("--plugin", PLUGIN), ("--environment", LANE)
    data, run = str(tmp_path / "data"), str(tmp_path / "run")
    sizes = (*TINY, "--device", "cpu", "--workers", "1")
    collect = ("collect", *place, "--driver", "lane-keeper", "--episodes", "2", "--workers", "2", "--out", data)
    assert call(*plugin, *collect) == 0
    assert json.loads((tmp_path / "data" / "meta.json").read_text())["driver"] == "lane-keeper"
    assert call("dataset", "verify", data, "--replay", "--workers", "1") == 0
    few = ("--rounds", "1", "--initial-episodes", "2", "--episodes", "1", "--initial-epochs", "1", "--epochs", "1")
    assert call(*plugin, "dagger", *place, "--expert", "lane-keeper", *few, "--out", run, *sizes) == 0
    assert [row["round"] for row in nd.Demonstrations.open(Path(run) / "dataset").rows] == [0, 0, 1]
    evaluate = ("evaluate", "--driver", run, "--baseline", "lane-keeper", "--tracks", "3", "--workers", "1")
    assert call(*plugin, *evaluate, "--out", str(tmp_path / "evaluated")) == 0
    rows = read_results(tmp_path / "evaluated" / "rows.jsonl")
    assert {row.driver for row in rows} == {"lane-keeper", "run"}
    stress = ("stress", "--drivers", "lane-keeper", run, "--tracks", "3", "--perturb", "frame-drop:1:skip")
    assert call(*plugin, *stress, "--out", str(tmp_path / "stress"), "--workers", "1") == 0
    assert (
        call(*plugin, "watch", "--driver", "lane-keeper", "--track", "3", "--html", str(tmp_path / "watch.html")) == 0
    )
    assert "24 frames" in capsys.readouterr().out
    other = refused(capsys, "dagger", "--environment", GREY, "--expert", "lane-keeper", "--out", f"{run}2", *sizes)
    assert f"expert 'lane-keeper' was trained in the environment {LANE!r}, here it is {GREY!r}" in other
    other = refused(capsys, "challenge", "--driver", "lane-keeper", "--out", str(tmp_path / "result.json"))
    assert f"'lane-keeper' was trained in {LANE!r}, and the challenge drives in 'car-racing'" in other
    assert "Did you mean 'lane-keeper'?" in refused(capsys, "evaluate", "--driver", "lane-kepper")


def test_a_driver_of_ones_own_may_name_its_road(tmp_path):
    """Elsewhere the error names the road."""

    def straight(observation: np.ndarray) -> np.ndarray:
        return np.zeros(2, np.float32)

    straight.env_config = {"environment": GREY}  # type: ignore[attr-defined]
    (row,) = nd.evaluate(straight, [3]).rows
    episode = nd.rollout(nd.make_env(EnvConfig(environment=GREY)), nd.as_policy(straight), 3)
    assert (row.length, row.episode_return) == (episode.length, episode.episode_return)
    with pytest.raises(ValueError, match=f"'{GREY}', here it is 'car-racing'.*; pass its environment, or a driver of"):
        nd.collect(tmp_path / "data", straight, seeds=[3])


def test_an_expert_is_made_once_and_has_one_hash_whenever_it_is_asked_for(monkeypatch):
    made = []

    def counted() -> Any:
        made.append(keeper := ENVIRONMENTS[LANE].experts["lane-keeper"]())
        keeper.number = len(made)
        return keeper

    road = replace(ENVIRONMENTS[LANE], experts={"counted": counted, "object": counted()})
    monkeypatch.setitem(ENVIRONMENTS, "road", road)
    env = EnvConfig(environment="road")
    before = driver_hash("counted", env)
    drivers = [resolve_driver("counted", env), resolve_driver("counted")]
    assert [trained_env(driver) for driver in drivers] == [env, env]
    assert driver_hash("counted", env) == before != driver_hash("object", env)
    assert len(made) == 2
    ours = driver_hash("metadrive-ppo", EnvConfig(environment=METADRIVE))
    resolve_driver("metadrive-ppo", EnvConfig(environment=METADRIVE))
    assert driver_hash("metadrive-ppo", EnvConfig(environment=METADRIVE)) == ours


def test_on_its_road_an_expert_comes_before_the_drivers_of_the_package(monkeypatch):
    road = replace(ENVIRONMENTS[LANE], experts={"expert": ENVIRONMENTS[LANE].experts["lane-keeper"]})
    monkeypatch.setitem(ENVIRONMENTS, "road", road)
    env = EnvConfig(environment="road")
    assert trained_env(resolve_driver("expert", env)) == env
    assert known_there("expert", env) == "expert"
    assert known_there("expert", EnvConfig(environment=GREY)) is None
    driver = trained_env(resolve_driver("expert"))
    assert driver is not None
    assert driver.environment == "car-racing"


def test_an_expert_that_cannot_be_made_is_refused_by_its_name(monkeypatch):
    def broken() -> Any:
        raise OSError("no map")

    monkeypatch.setitem(ENVIRONMENTS, "road", replace(ENVIRONMENTS[LANE], experts={"broken": broken}))
    with pytest.raises(ValueError, match=r"driver 'broken' cannot be made: test_road_experts.py:\d+: OSError: no map"):
        resolve_driver("broken", EnvConfig(environment="road"))
    with pytest.raises(ValueError, match=r"experts must map names to what makes a driver, got \('a',\)"):
        replace(ENVIRONMENTS[LANE], experts=("a",))  # type: ignore[arg-type]


def test_the_completion_knows_experts_of_roads():
    (drivers, *_) = names_of().values()
    assert {"lane-keeper", "metadrive-idm", "champion", "controller"} <= set(drivers)
