"""The server that the Udacity simulator connects to in autonomous mode."""

from __future__ import annotations

import base64
import binascii
import json
import os
import time
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np

from nac_drive.data_collection.experts import resolve_driver, trained_env
from nac_drive.data_collection.optional import optional_module
from nac_drive.envs import UDACITY, Driver, udacity_frame
from nac_drive.live.server import make_server, serve

PORT = 4567
"""The port that the simulator connects to."""
LARGEST_MESSAGE = 1_000_000
"""Bytes; an image of 320 x 160 pixels is a hundredth of it."""
_LONGEST_DT = 1.0
"""Seconds between two images that a driver is told at most: the simulator may have been paused."""
_OPEN, _PING, _PONG, _CONNECT, _EVENT = "0", "2", "3", "40", "42"
"""Types of the messages of socket.io over a WebSocket."""


class Exchange:
    """One connection of the simulator: telemetry comes, steering goes. Free of the network.

    Args:
        driver: The driver.
        speed: Speed that is held, in the simulator's miles per hour; None leaves the pedals to the driver.
        clock: Seconds now.
    """

    def __init__(self, driver: Driver, speed: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._driver, self._speed, self._clock = driver, speed, clock
        self._state: Any = driver.begin(None)  # type: ignore[arg-type]
        self._last: float | None = None

    def greeting(self) -> list[str]:
        """Return the first messages to the simulator."""
        opening = {"sid": "nac-drive", "upgrades": [], "pingInterval": 25000, "pingTimeout": 60000}
        return [_OPEN + json.dumps(opening), _CONNECT, self._steer(0.0, 0.0)]

    def answer(self, message: str) -> str | None:
        """Return the answer to a message of the simulator; None for none.

        Raises:
            ValueError: If telemetry has no image or no speed.
        """
        if message.startswith(_PING):
            return _PONG + message[len(_PING) :]
        if not message.startswith(_EVENT):
            return None
        try:
            name, *rest = json.loads(message[len(_EVENT) :])
        except (ValueError, TypeError):
            raise ValueError(f"this message is not understood: {message[:80]!r}.") from None
        if name != "telemetry":
            return None
        if not rest or not rest[0]:  # a person drives
            return _event("manual", {})
        return self._drive(rest[0])

    def _drive(self, telemetry: Any) -> str:
        try:
            packed, speed = telemetry["image"], float(str(telemetry["speed"]).replace(",", "."))
            image = cv2.imdecode(np.frombuffer(base64.b64decode(packed, validate=True), np.uint8), cv2.IMREAD_COLOR)
        except (KeyError, TypeError, ValueError, binascii.Error, cv2.error):
            image, speed = None, 0.0
        if image is None:
            raise ValueError("telemetry must have an image (JPEG or PNG in base64) and a speed.")
        now = self._clock()
        dt = 0.0 if self._last is None else min(max(now - self._last, 0.0), _LONGEST_DT)
        self._last = now
        frame = udacity_frame(cv2.cvtColor(image, cv2.COLOR_BGR2RGB))
        action, self._state = self._driver.act(frame, self._state, dt)
        steer, gas, brake = map(float, action)
        throttle = gas - brake if self._speed is None else 1 - steer**2 - (speed / self._speed) ** 2
        return self._steer(steer, throttle)

    @staticmethod
    def _steer(steer: float, throttle: float) -> str:
        throttle = min(max(throttle, -1.0), 1.0)
        return _event("steer", {"steering_angle": f"{steer:.6f}", "throttle": f"{throttle:.6f}"})


def _event(name: str, values: dict[str, Any]) -> str:
    return _EVENT + json.dumps([name, values])


def application(driver: Driver, speed: float | None, on_drive: Callable[[int], None] = lambda count: None) -> Any:
    """Return the ASGI application.

    Args:
        driver: A driver of the environment `udacity`.
        speed: See `Exchange`.
        on_drive: Called with the number of steering commands of a connection.

    Raises:
        ValueError: If starlette is not installed.
    """
    applications, routing = (optional_module(name, "live") for name in ("starlette.applications", "starlette.routing"))

    async def talk(socket: Any) -> None:
        await socket.accept()
        exchange, count = Exchange(driver, speed), 0
        for message in exchange.greeting():
            await socket.send_text(message)
        while True:
            event = await socket.receive()
            if event["type"] == "websocket.disconnect":
                return
            try:
                answer = exchange.answer(event.get("text") or "")
            except ValueError as error:
                await socket.close(code=1008, reason=str(error)[:100])
                return
            if answer is not None:
                await socket.send_text(answer)
                count += 1
                on_drive(count)

    return applications.Starlette(routes=[routing.WebSocketRoute("/socket.io/", talk)])


def serve_udacity(
    driver: str | os.PathLike[str],
    *,
    speed: float | None = None,
    host: str = "127.0.0.1",
    port: int = PORT,
    on_ready: Callable[[str], None] = lambda address: None,
    on_drive: Callable[[int], None] = lambda count: None,
) -> None:
    """Serve a driver to the Udacity simulator, which connects to it in autonomous mode. It returns when interrupted.

    Args:
        driver: The folder of a driver or run that was trained on `import_udacity`'s dataset.
        speed: Speed that is held, in the simulator's miles per hour; None leaves the pedals to the driver.
        host: Address to listen on.
        port: Port to listen on.
        on_ready: Called with the address once it answers.
        on_drive: Called with the number of steering commands of a connection.

    Raises:
        FileNotFoundError: If there is no such driver.
        ValueError: If the driver was trained in another environment, `speed` is not positive, the port is taken, or
            starlette, uvicorn or websockets is not installed.
    """
    if speed is not None and not 0 < speed < 1000:
        raise ValueError(f"speed must be above 0 and below 1000 miles per hour, got {speed}; 9 is a careful one.")
    loaded = resolve_driver(driver)
    trained = trained_env(loaded)
    if trained is None or trained.environment != UDACITY:
        raise ValueError(
            f"driver {os.fspath(driver)!r} was not trained on a recording of the Udacity simulator; import one with "
            "`nac-drive dataset import-udacity`."
        )
    serve(make_server(application(loaded, speed, on_drive), host, port, LARGEST_MESSAGE), on_ready)
