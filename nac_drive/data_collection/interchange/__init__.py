"""Datasets for other programs: Minari, LeRobot, videos, donkeycar."""

from typing import Literal

ExportFormat = Literal["minari", "lerobot", "mp4", "tub"]
