"""The arena's server: one page, one WebSocket, one clock."""

from __future__ import annotations

import asyncio
import json
import os
import webbrowser
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Literal

from nac_drive import policies
from nac_drive.analysis.page import assemble
from nac_drive.data_collection.controller.controller import CONTROLLERS
from nac_drive.data_collection.drivers import AnyDriver, driver_names, each_accepted
from nac_drive.data_collection.human import HUMAN
from nac_drive.envs import FRAMES_PER_SECOND, SPLITS, Control, EnvConfig, track_seeds
from nac_drive.live import messages, snapshot
from nac_drive.live.access import LOCAL_HOSTS, answered_hosts, close, guarded
from nac_drive.live.hand_driven import HandDriven, hand_driven
from nac_drive.live.orders import DEAR, Orders
from nac_drive.live.race import Car, Driven, Race
from nac_drive.live.server import check_address, make_server, serve
from nac_drive.live.sliders import slider_groups
from nac_drive.parallel.optional import optional_module
from nac_drive.storage.read import one_line

MOST_MESSAGES = 240
"""Messages a second that a page may send; controls change at most fifty times."""
_LATE = 0.25
"""Seconds that the clock may be behind before it gives them up."""
_PERIOD = 1 / FRAMES_PER_SECOND
"""Seconds that an order waits for the clock at most, however slow the race is."""
_BREATH = 0.0005
"""Seconds for messages after every frame, however late the clock is."""
_REST = 2.0
"""Seconds for frames after each second that a dear order has taken."""
_MOST_NOTES = 20
_RETURNS_WITHIN = 2.0
"""Seconds that a page may take to load again before the server ends with its client."""
_CSP = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


class LiveRace:
    """A race, its clock and the pages that watch it.

    The race waits for its first page. Where a person drives, the clock stands still until a page starts it.

    The clock alone touches the race. Pages put orders beside it, and get what it has computed: no page waits for
    another one, and no number of messages stops the frames.

    Args:
        race: The race.
        hands: Where episodes of a person are recorded; None for nowhere.
        recording: Name of that folder.
    """

    def __init__(self, race: Race, hands: HandDriven | None = None, recording: str = "") -> None:
        self.race, self._hands, self._recording = race, hands, recording
        self.paused, self.speed, self.saliency = any(car.human for car in race.cars), 1.0, True
        self.shown: messages.Shown = "driver"
        self.begun = False
        """Whether a page has been there: no frame passes before."""
        self._pages: list[_Page] = []
        self._at_the_wheel: _Page | None = None
        self._setup_changed, self._frame_changed = True, True
        self._rests_until = 0.0
        self._ended: deque[Driven] = deque()
        race.on_result = self._keep

    async def run(self) -> None:
        """Keep the clock until cancelled. Pages get the message of an error."""
        try:
            await self._keep_the_clock()
        except Exception as error:
            for page in self._pages:
                page.note(one_line(error), "failure")
            raise

    async def _keep_the_clock(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self._obey()
            if loop.time() >= due:
                if self.begun and not self.paused and not self.race.over:
                    self._tick()
                due = max(due + _PERIOD / self.speed, loop.time() - _LATE)
            self._publish()
            await self._record()
            wait = due - loop.time()
            await asyncio.sleep(min(wait, _PERIOD) if wait > 0 else _BREATH)

    def _tick(self) -> None:
        self.race.tick()
        self._frame_changed = True

    async def _obey(self) -> None:
        """Carry out the orders of all pages.

        At most one step and one dear order are carried out at a time.

        The page of a dear order comes last the next time. Dear orders take a third of the time at most.
        """
        loop = asyncio.get_running_loop()
        stepped = False
        for page in list(self._pages):
            while order := page.orders.first:
                dear, step = isinstance(order, DEAR), isinstance(order, messages.TakeStep)
                if (dear and loop.time() < self._rests_until) or (step and stepped):
                    break
                page.orders.pop()
                stepped = stepped or step
                started = loop.time()
                try:
                    if dear:
                        await asyncio.to_thread(self._do, order)
                    else:
                        self._do(order)
                except (ValueError, OSError) as error:
                    page.note(str(error))
                else:
                    self._frame_changed = True
                self._setup_changed = True  # also after a refusal: the page's control goes back
                if dear:
                    self._rests_until = loop.time() + _REST * (loop.time() - started)
                    if page in self._pages:
                        self._pages.remove(page)
                        self._pages.append(page)

    def _do(self, order: messages.Message) -> None:
        """Carry out an order.

        Raises:
            ValueError: If it cannot be done; nothing has changed then.
        """
        race = self.race
        match order:
            case messages.Pause(on=on):
                self.paused = on
            case messages.TakeStep():
                self.paused = True
                self._tick()
            case messages.Restart(track=track):
                race.restart(track)
            case messages.Mark():
                race.mark()
            case messages.Again():
                race.again()
            case messages.Speed(value=value):
                self.speed = value
            case messages.Saliency(on=on):
                self.saliency = on
            case messages.SetView(show=shown):
                self.shown = shown
            case messages.Add(driver=name):
                race.add(name)
            case messages.Remove(car=car):
                race.remove(car)
            case messages.SetDriver(car=car, driver=name):
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

    def _publish(self) -> None:
        """Send changes to the pages, and everything to new pages."""
        new = [page for page in self._pages if not page.served]
        self.begun = self.begun or bool(new)
        if with_setup := self._pages if self._setup_changed else new:
            setup = snapshot.setup(
                self.race, self.race.choices, paused=self.paused, speed=self.speed, saliency=self.saliency,
                shown=self.shown, recording=self._recording,
            )  # fmt: skip
            for page in with_setup:
                page.setup, page.served = setup, True
        if with_frame := self._pages if self._frame_changed else new:
            frame = snapshot.frame(self.race, saliency=self.saliency, shown=self.shown)
            for page in with_frame:
                page.frame = frame
                page.wake.set()
        self._setup_changed = self._frame_changed = False

    def _keep(self, car: Car) -> None:
        if car.human and self._hands:
            self._ended.append(car.driven())  # the car may start again before it is written

    async def _record(self) -> None:
        """Record the episodes that a person has ended."""
        while self._ended and self._hands:
            try:
                row = await asyncio.to_thread(self._hands.add, self._ended.popleft())
                text = f"recorded as episode {row['index']}: return {row['return']:z.0f}"
            except ValueError as error:
                text = str(error)
            for page in self._pages:
                page.note(text)

    async def serve(self, socket: Any) -> None:
        """Talk with one page until it leaves or is closed."""
        page = _Page()
        self._pages.append(page)
        sending = asyncio.create_task(self._send(socket, page))
        try:
            reason = await self._receive(socket, page)
        finally:
            self._pages.remove(page)
            if self._at_the_wheel is page:
                self.race.steer(0, 0, 0)
            sending.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await sending
        if reason:
            await close(socket.close, reason)

    async def _send(self, socket: Any, page: _Page) -> None:
        """Send what there is. A slow page gets the latest frame and setup alone."""
        while True:
            await page.wake.wait()
            page.wake.clear()
            if not page.served:
                continue
            if setup := page.setup:
                page.setup = None
                await socket.send_text(setup)
            while page.notes:
                await socket.send_text(json.dumps(page.notes.popleft()))
            if frame := page.frame:
                page.frame = None
                await socket.send_bytes(frame)

    async def _receive(self, socket: Any, page: _Page) -> str | None:
        """Take the messages of a page. Return the reason to close it, None if it has left."""
        loop = asyncio.get_running_loop()
        while True:
            event = await socket.receive()
            if event["type"] == "websocket.disconnect":
                return None
            page.moments.append(loop.time())
            if len(page.moments) == MOST_MESSAGES and page.moments[-1] - page.moments[0] < 1:
                return f"more than {MOST_MESSAGES} messages a second"
            try:
                message = messages.parse(event.get("text") or event.get("bytes") or b"")
                if isinstance(message, messages.Controls):
                    self._at_the_wheel = page
                    self.race.steer(message.steer, message.gas, message.brake)
                else:
                    page.orders.put(message)
            except ValueError as error:
                page.note(str(error))
            await asyncio.sleep(0)  # a message that is there already is received without a pause

    @property
    def watched(self) -> bool:
        """True while a page is open."""
        return bool(self._pages)


class _Page:
    """A page that watches."""

    def __init__(self) -> None:
        self.orders = Orders()
        self.wake = asyncio.Event()
        self.served = False
        """Whether the clock knows the page."""
        self.setup: str | None = None
        self.frame: bytes | None = None
        self.notes: deque[dict[str, str]] = deque(maxlen=_MOST_NOTES)
        self.moments: deque[float] = deque(maxlen=MOST_MESSAGES)

    def note(self, text: str, kind: Literal["note", "failure"] = "note") -> None:
        """Let the page show a line of this kind."""
        self.notes.append({"type": kind, "text": text})
        self.wake.set()


def application(
    arena: LiveRace, hosts: Collection[str] | None = LOCAL_HOSTS, on_left: Callable[[], None] | None = None
) -> Any:
    """Return the ASGI application of an arena.

    It answers its own page alone (`access.guarded`).

    Args:
        arena: The arena.
        hosts: Names that the server answers to; None for all.
        on_left: Called when no page is open any more.

    Raises:
        ValueError: If starlette is not installed.
    """
    applications = optional_module("starlette.applications", "live")
    responses, routing = optional_module("starlette.responses", "live"), optional_module("starlette.routing", "live")
    left = optional_module("starlette.websockets", "live").WebSocketDisconnect
    page = assemble("nac_drive.live", "arena", groups=slider_groups())

    async def index(request: Any) -> Any:
        return responses.HTMLResponse(page, headers={"Content-Security-Policy": _CSP})

    async def talk(socket: Any) -> None:
        await socket.accept()
        with suppress(RuntimeError, left):  # the page left while something was sent
            await arena.serve(socket)
        if on_left:
            asyncio.get_running_loop().call_later(_RETURNS_WITHIN, leave, on_left)

    def leave(on_left: Callable[[], None]) -> None:
        if not arena.watched:
            on_left()

    routes = [routing.Route("/", index), routing.WebSocketRoute("/race", talk)]
    return guarded(applications.Starlette(routes=routes), hosts, pages=True)


def arena(
    drivers: AnyDriver | Sequence[AnyDriver] = "champion",
    track: int = SPLITS["test"][0],
    *,
    control: Control = "continuous",
    host: str = "127.0.0.1",
    port: int = 8765,
    record: str | os.PathLike[str] | None = None,
    until_left: bool = False,
    open_browser: bool = False,
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the arena for up to four drivers in a browser.

    It returns when it is interrupted, or with the last page that leaves if `until_left` is on. In a notebook, where an
    event loop runs already, it serves from a thread.

    Args:
        drivers: A driver or up to four, their names or folders, see `resolve_driver`; `human` is the person at the
            page. The page offers these and all that come with the package, and no others.
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
        ValueError: For no driver or more than four, two folders of one name, a bad track, a port that is none or taken,
            or if starlette, uvicorn or websockets is not installed.
    """
    check_address(host, port)
    specs = each_accepted(drivers)
    offered: dict[str, Any] = {}
    names = driver_names(specs)
    for name, spec in zip(names, specs, strict=True):
        if offered.setdefault(name, spec) != spec:
            raise ValueError(f"drivers: two folders have the name {name!r}; rename one.")
    offered = {name: spec for name, spec in offered.items() if name != HUMAN}
    (track,) = track_seeds([track])
    race = Race(offered, names, track, control)
    if race.cars[0].env_config.environment == EnvConfig.environment:
        for name in (*policies.PRETRAINED, *CONTROLLERS):
            race.offered.setdefault(name, name)
    try:
        env = EnvConfig(control=control)
        with hand_driven(Path(record), env) if record is not None else nullcontext() as hands:
            server = LiveRace(race, hands, os.fspath(record) if record is not None else "")

            def leave() -> None:
                listening.should_exit = True

            app = application(server, answered_hosts(host), leave if until_left else None)
            listening = make_server(app, host, port, messages.LARGEST_MESSAGE)

            def ready(address: str) -> None:
                on_ready(address)
                if open_browser:
                    webbrowser.open(address)

            serve(listening, ready, server.run)
    finally:
        race.close()
