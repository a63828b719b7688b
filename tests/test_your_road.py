"""Roads of users: any id of gymnasium in every command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch
import yaml
from gymnasium.envs.registration import EnvSpec

import nac_drive as nd
from nac_drive import plugins
from nac_drive.cli.completion import names_of
from nac_drive.data_collection.drivers import driver_hash, known_there, resolve_driver, resolve_together
from nac_drive.data_collection.trained_env import trained_env
from nac_drive.envs import ENVIRONMENTS, METADRIVE, PERTURBATIONS, EnvConfig, Road, gymnasium_environment
from nac_drive.envs.foreign_road import Image
from nac_drive.evaluation.results import read_results
from nac_drive.live import snapshot
from nac_drive.live.race import Race
from nac_drive.policies import ContinuousActionHead, Driver, DriverConfig
from tests.commands import call, refused
from tests.own_parts import forgotten
from tests.quick_racetrack import quick_racetrack
from tests.slow import slow_but

PLUGIN = str(Path(__file__).with_name("toy_roads.py"))
LANE, GREY, RACETRACK = "toy/lane-v0", "toy/grey-v0", "racetrack-v0"
TINY = (
    "--core", "lstm", "--sequence-length", "16", "--batch-size", "2", "--validation-tracks", "7",
)  # fmt: skip
SMALL = ("--set", "driver.d_model=8", "driver.dense=8")


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
    """The plug-ins of this module end with it. An episode of the racetrack has some 16 frames at most."""
    with forgotten(), pytest.MonkeyPatch.context() as patch:
        quick_racetrack(patch, duration=3.2)
        plugins.load_plugin(PLUGIN)
        plugins.load_plugin("highway_env")
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
    train = ("train", data, "--out", case.run, "--epochs", "1", *TINY, *SMALL, "--device", "cpu", "--workers", "1")
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
    sizes = ("--epochs", "1", *TINY[2:], *SMALL, "--device", "cpu", "--workers", "1")
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


# Experts of a road


def test_every_command_takes_the_expert_of_a_road_by_its_name(tmp_path, capsys):
    plugin, place = ("--plugin", PLUGIN), ("--environment", LANE)
    data, run = str(tmp_path / "data"), str(tmp_path / "run")
    sizes = (*TINY, *SMALL, "--device", "cpu", "--workers", "1")
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
    with pytest.raises(ValueError, match=r"driver 'broken' cannot be made: test_your_road.py:\d+: OSError: no map"):
        resolve_driver("broken", EnvConfig(environment="road"))
    with pytest.raises(ValueError, match=r"experts must map names to what makes a driver, got \('a',\)"):
        replace(ENVIRONMENTS[LANE], experts=("a",))  # type: ignore[arg-type]


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


def test_the_completion_knows_experts_of_roads():
    (drivers, *_) = names_of().values()
    assert {"lane-keeper", "metadrive-idm", "champion", "controller"} <= set(drivers)


# What an id means


@pytest.mark.parametrize(
    ("shape", "channels"),
    [((20, 30), [0, 0, 0]), ((20, 30, 1), [0, 0, 0]), ((1, 20, 30), [0, 0, 0]), ((20, 30, 3), [0, 1, 2]),
     ((3, 20, 30), [0, 1, 2]), ((2, 20, 30), [0, 0, 1]), ((20, 30, 4), [1, 2, 3]), ((5, 20, 30), [2, 3, 4])],
)  # fmt: skip
def test_images_of_any_layout_become_frames(shape, channels):
    observation = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    image = Image.of(gym.spaces.Box(0, 255, shape, np.uint8))
    assert image is not None
    last = observation if len(shape) == 2 or shape[0] == 20 else np.moveaxis(observation, 0, -1)
    last = last.reshape(20, 30, -1)
    np.testing.assert_array_equal(image.frame(observation), last[..., channels])
    stack = Image.of(gym.spaces.Box(0, 255, (4, 20, 30, 3), np.uint8))
    assert stack is not None
    frames = np.random.default_rng(0).integers(0, 256, (4, 20, 30, 3), np.uint8)
    np.testing.assert_array_equal(stack.frame(frames), frames[-1])


PICTURE = gym.spaces.Box(0, 255, (20, 30, 3), np.uint8)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (gym.spaces.Dict(speed=gym.spaces.Box(-1, 1, (2,)), image=PICTURE), "three channels, from the entry 'image'"),
        (gym.spaces.Tuple((gym.spaces.Box(-1, 1, (2,)), PICTURE)), "three channels, from the entry 1"),
    ],
)
def test_one_entry_may_be_the_image(space, words):
    image, observation = Image.of(space), space.sample()
    assert image is not None
    assert image.words.startswith(words)
    np.testing.assert_array_equal(image.frame(image.found(observation)), observation[image.entry])
    assert image.found(()) is None


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Box(0, 1, (20, 30, 3)),
        gym.spaces.Box(0, 255, (4,), np.uint8),
        gym.spaces.Dict(left=PICTURE, right=PICTURE),
        gym.spaces.Dict(speed=gym.spaces.Box(-1, 1, (2,))),
    ],
)
def test_other_observations_are_no_images(space):
    assert Image.of(space) is None


class OneArray(gym.Env):
    """An environment that draws every frame into one array."""

    observation_space, action_space = PICTURE, gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.array = np.zeros(PICTURE.shape, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        return self._drawn(), {}

    def _drawn(self) -> np.ndarray:
        self.array[:] = self.np_random.integers(256, size=self.array.shape)
        return self.array

    def step(self, action):
        return self._drawn(), 0.0, False, False, {}


def test_an_environment_may_draw_into_one_array(tmp_path, monkeypatch):
    """Every recorded frame was the last one."""
    monkeypatch.setitem(gym.registry, "array-v0", EnvSpec("array-v0", cast("Any", OneArray), max_episode_steps=5))
    monkeypatch.setitem(ENVIRONMENTS, "array-v0", gymnasium_environment("array-v0"))
    env = EnvConfig(environment="array-v0")
    recorded = nd.collect(tmp_path / "data", lambda frame: 0, env=env, seeds=[3], workers=1)
    again = gym.make("array-v0", disable_env_checker=True)
    frames = [again.reset(seed=3)[0].copy(), *(again.step(0)[0].copy() for _ in range(4))]
    np.testing.assert_array_equal(recorded.load().frames, frames)


def test_the_place_of_the_car_may_be_an_array_of_the_environment(monkeypatch):
    monkeypatch.setitem(gym.registry, "array-v0", EnvSpec("array-v0", cast("Any", OneArray), max_episode_steps=5))
    spec = gymnasium_environment("array-v0", pose=lambda env: env.array[0, 0])
    env = spec.make(EnvConfig(), "ignore", None)  # type: ignore[misc]
    env.reset(seed=3)
    before, values = spec.pose(env), env.unwrapped.env.unwrapped.array[0, 0].copy()  # type: ignore[misc]
    env.step(0)
    np.testing.assert_array_equal(before, values)


def test_arguments_of_gymnasium_make_are_stated_in_a_plug_in(monkeypatch):
    grey = {"type": "GrayscaleObservation", "observation_shape": (96, 72), "stack_size": 4, "scaling": 1.75}
    config = {"observation": {**grey, "weights": [0.3, 0.6, 0.1]}, "duration": 2}
    monkeypatch.setitem(ENVIRONMENTS, "grey", gymnasium_environment(RACETRACK, {"config": config}, max_steps=7))
    env = nd.make_env(EnvConfig(environment="grey"))
    frame, _ = env.reset(seed=1)
    assert EnvConfig(environment="grey").max_steps == 7
    np.testing.assert_array_equal(frame, env.unwrapped.observation[-3:].transpose(1, 2, 0))  # type: ignore[attr-defined]
    env.close()


def test_a_head_keeps_to_the_ranges_of_a_road_and_weighs_its_numbers_alike():
    head = ContinuousActionHead(4, 8, ((-0.3, 0.3), (0.0, 5.0), (2.0, 6.0)))
    extreme = head.squash(torch.tensor([[-50.0, -50.0, -50.0], [50.0, 50.0, 50.0], [0.0, 0.0, 0.0]]))
    torch.testing.assert_close(extreme, torch.tensor([[-0.3, 0.0, 2.0], [0.3, 5.0, 6.0], [0.0, 2.5, 4.0]]))
    torch.testing.assert_close(head.relative(extreme)[:2], torch.tensor([[-1.0, 0.0, -1.0], [1.0, 1.0, 1.0]]))
    z = torch.randn(5, 3)
    torch.testing.assert_close(head.of_fractions(head.fractions(z)), head.squash(z))


def test_a_core_measures_time_in_frames_of_the_road():
    """Actions depend on the number of frames between observations."""
    torch.manual_seed(0)
    usual = Driver(DriverConfig("cfc", d_model=8, dense=8, frame_shape=(32, 32, 3), dt_input=True)).eval()
    slow = Driver(replace(usual.config, nominal_dt=0.2)).eval()
    slow.load_state_dict(usual.state_dict())
    frames, dt = torch.randint(256, (1, 6, 32, 32, 3), dtype=torch.uint8), torch.rand(1, 6) * 0.1
    torch.testing.assert_close(slow(frames, 10 * dt)[0], usual(frames, dt)[0])
    assert not torch.allclose(slow(frames, dt)[0], usual(frames, dt)[0])


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


def test_what_is_typed_with_its_module_is_imported(tmp_path, capsys):
    missing = refused(capsys, "collect", "--environment", "nowhere_to_be_found:x-v0", "--out", str(tmp_path / "out"))
    assert "there is no module 'nowhere_to_be_found'" in missing
    unknown = refused(capsys, "collect", "--environment", "highway_env:racetrack-v99", "--out", str(tmp_path / "out"))
    assert "environment 'racetrack-v99' is unknown" in unknown


# Errors of the user's environment


class Broken(gym.Env):
    """An environment that goes wrong at its third step."""

    observation_space = gym.spaces.Box(0, 255, (32, 32, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.steps = 0
        return self.picture((32, 32, 3), np.uint8), {"speed": 1.0}

    @staticmethod
    def picture(shape: tuple[int, ...], kind: Any) -> np.ndarray:
        return np.arange(np.prod(shape)).reshape(shape).astype(kind)

    def step(self, action):
        self.steps += 1
        shape, kind, reward, info = (32, 32, 3), np.uint8, 1.0, {"speed": 1.0}
        if (self.steps == 3 and int(self.np_random.integers(2)) == 0) or (self.steps == 3 and self.wrong != "late"):
            if self.wrong == "raise":
                raise RuntimeError("the engine\nis gone")
            shape = (16, 32, 3) if self.wrong == "shape" else shape
            kind = np.float32 if self.wrong == "dtype" else kind
            reward = float("nan") if self.wrong == "reward" else reward
            info = {"speed": "fast"} if self.wrong == "info" else {} if self.wrong == "key" else info
        return self.picture(shape, kind), reward, False, self.steps == 5, info


WRONG = {
    "raise": r"it raised RuntimeError: the engine is gone \(test_your_road.py:\d+\); correct it",
    "shape": r"it returned an observation uint8 \(16, 32, 3\), its space says uint8 \(32, 32, 3\); correct it",
    "dtype": r"it returned an observation float32 \(32, 32, 3\), its space says uint8",
    "reward": "it returned the reward nan, expected a finite number; correct it",
    "info": r"it returned info\['speed'\] = 'fast', expected a number; correct or rename it",
    "key": r"it reports no info\['speed'\] any more; report it after every step",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_error_of_the_environment_is_one_line_with_its_step(wrong, monkeypatch):
    monkeypatch.setitem(gym.registry, "broken-v0", EnvSpec("broken-v0", cast("Any", lambda: Broken(wrong))))
    monkeypatch.setitem(ENVIRONMENTS, "broken-v0", gymnasium_environment("broken-v0"))
    env = nd.make_env(EnvConfig(environment="broken-v0"))
    env.reset(seed=7)
    env.step(0)
    env.step(0)
    where = "environment 'broken-v0', step 3 of the episode with seed 7: "
    with pytest.raises(ValueError, match=where + WRONG[wrong]) as raised:
        env.step(0)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("method", "outcome", "message"),
    [
        (
            "reset",
            Broken.picture((32, 32, 3), np.uint8),
            "step 0 of .* seed 7: it returned a ndarray from reset, expected obs",
        ),
        (
            "step",
            (Broken.picture((32, 32, 3), np.uint8), 1.0, False, {}),
            "step 1 .* 4 values from step, expected observation",
        ),
        (
            "step",
            (Broken.picture((32, 32, 3), np.uint8), 1.0, False, False, None),
            "5 values from step, expected observation",
        ),
    ],
)
def test_an_environment_of_another_api_is_refused(method, outcome, message, monkeypatch):
    monkeypatch.setitem(gym.registry, "old-v0", EnvSpec("old-v0", cast("Any", lambda: Broken(""))))
    monkeypatch.setitem(ENVIRONMENTS, "old-v0", gymnasium_environment("old-v0"))
    env = nd.make_env(EnvConfig(environment="old-v0"))
    env.reset(seed=3)
    monkeypatch.setattr(Broken, method, lambda *_, **__: outcome)
    if method == "step":
        env.reset(seed=7)
    with pytest.raises(ValueError, match=message):
        env.reset(seed=7) if method == "reset" else env.step(0)


@pytest.mark.parametrize("space", [gym.spaces.MultiDiscrete([2, 3]), gym.spaces.Box(-np.inf, np.inf, (2,))])
def test_other_actions_are_refused(space, monkeypatch):
    class Other(Broken):
        action_space = space

    monkeypatch.setitem(gym.registry, "other-v0", EnvSpec("other-v0", cast("Any", lambda: Other(""))))
    with pytest.raises(
        ValueError, match=r"environment 'other-v0' has the actions .*, expected Discrete.n. or a Box of"
    ):
        gymnasium_environment("other-v0")


class Blank(Broken):
    """An environment whose images have one colour."""

    @staticmethod
    def picture(shape: tuple[int, ...], kind: Any) -> np.ndarray:
        return np.full(shape, 7, kind)


def test_images_of_one_colour_are_refused_with_the_fix(monkeypatch):
    monkeypatch.setitem(gym.registry, "blank-v0", EnvSpec("blank-v0", cast("Any", lambda: Blank(""))))
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    with pytest.raises(ValueError, match="its first 6 images have one colour alone each; correct its images"):
        nd.check_environment("blank-v0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with pytest.raises(ValueError, match="unset SDL_VIDEODRIVER, which is 'dummy': pygame draws nothing then"):
        gymnasium_environment("blank-v0")


def test_an_environment_that_begins_in_the_dark_is_taken(monkeypatch):
    class Dark(Broken):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
            frame, info = super().reset(seed=seed)
            return np.zeros_like(frame), info

    monkeypatch.setitem(gym.registry, "dark-v0", EnvSpec("dark-v0", cast("Any", lambda: Dark(""))))
    assert gymnasium_environment("dark-v0").frame_shape == (32, 32, 3)


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


def test_a_check_finds_an_episode_that_its_seed_does_not_settle(monkeypatch):
    class Drifting(Broken):
        def step(self, action):
            return *super().step(action)[:1], float(np.random.default_rng().random()), False, self.steps == 5, {}

    drifting = EnvSpec("drifting-v0", cast("Any", lambda: Drifting("late")))
    monkeypatch.setitem(gym.registry, "drifting-v0", drifting)
    check = nd.check_environment("drifting-v0")
    monkeypatch.delitem(ENVIRONMENTS, "drifting-v0")
    (seed,) = (finding for finding in check.findings if finding.topic == "same seed")
    assert seed.found == "another episode, so that dataset verify --replay and paired differences mean nothing"
    assert "np_random" in seed.fix
    assert "paired differences" not in check.verdict, "they are not left out"
    (rate,) = (finding for finding in check.findings if finding.topic == "frames per second")
    assert rate.found == "50, assumed"
