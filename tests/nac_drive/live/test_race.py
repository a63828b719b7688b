"""Cars under one clock: they drive as in the rollout loop, and what is switched takes effect at the next frame."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from nac_drive.analysis.attention import constant_clock, uniform_weights
from nac_drive.analysis.probe import Probe
from nac_drive.data_collection.controller.controller import Controller
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.human import Human
from nac_drive.envs import PERTURBATIONS, EnvConfig, make_env, perturb, rollout
from nac_drive.live.hand_driven import hand_driven
from nac_drive.live.messages import Shown
from nac_drive.live.perturbable import Perturbable
from nac_drive.live.race import Car, Race
from nac_drive.live.snapshot import images
from nac_drive.policies import Driver, DriverConfig, save_driver

TRACK = 900_003
SHORT = EnvConfig("continuous", max_steps=40)


def network(core: str = "nac-exact") -> Driver:
    torch.manual_seed(0)
    settings = {"num_heads": 2, "window": 4} if core.startswith("nac") else {}
    return Driver(DriverConfig(core, settings, d_model=16, dense=8, control="continuous")).eval()


def drive(env: Any, frames: int, actions: Any = None) -> list[tuple[np.ndarray, float]]:
    seen = []
    for i in range(frames):
        observation, reward, *_ = env.step(np.array([0.1, 1.0, 0.0], np.float32) if actions is None else actions[i])
        seen.append((observation, reward))
    return seen


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_perturbations_from_the_start_are_those_of_perturb(name):
    spec = f"{name}:{min(2, len(PERTURBATIONS[name]))}"
    ours, plain = Perturbable(make_env(SHORT), SHORT), perturb(make_env(SHORT), spec, episode_frames=40)
    ours.set_perturbations(spec)
    np.testing.assert_array_equal(ours.reset(seed=TRACK)[0], plain.reset(seed=TRACK)[0])
    for one, other in zip(drive(ours, 5), drive(plain, 5), strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        assert one[1] == other[1]


def test_a_perturbation_takes_effect_at_the_next_frame_and_goes_again():
    ours, plain = Perturbable(make_env(SHORT), SHORT), make_env(SHORT)
    ours.reset(seed=TRACK)
    plain.reset(seed=TRACK)
    for spec in (None, "shadows:3", None, "occlusion-bars:2+gaussian-noise:1", None):
        ours.set_perturbations(spec)
        for one, other in zip(drive(ours, 3), drive(plain, 3), strict=True):
            assert np.array_equal(one[0], other[0]) == (spec is None)
            assert one[1] == other[1]  # images do not change the car
    ours.blind = True
    assert not drive(ours, 1)[0][0].any()
    with pytest.raises(ValueError, match="unknown"):
        ours.set_perturbations("fog:1")
    assert ours.spec is None


def test_weak_tyres_can_be_put_on_and_taken_off():
    env = Perturbable(make_env(SHORT), SHORT)
    env.reset(seed=TRACK)
    road: Any = env.unwrapped
    for spec, grip in (("weak-tyres:2", 0.75), ("weak-tyres:3", 0.6), ("shadows:1", 1.0), ("weak-tyres:1", 0.9)):
        env.set_perturbations(spec)
        assert road.grip == grip
    env.reset(seed=TRACK)
    assert road.grip == 0.9


def test_cars_drive_as_in_the_rollout_loop(tmp_path):
    save_driver(tmp_path / "mine", network("lstm"), env={"control": "continuous", "mask_bar": False, "max_steps": 40})
    race = Race({"mine": tmp_path / "mine", "controller": "controller"}, ["mine", "controller"], TRACK)
    expected = [
        rollout(make_env(SHORT), network("lstm"), TRACK),
        rollout(make_env(EnvConfig("continuous")), Controller("continuous"), TRACK),
    ]
    ended: list[str] = []
    race.on_result = lambda car: ended.append(car.name)
    while not race.over:
        race.tick()
        for car in race.cars:
            assert car.result or round(50 * car.seconds) == race.frame
    assert [car.result.episode_return for car in race.cars if car.result] == [each.episode_return for each in expected]
    assert ended == ["mine", "controller"]
    race.restart(TRACK + 1)
    assert not race.over
    assert race.track == TRACK + 1
    race.close()


def test_again_from_here_is_the_same_drive_bit_for_bit_and_another_one_if_something_is_switched(tmp_path):
    save_driver(tmp_path / "mine", network(), env={"control": "continuous", "mask_bar": False, "max_steps": 40})
    race = Race({"mine": tmp_path / "mine", "controller": "controller"}, ["mine", "controller", "human"], TRACK)
    race.perturb("gaussian-noise", 0)

    def drive_on(frames: int) -> list[Any]:
        race.steer(0.1, 1.0, 0.0)
        seen = []
        for _ in range(frames):
            race.tick()
            seen.append(
                [(car.observation.tobytes(), car.episode_return, car.seconds, car.command) for car in race.cars]
            )
        return seen

    with pytest.raises(ValueError, match="no moment is marked"):
        race.again()
    drive_on(12)
    race.mark()
    assert race.marked == 12
    first = drive_on(28)
    assert race.cars[0].result, "its time is over"
    for _ in range(2):
        race.again()
        assert (race.frame, race.over) == (12, False)
        assert drive_on(28) == first
    human = race.cars[2]
    assert len(human.steps) == human.decisions == 40
    race.restart()
    race.again()
    assert drive_on(28) == first, "from another episode on the same track"
    race.again()
    race.perturb("shadows", 3)
    race.cars[0].env.blind = True
    other = drive_on(28)
    assert other[0][0] != first[0][0]
    assert [row[1][3] for row in other] == [row[1][3] for row in first], "the controller needs no picture"
    for change in (lambda: race.restart(TRACK + 1), lambda: race.replace(1, "human"), lambda: race.remove(1)):
        race.mark()
        change()
        assert race.marked is None
    race.close()


def test_drivers_of_different_views_race_and_each_view_can_be_shown(tmp_path):
    env = replace(SHORT, view="seat", size=(64, 48))
    config = DriverConfig("lstm", d_model=16, dense=8, control="continuous", frame_shape=(48, 64, 3))
    save_driver(tmp_path / "seat", Driver(config).eval(), env=asdict(env))
    race = Race({"seat": tmp_path / "seat", "controller": "controller"}, ["seat", "controller"], TRACK)
    for _ in range(5):
        race.tick()
    seat, above = race.cars
    assert (seat.observation.shape, above.observation.shape) == ((48, 64, 3), (96, 96, 3))
    expected: dict[Shown, list[set[str]]] = {
        "driver": [{"frame", "saliency"}, {"frame"}],
        "seat": [{"frame", "saliency"}, {"world"}],
        "above": [{"world"}, {"frame"}],
        "both": [{"frame", "saliency", "world"}, {"frame", "world"}],
    }
    for shown, names in expected.items():
        found = [images(car, saliency=True, shown=shown) for car in race.cars]
        assert [set(named) for named in found] == names
        for named, car in zip(found, race.cars, strict=True):
            if "world" in named:
                view = "above" if car is seat else "seat"
                size, simulator = (96, 96) if car is seat else (192, 192), cast("Any", car.env.unwrapped)
                np.testing.assert_array_equal(named["world"], simulator.frame_from(view, size))
    race.close()


def test_a_car_that_skips_frames_waits_for_the_clock():
    race = Race({"controller": "controller"}, ["controller", "human"], TRACK)
    race.perturb("action-repeat", 2)  # four frames
    for _ in range(12):
        race.tick()
    assert [car.decisions for car in race.cars] == [3, 3]
    assert [round(50 * car.seconds) for car in race.cars] == [12, 12]
    race.perturb("action-repeat", 0)
    race.tick()
    assert [car.decisions for car in race.cars] == [4, 4]
    assert race.levels == {}
    race.close()


@pytest.mark.parametrize("control", ["continuous", "discrete"])
def test_a_person_steers_and_the_episode_verifies_by_replay(tmp_path, control):
    config = EnvConfig(control, max_steps=30)
    with hand_driven(tmp_path / "hand", config) as hands:
        car = Car("human", Human(control), config)
        assert car.human
        for track in (TRACK, TRACK):  # the same track may be driven twice
            car.start(track)
            for frame in range(30):
                car.human.controls = (1.0, 0.0, 0.0) if frame > 20 else (0.0, 1.0, 0.0)
                car.advance()
            hands.add(car.driven())
        assert car.command[0] > 0
        car.start(TRACK)
        car.env.blind = True
        car.advance()
        car.env.blind = False
        while not car.result:
            car.advance()
        with pytest.raises(ValueError, match="with perturbations is not recorded"):
            hands.add(car.driven())
    with hand_driven(tmp_path / "hand", config) as hands:  # added to
        car.start(TRACK + 1)
        while not car.result:
            car.advance()
        assert hands.add(car.driven())["index"] == 2
    dataset = Demonstrations.open(tmp_path / "hand")
    assert dataset.verify(replay=True) == []
    assert (dataset.meta.driver, dataset.seeds) == ("human", [TRACK, TRACK, TRACK + 1])
    assert len(dataset.load().labels) == 90
    other = EnvConfig(control, max_steps=31)
    with pytest.raises(DatasetError, match="other settings"), hand_driven(tmp_path / "hand", other):
        pass


def decided(driver: Any, frames: np.ndarray) -> np.ndarray:
    state, actions = driver.begin(None), []
    for frame in frames:
        action, state = driver.act(frame, state, 0.05)
        actions.append(action)
    return np.array(actions)


FRAMES = np.random.default_rng(0).integers(0, 256, (6, 96, 96, 3), dtype=np.uint8)


def test_the_switches_of_a_probe():
    driver = network()
    plain = decided(driver, FRAMES)
    probe = Probe(driver)
    np.testing.assert_array_equal(decided(probe, FRAMES), plain)

    probe.uniform = True
    with uniform_weights(driver):
        expected = decided(driver, FRAMES)
    np.testing.assert_allclose(decided(probe, FRAMES), expected, atol=1e-6)
    assert probe.attention == pytest.approx(np.full((2, 4), 0.25))
    probe.uniform, probe.clock = False, False
    with constant_clock(driver):
        expected = decided(driver, FRAMES)
    np.testing.assert_allclose(decided(probe, FRAMES), expected, atol=1e-6)
    probe.clock = True

    for index in (0, 1):
        probe.switch_head(index, True)
    decided(probe, FRAMES)
    core: Any = driver.core
    np.testing.assert_allclose(probe.neurons["output"] - _residual(probe), core.nac.out.bias.detach(), atol=1e-6)
    for index in (0, 1):
        probe.switch_head(index, False)

    for index in range(16):
        probe.switch_neuron("output", index, True)
    with torch.no_grad():
        nothing = driver.action_head.action(driver.action_head(torch.zeros(16)))
    np.testing.assert_allclose(decided(probe, FRAMES), np.tile(nothing, (6, 1)), atol=1e-6)
    assert not probe.neurons["output"].any()
    for index in range(16):
        probe.switch_neuron("output", index, False)
    np.testing.assert_array_equal(decided(probe, FRAMES), plain)


def test_a_probe_evaluates_a_driver_in_training_mode():
    torch.manual_seed(0)
    driver = Driver(DriverConfig("pdna-b", d_model=16, dense=8, control="continuous", dropout=0.5))  # it adds noise
    plain = decided(driver, FRAMES)
    assert driver.training
    np.testing.assert_array_equal(decided(Probe(driver), FRAMES), plain)


def _residual(probe: Probe) -> np.ndarray:
    return probe.neurons["features"] if probe.driver.config.residual else np.zeros(16)


def test_a_neuron_of_the_state_is_zero_from_the_next_decision_on():
    driver = network("lstm")
    probe = Probe(driver)
    decided(probe, FRAMES[:1])
    probe.switch_neuron("h", 3, True)
    state = probe.begin(None)  # type: ignore[arg-type]
    by_hand = driver.initial_state(1)
    for frame in FRAMES:
        action, state = probe.act(frame, state, 0.02)
        expected, (h, c) = driver.act(frame, by_hand, 0.02)
        h = h.clone()
        h.view(-1)[3] = 0
        by_hand = (h, c)
        np.testing.assert_allclose(action, expected, atol=1e-6)
        assert probe.neurons["h"][3] == 0
    for group, index, message in (("h", 16, "there is no neuron h 16"), ("x", 0, "features \\(0 to 15\\)")):
        with pytest.raises(ValueError, match=message):
            probe.switch_neuron(group, index, True)
    with pytest.raises(ValueError, match="this core has no heads"):
        probe.switch_head(0, True)


def test_a_person_at_the_keys_of_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import pygame

    from nac_drive.data_collection.collect import collect

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    frames: list[int] = []

    def pressed() -> dict[int, bool]:
        frames.append(1)
        return {pygame.K_UP: True, pygame.K_DOWN: False, pygame.K_LEFT: False, pygame.K_RIGHT: len(frames) > 8}

    monkeypatch.setattr(pygame.key, "get_pressed", pressed)
    env = EnvConfig("continuous", max_steps=12)
    dataset = collect(tmp_path / "by-hand", "human", env=env, seeds=[TRACK], workers=2)
    assert dataset.verify(replay=True) == []
    label = dataset.load().labels
    np.testing.assert_array_equal(label, [[0, 1, 0]] * 8 + [[1, 1, 0]] * 4)
    pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_ESCAPE))
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path / "left", "human", env=env, seeds=[TRACK])
