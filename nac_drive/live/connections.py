"""Connections that end: a client that asks nothing, reads nothing or stays at the end is dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nac_drive.parallel.optional import optional_module


@dataclass(frozen=True)
class Limits:
    """Limits after which a connection is dropped."""

    request: float = 15.0
    """Seconds from the start of an HTTP connection to its end, or to its change into a WebSocket."""
    unread: float = 10.0
    """Seconds that a client may leave unread what was sent to it."""
    goodbye: float = 0.2
    """Seconds that a client has to leave when the server ends."""
    requests: int = 100
    """HTTP connections at a time; a further one drops the oldest."""
    buffered: int = 4 << 20
    """Bytes that may wait for one client."""


def protocols(limits: Limits) -> tuple[Any, Any]:
    """Return uvicorn's protocols of HTTP and of WebSockets with limits.

    Raises:
        ValueError: If uvicorn or websockets is not installed.
    """
    http = optional_module("uvicorn.protocols.http.h11_impl", "live").H11Protocol
    optional_module("websockets", "live")
    sansio = optional_module("uvicorn.protocols.websockets.websockets_sansio_impl", "live").WebSocketsSansIOProtocol
    waiting: dict[Any, Any] = {}
    """HTTP connection -> timer that drops it, the oldest first."""

    def forget(connection: Any) -> None:
        if timer := waiting.pop(connection, None):
            timer.cancel()

    class Http(http):
        """A connection that has asked for nothing, or the page."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            waiting[self] = self.loop.call_later(limits.request, transport.abort)
            if len(waiting) > limits.requests:
                oldest = next(iter(waiting))
                forget(oldest)
                oldest.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            forget(self)
            super().connection_lost(exc)

        def handle_websocket_upgrade(self, event: Any) -> None:
            forget(self)
            super().handle_websocket_upgrade(event)

    class WebSocket(sansio):
        """A connection of a page or a simulator."""

        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            self._unread: Any = None

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.transport.get_write_buffer_size() > limits.buffered:
                self.transport.abort()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = self.loop.call_later(limits.unread, self.transport.abort)

        def resume_writing(self) -> None:
            self._read()
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._read()
            super().connection_lost(exc)

        def shutdown(self) -> None:
            super().shutdown()
            self.loop.call_later(limits.goodbye, self.transport.abort)

        def _read(self) -> None:
            if self._unread:
                self._unread.cancel()

    return Http, WebSocket
