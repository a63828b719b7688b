"""The challenge: one driver, fixed worlds, a result for others.

RESULT.json holds every return, what was measured with, and hashes. RESULT/ holds the journal of the run and its page.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nac_drive.arguments import checks_shared_arguments
from nac_drive.data_collection.drivers import AnyDriver, accepted, driver_hash, driver_name, resolve_driver, sendable
from nac_drive.data_collection.trained_env import env_for
from nac_drive.envs import Control, EnvConfig, Policy, make_env
from nac_drive.events import Progress
from nac_drive.experiments.challenge_result import (
    MOST_ELSEWHERE,
    OTHER_ROADS,
    SCHEMA,
    TRACKS,
    VERSION,
    WORLDS,
    ChallengeDriver,
    ChallengeResult,
    ChallengeWorld,
    WorldResult,
    challenge_page,
    code_identity,
    digest_of,
    plain_result,
    read_challenge,
    score_of,
    table_row,
)
from nac_drive.experiments.driving import Driving, Entry, Episodes, episodes_of
from nac_drive.experiments.experiment import Task, open_experiment, run
from nac_drive.notebook import automatic
from nac_drive.parallel.processes import Pool
from nac_drive.parallel.versions import installed_versions
from nac_drive.storage.names import shown
from nac_drive.storage.write import require_new, require_writable, write_atomically


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


@checks_shared_arguments
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
    require_new(out)
    require_writable(out)
    if isinstance(tracks, bool) or not isinstance(tracks, int) or not 1 <= tracks <= len(TRACKS):
        raise ValueError(f"tracks must be a whole number from 1 to {len(TRACKS)}, got {tracks!r}.")
    driver = accepted(driver)
    policy, env = challenge_driver(driver, control)
    name, sha256 = driver_name(driver), driver_hash(driver, env)
    entries, left_out = [Entry(name, sha256, env, policy)], {}
    for world in OTHER_ROADS:
        elsewhere = other_road(world, env)
        if isinstance(elsewhere, str):
            left_out[world.name] = elsewhere
        else:
            entries.append(Entry(f"{name} on {world.name}", sha256, elsewhere, policy))
    experiment = _ChallengeDriving(
        tuple(entries), tuple(TRACKS[:tracks]), tuple(world.perturbation for world in WORLDS),
        settings={"version": VERSION, "code": code_identity(), "left_out": left_out},
    )  # fmt: skip
    if not sendable(policy, pool is not None):
        pool = None
    with open_experiment(experiment, out.with_suffix(""), files=("report.html",), resume=resume) as journal:
        results = run(experiment, journal, pool=pool, job="challenge", progress=progress)
        result = _result(name, sha256, env, experiment.tracks, episodes_of(results), left_out)
        assert journal.folder is not None
        challenge_page(result).save_html(journal.folder)
        write_atomically(out, (json.dumps(plain_result(result), indent=1) + "\n").encode(), new=True)
    return read_challenge(out)


def challenge_driver(driver: AnyDriver, control: Control | None) -> tuple[Policy, EnvConfig]:
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


def other_road(world: ChallengeWorld, env: EnvConfig) -> EnvConfig | str:
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
        code_identity(), installed_versions(), _machine(), worlds, dict(left_out), table, score_of(table), "0" * 64,
    )  # fmt: skip
    result.sha256 = digest_of(result)
    return result
