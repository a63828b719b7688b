"""The origin of a dataset: meta.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from nac_drive.data_collection.dart import NoiseConfig
from nac_drive.data_collection.dataset.limits import LONGEST_EPISODE, DatasetError
from nac_drive.data_collection.dataset.rows import WholeNumber
from nac_drive.envs import LARGEST_SEED, EnvConfig
from nac_drive.storage.read import FileError, read_json
from nac_drive.storage.write import flatten

T = TypeVar("T")

META = "meta.json"
META_SCHEMA = "nac-drive demonstrations 1"


@dataclass(frozen=True)
class Meta:
    """The origin of demonstrations. A folder is added to only with equal settings.

    Raises:
        ValueError: If episodes are longer than `LONGEST_EPISODE`, the seed is out of range, or the driver's name is no
            line of text.
    """

    env: EnvConfig
    """The environment: control, frames, length of an episode."""
    driver: str
    """The driver that gives the labels: `expert`, `controller`, the name of a driver's folder, or `own data`."""
    driver_sha256: str
    """SHA-256 of the driver's weights and config; empty for own data."""
    noise: NoiseConfig | None
    """Noise in the executed actions (in a DAgger run: in round 0)."""
    seed: int
    """Seed of that noise, and of the mixture policy of a DAgger run."""

    def __post_init__(self) -> None:
        if self.env.max_steps > LONGEST_EPISODE:
            raise ValueError(f"max_steps of a dataset must be at most {LONGEST_EPISODE:,}, got {self.env.max_steps:,}.")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise ValueError(f"seed must lie in 0 to {LARGEST_SEED} (2^63 - 1), got {self.seed}.")
        if not (self.driver.isprintable() and len(self.driver) <= 255):
            raise ValueError(
                f"the driver's name must be one line of up to 255 characters, got {self.driver[:300]!r}; rename it."
            )

    def document(self) -> dict[str, Any]:
        """Return the content of a meta.json."""
        return asdict(self)

    @property
    def simulated(self) -> bool:
        """True if this package simulated the episodes. Own data cannot be replayed and has no telemetry."""
        return self.driver_sha256 != ""

    @property
    def repair(self) -> str:
        """The advice for a missing or damaged file."""
        return "record it again with --resume" if self.simulated else "restore it, or write the dataset again"


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    """The content of a meta.json."""

    schema: str
    env: dict[str, Any]
    driver: str
    driver_sha256: str
    noise: dict[str, Any] | None
    seed: WholeNumber
    versions: dict[str, str] = {}


def parse_meta(document: Any) -> Meta:
    """Return the settings in the content of a meta.json.

    Raises:
        ValueError or TypeError: If it is any other content.
    """
    schema = document.get("schema") if isinstance(document, dict) else document
    if schema != META_SCHEMA:
        raise ValueError(f"its schema is {str(schema)[:100]!r}, expected {META_SCHEMA!r}")
    content = msgspec.convert(document, _Document)
    if unknown := sorted(content.env.keys() - {item.name for item in fields(EnvConfig)}):
        raise ValueError(f"its env has the settings {unknown}, so another, perhaps an older version recorded it")
    env = _settings(EnvConfig, content.env)
    noise = None if content.noise is None else _settings(NoiseConfig, content.noise)
    return Meta(env, content.driver, content.driver_sha256, noise, content.seed)


def _settings(kind: type[T], values: dict[str, Any]) -> T:
    """Return a config.

    msgspec checks the types of its fields, the config itself their names and ranges.
    """
    msgspec.convert(values, kind)
    return kind(**values)


def read_meta(path: Path) -> tuple[Meta, dict[str, str]]:
    """Return the settings and versions in a meta.json.

    The versions are the packages' that made the dataset.

    Raises:
        DatasetError: If it is missing or any other content.
    """
    fix = "pass the folder of a recording"
    try:
        document = read_json(path, dict[str, Any], "a dataset's meta.json", fix)
        return parse_meta(document), document.get("versions", {})
    except FileError as error:
        raise DatasetError(str(error)) from error
    except (ValueError, TypeError) as error:
        raise DatasetError(f"{path} is not a dataset's meta.json: {' '.join(str(error).split())}; {fix}.") from error


def require_same(path: Path, saved: Meta, requested: Meta, fix: str) -> None:
    """Raise DatasetError unless the dataset at `path` has the settings.

    The error names the keys that differ, and advises `fix`.
    """
    here, there = flatten(asdict(saved)), flatten(asdict(requested))
    differences = "; ".join(
        f"{key}: dataset has {here.get(key)!r}, got {there.get(key)!r}"
        for key in sorted(here.keys() | there.keys())
        if here.get(key) != there.get(key)
    )
    if differences:
        raise DatasetError(f"dataset {path} was recorded with other settings ({differences}); {fix}.")
