"""The verification of a result of the challenge."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace

from nac_drive.arguments import checks_shared_arguments
from nac_drive.data_collection.controller.controller import CONTROLLERS
from nac_drive.data_collection.drivers import AnyDriver, accepted, driver_hash, driver_name
from nac_drive.data_collection.own_driver import ControlError
from nac_drive.envs import EnvConfig, Policy
from nac_drive.evaluation.evaluate import drive
from nac_drive.events import Progress, counting
from nac_drive.experiments.challenge import challenge_driver, other_road
from nac_drive.experiments.challenge_result import (
    MOST_ELSEWHERE,
    OTHER_ROADS,
    TRACKS,
    WORLDS,
    ChallengeResult,
    WorldResult,
    code_identity,
    digest_of,
    read_challenge,
    score_of,
    table_row,
)
from nac_drive.notebook import automatic
from nac_drive.parallel.versions import installed_versions
from nac_drive.policies import shipped_names
from nac_drive.storage.names import shown
from nac_drive.storage.read import one_line

SAMPLE = 3
"""Rows that `verify` drives again."""


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


@checks_shared_arguments
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
    stated = _stated_env(result)
    if driver is None and result.driver.name in {*shipped_names(), *CONTROLLERS}:
        driver = result.driver.name
    rows: list[tuple[WorldResult, int]] = []
    if isinstance(stated, str):
        faults.append(stated)
    elif driver is None:
        notes.append("no row was driven again: pass the driver (--driver)")
    elif isinstance(policy := _policy(accepted(driver), result, stated), str):
        faults.append(policy)
    elif not faults:
        elsewhere = {world.name: other_road(world, stated) for world in OTHER_ROADS}
        missing = [world.name for world in result.worlds if isinstance(elsewhere.get(world.name), str)]
        notes += [f"no row of {name} was driven again: {elsewhere[name]}" for name in missing]
        worlds = [world for world in result.worlds if world.name not in missing]
        every_row = [(world, place) for world in worlds for place in range(len(world.returns))]
        rows = random.Random(seed).sample(every_row, min(sample, len(every_row)))
        finished = counting(progress, "verify", len(rows))
        for world, place in rows:
            faults += _driven_again(policy, stated, world, result.seeds[place], place)
            finished(f"{world.name}, track {result.seeds[place]}")
    return ChallengeCheck(faults, notes, len(rows))


def _stated_env(result: ChallengeResult) -> EnvConfig | str:
    """Return the environment of a result's driver, or a fault."""
    try:
        return EnvConfig(**result.driver.env)
    except (TypeError, ValueError) as error:  # TypeError: a setting that there is not, or of another type
        return f"its driver's env is no environment ({one_line(error).rstrip('.')[:200]})"


def _policy(driver: AnyDriver, result: ChallengeResult, stated: EnvConfig) -> Policy | str:
    """Return a driver, or why it is not the result's."""
    try:
        policy, env = challenge_driver(driver, stated.control)
    except ControlError as error:
        return str(error).partition(";")[0]
    if driver_hash(driver, env) != result.driver.sha256:
        return f"the driver {driver_name(driver)!r} has another hash than the driver of the result"
    return policy if env == stated else "the driver sees and acts otherwise than the result says"


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
    others = {world.name for world in OTHER_ROADS}
    faults += [
        f"the world {name[:80]!r} is left out, and must not be" for name in result.left_out if name not in others
    ]
    if len(set(names)) < len(names) or [name for name in expected if name in names] != names:
        faults.append(f"its worlds are {', '.join(names)[:200]}, expected {', '.join(expected)} in this order")
    count = len(result.seeds)
    if result.seeds != list(TRACKS[:count]):
        faults.append("its seeds are not the first tracks of the challenge")
    if result.official != (count == len(TRACKS)):
        faults.append(f"official is {result.official}, and it has {count:,} of {len(TRACKS):,} tracks")
    for world in result.worlds:
        rule = expected.get(world.name)
        if rule and (rule.perturbation, rule.environment) != (world.perturbation, world.environment):
            faults.append(f"the world {world.name!r} is not {rule.perturbation} in {rule.environment}")
        needed = count if rule in WORLDS else min(count, MOST_ELSEWHERE)
        if (found := (len(world.returns), len(world.lengths))) != (needed, needed):
            faults.append(f"the world {world.name!r} has {found[0]} returns and {found[1]} lengths, expected {needed}")
    if result.table != [table_row(world) for world in result.worlds]:
        faults.append("its table does not follow from its returns")
    elif len(result.table) >= len(WORLDS) and result.score != score_of(result.table):
        faults.append("its score does not follow from its table")
    return faults


def _notes(result: ChallengeResult) -> list[str]:
    """Return what was another machine's."""
    here, notes = code_identity(), []
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
