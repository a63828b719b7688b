"""A process of its own for MetaDrive.

MetaDrive bears one engine in a process, so an environment drives in a process of its own. When it is closed, the
process waits for the next environment with the same settings, as a start takes seconds. It ends with the process that
started it.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import traceback
from contextlib import suppress
from dataclasses import astuple
from typing import Any, BinaryIO

from nac_drive.envs.metadrive.simulator import Settings, Simulator
from nac_drive.envs.metadrive.situation import RoadMap, Situation

_SIZE = 8
"""Bytes of the length before every message."""


class SimulatorProcess:
    """A `Simulator` in a process of its own.

    Args:
        settings: Roads and traffic.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.owner, self.broken = settings, os.getpid(), False
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,  # Ctrl-C is for the process that started it
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        self._call("begin", *astuple(settings))

    def reset(self, seed: int) -> tuple[RoadMap, Situation]:
        """Begin an episode, see `Simulator.reset`."""
        return self._call("reset", seed)

    def step(self, steering: float, pedal: float) -> Situation:
        """Advance by a tenth of a second, see `Simulator.step`."""
        return self._call("step", steering, pedal)

    def advice(self, expert: str) -> tuple[float, float]:
        """Return an expert's choice, see `Simulator.advice`."""
        return self._call("advice", expert)

    def end(self) -> None:
        """End the process. Its last answer may not have been read."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        self._process.wait()

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call the simulator.

        Raises:
            RuntimeError: It raised an error.
            ChildProcessError: The process has ended, or an earlier call failed or was interrupted.
        """
        if self.broken:
            raise ChildProcessError(
                "a call of MetaDrive failed or was interrupted; close this environment, make another."
            )
        self.broken = True  # until its answer is here: what interrupts the call leaves the answer in the pipe
        sending, receiving = self._process.stdin, self._process.stdout
        assert sending is not None
        assert receiving is not None
        try:
            _send(sending, (method, arguments))
            result, error = _receive(receiving)
        except (OSError, EOFError):
            raise ChildProcessError(
                "the process of MetaDrive ended; it may lack memory: run fewer at a time, with --workers."
            ) from None
        if error:
            raise RuntimeError(f"MetaDrive raised {error}")
        self.broken = False
        return result


_idle: list[SimulatorProcess] = []
"""Processes without an environment."""


def take(settings: Settings) -> SimulatorProcess:
    """Return a process with these settings that no environment has."""
    for waiting in _idle:
        if waiting.settings == settings and waiting.owner == os.getpid():
            _idle.remove(waiting)
            return waiting
    return SimulatorProcess(settings)


def give_back(process: SimulatorProcess) -> None:
    """Let the next environment have a process.

    One whose last call failed ends.
    """
    if process.broken:
        process.end()
    else:
        _idle.append(process)


@atexit.register
def _end_idle() -> None:
    while _idle:
        process = _idle.pop()
        if process.owner == os.getpid():
            process.end()


def _send(stream: BinaryIO | Any, message: Any) -> None:
    content = pickle.dumps(message)
    stream.write(len(content).to_bytes(_SIZE, "little") + content)
    stream.flush()


def _receive(stream: BinaryIO | Any) -> Any:
    """Return a message.

    Raises:
        EOFError: The other side has ended.
    """
    size = stream.read(_SIZE)
    if len(size) < _SIZE:
        raise EOFError
    return pickle.loads(stream.read(int.from_bytes(size, "little")))


def main() -> None:
    """Serve the other process until it closes the pipe."""
    receiving, sending = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # prints are no messages
    simulator: Simulator | None = None
    while True:
        try:
            method, arguments = _receive(receiving)
        except EOFError:
            return
        result, error = None, ""
        try:
            if method == "begin":
                simulator = Simulator(Settings(*arguments))
            else:
                result = getattr(simulator, method)(*arguments)
        except Exception as cause:
            frame = traceback.extract_tb(cause.__traceback__)[-1]
            error = f"{type(cause).__name__}: {cause} ({os.path.basename(frame.filename)}:{frame.lineno})"
        _send(sending, (result, error))


if __name__ == "__main__":
    main()
