"""A recorded driver drives as without a record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from nac_drive.analysis.attention import recorded_attention
from nac_drive.analysis.recording import SALIENCY, SIGNALS, Recording, record
from nac_drive.analysis.saliency import grad_cam, input_gradient, visual_backprop
from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import CarRacing, EnvConfig, Step, make_env, perturb, rollout, wrap_angle
from nac_drive.envs.pulses import COMMANDS
from nac_drive.envs.regions import REGIONS
from nac_drive.envs.seat import SEAT_REGIONS
from nac_drive.policies import CORES, Driver, DriverConfig, build_core
from tests.nac_drive.analysis.records import TRACK, WINDOW, Replayed, network, recorded


@pytest.fixture(scope="module")
def of_nac() -> Recording:
    return recorded(network("nac-exact"))[0]


@pytest.mark.parametrize(("core", "control"), [("nac-exact", "continuous"), ("lstm", "discrete"), ("cnn", "pulsed")])
def test_a_recorded_driver_drives_as_without_a_record(core, control):
    found, steps = recorded(network(core, control), control)
    plain: list[Step] = []
    env = make_env(EnvConfig(control, max_steps=24))
    episode = rollout(env, network(core, control), TRACK, subscribers=[plain.append])
    assert len(steps) == len(plain) == 24
    for one, other in zip(steps, plain, strict=True):
        np.testing.assert_array_equal(one.action, other.action)
        np.testing.assert_array_equal(one.observation, other.observation)
        assert type(one.action) is type(other.action)
    assert found.series["return"][-1] == pytest.approx(episode.episode_return, rel=1e-5)
    np.testing.assert_array_equal(found.frames, [step.observation for step in plain])


def test_the_neurons_are_those_of_the_core():
    driver = network("lstm")
    found, steps = recorded(driver)
    frames = torch.from_numpy(found.frames)[None]
    dt = torch.tensor([[step.dt for step in steps]], dtype=torch.float32)
    with torch.no_grad():
        features = driver.features(frames)
        output, (_, c) = driver.core(features, dt, driver.initial_state(1))
    np.testing.assert_allclose(found.activity["features"], features[0], atol=1e-5)
    np.testing.assert_allclose(found.activity["output"], output[0], atol=1e-5)
    np.testing.assert_allclose(found.activity["h"], output[0], atol=1e-5)  # an LSTM's output is its h
    np.testing.assert_allclose(found.activity["c"][-1], c[0], atol=1e-5)
    assert list(found.activity) == ["features", "h", "c", "output"]


@pytest.mark.parametrize("name", CORES)
def test_every_core_names_tensors_of_its_state(name):
    settings = {"num_heads": 2} if "num_heads" in CORES[name].accepted else {}
    core = build_core(name, 16, 16, **settings)
    shapes = core.state_shapes()
    named = shapes[: len(core.neuron_names)]
    assert len(named) == len(core.neuron_names) == len(set(core.neuron_names))
    assert all(shape and dtype is None for shape, dtype in named)
    is_window = hasattr(core, "window") or name == "odeformer"
    assert bool(core.neuron_names) == (bool(shapes) and not is_window)


def test_attention_is_whole_where_observations_are_far_apart():
    found, steps = recorded(network("nac-exact"), perturbation="action-repeat:2")
    assert [step.dt for step in steps] == pytest.approx([0.0, *[0.08] * 5])
    assert found.attention is not None
    np.testing.assert_allclose(found.attention.sum(axis=2), 1, atol=1e-5)
    age = (found.attention * 0.08 * np.arange(WINDOW)).sum(axis=2).mean(axis=1)
    np.testing.assert_allclose(found.series["attention age"], age, atol=1e-6)


def test_attention_is_recorded_by_the_age_of_frames(of_nac):
    assert of_nac.attention is not None
    assert of_nac.attention.shape == (24, 2, WINDOW)
    np.testing.assert_allclose(of_nac.attention.sum(axis=2), 1, atol=1e-5)
    first = of_nac.attention[0]
    np.testing.assert_allclose(first, np.eye(WINDOW)[[0, 0]], atol=1e-6)  # at the start there is one frame
    assert (of_nac.attention[WINDOW:] > 0).all()
    age = (of_nac.attention * 0.02 * np.arange(WINDOW)).sum(axis=2).mean(axis=1)
    np.testing.assert_allclose(of_nac.series["attention age"], age, atol=1e-6)
    assert {name: values.shape for name, values in of_nac.signals.items()} == dict.fromkeys(SIGNALS, (24, 2))


@pytest.mark.parametrize("control", ["continuous", "discrete"])
def test_every_series_is_the_number_of_its_step(control):
    """Against the steps themselves and the simulator at every decision, in an episode with a crash and frames lost."""

    class Swerves:
        """Accelerates, then leaves the road; notes the truth that the simulator shows at every decision."""

        def __init__(self) -> None:
            self.truth: list[tuple[float, ...]] = []

        def begin(self, env: Any) -> int:
            self.simulator = env.unwrapped
            return 0

        def act(self, observation: np.ndarray, state: int, dt: float) -> tuple[Any, int]:
            simulator = self.simulator
            line, index = simulator.centre_line, simulator.pose.index
            turn = wrap_angle(float(line.angles[(index + 4) % len(line)] - line.angles[(index - 4) % len(line)]))
            x, y = simulator.car.hull.position
            length = sum(float(np.hypot(*line.segments[(index + i) % len(line)])) for i in range(-4, 4))
            self.truth.append((x, y, turn / length))
            if control == "discrete":
                return (3 if state < 45 else 1), state + 1
            steps = ((0.0, 1.0, 0.0), (0.9, 0.5, 0.1))
            return np.array(steps[state >= 45], dtype=np.float32), state + 1

    driver, steps = Swerves(), []
    env = perturb(make_env(EnvConfig(control, max_steps=400)), "action-repeat:2")
    found = record(env, driver, TRACK, name="x", on_step=steps.append)
    series = found.series
    outcomes = [step.outcome for step in steps]
    crashes = [outcome["crash"] is not None for outcome in outcomes]
    assert 0 < sum(crashes) < len(steps)
    commands = [COMMANDS[step.action] if control == "discrete" else step.action for step in steps]
    elapsed, total = np.float64(0.0), 0.0
    for row, (step, outcome) in enumerate(zip(steps, outcomes, strict=True)):
        elapsed, total = elapsed + step.dt, total + step.reward
        values = {
            "time": elapsed, "dt": step.dt, "return": total, "crash": float(crashes[row]),
            **dict(zip(("steer", "gas", "brake"), commands[row], strict=True)),
            **{name: outcome[name] for name in ("speed", "lateral_offset", "heading_error", "completion")},
            "wheels_off_road": outcome["wheels_off_road"], "curvature": driver.truth[row][2],
        }  # fmt: skip
        assert {name: series[name][row] for name in values} == pytest.approx(values, rel=1e-5, abs=1e-6)
        assert found.position[row] == pytest.approx(driver.truth[row][:2])
    assert series.keys() == values.keys()
    assert series["wheels_off_road"].max() == 4
    assert abs(series["lateral_offset"]).max() > 1
    assert (found.driver, found.track) == ("x", TRACK)
    np.testing.assert_array_equal(found.road, env.unwrapped.centre_line.points)  # type: ignore[attr-defined]
    assert found.episode is not None
    assert found.episode.episode_return == pytest.approx(total)


def test_series_of_attention_are_means_over_heads():
    """Of the normalised entropy and the age in seconds, against loops over heads and keys."""
    found, _ = recorded(network("nac-sharp"))
    assert found.attention is not None
    weights = found.attention.astype(np.float64)  # (T, H, W)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropies = -np.where(weights > 0, weights * np.log(weights), 0).sum(axis=2) / np.log(WINDOW)
    assert np.ptp(entropies[WINDOW:], axis=1).max() > 1e-3, "heads differ"
    np.testing.assert_allclose(found.series["attention entropy"], entropies.mean(axis=1), atol=1e-5)


def test_signals_are_means_over_the_keys_that_exist():
    """phi, omega, t and a of every head, against a loop over decisions, heads and keys; early windows are not full."""
    driver = network("nac-exact")
    found, steps = recorded(driver)
    with recorded_attention(driver) as attention:
        state = driver.begin()
        for step in steps:
            _, state = driver.act(step.observation, state, step.dt)
    assert list(found.signals) == ["phi", "omega", "t", "a"]
    for name, values in found.signals.items():
        ranges = []
        for time, step in enumerate(attention):
            numbers, weights = getattr(step.record, name)[0, :, 0], step.record.alpha[0, :, 0]  # (H, K)
            for head in range(2):
                keys = [float(numbers[head, key]) for key in range(WINDOW) if weights[head, key] > 0]
                assert len(keys) == min(time + 1, WINDOW)
                assert values[time, head] == pytest.approx(sum(keys) / len(keys), rel=1e-5)
                ranges.append(max(keys) - min(keys))
        assert max(ranges) > 1e-3, "a mean differs from the largest and from any one key"


def test_saliency_is_that_of_its_method_and_every_map_has_its_own_scale():
    driver = network("lstm")
    found, steps = recorded(driver)
    frames, dt = torch.from_numpy(found.frames), torch.tensor([step.dt for step in steps])
    gradient = input_gradient(driver, frames, dt)
    expected = {
        "VisualBackProp": visual_backprop(driver, frames), "input gradient": gradient / gradient.amax((1, 2), True),
        "Grad-CAM": grad_cam(driver, frames, dt),
    }  # fmt: skip
    for method, maps in expected.items():
        assert np.abs(found.saliency[method] - 255.0 * maps.numpy(force=True)).max() <= 0.501
    assert all(found.saliency["input gradient"].max(axis=(1, 2)) == 255)
    areas = np.stack([found.series[f"area on {region}"] for region in REGIONS])
    np.testing.assert_allclose(areas.sum(axis=0), 1, rtol=1e-5)
    np.testing.assert_allclose(areas[REGIONS.index("status bar")], 12 / 96, rtol=1e-5)


def test_saliency_is_there_and_its_regions_sum_to_one(of_nac):
    for method in SALIENCY:
        assert of_nac.saliency[method].shape == (24, 96, 96)
        total = sum(of_nac.series[f"{method} on {region}"] for region in REGIONS)
        assert np.isclose(total, 1, atol=1e-5).mean() > 0.9  # a map may be empty


def test_the_seat_has_regions_of_its_own():
    config = EnvConfig("continuous", max_steps=20, view="seat", size=(64, 48))
    torch.manual_seed(0)
    driver = Driver(DriverConfig("lstm", d_model=16, dense=8, control="continuous", frame_shape=(48, 64, 3))).eval()
    found = record(make_env(config), driver, TRACK, name="x", spec=config.spec)
    for method in ("area", "Grad-CAM"):
        fractions = {name.split(" on ")[1]: values for name, values in found.series.items() if name.startswith(method)}
        assert tuple(fractions) == SEAT_REGIONS
        np.testing.assert_allclose(np.sum([*fractions.values()], axis=0), 1, rtol=1e-5)
    assert found.series["area on sky"].min() > 0.15
    np.testing.assert_allclose(found.series["area on status bar"], 6 / 48, rtol=1e-5)


def test_a_driver_without_a_network_has_no_neurons():
    found, _ = recorded(Controller("continuous"))
    assert (found.activity, found.saliency, found.attention) == ({}, {}, None)
    assert found.position.shape == (24, 2)
    assert found.series["speed"][-1] > found.series["speed"][0]


def test_the_arrays_come_back(of_nac, tmp_path):
    with np.load(of_nac.save(tmp_path / "x.npz"), allow_pickle=False) as arrays:
        assert {name: arrays[name].dtype.kind for name in arrays.files if arrays[name].dtype == object} == {}
        np.testing.assert_array_equal(arrays["frames"], of_nac.frames)
        np.testing.assert_array_equal(arrays["activity/output"], of_nac.activity["output"])
        np.testing.assert_array_equal(arrays["attention"], of_nac.attention)
        np.testing.assert_array_equal(arrays["frames/seat"], of_nac.other_frames)
        assert str(arrays["driver"]) == "x"


def test_the_other_view_shows_the_same_moments(of_nac):
    seat = EnvConfig("continuous", max_steps=24, view="seat")
    actions = np.stack([of_nac.series[name] for name in of_nac.actions], axis=1)  # (T, 3)
    found = record(make_env(seat), Replayed([*actions]), TRACK, name="x", spec=seat.spec, view="both")
    assert (of_nac.other_view, found.other_view) == ("seat", "above")
    np.testing.assert_array_equal(of_nac.other_frames, found.frames)
    np.testing.assert_array_equal(found.other_frames, of_nac.frames)


@pytest.mark.parametrize("view", [None, "seat"])
def test_a_view_that_nobody_asks_for_is_not_drawn(view, monkeypatch):
    drawn = []
    monkeypatch.setattr(CarRacing, "frame_from", lambda _, name, size: drawn.append(name))
    seat = EnvConfig("continuous", max_steps=3, view="seat")
    found = record(make_env(seat), Controller("continuous"), TRACK, name="x", spec=seat.spec, view=view)
    assert (found.other_view, found.other_frames, {*drawn}) == ("", None, {"seat"})
