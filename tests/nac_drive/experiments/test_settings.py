"""Every setting of an experiment reaches the training and the test that it is for."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nac_drive.data_collection.dart import NoiseConfig
from nac_drive.envs import SPLITS, EnvConfig, track_seeds
from nac_drive.events import silent
from nac_drive.experiments import cloning, learning
from nac_drive.experiments.cloning import Cloning
from nac_drive.experiments.learning import Learning
from nac_drive.experiments.paper import PaperTask
from nac_drive.policies import DriverConfig, save_driver
from nac_drive.policies.driver import Driver
from nac_drive.training.config import DataConfig, EvalConfig, OptimConfig, TrainConfig
from nac_drive.training.dagger_config import DaggerConfig
from nac_drive.training.ppo.config import PPOConfig
from tests.nac_drive.small import nested

CHANGED = Cloning(
    ["gap:1"], "discrete", view="seat", expert="champion-discrete", noise=0.3, episodes=5, runs=2, tracks="test-4",
    crash="intervene", encoder="pooled", encoder_from="runs/other", features=24, d_model=16, epochs=7,
    sequence_length=17, batch_size=3, learning_rate=4e-3,
    recipe=["data.curve_weight=0.25", "optim.max_grad_norm=none", "optim.weight_decay=0.1"],
    recorded_tracks="test-3", rounds=2, round_episodes=6, round_epochs=9, validation_tracks="val-3",
    zero_lost_frames=True, clamp="gap:2", device="cuda",
)  # fmt: skip
TASK = PaperTask("GRU, wide", "gru", {}, (("run", 1),))
COMMON: dict[str, Any] = {
    "driver": DriverConfig(
        "gru", {}, encoder="pooled", features=24, d_model=16, control="discrete", zero_lost_frames=True
    ),
    "data": DataConfig(17, 3, curve_weight=0.25),
    "optim": OptimConfig(4e-3, freeze_encoder_from="runs/other", weight_decay=0.1),
    "validation": EvalConfig("val-3"),
    "seed": 1,
}
TRAINED = {
    "train": TrainConfig(**COMMON, epochs=7, validate_every=7),
    "dagger": DaggerConfig(
        **COMMON, rounds=2, initial_episodes=5, episodes=6, initial_epochs=7, epochs=9, noise=0.3,
        final_learning_rate=8e-4, view="seat",
    ),
}  # fmt: skip


@pytest.mark.parametrize("trainer", ["train", "dagger"])
def test_a_driving_test_trains_and_drives_as_its_settings_say(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    usual = Cloning(["gap:1"])
    assert all(
        getattr(CHANGED, name.name) != getattr(usual, name.name)
        for name in fields(Cloning)
        if name.name != "perturbations"
    )
    calls: list[tuple[str, Any]] = []

    def train(config: Any, *places: Path, **settings: Any) -> Path:
        calls.append((trainer, (config, [place.name for place in places], settings)))
        small = DriverConfig("gru", encoder="pooled", d_model=8, control="discrete")
        save_driver(tmp_path / "best", Driver(small))
        return tmp_path / "best"

    def stress(drivers: Any, *arguments: Any, **settings: Any) -> Any:
        calls.append(("stress", (drivers, arguments, settings)))
        numbers = {"": [(800.0, 1), (1000.0, 2)], "gap:1": [(600.0, 5), (120.0, 9)]}
        return SimpleNamespace(rows={
            ("best", spec): [SimpleNamespace(episode_return=each, interventions=count) for each, count in episodes]
            for spec, episodes in numbers.items()
        })  # fmt: skip

    monkeypatch.setattr(cloning, trainer, train)

    def evaluate_recorded(driver: Path, dataset: Path, *, perturbation: str, **settings: Any) -> list[Any]:
        calls.append((perturbation, (driver, dataset, settings)))
        of_episodes = {number: SimpleNamespace(accuracy=0.1 * number) for number in (3, 5, 7)}
        return [
            SimpleNamespace(accuracy=SimpleNamespace(accuracy=0.25 if perturbation else 0.75), episodes=of_episodes)
        ]

    monkeypatch.setattr(cloning, "evaluate_recorded", evaluate_recorded)
    monkeypatch.setattr(cloning, "stress", stress)
    experiment = CHANGED if trainer == "dagger" else replace(CHANGED, rounds=0)
    row = experiment.measure(tmp_path, TASK)
    expert = {"expert": "champion-discrete"} if trainer == "dagger" else {}
    (_, (config, folders, settings)), (_, (drivers, arguments, tested)), *predicted = calls
    seen = (tmp_path / "best", tmp_path / cloning.RECORDED, {"episodes": "all", "progress": silent})
    assert predicted == [("", seen), ("gap:1", seen)]
    assert config == TRAINED[trainer]
    assert settings == {"device": "cuda", "resume": False, **expert}
    assert folders[-1].endswith("-1")
    assert folders[:-1] == ([] if trainer == "dagger" else [cloning.DATASET])
    assert (drivers, arguments, tested) == (
        [tmp_path / "best"], (["gap:1"], "test-4"), {"crash": "intervene"}
    )  # fmt: skip
    core = Driver(DriverConfig("gru", encoder="pooled", d_model=8)).core
    numbers = {name: value for name, value in row.items() if name != "episodes"}
    assert numbers == pytest.approx({
        "parameters": sum(weight.numel() for weight in core.parameters()),
        "accuracy_": 0.75, "accuracy_gap:1": 0.25,
        "return_": 900.0, "interventions_": 1.5, "return_gap:1": 360.0, "interventions_gap:1": 7.0, "lost_gap:1": 0.6,
    })  # fmt: skip
    accuracy = pytest.approx([0.3, 0.5, 0.7])
    assert row["episodes"] == {
        "": {"return": [800.0, 1000.0], "interventions": [1, 2], "accuracy": accuracy},
        "gap:1": {"return": [600.0, 120.0], "interventions": [5, 9], "accuracy": accuracy},
    }


def test_the_episodes_of_a_driving_test_are_recorded_as_its_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls: list[Any] = []

    def collect(folder: Path, expert: str, **settings: Any) -> str:
        calls.append((folder.name, expert, settings))
        return "recorded"

    monkeypatch.setattr(cloning, "collect", collect)
    monkeypatch.setattr(cloning, "train_plan", lambda config, dataset, device: (config, dataset, device))
    monkeypatch.setattr(cloning, "load_splits", lambda plan, dataset: calls.append(plan))
    assert [*replace(CHANGED, recorded_tracks=None).prepare(tmp_path, map)] == []  # DAgger records its own
    assert [*CHANGED.prepare(tmp_path, map)] == ["3 recorded tracks"]
    (tested,) = calls
    calls.clear()
    assert [*replace(CHANGED, rounds=0, recorded_tracks=None).prepare(tmp_path, map)] == ["5 episodes", "features"]
    env = EnvConfig("discrete", view="seat")
    tracks = {"env": env, "seeds": track_seeds("test-3"), "workers": 0, "resume": False}
    assert tested == (cloning.RECORDED, "champion-discrete", tracks)  # no action noise
    recording = {"env": env, "seeds": SPLITS["train"][:5], "noise": NoiseConfig(0.3), "workers": 0, "resume": False}
    recorded, (config, dataset, device) = calls
    assert recorded == (cloning.DATASET, "champion-discrete", recording)
    assert (config.optim, config.driver.encoder, dataset, device) == (
        COMMON["optim"], COMMON["driver"].encoder, "recorded", "cuda"
    )  # fmt: skip
    assert [*replace(CHANGED, rounds=0, encoder_from=None, recorded_tracks=None).prepare(tmp_path, map)] == [
        "5 episodes"
    ]


@pytest.mark.parametrize(("threshold", "first"), [(800.0, 1000), (810.0, 1000), (811.0, None)])
def test_a_learning_curve_is_that_of_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold: float, first: int | None
):
    configs: list[PPOConfig] = []

    def ppo(config: PPOConfig, folder: Path, *, device: str, resume: bool, pool: object) -> Path:
        assert (device, resume) == ("cuda", False)
        configs.append(config)
        save_driver(folder, Driver(config.driver))
        return folder

    def rows(folder: Path) -> Any:
        curve = [(0, [-50.0, -60.0]), (1000, [790.0, 830.0]), (2000, [700.0, 720.0])]
        return SimpleNamespace(rows=lambda: [{"step": step, "returns": returns} for step, returns in curve])

    monkeypatch.setattr(learning, "ppo", ppo)
    monkeypatch.setattr(learning, "RunFolder", SimpleNamespace(open=rows))
    experiment = Learning(
        "discrete", runs=3, total_timesteps=9000, validate_every=1000, validation_tracks="val-2", dense=48,
        recipe=["optim.value_core=true"], threshold=threshold, device="cuda",
    )  # fmt: skip
    assert all(getattr(experiment, name.name) != getattr(Learning(), name.name) for name in fields(Learning)[:-1])
    (tmp_path / learning.RUNS).mkdir()
    row = experiment.measure(tmp_path, TASK)
    driver = DriverConfig("gru", {}, encoder="pooled", d_model=128, dense=48, control="discrete")
    assert configs == [
        nested(
            PPOConfig(),
            driver=driver,
            seed=1,
            total_timesteps=9000,
            validate_every=1000,
            validation_tracks="val-2",
            value_core=True,
        )
    ]
    assert (row["best"], row["last"], row["first"]) == (810.0, 710.0, first)
    assert [dict(place)["run"] for place in experiment.places()] == [0, 1, 2]
