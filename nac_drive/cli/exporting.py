"""The command that writes a driver to one file: export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

import nac_drive as nd
from nac_drive.envs import Control


@dataclass(frozen=True)
class Export:
    """Write one step of a driver, (frame, dt, state) -> (action, state), to one file that needs no nac-drive to run."""

    out: Path
    """The new file: `.onnx` for onnxruntime and `--driver`, `.pt2` for `torch.export.load`."""
    driver: str = "champion"
    """The driver: champion, expert, or the folder of a driver or run."""
    control: Control | None = None
    """Control of a shipped driver; a cloned driver knows its own. pulsed and continuous stand for each other."""

    def run(self, console: Console) -> None:
        """Write the file and print its size."""
        nd.export(self.driver, self.out, control=self.control)
        console.print(f"{self.out}: {self.out.stat().st_size:,} bytes", highlight=False, soft_wrap=True)
