"""The arena's server, and its page in a real browser."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.live import messages
from nac_drive.live.arena import MOST_MESSAGES, arena
from nac_drive.policies import Driver, DriverConfig, save_driver
from tests.browser import Page, browser, needs_browser

TRACK = 900_003


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = DriverConfig("nac-exact", {"num_heads": 2, "window": 4}, d_model=16, dense=8, control="continuous")
    env = {"control": "continuous", "mask_bar": False, "max_steps": 1000}
    return save_driver(tmp_path_factory.mktemp("driver") / "mine", Driver(config).eval(), env=env)


@pytest.fixture
def leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits for no page that loads again."""
    monkeypatch.setattr("nac_drive.live.arena._RETURNS_WITHIN", 0.0)


@contextmanager
def serving(drivers: list[Any], **settings: Any) -> Iterator[str]:
    """Serve an arena that ends with its last page."""
    ready, addresses, problems = threading.Event(), [], []

    def begin(address: str) -> None:
        addresses.append(address)
        ready.set()

    def work() -> None:
        try:
            arena(
                drivers, TRACK, port=0, until_left=True,
                on_ready=begin, **settings,
            )  # fmt: skip
        except BaseException as problem:
            problems.append(problem)
            ready.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(600)
    assert not problems
    try:
        yield addresses[0]
    finally:
        with suppress(ConnectionClosed, OSError), connect(socket_of(addresses[0]), origin=addresses[0]):  # type: ignore[arg-type]
            pass  # a page that comes and leaves
        thread.join(600)
        assert not thread.is_alive()
        assert not problems


def socket_of(address: str) -> str:
    return address.replace("http", "ws") + "/race"


def frame(data: bytes) -> tuple[dict[str, Any], list[dict[str, np.ndarray]]]:
    """The header and the arrays of a message."""
    length = int.from_bytes(data[:4], "little")
    header, offset, cars = json.loads(data[4 : 4 + length]), 4 + length, []
    for car in header["cars"]:
        cars.append({})
        for name, dtype, shape in car["arrays"]:
            count = int(np.prod(shape))
            cars[-1][name] = np.frombuffer(data, dtype, count, offset).reshape(shape)
            offset += -(-cars[-1][name].nbytes // 4) * 4  # padded
    assert offset == len(data)
    return header, cars


class Client:
    """A page without a browser."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self.setup = json.loads(socket.recv(timeout=600))

    def send(self, type_: str, **fields: Any) -> None:
        self._socket.send(json.dumps({"type": type_} | fields))

    def next(self, kind: str) -> Any:
        """The next message of a kind: frame, setup or note."""
        while True:
            data = self._socket.recv(timeout=600)
            if isinstance(data, bytes):
                if kind == "frame":
                    return frame(data)
                continue
            message = json.loads(data)
            if message["type"] == kind:
                return message


@pytest.mark.usefixtures("leaves_at_once")
def test_a_client_sees_and_disturbs(mine):
    with serving([mine, "controller"]) as address, connect(socket_of(address), origin=address, max_size=None) as link:  # type: ignore[arg-type]
        client = Client(link)
        assert [car["driver"] for car in client.setup["cars"]] == ["mine", "controller"]
        assert {"human", "mine", "champion-continuous", "controller"} <= set(client.setup["drivers"])
        client.send("pause", on=True)
        while not (setup := client.next("setup"))["paused"]:
            pass
        assert setup["track"] == TRACK
        client.send("step")
        header, (network, controller) = client.next("frame")
        while not header["frame"]:  # the first frame waits for the page
            header, (network, controller) = client.next("frame")
        before = header["frame"]
        assert network["frame"].shape == controller["frame"].shape == (96, 96, 3)
        assert network["saliency"].shape == (96, 96)
        assert network["attention"].sum(axis=1) == pytest.approx([1, 1], abs=1e-5)
        assert {"neurons features", "neurons output", "cells q", "cells motor", "cells omega"} <= set(network)
        assert set(controller) == {"frame"}
        assert network["neurons output"].any()
        for index in range(16):
            client.send("zero", car=0, group="output", index=index, on=True)
        client.send("blind", car=1, on=True)
        client.send("perturb", name="shadows", level=3)
        while client.next("setup")["levels"] != {"shadows": 3}:
            pass
        client.send("step")
        client.next("setup")
        header, (network, controller) = client.next("frame")
        assert header["frame"] >= before + 1
        assert not network["neurons output"].any()
        assert not controller["frame"].any()
        client.send("mark")
        marked = client.next("setup")["marked"]
        assert marked == header["frame"]
        client.send("step")
        client.send("again")
        while client.next("frame")[0]["frame"] != marked:
            pass
        client.send("restart", track=TRACK + 1)
        while (setup := client.next("setup"))["track"] != TRACK + 1:
            pass
        assert setup["marked"] is None
        refused = (
            ({"type": "driver", "car": 0, "driver": "../../etc"}, "not offered here"),
            ({"type": "perturb", "name": "fog", "level": 1}, "unknown"),
            ({"type": "zero", "car": 0, "group": "h", "index": 0, "on": True}, "there is no neuron h 0"),
            ({"type": "head", "car": 1, "index": 0, "on": True}, "controller has no network"),
            ({"type": "shout"}, "not understood"),
        )
        for message, text in refused:
            link.send(json.dumps(message))
            assert text in client.next("note")["text"]


@pytest.mark.usefixtures("leaves_at_once")
def test_foreign_pages_and_other_hosts_are_refused():
    with serving(["human"]) as address:
        for origin in (None, "http://evil.example", address.replace("http", "ftp"), "null", address + "0"):
            with pytest.raises(InvalidStatus), connect(socket_of(address), origin=origin):  # type: ignore[arg-type]
                pass
        request = urllib.request.Request(address, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(request)
        with urllib.request.urlopen(address) as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            page = answer.read().decode()
        assert "http://" not in page
        assert "https://" not in page
        for path in ("/../pyproject.toml", "/etc/passwd", "/arena.js"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(address + path)


@pytest.mark.usefixtures("leaves_at_once")
@pytest.mark.parametrize(
    ("texts", "code", "reason"),
    [
        (["x" * (messages.LARGEST_MESSAGE + 1)], 1009, "limit of 4096"),
        (['{"type": "controls", "steer": 0, "gas": 0, "brake": 0}'] * 4 * MOST_MESSAGES, 1008, "messages a second"),
    ],
)
def test_large_and_many_messages_end_the_connection(texts, code, reason):
    with serving(["human"]) as address, connect(socket_of(address), origin=address, max_size=None) as link:  # type: ignore[arg-type]
        with suppress(ConnectionClosed):
            for text in texts:
                link.send(text)
            while True:
                link.recv(timeout=600)
        assert link.close_code == code
        assert reason in (link.close_reason or "")


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", '{"type": "pause"}', '{"type": "pause", "on": 1}', '{"type": "step", "more": 1}', "\xff",
        '{"type": "speed", "value": 1e9}', '{"type": "speed", "value": NaN}', '{"type": "restart", "track": -1}',
        '{"type": "restart", "track": 1.5}', '{"type": "blind", "car": 4, "on": true}', '{"type": "controls"}',
        '{"type": "controls", "steer": 2, "gas": 0, "brake": 0}', '{"type": "add", "driver": "' + "x" * 201 + '"}',
        '{"type": "controls", "steer": 1e999, "gas": 0, "brake": 0}', " " * (messages.LARGEST_MESSAGE + 1),
    ],
)  # fmt: skip
def test_bad_messages_are_refused(text):
    with pytest.raises(ValueError, match="message"):
        messages.parse(text)


def test_bad_arguments_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        arena("no-such-driver", port=0)
    with pytest.raises(ValueError, match="drivers must be 1 to 4, got 5"):
        arena(["controller"] * 5, port=0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"127.0.0.1 {port} cannot be listened on .*choose another one"):
            arena("controller", port=port)
    with pytest.raises(ValueError, match="two folders have the name 'mine'"):
        arena([tmp_path / "mine", tmp_path / "other" / "mine"], port=0)


@pytest.mark.slow
@needs_browser
def test_the_page_in_a_browser(mine, tmp_path):
    with (
        serving([mine, "controller", "controller", "human"], record=tmp_path / "hand") as address,
        browser(tmp_path / "profile") as page,
    ):
        page.open(f"{address}/")
        page.wait("document.body.dataset.ready && at('pause').textContent === 'Start'")
        assert page.run("header.frame") == 0  # a person drives: the race waits for Start
        page.run('at("pause").click()')
        page.wait("document.body.dataset.frame > 5 && at('pause').textContent === 'Pause'")
        canvases = 'document.querySelectorAll("canvas.frame:not([hidden])").length'
        assert page.run(canvases) == 4
        page.run('at("pause").click()')
        page.wait("state.paused")
        _a_phone_shows_the_car_and_the_pads(page)
        _cars_stand_beside_the_map(page)
        _space_pauses_after_a_click(page)
        _every_panel_moves(page)
        _a_perturbation_changes_what_is_seen(page)
        _both_views_are_side_by_side(page)
        _keys_are_the_drivers(page)
        _a_refused_order_goes_back(page)
        _neurons_are_switched_by_keys(page)
        _nothing_is_left_of_old_panels(page)
        _drive_by_keys(page)
        page.wait('at("note").textContent.startsWith("recorded as episode 0")')
        assert page.errors == []
        assert {url for url in page.requests if not url.startswith("data:")} == {f"{address}/"}
        page.open("about:blank")  # the page leaves
    dataset = Demonstrations.open(tmp_path / "hand")
    assert dataset.verify(replay=True) == []
    labels = dataset.load().labels
    assert labels[:, 1].max() == 1  # gas
    assert labels[:, 0].min() < -0.9  # to the left


SEEN = '[...document.querySelectorAll("canvas:not([hidden])")].map(canvas => canvas.toDataURL())'


def _step(page: Page, script: str = 'at("step").click()') -> None:
    frame = page.run("Number(document.body.dataset.frame)")
    page.run(script)
    page.wait(f"document.body.dataset.frame > {frame}")


def _every_panel_moves(page: Page) -> None:
    page.run('send({type: "speed", value: 4})')
    page.run(f"window.before = {SEEN}")
    page.run('at("pause").click()')
    page.wait("document.body.dataset.frame > 120")
    page.run('at("pause").click()')
    page.wait("state.paused")
    moved = page.run(f"(() => {{ const now = {SEEN}; return now.map((url, i) => url !== window.before[i]); }})()")
    kinds = page.run('[...document.querySelectorAll("canvas:not([hidden])")].map(canvas => canvas.className)')
    still = [kind for kind, each in zip(kinds, moved, strict=True) if not each]
    assert len(still) <= 2, still  # the person's car stands: its frame, its actions
    assert sum(each for kind, each in zip(kinds, moved, strict=True) if "frame" in kind) >= 3


def _a_phone_shows_the_car_and_the_pads(page: Page) -> None:
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1}
    page.call("Emulation.setDeviceMetricsOverride", mobile=True, **size)
    box = "(s => (({ top, bottom }) => [top, bottom])(document.querySelector(s).getBoundingClientRect()))"
    header, car, pads = (page.run(f"{box}('{name}')") for name in ("header", ".human canvas.frame", "#pads"))
    assert header[1] < car[0] < car[1] < pads[0] < pads[1] <= size["height"]
    page.call("Emulation.clearDeviceMetricsOverride")


def _cars_stand_beside_the_map(page: Page) -> None:
    """At every width with a column for the map. An open header of a phone scrolls away."""
    for width in (1280, 1600, 2560):
        page.screenshot(width, 900)
        lefts = page.run("[...document.querySelectorAll('main section:not(.lap)')].map(car => car.offsetLeft)")
        lap = page.run("document.querySelector('.lap').offsetLeft + document.querySelector('.lap').offsetWidth")
        assert min(lefts) > lap
        assert page.run("document.documentElement.scrollWidth") <= width
    page.screenshot(390, 844)
    position = "getComputedStyle(document.querySelector('header')).position"
    assert page.run(position) == "sticky"
    page.run("at('more').open = true")
    assert page.run(position) == "static"
    page.run("at('more').open = false")
    page.call("Emulation.clearDeviceMetricsOverride")
    drawings = "[...document.querySelectorAll('canvas')].map(canvas => canvas.closest('[role]')?.ariaLabel)"
    assert all(page.run(drawings))


def _space_pauses_after_a_click(page: Page) -> None:
    page.run("at('speed').value = '4'; at('speed').onchange()")
    page.click("#restart")
    page.wait("header.frame === 0")
    page.key(" ", True)
    page.wait("!state.paused && header.frame > 3")
    page.key(" ", False)
    page.key(" ", True)
    page.wait("state.paused")
    assert page.run("header.frame") > 3


def _a_perturbation_changes_what_is_seen(page: Page) -> None:
    canvas = "document.querySelectorAll('canvas.frame:not([hidden])')[3]"
    pixels = f"{canvas}.getContext('2d').getImageData(0, 0, 96, 84).data.join()"  # without the score
    _step(page)
    _step(page)
    before = page.run(pixels)
    _step(page)
    assert page.run(pixels) == before  # the person's car stands still
    page.run('(() => { const s = at("level-shadows"); s.value = 3; s.oninput(); })()')
    page.wait("state.levels.shadows === 3")
    _step(page)
    assert page.run(pixels) != before
    page.run('(() => { const s = at("level-shadows"); s.value = 0; s.oninput(); })()')
    page.wait("!state.levels.shadows")


def _both_views_are_side_by_side(page: Page) -> None:
    shown = "[...document.querySelectorAll('canvas.frame:not([hidden])')].map(canvas => canvas.width)"
    for view, widths in (("both", [96, 192] * 4), ("seat", [192] * 4), ("driver", [96] * 4)):
        page.run(f"[...document.querySelectorAll('#views button')].find(b => b.textContent === '{view}').click()")
        page.wait(f"state.shown === '{view}' && {shown}.join() === '{','.join(map(str, widths))}'")


def _keys_are_the_drivers(page: Page) -> None:
    """A control that the mouse used takes no keys."""
    track = page.run("state.track")
    page.click("#track")
    page.key("ArrowUp", True)
    page.wait("held.has('ArrowUp')")
    page.key("ArrowUp", False)
    page.run("at('track').value = ''; at('track').onchange()")
    assert page.run("Number(at('track').value)") == track
    page.run("document.activeElement.blur()")
    page.run("document.querySelector('.switches button').focus()")
    page.run("document.activeElement.click()")
    page.wait("state.cars[0].blind")
    page.run("document.activeElement.click()")
    page.wait("!state.cars[0].blind")
    assert page.run("document.activeElement.textContent") == "Blind"  # a page's answer does not take the focus
    page.run("document.activeElement.blur()")
    assert page.run("state.track") == track


def _a_refused_order_goes_back(page: Page) -> None:
    name = page.run("state.cars[1].driver")
    page.run("panels[1].driver.value = 'human'; send({type: 'driver', car: 1, driver: 'nobody'})")
    page.wait(f"panels[1].driver.value === {json.dumps(name)} && at('note').textContent.includes('not offered')")


def _neurons_are_switched_by_keys(page: Page) -> None:
    page.run("document.querySelector('canvas.pick').focus()")
    page.key("ArrowDown", True)
    page.key("Enter", True)
    page.wait("state.cars[0].zeroed.some(([, index]) => index === 1)")
    assert page.run("document.activeElement.ariaValueText").endswith(" 1, held at 0")
    page.key("Enter", True)
    page.wait("!state.cars[0].zeroed.length")
    page.run("document.activeElement.blur()")


def _nothing_is_left_of_old_panels(page: Page) -> None:
    def nodes() -> int:
        page.call("HeapProfiler.collectGarbage")
        return page.call("Memory.getDOMCounters")["nodes"]

    before = nodes()
    for _ in range(10):
        track = page.run("state.track")
        page.run("at('next').click()")
        page.wait(f"state.track === {track + 1} && header && document.body.dataset.frame == header.frame")
    assert nodes() < 1.5 * before


def _drive_by_keys(page: Page) -> None:
    """Drive alone, so that the episode is over soon."""
    page.run('[0, 0, 0].forEach(car => send({type: "remove", car})); send({type: "speed", value: 2});')
    page.run('send({type: "restart"}); send({type: "pause", on: false});')
    page.wait("!state.paused && panels.length === 1 && header && header.cars.length === 1")
    page.key("ArrowUp", True)
    page.wait("header.cars[0].speed > 20")
    page.key("ArrowLeft", True)
    page.wait("header.cars[0].command[0] < -0.9")
    page.run('send({type: "speed", value: 10})')
    page.wait("header.cars[0].ended")
    page.key("ArrowUp", False)
    page.key("ArrowLeft", False)


def test_the_clock_gives_up_what_it_is_late(monkeypatch):
    """A server that was held up does not race through the frames that it missed."""
    from nac_drive.live.arena import LiveRace
    from nac_drive.live.race import Race

    race = Race({}, ["human"], TRACK)
    held = LiveRace(race)
    held.begun, held.paused = True, False
    ticks: list[float] = []

    async def drive() -> None:
        loop = asyncio.get_running_loop()
        now = [0.0]
        monkeypatch.setattr(loop, "time", lambda: now[0])

        async def sleep(seconds: float) -> None:
            now[0] += seconds if len(ticks) != 10 else 100.0  # held up once
            if len(ticks) == 40:
                raise asyncio.CancelledError

        monkeypatch.setattr(asyncio, "sleep", sleep)
        monkeypatch.setattr(race, "tick", lambda: ticks.append(now[0]))
        await held.run()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(drive())
    waits = np.diff(ticks)
    assert waits[:9] == pytest.approx(0.02)
    assert waits[9] == pytest.approx(100)
    caught_up = int((waits[10:] < 0.019).sum())
    assert 12 <= caught_up <= 14  # a quarter of a second are 12.5 frames
    assert waits[-5:] == pytest.approx(0.02)
    race.close()


def test_an_error_of_the_clock_ends_the_server(monkeypatch):
    from nac_drive.live.race import Race

    def fail(self: Race) -> None:
        raise RuntimeError("the wheel came off")

    monkeypatch.setattr(Race, "tick", fail)

    readers: list[threading.Thread] = []

    def open_page(address: str) -> None:
        readers.append(threading.Thread(target=read, args=(address,)))
        readers[0].start()

    seen: list[Any] = []

    def read(address: str) -> None:
        with connect(socket_of(address), origin=address, max_size=None) as link:  # type: ignore[arg-type]
            with suppress(ConnectionClosed):
                while True:
                    seen.append(link.recv(timeout=600))
            seen.append(link.close_code)

    with pytest.raises(RuntimeError, match="the wheel came off"):
        arena("controller", TRACK, port=0, on_ready=open_page)
    readers[0].join(600)
    texts = [json.loads(message) for message in seen if isinstance(message, str)]
    assert texts[-1] == {"type": "failure", "text": "the wheel came off"}
    assert seen[-1] == 1012  # the page knows by it that loading again is of no use


@pytest.mark.slow
@needs_browser
def test_a_page_shows_the_error_that_ends_the_arena(monkeypatch, tmp_path):
    from nac_drive.live.race import Race

    def fail(self: Race) -> None:
        raise RuntimeError("the wheel came off " + "and " * 60 + "broke")

    monkeypatch.setattr(Race, "tick", fail)
    notes: list[Future[str]] = []

    def look(address: str) -> str:
        with browser(tmp_path / "profile") as page:
            page.open(f"{address}/")
            return page.wait("at('note').textContent")

    with ThreadPoolExecutor() as pool, pytest.raises(RuntimeError, match="the wheel came off"):
        arena("controller", TRACK, port=0, on_ready=lambda address: notes.append(pool.submit(look, address)))
    assert notes[0].result() == f"The arena has ended: the wheel came off {'and ' * 60}broke"
