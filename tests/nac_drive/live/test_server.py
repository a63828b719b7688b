"""The server of the live commands: who may connect, and clients that ask nothing, read nothing or stay at the end."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

import nac_drive as nd
from nac_drive.live import arena, udacity
from nac_drive.live.access import LOCAL_HOSTS, answered_hosts, close, cut, guarded, refusal
from nac_drive.live.connections import Limits
from nac_drive.live.race import Race
from nac_drive.live.server import make_server, serve

PATIENT = Limits(request=1000, unread=1000)


async def answers(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers a request, greets a WebSocket, and waits for it to leave."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"here"})
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "hello"})
        while (await receive())["type"] != "websocket.disconnect":
            pass


async def floods(scope: Any, receive: Any, send: Any) -> None:
    """An application that sends as much as a WebSocket takes."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        while True:
            await send({"type": "websocket.send", "bytes": bytes(100_000)})


@contextmanager
def serving(app: Any = answers, host: str = "127.0.0.1", limits: Limits = PATIENT) -> Iterator[tuple[str, Any]]:
    """The address and the server of an application."""
    ready, addresses, problems = threading.Event(), [], []
    server = make_server(app, host, 0, 1_000_000, limits)

    def work() -> None:
        try:
            serve(server, lambda address: (addresses.append(address), ready.set()))  # type: ignore[func-returns-value]
        except BaseException as problem:
            problems.append(problem)
            ready.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(600)
    assert not problems
    try:
        yield addresses[0], server
    finally:
        server.should_exit = True
        thread.join(600)
        assert not thread.is_alive()
        assert not problems


def half_request(address: str) -> socket.socket:
    """A connection with half a request."""
    link = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
    link.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    return link


def wait_for(condition: Callable[[], bool]) -> None:
    """Return once a condition holds; a hang is ended by the time limit of the test."""
    while not condition():
        time.sleep(0.005)


# Access


@pytest.mark.parametrize("websocket", [False, True])
@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1:8765", True), ("localhost", True), ("LocalHost:1", True), ("[::1]:8765", True),
        ("evil.example", False), ("evil.example:8765", False), ("127.0.0.1.evil.example", False), ("", False),
        ("::1", False), ("[::1", False), ("localhost:8765@evil.example", False), ("evil.example#localhost", False),
        ("localhost evil.example", False), ("[::1]evil.example", False), ("localhost:", False), (None, False),
    ],
)  # fmt: skip
def test_a_request_for_another_host_is_refused(host, local, websocket):
    headers = [] if host is None else [(b"host", host.encode()), (b"origin", f"http://{host}".encode())]
    reason = refusal(headers, LOCAL_HOSTS, websocket=websocket, pages=True)
    assert (reason is None) == local
    if reason:
        assert reason == "the request is for another host"
    twice = refusal([*headers, (b"host", b"localhost")], LOCAL_HOSTS, websocket=websocket, pages=True)
    assert (twice is None) == (host is None and not websocket)
    if host and local:
        assert refusal(headers, None, websocket=websocket, pages=True) is None


@pytest.mark.parametrize("pages", [True, False])
@pytest.mark.parametrize(
    ("origins", "own"),
    [
        (["http://127.0.0.1:8765"], True), (["https://127.0.0.1:8765"], True), (["null"], False), ([""], False),
        (["http://127.0.0.1"], False), (["http://127.0.0.1:8765.evil.example"], False),
        (["ftp://127.0.0.1:8765"], False),
        (["http://evil.example"], False), (["http://127.0.0.1:8765", "http://evil.example"], False),
        (["http://evil.example", "http://127.0.0.1:8765"], False), (["127.0.0.1:8765"], False),
    ],
)  # fmt: skip
def test_a_page_of_another_origin_is_refused(origins, own, pages):
    headers = [(b"host", b"127.0.0.1:8765"), *((b"origin", origin.encode()) for origin in origins)]
    for hosts in (LOCAL_HOSTS, None):
        assert (refusal(headers, hosts, websocket=True, pages=pages) is None) == own
        assert refusal(headers, hosts, websocket=False, pages=pages) is None  # a request only reads the page
        without = refusal(headers[:1], hosts, websocket=True, pages=pages)
        assert (without is None) == (not pages)  # a program of this machine; no browser leaves it out


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.0.0.5", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False),
     ("192.0.2.1", False)],
)  # fmt: skip
def test_only_an_address_of_this_machine_alone_is_local(host, local):
    hosts = answered_hosts(host)
    assert (hosts is not None) == local
    if hosts is not None:
        assert hosts == LOCAL_HOSTS | {host}


class Nothing:
    """A driver of the Udacity simulator that never drives."""

    def begin(self, env: Any) -> None:
        return None

    def act(self, observation: Any, state: Any, dt: float) -> tuple[np.ndarray, None]:
        pytest.fail("asked to drive")


@pytest.fixture(scope="module")
def race() -> Iterator[Race]:
    race = Race({}, ["human"], 900_003)
    yield race
    race.close()


def applications(race: Race) -> dict[str, Any]:
    return {"race": arena.application(arena.LiveRace(race)), "socket.io/": udacity.application(Nothing(), None)}


@pytest.mark.parametrize("path", ["race", "socket.io/"])
def test_both_servers_refuse_foreign_pages_in_silence(path, race, capfd):
    capfd.readouterr()
    with serving(applications(race)[path]) as (address, _):
        target = f"{address.replace('http', 'ws')}/{path}"
        for origin in ("http://evil.example", "null", f"{address}0"):
            with pytest.raises(InvalidStatus, match="403"), connect(target, origin=origin):  # type: ignore[arg-type]
                pass
        foreign = target.replace("127.0.0.1", "evil.example")
        with pytest.raises(InvalidStatus, match="403"):
            connect(foreign, sock=socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))))
        request = urllib.request.Request(address, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(request)
        with half_request(address) as link:  # a handshake without a key, and one that breaks off
            link.sendall(b"Origin: %b\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" % address.encode())
            assert link.recv(100).startswith(b"HTTP/1.1 4")
        half_request(address).close()
    assert capfd.readouterr() == ("", "")


def test_there_is_a_limit_of_open_sockets():
    with serving(guarded(answers, LOCAL_HOSTS, pages=False, most_sockets=2)) as (address, server), ExitStack() as links:
        target = address.replace("http", "ws")
        first, second = (links.enter_context(connect(target)) for _ in range(2))
        with pytest.raises(InvalidStatus, match="403"):
            connect(target)
        assert second.recv(timeout=600) == "hello"
        first.close()
        wait_for(lambda: len(server.server_state.tasks) == 1)
        assert links.enter_context(connect(target)).recv(timeout=600) == "hello"


@given(st.text(max_size=200))
def test_a_reason_is_cut_by_bytes(text):
    whole = text.encode(errors="replace").decode()
    reason = cut(text)
    assert len(reason.encode()) <= 123
    assert whole.startswith(reason)
    assert len(reason.encode()) > 119 or reason == whole


def test_a_long_reason_reaches_the_client():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            await close(lambda **values: send({"type": "websocket.close", **values}), "\u20ac" * 200)

    with serving(app) as (address, _), connect(address.replace("http", "ws")) as link:
        with pytest.raises(ConnectionClosed):
            link.recv(timeout=600)
        assert (link.close_code, link.close_reason) == (1008, "\u20ac" * 41)


# Addresses


@pytest.mark.parametrize("port", [99_999, -1, 65_536, True, 1.5, "8765", None, np.int64(70_000)])
def test_a_port_that_is_none_is_refused_before_anything_is_loaded(port):
    for call in (nd.arena, nd.serve_udacity):
        with pytest.raises(
            ValueError, match=r"port must be a whole number from 0 to 65535, got .*; 0 takes a free one"
        ):
            call("no-such-driver", port=port)


@pytest.mark.parametrize("host", ["", "x" * 300, "a\0b", "no such host"])
def test_a_host_that_is_none_is_refused_in_one_line(host):
    with pytest.raises(ValueError, match=r"^host(:? must be| and port: )") as error:
        serve(make_server(answers, host, 0, 1000), lambda address: None)
    assert "\n" not in str(error.value)


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
def test_an_address_of_ipv6_has_brackets_and_is_local():
    with serving(guarded(answers, answered_hosts("::1"), pages=True), "::1") as (address, _):
        assert address.startswith("http://[::1]:")
        assert urllib.request.urlopen(address).read() == b"here"
        with connect(address.replace("http", "ws"), origin=address) as link:  # type: ignore[arg-type]
            assert link.recv(timeout=600)
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(urllib.request.Request(address, headers={"Host": "evil.example"}))


# Connections


def test_half_requests_are_few_and_end():
    limits = Limits(request=1000, requests=5)
    with serving(limits=limits) as (address, server):
        links = [half_request(address) for _ in range(12)]
        for link in links[:7]:
            assert ended(link)
        assert urllib.request.urlopen(address).read() == b"here"
        wait_for(lambda: len(server.server_state.connections) <= limits.requests)
        for link in links:
            link.close()
    with serving(limits=Limits(request=0.05)) as (address, _), half_request(address) as link:
        assert ended(link)


def ended(link: socket.socket) -> bool:
    """Wait until the server ends a connection."""
    try:
        return link.recv(1) == b""
    except ConnectionResetError:
        return True


def unread(address: str) -> socket.socket:
    """A WebSocket that never reads."""
    link = half_request(address)
    link.sendall(
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    return link


def test_a_client_that_never_reads_is_dropped():
    with serving(floods, limits=Limits(unread=0.05)) as (address, server), unread(address):
        wait_for(lambda: bool(server.server_state.tasks))
        wait_for(lambda: not server.server_state.tasks and not server.server_state.connections)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_server_whatever_its_clients_do(number):
    came: list[int] = []
    before = signal.signal(number, lambda number, frame: came.append(number))
    links: list[socket.socket] = []
    addresses: list[str] = []
    server = make_server(floods, "127.0.0.1", 0, 1000, PATIENT)

    async def abuse() -> None:
        while not addresses:
            await asyncio.sleep(0.005)
        links.extend(half_request(addresses[0]) for _ in range(3))
        links.extend(unread(addresses[0]) for _ in range(3))
        while len(server.server_state.tasks) < 3 or len(server.server_state.connections) < 6:
            await asyncio.sleep(0.005)
        signal.raise_signal(number)
        await asyncio.Event().wait()

    try:
        serve(server, addresses.append, abuse)
    finally:
        signal.signal(number, before)
        for link in links:
            link.close()
    assert came == [number]  # raised again, after the server has ended
    assert not server.server_state.connections


def test_a_server_runs_beside_a_running_loop():
    server = make_server(answers, "127.0.0.1", 0, 1000)
    answered: list[bytes] = []

    def ready(address: str) -> None:
        assert threading.current_thread() is not threading.main_thread()
        server.should_exit = True
        answered.append(address.encode())

    async def cell() -> None:
        serve(server, ready)

    asyncio.run(cell())
    assert answered


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_a_server_beside_a_running_loop(number):
    came: list[int] = []
    before = signal.signal(number, lambda number, frame: came.append(number))
    server, main = make_server(answers, "127.0.0.1", 0, 1000), threading.get_ident()

    async def cell() -> None:
        serve(server, lambda address: signal.pthread_kill(main, number))
        assert came == [number]  # raised again, after the server has ended

    try:
        asyncio.run(cell())
    finally:
        signal.signal(number, before)
