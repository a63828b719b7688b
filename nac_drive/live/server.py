"""A web server of one application, with a start callback."""

from __future__ import annotations

import asyncio
import logging
import operator
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from nac_drive.live.connections import Limits, protocols
from nac_drive.parallel.optional import optional_module
from nac_drive.parallel.signals import handled_by

_LEFT_AFTER = 1
"""Seconds after which the end of the server no longer waits for its clients."""


class OwnErrors(logging.Filter):
    """Errors of the application alone. What a client does wrong is no line on stderr."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        ours = str(record.msg).startswith("Exception in ASGI application")
        return ours and not isinstance(error, asyncio.CancelledError)


_LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"own": {"()": OwnErrors}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "filters": ["own"]}},
    "loggers": {"uvicorn": {"handlers": ["stderr"], "level": "ERROR", "propagate": False}},
}


def check_address(host: str, port: int) -> None:
    """Check an address to listen on.

    Raises:
        ValueError: If the host is empty, or the port is no whole number from 0 to 65535.
    """
    if not isinstance(host, str) or not host:
        raise ValueError(f"host must be an address of this machine, such as 127.0.0.1, got {host!r}.")
    try:
        number = -1 if isinstance(port, bool) else operator.index(port)
    except TypeError:
        number = -1
    if not 0 <= number <= 65535:
        raise ValueError(f"port must be a whole number from 0 to 65535, got {port!r}; 0 takes a free one.")


def make_server(app: Any, host: str, port: int, largest_message: int, limits: Limits | None = None) -> Any:
    """Return uvicorn's server of an ASGI application. Its `should_exit` ends it.

    Args:
        app: The application.
        host: Address to listen on.
        port: Port to listen on; 0 lets the system choose.
        largest_message: Bytes of a message to its WebSockets; a larger one ends the connection.
        limits: Limits of the connections.

    Raises:
        ValueError: If the address is none, or uvicorn or websockets is not installed.
    """
    check_address(host, port)
    uvicorn = optional_module("uvicorn", "live")
    http, websocket = protocols(limits or Limits())
    config = uvicorn.Config(
        app, host, int(port), log_config=_LOGGING, log_level="error", http=http, ws=websocket,
        ws_max_size=largest_message, ws_per_message_deflate=False, timeout_graceful_shutdown=_LEFT_AFTER,
    )  # fmt: skip
    return uvicorn.Server(config)


def serve(
    server: Any, on_ready: Callable[[str], None], beside: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> None:
    """Run a server of `make_server` until it ends.

    Where an event loop runs already, as in a notebook, it runs in a thread; an interrupt of the caller ends it.

    Args:
        server: The server.
        on_ready: Called with its address once it answers.
        beside: Work that runs as long as the server does. An error in it ends the server and is raised.

    Raises:
        ValueError: If the address cannot be listened on.
    """
    with _listening(server.config.host, server.config.port) as listener:

        def run() -> None:
            asyncio.run(_serve(server, listener, on_ready, beside))

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            with _ended_by(server, "SIGHUP"):  # uvicorn handles the others
                run()
        else:
            with _ended_by(server, "SIGHUP", "SIGTERM", "SIGINT"), ThreadPoolExecutor(1, "nac-drive-live") as pool:
                pool.submit(run).result()


@contextmanager
def _ended_by(server: Any, *names: str) -> Iterator[None]:
    """Let signals end the server; they are raised again afterwards. See `handled_by` for those that are ignored."""
    came: list[int] = []

    def end(number: int, frame: Any) -> None:
        came.append(number)
        server.should_exit = True

    with handled_by(end, *names):
        yield
    for number in came:
        signal.raise_signal(number)


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, ValueError, TypeError) as error:  # the last two: a text that is no name
        cause = getattr(error, "strerror", None) or error
        raise ValueError(
            f"host and port: {host} {port} cannot be listened on ({cause}); another program may have the port, choose "
            "another one."
        ) from None


async def _serve(
    server: Any,
    listener: socket.socket,
    on_ready: Callable[[str], None],
    beside: Callable[[], Coroutine[Any, Any, None]] | None,
) -> None:
    serving = asyncio.create_task(server.serve([listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.02)
    working = asyncio.create_task(beside()) if beside else None
    if server.started:
        host = server.config.host
        on_ready(f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}")
    if working:
        await asyncio.wait((serving, working), return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
    await serving
    if working and not working.cancel():
        working.result()
