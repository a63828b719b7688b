"""Commands that serve a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

import nac_drive as nd
from nac_drive.cli.typed import typed
from nac_drive.envs import SPLITS, Control


@dataclass(frozen=True)
class Arena:
    """Watch up to four drivers on one track in a browser, disturb them, and take the wheel."""

    drivers: tuple[str, ...] = ("champion",)
    """Drivers by name, folder or file, such as champion runs/mine mine.py:drive human; human is the person at the
    page."""
    track: int = SPLITS["test"][0]
    """Seed of the track."""
    control: Control = "continuous"
    """Control of the person, of shipped drivers and the controller; a cloned driver knows its own."""
    host: str = "127.0.0.1"
    """Address to listen on. With the default only this machine reaches the page; 0.0.0.0 lets every machine of the
    network drive."""
    port: int = 8765
    """Port to listen on; 0: any free one."""
    record: Path | None = None
    """Dataset folder for the episodes that a person drives; it is made, or added to."""
    until_left: bool = False
    """End when the last page is closed."""
    open: bool = False
    """Open the page in the browser."""

    def run(self, console: Console) -> None:
        nd.arena(
            [typed(driver) for driver in self.drivers], self.track, control=self.control, host=self.host,
            port=self.port, record=self.record, until_left=self.until_left, open_browser=self.open,
            on_ready=lambda address: console.print(f"arena: {address}  (Ctrl-C ends it)", highlight=False),
        )  # fmt: skip


@dataclass(frozen=True)
class ServeUdacity:
    """Drive the Udacity simulator, which connects to this server in autonomous mode."""

    driver: str
    """Folder of a driver or run that was trained on a dataset of `dataset import-udacity`."""
    speed: float | None = None
    """Speed that is held, in the simulator's miles per hour; None leaves the pedals to the driver."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 4567
    """Port to listen on; the simulator connects to 4567."""

    def run(self, console: Console) -> None:
        nd.serve_udacity(
            self.driver, speed=self.speed, host=self.host, port=self.port,
            on_ready=lambda address: console.print(f"waiting for the simulator at {address}", highlight=False),
        )  # fmt: skip
