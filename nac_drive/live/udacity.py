"""The server that the Udacity simulator drives by."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
import os
import re
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import numpy as np

from nac_drive.data_collection.drivers import resolve_driver
from nac_drive.data_collection.trained_env import trained_env
from nac_drive.envs import UDACITY, Policy, decode_image, udacity_frame
from nac_drive.live.access import LOCAL_HOSTS, answered_hosts, close, guarded
from nac_drive.live.server import check_address, make_server, serve
from nac_drive.parallel.optional import optional_module

PORT = 4567
"""The port that the simulator connects to."""
LARGEST_MESSAGE = 1_000_000
"""Bytes; an image of 320 x 160 pixels is a hundredth of it."""
_LONGEST_DT = 1.0
"""Seconds between two images that a driver is told at most: the simulator may have been paused."""
_FASTEST = 1000.0
"""Speed in miles per hour that no car of the simulator comes near."""
_NUMBER = re.compile(r"[+-]?\d{1,20}([.,]\d{1,20})?([eE][+-]?\d{1,3})?", re.ASCII)
"""A number as the simulator writes it, in any language of its machine."""
_NEEDED = "telemetry must have an image (JPEG or PNG in base64) and a speed"
_OPEN, _PING, _PONG, _CONNECT, _EVENT = "0", "2", "3", "40", "42"
"""Types of the messages of socket.io over a WebSocket."""


class Exchange:
    """One connection of the simulator: telemetry comes, steering goes. Free of the network.

    Args:
        driver: The driver.
        speed: Speed that is held, in the simulator's miles per hour; None leaves the pedals to the driver.
        clock: Seconds now.
    """

    def __init__(self, driver: Policy, speed: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._driver, self._speed, self._clock = driver, speed, clock
        self._state: Any = driver.begin(None)  # type: ignore[arg-type]
        self._last: float | None = None
        self.commands = 0
        """Decisions of the driver so far."""

    def greeting(self) -> list[str]:
        """Return the first messages to the simulator."""
        opening = {"sid": "nac-drive", "upgrades": [], "pingInterval": 25000, "pingTimeout": 60000}
        return [_OPEN + json.dumps(opening), _CONNECT, self._steer(0.0, 0.0)]

    def answer(self, message: str) -> str | None:
        """Return the answer to a message of the simulator. None for none.

        Raises:
            ValueError: If the message is none of the simulator's, telemetry has no image or no speed, or the driver's
                action is no number.
        """
        if message.startswith(_PING):
            return _PONG + message[len(_PING) :]
        if not message.startswith(_EVENT):
            return None
        try:
            event = json.loads(message[len(_EVENT) :])
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, list) or not event:
            raise ValueError(f"this message is not understood: {message[:80]!r}.")
        name, *rest = event
        if name != "telemetry":
            return None
        if not rest or not rest[0]:  # a person drives
            return _event("manual", {})
        return self._drive(rest[0])

    def _drive(self, telemetry: Any) -> str:
        if not isinstance(telemetry, dict) or not {"image", "speed"} <= telemetry.keys():
            raise ValueError(f"{_NEEDED}.")
        speed, image = _speed(telemetry["speed"]), _image(telemetry["image"])
        now = self._clock()
        dt = 0.0 if self._last is None else min(max(now - self._last, 0.0), _LONGEST_DT)
        self._last = now
        action, self._state = self._driver.act(udacity_frame(image), self._state, dt)
        self.commands += 1
        steer, gas, brake = map(float, action)
        if self._speed is None:
            throttle = gas - brake
        else:
            ratio = speed / self._speed  # its square may be infinite, but no error
            throttle = 1 - steer * steer - ratio * ratio
        return self._steer(steer, throttle)

    @staticmethod
    def _steer(steer: float, throttle: float) -> str:
        if math.isnan(steer) or math.isnan(throttle):
            raise ValueError(f"the driver's action is no number: steer {steer}, throttle {throttle}; train it again.")
        steer, throttle = (min(max(value, -1.0), 1.0) for value in (steer, throttle))
        return _event("steer", {"steering_angle": f"{steer:.6f}", "throttle": f"{throttle:.6f}"})


def _speed(value: Any) -> float:
    """Return the speed of telemetry, a number or its text."""
    text = "" if isinstance(value, bool) else str(value)[:50]
    number = float(text.replace(",", ".")) if _NUMBER.fullmatch(text) else math.nan
    if not abs(number) <= _FASTEST:
        raise ValueError(f"{_NEEDED}; speed is a number of at most {_FASTEST:.0f} miles per hour, got {value!r:.50}.")
    return number


def _image(packed: Any) -> np.ndarray:
    """Return the image (160, 320, 3) uint8 RGB of telemetry."""
    try:
        content = base64.b64decode(packed, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise ValueError(f"{_NEEDED}; the image is no base64.") from None
    try:
        return decode_image(content)
    except ValueError as error:
        raise ValueError(f"{_NEEDED}; {error}") from None


def _event(name: str, values: dict[str, Any]) -> str:
    return _EVENT + json.dumps([name, values])


def application(
    driver: Policy,
    speed: float | None,
    on_drive: Callable[[int], None] = lambda count: None,
    hosts: Collection[str] | None = LOCAL_HOSTS,
) -> Any:
    """Return the ASGI application, closed to foreign pages (`access.guarded`).

    Args:
        driver: A driver of the environment `udacity`.
        speed: See `Exchange`.
        on_drive: Called with the number of steering commands of a connection.
        hosts: Names that the server answers to; None for all.

    Raises:
        ValueError: If starlette is not installed.
    """
    applications, routing = (optional_module(name, "live") for name in ("starlette.applications", "starlette.routing"))
    left = optional_module("starlette.websockets", "live").WebSocketDisconnect

    async def talk(socket: Any) -> None:
        await socket.accept()
        with suppress(RuntimeError, left):  # the simulator left while something was sent
            if reason := await converse(socket):
                await close(socket.close, reason)

    async def converse(socket: Any) -> str | None:
        """Drive until the simulator leaves. Return the reason to close the connection, None if there is none."""
        exchange, count = Exchange(driver, speed), 0
        for message in exchange.greeting():
            await socket.send_text(message)
        while True:
            event = await socket.receive()
            if event["type"] == "websocket.disconnect":
                return None
            try:
                answer = exchange.answer(event.get("text") or "")
            except ValueError as error:
                return str(error)
            if answer is not None:
                await socket.send_text(answer)
            if exchange.commands > count:
                count = exchange.commands
                on_drive(count)
            await asyncio.sleep(0)  # a message that is there already is received without a pause

    return guarded(applications.Starlette(routes=[routing.WebSocketRoute("/socket.io/", talk)]), hosts, pages=False)


def serve_udacity(
    driver: str | os.PathLike[str],
    *,
    speed: float | None = None,
    host: str = "127.0.0.1",
    port: int = PORT,
    on_ready: Callable[[str], None] = lambda address: None,
    on_drive: Callable[[int], None] = lambda count: None,
) -> None:
    """Serve a driver to the Udacity simulator in autonomous mode.

    It returns when interrupted.

    Args:
        driver: The folder of a driver or run that was trained on `import_udacity`'s dataset.
        speed: Speed that is held, in the simulator's miles per hour; None leaves the pedals to the driver.
        host: Address to listen on.
        port: Port to listen on.
        on_ready: Called with the address once it answers.
        on_drive: Called with the number of steering commands of a connection.

    Raises:
        FileNotFoundError: If there is no such driver.
        ValueError: If the driver was trained in another environment, `speed` is not positive, the port is none or
            taken, or starlette, uvicorn or websockets is not installed.
    """
    check_address(host, port)
    if speed is not None and not 0 < speed < 1000:
        raise ValueError(f"speed must be above 0 and below 1000 miles per hour, got {speed}; 9 is a careful one.")
    loaded = resolve_driver(driver)
    trained = trained_env(loaded)
    if trained is None or trained.environment != UDACITY:
        raise ValueError(
            f"driver {os.fspath(driver)!r} was not trained on a recording of the Udacity simulator; import one with "
            "`nac-drive dataset import-udacity`."
        )
    app = application(loaded, speed, on_drive, answered_hosts(host))
    serve(make_server(app, host, port, LARGEST_MESSAGE), on_ready)
