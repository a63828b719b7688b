"""Machines that train together meet before anything is made.

torch would wait for them, too, but in C++, where neither Ctrl-C nor SIGTERM reaches Python.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack, suppress

from nac_drive.events import Progress, message
from nac_drive.training.main_process import is_first_here

_GO = b"go"
_PATIENCE = 1.0
"""Seconds between two attempts, and for the first word of a connection."""
_FIX = "start the command on every machine with MASTER_ADDR, MASTER_PORT and NODE_RANK (docs/scale.md)"


def meet_machines(nodes: int, progress: Progress) -> None:
    """Wait until the command runs on every machine.

    Nothing is awaited for one machine, under torchrun, which does so itself, and in a process that the command of this
    machine has started.

    Args:
        nodes: Number of machines.
        progress: Called with one message.

    Raises:
        ValueError: A variable that says where the first machine is, or which one this is, is missing or wrong.
    """
    if nodes == 1 or "RANK" in os.environ or not is_first_here():
        return
    host, port, node = _place(nodes)
    progress(message("nodes", f"waiting for {nodes} machines at {host}:{port}, this is NODE_RANK {node}"))
    if node == 0:
        _welcome(port, nodes - 1)
    else:
        _arrive(host, port, node)


def _place(nodes: int) -> tuple[str, int, int]:
    """Return where the first machine is, and this one's number."""
    host, port, node = (os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK"))
    try:
        socket.getaddrinfo(host or None, int(port))
    except (OSError, ValueError, OverflowError):
        raise ValueError(
            f"nodes: MASTER_ADDR and MASTER_PORT name no machine, got {host!r} and {port!r}; {_FIX}."
        ) from None
    if not host or node not in map(str, range(nodes)):
        raise ValueError(
            f"nodes: NODE_RANK must be 0 to {nodes - 1} and MASTER_ADDR a host, got {node!r} and {host!r}; {_FIX}."
        )
    return host, int(port), int(node)


def _welcome(port: int, others: int) -> None:
    """Let the others go when all of them are there.

    One that is started again takes its former place.
    """
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        server = socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise ValueError(f"nodes: MASTER_PORT {port} cannot be used: {error.strerror}; choose another.") from None
    with ExitStack() as open_ones, server:
        expected = {str(node).encode() for node in range(1, others + 1)}
        arrived: dict[bytes, socket.socket] = {}
        while len(arrived) < others:
            connection = open_ones.enter_context(server.accept()[0])
            connection.settimeout(_PATIENCE)
            with suppress(OSError):
                if (node := connection.recv(8)) in expected:  # and no stranger
                    arrived[node] = connection
        for connection in arrived.values():
            with suppress(OSError):
                connection.sendall(_GO)


def _arrive(host: str, port: int, node: int) -> None:
    """Wait for the first machine's word."""
    while True:
        with suppress(OSError), socket.create_connection((host, port), _PATIENCE) as connection:
            connection.sendall(str(node).encode())
            connection.settimeout(None)
            if connection.recv(len(_GO)) == _GO:
                return
        time.sleep(_PATIENCE)
