"""Access to a live server: hosts, origins and refusals."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Collection
from ipaddress import ip_address
from typing import Any

LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
_REASON_BYTES = 123
"""Bytes of the reason in a WebSocket's closing frame (RFC 6455, 5.5)."""
_TRY_AGAIN, _POLICY = 1013, 1008
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:/?#@\[\]]+))(?::\d{1,5})?", re.IGNORECASE)


def answered_hosts(host: str) -> Collection[str] | None:
    """Return the host names that a server answers to.

    Args:
        host: The address that it listens on.

    Returns:
        Names of this machine alone where only this machine reaches the address; None, for all names, otherwise.
    """
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
        local = all(ip_address(address.partition("%")[0]).is_loopback for address in addresses)
    except (OSError, ValueError):
        local = False
    return LOCAL_HOSTS | {host.lower()} if local else None


def refusal(
    headers: Collection[tuple[bytes, bytes]], hosts: Collection[str] | None, *, websocket: bool, pages: bool
) -> str | None:
    """Return the reason to refuse a request. None for a good one.

    A browser names the origin of the page that opens a WebSocket. A program may name none.

    Args:
        headers: Names in lower case, and values.
        hosts: See `answered_hosts`.
        websocket: Whether it opens a WebSocket.
        pages: Whether only pages of this server may open one, and no other program.
    """
    named = [value.decode("latin-1") for name, value in headers if name == b"host"]
    match = _HOST.fullmatch(named[0]) if len(named) == 1 else None
    if match is None or (hosts is not None and (match[1] or match[2]).lower() not in hosts):
        return "the request is for another host"
    if not websocket:
        return None
    origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
    if not origins and not pages:
        return None
    own = {f"{scheme}://{named[0]}" for scheme in ("http", "https")}
    return None if len(origins) == 1 and origins[0] in own else "the page must come from this server"


def guarded(app: Any, hosts: Collection[str] | None, *, pages: bool, most_sockets: int = 64) -> Any:
    """Return an ASGI application with a check of every request.

    A foreign page that a browser has open cannot reach the application, under whatever name.

    Args:
        app: The application.
        hosts: See `answered_hosts`.
        pages: See `refusal`.
        most_sockets: WebSockets that may be open at a time.
    """
    sockets = 0

    async def guard(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sockets
        websocket = scope["type"] == "websocket"
        if not websocket and scope["type"] != "http":
            await app(scope, receive, send)
            return
        reason, code = refusal(scope["headers"], hosts, websocket=websocket, pages=pages), _POLICY
        if websocket and sockets >= most_sockets:
            reason, code = f"{most_sockets} pages are open already", _TRY_AGAIN
        if reason is None:
            sockets += websocket
            try:
                await app(scope, receive, send)
            finally:
                sockets -= websocket
        elif websocket:
            await send({"type": "websocket.close", "code": code, "reason": reason})
        else:
            plain = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 400, "headers": plain})
            await send({"type": "http.response.body", "body": f"{reason}\n".encode()})

    return guard


async def close(send: Callable[..., Any], reason: str) -> None:
    """Close a WebSocket with a reason.

    Args:
        send: `close` of the socket.
        reason: One line.
    """
    await send(code=_POLICY, reason=cut(reason))


def cut(reason: str) -> str:
    """Cut a reason to the length of a WebSocket's closing frame."""
    return reason.encode(errors="replace")[:_REASON_BYTES].decode(errors="ignore")
