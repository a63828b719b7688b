"""Another track environment is an adapter: a gymnasium environment, a function that makes it, and one registry line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import nac_drive as nd
from nac_drive.analysis.saliency import steering, steering_target
from nac_drive.envs import ENVIRONMENTS, Augmentation, EnvSpec, Step
from nac_drive.envs.perturbations.images import FrameSize
from nac_drive.evaluation import video
from nac_drive.experiments.evaluation import evaluate_with_baseline
from nac_drive.policies import Driver, DriverConfig, save_driver
from nac_drive.training.data.sequences import flipped
from tests.nac_drive.small import TINY, config, dagger_config, nested

SHAPE = (32, 40, 3)


class ToyTrack(gym.Env):
    """A car that drifts sideways on a straight road, drawn as a white column, with a gauge in the lowest rows.

    Three actions: straight on, right, left. The drift is drawn from the track's seed.
    """

    observation_space = gym.spaces.Box(0, 255, SHAPE, np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.offset, self.frame = float(self.np_random.uniform(-0.5, 0.5)), 0
        return self._draw(), self._info(0.0)

    def step(self, action):
        self.frame += 1
        self.offset += float(self.np_random.normal(0, 0.05)) + (0.0, 0.1, -0.1)[int(action)]
        return self._draw(), 1.0 - abs(self.offset), abs(self.offset) > 1, False, self._info(0.04)

    def _draw(self) -> np.ndarray:
        self.state = np.zeros(SHAPE, np.uint8)
        column = int(np.clip(19.5 + 15 * self.offset, 1, SHAPE[1] - 2))
        self.state[:28, column - 1 : column + 2] = 255
        self.state[28:, :10] = 100
        return self.state

    def _info(self, dt: float) -> dict[str, Any]:
        off = abs(self.offset) > 1
        return {
            "dt": dt, "zooming": False, "speed": 10.0, "lateral_offset": self.offset, "heading_error": 0.0,
            "wheels_off_road": 4 * off, "completion": min(1.0, self.frame / 30), "lap_finished": self.frame >= 30,
            "off_road": off, "off_road_events": int(off), "crash": None, "crashes": 0, "interventions": 0,
        }  # fmt: skip


def make_toy_track(config: nd.EnvConfig, crash: str, render_mode: str | None) -> gym.Env:
    return ToyTrack()


SPEC = EnvSpec(
    make_toy_track, SHAPE, frames_per_second=25, steering=(0.0, 1.0, -1.0), action_names=("straight", "right", "left"),
    flipped_actions=(0, 2, 1), bar_top=28, flipped_bar_columns=tuple(range(SHAPE[1])),
)  # fmt: skip


class ToyExpert:
    """Steers back to the middle."""

    def begin(self, env: gym.Env) -> int:
        return 0

    def act(self, observation: np.ndarray, state: int, dt: float) -> tuple[np.int64, int]:
        offset = (observation[0, :, 0].nonzero()[0].mean() - 19.5) / 15
        return np.int64(0 if abs(offset) < 0.1 else 2 if offset > 0 else 1), state + 1


@pytest.fixture
def env(monkeypatch) -> nd.EnvConfig:
    monkeypatch.setitem(ENVIRONMENTS, "toy-track", SPEC)
    return nd.EnvConfig(environment="toy-track", max_steps=40)


def episodes(env: nd.EnvConfig, tracks: range) -> list[dict[str, np.ndarray]]:
    found = []
    for track in tracks:
        steps: list[Step] = []
        end = nd.rollout(nd.make_env(env), ToyExpert(), track, subscribers=[steps.append])
        frames = [*(step.observation for step in steps), end.last_observation]
        found.append({"observations": np.stack(frames), "actions": np.array([step.action for step in steps])})
    return found


@pytest.mark.parametrize("bar_top", [None, 28, 20])
@pytest.mark.parametrize("perturbation", ["line:3", "shadows:3", "occlusion-bars:3", "occlusion-blobs:3"])
def test_a_perturbation_of_the_world_reaches_down_to_the_bar(perturbation, bar_top, env, monkeypatch):
    """The bar of the environment's own specification: without one all the frame is the world."""
    monkeypatch.setattr(ToyTrack, "_draw", lambda self: np.full(SHAPE, 200, np.uint8))
    monkeypatch.setitem(ENVIRONMENTS, "toy-track", replace(SPEC, bar_top=bar_top))
    toy, rows = nd.make_env(replace(env, perturb=perturbation)), set()
    augmentation, size = Augmentation([perturbation]), FrameSize.of(SHAPE, bar_top)
    frame, augmented = np.full(SHAPE, 200, np.uint8), set()
    for track in range(60):
        rows |= {*np.flatnonzero((toy.reset(seed=track)[0] != 200).any(axis=(1, 2)))}
        effect = augmentation.draw(np.random.default_rng(track), size).effect
        augmented |= {*np.flatnonzero((effect(frame) != 200).any(axis=(1, 2)))}
    assert rows == augmented == {*range(SHAPE[0] if bar_top is None else bar_top)}


@pytest.mark.slow
def test_a_driver_is_cloned_and_evaluated_on_another_track_environment(env, tmp_path):
    data = nd.Demonstrations.from_episodes(tmp_path / "data", episodes(env, range(12)), env=env)
    assert data.info()["labels"].keys() == set(SPEC.action_names)
    config = nd.TrainConfig(
        nd.DriverConfig("cnn", dropout=0.0), nd.DataConfig(1, 16), nd.OptimConfig(ema_decay=0.0),
        nd.EvalConfig("val-2"), epochs=8, validation_fraction=0.2,
    )  # fmt: skip
    best = nd.train(config, data, tmp_path / "run", device="cpu")
    driver = nd.load_driver(best)
    assert driver.config.num_actions == 3
    assert driver.config.frame_shape == SHAPE
    learned = nd.evaluate(best, "test-3", expert=ToyExpert())
    straight = nd.evaluate(_Straight(), "test-3", env=env)
    assert [row.seed for row in learned.rows] == nd.track_seeds("test-3")
    assert learned.summary.return_mean > straight.summary.return_mean + 5
    assert (learned.summary.agreement or 0) > 0.8
    again = nd.collect(tmp_path / "again", tmp_path / "run", env=env, seeds=[3, 4])
    assert again.verify(replay=True) == []


class _Straight(ToyExpert):
    def act(self, observation: np.ndarray, state: int, dt: float) -> tuple[np.int64, int]:
        return np.int64(0), state


def test_times_are_those_of_its_frame_rate(env):
    (row,) = nd.evaluate(ToyExpert(), [5], env=env).rows
    assert row.lap_time == pytest.approx(30 / 25)


def test_frames_and_actions_are_flipped_as_it_says(env):
    frame = torch.from_numpy(episodes(env, range(1))[0]["observations"])
    image, labels = flipped(frame, torch.tensor([0, 1, 2]), SPEC)
    assert labels.tolist() == [0, 2, 1]
    assert torch.equal(image[:, :28], frame[:, :28].flip(2))
    assert torch.equal(image[:, 28:], frame[:, 28:])
    assert torch.equal(flipped(image, labels, SPEC)[0], frame)


def test_its_status_bar_is_masked(env):
    masked = nd.make_env(nd.EnvConfig(environment="toy-track", mask_bar=True, max_steps=5))
    observation, _ = masked.reset(seed=0)
    assert not observation[28:].any()
    assert observation[:28].any()


def test_an_unknown_environment_is_refused():
    with pytest.raises(ValueError, match="environment 'nowhere' is unknown; choose from car-racing, donkeycar, "):
        nd.EnvConfig(environment="nowhere")


# A driver of another environment teaches nobody

SOURCES = ("init_from", "freeze_encoder_from")


def there(**changed: Any) -> nd.EnvConfig:
    """An environment of the same frames and actions as CarRacing."""
    return nd.EnvConfig(environment="elsewhere", **{"max_steps": 4, **changed})


def learner(**changed: Any) -> nd.TrainConfig:
    return config("cnn", sequence_length=1, encoder="compact", **changed)


TEACHERS: dict[str, Callable[[str, Path, Path], Any]] = {
    "collect": lambda driver, data, out: nd.collect(out, driver, env=there(), seeds=[5]),
    "the default of collect": lambda _, data, out: nd.collect(out, env=there(), seeds=[5]),
    "dagger": lambda driver, data, out: nd.dagger(elsewhere(), out, expert=driver, device="cpu"),
    "the default of dagger": lambda _, data, out: nd.dagger(elsewhere(), out, device="cpu"),
    "expert of evaluate": lambda driver, data, out: nd.evaluate(_Straight(), [5], env=there(), expert=driver),
    "baseline": lambda driver, data, out: evaluate_with_baseline(
        out.parent / "there", [5], baseline=driver, folder=out
    ),
    "a driver of stress": lambda driver, data, out: nd.stress(
        [out.parent / "there", driver], ["gap:1"], [5], folder=out
    ),
    "expert of compare": lambda driver, data, out: nd.compare(["cnn"], data, [5], out, config=learner(), expert=driver),
}
for source in SOURCES:
    TEACHERS |= {
        f"{source} of train": lambda driver, data, out, source=source: nd.train(
            learner(**{source: driver}), data, out, device="cpu"
        ),
        f"{source} of dagger": lambda driver, data, out, source=source: nd.dagger(
            nested(elsewhere(), **{source: driver}), out, expert="controller", device="cpu"
        ),
        f"{source} of compare": lambda driver, data, out, source=source: nd.compare(
            ["cnn"], data, [5], out, config=learner(**{source: driver}), expert="controller"
        ),
    }


def elsewhere() -> nd.DaggerConfig:
    return dagger_config("cnn", environment="elsewhere", rounds=0, **TINY)


@pytest.fixture(scope="module")
def recorded_elsewhere(tmp_path_factory) -> Iterator[Path]:
    """A folder with a recording of the other environment, and a driver of each of the two."""
    path = tmp_path_factory.mktemp("elsewhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENVIRONMENTS, "elsewhere", ENVIRONMENTS["car-racing"])
        for name, env in (("here", nd.EnvConfig()), ("there", there())):
            save_driver(path / name, Driver(DriverConfig("cnn", encoder="compact")), env=asdict(env))
        nd.collect(path / "data", "controller", env=there(), seeds=[5, 6, 7])
        yield path


@pytest.mark.parametrize("teacher", TEACHERS)
def test_a_driver_of_another_environment_teaches_nobody(teacher, recorded_elsewhere):
    path = recorded_elsewhere
    before = sorted(path.rglob("*"))
    message = "was trained in the environment 'car-racing', here it is 'elsewhere'.*; pass .*"
    with pytest.raises(ValueError, match=message) as refused:
        TEACHERS[teacher](str(path / "here"), path / "data", path / "out")
    assert "\n" not in str(refused.value)
    assert sorted(path.rglob("*")) == before


def test_ppo_starts_from_no_driver_of_another_environment(recorded_elsewhere):
    path = recorded_elsewhere
    settings = nd.PPOConfig(
        optim=nd.PPOOptimConfig(init_from=str(path / "there")), validation=nd.EvalConfig("800000"), total_timesteps=0
    )
    with pytest.raises(ValueError, match=r"init_from '.*there' was trained in the environment 'elsewhere', here it is"):
        nd.ppo(settings, path / "out")
    assert not (path / "out").exists()


def test_a_driver_of_the_same_environment_teaches(recorded_elsewhere):
    path, driver = recorded_elsewhere, str(recorded_elsewhere / "there")
    assert len(nd.collect(path / "again", driver, env=there(), seeds=[5])) == 1
    (row,) = nd.evaluate(driver, [5], env=there(max_steps=53), expert=driver).rows
    assert row.agreement == 1.0
    assert nd.train(learner(init_from=driver, epochs=1), path / "data", path / "run", device="cpu").exists()


# What is shown and written of it


class WideTrack(ToyTrack):
    """The toy track in frames of 80 x 160 pixels, which every encoder takes."""

    observation_space = gym.spaces.Box(0, 255, (80, 160, 3), np.uint8)

    def _draw(self) -> np.ndarray:
        self.state = np.kron(super()._draw(), np.ones((1, 4, 1), np.uint8))[:, :160]
        self.state = np.concatenate((self.state, self.state, self.state[:16]))
        return self.state


@pytest.fixture
def wide(monkeypatch, tmp_path) -> Path:
    """A driver of the wide track, in a folder."""
    spec = replace(SPEC, make=lambda config, crash, render_mode: WideTrack(), frame_shape=(80, 160, 3), bar_top=None)
    monkeypatch.setitem(ENVIRONMENTS, "wide-track", spec)
    torch.manual_seed(0)
    network = Driver(DriverConfig("lstm", d_model=16, dense=8, frame_shape=(80, 160, 3), num_actions=3))
    env = nd.EnvConfig(environment="wide-track", max_steps=6)
    return save_driver(tmp_path / "wide", network, env=asdict(env))


def test_it_is_inspected_without_the_regions_of_a_view_from_above(wide, tmp_path):
    steps: list[Step] = []
    page = nd.inspect(wide, 3, folder=tmp_path / "seen", on_step=lambda _, step: steps.append(step))
    with np.load(tmp_path / "seen" / "wide.npz") as arrays:
        assert not [name for name in arrays if " on " in name]
        assert arrays["frames"].shape == (len(steps), 80, 160, 3)
        assert arrays["saliency/Grad-CAM"].shape == (len(steps), 80, 160)
        assert SPEC.steering is not None
        np.testing.assert_array_equal(arrays["series/steer"], [SPEC.steering[int(step.action)] for step in steps])
        assert not arrays["series/gas"].any()
    assert '"size": [80, 160]' in page.page.read_text()


def test_its_own_regions_are_measured(wide, tmp_path, monkeypatch):
    def halves(simulator: WideTrack) -> np.ndarray:
        return np.repeat(np.array([0, 3], np.uint8), 40)[:, None].repeat(160, axis=1)

    monkeypatch.setitem(ENVIRONMENTS, "wide-track", replace(ENVIRONMENTS["wide-track"], regions=halves))
    nd.inspect(wide, 3, folder=tmp_path / "seen")
    with np.load(tmp_path / "seen" / "wide.npz") as arrays:
        assert {arrays[f"series/area on {region}"][0] for region in ("grass", "near road")} == {0.5}


def test_its_maps_explain_its_own_steering():
    prediction = torch.tensor([[1.0, 5.0, 3.0]])
    assert steering_target("discrete", SPEC)(prediction).tolist() == [2.0]
    assert steering_target("continuous", SPEC)(prediction).tolist() == [1.0]
    logits = torch.tensor([[1.0, 5.0, 3.0, 9.0, 9.0]])
    assert (
        steering_target("discrete", ENVIRONMENTS["car-racing"])(logits).tolist() == steering(logits).tolist() == [2.0]
    )


@pytest.mark.parametrize("image", [None, lambda simulator: np.full((20, 60, 3), 200, np.uint8)])
def test_a_video_shows_its_frames_or_the_image_that_it_names(image, wide, tmp_path, monkeypatch):
    monkeypatch.setitem(ENVIRONMENTS, "wide-track", replace(ENVIRONMENTS["wide-track"], video_image=image))
    seen: list[np.ndarray] = []
    draw = video.draw_overlay
    monkeypatch.setattr(video, "draw_overlay", lambda frame, *rest: (seen.append(frame.copy()), draw(frame, *rest)))
    frames: list[np.ndarray] = []
    nd.watch(wide, 3, video=tmp_path / "wide.mp4", on_step=lambda step: frames.append(step.observation))
    assert len(seen) == 6  # 25 frames a second, as many images
    assert {frame.shape for frame in seen} == {(400, 600, 3)}
    if image:
        assert (seen[0][100:300] == 200).all()
        assert not seen[0][:100].any()
    else:
        middle = seen[2][50:350]  # 300 rows of 600 pixels, after the third step: the frame before the fourth
        np.testing.assert_array_equal(middle[1::15, 1::15], frames[3][::4, ::4])
