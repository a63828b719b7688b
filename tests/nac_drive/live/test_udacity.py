"""The Udacity simulator: a recording becomes a dataset, a driver learns its steering, and a server drives with it."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import nac_drive as nd
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.envs import UDACITY, udacity_frame
from nac_drive.live.udacity import LARGEST_MESSAGE, Exchange, application
from nac_drive.policies import Driver, DriverConfig, save_driver
from nac_drive.training.offline import measure_accuracy
from nac_drive.training.run_folder import RunFolder
from tests.envs.test_udacity_images import huge_png

HEADER = "center,left,right,steering,throttle,brake,speed\n"


def camera(steer: float, noise: np.random.Generator) -> np.ndarray:
    """An image (160, 320, 3) RGB of a grey road on green whose far end lies to the side that `steer` leads to."""
    image = np.full((160, 320, 3), (60, 140, 60), np.uint8)
    image[:60] = (120, 180, 230)
    far = 160 + 110 * steer
    road = np.array([[100, 159], [220, 159], [far + 18, 60], [far - 18, 60]])
    cv2.fillPoly(image, [np.rint(road).astype(np.int32)], (110, 110, 110))
    return np.clip(image + noise.integers(-3, 4, image.shape), 0, 255).astype(np.uint8)


def write_log(folder: Path, frames: int = 120, header: str = HEADER, gap: int | None = None) -> Path:
    """A recording that swings from side to side, at ten images a second."""
    noise = np.random.default_rng(0)
    (folder / "IMG").mkdir(parents=True)
    lines = [header]
    for i in range(frames):
        steer = float(0.6 * np.sin(i / 7))
        stamp = 100 * i + (5000 if gap is not None and i >= gap else 0)
        names = []
        for name, offset in (("center", 0.0), ("left", 0.2), ("right", -0.2)):
            file = f"{name}_2026_11_23_10_{stamp // 60000:02d}_{stamp // 1000 % 60:02d}_{stamp % 1000:03d}.png"
            cv2.imwrite(str(folder / "IMG" / file), camera(steer + offset, noise)[..., ::-1])
            names.append(f"C:\\Users\\me\\IMG\\{file}" if i % 2 else f" /home/me/IMG/{file}")
        lines.append(f"{','.join(names)},{steer:.6f},{0.5:.1f},0,9.3\n")
    (folder / "driving_log.csv").write_text("".join(lines))
    return folder / "driving_log.csv"


def test_the_frame_is_the_road():
    image = np.zeros((160, 320, 3), np.uint8)
    image[60:135] = 200
    frame = udacity_frame(image)
    assert frame.shape == (66, 120, 3)
    assert (frame == 200).all()
    image[59], image[135] = 255, 255
    np.testing.assert_array_equal(udacity_frame(image), frame)
    with pytest.raises(ValueError, match="record at 320 x 160"):
        udacity_frame(image[:100])


@pytest.mark.parametrize("header", [HEADER, ""])
def test_three_cameras_become_three_episodes(tmp_path, header):
    log = write_log(tmp_path / "log", frames=25, header=header, gap=15)
    dataset = nd.import_udacity(log, tmp_path / "data", episode_frames=10)
    assert [row["length"] for row in dataset.rows] == [10] * 3 + [5] * 3 + [10] * 3  # cut at ten, and at the gap
    assert dataset.seeds == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert dataset.meta.env.environment == UDACITY
    frames = dataset.load()
    expected = 0.6 * np.sin(np.arange(10) / 7)
    for start, offset in ((0, 0.0), (10, 0.2), (20, -0.2)):
        rows = slice(start, start + 10)
        np.testing.assert_allclose(frames.labels[rows, 0], expected + offset, atol=1e-6)
        np.testing.assert_allclose(frames.labels[rows, 1:], [[0.5, 0]] * 10)
        np.testing.assert_allclose(frames.dt[rows], [0, *[0.1] * 9], atol=1e-6)
    stored = cv2.imread(str(sorted((log.parent / "IMG").glob("left*"))[0]))
    assert stored is not None
    np.testing.assert_array_equal(frames.frames[10], udacity_frame(stored[..., ::-1].copy()))
    only = nd.import_udacity(log, tmp_path / "centre", steering_offset=0)
    assert [row["length"] for row in only.rows] == [15, 10]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a,b,c,0,0,0\n", "line 1 .* cannot be read: not enough values|it has 6 columns"),
        ("a_2026_11_23_10_00_00_000.png,b,c,left,0,0,9\n", "could not convert string to float: 'left'"),
        ("a.png,b,c,0,0,0,9\n", "no time in its name"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, message):
    (tmp_path / "driving_log.csv").write_text(line)
    with pytest.raises(DatasetError, match=message):
        nd.import_udacity(tmp_path / "driving_log.csv", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_bad_recordings_leave_nothing(tmp_path):
    log = write_log(tmp_path / "log", frames=4)
    next((log.parent / "IMG").glob("right*")).unlink()
    with pytest.raises(DatasetError, match=r"names right_.*png, which is no image"):
        nd.import_udacity(log, tmp_path / "data")
    assert not (tmp_path / "data").exists()
    with pytest.raises(FileNotFoundError):
        nd.import_udacity(tmp_path / "none.csv", tmp_path / "data")
    with pytest.raises(ValueError, match="steering_offset must lie in"):
        nd.import_udacity(log, tmp_path / "data", steering_offset=2)
    (log.parent / "driving_log.csv").write_text(HEADER)
    with pytest.raises(DatasetError, match="an episode needs two images"):
        nd.import_udacity(log, tmp_path / "data")


def test_errors_of_steering_by_hand():
    predicted = np.array([[0.5, 0, 0], [-0.1, 1, 0]], np.float32)
    labels = np.array([[0.1, 0, 0], [0.1, 0, 1]], np.float32)
    accuracy = measure_accuracy(predicted, labels, np.array([True, False]))
    assert accuracy.steering_mse == pytest.approx((0.16 + 0.04) / 2)
    assert accuracy.steering_mae == pytest.approx(0.3)
    assert measure_accuracy(np.array([1]), np.array([1]), np.array([True])).steering_mse is None


@pytest.mark.slow
def test_a_driver_learns_the_steering(tmp_path):
    dataset = nd.import_udacity(write_log(tmp_path / "log"), tmp_path / "data", episode_frames=30)
    driver = nd.DriverConfig("nac-exact", {"num_heads": 2, "window": 4}, d_model=16, dense=16)
    data, optim = nd.DataConfig(sequence_length=16, batch_size=8), nd.OptimConfig(learning_rate=3e-3)
    config = nd.TrainConfig(driver, data, optim, epochs=12, validation_fraction=0.25)
    best = nd.train(config, dataset, tmp_path / "run")
    rows = RunFolder.open(tmp_path / "run").rows()
    errors = [row["validation"]["steering_mse"] for row in rows]
    assert [row["score"] for row in rows] == [-error for error in errors]
    assert best.resolve().name == f"step_{int(np.argmin(errors)) + 1}"
    variance = 0.18  # of 0.6 sin
    assert min(errors) < 0.25 * variance
    with pytest.raises(ValueError, match="validation_fraction must be above 0 for udacity"):
        nd.train(nd.TrainConfig(epochs=1, validation_fraction=0), dataset, tmp_path / "none")
    with pytest.raises(ValueError, match="'udacity' is not simulated here"):
        nd.evaluate(best, "test-1")


class Turns:
    """A driver that steers by the mean of the red channel, and notes its time steps."""

    def __init__(self) -> None:
        self.dt: list[float] = []

    def begin(self, env: Any) -> int:
        return 0

    def act(self, observation: np.ndarray, state: int, dt: float) -> tuple[np.ndarray, int]:
        self.dt.append(dt)
        return np.array([observation[..., 0].mean() / 255, 0.4, 0.1], np.float32), state + 1


def telemetry(image: np.ndarray, speed: str = "9,5") -> str:
    packed = base64.b64encode(cv2.imencode(".png", image[..., ::-1])[1].tobytes()).decode()
    values = {"steering_angle": "0.0", "throttle": "0.0", "speed": speed, "image": packed}
    return "42" + json.dumps(["telemetry", values])


def steered(message: str | None) -> tuple[float, float]:
    assert message is not None
    assert message.startswith("42")
    name, values = json.loads(message[2:])
    assert name == "steer"
    assert set(values) == {"steering_angle", "throttle"}
    assert all(isinstance(value, str) for value in values.values())
    return float(values["steering_angle"]), float(values["throttle"])


RED = np.zeros((160, 320, 3), np.uint8)
RED[..., 0] = 51


def test_the_exchange_line_by_line():
    driver, now = Turns(), [100.0]
    exchange = Exchange(driver, None, clock=lambda: now[0])
    opening, connected, first = exchange.greeting()
    assert (opening[0], connected) == ("0", "40")
    assert json.loads(opening[1:])["sid"]
    assert steered(first) == (0, 0)
    assert exchange.answer("2probe") == "3probe"
    assert exchange.answer("40") is None
    assert exchange.answer('42["other", {}]') is None
    assert exchange.answer('42["telemetry", null]') == '42["manual", {}]'
    for seconds in (0.0, 0.1, 7.0):
        now[0] += seconds
        assert steered(exchange.answer(telemetry(RED))) == pytest.approx((0.2, 0.3))
    assert driver.dt == pytest.approx([0, 0.1, 1.0])
    held = Exchange(driver, 19.0)
    assert steered(held.answer(telemetry(RED, "9.5")))[1] == pytest.approx(1 - 0.04 - 0.25)
    for bad in ('42["telemetry", {"speed": "1"}]', '42["telemetry", {"speed": "1", "image": "x"}]', "42{", "42[]"):
        with pytest.raises(ValueError, match=r"telemetry must have|not understood"):
            exchange.answer(bad)


def test_a_scripted_simulator_is_driven(tmp_path):
    from nac_drive.live.server import make_server, serve

    ready, addresses, counts = threading.Event(), [], []

    def begin(address: str) -> None:
        addresses.append(address)
        ready.set()

    server = make_server(application(Turns(), None, counts.append), "127.0.0.1", 0, 1_000_000)
    thread = threading.Thread(target=serve, args=(server, begin))
    thread.start()
    assert ready.wait(600)
    try:
        address = addresses[0].replace("http", "ws") + "/socket.io/?EIO=4&transport=websocket"
        with connect(address) as socket:
            assert [str(socket.recv(timeout=600))[:2] for _ in range(3)] == ["0{", "40", "42"]
            for _ in range(5):
                socket.send(telemetry(RED))
                assert steered(str(socket.recv(timeout=600))) == pytest.approx((0.2, 0.3))
            socket.send("2")
            assert socket.recv(timeout=600) == "3"
            socket.send("42[")
            with pytest.raises(ConnectionClosed, match="not understood"):
                socket.recv(timeout=600)
        assert counts == [1, 2, 3, 4, 5]  # an answer to a ping is no command
    finally:
        server.should_exit = True
        thread.join(600)
    assert not thread.is_alive()


PACKED = json.loads(telemetry(RED)[2:])[1]["image"]
NEEDED = r"telemetry must have an image \(JPEG or PNG in base64\) and a speed"


@pytest.mark.parametrize(
    "message",
    [
        "[" * 100_000, '["telemetry", ' + '{"image":' * 100_000, "{}", "nothing", "1", "null", '"telemetry"',
        '["telemetry", 1]', '["telemetry", [1]]', '["telemetry", "text"]', '["telemetry", {"image": 1, "speed": 1}]',
        '["telemetry", {"image": [], "speed": 1}]', '["telemetry", {"image": "\u20ac", "speed": 1}]',
    ],
)  # fmt: skip
def test_bad_telemetry_is_refused_in_one_line(message):
    with pytest.raises(ValueError, match=f"{NEEDED}|this message is not understood") as error:
        Exchange(Turns(), 9.0).answer(f"42{message}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("speed", [
    "1e308", 1e308, "nan", "inf", "-inf", "Infinity", float("nan"), float("inf"), True, False, None, "", " 9", "1_0",
    "9 mph", "\u0669", "1001", 10**400, "9" * 5000, [], {}, "0x10", "1e", ".",
])  # fmt: skip
def test_a_speed_that_is_no_number_is_refused(speed):
    message = "42" + json.dumps(["telemetry", {"image": PACKED, "speed": speed}])
    with pytest.raises(ValueError, match=rf"{NEEDED}; speed is a number of at most 1000|not understood"):
        Exchange(Turns(), 9.0).answer(message)


def test_no_pixel_of_a_large_image_is_unpacked(monkeypatch):
    monkeypatch.setattr(cv2, "imdecode", lambda *arguments: pytest.fail("unpacked"))
    for side in (8_000, 30_000):
        message = json.dumps(["telemetry", {"image": base64.b64encode(huge_png(side)).decode(), "speed": "1"}])
        assert len(message) < LARGEST_MESSAGE
        with pytest.raises(ValueError, match=rf"{NEEDED}; the image is {side} x {side} pixels"):
            Exchange(Turns(), None).answer(f"42{message}")


NUMBERS = st.floats() | st.floats(-2, 2)


@given(
    action=st.tuples(NUMBERS, NUMBERS, NUMBERS),
    held=st.none() | st.floats(0, 1000, exclude_min=True, exclude_max=True),
    speed=st.floats(-1000, 1000) | st.integers(-1000, 1000),
    written=st.sampled_from([str, lambda value: f"{value:.4f}".replace(".", ","), lambda value: value]),
)
def test_controls_that_leave_are_finite_and_in_range(action, held, speed, written):
    class Says(Turns):
        def act(self, observation: np.ndarray, state: int, dt: float) -> Any:
            return action, state

    message = "42" + json.dumps(["telemetry", {"image": PACKED, "speed": written(speed)}])
    exchange = Exchange(Says(), held)
    pedals = 0.0 if held else action[1] - action[2]
    if np.isnan([action[0], pedals]).any():
        with pytest.raises(ValueError, match="the driver's action is no number"):
            exchange.answer(message)
        return
    steer, throttle = steered(exchange.answer(message))
    assert -1 <= steer <= 1
    assert -1 <= throttle <= 1
    if held is None:
        assert throttle == pytest.approx(np.clip(pedals, -1, 1), abs=1e-6)


def test_the_loop_goes_on_between_two_images():
    moments: list[int] = []

    async def play() -> None:
        turns, incoming = 0, [{"type": "websocket.connect"}]
        incoming += [{"type": "websocket.receive", "text": telemetry(RED)} for _ in range(20)]
        scope = {"type": "websocket", "path": "/socket.io/", "headers": [(b"host", b"localhost")], "query_string": b""}

        async def receive() -> dict[str, Any]:
            return incoming.pop(0) if incoming else {"type": "websocket.disconnect", "code": 1000}

        async def send(message: dict[str, Any]) -> None:
            return

        talking = asyncio.create_task(
            application(Turns(), None, lambda count: moments.append(turns))(scope, receive, send)
        )
        while not talking.done():
            turns += 1
            await asyncio.sleep(0)
        await talking

    asyncio.run(play())
    assert len(set(moments)) == len(moments) == 20


def test_a_simulator_that_leaves_or_lies_leaves_no_line_on_stderr(capfd):
    from nac_drive.live.server import make_server, serve

    capfd.readouterr()

    class Slow(Turns):
        def act(self, observation: np.ndarray, state: int, dt: float) -> Any:
            link.close_socket()  # it leaves before it is answered
            return super().act(observation, state, dt)

    reasons: list[str] = []

    def ready(address: str) -> None:
        def play() -> None:
            target = address.replace("http", "ws") + "/socket.io/?EIO=4&transport=websocket"
            for message in ('42["telemetry", ' + "[" * 50_000, "42" + "\u20ac" * 100, telemetry(RED, "1e308")):
                with connect(target) as lying:
                    lying.send(message)
                    with suppress(ConnectionClosed):
                        while True:
                            lying.recv(timeout=600)
                    reasons.append(lying.close_reason or "")
            with connect(target, close_timeout=0.1) as leaving:
                link.append(leaving)
                leaving.send(telemetry(RED))
                leaving.close()
            server.should_exit = True

        threading.Thread(target=play).start()

    class Links(list[Any]):
        def close_socket(self) -> None:
            self[0].socket.close()

    link = Links()
    server = make_server(application(Slow(), None), "127.0.0.1", 0, LARGEST_MESSAGE)
    serve(server, ready)
    assert len(reasons) == 3
    assert all(reasons)
    assert all(len(reason.encode()) <= 123 for reason in reasons)
    assert capfd.readouterr() == ("", "")


def test_drivers_of_other_environments_are_refused(tmp_path):
    torch.manual_seed(0)
    env = {"control": "continuous", "mask_bar": False, "max_steps": 1000}
    folder = save_driver(tmp_path / "x", Driver(DriverConfig("lstm", d_model=16, control="continuous")), env=env)
    with pytest.raises(ValueError, match="was not trained on a recording of the Udacity simulator"):
        nd.serve_udacity(folder)
    with pytest.raises(ValueError, match="speed must be above 0"):
        nd.serve_udacity(folder, speed=0)
