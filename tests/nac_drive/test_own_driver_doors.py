"""Users' drivers at the door of every function and command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

import nac_drive as nd
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.envs import EnvConfig
from nac_drive.experiments import experiment
from nac_drive.experiments.entrants import is_core
from nac_drive.live.race import Race
from nac_drive.plugins import load_plugin
from tests.commands import call, refused
from tests.nac_drive.small import FRAMES, config, dagger_config, each_here, rows
from tests.own_drivers import Brakes, Recurrent, Weighs, brake, no_plugins, trained
from tests.slow import slow_but

pytestmark = pytest.mark.usefixtures("quick_exports")
ENV = EnvConfig(max_steps=4)
PLUGIN = """
import numpy as np

def brake(observation):
    return 4

def make():
    return Brakes()

class Brakes:
    def begin(self, env):
        return None

    def act(self, observation, state, dt):
        return 4, state

class Model:
    def predict(self, observation):
        return np.array(4)

one = Brakes()
steer = lambda observation, dt: [0.5, dt, 0]
number = 7
"""
SMALL = ("--tracks", "5", "--workers", "1")
DRIVERS = ("brake", "make", "Brakes", "Model", "one")


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Episodes have four frames unless a test says otherwise."""
    monkeypatch.setattr(EnvConfig, "max_steps", 4)
    defaults = EnvConfig.__init__.__defaults__ or ()
    monkeypatch.setattr(EnvConfig.__init__, "__defaults__", tuple(4 if one == 1000 else one for one in defaults))


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A plug-in's file in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(PLUGIN)
    with no_plugins():
        yield


@pytest.fixture(scope="module")
def model() -> Any:
    """A model of stacked frames; read only."""
    return trained("dqn", ENV, 2)


@pytest.mark.parametrize("kind", ["function", "object", "network", "model", "recurrent"])
def test_any_driver_is_recorded_and_labels(kind, model, tmp_path):
    drivers = {"function": brake, "object": Brakes(), "network": Weighs(1), "model": model, "recurrent": Recurrent()}
    driver: Any = drivers[kind]
    data = nd.collect(tmp_path / "data", driver, env=ENV, seeds=[5])
    found: list[Any] = []
    nd.rollout(nd.make_env(ENV), nd.as_policy(driver), 5, subscribers=[lambda step: found.append(step.action)])
    assert data.load().actions.tolist() == found
    assert (data.meta.driver, len(data.meta.driver_sha256)) == (nd.as_policy(driver).name, 64)  # type: ignore[attr-defined]
    assert nd.collect(tmp_path / "data", driver, env=ENV, seeds=[5, 6], resume=True).seeds == [5, 6]
    with pytest.raises(ValueError, match="driver"):
        nd.collect(tmp_path / "data", lambda observation: 3, env=ENV, seeds=[5, 6], resume=True)


def test_a_recorded_driver_sees_the_bar_that_the_frames_lack(tmp_path):
    def looks(observation):
        return 3 if observation[84:].any() else 4

    data = nd.collect(tmp_path / "data", looks, env=EnvConfig(max_steps=2, mask_bar=True), seeds=[5])
    assert data.load().actions.tolist() == [3, 3]
    assert not data.load().frames[:, 84:].any()


def test_an_object_is_an_expert_of_dagger(tmp_path, workers):
    settings = dagger_config("cnn", rounds=1, max_steps=FRAMES)
    nd.dagger(settings, tmp_path / "run", expert=Weighs(1), device="cpu", pool=workers)
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert written["expert"] == "Weighs"
    data = Demonstrations.open(tmp_path / "run" / "dataset").load()
    assert set(data.labels[: len(data) // 2].tolist()) > {4}
    before = rows(tmp_path / "run")
    nd.dagger(settings, tmp_path / "run", expert=Weighs(1), device="cpu", resume=True)
    assert rows(tmp_path / "run") == before
    with pytest.raises(ValueError, match="expert_sha256"):
        nd.dagger(settings, tmp_path / "run", expert=Weighs(2), device="cpu", resume=True)


def test_objects_are_compared_with_a_core_side_by_side(dataset, model, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "each_in_a_process", each_here)
    settings = config("cnn", epochs=1, encoder="compact")
    made: Any = nd.compare(
        ["cnn", Brakes(), brake, Brakes(), model], dataset, [5], tmp_path / "c", config=settings, device="cpu",
        expert=Weighs(1), baseline="brake",
    )  # fmt: skip
    assert {entry.summary.driver for entry in made.drivers} == {"expert", "cnn", "Brakes", "brake", "Brakes (2)", "DQN"}
    by_name = {entry.summary.driver: entry for entry in made.drivers}
    assert by_name["Brakes"].summary.return_mean == by_name["brake"].summary.return_mean
    assert [entry.runs for entry in made.drivers if entry.runs] == [1]
    assert made.drivers[-1].summary.driver == "cnn"
    page = (tmp_path / "c" / "report.html").read_text()
    assert "Evaluated as they are: Brakes, brake, Brakes (2), DQN." in page
    (row,) = nd.evaluate(Brakes(), [5], env=dataset.meta.env, expert=Weighs(1)).rows
    assert by_name["Brakes"].evaluation.rows[0].episode_return == row.episode_return
    assert by_name["Brakes"].evaluation.rows[0].agreement == row.agreement
    with pytest.raises(ValueError, match="each with a name of its own"):
        nd.compare(["expert"], dataset, [5], tmp_path / "d", expert="controller", config=settings)


def test_a_comparison_of_drivers_alone_trains_nothing(dataset, tmp_path):
    made: Any = nd.compare([Brakes(), "controller"], dataset, [5, 6], tmp_path / "c", expert=Weighs(1))
    assert [entry.summary.driver for entry in made.drivers] == ["expert", "Brakes", "controller"]
    conditions = json.loads((tmp_path / "c" / "conditions.json").read_text())
    assert len({entry["sha256"] for entry in conditions["entries"]}) == 3


def test_two_objects_of_one_name_are_told_apart(tmp_path):
    found: Any = nd.stress([Weighs(1), Weighs(2), brake], ["gap:1"], [5], folder=tmp_path / "s")
    assert found.drivers == ["Weighs", "Weighs (2)", "brake"]
    conditions = json.loads((tmp_path / "s" / "conditions.json").read_text())
    assert len({entry["sha256"] for entry in conditions["entries"]}) == 3
    evaluations = nd.evaluate_with_baseline(Weighs(1), [5], baseline=Weighs(2))
    assert [evaluation.summary.driver for evaluation in evaluations] == ["Weighs (baseline)", "Weighs"]
    assert len(nd.evaluate_with_baseline(Weighs(1), [5], baseline=Weighs(1))) == 1


def test_objects_are_watched_and_inspected(model, tmp_path):
    for driver, name in ((model, "DQN"), (brake, "brake")):
        assert nd.watch(driver, 5, html=tmp_path / f"{name}.html").length == 4
        assert name in (tmp_path / f"{name}.html").read_text()
    nd.inspect([Brakes(), brake, Brakes()], 5, folder=tmp_path / "seen")
    assert {path.name for path in (tmp_path / "seen").glob("*.npz")} == {"Brakes.npz", "brake.npz", "Brakes (2).npz"}


def test_objects_race_and_go_back_to_a_moment(model):
    race = Race({"Weighs": Weighs(1), "DQN": model, "human": None}, ["Weighs", "Weighs", "DQN"], 5)
    assert [car.env_config.control for car in race.cars] == ["continuous", "continuous", "discrete"]
    race.close()
    race = Race({"Weighs": Weighs(1), "DQN": model}, ["Weighs", "DQN"], 5, "discrete")
    returns = []
    for _ in range(2):
        for frame in range(8):
            race.tick()
            if frame == 3 and race.marked is None:
                race.mark()
        returns.append([car.episode_return for car in race.cars])
        race.again()
        for _ in range(4):
            race.tick()
        assert [car.episode_return for car in race.cars] == returns[0]
        race.restart()
    race.close()


def foreign_onnx(path: Path) -> Path:
    """A model of another program: the colours of the frame decide."""
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["f", "axes"], ["m"], keepdims=0),
        helper.make_node("MatMul", ["m", "w"], ["y"]),
    ]
    weights = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    made = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.UINT8, (1, 96, 96, 3))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 5))],
        [numpy_helper.from_array(np.array([1, 2]), "axes"), numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("kind", slow_but(["foreign.onnx"], ["foreign.onnx", "ours.onnx", "model.zip"]))
def test_a_file_drives_everywhere(kind, model, tmp_path, dataset, workers):
    path = tmp_path / kind
    if kind == "foreign.onnx":
        foreign_onnx(path)
    elif kind == "ours.onnx":
        champion: Any = nd.load_driver("champion", "discrete")
        champion.env_config = {**champion.env_config, "max_steps": 4}
        nd.export(champion, path)
    else:
        model.save(path)
    data = nd.collect(tmp_path / "data", path, env=ENV, seeds=[5])
    (here,), (there,) = (nd.evaluate(path, [5], env=ENV, pool=pool).rows for pool in (None, workers))
    assert here.with_metrics(latency_ms=0) == there.with_metrics(latency_ms=0)
    assert (here.driver, data.meta.driver) == (kind, kind)
    stressed: Any = nd.stress([path, brake], ["gap:1"], [5])
    assert stressed.drivers == [kind, "brake"]
    assert nd.watch(path, 5, html=tmp_path / "page.html").outcome["completion"] == here.metrics["completion"]
    nd.inspect([path], 5, folder=tmp_path / "seen")
    race = Race({"file": path}, ["file"], 5)
    for _ in range(4):
        race.tick()
    assert race.cars[0].outcome["completion"] == here.metrics["completion"]
    race.close()
    made: Any = nd.compare([str(path)], dataset, [5], tmp_path / "c", expert=path.parent / kind)
    assert made.drivers[1].summary.agreement == 1.0
    nd.dagger(dagger_config("cnn", rounds=0, max_steps=FRAMES), tmp_path / "run", expert=path, device="cpu")


@pytest.mark.parametrize("name", DRIVERS)
def test_a_name_in_a_file_drives_in_commands(name, mine, capsys):
    assert call("evaluate", "--driver", f"mine.py:{name}", "--baseline", "none", *SMALL, "--out", "e") == 0
    summaries = json.loads(Path("e/summary.json").read_text())
    assert summaries[0]["driver"] == f"mine.{name}"
    assert not is_core(f"mine.{name}")
    (row,) = nd.evaluate(brake, [5]).rows
    assert summaries[0]["return_mean"] == row.episode_return


def test_names_in_commands_that_are_refused(mine, capsys):
    for words, message in (
        (("--driver", "mine.brake"), "If a plug-in has it, pass --plugin mine.py."),
        (("--driver", "mine.py:brak"), "mine.py defines no 'brak'. Did you mean 'brake'?"),
        (("--driver", "none.py:brake"), "there is no file"),
        (("--driver", "mine.py:number"), "driver must be a name, a folder, an object with begin and act"),
        (("--driver", "mine.py:steer"), "driver 'mine.steer', frame 0: its action must be an integer from 0 to 4"),
        (("--driver", "controller", "--baseline", "mine.py:steer"), "driver 'mine.steer', frame 0"),
    ):
        assert message in refused(capsys, "evaluate", *SMALL, *words), words
    assert not list(Path().glob("e*"))
    assert call("evaluate", "--driver", "mine.py:steer", "--control", "continuous", *SMALL) == 0


def test_a_name_that_a_file_holds_imports_nothing(mine, tmp_path, capsys):
    """A config.yaml of somebody else names an expert by a reference, which only the user may type."""
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\nbrake = lambda observation: 4\n")
    settings = dagger_config("cnn", rounds=0, max_steps=FRAMES)
    nd.dagger(settings, tmp_path / "run", expert=brake, device="cpu")
    text = (tmp_path / "run" / "config.yaml").read_text()
    for name in ("evil.py:brake", "evil:brake", "evil.brake"):
        (tmp_path / "run" / "config.yaml").write_text(text.replace("expert: brake", f"expert: {name}"))
        call("dagger", "--config", "run", "--out", f"again {name.replace(':', ' ')}", "--set", "driver.core=nothing")
        assert not (tmp_path / "ran").exists()
        with pytest.raises(FileNotFoundError):
            nd.collect(tmp_path / "data", name, seeds=[5])
    assert not (tmp_path / "ran").exists()


def test_a_network_that_is_a_core_is_no_driver(mine, tmp_path):
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "class Core(nn.Module):\n    def forward(self, x):\n        return x\n"
        "class Drives(nn.Module):\n    def begin(self, env): pass\n    def act(self, o, s, dt): return 4, s\n"
        "def make(input_size, output_size): return nn.Linear(input_size, output_size)\n"
    )
    load_plugin("nets.py")
    assert [is_core(name) for name in ("nets.Core", "nets.Drives", "nets.make", "lstm", "controller", "typo")] == [
        True, False, True, True, False, True,
    ]  # fmt: skip
    assert np.isfinite(nd.evaluate("nets.Drives", [5], env=ENV).summary.return_mean)
