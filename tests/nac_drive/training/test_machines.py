"""Machines that train together meet first.

A wait can be ended.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nac_drive.events import silent
from nac_drive.training.machines import meet_machines
from tests.commands import call

MEET = """import signal, sys
from nac_drive.parallel.signals import Ended, signals_raised
from nac_drive.training.machines import meet_machines
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
try:
    with signals_raised():
        meet_machines({}, lambda event: print(event.note, flush=True))
except Ended as end:
    sys.exit(end.exit_status)
"""
pytestmark = pytest.mark.timeout(1200)
"""Ends a test that hangs; no test waits for a time."""


@pytest.fixture
def port() -> int:
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


@contextmanager
def machine(node: int, nodes: int, port: int) -> Iterator[subprocess.Popen[str]]:
    """Start a process as the command of a machine."""
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": str(node)}
    words = [sys.executable, "-c", MEET.format(nodes)]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def knock(port: int) -> socket.socket:
    """Return a connection as soon as the first machine listens."""
    while True:
        with suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port))
        time.sleep(0.05)


def test_machines_go_on_when_all_are_there(port):
    with machine(1, 3, port) as second, machine(0, 3, port) as first:
        assert first.stdout
        assert first.stdout.readline() == f"waiting for 3 machines at 127.0.0.1:{port}, this is NODE_RANK 0\n"
        with knock(port) as stranger:
            stranger.sendall(b"7")
            time.sleep(0.2)
            assert (first.poll(), second.poll()) == (None, None)
            with machine(2, 3, port) as third:
                assert [each.wait() for each in (first, second, third)] == [0, 0, 0]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("node", [0, 1])
def test_a_wait_ends_at_a_signal(node, number, status, port):
    with machine(node, 2, port) as alone:
        assert alone.stdout
        alone.stdout.readline()
        alone.send_signal(number)
        assert alone.wait() == status


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "MASTER_ADDR and MASTER_PORT name no machine, got '' and ''; start the command on every machine with MAS"),
        ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"}, "name no machine, got '127.0.0.1' and 'x'"),
        ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "NODE_RANK": "2"}, "NODE_RANK must be 0 to 1 .* got '2'"),
        ({"MASTER_PORT": "29500", "NODE_RANK": "0"}, "MASTER_ADDR a host, got '0' and ''"),
    ],
)
def test_where_the_first_machine_is_must_be_said(variables, message, monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        meet_machines(2, silent)


@pytest.mark.parametrize("variables", [{"RANK": "1"}, {"LOCAL_RANK": "1"}])
def test_processes_that_were_started_for_a_machine_do_not_meet_again(variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    meet_machines(2, silent)


def test_a_port_that_is_taken_is_named(port, monkeypatch):
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("", port)), pytest.raises(ValueError, match=f"MASTER_PORT {port} cannot be used"):
        meet_machines(2, silent)


def test_a_command_without_the_variables_makes_no_folder(dataset, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    words = ("train", str(dataset.path), "--out", str(tmp_path / "run"), "--core", "cnn", "--epochs", "1")
    assert call(*words, "--batch-size", "2", "--nodes", "2", "--device", "cpu", "--workers", "1") == 2
    assert "nodes: MASTER_ADDR and MASTER_PORT name no machine" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
