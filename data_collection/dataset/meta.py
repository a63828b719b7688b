"""The origin of a dataset (meta.json) and its rows (episodes.jsonl)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nac_drive.data_collection.dart import NoiseConfig
from nac_drive.data_collection.dataset.episode_file import ROW, DatasetError
from nac_drive.envs import EnvConfig

Row = dict[str, Any]

META_SCHEMA = "nac-drive demonstrations 1"


@dataclass(frozen=True)
class Meta:
    """The origin of demonstrations. A folder is added to only with equal settings."""

    env: EnvConfig
    """The environment: control, frames, length of an episode."""
    driver: str
    """The driver that gives the labels: `expert`, `controller`, the name of a driver's folder, or `own data`."""
    driver_sha256: str
    """SHA-256 of the driver's weights and config; empty for own data."""
    noise: NoiseConfig | None
    """Noise in the executed actions (in a DAgger run: in those of round 0)."""
    seed: int
    """Seed of that noise, and of the mixture policy of a DAgger run."""

    @property
    def simulated(self) -> bool:
        """True if this package simulated the episodes; own data cannot be replayed and has no telemetry."""
        return self.driver_sha256 != ""


def parse_meta(document: Any) -> Meta:
    """Return the settings in the content of a meta.json.

    Raises:
        ValueError, KeyError, TypeError or AttributeError: If it is any other content.
    """
    if document.get("schema") != META_SCHEMA:
        raise ValueError(f"its schema is {document.get('schema')!r}, expected {META_SCHEMA!r}")
    noise = document["noise"]
    return Meta(
        EnvConfig(**document["env"]), document["driver"], document["driver_sha256"],
        NoiseConfig(**noise) if noise else None, document["seed"],
    )  # fmt: skip


def read_meta(path: Path) -> Meta:
    """Return the settings in a meta.json.

    Raises:
        DatasetError: If it is missing or any other content.
    """
    try:
        return parse_meta(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(f"{path} is not a dataset's meta.json: {error}; pass the folder of a recording.") from error


def read_rows(path: Path) -> tuple[list[Row], bool]:
    """Return all whole rows, and whether the last one is cut off."""
    *lines, rest = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            missing = [key for key in ROW if key not in row]
        except (ValueError, TypeError):
            missing = ["JSON"]
        if missing:
            raise DatasetError(
                f"{path}, line {number} is not an episode (no {missing[0]}); delete the line and record with --resume."
            )
        rows.append(row)
    return rows, rest != b""
