"""Abuse of a live race: frames, memory and the end of the arena under pages and clients that misbehave.

python benchmarks/abuse.py                  # eight minutes; docs/runs/abuse.json and a table
python benchmarks/abuse.py --seconds 10     # a short look

The server runs in its own process with four drivers. One page counts the frames that it gets: alone, and beside
every kind of abuse in turn, and beside all of them at once. The machine may have other work, so a phase without abuse
stands before and after every phase with it, and the ratio of the two is the result. Memory is the resident set of the
server; its slope is the slope of a line through the samples of a phase, with the 95 % interval of Student's t over 20
blocks. At the end of the last phase, amid the abuse, the server gets SIGTERM. Linux only, on the loopback address.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table
from scipy import stats
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect
from websockets.typing import Origin

from nac_drive.envs import PERTURBATIONS
from nac_drive.storage.write import write_atomically

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "docs/runs/abuse.json"
DRIVERS = ("champion", "ppo-expert", "controller", "human")
RATE = 45
"""Messages a second of a page; its limit is 240."""
BLOCKS = 20
Stop = threading.Event


@dataclass
class Options:
    """Durations."""

    seconds: float = 60.0
    """Of every phase with abuse."""
    beside: float = 15.0
    """Of the phases without abuse before and after it."""
    warm_up: float = 40.0
    """Of the abuse before the first phase, in which memory grows to what four drivers and their tracks need."""


@contextmanager
def server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and the address of an arena."""
    command = [sys.executable, "-c", "from nac_drive.cli.main import main; raise SystemExit(main())"]
    arguments = ["arena", "--drivers", *DRIVERS, "--port", "0"]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        yield process, process.stdout.readline().split()[1]
    finally:
        process.kill()
        process.wait()


def page(address: str) -> Any:
    """Open a page."""
    url, origin = f"ws{address.removeprefix('http')}/race", Origin(address)
    return connect(url, origin=origin, max_size=None, compression=None)


class Watcher(threading.Thread):
    """A page that behaves, and counts its frames. It starts the next track when the race is over."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._link = page(address)
        self._link.send(json.dumps({"type": "pause", "on": False}))  # a person drives too
        self.frames, self.longest, self._last = 0, 0.0, time.monotonic()

    def run(self) -> None:
        track = 900_001
        with suppress(WebSocketException, OSError):
            while True:
                data = self._link.recv()
                if not isinstance(data, bytes):
                    continue
                now = time.monotonic()
                self.frames, self.longest, self._last = self.frames + 1, max(self.longest, now - self._last), now
                if json.loads(data[4 : 4 + int.from_bytes(data[:4], "little")])["over"]:
                    track += 1
                    self._link.send(json.dumps({"type": "restart", "track": track}))


def mixed_orders(address: str, stop: Stop, seed: int) -> None:
    """Send every kind of order but those that change the rate of frames: pause, step and speed."""
    rng = random.Random(seed)
    kinds: list[Callable[[], dict[str, Any]]] = [
        lambda: {"type": "restart"},
        lambda: {"type": "restart", "track": rng.randrange(10_000)},
        lambda: {"type": "add", "driver": rng.choice(DRIVERS)},
        lambda: {"type": "remove", "car": rng.randrange(4)},
        lambda: {"type": "driver", "car": rng.randrange(4), "driver": rng.choice(DRIVERS)},
        lambda: {"type": "perturb", "name": rng.choice(list(PERTURBATIONS)), "level": rng.randrange(3)},
        lambda: {"type": "blind", "car": rng.randrange(4), "on": rng.random() < 0.5},
        lambda: {"type": "zero", "car": rng.randrange(4), "group": "output", "index": rng.randrange(20), "on": True},
        lambda: {"type": "saliency", "on": rng.random() < 0.5},
        lambda: {"type": "controls", "steer": rng.uniform(-1, 1), "gas": 1, "brake": 0},
        lambda: {"type": "shout"},
    ]
    with suppress(WebSocketException, OSError), page(address) as link:
        reader = threading.Thread(target=_read, args=(link,), daemon=True)
        reader.start()
        while not stop.wait(1 / RATE):
            link.send(json.dumps(rng.choice(kinds)()))


def restarts(address: str, stop: Stop, seed: int) -> None:
    """Send 600 restarts in ten seconds, again and again."""
    with suppress(WebSocketException, OSError), page(address) as link:
        reader = threading.Thread(target=_read, args=(link,), daemon=True)
        reader.start()
        while not stop.wait(1 / 60):
            link.send(json.dumps({"type": "restart", "track": 900_000 + seed}))


def _read(link: Any) -> None:
    with suppress(WebSocketException, OSError):
        while True:
            link.recv()


def _connection(address: str, lines: bytes) -> socket.socket:
    port = int(address.rpartition(":")[2])
    link = socket.create_connection(("127.0.0.1", port))
    link.sendall(b"GET /race HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % port + lines)
    return link


def never_reads(address: str, stop: Stop, seed: int) -> None:
    """Open pages that never read; a page that is dropped comes again."""
    lines = (
        f"Origin: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    ).encode()
    _held(lambda: _connection(address, lines), 20, stop)


def half_open(address: str, stop: Stop, seed: int) -> None:
    """Hold 200 half requests; one that is dropped comes again."""
    _held(lambda: _connection(address, b""), 200, stop)


def _held(connection: Callable[[], socket.socket], count: int, stop: Stop) -> None:
    links: list[socket.socket] = []
    while not stop.wait(0.5):
        links = [link for link in links if not _dropped(link)]
        with suppress(OSError):
            while len(links) < count:
                links.append(connection())
    for link in links:
        link.close()


def _dropped(link: socket.socket) -> bool:
    """Whether the server has ended a connection; nothing is read from it."""
    state = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    if state == 1:  # established
        return False
    link.close()
    return True


Abuse = Callable[[str, Stop, int], None]
PHASES: dict[str, list[Abuse]] = {
    "two pages with 45 mixed orders a second": [mixed_orders, mixed_orders],
    "a page with 60 restarts a second": [restarts],
    "20 pages that never read": [never_reads],
    "200 half requests": [half_open],
    "all of them": [mixed_orders, mixed_orders, restarts, never_reads, half_open],
}


def measure(process: subprocess.Popen[str], watcher: Watcher, seconds: float) -> dict[str, Any]:
    """Count frames and take the memory for some seconds."""
    watcher.longest, began, frames = 0.0, time.monotonic(), watcher.frames
    samples: list[tuple[float, float]] = []
    while (now := time.monotonic() - began) < seconds:
        status = Path(f"/proc/{process.pid}/status").read_text()
        resident = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))
        samples.append((now, resident))
        time.sleep(0.2)
    rate = (watcher.frames - frames) / (time.monotonic() - began)
    longest = max(watcher.longest, time.monotonic() - watcher._last)
    return {"frames_per_second": rate, "longest_gap": longest, "load": os.getloadavg()[0], "memory": samples}


def _cpu_seconds(process: subprocess.Popen[str]) -> float:
    """CPU time of a process that lives, to 10 ms."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def slope(samples: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the slope of memory in MB a minute, and half of its 95 % interval; the first fifth is left out."""
    blocks = np.array_split(np.array(samples[len(samples) // 5 :]), BLOCKS)
    x, y = np.array([block.mean(axis=0) for block in blocks]).T
    line: Any = stats.linregress(x / 60, y)
    error = line.stderr if np.ptp(y) else 0.0  # not a page more or less
    return float(line.slope), float(stats.t.ppf(0.975, BLOCKS - 2) * error)


@contextmanager
def abused(abuses: list[Abuse], address: str) -> Iterator[None]:
    """Let clients misbehave."""
    stop = Stop()
    threads = [threading.Thread(target=abuse, args=(address, stop, seed)) for seed, abuse in enumerate(abuses)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def main(options: Options) -> None:
    """Measure all phases, and write and print the results."""
    result: dict[str, Any] = {"command": "python benchmarks/abuse.py", "drivers": DRIVERS, "phases": {}}
    with server() as (process, address):
        watcher = Watcher(address)
        watcher.start()
        with abused([mixed_orders, mixed_orders], address):
            time.sleep(options.warm_up)
        before = measure(process, watcher, options.beside)
        for name, abuses in PHASES.items():
            with abused(abuses, address):
                during = measure(process, watcher, options.seconds)
                if name == list(PHASES)[-1]:
                    began, cpu = time.monotonic(), _cpu_seconds(process)
                    process.send_signal(signal.SIGTERM)
                    watcher.join()
                    result["seconds_to_the_end_of_pages"] = time.monotonic() - began
                    result["exit_status"] = process.wait()
                    result["seconds_to_the_end_of_the_process"] = time.monotonic() - began
                    used = resource.getrusage(resource.RUSAGE_CHILDREN)
                    result["cpu_seconds_to_the_end"] = used.ru_utime + used.ru_stime - cpu
                    result["stderr"] = process.stderr.read() if process.stderr else ""
            after = before
            if process.poll() is None:
                time.sleep(2)
                after = measure(process, watcher, options.beside)
            result["phases"][name] = {"before": before, "during": during, "after": after}
            before = after
            print(name, {key: value for key, value in during.items() if key != "memory"}, flush=True)
    write_atomically(RESULT, (json.dumps(result) + "\n").encode())
    table = Table("abuse", "frames/s without", "with", "ratio", "longest gap, s", "memory, MB/min (95 %)", "load")
    for name, phase in result["phases"].items():
        alone = (phase["before"]["frames_per_second"] + phase["after"]["frames_per_second"]) / 2
        during = phase["during"]
        line, half = slope(during["memory"])
        table.add_row(
            name, f"{alone:.1f}", f"{during['frames_per_second']:.1f}", f"{during['frames_per_second'] / alone:.2f}",
            f"{during['longest_gap']:.2f}", f"{line:+.1f} ± {half:.1f}", f"{during['load']:.1f}",
        )  # fmt: skip
    Console(width=140).print(table)
    pages, end = (result[f"seconds_to_the_end_of_{what}"] for what in ("pages", "the_process"))
    print(
        f"SIGTERM amid all of them: pages closed after {pages:.2f} s, the process has ended after {end:.2f} s "
        f"({result['cpu_seconds_to_the_end']:.2f} s of CPU)"
    )
    print(f"stderr: {result['stderr']!r}")


if __name__ == "__main__":
    main(tyro.cli(Options))
