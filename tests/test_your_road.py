"""Roads of users: any id of gymnasium in every command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest
import yaml

import nac_drive as nd
from nac_drive import plugins
from nac_drive.data_collection.drivers import resolve_driver, resolve_together
from nac_drive.data_collection.trained_env import trained_env
from nac_drive.envs import ENVIRONMENTS, PERTURBATIONS, EnvConfig, Road
from nac_drive.evaluation.results import read_results
from nac_drive.live import snapshot
from nac_drive.live.race import Race
from tests.commands import call, refused
from tests.roads import GREY, LANE, PLUGIN, RACETRACK, SMALL, TINY, roads_of_plugins
from tests.slow import slow_but


@dataclass(frozen=True)
class Case:
    """A road, and folders that commands made of it."""

    name: str
    folder: Path
    frames_per_second: int
    plugin: str

    @property
    def words(self) -> tuple[str, ...]:
        return "--plugin", self.plugin

    @property
    def run(self) -> str:
        return str(self.folder / "run")

    @property
    def env(self) -> EnvConfig:
        return EnvConfig(environment=self.name)


@pytest.fixture(scope="module", autouse=True)
def _plugins() -> Iterator[None]:
    with roads_of_plugins():
        yield


CASES = {LANE: ("toy_roads.LaneDriver", 25, PLUGIN), GREY: ("toy_roads.GreyDriver", 10, PLUGIN)}
CASES[RACETRACK] = ("toy_roads.StraightOn", 5, "highway_env")


@pytest.fixture(scope="module", params=slow_but([LANE], CASES))
def case(request, tmp_path_factory) -> Case:
    """A dataset and a run, made by commands."""
    driver, rate, plugin = CASES[request.param]
    case = Case(request.param, tmp_path_factory.mktemp("road"), rate, plugin)
    data = str(case.folder / "data")
    collect = ("collect", "--environment", case.name, "--driver", driver, "--out", data, "--workers", "1")
    assert call(*case.words, *collect, "--episodes", "3", "--perturb", "gaussian-noise:1") == 0
    assert call("dataset", "verify", data, "--replay", "--workers", "1") == 0
    train = ("train", data, "--out", case.run, "--epochs", "1", *TINY, "--device", "cpu", "--workers", "1")
    assert call(*case.words, *train) == 0
    return case


def test_a_recording_holds_the_time_of_the_road_and_what_it_reports(case):
    data = nd.Demonstrations.open(case.folder / "data")
    with h5py.File(case.folder / "data" / data.rows[0]["file"]) as opened:
        file: Any = opened
        dt, frames = file["dt"][:], file["frames"][:]
    assert dt[0] == 0
    assert (dt[1:] == 1 / case.frames_per_second).all()
    assert frames.shape[1:] == case.env.spec.frame_shape
    assert ("completion" in data.rows[0]) == ("mean_completion" in data.info()) == (case.name == LANE)
    assert "crashes" not in data.info()


def test_frames_are_flipped_only_if_the_road_says_how(case):
    saved = yaml.safe_load((case.folder / "run" / "config.yaml").read_text())
    assert saved["data"]["horizontal_flip"] == (case.name == LANE)
    driver = nd.load_driver(case.run).config
    assert driver.frame_shape == case.env.spec.frame_shape
    assert driver.nominal_dt == 1 / case.frames_per_second
    assert driver.num_actions == (3 if case.name == LANE else 5)


def test_an_evaluation_has_the_returns_of_a_plain_loop_and_no_made_up_metrics(case, capsys):
    out = case.folder / "evaluation"
    evaluate = ("evaluate", "--driver", case.run, "--tracks", "3,4", "--out", str(out), "--workers", "1")
    assert call(*case.words, *evaluate) == 0
    printed = capsys.readouterr().out
    rows = read_results(out / "rows.jsonl")
    for row in rows:
        assert row.episode_return == pytest.approx(_plain_loop(case, row.seed), abs=1e-9)
    summary = json.loads((out / "summary.json").read_text())[-1]
    assert summary["crashes_per_episode"] is None
    assert summary["steering_rate_rms"] is not None if case.name == LANE else summary["steering_rate_rms"] is None
    assert (summary["completion"] is None) == (case.name != LANE)
    assert ("solved %" in printed) == (case.name == LANE)
    assert "crashes/episode" not in printed
    assert "crashes/episode" not in (out / "report.html").read_text()


def test_a_driver_that_learned_nothing_drives_where_the_others_do(case, tmp_path):
    """Whichever comes first."""
    env = replace(EnvConfig(**nd.load_driver(case.run).env_config), perturb=None, mask_bar=False)
    action = 0 if env.control == "discrete" else np.mean(env.spec.part_ranges, axis=1)

    def still(observation: np.ndarray) -> Any:
        return action

    expected = nd.evaluate(still, [3], env=env).rows[0].episode_return
    baseline, _ = nd.evaluate_with_baseline(case.run, [3], baseline=still)
    assert baseline.rows[0].episode_return == expected
    for drivers in ([case.run, still], [still, case.run]):
        result = nd.stress(drivers, ["gap:1"], [3])
        assert result.rows["still", None][0].episode_return == expected
    seen = nd.inspect([still, case.run], 3, folder=tmp_path / "seen")
    assert {recording.frames.shape[1:] for recording in seen.recordings} == {case.env.spec.frame_shape}
    with pytest.raises(ValueError, match="was trained in the environment"):
        nd.inspect(["champion", case.run], 3, folder=tmp_path / "other")
    race = Race({"run": case.run, "still": still}, ["run", "still"], 3)
    try:
        assert {car.env_config.environment for car in race.cars} == {case.name}
    finally:
        race.close()


def test_a_driver_that_learned_nothing_says_where_it_drives(tmp_path, capsys):
    evaluate = ("evaluate", "--driver", "toy_roads.LaneDriver", "--tracks", "3", "--out", str(tmp_path / "evaluated"))
    assert call("--plugin", PLUGIN, *evaluate, "--workers", "1") == 0
    (row,) = read_results(tmp_path / "evaluated" / "rows.jsonl")
    assert row.length == 24
    assert row.solved is not None
    html = str(tmp_path / "watch.html")
    assert call("--plugin", PLUGIN, "watch", "--driver", "toy_roads.LaneDriver", "--track", "3", "--html", html) == 0
    assert f"return {row.episode_return:.1f}, completion 100.0 %, 24 frames" in capsys.readouterr().out


def _plain_loop(case: Case, seed: int) -> float:
    """Return the return of an episode that gymnasium alone steps."""
    rendered = case.name == RACETRACK
    env = gym.make(case.name, render_mode="rgb_array") if rendered else gym.make(case.name)
    driver, rewards = nd.load_driver(case.run), []
    observation, _ = env.reset(seed=seed)
    state, dt, ended = driver.begin(), 0.0, False
    while not ended:
        image: Any = env.render() if rendered else observation
        frame = Road.fitted(image) if rendered else np.repeat(image, 3 // image.shape[2], axis=2)
        action, state = driver.act(frame, state, dt)
        if isinstance(env.action_space, gym.spaces.Box):
            box = env.action_space
            action = np.asarray(action, box.dtype).clip(box.low, box.high)
        observation, reward, terminated, truncated, _ = env.step(action)
        rewards.append(float(reward))
        dt, ended = 1 / case.frames_per_second, terminated or truncated or len(rewards) == 1000
    env.close()
    return sum(rewards)


@pytest.mark.parametrize("case", slow_but([LANE], [LANE, GREY]), indirect=True)
def test_a_stress_test_leaves_out_what_carracing_alone_has_and_says_so(case, capsys):
    out = case.folder / "stress"
    stress = ("stress", "--drivers", case.run, "--tracks", "3", "--out", str(out), "--workers", "1")
    perturb = ("--perturb", "gaussian-noise:1", "frame-drop:1:skip", "action-noise:1", "weak-tyres", "mishaps:1")
    assert call(*case.words, *stress, *perturb) == 0
    assert "left out, as CarRacing alone has them: weak-tyres, mishaps:1" in capsys.readouterr().out
    rows = read_results(out / "rows.jsonl")
    assert {row.perturbation for row in rows} == {None, "gaussian-noise:1", "frame-drop:1:skip", "action-noise:1"}
    cells = json.loads((out / "summary.json").read_text())["cells"]
    assert {cell["crash_free"] for cell in cells} == {None}
    message = refused(capsys, *stress[:-4], "--out", f"{out}2", "--perturb", "weak-tyres")
    assert "needs CarRacing's car and tyres" in message


@pytest.mark.slow
@pytest.mark.parametrize("case", [RACETRACK], indirect=True)
def test_cores_are_compared_without_the_expert_of_another_road(case):
    out = str(case.folder / "compared")
    compare = ("compare", str(case.folder / "data"), "--drivers", "cnn", "--tracks", "3", "--out", out)
    sizes = ("--epochs", "1", *TINY[2:], "--device", "cpu", "--workers", "1")
    assert call(*case.words, *compare, *sizes) == 0
    (result,) = json.loads((Path(out) / "results.json").read_text())
    assert result["driver"] == "cnn"
    assert result["agreement"] is None


@pytest.fixture(scope="module")
def pages(case) -> tuple[str, str]:
    """The page of `watch --html` and of `inspect`."""
    folder = case.folder
    assert call(*case.words, "watch", "--driver", case.run, "--track", "3", "--html", str(folder / "watch.html")) == 0
    assert call(*case.words, "inspect", "--driver", case.run, "--track", "3", "--out", str(folder / "seen")) == 0
    return (folder / "watch.html").read_text(), (folder / "seen" / "episode.html").read_text()


def test_pages_show_a_map_only_of_a_road_that_has_one(case, pages):
    for page in pages:
        (recording,) = json.loads(re.findall(r'id="recordings"[^>]*>(.*?)</script>', page, re.DOTALL)[0])["episodes"]
        assert (recording["road"] is None) == (recording["position"] is None) == (case.name != LANE)
        names = recording["actions"]
        assert names == (["steer", "gas", "brake"] if case.name == LANE else list(case.env.spec.parts))
        assert recording["series"].keys() >= {*names, "return", "time"}
        assert ("speed" in recording["series"]) == (case.name == RACETRACK)


def test_a_race_is_sent_with_what_the_road_reports(case):
    race = Race({"run": case.run}, ["run"], 3)
    try:
        for _ in range(3 * 50 // case.frames_per_second):
            race.tick()
        (car,) = race.cars
        assert car.decisions == 3  # in real time
        setup = json.loads(
            snapshot.setup(race, ["run"], paused=False, speed=1.0, saliency=True, shown="driver", recording="")
        )
        frame = snapshot.frame(race, saliency=True, shown="driver")
        header = json.loads(frame[4 : 4 + int.from_bytes(frame[:4], "little")])["cars"][0]
    finally:
        race.close()
    assert bool(setup["road"]) == (case.name == LANE)
    published = [name for name in PERTURBATIONS if name.startswith("published-")]
    assert setup["left_out"] == [*published, "weak-tyres", "mishaps"]  # of CarRacing's own scene
    assert len(header["command"]) == len(setup["cars"][0]["actions"])
    assert (header["speed"] is None) == (case.name != RACETRACK)
    assert header["crashes"] is None


@pytest.mark.parametrize("case", slow_but([], [LANE, GREY]), indirect=True)
def test_a_video_and_an_exported_driver(case, tmp_path):
    video, exported = str(tmp_path / "episode.mp4"), str(tmp_path / "driver.onnx")
    assert call(*case.words, "watch", "--driver", case.run, "--track", "3", "--video", video) == 0
    assert Path(video).stat().st_size > 1000
    assert call(*case.words, "export", "--driver", case.run, "--out", exported) == 0
    ours, theirs = nd.load_driver(case.run), resolve_driver(exported)
    frame = np.random.default_rng(0).integers(0, 256, case.env.spec.frame_shape, np.uint8)
    (action, _), (other, _) = (driver.act(frame, driver.begin(gym.Env()), 0.1) for driver in (ours, theirs))
    np.testing.assert_allclose(action, other, atol=1e-4)


@pytest.mark.parametrize("case", slow_but([LANE], [LANE, GREY]), indirect=True)
def test_ppo_and_dagger_learn_on_it(case, tmp_path):
    env = ("--environment", case.name, "--core", "cnn", *SMALL, "--validation-tracks", "7")
    ppo = ("ppo", "--out", str(tmp_path / "ppo"), "--total-timesteps", "32", "--batch-size", "8", *env)
    sizes = ("rollout.n_envs=2", "rollout.n_steps=8", "rollout.action_repeat=2", "optim.n_epochs=1")
    assert call(*case.words, *ppo, "--set", *sizes) == 0
    driver = nd.load_driver(tmp_path / "ppo")
    assert driver.env_config["environment"] == case.name
    assert [*(tmp_path / "ppo" / "checkpoints").glob("step_[1-9]*")]
    dagger = ("dagger", "--out", str(tmp_path / "dagger"), "--expert", CASES[case.name][0], *env, "--rounds", "1")
    sizes = (
        "--initial-episodes",
        "2",
        "--episodes",
        "1",
        "--initial-epochs",
        "1",
        "--epochs",
        "1",
        "--batch-size",
        "2",
    )
    assert call(*case.words, *dagger, *sizes, "--sequence-length", "8", "--device", "cpu", "--workers", "1") == 0
    rows = nd.Demonstrations.open(tmp_path / "dagger" / "dataset").rows
    assert [row["round"] for row in rows] == [0, 0, 1]
    assert nd.load_driver(tmp_path / "dagger").env_config["environment"] == case.name


@pytest.mark.parametrize("case", [LANE], indirect=True)
def test_an_expert_of_several_roads_drives_on_the_road_of_the_drivers_beside_it(case, monkeypatch):
    def place_of(driver: Any) -> str:
        env = trained_env(driver)
        assert env is not None
        return env.environment

    monkeypatch.setattr(ENVIRONMENTS, "_parts", {"twin": ENVIRONMENTS[LANE], **ENVIRONMENTS})  # it comes first
    assert place_of(resolve_driver("lane-keeper")) == "twin"
    for drivers in ((case.run, "lane-keeper"), ("lane-keeper", case.run)):
        assert [place_of(driver) for driver in resolve_together(drivers)] == [LANE, LANE]
        assert {name for name, _ in nd.stress(drivers, ["frame-drop:1:skip"], [3]).rows} == {"run", "lane-keeper"}
    assert [place_of(driver) for driver in resolve_together(["lane-keeper"])] == ["twin"]


def test_a_folder_imports_nothing_and_its_error_names_the_fix(case, tmp_path, monkeypatch, capsys):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"'evil:x-v0' names a module.*pass --plugin evil and the environment 'x-v0'"):
        EnvConfig(environment="evil:x-v0")
    monkeypatch.delitem(gym.registry, case.name)
    monkeypatch.delitem(ENVIRONMENTS, case.name)
    assert "pass --plugin with its file or module" in refused(capsys, "evaluate", "--driver", case.run)
    monkeypatch.setenv(plugins.VARIABLE, "")
    module = Path(case.plugin).stem
    monkeypatch.delitem(plugins._loaded, module)
    line = refused(capsys, "evaluate", "--driver", case.run)
    assert f"it comes from the plug-in {module}: pass --plugin {Path(case.plugin).name}" in line


# check-environment


def test_a_check_says_what_is_there_and_what_is_missing(case, capsys):
    assert call(*case.words, "check-environment", case.name) == 0
    printed = " ".join(capsys.readouterr().out.split())
    expected = {
        LANE: ("64 x 64 pixels, three channels", "3 choices: straight, right, left", "25", "pose and road", "20"),
        GREY: ("84 x 84 pixels, grey, three times", "action 0 from -0.3 to 0.3, action 1 from 0 to 5", "10", "none"),
        RACETRACK: ("96 x 96 pixels, drawn by render", "action 0 from -1 to 1", "5", "1000 steps"),
    }[case.name]
    for text in (*expected, "the same episode", f"{case.name} works with collect, train"):
        assert text in printed
    assert ("state flipped_actions" in printed or "state flipped_parts" in printed) == (case.name != LANE)
