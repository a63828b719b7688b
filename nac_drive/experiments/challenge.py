"""The challenge: one driver, fixed worlds, a result for others.

RESULT.json holds every return, what was measured with, and hashes. RESULT/ holds the journal of the run and its page.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from nac_drive.data_collection.dataset.episode_file import file_sha256
from nac_drive.data_collection.drivers import (
    AnyDriver,
    accepted,
    driver_hash,
    driver_name,
    env_for,
    resolve_driver,
    sendable,
)
from nac_drive.envs import LARGEST_SEED, SPLITS, Control, EnvConfig, Policy, make_env
from nac_drive.envs.native.build import LIBRARY
from nac_drive.envs.native.check import compiled
from nac_drive.evaluation.evaluate import drive
from nac_drive.evaluation.metrics import TableColumn
from nac_drive.events import Progress, counting
from nac_drive.experiments.driving import Driving, Entry, Episodes, episodes_of
from nac_drive.experiments.experiment import Task, open_experiment, run
from nac_drive.experiments.page import Page
from nac_drive.experiments.table import Table
from nac_drive.notebook import automatic
from nac_drive.parallel.processes import Pool
from nac_drive.parallel.versions import code_sha256, installed_versions
from nac_drive.policies import PRETRAINED
from nac_drive.storage.names import shown
from nac_drive.storage.read import FileError, read_json
from nac_drive.storage.write import write_atomically

VERSION = 1
"""Version of the list of worlds. Results of different versions are not compared."""
SCHEMA = "nac-drive challenge"
TRACKS = SPLITS["challenge"]
"""Tracks of every world, for nothing else."""
SAMPLE = 3
"""Rows that `verify` drives again."""


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
OTHER_ROADS = (
    ChallengeWorld("MetaDrive", environment="nac_drive/MetaDriveEmpty-v0"),
    ChallengeWorld("racetrack", environment="racetrack-v0"),
)
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


@dataclass(frozen=True)
class _ChallengeDriving(Driving):
    """The worlds of one driver. The first entry is the driver in CarRacing, the others are the driver elsewhere."""

    kind: str = "a challenge"

    def tasks(self) -> list[Task]:
        elsewhere = {entry.label for entry in self.entries if entry.env.environment != EnvConfig.environment}
        few = set(self.tracks[:MOST_ELSEWHERE])
        return [
            task for task in super().tasks()
            if task.entry not in elsewhere
            or (task.coordinates["perturbation"] is None and task.coordinates["seed"] in few)
        ]  # fmt: skip


def challenge(
    driver: AnyDriver,
    out: str | os.PathLike[str],
    *,
    tracks: int = len(TRACKS),
    control: Control | None = None,
    resume: bool = False,
    pool: Pool | None = None,
    progress: Progress = automatic,
) -> ChallengeResult:
    """Drive the worlds of the challenge, see docs/challenge.md.

    Args:
        driver: A driver, its name, its folder or its file, see `resolve_driver`.
        out: The new file `.json`. A folder of its name, without `.json`, gets the journal and report.html.
        tracks: Tracks of each world. Fewer than all are a rehearsal, and the result says so.
        control: Control of a shipped driver; a cloned driver knows its own.
        resume: Go on with an interrupted run.
        pool: Processes that share the episodes, see `worker_pool`; no return depends on it.
        progress: Called after every episode.

    Returns:
        The result.

    Raises:
        FileExistsError: If `out` exists, or its folder does and `resume` is off.
        ValueError: For a driver that was trained elsewhere, or a bad argument.
        WriteError: If it cannot be written.
    """
    out = Path(out)
    if out.suffix != ".json":
        raise ValueError(f"out must be a file that ends with .json, got {str(out)!r}; such as result.json.")
    if os.path.lexists(out):
        raise FileExistsError(f"{out} already exists; choose another file.")
    if isinstance(tracks, bool) or not isinstance(tracks, int) or not 1 <= tracks <= len(TRACKS):
        raise ValueError(f"tracks must be a whole number from 1 to {len(TRACKS)}, got {tracks!r}.")
    driver = accepted(driver)
    policy, env = _driver_and_env(driver, control)
    name, sha256 = driver_name(driver), driver_hash(driver, env)
    entries, left_out = [Entry(name, sha256, env, policy)], {}
    for world in OTHER_ROADS:
        elsewhere = _elsewhere(world, env)
        if isinstance(elsewhere, str):
            left_out[world.name] = elsewhere
        else:
            entries.append(Entry(f"{name} on {world.name}", sha256, elsewhere, policy))
    experiment = _ChallengeDriving(
        tuple(entries), tuple(TRACKS[:tracks]), tuple(world.perturbation for world in WORLDS),
        settings={"version": VERSION, "code": _code(), "left_out": left_out},
    )  # fmt: skip
    if not sendable(policy, pool is not None):
        pool = None
    with open_experiment(experiment, out.with_suffix(""), files=("report.html",), resume=resume) as journal:
        results = run(experiment, journal, pool=pool, job="challenge", progress=progress)
        result = _result(name, sha256, env, experiment.tracks, episodes_of(results), left_out)
        assert journal.folder is not None
        challenge_page(result).save_html(journal.folder)
        write_atomically(out, (json.dumps(_plain(result), indent=1) + "\n").encode())
    return read_challenge(out)


def _driver_and_env(driver: AnyDriver, control: Control | None) -> tuple[Policy, EnvConfig]:
    """Return a driver and the undisturbed environment of its training.

    Raises:
        ValueError: It was trained elsewhere.
    """
    policy = resolve_driver(driver, EnvConfig(control=control) if control else None)
    env = env_for(policy, control)
    if env.environment != EnvConfig.environment:
        raise ValueError(
            f"driver: {driver_name(driver)!r} was trained in {env.environment!r}, and the challenge drives in "
            f"{EnvConfig.environment!r}; pass one that was trained there."
        )
    return policy, replace(env, max_steps=EnvConfig.max_steps)


def _elsewhere(world: ChallengeWorld, env: EnvConfig) -> EnvConfig | str:
    """Return another road for a driver, or a reason."""
    try:
        elsewhere = EnvConfig(env.control, environment=world.environment)
        make_env(elsewhere).close()
    except (ValueError, ImportError):
        return "not installed, or other actions"
    ours, other = env.spec, elsewhere.spec
    actions = other.num_actions == ours.num_actions if env.control == "discrete" else other.parts == ours.parts
    if other.frame_shape != ours.frame_shape or elsewhere.control != env.control or not actions:
        return "other frames or actions"
    return elsewhere


def _code() -> dict[str, str]:
    """Return what identifies the package's code."""
    simulator = "gymnasium" if compiled() is None else file_sha256(LIBRARY)
    return {"version": installed_versions().get("nac-drive", ""), "sha256": code_sha256(), "simulator": simulator}


def _machine() -> dict[str, str]:
    return {
        "system": platform.system(), "machine": platform.machine(), "processor": _processor(),
        "cores": str(os.cpu_count()), "python": sys.version.split()[0],
    }  # fmt: skip


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _result(
    name: str, sha256: str, env: EnvConfig, seeds: Sequence[int], episodes: Episodes, left_out: Mapping[str, str]
) -> ChallengeResult:
    """Return the result of finished episodes."""
    worlds = []
    for world in (*WORLDS, *(world for world in OTHER_ROADS if world.name not in left_out)):
        entry = name if world in WORLDS else f"{name} on {world.name}"
        rows = episodes[entry, world.perturbation]
        returns, lengths = [row.episode_return for row in rows], [row.length for row in rows]
        worlds.append(WorldResult(world.name, world.environment, world.perturbation, returns, lengths))
    table = [table_row(world) for world in worlds]
    result = ChallengeResult(
        SCHEMA, VERSION, len(seeds) == len(TRACKS), ChallengeDriver(shown(name), sha256, asdict(env)), list(seeds),
        _code(), installed_versions(), _machine(), worlds, dict(left_out), table, score_of(table), "0" * 64,
    )  # fmt: skip
    result.sha256 = digest_of(result)
    return result


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
    content = {name: value for name, value in _plain(result).items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _plain(result: ChallengeResult) -> dict[str, Any]:
    return json.loads(json.dumps(msgspec.to_builtins(result)))


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


@dataclass(frozen=True)
class ChallengeCheck:
    """The outcome of a verification."""

    faults: list[str]
    """What does not hold; empty for a sound result."""
    notes: list[str]
    """What differs here, and is no fault."""
    driven: int
    """Rows that were driven again."""

    def __repr__(self) -> str:
        return f"ChallengeCheck({len(self.faults)} faults, {self.driven} rows driven again)"


def verify_challenge(
    path: str | os.PathLike[str],
    driver: AnyDriver | None = None,
    *,
    sample: int = SAMPLE,
    seed: int | None = None,
    progress: Progress = automatic,
) -> ChallengeCheck:
    """Check a result, and drive some of its rows again.

    Args:
        path: The result.
        driver: The driver of the result; None for a shipped one of its name, if there is one.
        sample: Rows that are driven again and compared bit for bit.
        seed: Seed of the sample; None for another sample every time.
        progress: Called after every row.

    Returns:
        Faults and notes.

    Raises:
        FileError: If the file is no result.
        ValueError: If `sample` is negative.
    """
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < 0:
        raise ValueError(f"sample must be a whole number of at least 0, got {sample!r}; 0 drives nothing.")
    result = read_challenge(path)
    faults, notes = _faults(result), _notes(result)
    control = result.driver.env.get("control")
    if driver is None and result.driver.name in {*PRETRAINED, *(key.rpartition("-")[0] for key in PRETRAINED)}:
        driver = result.driver.name
    rows: list[tuple[WorldResult, int]] = []
    if driver is None:
        notes.append("no row was driven again: pass the driver (--driver)")
    else:
        driver = accepted(driver)
        policy, env = _driver_and_env(driver, control)
        if driver_hash(driver, env) != result.driver.sha256:
            faults.append(f"the driver {driver_name(driver)!r} has another hash than the driver of the result")
        elif asdict(env) != EnvConfig(**result.driver.env).__dict__:
            faults.append("the driver sees and acts otherwise than the result says")
        else:
            known = [(world, place) for world in result.worlds for place in range(len(world.returns))]
            rows = random.Random(seed).sample(known, min(sample, len(known))) if not faults else []
            finished = counting(progress, "verify", len(rows))
            for world, place in rows:
                faults += _driven_again(policy, env, world, result.seeds[place], place)
                finished(f"{world.name}, track {result.seeds[place]}")
    return ChallengeCheck(faults, notes, len(rows))


def _faults(result: ChallengeResult) -> list[str]:
    """Return what contradicts itself in a result."""
    faults = []
    if digest_of(result) != result.sha256:
        faults.append("its content was changed: the digest is another one")
    names = [world.name for world in result.worlds]
    expected = {world.name: world for world in (*WORLDS, *OTHER_ROADS)}
    faults += [f"the world {world.name!r} is missing" for world in WORLDS if world.name not in names]
    faults += [
        f"the world {world.name!r} is neither there nor left out"
        for world in OTHER_ROADS
        if (world.name in names) == (world.name in result.left_out)
    ]
    if len(set(names)) < len(names) or [name for name in expected if name in names] != names:
        faults.append(f"its worlds are {', '.join(names)[:200]}, expected {', '.join(expected)} in this order")
    count = len(result.seeds)
    if result.seeds != list(TRACKS[:count]):
        faults.append("its seeds are not the first tracks of the challenge")
    if result.official != (count == len(TRACKS)):
        faults.append(f"official is {result.official}, and it has {count:,} of {len(TRACKS):,} tracks")
    for world in result.worlds:
        known = expected.get(world.name)
        if known and (known.perturbation, known.environment) != (world.perturbation, world.environment):
            faults.append(f"the world {world.name!r} is not {known.perturbation} in {known.environment}")
        needed = count if known in WORLDS else min(count, MOST_ELSEWHERE)
        if not len(world.returns) == len(world.lengths) == needed:
            faults.append(f"the world {world.name!r} has {len(world.returns)} returns, expected {needed}")
    if result.table != [table_row(world) for world in result.worlds]:
        faults.append("its table does not follow from its returns")
    elif len(result.table) >= len(WORLDS) and result.score != score_of(result.table):
        faults.append("its score does not follow from its table")
    return faults


def _notes(result: ChallengeResult) -> list[str]:
    """Return what was another machine's."""
    here, notes = _code(), []
    if result.code.get("sha256") != here["sha256"]:
        notes.append(f"measured with other code (nac-drive {shown(str(result.code.get('version')))[:40]})")
    if result.code.get("simulator") != here["simulator"]:
        notes.append("measured with another build of the simulator")
    versions = installed_versions()
    if others := sorted(name for name in versions if result.versions.get(name) != versions[name]):
        notes.append(f"measured with other versions of {', '.join(others)}")
    if not result.official:
        notes.append(f"a rehearsal: {len(result.seeds):,} of {len(TRACKS):,} tracks")
    return notes


def _driven_again(policy: Policy, env: EnvConfig, world: WorldResult, seed: int, place: int) -> list[str]:
    """Return the fault of a row, if any."""
    if world.environment != env.environment:
        env = EnvConfig(env.control, environment=world.environment)
    (row,) = drive(policy, None, replace(env, perturb=world.perturbation), [seed], name="", crash="ignore")
    found, stated = (row.episode_return, row.length), (world.returns[place], world.lengths[place])
    if found == stated:
        return []
    again = f"driven again {found[0]!r} in {found[1]}"
    return [f"{world.name}, track {seed}: return {stated[0]!r} in {stated[1]} decisions, {again}"]


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
