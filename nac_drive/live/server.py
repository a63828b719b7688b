"""A web server of one application, with a callback once it answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from nac_drive.data_collection.optional import optional_module


def make_server(app: Any, host: str, port: int, largest_message: int) -> Any:
    """Return uvicorn's server of an ASGI application; its `should_exit` ends it.

    Args:
        app: The application.
        host: Address to listen on.
        port: Port to listen on; 0 lets the system choose.
        largest_message: Bytes of a message to its WebSockets; a larger one ends the connection.

    Raises:
        ValueError: If uvicorn or websockets is not installed.
    """
    uvicorn = optional_module("uvicorn", "live")
    optional_module("websockets", "live")
    config = uvicorn.Config(
        app, host, port, log_level="error", ws="websockets-sansio", ws_max_size=largest_message
    )  # fmt: skip
    return uvicorn.Server(config)


def serve(
    server: Any, on_ready: Callable[[str], None], beside: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> None:
    """Run a server of `make_server` until it ends.

    Args:
        server: The server.
        on_ready: Called with its address once it answers.
        beside: Work that runs as long as the server does. An error in it ends the server and is raised.

    Raises:
        ValueError: If the address cannot be listened on.
    """
    with _listening(server.config.host, server.config.port) as listener:
        asyncio.run(_serve(server, listener, on_ready, beside))


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ValueError(
            f"host and port: {host} {port} cannot be listened on ({error.strerror or error}); another program may have "
            "the port, choose another one."
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
        on_ready(f"http://{server.config.host}:{listener.getsockname()[1]}")
    if working:
        await asyncio.wait((serving, working), return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
    await serving
    if working and not working.cancel():
        working.result()
