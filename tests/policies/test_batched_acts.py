"""Acting for several cars at once: the bits of a car alone, for every core, encoder and shipped driver."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from nac_drive.envs import EnvConfig, make_env, rollout
from nac_drive.policies import CORES, Driver, batched_acts, load_driver
from nac_drive.policies.encoders import ENCODERS
from nac_drive.policies.ops.batch_invariance import BatchInvariance
from tests.policies.kinds import FIRST_OF_CLASS
from tests.policies.test_driver import SHAPE, make
from tests.slow import slow_but

SHIPPED = [
    "champion-continuous", "champion-discrete", "robust-champion-continuous", "robust-champion-pulsed",
    "expert-continuous", "expert-discrete", "ppo-expert-continuous", "ppo-expert-discrete",
]  # fmt: skip
CARS = 7
"""Blocks of 4, 2 and 1."""


@pytest.fixture(autouse=True)
def _nothing_compared_yet(monkeypatch) -> None:
    monkeypatch.setattr(batched_acts, "_EXACT", {})


def streams(shape: tuple[int, ...], cars: int = CARS, steps: int = 3) -> tuple[np.ndarray, list[list[float]]]:
    rng = np.random.default_rng(1)
    frames = rng.integers(0, 256, (steps, cars, *shape), dtype=np.uint8)
    frames[1, 2] = 0
    return frames, [[0.0] * cars, *rng.choice([0.02, 0.04], (steps - 1, cars)).tolist()]


def alone(driver: Driver, frames: np.ndarray, dts: list[list[float]]) -> list[Any]:
    """The actions and last states of every car, driven alone."""
    results = []
    for car in range(frames.shape[1]):
        state, actions = driver.begin(), []
        for frame, dt in zip(frames[:, car], dts, strict=True):
            action, state = driver.act(frame, state, dt[car])
            actions.append(action)
        results.append((actions, state))
    return results


def together(driver: Driver, frames: np.ndarray, dts: list[list[float]]) -> list[Any]:
    """The same in batches."""
    states: Any = [driver.begin() for _ in range(frames.shape[1])]
    actions = []
    for observations, dt in zip(frames, dts, strict=True):
        chosen, states = driver.act_batch([*observations], states, dt)
        actions.append(chosen)
    return [(list(of_car), state) for of_car, state in zip(zip(*actions, strict=True), states, strict=True)]


def assert_same_bits(ours: list[Any], theirs: list[Any]) -> None:
    for (actions, state), (expected, last) in zip(ours, theirs, strict=True):
        for action, other in zip(actions, expected, strict=True):
            assert type(action) is type(other)
            assert np.asarray(action).tobytes() == np.asarray(other).tobytes()
        for tensor, other in zip(state, last, strict=True):
            assert (tensor.shape, tensor.dtype) == (other.shape, other.dtype)
            assert tensor.numpy().tobytes() == other.numpy().tobytes()


@pytest.mark.parametrize("core", slow_but(FIRST_OF_CLASS, CORES))
def test_every_core_acts_in_a_batch_as_alone(core: str, monkeypatch) -> None:
    monkeypatch.setattr(batched_acts, "LARGEST_BLOCK", 4)
    driver = make(core, control="continuous").eval()
    frames, dts = streams(SHAPE, steps=2)
    assert_same_bits(together(driver, frames, dts), alone(driver, frames, dts))


@pytest.mark.parametrize("settings", [
    {"encoder": "paper"}, {"encoder": "chroma"}, {"encoder": "pooled"}, {"encoder": "thesis"}, {"dt_input": True},
    {"residual": True}, {"zero_lost_frames": True}, {"clockless": True, "core": "cfc"},
    {"num_actions": 3, "core": "nac-exact"},
], ids=str)  # fmt: skip
def test_every_encoder_and_setting_acts_in_a_batch_as_alone(settings: dict[str, Any], monkeypatch) -> None:
    monkeypatch.setattr(batched_acts, "LARGEST_BLOCK", 4)
    driver = make(**{"frame_shape": (96, 96, 3), **settings}).eval()
    frames, dts = streams((96, 96, 3), cars=5)
    assert_same_bits(together(driver, frames, dts), alone(driver, frames, dts))


def test_all_encoders_are_in_the_test_above() -> None:
    """bojarski belongs to the core cnn-bojarski."""
    assert set(ENCODERS) == {"compact", "paper", "chroma", "pooled", "thesis", "bojarski"}


@pytest.mark.parametrize("name", slow_but(["robust-champion-pulsed", "expert-discrete"], SHIPPED))
def test_shipped_drivers_act_in_a_batch_as_alone_and_need_no_fallback(name: str) -> None:
    driver = load_driver(name)
    frames, dts = streams((96, 96, 3), cars=20, steps=2)
    assert_same_bits(together(driver, frames, dts), alone(driver, frames, dts))
    assert {rows: exact for (_, rows, *_), exact in batched_acts._EXACT.items()} == {16: True, 4: True}


def test_neither_the_other_cars_nor_the_place_in_the_batch_matter() -> None:
    driver = load_driver("champion-continuous")
    frames, dts = streams((96, 96, 3), cars=8)
    expected = together(driver, frames, dts)
    order = np.random.default_rng(2).permutation(8)[:6]
    shuffled = together(driver, frames[:, order], [[dt[car] for car in order] for dt in dts])
    assert_same_bits(shuffled, [expected[car] for car in order])


def test_a_plain_batch_has_other_bits() -> None:
    """The reason for all this. On a machine where the kernels agree, nothing is lost."""
    driver = load_driver("champion-continuous")
    frames = torch.from_numpy(streams((96, 96, 3))[0][0][:, None])
    dt, state = torch.full((CARS, 1), 0.02), driver.initial_state(CARS)
    rows = [driver._infer(frames[[row]], dt[[row]], driver.begin())[0] for row in range(CARS)]
    plain, _ = driver._infer(frames, dt, state)
    torch.testing.assert_close(plain, torch.cat(rows), atol=1e-5, rtol=1e-5)
    if torch.equal(plain, torch.cat(rows)):
        pytest.skip("the kernels of this machine agree")
    with BatchInvariance(CARS):
        invariant, _ = driver._infer(frames, dt, state)
    assert torch.equal(invariant, torch.cat(rows))


def test_a_batch_with_other_bits_is_driven_car_by_car(monkeypatch) -> None:
    """Without the kernels of single rows the comparison fails, and the actions stay the same."""
    monkeypatch.setattr("nac_drive.policies.ops.batch_invariance._ROW_WISE", {})
    driver = load_driver("champion-continuous")
    frames, dts = streams((96, 96, 3))
    assert_same_bits(together(driver, frames, dts), alone(driver, frames, dts))
    if all(batched_acts._EXACT.values()):
        pytest.skip("the kernels of this machine agree")


def test_the_comparison_is_made_once_for_drivers_of_one_structure(monkeypatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(batched_acts, "_same_bits", lambda driver, rows: calls.append(rows) or True)
    driver, (frames, dts) = make().eval(), streams(SHAPE)
    for same in (driver, make().eval(), pickle.loads(pickle.dumps(driver))):
        together(same, frames, dts)
    assert calls == [16, 4, 2]
    together(make(d_model=12).eval(), frames, dts)
    together(driver.double(), frames, dts)
    assert calls == [16, 4, 2] * 3


def test_a_driver_that_acts_in_its_own_way_is_queried_car_by_car() -> None:
    class Brakes(Driver):
        def act(self, observation: np.ndarray, state: Any, dt: float) -> tuple[Any, Any]:
            return 4, super().act(observation, state, dt)[1]

    driver, (frames, dts) = Brakes(make().config).eval(), streams(SHAPE)
    assert [actions for actions, _ in together(driver, frames, dts)] == [[4] * 3] * CARS


def test_bad_arguments_get_the_message_of_act() -> None:
    driver, (frames, dts) = make().eval(), streams(SHAPE)
    states = [driver.begin()] * CARS
    with pytest.raises(ValueError, match="frames: shape must be"):
        driver.act_batch([*frames[0, :, 1:]], states, dts[0])
    with pytest.raises(ValueError, match="frames: shape must be"):
        driver.act_batch([frames[0, 0], frames[0, 1, 1:]], states[:2], [0.0, 0.0])
    with pytest.raises(ValueError, match="dt: must be"):
        driver.act_batch([*frames[0]], states, [*dts[0][:-1], -1.0])
    with pytest.raises(ValueError, match="argument"):
        driver.act_batch([*frames[0]], states[1:], dts[0])
    assert driver.act_batch([], [], []) == ([], [])


def test_actions_of_a_drive_are_those_of_the_batch() -> None:
    """Real frames: a batch of the frames of a drive, each with its state, chooses the actions of the drive."""
    driver, steps = load_driver("champion-discrete"), []
    env = make_env(EnvConfig("discrete", max_steps=31))
    rollout(env, driver, 900_000, subscribers=[steps.append])
    env.close()
    states: list[Any] = [driver.begin()]
    for step in steps:
        states.append(driver.act(step.observation, states[-1], step.dt)[1])
    actions, _ = driver.act_batch([s.observation for s in steps], states[:-1], [s.dt for s in steps])
    assert actions == [step.intended for step in steps]
