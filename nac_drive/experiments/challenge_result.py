"""The worlds of the challenge, and its result."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from nac_drive.data_collection.dataset.episode_file import file_sha256
from nac_drive.envs import LARGEST_SEED, SPLITS, EnvConfig
from nac_drive.envs.native.build import LIBRARY
from nac_drive.envs.native.check import compiled
from nac_drive.evaluation.metric import TableColumn
from nac_drive.experiments.page import Page
from nac_drive.experiments.table import Table
from nac_drive.parallel.versions import code_sha256, installed_versions
from nac_drive.storage.read import FileError, read_json

VERSION = 1
"""Version of the list of worlds. Results of different versions are not compared."""
SCHEMA = "nac-drive challenge"
TRACKS = SPLITS["challenge"]
"""Tracks of every world, for nothing else."""


@dataclass(frozen=True)
class ChallengeWorld:
    """A world of the challenge."""

    name: str
    perturbation: str | None = None
    environment: str = EnvConfig.environment


WORLDS = (
    ChallengeWorld("clean"),
    ChallengeWorld("noise", "gaussian-noise:2"),
    ChallengeWorld("lost frames", "frame-drop:2:zero"),
    ChallengeWorld("late actions", "action-delay:2"),
    ChallengeWorld("colours", "published-colour:1"),
)
"""Worlds of every result. A driver sees them in the view of its training, from above or from the seat."""
OTHER_ROADS = (ChallengeWorld("MetaDrive", environment="nac_drive/MetaDriveEmpty-v0"),)
"""Worlds of a result where they are installed, and have the frames and the actions of the driver."""
MOST_ELSEWHERE = 100
"""Tracks of each of `OTHER_ROADS`, at most."""

_Number = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
_Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Whole = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_SEED)]


class WorldResult(msgspec.Struct, forbid_unknown_fields=True):
    """The rows of a world."""

    name: str
    environment: str
    perturbation: str | None
    returns: Annotated[list[_Number], msgspec.Meta(min_length=1)]
    """In the order of the seeds."""
    lengths: list[_Whole]
    """Decisions of each episode."""


class TableRow(msgspec.Struct, forbid_unknown_fields=True):
    """A world in numbers."""

    name: str
    mean: _Number
    half_width: _Number
    """Half the width of the 95 % interval of the mean, 1.96 standard errors."""
    sd: _Number
    minimum: _Number
    below_800: _Whole
    """Episodes under 800."""


class ChallengeDriver(msgspec.Struct, forbid_unknown_fields=True):
    """The driver of a result."""

    name: str
    sha256: _Sha256
    """See `driver_hash`."""
    env: dict[str, Any]
    """Its view, size, control and status bar."""


class ChallengeResult(msgspec.Struct, forbid_unknown_fields=True):
    """The content of a result file."""

    schema: str
    version: int
    official: bool
    """Whether all tracks were driven."""
    driver: ChallengeDriver
    seeds: Annotated[list[_Whole], msgspec.Meta(min_length=1)]
    """Seeds of the tracks of every world."""
    code: dict[str, str]
    """Version of the package, SHA-256 of its files, and of the compiled simulator."""
    versions: dict[str, str]
    """Versions of the libraries."""
    machine: dict[str, str]
    worlds: list[WorldResult]
    left_out: dict[str, str]
    """World -> reason."""
    table: list[TableRow]
    score: _Number
    """Mean return over the worlds of `WORLDS`."""
    sha256: _Sha256
    """Digest of all else."""

    def __repr__(self) -> str:
        kind = "" if self.official else f", a rehearsal on {len(self.seeds)} tracks"
        return f"ChallengeResult({self.driver.name}: score {self.score:.1f}{kind})"

    def _repr_html_(self) -> str:
        return challenge_table(self).html()


def table_row(world: WorldResult) -> TableRow:
    """Return a world in numbers. Sums are exact, so that every machine has the same."""
    returns, count = world.returns, len(world.returns)
    mean = math.fsum(returns) / count
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in returns) / (count - 1)) if count > 1 else 0.0
    half_width = 1.96 * sd / math.sqrt(count)
    return TableRow(world.name, mean, half_width, sd, min(returns), sum(value < 800 for value in returns))


def score_of(table: Sequence[TableRow]) -> float:
    """Return the mean return over the worlds of every result."""
    return math.fsum(row.mean for row in table[: len(WORLDS)]) / len(WORLDS)


def digest_of(result: ChallengeResult) -> str:
    """Return the SHA-256 of a result without its digest."""
    content = {name: value for name, value in plain_result(result).items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def plain_result(result: ChallengeResult) -> dict[str, Any]:
    """Return a result as plain values, for a JSON file."""
    return json.loads(json.dumps(msgspec.to_builtins(result)))


def code_identity() -> dict[str, str]:
    """Return what identifies the package's code."""
    simulator = "gymnasium" if compiled() is None else file_sha256(LIBRARY)
    return {"version": installed_versions().get("nac-drive", ""), "sha256": code_sha256(), "simulator": simulator}


def read_challenge(path: str | os.PathLike[str]) -> ChallengeResult:
    """Read a result file.

    Raises:
        FileError: If it is missing, or no result.
    """
    fix = "pass a file that `nac-drive challenge` wrote"
    result = read_json(path, ChallengeResult, "a result of the challenge", fix)
    if (result.schema, result.version) != (SCHEMA, VERSION):
        raise FileError(
            f"{path} is a result of {result.schema[:80]!r}, version {result.version}, expected {SCHEMA!r}, version "
            f"{VERSION}; install the nac-drive that wrote it."
        )
    return result


def challenge_table(result: ChallengeResult) -> Table:
    """Return the worlds of a result as a table."""
    columns: list[Any] = [
        TableColumn("world", lambda row: row.name),
        TableColumn("return", lambda row: f"{row.mean:.1f} ± {row.half_width:.1f}"),
        TableColumn("sd", lambda row: f"{row.sd:.1f}"),
        TableColumn("minimum", lambda row: f"{row.minimum:.1f}"),
        TableColumn("below 800", lambda row: str(row.below_800)),
    ]
    return Table.of(columns, result.table, "± is half of the 95 % interval of the mean over tracks.")


def challenge_page(result: ChallengeResult) -> Page:
    """Return the page of a result."""
    kind = "" if result.official else " This is a rehearsal, and not official."
    left_out = "".join(f" Left out: {name} ({reason})." for name, reason in result.left_out.items())
    return Page(
        f"Challenge {result.version}: {result.driver.name}",
        f"{result.driver.name} drove {len(result.seeds):,} tracks of each world, deterministically, in the view "
        f"{result.driver.env['view']!r}.{kind}{left_out}",
        challenge_table(result),
        headline=f"{result.driver.name} scores {result.score:.1f}, the mean return over {len(WORLDS)} worlds.",
    )
