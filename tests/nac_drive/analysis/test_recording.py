"""Recorded episodes: the driver drives as without a record, and the page shows the record in a real browser."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from base64 import b64decode
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nac_drive.analysis.attention import recorded_attention
from nac_drive.analysis.inspect import inspect
from nac_drive.analysis.moments import moments
from nac_drive.analysis.page import assemble, save_episode_page
from nac_drive.analysis.recording import SALIENCY, SIGNALS, Recording, record
from nac_drive.analysis.saliency import grad_cam, input_gradient, visual_backprop
from nac_drive.analysis.watch import watch
from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import CarRacing, EnvConfig, Policy, Step, make_env, perturb, rollout, wrap_angle
from nac_drive.envs.pulses import COMMANDS
from nac_drive.envs.regions import REGIONS
from nac_drive.envs.seat import SEAT_REGIONS
from nac_drive.policies import CORES, Driver, DriverConfig, build_core, save_driver
from nac_drive.storage.write import WriteError
from tests.browser import Page, browser, needs_browser
from tests.documented import ROOT

CONFIG = EnvConfig("continuous", max_steps=24)
TRACK, WINDOW = 900_001, 4


def network(core: str, control: Any = "continuous") -> Driver:
    torch.manual_seed(0)
    settings = {"num_heads": 2, "window": WINDOW} if core.startswith("nac") else {}
    return Driver(DriverConfig(core, settings, d_model=16, dense=8, control=control)).eval()


def recorded(driver: Policy, control: Any = "continuous", perturbation: str = "") -> tuple[Recording, list[Step]]:
    env, steps = perturb(make_env(EnvConfig(control, max_steps=24)), perturbation), []
    return record(env, driver, TRACK, name="x", perturbation=perturbation, view="seat", on_step=steps.append), steps


class Replayed:
    """A driver that takes given actions."""

    def __init__(self, actions: list[np.ndarray]) -> None:
        self._actions = iter(actions)

    def begin(self, env: Any) -> None:
        """Nothing to remember."""

    def act(self, observation: np.ndarray, state: None, dt: float) -> tuple[np.ndarray, None]:
        return next(self._actions), None


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


@pytest.mark.parametrize(("view", "expected"), [(None, ""), ("both", "seat")])
def test_a_page_shows_the_other_view_where_it_is_asked_for(view, expected, tmp_path):
    driver = Replayed([np.zeros(3, np.float32)] * 6)
    driver.env_config = asdict(EnvConfig("continuous", max_steps=3))  # type: ignore[attr-defined]
    (recording,) = inspect(driver, TRACK, folder=tmp_path / "seen", view=view).recordings
    assert recording.other_view == expected
    watch(driver, TRACK, html=tmp_path / "watch.html", view=view)
    assert ('"view": "seat"' in (tmp_path / "watch.html").read_text()) == bool(expected)
    with pytest.raises(ValueError, match=r"view must be left out for a recording"):
        inspect(driver, folder=tmp_path / "again", view="both", dataset=tmp_path)


def test_a_file_for_rerun_has_every_array_with_a_row_a_decision(of_nac, tmp_path):
    pytest.importorskip("rerun")
    from nac_drive.analysis.rerun_file import save_rerun

    path = save_rerun(tmp_path / "x.rrd", [of_nac])
    assert [file.name for file in tmp_path.iterdir()] == ["x.rrd"]
    command = [sys.executable, "-m", "rerun", "rrd", "print", str(path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows: dict[str, int] = {}
    for count, name in re.findall(r"with (\d+) rows .* - /x/(\S+(?:\\ \S+)*) - data columns", printed):
        rows[name.replace("\\ ", " ")] = rows.get(name.replace("\\ ", " "), 0) + int(count)
    length = len(of_nac.frames)
    names = {"frame", "frame from seat", "track/car", "attention", *(f"series/{name}" for name in of_nac.series)}
    names |= {f"saliency/{name}" for name in of_nac.saliency} | {f"neurons/{name}" for name in of_nac.activity}
    assert rows == {"track/road": 1} | dict.fromkeys(names, length)


def test_a_file_for_rerun_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    """The same command works afterwards."""
    monkeypatch.setattr("nac_drive.analysis.inspect.optional_module", lambda *_: None)

    def fail(path: Path, _: Any) -> None:
        raise WriteError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr("nac_drive.analysis.inspect.save_rerun", fail)
    for _ in range(2):
        driver = Replayed([np.zeros(3, np.float32)] * 3)
        driver.env_config = asdict(EnvConfig("continuous", max_steps=2))  # type: ignore[attr-defined]
        with pytest.raises(WriteError):
            inspect(driver, TRACK, folder=tmp_path / "seen", rerun=tmp_path / "x.rrd")
        assert not list((tmp_path / "seen").iterdir())


def test_inspect_writes_page_and_arrays_and_replaces_nothing(tmp_path):
    save_driver(tmp_path / "mine", network("lstm"), env={"control": "continuous", "mask_bar": False, "max_steps": 5})
    steps: list[str] = []
    page = inspect(
        [tmp_path / "mine", "controller"], TRACK, folder=tmp_path / "out", control="continuous",
        perturbation="gaussian-noise:1+action-repeat:3", on_step=lambda name, step: steps.append(name),
    ).page  # fmt: skip
    assert {path.name for path in page.parent.iterdir()} == {"episode.html", "mine.npz", "controller.npz"}
    assert steps.count("mine") == 1
    assert "mine, controller on track 900001" in page.read_text()
    refused: tuple[tuple[Any, str], ...] = (
        ((["mine", "other/mine"],), "drivers must be one or more with different names, got mine, mine"),
        (([],), "got none"),
        (("controller", -1), "tracks must"),
    )
    for arguments, message in refused:
        with pytest.raises(ValueError, match=message):
            inspect(*arguments, folder=tmp_path / "new")
    page.unlink()
    with pytest.raises(FileExistsError, match=r"controller\.npz already exists; choose another folder"):
        inspect("controller", folder=tmp_path / "out")
    assert not (tmp_path / "new").exists()


def test_watch_writes_a_page(tmp_path):
    save_driver(tmp_path / "mine", network("lstm"), env={"control": "continuous", "mask_bar": False, "max_steps": 9})
    episode = watch(tmp_path / "mine", TRACK, html=tmp_path / "new" / "episode.html")
    plain = rollout(make_env(EnvConfig("continuous", max_steps=9)), network("lstm"), TRACK)
    assert (episode, episode.length) == (plain, 9)
    assert f"mine on track {TRACK}" in (tmp_path / "new" / "episode.html").read_text()
    with pytest.raises(FileExistsError, match=r"episode\.html already exists"):
        watch(tmp_path / "mine", TRACK, html=tmp_path / "new" / "episode.html")
    with pytest.raises(ValueError, match="pass one of them"):
        watch(tmp_path / "mine", TRACK, html=tmp_path / "x.html", video=tmp_path / "x.mp4")


@pytest.mark.slow
@needs_browser
def test_the_slider_moves_every_panel_in_a_browser(of_nac, tmp_path):
    lstm, _ = recorded(network("lstm"))
    file = save_episode_page(tmp_path / "page.html", [of_nac, lstm], "Title </script><b>")
    text = file.read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", text)  # nothing from elsewhere
    assert "fetch(" not in text
    with browser(tmp_path / "profile") as page:
        page.open(file.as_uri())
        page.wait("document.body.dataset.ready")
        plots = page.run("document.querySelectorAll('.plot .now').length")
        images, lines = page.run(PIXELS), page.run(LINES)
        page.run('(() => { const s = document.getElementById("slider"); s.value = 0.1; s.oninput(); })()')
        for after, before in ((page.run(PIXELS), images), (page.run(LINES), lines)):
            assert all(new != old for new, old in zip(after, before, strict=True))
        assert (len(images), len(lines)) == (6, plots)
        assert plots == 26
        last = of_nac.series["time"][-1]
        assert page.run('document.getElementById("time").textContent') == f"0.10 / {last:.2f} s"
        before = page.run(PIXELS)[0]
        page.run(
            "window.chosen = document.querySelectorAll('main select'); chosen[0].value = ''; chosen[0].onchange();"
        )
        assert page.run(PIXELS)[0] != before  # the overlay is gone
        page.run("chosen[1].value = 'output 3'; chosen[1].onchange();")
        step = int(np.flatnonzero(of_nac.series["time"] > 0.1 + 1e-6)[0]) - 1
        value = of_nac.activity["output"][step, 3]
        assert page.run('document.querySelector(".lap .note").textContent').startswith(f"output 3: {value:.3f} (")
        _a_click_on_a_plot_moves_the_clock(page, float(last))
        assert page.errors == []


PIXELS = '[...document.querySelectorAll("canvas.frame, canvas.track")].map(canvas => canvas.toDataURL())'
LINES = '[...document.querySelectorAll(".plot .now")].map(line => line.style.left)'


def _a_click_on_a_plot_moves_the_clock(page: Page, last: float) -> None:
    """To the middle, and the first neuron is chosen."""
    page.run(
        "(() => { const plot = document.querySelector('.plot.pick'), box = plot.querySelector('.u-over')"
        ".getBoundingClientRect(); plot.onclick({clientX: box.left + box.width / 2, clientY: box.top + 1}); })()"
    )
    assert page.run("chosen[1].value") == "features 0"
    shown = float(page.run('document.getElementById("time").textContent').split()[0])
    assert shown == pytest.approx((0.02 + last) / 2, abs=0.011)


def still(name: str, length: int, speed: float = 0.0) -> Recording:
    """A car that does not steer. Frame i has the grey value 20 i."""
    frames = np.full((length, 24, 32, 3), 20, np.uint8) * np.arange(length, dtype=np.uint8)[:, None, None, None]
    time, place = 0.02 * np.arange(1, length + 1), np.stack([np.arange(length), np.zeros(length)], axis=1)
    series = {name: np.zeros(length) for name in ("steer", "gas", "brake")}
    series |= {"time": time, "speed": speed + 1e-4 * np.sin(time), "return": np.full(length, -1e-5)}
    return Recording(name, TRACK, None, np.eye(2), frames, series, place)


def test_frames_have_as_many_images_as_they_need(monkeypatch, tmp_path):
    monkeypatch.setattr("nac_drive.analysis.page._SIDE", 64)
    text = save_episode_page(tmp_path / "page.html", [still("x", 7)], "x").read_text()
    images = [
        np.asarray(Image.open(BytesIO(b64decode(data)))) for data in re.findall('image/webp;base64,([^"]+)"', text)
    ]
    assert [image.shape for image in images] == [(48, 64, 3), (48, 64, 3)]
    tiles = [image[y : y + 24, x : x + 32].mean() for image in images for y in (0, 24) for x in (0, 32)]
    assert tiles == pytest.approx([20 * step for step in range(7)] + [0], abs=3)


@pytest.mark.slow
@needs_browser
def test_a_page_in_a_browser_is_read_and_steered(monkeypatch, tmp_path):
    """One of two drivers ends early; its name is long."""
    monkeypatch.setattr("nac_drive.analysis.page._SIDE", 64)
    recordings = [still("long_" * 20, 3), still("x", 7, speed=50.0)]
    file = save_episode_page(tmp_path / "page.html", recordings, "long_" * 20)
    with browser(tmp_path / "profile") as page:
        page.open(file.as_uri() + "#t=0.02")
        page.wait("document.body.dataset.ready")
        for width, height in ((390, 844), (1280, 800), (2560, 1300)):
            page.screenshot(width, height)
            assert page.run("document.documentElement.scrollWidth") <= width
        _images_have_names(page)
        _keys_move_the_clock_after_a_click(page)
        page.run('(() => { const s = document.getElementById("slider"); s.value = 0.14; s.oninput(); })()')
        pixel = "canvas.getContext('2d').getImageData(9, 9, 1, 1).data[0]"
        grey = page.run(f"[...document.querySelectorAll('canvas.frame')].map(canvas => {pixel})")
        assert grey == pytest.approx([40, 120], abs=3)  # the last frames, one in the second image
        titles = page.run("[...document.querySelectorAll('h2')].map(title => title.textContent)")
        assert [title.rpartition(": ")[2] for title in titles] == ["return 0; ended at 0.06 s", "return 0"]
        assert page.run("[...document.querySelectorAll('section.ended')].length") == 1
        texts = page.run("[...document.querySelectorAll('.legend')].map(legend => legend.textContent)")
        assert "-" not in "".join(texts)
        notes = page.run("[...document.querySelectorAll('.lap .note')].map(note => note.textContent)")
        assert notes == [f"speed: {speed}.000 (0.000 dark to 50.000 yellow)" for speed in (0, 50)]
        assert page.errors == []


def _images_have_names(page: Page) -> None:
    drawings = "[...document.querySelectorAll('canvas')].map(canvas => canvas.closest('[role=img]')?.ariaLabel)"
    plots = ["Actions; positive steer is to the right", "Speed", "Return"]
    assert page.run(drawings) == ["what the driver sees", "the track from above", *plots] * 2
    assert page.run("document.getElementById('slider').ariaValueText") == "0.02 s"


def _keys_move_the_clock_after_a_click(page: Page) -> None:
    page.click("#moments button")
    page.key("ArrowRight", True)
    assert page.run("document.getElementById('time').textContent").startswith("0.04")
    page.run("document.getElementById('play').focus()")
    page.key("ArrowRight", True)
    assert page.run("document.getElementById('time').textContent").startswith("0.06")


def test_the_plots_have_axes_of_a_library_that_is_as_published():
    """uPlot stands in the page with its licence. docs/dependencies.md names the published file."""
    folder = ROOT / "nac_drive/analysis/web"
    digest = hashlib.sha256((folder / "uPlot.iife.min.js").read_bytes()).hexdigest()
    assert digest in (ROOT / "docs/dependencies.md").read_text()
    page = assemble("nac_drive.analysis", "episode", title="x", recordings="{}")
    assert (folder / "uPlot.LICENSE.txt").read_text() in page
    assert "var uPlot=" in page
    assert "://" not in page
    labels = re.findall(r'unit: "([^"]+)"', page)
    assert labels == [
        "action", "units/s", "return", "fraction of map", "neuron", "frames ago", "1: uniform"
    ]  # fmt: skip
    assert 'across = "time, s"' in page


def test_the_page_of_the_package_is_complete(of_nac, tmp_path):
    text = save_episode_page(tmp_path / "page.html", [of_nac], "x").read_text()
    data = re.search(r'type="application/json">(.*?)</script>', text, re.S)
    assert data
    content = json.loads(data[1])
    (packed,) = content["episodes"]
    assert content["moments"] == [asdict(moment) for moment in moments([of_nac])]
    assert packed["neurons"]["output"]["shape"] == [24, 16]
    assert set(packed["saliency"]) == set(SALIENCY)
    assert Path(tmp_path / "page.html").stat().st_size < 2_000_000
