"""Code of the user's own parts.

It is among the conditions of an experiment and the facts of a run, so that rows and steps of two codes are not mixed.
"""

from __future__ import annotations

from nac_drive.data_collection.identity import object_hash
from nac_drive.envs.perturbations.own import is_own
from nac_drive.envs.perturbations.registry import parse_all
from nac_drive.policies import CORES, ENCODERS, DriverConfig


def own_code(config: DriverConfig) -> dict[str, str]:
    """Return hashes of a user's own core and encoder.

    Their keys are `core` and `encoder`. Parts of the package have none.
    """
    parts = {"core": CORES.additions().get(config.core), "encoder": ENCODERS.additions().get(config.encoder)}
    return {name: object_hash(part) for name, part in parts.items() if part is not None}


def with_own_code(spec: str | None) -> str | dict[str, str] | None:
    """Return a specification, with the hashes of own perturbations."""
    parts = [part for parts in parse_all(spec) for part in parts] if spec else []
    hashes = {part.name: object_hash(part.perturbation) for part in parts if is_own(part.perturbation)}
    return {"name": spec or "", **hashes} if hashes else spec
