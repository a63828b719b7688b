"""What is said where no Ray cluster is."""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest

from nac_drive.parallel.cluster import ClusterError
from nac_drive.parallel.processes import worker_pool


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("127.0.0.1:{port}", r"does not answer .*; start one with `ray start --head`"),
        ("ray://127.0.0.1:{port}", r"does not answer"),
        ("somewhere", r"^cluster must be auto, HOST:PORT or ray://HOST:PORT, got 'somewhere'"),
        ("", r"^cluster must be auto"),
        ("host:99999", r"^cluster must be auto"),
    ],
)
def test_a_cluster_that_is_not_there_is_one_line(wrong, message):
    pytest.importorskip("ray").shutdown()
    with pytest.raises(ClusterError, match=message) as caught, worker_pool(1, wrong.format(port=free_port())):
        pass
    assert "\n" not in str(caught.value)


def test_auto_starts_no_cluster(monkeypatch):
    ray = pytest.importorskip("ray")

    def refuse_connection(address: str, **_: Any) -> None:
        assert address == "auto"
        raise ConnectionError("none\nhere")

    monkeypatch.setattr(ray, "init", refuse_connection)
    with (
        pytest.raises(
            ClusterError, match=r"^cluster auto: no Ray cluster was found; start one with `ray start --head`"
        ),
        worker_pool(1, "auto"),
    ):
        pass


def test_without_ray_the_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    message = r"^ray is not installed; run `pip install 'nac-drive\[cluster\]'"
    with pytest.raises(ValueError, match=message), worker_pool(1, "auto"):
        pass
