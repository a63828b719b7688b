"""Datasets for other programs: Minari, LeRobot, and videos."""

from typing import Literal

ExportFormat = Literal["minari", "lerobot", "mp4"]
