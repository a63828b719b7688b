"""The arena's server: one page, one WebSocket, one clock."""

from __future__ import annotations

import asyncio
import json
import os
import webbrowser
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nac_drive import policies
from nac_drive.analysis.page import assemble
from nac_drive.data_collection.controller.controller import CONTROLLERS
from nac_drive.data_collection.experts import driver_name
from nac_drive.data_collection.human import HUMAN
from nac_drive.data_collection.optional import optional_module
from nac_drive.envs import FRAMES_PER_SECOND, SPLITS, Control, EnvConfig, track_seeds
from nac_drive.live import messages, snapshot
from nac_drive.live.hand_driven import HandDriven, hand_driven
from nac_drive.live.race import Car, Driven, Race
from nac_drive.live.server import make_server, serve

LOCAL_HOSTS = ("127.0.0.1", "localhost")
MOST_MESSAGES = 240
"""Messages a second that a page may send; controls change at most fifty times."""
_LATE = 0.25
"""Seconds that the clock may be behind before it gives them up."""
_RETURNS_WITHIN = 2.0
"""Seconds that a page may take to load again before the server ends with its client."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


class Arena:
    """A race, its clock and the pages that watch it.

    Args:
        race: The race.
        hands: Where episodes of a person are recorded; None for nowhere.
        recording: Name of that folder.
    """

    def __init__(self, race: Race, hands: HandDriven | None = None, recording: str = "") -> None:
        self.race, self._hands, self._recording = race, hands, recording
        self.paused, self.speed, self.saliency = False, 1.0, True
        self._pages: set[_Page] = set()
        self._frame: bytes | None = None
        self._ended: deque[Driven] = deque()
        race.on_result = self._keep

    async def run(self) -> None:
        """Keep the clock until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if not self.paused and not self.race.over:
                self.race.tick()
                self.changed()
                await self._record()
            due = max(due + 1 / (FRAMES_PER_SECOND * self.speed), loop.time() - _LATE)
            await asyncio.sleep(max(due - loop.time(), 0))

    def changed(self) -> None:
        """Let all pages have the present frame."""
        self._frame = None
        for page in self._pages:
            page.wake.set()

    def frame(self) -> bytes:
        """Return the present frame, computed once for all pages."""
        if self._frame is None:
            self._frame = snapshot.frame(self.race, saliency=self.saliency)
        return self._frame

    def setup(self) -> str:
        """Return the message of what changes seldom."""
        return snapshot.setup(
            self.race, [HUMAN, *self.race.offered], paused=self.paused, speed=self.speed, saliency=self.saliency,
            recording=self._recording,
        )  # fmt: skip

    def do(self, message: messages.Message) -> None:
        """Do what a page asks for.

        Raises:
            ValueError: If it cannot be done; nothing has changed then.
        """
        race = self.race
        match message:
            case messages.Controls(steer=steer, gas=gas, brake=brake):
                race.steer(steer, gas, brake)
                return
            case messages.Pause(on=on):
                self.paused = on
            case messages.Step():
                self.paused = True
                race.tick()
            case messages.Restart(track=track):
                race.restart(track)
            case messages.Speed(value=value):
                self.speed = value
            case messages.Saliency(on=on):
                self.saliency = on
            case messages.Add(driver=name):
                race.add(name)
            case messages.Remove(car=car):
                race.remove(car)
            case messages.Driver(car=car, driver=name):
                race.replace(car, name)
            case messages.Perturb(name=name, level=level):
                race.perturb(name, level)
            case messages.Blind(car=car, on=on):
                race.car(car).env.blind = on
            case messages.Clock(car=car, on=on):
                race.probe(car).clock = on
            case messages.Uniform(car=car, on=on):
                race.probe(car).uniform = on
            case messages.Head(car=car, index=index, on=on):
                race.probe(car).switch_head(index, on)
            case messages.Zero(car=car, group=group, index=index, on=on):
                race.probe(car).switch_neuron(group, index, on)
        self.changed()
        self._tell(self.setup())

    def _tell(self, text: str) -> None:
        for page in self._pages:
            page.texts.append(text)
            page.wake.set()

    def _keep(self, car: Car) -> None:
        if car.human and self._hands:
            self._ended.append(car.driven())  # the car may start again before it is written

    async def _record(self) -> None:
        """Record the episodes that a person has ended."""
        while self._ended and self._hands:
            try:
                row = await asyncio.to_thread(self._hands.add, self._ended.popleft())
                self._tell(_note(f"recorded as episode {row['index']}: return {row['return']:.0f}"))
            except ValueError as error:
                self._tell(_note(str(error)))

    async def serve(self, socket: Any) -> None:
        """Talk with one page until it leaves."""
        page = _Page()
        page.texts.append(self.setup())
        self._pages.add(page)
        sending = asyncio.create_task(self._send(socket, page))
        try:
            await self._receive(socket, page)
        finally:
            self._pages.discard(page)
            sending.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await sending

    async def _send(self, socket: Any, page: _Page) -> None:
        """Send what there is; a slow page misses frames, never texts."""
        page.wake.set()
        while True:
            await page.wake.wait()
            page.wake.clear()
            while page.texts:
                await socket.send_text(page.texts.popleft())
            await socket.send_bytes(self.frame())

    async def _receive(self, socket: Any, page: _Page) -> None:
        loop = asyncio.get_running_loop()
        while True:
            event = await socket.receive()
            if event["type"] == "websocket.disconnect":
                return
            page.moments.append(loop.time())
            if len(page.moments) == MOST_MESSAGES and page.moments[-1] - page.moments[0] < 1:
                await socket.close(code=1008, reason=f"more than {MOST_MESSAGES} messages a second")
                return
            try:
                self.do(messages.parse(event.get("text") or event.get("bytes") or b""))
            except ValueError as error:
                page.texts.append(_note(str(error)))
                page.wake.set()

    @property
    def watched(self) -> bool:
        """Whether a page is open."""
        return bool(self._pages)


class _Page:
    """A page that watches."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.texts: deque[str] = deque()
        self.moments: deque[float] = deque(maxlen=MOST_MESSAGES)


def _note(text: str) -> str:
    return json.dumps({"type": "note", "text": text})


def application(arena: Arena, hosts: Sequence[str] = LOCAL_HOSTS, on_left: Callable[[], None] | None = None) -> Any:
    """Return the ASGI application of an arena.

    A page of another origin is refused, and so is a request for another host: a foreign page that a browser has open
    cannot reach the arena, under whatever name.

    Args:
        arena: The arena.
        hosts: Names that the server answers to.
        on_left: Called when no page is open any more.

    Raises:
        ValueError: If starlette is not installed.
    """
    applications = optional_module("starlette.applications", "live")
    hosts_only = optional_module("starlette.middleware.trustedhost", "live").TrustedHostMiddleware
    middleware = optional_module("starlette.middleware", "live").Middleware
    responses, routing = optional_module("starlette.responses", "live"), optional_module("starlette.routing", "live")
    page = assemble("nac_drive.live", "arena")

    async def index(request: Any) -> Any:
        return responses.HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})

    async def talk(socket: Any) -> None:
        origin = urlsplit(socket.headers.get("origin", ""))
        if origin.scheme not in ("http", "https") or origin.netloc != socket.headers.get("host"):
            await socket.close(code=1008, reason="the page must come from this server")
            return
        await socket.accept()
        with suppress(RuntimeError):  # the page left while something was sent
            await arena.serve(socket)
        if on_left and not arena.watched:
            await asyncio.sleep(_RETURNS_WITHIN)
            if not arena.watched:
                on_left()

    return applications.Starlette(
        routes=[routing.Route("/", index), routing.WebSocketRoute("/race", talk)],
        middleware=[middleware(hosts_only, allowed_hosts=list(hosts), www_redirect=False)],
    )


def arena(
    drivers: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = "champion",
    track: int = SPLITS["test"][0],
    *,
    control: Control = "continuous",
    host: str = LOCAL_HOSTS[0],
    port: int = 8765,
    record: str | os.PathLike[str] | None = None,
    until_left: bool = False,
    open_browser: bool = False,
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the arena: up to four drivers on one track, watched, disturbed and raced in a browser.

    It returns when it is interrupted, or with the last page that leaves if `until_left` is on.

    Args:
        drivers: A driver or up to four, by name or folder (see `resolve_driver`); `human` is the person at the page.
            The page offers these and all that come with the package, and no others.
        track: Seed of the track.
        control: Control of the person, of shipped drivers and the controller; a cloned driver knows its own.
        host: Address to listen on. Others than this machine reach only another one than the default.
        port: Port to listen on; 0 lets the system choose.
        record: Dataset folder for the episodes of a person; it is made, or added to.
        until_left: End when the last page is closed.
        open_browser: Open the page in the browser of this machine.
        on_ready: Called with the address once it answers.

    Raises:
        DatasetError: If `record` is something else, or a dataset with other settings.
        FileNotFoundError: If there is no such driver.
        ValueError: For no driver or more than four, two folders of one name, a bad track, a port that is taken, or if
            starlette, uvicorn or websockets is not installed.
    """
    specs = [drivers] if isinstance(drivers, str | os.PathLike) else list(drivers)
    offered: dict[str, Any] = {}
    for spec in specs:
        name = driver_name(spec)
        if offered.setdefault(name, spec) != spec:
            raise ValueError(f"drivers: two folders have the name {name!r}; rename one.")
    names = [driver_name(spec) for spec in specs]
    offered = {name: spec for name, spec in offered.items() if name != HUMAN}
    for name in (*policies.PRETRAINED, *CONTROLLERS):
        offered.setdefault(name, name)
    (track,) = track_seeds([track])
    race = Race(offered, names, track, control)
    try:
        env = EnvConfig(control=control, renderer="fast")
        with hand_driven(Path(record), env) if record is not None else nullcontext() as hands:
            server = Arena(race, hands, os.fspath(record) if record is not None else "")
            hosts = LOCAL_HOSTS if host in LOCAL_HOSTS else ("*",)

            def leave() -> None:
                listening.should_exit = True

            app = application(server, hosts, leave if until_left else None)
            listening = make_server(app, host, port, messages.LARGEST_MESSAGE)

            def ready(address: str) -> None:
                on_ready(address)
                if open_browser:
                    webbrowser.open(address)

            serve(listening, ready, server.run)
    finally:
        race.close()
